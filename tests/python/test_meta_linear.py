"""Meta functions of linear and gated_linear with epilogues: results, gradients, errors, tracing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from refusals import places
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, SINGLE = torch.float16, torch.float32
Make = Callable[..., torch.Tensor]
FUSED = ("relu", "gelu", "gelu_tanh", "silu")
COMPOSED = ("sigmoid", "tanh", "hardswish", "softplus", "leaky_relu")


@pytest.fixture
def fake(cutwheel: ModuleType) -> Iterator[Make]:
    """Makes fake CUDA tensors; none of it needs a GPU."""
    with FakeTensorMode():
        yield lambda *shape, dtype=HALF, device="cuda": torch.empty(
            shape, dtype=dtype, device=device
        )


def same_as(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return (
        result.shape == expected.shape
        and result.dtype == expected.dtype
        and result.device == expected.device
        and result.stride() == expected.stride()
    )


def on_meta(*shape: int) -> torch.Tensor:
    """A CPU-only torch has no device guard for a backward pass on fake CUDA tensors."""
    return torch.empty(shape, dtype=HALF, device="meta", requires_grad=True)


ROWS = [((4,), 6), ((2, 3), 512), ((), 6), ((4,), 0), ((0, 3), 6)]


@pytest.mark.parametrize("activation", [*FUSED, *COMPOSED, None])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("rows", "k"), ROWS)
def test_linear_with_an_epilogue(
    cutwheel: ModuleType,
    fake: Make,
    activation: str | None,
    last: bool,
    rows: tuple[int, ...],
    k: int,
) -> None:
    x, weight, bias = fake(*rows, k), fake(8, k), fake(8)
    expected = torch.nn.functional.linear(x, weight, bias)
    options = {"activation": activation, "residual_after_activation": last}
    for residual in (None, fake(*rows, 8)):
        assert same_as(cutwheel.linear(x, weight, bias, residual=residual, **options), expected)
        assert same_as(cutwheel.linear(x, weight, residual=residual, **options), expected)


@pytest.mark.parametrize("activation", [*FUSED, *COMPOSED, None])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("rows", "k"), ROWS)
def test_gradients_of_linear_with_an_epilogue(
    cutwheel: ModuleType, activation: str | None, last: bool, rows: tuple[int, ...], k: int
) -> None:
    options = {"activation": activation, "residual_after_activation": last}
    inputs = (on_meta(*rows, k), on_meta(8, k), on_meta(8))
    residual = on_meta(*rows, 8)
    for y in (
        cutwheel.linear(*inputs, **options),
        cutwheel.linear(*inputs, residual=residual, **options),
    ):
        for tensor, grad in zip(inputs, torch.autograd.grad(y.sum(), inputs), strict=True):
            assert same_as(grad, tensor)


@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize(("rows", "k"), ROWS)
def test_gated_linear(
    cutwheel: ModuleType, fake: Make, activation: str, rows: tuple[int, ...], k: int
) -> None:
    for bias, interleaved in itertools.product((None, fake(10)), (False, True)):
        options = {"bias": bias, "interleaved": interleaved}
        result = cutwheel.gated_linear(fake(*rows, k), fake(10, k), activation, **options)
        assert same_as(result, fake(*rows, 5))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("rows", "k"), ROWS)
def test_gradients_of_gated_linear(
    cutwheel: ModuleType, rows: tuple[int, ...], k: int, interleaved: bool
) -> None:
    inputs = (on_meta(*rows, k), on_meta(10, k), on_meta(10))
    for needed in (inputs[:2], inputs, inputs[2:]):
        bias = inputs[2] if needed[-1] is inputs[2] else None
        y = cutwheel.gated_linear(*inputs[:2], bias=bias, interleaved=interleaved)
        assert y.shape == (*rows, 5)
        for tensor, grad in zip(needed, torch.autograd.grad(y.sum(), needed), strict=True):
            assert same_as(grad, tensor)


def test_elementwise(cutwheel: ModuleType, fake: Make) -> None:
    op = torch.ops.cutwheel.elementwise
    grad, z, wide = fake(4, 8), fake(4, 8), fake(4, 16)
    result, sums = op([grad, z], "gelu_backward", True, True)
    assert (result.shape, sums.shape) == ((4, 8), (8,))
    result, sums = op([grad.t(), z.t()], "gelu_backward")
    assert (result.shape, result.is_contiguous(), sums.shape) == ((8, 4), True, (0,))
    result, sums = op([grad], "identity_backward", False, True)
    assert (result.shape, sums.shape) == ((0,), (8,))
    result, sums = op([grad, wide], "gated_silu_backward", True, True)
    assert (result.shape, sums.shape) == ((4, 16), (16,))
    with pytest.raises(ValueError, match='epilogue "nothing" is not declared'):
        op([grad, z], "nothing")


def bad_calls(make: Make) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    a, b, c = make(4, 6), make(6, 8), make(4, 8)
    return {
        "activation": (
            ValueError,
            "linear: activation is 'swish'; expected one of relu, gelu, gelu_tanh, silu, sigmoid",
            lambda w: w.linear(a, b.t(), activation="swish"),
        ),
        "residual": (
            ValueError,
            r"linear: residual has shape \[8\]; expected \[4, 8\]",
            lambda w: w.linear(a, b.t(), residual=make(8)),
        ),
        "residual_composed": (
            ValueError,
            r"linear: residual has shape \[8\]; expected \[4, 8\]",
            lambda w: w.linear(
                a, b.t(), activation="tanh", residual=make(8), residual_after_activation=True
            ),
        ),
        "residual_dtype": (
            TypeError,
            "linear: residual has dtype float32; expected float16",
            lambda w: w.linear(a, b.t(), activation="gelu", residual=c.float()),
        ),
        "residual_dtype_composed": (
            TypeError,
            "linear: residual has dtype float32; expected float16",
            lambda w: w.linear(
                a, b.t(), activation="tanh", residual=c.float(), residual_after_activation=True
            ),
        ),
        "residual_no_tensor": (
            TypeError,
            "linear: residual is of type float; expected a Tensor",
            lambda w: w.linear(a, b.t(), residual=1.0),
        ),
        "fused_weight": (
            ValueError,
            "linear: weight has shape",
            lambda w: w.linear(a, b, activation="gelu"),
        ),
        "leaky_weight": (
            ValueError,
            "linear: weight has shape",
            lambda w: w.linear(a, b, activation="leaky_relu"),
        ),
        "fused_bias": (
            TypeError,
            "linear: bias has dtype float32",
            lambda w: w.linear(a, b.t(), make(8, dtype=SINGLE), activation="leaky_relu"),
        ),
        "gated_activation": (
            ValueError,
            "gated_linear: activation is 'tanh'; expected one of relu, gelu, gelu_tanh, silu",
            lambda w: w.gated_linear(a, b.t(), "tanh"),
        ),
        "gated_odd": (
            ValueError,
            "gated_linear: .*even",
            lambda w: w.gated_linear(a, make(7, 6), interleaved=True),
        ),
        "gated_halves_odd": (
            ValueError,
            r"gated_linear: weight has shape \[7, 6\]; expected \[2F, K\]",
            lambda w: w.gated_linear(a, make(7, 6)),
        ),
        "gated_inner": (
            ValueError,
            r"gated_linear: weight has shape \[8, 5\]",
            lambda w: w.gated_linear(a, make(8, 5)),
        ),
        "gated_none": (
            TypeError,
            "gated_linear: weight is None",
            lambda w: w.gated_linear(a, None),
        ),
        "gated_bias": (
            TypeError,
            "gated_linear: bias has dtype float32",
            lambda w: w.gated_linear(a, b.t(), bias=make(8, dtype=SINGLE)),
        ),
        "gated_bias_no_tensor": (
            TypeError,
            "gated_linear: bias is of type float; expected a Tensor",
            lambda w: w.gated_linear(a, b.t(), "silu", 1.0),
        ),
    }


def maker(device: str) -> Make:
    return lambda *shape, dtype=HALF: torch.empty(shape, dtype=dtype, device=device)


ONLY_LIBRARY = ("residual_dtype", "fused_bias", "gated_odd", "gated_bias")


@pytest.mark.parametrize(("name", "where"), places(bad_calls(maker("meta")), ONLY_LIBRARY))
def test_bad_input(
    cutwheel: ModuleType, name: str, where: str, check_class: Callable[..., None]
) -> None:
    error, message, call = bad_calls(maker(where))[name]
    with pytest.raises(error, match=message) as raised:
        call(cutwheel)
    check_class(raised.value, error)


@pytest.mark.parametrize("k", [6, 512])
def test_compile_with_epilogues(cutwheel: ModuleType, k: int) -> None:
    """linear and gated_linear in torch.compile: no graph break, no second output kept."""

    def model(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        total = cutwheel.gated_linear(x, weight, "gelu").sum()
        total = total + cutwheel.gated_linear(x, weight, "silu", bias).sum()
        for activation in (None, *FUSED, "tanh", "leaky_relu"):
            for last in (False, True):
                for added in (None, residual):
                    y = cutwheel.linear(
                        x,
                        weight,
                        bias,
                        activation=activation,
                        residual=added,
                        residual_after_activation=last,
                    )
                    total = total + y.sum()
        return total + cutwheel.linear(x, x, activation="silu").sum()  # one tensor twice

    for dtype in (HALF, SINGLE):
        torch.set_float32_matmul_precision("high")
        shapes = ((4, k), (8, k), (8,), (4, 8))
        inputs = [torch.empty(s, dtype=dtype, device="meta").requires_grad_() for s in shapes]
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        compiled(*inputs).backward()
        assert [t.grad.shape for t in inputs] == [t.shape for t in inputs]
        with torch.no_grad():
            compiled(*inputs)
    torch.set_float32_matmul_precision("highest")
