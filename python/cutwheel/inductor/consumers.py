"""What becomes of a fused kernel's result: whether Inductor would compute it in a kernel of its
own, or in one with what follows.

An activation whose result is only multiplied by something costs Inductor nothing: its kernel reads
the product instead of the result. So what a fused kernel saves depends on where the result goes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from .chains import is_reshape
from .formulas import is_cast

aten = torch.ops.aten

ENDS = ""
"""into kernels that are called as they are, or out of the graph: Inductor writes it"""
SHARED = ", shared"
"""into those, and into a kernel of Inductor's: that one has it, and writes it"""
GOES_ON = ", goes on"
"""into a kernel of Inductor's alone, which does not write it"""

_CALLED = {
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.baddbmm,
    aten._scaled_mm,
    aten._grouped_mm,
    aten._int_mm,
    aten.convolution,
    aten.convolution_backward,
    aten.copy_,
}
_FUSED_NAMESPACES = ("aten", "prims")
_MOST_STEPS = 4
"""back from an operand to the kernel that has computed it"""


def _is_called(node: fx.Node) -> bool:
    """Whether Inductor calls a kernel that is there, or the value leaves the graph."""
    if node.op != "call_function":
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return (
        target.namespace not in _FUSED_NAMESPACES
        or target.overloadpacket in _CALLED
        or "scaled_dot_product" in target.overloadpacket.__name__
    )


def _users(node: fx.Node) -> list[fx.Node]:
    """Those of its views, too."""
    found: list[fx.Node] = []
    values = [node]
    for value in values:
        for user in value.users:
            is_view = is_reshape(user) or user.target in (aten.permute.default, aten.t.default)
            (values if is_view else found).append(user)
    return found


def _is_later(user: fx.Node, node: fx.Node) -> bool:
    """Whether a user waits for a kernel that is called, so that the value has to be written: the
    residual of the layer after next."""
    last: list[Any] = [each for each in user.all_input_nodes if each is not node]
    for _ in range(_MOST_STEPS):
        before = [each for each in last if each.op == "call_function"]
        if any(_is_called(each) for each in before):
            return True
        last = [
            each
            for value in before
            if is_reshape(value) or is_cast(value) or value.target is aten.add.Tensor
            for each in value.all_input_nodes
            if each is not node
        ]
    return False


def end_of(tail: fx.Node) -> str:
    """ENDS, SHARED or GOES_ON."""
    called = fused = False
    for user in _users(tail):
        if _is_called(user) or _is_later(user, tail):
            called = True
        else:
            fused = True
    if not fused:
        return ENDS
    return SHARED if called else GOES_ON
