"""Checks of a module whose parameters another module takes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ops._common import sharding


def is_bare(module: torch.nn.Module) -> bool:
    """Whether a call of the module does what the forward of its class does, and no more."""
    # Attributes one by one: any() of a generator takes several times as long.
    return not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


_PLAIN = (torch.nn.Parameter, torch.Tensor)


def is_weight_alone(layer: Any, kind: type[torch.nn.Linear]) -> bool:
    """Whether a call of the layer is the product with its weight, and no more.

    A tensor of another class (quantised, say) may be more than its elements; a DTensor is not.
    """
    if type(layer) is not kind or layer.bias is not None or not is_bare(layer):
        return False
    if getattr(layer, "activation", None) is not None:
        return False
    weight = layer.weight
    is_sharded = sharding.calls is not None and sharding.calls.is_sharded(weight)
    return type(weight) in _PLAIN or is_sharded


def fused_options(layer: Any) -> str:
    """The options that a fused layer has besides torch's, as its repr has them."""
    text = "" if layer.activation is None else f", activation={layer.activation!r}"
    return text + ", residual_after_activation=True" * bool(layer.residual_after_activation)


def check_source(
    op: str,
    name: str,
    module: Any,
    kind: type[torch.nn.Module],
    forwards: tuple[Callable[..., Any], ...],
) -> None:
    """That a call of `module` is a call of one of `forwards`, which the new layer stands for.

    Args:
        op, name: of the layer that is made and of its argument, for the message
        kind: what the module is an instance of
        forwards: functions, as classes have them

    Raises:
        TypeError: it is of another kind, or of a subclass with a forward of its own
        ValueError: it has hooks, or a forward set on the object
    """
    class_name = type(module).__name__
    expected = f"torch.nn.{kind.__name__}"
    if not isinstance(module, kind):
        raise TypeError(f"{op}: {name} is of type {class_name}; expected a {expected}")
    if type(module).forward not in forwards:
        raise TypeError(
            f"{op}: {name} is a {class_name}, whose forward is not that of {expected} and would be "
            f"lost; expected a {expected}: copy the weight that it computes with into one"
        )
    if not is_bare(module):
        what = "a forward set on the object" if "forward" in vars(module) else "hooks"
        raise ValueError(
            f"{op}: {name} has {what}, which would be lost; expected a module without: take that "
            "off it, and put it on the layer that is made"
        )
