"""Graphs of modules, by torch.fx, and why there is none."""

from __future__ import annotations

import builtins
import inspect
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, Node, Proxy, Tracer

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class UntraceableError(Exception):
    """Why a module has no graph."""


class FaithfulProxy(Proxy):
    """A value whose `+=` and its like are written down as such; torch.fx takes them for `+`."""


def _in_place(function: Callable[..., Any]) -> Callable[[Proxy, Any], Proxy]:
    def call(self: Proxy, other: Any) -> Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return call


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "imatmul", "iand"):
    setattr(FaithfulProxy, f"__{_name}__", _in_place(getattr(operator, _name)))


class ModuleTracer(Tracer):
    """Stops at modules of torch and cutwheel, and at those whose forward is not all they do."""

    proxy_buffer_attributes = True  # else arithmetic on buffers would be done once, while tracing

    def proxy(self, node: Node) -> Proxy:
        return FaithfulProxy(node, self)

    def is_leaf_module(self, module: torch.nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(module) or why_opaque(module) is not None


def is_leaf(module: torch.nn.Module) -> bool:
    """Whether a module's class is known: its forward need not be looked into."""
    package = type(module).__module__
    is_known = package.startswith(("torch.nn.", "torch.ao.nn.", "cutwheel."))
    return is_known and not isinstance(module, (torch.nn.Sequential, torch.fx.GraphModule))


def why_opaque(module: torch.nn.Module) -> str | None:
    """Why calling the module does other things than its class says; None: it does not."""
    if isinstance(module, torch.jit.ScriptModule):
        return "it is a module of TorchScript"
    if any(getattr(module, name, None) for name in HOOKS):
        return "it has hooks, which would be lost"
    if "forward" in vars(module):
        return "its forward was replaced on the object"
    return None


def trace(module: torch.nn.Module) -> Graph:
    """The graph of a module that is not opaque.

    Raises:
        UntraceableError: forward depends on the values or shapes of its arguments in a way that a
            graph cannot have, or does something that a graph would do only once
    """
    _check_arguments(module)
    before = {owner: dict(vars(owner)) for owner in module.modules()}
    generators = _generator_states()
    try:
        with _watched():
            graph = ModuleTracer().trace(module)
    except UntraceableError:
        raise
    except Exception as error:  # whatever the model's code raises when it meets a proxy
        text = str(error).strip().splitlines()
        raise UntraceableError(
            f"{type(error).__name__}: {text[0] if text else 'no message'}"
        ) from error
    finally:
        changed = _undo(before)
        has_drawn = any(
            not torch.equal(now, then)
            for now, then in zip(_generator_states(), generators, strict=False)
        )
    if changed:
        raise UntraceableError(f"forward sets {changed}, which a graph would not")
    if has_drawn:
        raise UntraceableError("forward draws random numbers, which would become constants")
    return graph


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


@contextmanager
def _watched() -> Iterator[None]:
    """Refuses what would go by unnoticed.

    A context of autocast does not get into the graph, and no value is an instance of a tensor while
    it is traced: the model would take another way than it does with one.
    """

    def refuse(self: Any) -> None:
        raise UntraceableError("forward enters torch.autocast, which a graph would not")

    def checked(value: object, kind: Any) -> bool:
        if type(value) is FaithfulProxy:
            asker = str(sys._getframe(1).f_globals.get("__name__"))
            if asker.split(".")[0] not in ("torch", "cutwheel"):
                raise UntraceableError(f"{asker} asks for the type of a value, which has none here")
        return is_instance(value, kind)

    enter, is_instance = torch.autocast.__enter__, builtins.isinstance
    torch.autocast.__enter__ = refuse  # type: ignore[method-assign]
    builtins.isinstance = checked
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]
        builtins.isinstance = is_instance


def _generator_states() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return states


def _undo(before: dict[torch.nn.Module, dict[str, Any]]) -> str:
    """Takes back what forward has set on modules; the name of one such attribute, or nothing."""
    changed = ""
    for owner, attributes in before.items():
        now = vars(owner)
        for name, value in list(now.items()):
            is_constant = isinstance(value, torch.Tensor) and name.startswith("_tensor_constant")
            if name in attributes and value is attributes[name]:
                continue
            if is_constant and not isinstance(value, Proxy):
                continue  # the tracer's own, which the graph refers to
            changed = f"{type(owner).__name__}.{name}"
            if name in attributes:
                now[name] = attributes[name]
            else:
                del now[name]
    return changed
