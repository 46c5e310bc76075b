"""CPU time of one call: what Python, the dispatcher, checks, selection and the launch cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import cutwheel

from ..compare import HostCase, Limits, Run
from . import Suite

SIZE = 64  # rows and columns of every operand


def backward_of(forward: Run, inputs: tuple[torch.Tensor, ...], grad: torch.Tensor) -> Run:
    # autograd.grad, not .backward(): nothing is accumulated into .grad between calls.
    return lambda: torch.autograd.grad(forward(), inputs, grad)


def host(device: str) -> list[HostCase]:
    def operand(*shape: int, grad: bool = False) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device).requires_grad_(grad)

    x, w, out = operand(SIZE, SIZE), operand(SIZE, SIZE), operand(SIZE, SIZE)
    xg, wg = operand(SIZE, SIZE, grad=True), operand(SIZE, SIZE, grad=True)
    bias, bias_g, grad = operand(SIZE), operand(SIZE, grad=True), operand(SIZE, SIZE)
    xb, wb, cb = (operand(4, SIZE, SIZE) for _ in range(3))

    def pair(name: str, call: Callable[[Any, Any], Run]) -> HostCase:
        return HostCase(name, call(torch, functional.linear), call(cutwheel, cutwheel.linear))

    return [
        pair("mm", lambda lib, _: lambda: lib.mm(x, w)),
        pair("mm, transposed weight", lambda lib, _: lambda: lib.mm(x, w.t())),
        pair("mm, out=", lambda lib, _: lambda: lib.mm(x, w, out=out)),
        pair("mm, with grad", lambda lib, _: lambda: lib.mm(xg, wg)),
        pair(
            "mm, forward + backward",
            lambda lib, _: backward_of(lambda: lib.mm(xg, wg), (xg, wg), grad),
        ),
        pair("linear", lambda _, lin: lambda: lin(x, w)),
        pair("linear, bias", lambda _, lin: lambda: lin(x, w, bias)),
        pair(
            "linear, bias, forward + backward",
            lambda _, lin: backward_of(lambda: lin(xg, wg, bias_g), (xg, wg, bias_g), grad),
        ),
        pair("addmm", lambda lib, _: lambda: lib.addmm(bias, x, w)),
        pair("bmm", lambda lib, _: lambda: lib.bmm(xb, wb)),
        pair("baddbmm", lambda lib, _: lambda: lib.baddbmm(cb, xb, wb)),
    ]


SUITE = Suite({}, Limits(), "", host=host)
