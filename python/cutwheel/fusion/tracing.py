"""Graphs of modules, by torch.fx, and why there is none."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Set
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node, Proxy, Tracer
from torch.fx.proxy import TraceError

from .constants import WRITES, make_anew
from .opaque import is_leaf, why_opaque
from .questions import UntraceableError, Watch, WatchedAttribute, WatchedProxy, watched


def _in_place(function: Callable[..., Any]) -> Callable[[Proxy, Any], Proxy]:
    def call(self: Proxy, other: Any) -> Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return call


for _name in (
    *("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul"),
    *("iand", "ior", "ixor", "ilshift", "irshift"),
):
    for _kind in (WatchedProxy, WatchedAttribute):
        setattr(_kind, f"__{_name}__", _in_place(getattr(operator, _name)))


class ModuleTracer(Tracer):
    """Stops at modules of torch and cutwheel, and at those whose forward is not all they do."""

    proxy_buffer_attributes = True  # else arithmetic on buffers would be done once, while tracing

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch()
        self._versions: dict[Tensor, int] = {}

    def proxy(self, node: Node) -> Proxy:
        return WatchedProxy(node, self)

    def is_leaf_module(self, module: torch.nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(module) or why_opaque(module) is not None

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not isinstance(a, torch.nn.Parameter):
            self._check_version(a)
        return super().create_arg(a)

    def _check_version(self, constant: Tensor) -> None:
        """That a tensor is still what it was when the graph first referred to it."""
        if constant.is_inference():  # made elsewhere: such tensors have no version
            return
        if self._versions.setdefault(constant, constant._version) != constant._version:
            raise self.watch.refused(WRITES)

    def check_constants(self) -> None:
        for constant in list(self._versions):
            self._check_version(constant)

    def to_bool(self, obj: Proxy) -> bool:
        return bool(self._noted(super().to_bool, obj))

    def iter(self, obj: Proxy) -> Any:
        return self._noted(super().iter, obj)

    def _noted(self, function: Callable[[Proxy], Any], obj: Proxy) -> Any:
        try:
            return function(obj)
        except TraceError as error:
            self.watch.note(_text(error))
            raise


def trace(module: torch.nn.Module) -> Graph:
    """The graph of a module that is not opaque.

    Raises:
        UntraceableError: forward depends on the values or shapes of its arguments in a way that a
            graph cannot have, or does something that a graph would do only once
    """
    _check_arguments(module)
    before = {owner: dict(vars(owner)) for owner in module.modules()}
    generators = _generator_states()
    tracer = ModuleTracer()
    graph, reason = None, ""
    try:
        # Tensors made in inference mode would not tell that they were written to.
        with watched(module, tracer.watch), torch.inference_mode(False):
            graph = tracer.trace(module)
            tracer.check_constants()
            tracer.watch.check_texts(graph)
    except Exception as error:  # whatever the model's code raises when it meets a proxy
        reason = str(error) if isinstance(error, UntraceableError) else _text(error)
    reason = tracer.watch.reason or reason
    made = vars(module).keys() - before[module].keys()
    constants = {name for name in made if name.startswith("_tensor_constant")}
    changed = _undo(before, constants)
    if changed and not reason:
        reason = f"forward sets {changed}, which a graph would not"
    has_drawn = any(
        not torch.equal(now, then)
        for now, then in zip(_generator_states(), generators, strict=False)
    )
    if has_drawn and not reason:
        reason = "forward draws random numbers, which would become constants"
    if graph is not None and not reason:
        reason = make_anew(graph, module, constants)
    if graph is None or reason:
        for name in constants:
            delattr(module, name)
        raise UntraceableError(reason)
    return graph


def _text(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}"


def _check_arguments(module: torch.nn.Module) -> None:
    """That forward cannot see which arguments are given: to a graph, all of them are."""
    for parameter in inspect.signature(module.forward).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UntraceableError(f"forward takes any arguments, *{parameter.name}")
        is_told = parameter.default is None or isinstance(parameter.default, (bool, str))
        if is_told and parameter.default is not parameter.empty:
            raise UntraceableError(
                f"forward has an optional argument, {parameter.name}, and may depend on whether it "
                "is given"
            )


def _generator_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return states


def _undo(before: dict[torch.nn.Module, dict[str, Any]], constants: Set[str]) -> str:
    """Takes back what forward has set on modules; the name of one such attribute, or nothing.

    Args:
        constants: set by the tracer, and not by forward
    """
    changed = ""
    for owner, attributes in before.items():
        now = vars(owner)
        for name, value in list(now.items()):
            if name in attributes and value is attributes[name]:
                continue
            if name in constants and isinstance(value, Tensor):
                continue
            changed = f"{type(owner).__name__}.{name}"
            if name in attributes:
                now[name] = attributes[name]
            else:
                del now[name]
    return changed
