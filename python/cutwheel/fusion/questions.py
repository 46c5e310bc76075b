"""Questions that forward may not ask about its values while it is traced: a proxy answers wrongly.

A proxy is no instance of a tensor, has every attribute, and its hash is in no table. The code would
take another branch than it does with a tensor, and the graph would have that branch for good.
"""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx import Proxy
from torch.fx.proxy import Attribute

_PASSING_ON = ("abc", "typing")
"""modules that ask in the name of their callers, as those of torch do"""

_lock = threading.RLock()  # of what is replaced in the interpreter while a module is traced
_type, _getattr = type, getattr


class UntraceableError(Exception):
    """Why a module has no graph."""


class Watch:
    """Refusals during a trace, also where the model's code caught the exception."""

    def __init__(self) -> None:
        self.reason = ""
        self._texts: dict[str, str] = {}

    def note(self, reason: str) -> None:
        self.reason = self.reason or reason

    def refused(self, reason: str) -> UntraceableError:
        """The exception to raise."""
        self.note(reason)
        return UntraceableError(reason)

    def text(self, asker: str) -> str:
        """A stand-in for a value's text, which check_texts finds in messages of torch._assert."""
        text = f"<a value, {len(self._texts)}>"
        self._texts[text] = f"{asker} asks for the text of a value, which a trace does not know"
        return text

    def check_texts(self, graph: torch.fx.Graph) -> None:
        messages = [str(node.args[1:]) for node in graph.nodes if node.target is torch._assert]
        for text, reason in self._texts.items():
            if not any(text in message for message in messages):
                raise self.refused(reason)


class _Watched:
    """Refuses to the model's code, but not to the tracer, what a proxy would answer wrongly."""

    tracer: Any
    node: torch.fx.Node

    def __getattr__(self, name: str) -> Any:
        if _is_compared_by_identity(sys._getframe(1), name):
            _refuse(self, f"the identity of the attribute {name}")
        return WatchedAttribute(self, name)  # type: ignore[arg-type]

    def __setattr__(self, name: str, value: object) -> None:
        asker = _asker(sys._getframe(1))
        if asker is not None:
            reason = f"{asker} sets {name} of a value, which a graph would not"
            raise self.tracer.watch.refused(reason)
        object.__setattr__(self, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Functions of torch ask for it, too, before they hand the call to the tracer.
        now = _instruction(sys._getframe(1))
        if now is not None and (now.opname == "MATCH_CLASS" or now.argval == "__class__"):
            _refuse(self, "the type")
        return _type(self)

    def __hash__(self) -> int:
        _refuse(self, "the hash")
        return object.__hash__(self)

    def __repr__(self) -> str:
        asker = _asker(sys._getframe(1))
        return f"Proxy({self.node.name})" if asker is None else self.tracer.watch.text(asker)

    def __len__(self) -> int:
        reason = "RuntimeError: 'len' is not supported in symbolic tracing"
        raise self.tracer.watch.refused(reason)


class WatchedProxy(_Watched, Proxy):
    """A value whose `+=` and its like are written down as such; torch.fx takes them for `+`."""


class WatchedAttribute(_Watched, Attribute):
    """The attribute of a value, likewise."""

    @property
    def node(self) -> torch.fx.Node:  # type: ignore[override]
        if self._node is None:  # torch.fx would write down the function in place of getattr
            args = (self.root, self.attr)
            self._node = self.tracer.create_proxy("call_function", _getattr, args, {}).node
        return self._node


def _asker(frame: FrameType | None) -> str | None:
    """The module that asks, itself or through a function of torch; None: the tracer does."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        package = name.split(".")[0]
        if package == "cutwheel" or name.startswith("torch.fx."):
            return None
        if package != "torch" and name not in _PASSING_ON:
            return name
        frame = frame.f_back
    return None


def _refuse(value: Any, what: str) -> None:
    """Raises, unless it is the tracer that has called our caller."""
    asker = _asker(sys._getframe(2))
    if asker is not None:
        tracer = object.__getattribute__(value, "tracer")
        reason = f"{asker} asks for {what} of a value, which a trace does not know"
        raise tracer.watch.refused(reason)


def _is_compared_by_identity(frame: FrameType, name: str) -> bool:
    """Whether the attribute that the frame loads now is an operand of `is`."""
    now = _instruction(frame)
    if now is None or now.opname != "LOAD_ATTR" or now.argval != name:
        return False
    behind = 0  # values on the stack above the attribute
    for instruction in _instructions(frame.f_code):
        operation = instruction.opname
        if instruction.offset <= now.offset or operation == "EXTENDED_ARG":
            continue
        if operation == "IS_OP":
            return behind <= 1
        if operation.startswith("POP_JUMP_") and operation.endswith("_NONE"):
            return behind == 0
        if not operation.startswith("LOAD_") or (operation == "LOAD_ATTR" and not behind):
            return False
        if operation != "LOAD_ATTR":
            behind += operation.count("LOAD_")  # newer versions of Python have two in one
    return False


def _instruction(frame: FrameType) -> dis.Instruction | None:
    """The instruction that the frame is at."""
    found = _instructions(frame.f_code)
    return next((each for each in found if each.offset == frame.f_lasti), None)


@functools.lru_cache(maxsize=256)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    return tuple(dis.get_instructions(code))


def _is_value(value: object) -> bool:
    return issubclass(_type(value), Proxy)


def _asking(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """A function of a value, which is its first argument, and others."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if args and _is_value(args[0]):
            _refuse(args[0], what)
        return function(*args, **kwargs)

    return call


def _with_default(get: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if len(args) > 1 and _is_value(args[0]):
            if args[1] == "__class__":
                _refuse(args[0], "the type")
            if len(args) == 3:
                _refuse(args[0], f"the attribute {args[1]}, or a default,")
        return get(*args)

    return call


class _TypeOfType(type):
    """Lets a class stand for `type` in the model's code."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and _is_value(args[0]):
            _refuse(args[0], "the type")
        return _type(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _type)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _type)

    def __getitem__(cls, item: Any) -> Any:
        return _type[item]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _type

    def __hash__(cls) -> int:
        return hash(_type)


class _Type(type, metaclass=_TypeOfType):
    pass


def _namespaces(module: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Namespaces of all code that the model may have or call."""
    found: list[Any] = [getattr(each, "__dict__", None) for each in list(sys.modules.values())]
    for kind in {base for each in module.modules() for base in _type(each).__mro__}:
        found.append(getattr(vars(kind).get("forward"), "__globals__", None))
    for names in found:
        if _type(names) is dict:
            package = str(names.get("__name__")).split(".")[0]
            if package not in ("torch", "cutwheel") and package not in sys.stdlib_module_names:
                yield names


@contextmanager
def watched(module: torch.nn.Module, watch: Watch) -> Iterator[None]:
    """Refuses what would go by unnoticed while the module is traced.

    A context of autocast does not get into the graph. `type` cannot be replaced for everyone, as
    code compares with it, so it is for the model's code.
    """

    def refuse(self: Any) -> None:
        raise watch.refused("forward enters torch.autocast, which a graph would not")

    replaced: list[tuple[Any, str, Any]] = [
        (torch.autocast, "__enter__", refuse),
        (builtins, "isinstance", _asking(isinstance, "the type")),
        (builtins, "callable", _asking(callable, "the type")),
        (builtins, "hasattr", _asking(hasattr, "the attributes")),
        (builtins, "getattr", _with_default(getattr)),
    ]
    with _lock:
        before = [(owner, name, vars(owner)[name]) for owner, name, _ in replaced]
        spaces = [names for names in _namespaces(module) if "type" not in names]
        try:
            for owner, name, value in replaced:
                setattr(owner, name, value)
            for names in spaces:
                names["type"] = _Type
            yield
        finally:
            for owner, name, value in before:
                setattr(owner, name, value)
            for names in spaces:
                names.pop("type", None)
