"""The shorter way into autograd.Function: what torch's own `apply` does, it does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("cutwheel")
from cutwheel.ops._common.call import fast_apply

Tensor = torch.Tensor


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, factor: float) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.factor, ctx.has_c = factor, c is not None
        return a * b * factor if c is None else a * b * factor + c

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        return grad * b * ctx.factor, grad * a * ctx.factor, grad if ctx.has_c else None, None


class ScaleOfFour(torch.autograd.Function):
    """Scale with another addend in front of the factor; one of them is None."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor | None, factor: float
    ) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.factor, ctx.has_c, ctx.has_d = factor, c is not None, d is not None
        addend = d if c is None else c
        return a * b * factor if addend is None else a * b * factor + addend

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        addends = grad if ctx.has_c else None, grad if ctx.has_d else None
        return grad * b * ctx.factor, grad * a * ctx.factor, *addends, None


@pytest.fixture(params=["two", "three", "third of four", "fourth of four"])
def apply(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    if request.param in ("two", "three"):
        made: Callable[..., Tensor] = fast_apply(Scale, 2 if request.param == "two" else 3)
        return made
    of_four: Callable[..., Tensor] = fast_apply(ScaleOfFour, 4)
    if request.param == "third of four":
        return lambda a, b, c, factor: of_four(a, b, c, None, factor)
    return lambda a, b, c, factor: of_four(a, b, None, c, factor)


def leaf() -> Tensor:
    return torch.randn(3, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("with_c", [False, True])
def test_values_and_gradients(apply: Callable[..., Tensor], with_c: bool) -> None:
    a, b, c = leaf(), leaf(), leaf() if with_c else None
    torch.testing.assert_close(apply(a, b, c, 2.0), Scale.apply(a, b, c, 2.0))
    inputs = (a, b) if c is None else (a, b, c)
    assert torch.autograd.gradcheck(
        lambda *given: apply(*given[:2], given[2] if with_c else None, 2.0), inputs
    )


def test_a_transform_is_told_that_it_cannot(apply: Callable[..., Tensor]) -> None:
    a, b = leaf(), leaf()
    with pytest.raises(RuntimeError, match="setup_context"):
        torch.func.grad(lambda x: apply(x, b, None, 2.0).sum())(a)


def test_a_tensor_that_has_left_its_transform_keeps_its_history(
    apply: Callable[..., Tensor],
) -> None:
    a, b = leaf(), leaf()
    left = []

    def keep(x: Tensor) -> Tensor:
        left.append(x * 3)
        return x.sum()

    torch.func.grad(keep)(a)
    (grad,) = torch.autograd.grad(apply(left[0], b, None, 2.0).sum(), a)
    torch.testing.assert_close(grad, 6 * b.detach())


class Wrapped(torch.autograd.Function):
    """Which of its arguments are tensors of a transform."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor | None) -> Tensor:
        is_wrapped = torch._C._functorch.is_gradtrackingtensor
        return torch.tensor([x is not None and is_wrapped(x) for x in given])


@pytest.mark.parametrize("tensors", [2, 3, 4])
def test_every_tensor_leaves_the_transform(tensors: int) -> None:
    left = []

    def keep(x: Tensor) -> Tensor:
        left.extend(x * i for i in range(tensors))
        return x.sum()

    torch.func.grad(keep)(leaf())
    assert Wrapped.forward(None, *left).all()
    assert not fast_apply(Wrapped, tensors)(*left).any()


def test_what_is_no_tensor_is_the_ops_to_refuse(apply: Callable[..., Tensor]) -> None:
    arguments = (leaf(), [object()], None, 2.0)
    with pytest.raises(TypeError) as expected:
        Scale.apply(*arguments)
    with pytest.raises(TypeError, match=re.escape(str(expected.value))):
        apply(*arguments)


def test_compiled_without_a_break(apply: Callable[..., Tensor]) -> None:
    a, b = leaf(), leaf()
    compiled = torch.compile(apply, fullgraph=True, backend="aot_eager")
    (grad,) = torch.autograd.grad(compiled(a, b, None, 2.0).sum(), a)
    torch.testing.assert_close(grad, 2 * b.detach())
