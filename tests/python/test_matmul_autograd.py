"""Gradients of matmul where an operand is broadcast: a sum over the batch."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
import torch
from cpu_reference import CpuOps

Tensor = torch.Tensor
Shape = tuple[int, ...]
SHAPES: list[tuple[Shape, Shape]] = [
    ((2, 24, 40), (40, 56)),
    ((24, 40), (3, 40, 56)),
    ((1, 24, 40), (5, 40, 56)),
    ((5, 24, 40), (1, 40, 56)),
    ((2, 1, 24, 40), (3, 40, 56)),
    ((2, 3, 24, 40), (3, 40, 56)),
    ((2, 3, 24, 40), (40, 56)),
    ((3, 1, 24, 40), (1, 40, 56)),
    ((3, 1, 9, 4), (1, 2, 4, 90)),
    ((40,), (3, 40, 56)),
    ((3, 24, 40), (40,)),
    ((0, 24, 40), (1, 40, 56)),
    ((2, 24, 0), (1, 0, 56)),
]


def column_major(tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_gradients_once_and_twice(
    cutwheel: ModuleType, cpu_ops: CpuOps, left: Shape, right: Shape
) -> None:
    for turned in itertools.product((False, True), repeat=2):
        given = [torch.randn(shape, dtype=torch.float64) for shape in (left, right)]
        given = [
            column_major(tensor) if turn else tensor
            for tensor, turn in zip(given, turned, strict=True)
        ]
        all_grads = []
        for function in (cutwheel.matmul, torch.matmul):
            leaves = [tensor.detach().requires_grad_() for tensor in given]
            grads = torch.autograd.grad(function(*leaves).square().sum(), leaves, create_graph=True)
            loss = sum((grad**3).sum() for grad in grads)
            assert isinstance(loss, Tensor)
            all_grads.append((*grads, *torch.autograd.grad(loss, leaves)))
        for got, want in zip(*all_grads, strict=True):
            torch.testing.assert_close(got, want)


CANCELLING: dict[str, tuple[Shape, Shape]] = {
    "other, of transposed rows": ((4, 24, 40), (40, 56)),
    "other, of one batch": ((4, 24, 40), (1, 40, 56)),
    "input": ((24, 40), (4, 40, 56)),
    "input, of many columns": ((24, 40), (4, 40, 500)),
    "both, in part": ((1, 4, 24, 40), (2, 1, 40, 56)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CANCELLING)
def test_sums_over_the_batch_are_rounded_once(
    cutwheel: ModuleType, cpu_ops: CpuOps, name: str, dtype: torch.dtype
) -> None:
    """Terms that nearly cancel: rounded before, they would leave nothing right."""
    left, right = CANCELLING[name]
    operands = [torch.randn(shape).to(dtype) for shape in (left, right)]
    for tensor in operands:
        if tensor.dim() > 2:  # the same matrices twice
            for dim in range(tensor.dim() - 2):
                half = tensor.shape[dim] // 2
                if half:
                    tensor.narrow(dim, half, half).copy_(tensor.narrow(dim, 0, half))
    if "transposed" in name:
        operands[0] = operands[0].transpose(0, 1).contiguous().transpose(0, 1)
    seed = torch.randn(torch.matmul(*operands).shape).to(dtype)
    for dim in range(seed.dim() - 2):
        half = seed.shape[dim] // 2
        first, second = seed.narrow(dim, 0, half), seed.narrow(dim, half, half)
        second.copy_(-first * (1 + 2**-5))
    exact = [tensor.double().requires_grad_() for tensor in operands]
    sizes = [tensor.abs().requires_grad_() for tensor in (t.detach().double() for t in operands)]
    for tensor in operands:
        tensor.requires_grad_()
    results = torch.autograd.grad(cutwheel.matmul(*operands), operands, seed)
    wanted = torch.autograd.grad(torch.matmul(*exact), exact, seed.double())
    magnitudes = torch.autograd.grad(torch.matmul(*sizes), sizes, seed.double().abs())
    for got, want, magnitude in zip(results, wanted, magnitudes, strict=True):
        assert got.dtype == dtype
        limit = torch.finfo(dtype).eps * want.abs() + 2.0**-18 * magnitude
        if got.dim() < seed.dim() or got.shape[:-2] != seed.shape[:-2]:
            assert ((got.double() - want).abs() <= limit).all()


def test_no_batch_in_float32_where_one_product_does(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Rows of a batch are one long K, as they lie."""
    x = torch.randn(4, 24, 40, dtype=torch.bfloat16)
    weight = torch.randn(1, 40, 56, dtype=torch.bfloat16, requires_grad=True)
    result = cutwheel.matmul(x, weight)
    cpu_ops.calls.clear()
    torch.autograd.grad(result, weight, torch.ones_like(result))
    assert cpu_ops.calls == [("mm", "plain")]


@pytest.mark.parametrize("turned", itertools.product((False, True), repeat=2), ids=str)
@pytest.mark.parametrize("op", ["mm", "bmm", "addmm", "baddbmm"])
def test_gradients_lie_as_their_operands(
    cutwheel: ModuleType, cpu_ops: CpuOps, op: str, turned: tuple[bool, bool]
) -> None:
    batch = (2,) if "bmm" in op else ()
    operands = [torch.randn(*batch, 24, 40), torch.randn(*batch, 40, 56)]
    operands = [
        (column_major(tensor) if turn else tensor).requires_grad_()
        for tensor, turn in zip(operands, turned, strict=True)
    ]
    addend = [torch.randn(56, requires_grad=True)] if "add" in op else []
    result = getattr(cutwheel, op)(*addend, *operands)
    grads = torch.autograd.grad(result, operands, torch.randn_like(result))
    assert [grad.stride() for grad in grads] == [tensor.stride() for tensor in operands]
