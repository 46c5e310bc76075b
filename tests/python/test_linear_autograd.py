"""Results, stored tensors and gradients of linear and gated_linear, on CPU kernels in float64."""

from __future__ import annotations

import itertools
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import ACTIVATIONS, CpuOps

Tensor = torch.Tensor
FUSED = ("relu", "gelu", "gelu_tanh", "silu")
COMPOSED = ("sigmoid", "tanh", "hardswish", "softplus", "leaky_relu")
# Without a residual, added before the activation, added after it.
PLACEMENTS = ("none", "first", "last")
SMALL_K, LARGE_K = 8, 264
"""below and above what linear computes again in backward"""
N = 6
PRODUCTS = {"mm": 1, "linear": 1, "gemm": 1, "gated_input_gradient": 1, "linear_gradients": 2}
"""by the op that computes them"""


def of_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    last: bool = False,
) -> Tensor:
    z = F.linear(x, weight, bias)
    if residual is not None and not last:
        z = z + residual
    y = ACTIVATIONS[activation](z) if activation else z
    return y + residual if residual is not None and last else y


def gated_of_torch(
    x: Tensor, weight: Tensor, activation: str, bias: Tensor | None = None
) -> Tensor:
    z = F.linear(x, weight, bias)
    return ACTIVATIONS[activation](z[..., 0::2]) * z[..., 1::2]


def tensors(
    k: int,
    placement: str = "none",
    rows: tuple[int, ...] = (5,),
    dtype: torch.dtype = torch.float64,
) -> list[Tensor | None]:
    """Input, weight, bias, residual, all of which require grad."""
    shapes = [(*rows, k), (N, k), (N,), (*rows, N)]
    made: list[Tensor | None] = [
        (torch.randn(shape, dtype=torch.float64) * (k**-0.5 if index == 1 else 1)).to(dtype)
        for index, shape in enumerate(shapes)
    ]
    for tensor in made:
        assert tensor is not None
        tensor.requires_grad_()
    if placement == "none":
        made[3] = None
    return made


def given(values: list[Tensor | None]) -> list[Tensor]:
    return [value for value in values if value is not None]


def both(
    cutwheel: ModuleType, values: list[Tensor | None], activation: str | None, last: bool
) -> tuple[Tensor, Tensor]:
    x, weight, bias, residual = values
    result = cutwheel.linear(
        x,
        weight,
        bias,
        activation=activation,
        residual=residual,
        residual_after_activation=last,
    )
    return result, of_torch(x, weight, bias, residual, activation, last)


@pytest.mark.parametrize("activation", [None, *FUSED, *COMPOSED])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_inference(
    cutwheel: ModuleType, cpu_ops: CpuOps, activation: str | None, placement: str, with_bias: bool
) -> None:
    for rows in ((5,), (2, 3), (), (0, 3)):
        values = tensors(SMALL_K, placement, rows)
        if not with_bias:
            values[2] = None
        with torch.no_grad():
            cpu_ops.calls.clear()
            result, expected = both(cutwheel, values, activation, placement == "last")
        torch.testing.assert_close(result, expected)
        if placement == "none" or activation not in COMPOSED:
            assert len(cpu_ops.calls) == 1, "one kernel for all of it"


@pytest.mark.parametrize("k", [SMALL_K, LARGE_K])
@pytest.mark.parametrize("activation", [None, *FUSED, *COMPOSED])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_gradients_once_and_twice(
    cutwheel: ModuleType, cpu_ops: CpuOps, activation: str | None, placement: str, k: int
) -> None:
    for rows in ((5,), (2, 3), ()):
        values = tensors(k, placement, rows)
        seed = torch.randn(*rows, N, dtype=torch.float64, requires_grad=True)
        leaves = given(values)
        all_grads = []
        for y in both(cutwheel, values, activation, placement == "last"):
            grads = torch.autograd.grad(y, leaves, seed, create_graph=True)
            weights = [torch.linspace(-1, 2, g.numel(), dtype=g.dtype).view_as(g) for g in grads]
            loss = sum((g.square() * w).sum() for g, w in zip(grads, weights, strict=True))
            assert isinstance(loss, Tensor)
            second = torch.autograd.grad(
                loss, [*leaves, seed], allow_unused=True, materialize_grads=True
            )
            all_grads.append((*grads, *second))
        for got, want in zip(*all_grads, strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("k", [SMALL_K, LARGE_K])
@pytest.mark.parametrize("activation", FUSED[1:])
def test_gradients_thrice(cutwheel: ModuleType, cpu_ops: CpuOps, activation: str, k: int) -> None:
    values = tensors(k, "last", (3,))
    thirds = []
    for y in both(cutwheel, values, activation, True):
        total = y.pow(3).sum()
        for _ in range(2):
            grads = torch.autograd.grad(total, given(values), create_graph=True)
            total = sum(g.pow(2).sum() for g in grads)  # type: ignore[assignment]
        thirds.append(torch.autograd.grad(total, given(values)))
    for got, want in zip(*thirds, strict=True):
        torch.testing.assert_close(got, want)


def test_gradgradcheck(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        return cutwheel.linear(x, weight, bias, activation="gelu_tanh", residual=residual)

    assert torch.autograd.gradcheck(function, given(tensors(3, "first")))
    assert torch.autograd.gradgradcheck(function, given(tensors(3, "first")))


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "tanh"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("k", [SMALL_K, LARGE_K])
def test_only_what_is_needed(
    cutwheel: ModuleType, cpu_ops: CpuOps, activation: str | None, placement: str, k: int
) -> None:
    for needed in itertools.product([False, True], repeat=3 if placement == "none" else 4):
        if not any(needed):
            continue
        values = tensors(k, placement)
        for value, needs in zip(given(values), needed, strict=True):
            value.requires_grad_(needs)
        leaves = [value for value in given(values) if value.requires_grad]
        result, expected = both(cutwheel, values, activation, placement == "last")
        seed = torch.randn_like(expected)
        cpu_ops.calls.clear()
        grads = torch.autograd.grad(result, leaves, seed, retain_graph=True)
        products = sum(PRODUCTS.get(call[0], 0) for call in cpu_ops.calls)
        again = activation == "gelu" and k == SMALL_K and placement == "none" and all(needed[:2])
        assert products == needed[0] + needed[1] + again
        called = [call[0] for call in cpu_ops.calls]
        assert called.count("linear_gradients") == all(needed[:2]), "both in one call"
        assert len(cpu_ops.names("elementwise")) <= 1
        for got, want in zip(grads, torch.autograd.grad(expected, leaves, seed), strict=True):
            torch.testing.assert_close(got, want)
        # Twice, too.
        first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
        if any(grad.requires_grad for grad in first):
            result, expected = both(cutwheel, values, activation, placement == "last")
            seconds = []
            for y in (result, expected):
                first = torch.autograd.grad(y.pow(3).sum(), leaves, create_graph=True)
                loss = sum(grad.square().sum() for grad in first)
                seconds.append(torch.autograd.grad(loss, leaves))  # type: ignore[arg-type]
            for got, want in zip(*seconds, strict=True):
                torch.testing.assert_close(got, want)


STORED = [
    # activation, placement, K, needed (input, weight, bias, residual), forward's epilogue
    ("gelu", "none", LARGE_K, "xwb", "bias_gelu_aux"),
    ("gelu", "none", LARGE_K, "b", "bias_gelu_aux"),
    ("gelu", "none", SMALL_K, "xwb", "bias_gelu"),
    ("gelu", "none", SMALL_K, "xw", "bias_gelu"),
    ("gelu", "none", SMALL_K, "x", "bias_gelu_aux"),
    ("gelu", "first", SMALL_K, "xw", "bias_residual_gelu_aux"),
    ("gelu", "last", SMALL_K, "xw", "bias_gelu_residual_aux"),
    ("gelu", "last", SMALL_K, "r", "bias_gelu_residual"),
    ("gelu", "first", SMALL_K, "r", "bias_residual_gelu_aux"),
    ("relu", "none", LARGE_K, "xwb", "bias_relu"),
    ("relu", "first", LARGE_K, "xwb", "bias_residual_relu"),
    ("relu", "last", LARGE_K, "xwb", "bias_relu_residual_aux"),
    ("relu", "last", LARGE_K, "r", "bias_relu_residual"),
    ("silu", "none", LARGE_K, "", "bias_silu"),
    (None, "first", LARGE_K, "xr", "bias_residual"),
    (None, "last", LARGE_K, "r", "bias_residual"),
    ("tanh", "none", LARGE_K, "", "bias_tanh"),
    ("tanh", "first", LARGE_K, "x", "bias_residual"),
    ("leaky_relu", "none", LARGE_K, "", "bias_leaky_relu"),
]


@pytest.mark.parametrize(("activation", "placement", "k", "needed", "epilogue"), STORED)
def test_what_forward_stores(
    cutwheel: ModuleType,
    cpu_ops: CpuOps,
    activation: str | None,
    placement: str,
    k: int,
    needed: str,
    epilogue: str,
) -> None:
    values = tensors(k, placement)
    for value, letter in zip(values, "xwbr", strict=True):
        if value is not None:
            value.requires_grad_(letter in needed)
    both(cutwheel, values, activation, placement == "last")
    assert [call[1] for call in cpu_ops.calls] == [epilogue]
    x, weight, bias, residual = values
    said = cutwheel.ops.linear.epilogue_of(
        x, weight, bias, activation, residual, placement == "last"
    )
    assert said == epilogue


def test_backward_is_one_elementwise_kernel(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    values = tensors(LARGE_K)
    cutwheel.linear(*values[:3], activation="gelu").sum().backward()
    assert ("elementwise", "gelu_backward", True, True) in cpu_ops.calls
    assert len(cpu_ops.names("elementwise")) == 1
    x, weight, bias, _ = values
    assert x is not None
    assert weight is not None
    only_bias = cutwheel.linear(x.detach(), weight.detach(), bias, activation="gelu")
    only_bias.sum().backward()
    assert ("elementwise", "gelu_backward", False, True) in cpu_ops.calls
    cpu_ops.calls.clear()
    cutwheel.linear(x, weight, bias).sum().backward()
    assert ("elementwise", "identity_backward", False, True) in cpu_ops.calls


def test_stored_z_is_released(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Neither the forward nor the backward pass leaves a cycle that keeps memory alive."""
    import gc
    import weakref

    values = tensors(LARGE_K)
    gc.disable()
    try:
        y = cutwheel.linear(*values[:3], activation="gelu")
        node = weakref.ref(y.grad_fn)
        torch.autograd.grad(y.sum(), given(values), create_graph=True)
        del y
        assert node() is None
    finally:
        gc.enable()


def test_a_result_changed_in_place_is_noticed(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    values = tensors(LARGE_K)
    y = cutwheel.linear(*values[:3], activation="relu")
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = cutwheel.linear(*values[:3], activation="gelu")
    y.mul_(2)
    y.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes_of_gradients(cutwheel: ModuleType, cpu_ops: CpuOps, dtype: torch.dtype) -> None:
    tolerance = {torch.float16: 1e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4}[dtype]
    for k, activation in itertools.product((SMALL_K, LARGE_K), (None, *FUSED, *COMPOSED)):
        values = tensors(k, "first", dtype=dtype)
        y, _ = both(cutwheel, values, activation, False)
        exact = [value.detach().double().requires_grad_() for value in given(values)]
        expected = of_torch(*exact, activation)
        grads = torch.autograd.grad(y.square().sum(), given(values), create_graph=True)
        wanted = torch.autograd.grad(expected.square().sum(), exact, create_graph=True)
        sums = [sum(g.square().sum() for g in grads), sum(g.square().sum() for g in wanted)]
        grads = (*grads, *torch.autograd.grad(sums[0], given(values)))  # type: ignore[arg-type]
        wanted = (*wanted, *torch.autograd.grad(sums[1], exact))  # type: ignore[arg-type]
        for got, want in zip(grads, wanted, strict=True):
            assert got.dtype == dtype
            error = (got.double() - want).abs().max() / want.abs().max().clamp_min(1e-2)
            assert error < tolerance


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", FUSED)
def test_gated(cutwheel: ModuleType, cpu_ops: CpuOps, activation: str, with_bias: bool) -> None:
    for rows, k in itertools.product(((5,), (2, 3), ()), (SMALL_K, LARGE_K)):
        x = torch.randn(*rows, k, dtype=torch.float64, requires_grad=True)
        # Scaled: torch's third derivative of gelu_tanh is NaN from about 20.
        gate, up = (
            (torch.randn(4, k, dtype=torch.float64) * k**-0.5).requires_grad_() for _ in range(2)
        )
        biases = [torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        biases = biases if with_bias else []
        epilogue = f"gated_bias_{activation}" if with_bias else f"gated_{activation}"
        with torch.no_grad():
            weight = cutwheel.pack_gated_weight(gate, up)
            bias = cutwheel.pack_gated_weight(*biases) if with_bias else None
            result = cutwheel.gated_linear(x, weight, activation, bias, interleaved=True)
            torch.testing.assert_close(result, gated_of_torch(x, weight, activation, bias))
            assert cpu_ops.names("linear_fused") == [epilogue]
        weight = cutwheel.pack_gated_weight(gate, up)
        bias = cutwheel.pack_gated_weight(*biases) if with_bias else None
        leaves = (x, gate, up, *biases)
        b, c = biases if with_bias else (None, None)
        results = []
        for y in (
            cutwheel.gated_linear(x, weight, activation, bias, interleaved=True),
            ACTIVATIONS[activation](F.linear(x, gate, b)) * F.linear(x, up, c),
        ):
            grads = torch.autograd.grad(y.pow(2).sum(), leaves, create_graph=True)
            loss = sum(g.square().sum() for g in grads)
            assert isinstance(loss, Tensor)
            seconds = torch.autograd.grad(loss, leaves, create_graph=True)
            third = sum(g.square().sum() for g in seconds)
            results.append((y, *grads, *seconds, *torch.autograd.grad(third, leaves)))  # type: ignore[arg-type]
        assert ("linear_fused_aux", f"{epilogue}_aux") in cpu_ops.calls
        assert any(
            call[:2] == ("elementwise", f"gated_{activation}_backward") for call in cpu_ops.calls
        )
        cpu_ops.calls.clear()
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want)


def derivatives(y: Tensor, given: list[Tensor]) -> list[Tensor]:
    """First and second ones."""
    first = torch.autograd.grad(y.pow(2).sum(), given, create_graph=True)
    loss = sum(grad.square().sum() for grad in first)
    second = torch.autograd.grad(loss, given)  # type: ignore[arg-type]
    return [*first, *second]


@pytest.mark.parametrize("form", ["pair", "halves"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("rows", [(5,), (2, 3), ()], ids=str)
@pytest.mark.parametrize("f", [8, 3])
def test_gated_of_two(
    cutwheel: ModuleType,
    cpu_ops: CpuOps,
    activation: str,
    with_bias: bool,
    form: str,
    rows: tuple[int, ...],
    f: int,
) -> None:
    """Weights that do not alternate: no copy of them, and their gradients as they lie."""
    x = torch.randn(*rows, SMALL_K, dtype=torch.float64, requires_grad=True)
    weight = (torch.randn(2 * f, SMALL_K, dtype=torch.float64) * 0.3).requires_grad_()
    bias = torch.randn(2 * f, dtype=torch.float64, requires_grad=True) if with_bias else None
    whole = [x, weight] if bias is None else [x, weight, bias]
    first, second = F.linear(x, weight, bias).chunk(2, -1)
    expected = ACTIVATIONS[activation](first) * second
    wanted = derivatives(expected, whole)

    if form == "halves":
        y = cutwheel.gated_linear(x, weight, activation, bias)
        found = derivatives(y, whole)
    else:
        parts = [t.detach().requires_grad_() for each in whole[1:] for t in each.chunk(2)]
        gate, up, *biases = parts
        y = cutwheel.gated_linear(x, (gate, up), activation, biases if with_bias else None)
        each = derivatives(y, [x, *parts])
        found = []
        for grads in (each[: len(parts) + 1], each[len(parts) + 1 :]):
            pairs = zip(grads[1::2], grads[2::2], strict=True)
            found += [grads[0], *(torch.cat(pair) for pair in pairs)]
    torch.testing.assert_close(y, expected)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)
    assert cpu_ops.calls[0][0] == "linear_fused_aux"
    with torch.no_grad():
        given = weight.chunk(2) if form == "pair" else weight
        biases_of = bias if bias is None or form == "halves" else bias.chunk(2)
        cpu_ops.calls.clear()
        y = cutwheel.gated_linear(x, given, activation, biases_of)
        torch.testing.assert_close(y, expected)
        assert [call[0] for call in cpu_ops.calls] == ["linear_fused"]


def test_products_of_gated_gradients(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Two products, whichever way the weights lie."""
    x = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(16, 8, dtype=torch.float64, requires_grad=True)
    pair = [half.detach().requires_grad_() for half in weight.chunk(2)]
    for given, names in (
        (weight, ["elementwise", "linear_gradients"]),
        (pair, ["elementwise", "gated_input_gradient", "mm"]),
    ):
        y = cutwheel.gated_linear(x, given)
        cpu_ops.calls.clear()
        y.sum().backward()
        assert [call[0] for call in cpu_ops.calls] == names


@pytest.mark.parametrize("needed", range(4))
def test_gated_pair_with_one_gradient(cutwheel: ModuleType, cpu_ops: CpuOps, needed: int) -> None:
    values = [torch.randn(*shape, dtype=torch.float64) for shape in ((5, 8), (4, 8), (4, 8), (4,))]
    leaf = values[needed].requires_grad_()
    x, gate, up, b = values
    y = cutwheel.gated_linear(x, (gate, up), "silu", (b, None))
    expected = F.silu(F.linear(x, gate, b)) * F.linear(x, up)
    torch.testing.assert_close(y, expected)
    cpu_ops.calls.clear()
    (got,) = torch.autograd.grad(y.square().sum(), leaf)
    (want,) = torch.autograd.grad(expected.square().sum(), leaf)
    torch.testing.assert_close(got, want)
    assert sum(PRODUCTS.get(call[0], 0) for call in cpu_ops.calls) == (1, 1, 1, 0)[needed]


@pytest.mark.parametrize("needed", [0, 1, 2])
def test_gated_with_one_gradient(cutwheel: ModuleType, cpu_ops: CpuOps, needed: int) -> None:
    leaves = [torch.randn(shape, dtype=torch.float64) for shape in ((5, 8), (6, 8), (6,))]
    leaves[needed].requires_grad_()
    x, weight, bias = leaves
    y = cutwheel.gated_linear(x, weight, bias=bias, interleaved=True)
    expected = gated_of_torch(x, weight, "silu", bias)
    cpu_ops.calls.clear()
    (got,) = torch.autograd.grad(y.sum(), leaves[needed])
    # The gradient of the bias comes from the kernel of the derivative, which then stores no dz.
    assert [call[0] for call in cpu_ops.calls] == ["elementwise", "mm"][: 2 - (needed == 2)]
    assert cpu_ops.calls[0][2:] == (needed != 2, needed == 2)
    torch.testing.assert_close(got, torch.autograd.grad(expected.sum(), leaves[needed])[0])


def test_a_transposed_weight_gets_a_transposed_gradient(
    cutwheel: ModuleType, cpu_ops: CpuOps
) -> None:
    x = torch.randn(5, LARGE_K, dtype=torch.float64)
    weight = torch.randn(LARGE_K, N, dtype=torch.float64).t().requires_grad_()
    y = cutwheel.linear(x, weight, activation="silu")
    (grad,) = torch.autograd.grad(y.sum(), weight)
    assert grad.stride() == weight.stride()
    expected = torch.autograd.grad(of_torch(x, weight, activation="silu").sum(), weight)[0]
    torch.testing.assert_close(grad, expected)
