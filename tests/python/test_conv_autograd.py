"""Results and gradients of the convolutions, on CPU kernels in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_conv import channels_last_strides
from cpu_reference import ACTIVATIONS, CpuOps

Tensor = torch.Tensor
FUSED = ("relu", "gelu", "gelu_tanh", "silu")
COMPOSED = ("sigmoid", "tanh", "hardswish", "softplus", "leaky_relu")
PLACEMENTS = ("none", "first", "last")
# Input, filters, and the arguments of F.conv2d.
PROBLEMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 3, 6, 5), (4, 3, 3, 3), {"padding": 1}),
    "strided": ((2, 3, 7, 8), (4, 3, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilated": ((1, 2, 8, 9), (3, 2, 2, 3), {"dilation": (3, 2), "stride": 2}),
    "same": ((2, 2, 5, 6), (3, 2, 4, 3), {"padding": "same", "dilation": (1, 2)}),
    "valid": ((2, 2, 5, 6), (3, 2, 2, 3), {"padding": "valid"}),
    "1x1": ((2, 4, 3, 3), (5, 4, 1, 1), {}),
    "1x1_strided": ((2, 4, 5, 4), (5, 4, 1, 1), {"stride": (2, 2)}),
    "one_channel": ((2, 1, 4, 4), (1, 1, 3, 3), {"padding": (1,)}),
    "one_pixel": ((3, 4, 1, 1), (2, 4, 3, 3), {"padding": 1}),
}


@pytest.fixture
def ops(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    """cpu_ops that serve float64, too, which is torch's otherwise."""
    from cutwheel.ops.conv import _convolve

    monkeypatch.setattr(_convolve, "DTYPES", (*_convolve.DTYPES, torch.float64))
    return cpu_ops


def of_torch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    activation: str | None = None,
    residual_after_activation: bool = False,
    conv: Callable[..., Tensor] = F.conv2d,
    **where: Any,
) -> Tensor:
    z = conv(x, weight, bias, **where)
    if residual is not None and not residual_after_activation:
        z = z + residual
    y = ACTIVATIONS[activation](z) if activation else z
    return y + residual if residual is not None and residual_after_activation else y


def tensors(
    name: str, placement: str = "none", dtype: torch.dtype = torch.float64
) -> list[Tensor | None]:
    """Input, weight, bias and residual, all of which require grad."""
    size, filters, where = PROBLEMS[name]
    x, weight = torch.randn(size, dtype=dtype), torch.randn(filters, dtype=dtype)
    made: list[Tensor | None] = [x, weight / filters[1], torch.randn(filters[0], dtype=dtype)]
    made.append(None if placement == "none" else torch.randn_like(F.conv2d(x, weight, **where)))
    return [None if tensor is None else tensor.requires_grad_() for tensor in made]


def given(values: list[Tensor | None]) -> list[Tensor]:
    return [value for value in values if value is not None]


def both(
    cutwheel: ModuleType, values: list[Tensor | None], last: bool = False, **where: Any
) -> tuple[Tensor, Tensor]:
    x, weight, bias, residual = values
    where["residual_after_activation"] = last
    result = cutwheel.conv2d(x, weight, bias, residual=residual, **where)
    return result, of_torch(x, weight, bias, residual, **where)  # type: ignore[arg-type]


def test_output_sizes() -> None:
    from cutwheel.ops.conv._geometry import geometry, output_size

    for size, filters, where in PROBLEMS.values():
        x, weight = torch.zeros(size), torch.zeros(filters)
        stride, padding, dilation = (where.get(k, 1) for k in ("stride", "padding", "dilation"))
        g = geometry("conv2d", weight, stride, padding, dilation)
        steps, sides, spacings = g[:2], g[2:6], g[6:]
        image = [
            output_size(size[2 + i], *sides[2 * i : 2 * i + 2], filters[2 + i], step, spacing)
            for i, (step, spacing) in enumerate(zip(steps, spacings, strict=True))
        ]
        shape = F.conv2d(x, weight, None, stride, padding, dilation).shape
        assert (size[0], filters[0], *image) == shape


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_inference(cutwheel: ModuleType, ops: CpuOps, name: str, with_bias: bool) -> None:
    values = tensors(name)
    if not with_bias:
        values[2] = None
    with torch.no_grad():
        result, expected = both(cutwheel, values, **PROBLEMS[name][2])
    torch.testing.assert_close(result, expected)
    assert result.stride() == channels_last_strides(result.shape)
    assert ops.calls == [("conv2d", "bias" if with_bias else "plain")]


@pytest.mark.parametrize("activation", [None, *FUSED, *COMPOSED])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", ["3x3", "one_channel", "one_pixel"])
def test_epilogues(
    cutwheel: ModuleType, ops: CpuOps, name: str, activation: str | None, placement: str
) -> None:
    values = tensors(name, placement)
    where = {"activation": activation, **PROBLEMS[name][2]}
    with torch.no_grad():
        result, expected = both(cutwheel, values, placement == "last", **where)
    torch.testing.assert_close(result, expected)
    assert result.stride() == channels_last_strides(result.shape)
    assert len(ops.calls) == 1
    residual = "" if placement == "none" else "residual"
    order = [activation, residual] if placement == "last" else [residual, activation]
    whole = "_".join(part for part in ("bias", *order) if part)
    if activation in (None, *FUSED) or (placement == "none" and activation != "leaky_relu"):
        assert ops.calls[0][1] == whole
    # In training the strides are those, too.
    result, _ = both(cutwheel, values, placement == "last", **where)
    assert result.stride() == channels_last_strides(result.shape)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("activation", [None, *FUSED])
def test_gradients_once_and_twice(
    cutwheel: ModuleType, ops: CpuOps, name: str, activation: str | None
) -> None:
    for placement in PLACEMENTS:
        values = tensors(name, placement)
        leaves, all_grads = given(values), []
        where = {"activation": activation, **PROBLEMS[name][2]}
        for y in both(cutwheel, values, placement == "last", **where):
            seed = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape).requires_grad_()
            grads = torch.autograd.grad(y, leaves, seed, create_graph=True)
            ramps = [torch.linspace(-1, 2, g.numel(), dtype=g.dtype).view(g.shape) for g in grads]
            loss = sum((g.square() * ramp).sum() for g, ramp in zip(grads, ramps, strict=True))
            assert isinstance(loss, Tensor)
            second = torch.autograd.grad(
                loss, [*leaves, seed], allow_unused=True, materialize_grads=True
            )
            all_grads.append((*grads, *second))
        for got, want in zip(*all_grads, strict=True):
            # Sums of a bias are as exact as float32 has it.
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_gradgradcheck(cutwheel: ModuleType, ops: CpuOps) -> None:
    where = {"stride": (1, 2), "padding": (1, 0), "dilation": (2, 1), "activation": "gelu"}

    def function(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
        result: Tensor = cutwheel.conv2d(x, weight, residual=residual, **where)
        return result

    shapes = (1, 2, 3, 4), (2, 2, 2, 2), (1, 2, 3, 2)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize(
    ("activation", "missing"),
    [
        *(("relu", part) for part in ("residual_relu", "residual", "relu", "bias")),
        *(("silu", part) for part in ("residual_silu", "aux", "silu")),
    ],
)
@pytest.mark.parametrize("with_grad", [True, False])
def test_epilogues_without_a_kernel(
    cutwheel: ModuleType,
    ops: CpuOps,
    monkeypatch: pytest.MonkeyPatch,
    activation: str,
    missing: str,
    with_grad: bool,
) -> None:
    """torch computes epilogues that no kernel of the dtype and the GPU has."""
    from cutwheel.ops.conv import _convolve

    monkeypatch.setattr(_convolve, "is_served_by", lambda x: lambda name: missing not in name)
    for placement in PLACEMENTS:
        values = tensors("3x3", placement)
        with torch.set_grad_enabled(with_grad):
            ours = both(cutwheel, values, placement == "last", activation=activation, padding=1)
        torch.testing.assert_close(*ours)
        assert len(ops.calls) == 1
        assert missing not in str(ops.calls.pop()[1]) or missing == "bias"


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_only_what_is_needed(
    cutwheel: ModuleType, ops: CpuOps, activation: str | None, placement: str
) -> None:
    for needed in itertools.product((False, True), repeat=4 if placement != "none" else 3):
        if not any(needed):
            continue
        values = tensors("3x3", placement)
        for tensor, needs in zip(given(values), needed, strict=True):
            tensor.requires_grad_(needs)
        leaves = [tensor for tensor in given(values) if tensor.requires_grad]
        where = {"activation": activation, **PROBLEMS["3x3"][2]}
        ours, theirs = both(cutwheel, values, placement == "last", **where)
        ops.calls.clear()
        grads = torch.autograd.grad(ours.sum(), leaves)  # a gradient of stride 0
        calls = [call[0] for call in ops.calls]
        assert calls.count("conv2d_input_grad") == needed[0]
        assert calls.count("conv2d_weight_grad") == needed[1]
        for got, want in zip(grads, torch.autograd.grad(theirs.sum(), leaves), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_relu_is_differentiated_from_the_result(cutwheel: ModuleType, ops: CpuOps) -> None:
    """One kernel forward; its derivative and the gradient of the bias in one backward."""
    for placement, epilogue in (("none", "bias_relu"), ("first", "bias_residual_relu")):
        result, _ = both(cutwheel, tensors("3x3", placement), activation="relu", padding=1)
        assert ops.calls == [("conv2d_fused", epilogue)]
        ops.calls.clear()
        result.sum().backward()
        assert ops.calls == [
            ("elementwise", "relu_backward", True, True),
            ("conv2d_input_grad", "plain"),
            ("conv2d_weight_grad", "plain"),
        ]
        ops.calls.clear()


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_activations_store_their_argument(
    cutwheel: ModuleType, ops: CpuOps, activation: str
) -> None:
    """One kernel forward, which a residual behind the activation is added to by torch; one for the
    derivative and the gradient of the bias."""
    plain, first = f"bias_{activation}_aux", f"bias_residual_{activation}_aux"
    for placement, epilogue in (("none", plain), ("first", first), ("last", plain)):
        values = tensors("3x3", placement)
        result, _ = both(cutwheel, values, placement == "last", activation=activation, padding=1)
        assert ops.calls == [("conv2d_fused_aux", epilogue)]
        ops.calls.clear()
        result.sum().backward()
        assert ops.calls == [
            ("elementwise", f"{activation}_backward", True, True),
            ("conv2d_input_grad", "plain"),
            ("conv2d_weight_grad", "plain"),
        ]
        ops.calls.clear()


def test_gradients_lie_channels_last(cutwheel: ModuleType, ops: CpuOps) -> None:
    for name in PROBLEMS:
        values = tensors(name, "first")
        result, _ = both(cutwheel, values, **PROBLEMS[name][2])
        x, weight, *_ = values
        assert x is not None
        assert weight is not None
        for grad, tensor in zip(
            torch.autograd.grad(result, (x, weight), torch.ones_like(result).contiguous()),
            (x, weight),
            strict=True,
        ):
            assert grad.stride() == channels_last_strides(tensor.shape)


def test_an_image_without_a_batch(cutwheel: ModuleType, ops: CpuOps) -> None:
    x, weight, bias, residual = tensors("3x3", "first")
    assert x is not None
    assert residual is not None
    values = [x[0], weight, bias, residual[0]]
    result, expected = both(cutwheel, values, activation="relu", padding=1)
    torch.testing.assert_close(result, expected)
    grads = [torch.autograd.grad(y.square().sum(), (x, residual)) for y in (result, expected)]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)


def test_what_torch_serves(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Groups, float64, float32 in full precision: no kernel, and the same results."""
    x, weight, bias, _ = tensors("3x3")
    assert x is not None
    assert weight is not None
    assert bias is not None
    for placement, activation in itertools.product(PLACEMENTS, (None, "relu", "gelu", "softplus")):
        residual = None if placement == "none" else torch.randn(2, 4, 6, 5, dtype=x.dtype)
        values = [x, weight, bias, residual]
        where = {"activation": activation, "padding": "same"}
        result, expected = both(cutwheel, values, placement == "last", **where)
        torch.testing.assert_close(result, expected)
        assert result.stride() == channels_last_strides(result.shape)
    depthwise = torch.randn(6, 1, 3, 3), torch.randn(6)
    image = torch.randn(2, 6, 1, 5)
    result = cutwheel.conv2d(image, *depthwise, 1, 1, groups=6, activation="relu")
    expected = F.conv2d(image, *depthwise, 1, 1, groups=6).relu()
    torch.testing.assert_close(result, expected)
    assert result.stride() == channels_last_strides(result.shape)
    single = x.detach().float(), weight.detach().float()
    torch.backends.cudnn.conv.fp32_precision, before = (
        "ieee",
        torch.backends.cudnn.conv.fp32_precision,
    )
    try:
        torch.testing.assert_close(cutwheel.conv2d(*single), F.conv2d(*single))
        assert not cpu_ops.calls
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    torch.testing.assert_close(cutwheel.conv2d(*single), F.conv2d(*single))
    assert cpu_ops.calls == [("conv2d", "plain")]


ONE_D: dict[str, dict[str, Any]] = {
    "padded": {"padding": 2, "stride": 2},
    "same": {"padding": "same", "dilation": 2},
    "grouped": {"groups": 2, "padding": (1,), "stride": (3,)},
}


@pytest.mark.parametrize("name", ONE_D)
@pytest.mark.parametrize("has_batch", [True, False])
def test_signals(cutwheel: ModuleType, ops: CpuOps, name: str, has_batch: bool) -> None:
    where = ONE_D[name]
    x = torch.randn(*(2,) * has_batch, 4, 11, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4 // where.get("groups", 1), 4, dtype=x.dtype, requires_grad=True)
    residual = torch.randn_like(F.conv1d(x, weight, **where)).requires_grad_()
    options = {"activation": "silu", "residual_after_activation": True, **where}
    result = cutwheel.conv1d(x, weight, residual=residual, **options)
    expected = of_torch(x, weight, None, residual, conv=F.conv1d, **options)
    torch.testing.assert_close(result, expected)
    grads = [
        torch.autograd.grad(y.square().sum(), (x, weight, residual)) for y in (result, expected)
    ]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)
    served = [call[0] for call in ops.calls]
    wanted = ["conv2d_fused_aux", "elementwise", "conv2d_input_grad", "conv2d_weight_grad"]
    assert served == ([] if name == "grouped" else wanted)


# Filters, arguments, and whether it is a conv2d of slices.
THREE_D: dict[str, tuple[tuple[int, ...], dict[str, Any], bool]] = {
    "one_tap": ((6, 4, 1, 3, 2), {"padding": (0, 1, 0), "stride": (1, 2, 1)}, True),
    "same": ((6, 4, 1, 3, 2), {"padding": "same", "dilation": 2}, True),
    "deep": ((6, 4, 2, 3, 2), {"padding": 1}, False),
    "strided": ((6, 4, 1, 3, 2), {"stride": (2, 1, 1)}, False),
    "padded": ((6, 4, 1, 3, 2), {"padding": 1}, False),
    "grouped": ((6, 2, 1, 3, 2), {"groups": 2}, False),
}


@pytest.mark.parametrize("name", THREE_D)
@pytest.mark.parametrize("has_batch", [True, False])
def test_volumes(cutwheel: ModuleType, ops: CpuOps, name: str, has_batch: bool) -> None:
    filters, where, is_folded = THREE_D[name]
    x = torch.randn(*(2,) * has_batch, 4, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(filters, dtype=x.dtype, requires_grad=True)
    residual = torch.randn_like(F.conv3d(x, weight, **where)).requires_grad_()
    options = {"activation": "relu", **where}
    result = cutwheel.conv3d(x, weight, residual=residual, **options)
    expected = of_torch(x, weight, None, residual, conv=F.conv3d, **options)
    torch.testing.assert_close(result, expected)
    image = result if has_batch else result.unsqueeze(0)
    assert image.movedim(1, -1).is_contiguous()
    grads = [
        torch.autograd.grad(y.square().sum(), (x, weight, residual)) for y in (result, expected)
    ]
    for got, want in zip(*grads, strict=True):
        torch.testing.assert_close(got, want)
    served = [call[0] for call in ops.calls if call[0] != "elementwise"]
    wanted = ["conv2d_fused", "conv2d_input_grad", "conv2d_weight_grad"]
    assert served == (wanted if is_folded else [])


@pytest.mark.parametrize("for_each_filter", [True, False])
def test_scaled(cutwheel: ModuleType, cpu_ops: CpuOps, for_each_filter: bool) -> None:
    x, weight = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3)
    for dtype, worst in ((torch.float8_e4m3fn, 0.05), (torch.int8, 0.02)):
        recipe = "rowwise" if for_each_filter else "tensorwise"
        a, scale_a = cutwheel.quantize(x.flatten(1), "tensorwise", dtype)
        b, scale_b = cutwheel.quantize(weight.flatten(1), recipe, dtype)
        arguments = (a.view(x.shape), b.view(weight.shape), scale_a, scale_b.view(-1))
        result = cutwheel.scaled_conv2d(*arguments, torch.ones(4), 2, 1, out_dtype=torch.float32)
        expected = F.conv2d(x, weight, torch.ones(4), 2, 1)
        assert (result - expected).norm() < worst * expected.norm()
        one = cutwheel.scaled_conv2d(a.view(x.shape)[0], *arguments[1:], padding="same")
        assert (one.shape, one.dtype) == ((4, 6, 5), torch.bfloat16)
        for place, name in enumerate(("input", "weight", "scale_input", "scale_weight")):
            if not arguments[place].is_floating_point():
                continue
            changed = list(arguments)
            changed[place] = arguments[place].detach().requires_grad_()
            with pytest.raises(RuntimeError, match=f"scaled_conv2d: {name} requires grad"):
                cutwheel.scaled_conv2d(*changed)
