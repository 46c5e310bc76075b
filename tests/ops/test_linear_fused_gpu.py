"""cutwheel.linear with an activation and a residual, forward and backward, against float64."""

from __future__ import annotations

import functools
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from autograd_cases import IN_K, linear_of
from fused_cases import (
    COMPOSED,
    PLACES,
    TRAINED,
    assert_near,
    check_linear,
    compare_gradients,
    inputs,
    leaves,
    present,
    torch_linear,
    values,
)
from gemm_cases import BRAIN, DTYPES, HALF, LAYOUTS, SINGLE, dtype_id

pytestmark = pytest.mark.gpu

ACTIVATIONS = (None, *TRAINED)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("activation", [*ACTIVATIONS, *COMPOSED], ids=str)
def test_forward(
    cutwheel: ModuleType, device: str, activation: str | None, place: str, dtype: torch.dtype
) -> None:
    linear = linear_of(cutwheel.linear, activation, place)
    for m, n, k in ((72, 136, 200), (67, 131, 77), (1, 40, 24), (300, 1000, 512)):
        for bias in (True, False):
            given = inputs((m,), n, k, dtype, device, bias, place != "no_residual")
            check_linear(linear(*given), given, activation, place)


@pytest.mark.parametrize("place", PLACES)
def test_leading_extents(cutwheel: ModuleType, device: str, place: str) -> None:
    linear = linear_of(cutwheel.linear, "gelu", place)
    for leading in ((), (37,), (3, 5), (2, 3, 4), (2, 1, 3, 2), (0,), (2, 0)):
        given = inputs(leading, 72, 64, BRAIN, device, residual=place != "no_residual")
        with torch.no_grad():
            check_linear(linear(*given), given, "gelu", place)
        wanting = leaves(given)
        check_linear(linear(*wanting), given, "gelu", place)
        compare_gradients(linear, linear_of(torch_linear, "gelu", place), wanting, BRAIN)


def test_empty_k_and_n(cutwheel: ModuleType, device: str) -> None:
    for n, k in ((56, 0), (0, 24)):
        given = leaves(inputs((5,), n, k, HALF, device, residual=True))
        linear = linear_of(cutwheel.linear, "silu", "after")
        check_linear(linear(*given), given, "silu", "after")
        compare_gradients(linear, linear_of(torch_linear, "silu", "after"), given, HALF)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("activation", COMPOSED)
def test_gradients_of_composed_activations(
    cutwheel: ModuleType, device: str, activation: str, place: str
) -> None:
    ours = linear_of(cutwheel.linear, activation, place)
    theirs = linear_of(torch_linear, activation, place)
    # torch's derivative of hardswish jumps at 3, where a rounding of z would show.
    dtype = SINGLE if activation == "hardswish" else BRAIN
    given = leaves(inputs((24,), 56, 40, dtype, device, residual=place != "no_residual"))
    compare_gradients(ours, theirs, given, dtype)


@pytest.mark.parametrize("place", PLACES)
def test_inputs_may_lie_anyhow(cutwheel: ModuleType, device: str, place: str) -> None:
    linear, reference = (linear_of(op, "gelu", place) for op in (cutwheel.linear, torch_linear))
    for n, k in ((72, 40), (65, 321)):
        given = inputs((33,), n, k, BRAIN, device, residual=place != "no_residual")
        for index in (0, 1, 3):
            x = given[index]
            for lay in ("column", "row_padded_3", "row_offset", "every_second"):
                if x is None:
                    continue
                variant = [*given[:index], LAYOUTS[lay](x), *given[index + 1 :]]
                check_linear(linear(*variant), given, "gelu", place)
                # Leaves of that layout; clone() would make them contiguous.
                wanting = [None if t is None else t.detach().requires_grad_() for t in variant]
                compare_gradients(linear, reference, wanting, BRAIN)
        one = given[2][:1].expand(n)  # a bias of stride 0
        expanded = [given[0], given[1], one, given[3]]
        check_linear(linear(*expanded), expanded, "gelu", place)
    transposed = values((4, 6, 64), BRAIN, device).transpose(0, 1)
    _, weight, bias, _ = inputs((1,), 40, 64, BRAIN, device)
    result = cutwheel.linear(transposed, weight, bias, activation="gelu")
    check_linear(result, [transposed, weight, bias, None], "gelu")


@pytest.mark.parametrize("activation", TRAINED)
def test_two_runs_give_the_same_bits(cutwheel: ModuleType, device: str, activation: str) -> None:
    given = leaves(inputs((4097,), 264, 320, BRAIN, device, residual=True))
    linear = linear_of(cutwheel.linear, activation, "after")
    runs = []
    for _ in range(2):
        result = linear(*given)
        grads = torch.autograd.grad(result, present(given), torch.ones_like(result))
        runs.append((result, *grads))
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("of_residual", [HALF, BRAIN, SINGLE], ids=dtype_id)
@pytest.mark.parametrize("activation", [None, "silu", "softplus"], ids=str)
@pytest.mark.parametrize("place", PLACES[1:])
def test_a_residual_keeps_its_dtype_under_autocast(
    cutwheel: ModuleType,
    device: str,
    place: str,
    activation: str | None,
    of_residual: torch.dtype,
) -> None:
    """Results and gradients have the dtypes of torch's own functions."""
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    x, weight, bias, residual = inputs((24,), 56, 40, SINGLE, device, residual=True)
    assert residual is not None
    given = leaves([x, weight, bias, residual.to(of_residual)])
    exact = [None if t is None else t.detach().double().requires_grad_() for t in given]
    ours, theirs = (linear_of(op, activation, place) for op in (cutwheel.linear, torch_linear))
    compiled = torch.compile(ours, fullgraph=True)
    expected = theirs(*exact)
    expected.sum().backward()
    with torch.autocast("cuda", dtype=BRAIN):
        eager = theirs(*given)
        results = ours(*given), compiled(*given)
    wide = torch.promote_types(BRAIN, of_residual)
    # torch's own softplus makes float32 of 16 bits under autocast, also without a residual.
    assert activation == "softplus" or eager.dtype == wide
    for result in results:
        assert result.dtype == wide
        assert_near(result.detach(), expected.detach(), BRAIN)
        grads = torch.autograd.grad(result.sum(), present(given))
        for tensor, got, want in zip(present(given), grads, present(exact), strict=True):
            assert got.dtype == tensor.dtype
            assert_near(got, want.grad, BRAIN)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("k", IN_K)
@pytest.mark.parametrize("dtype", [BRAIN, SINGLE], ids=dtype_id)
def test_compile_fullgraph(cutwheel: ModuleType, device: str, dtype: torch.dtype, k: int) -> None:
    def model(op: Any, x: Any, weight: Any, bias: Any, residual: Any) -> torch.Tensor:
        y = op(x, weight, bias, activation="gelu")
        y = op(x, weight, bias, activation="silu", residual=residual) * y
        y = y + op(x, weight, activation="relu", residual=residual, residual_after_activation=True)
        return y + op(x, weight, bias, residual=residual) + op(x, weight, activation="tanh")

    given = leaves(inputs((6, 4), 56, k, dtype, device, residual=True))
    backend = "inductor" if device != "cpu" else "aot_eager"
    ours = functools.partial(model, cutwheel.linear)
    compiled = torch.compile(ours, fullgraph=True, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare_gradients(compiled, functools.partial(model, torch_linear), given, BRAIN)
    with torch.no_grad():
        got, want = compiled(*given), ours(*given)
    assert_near(got, want, BRAIN)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("activation", TRAINED)
def test_opcheck(cutwheel: ModuleType, device: str, activation: str) -> None:
    ops = torch.ops.cutwheel
    for leading in ((24,), (2, 3), ()):
        x, weight, bias, residual = inputs(leading, 56, 40, HALF, device, residual=True)
        for operands, epilogue in (
            ((bias, None), f"bias_{activation}"),
            ((None, None), f"bias_{activation}"),
            ((bias, residual), f"bias_residual_{activation}"),
            ((None, residual), f"bias_{activation}_residual"),
        ):
            arguments = (x, weight, *operands, epilogue)
            torch.library.opcheck(ops.linear_fused.default, arguments)
            if activation != "relu":
                arguments = (x, weight, *operands, f"{epilogue}_aux")
                torch.library.opcheck(ops.linear_fused_aux.default, arguments)


def test_bad_input(cutwheel: ModuleType, device: str) -> None:
    x, weight, bias, residual = inputs((8,), 16, 24, BRAIN, device, residual=True)
    linear = cutwheel.linear
    for error, words, call in (
        (ValueError, "activation", lambda: linear(x, weight, bias, activation="gelo")),
        (ValueError, "residual", lambda: linear(x, weight, residual=residual[:, :5])),
        (ValueError, "residual", lambda: linear(x, weight, residual=bias)),
        (ValueError, "bias", lambda: linear(x, weight, bias[:5], activation="gelu")),
        (ValueError, "weight", lambda: linear(x, weight[:, :5], activation="gelu")),
        (TypeError, "residual", lambda: linear(x, weight, residual=residual.half())),
        (TypeError, "bias", lambda: linear(x, weight, bias.half(), activation="gelu")),
        (TypeError, "input", lambda: linear(x.double(), weight.double(), activation="gelu")),
    ):
        with pytest.raises(error, match=words):
            call()
        for x_grad in (x, x.detach().clone().requires_grad_()):
            good = linear(x_grad, weight, bias, activation="gelu", residual=residual)
            check_linear(good, [x, weight, bias, residual], "gelu", "before")
