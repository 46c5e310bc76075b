"""Meta functions of the convolutions: shapes and strides, tracing, what a result depends on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_conv import channels_last_strides
from cpu_reference import CpuOps
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, SINGLE, E4M3 = torch.float16, torch.float32, torch.float8_e4m3fn
Make = Callable[..., torch.Tensor]


@pytest.fixture
def fake(cutwheel: ModuleType) -> Iterator[Make]:
    """Makes fake CUDA tensors; none of it needs a GPU."""
    with FakeTensorMode():
        yield lambda *shape, dtype=HALF: torch.empty(shape, dtype=dtype, device="cuda")


def on_meta(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    """A CPU-only torch has no device guard for a backward pass on fake CUDA tensors."""
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


@pytest.mark.parametrize("images", [0, 1, 2])
@pytest.mark.parametrize("channels", [1, 3, 8])
@pytest.mark.parametrize("filters", [1, 5])
@pytest.mark.parametrize("image", [(1, 1), (1, 7), (6, 1), (7, 9)], ids=str)
def test_shapes_and_strides(
    cutwheel: ModuleType, images: int, channels: int, filters: int, image: tuple[int, int]
) -> None:
    """Strides are those of channels last for every size, also where torch calls others so."""
    kernels, wheres = ((1, 1), (3, 2)), ((1, 1), ((2, 3), (1, 2)))
    for kernel, (stride, dilation), is_nhwc in itertools.product(kernels, wheres, (True, False)):
        x, weight = on_meta(images, channels, *image), on_meta(filters, channels, *kernel)
        if is_nhwc:
            x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        where = {"stride": stride, "dilation": dilation, "padding": 2}
        y = cutwheel.conv2d(x, weight, **where)
        assert y.shape == F.conv2d(x, weight, **where).shape  # type: ignore[arg-type]
        assert y.stride() == channels_last_strides(y.shape)
        residual = on_meta(*y.shape)
        for activation in ("relu", "silu"):
            for is_last in (True, False):
                how = {"activation": activation, "residual_after_activation": is_last}
                z = cutwheel.conv2d(x, weight, residual=residual, **how, **where)
                assert z.stride() == y.stride()
        grads = torch.autograd.grad(y.sum(), (x, weight))
        for grad, tensor in zip(grads, (x, weight), strict=True):
            assert grad.shape == tensor.shape
            assert grad.stride() == channels_last_strides(tensor.shape)


def test_fake_cuda(cutwheel: ModuleType, fake: Make) -> None:
    for dtype in (HALF, torch.bfloat16, SINGLE):
        x, weight, bias = (fake(*s, dtype=dtype) for s in ((2, 3, 8, 9), (4, 3, 3, 3), (4,)))
        y = cutwheel.conv2d(x, weight, bias, 2, 1, activation="gelu")
        assert (tuple(y.shape), y.dtype, y.device.type) == ((2, 4, 4, 5), dtype, "cuda")
        image, signal = fake(3, 8, 9, dtype=dtype), fake(2, 3, 9, dtype=dtype)
        assert cutwheel.conv2d(image, weight, bias, padding="same").shape == (4, 8, 9)
        assert cutwheel.conv1d(signal, fake(4, 3, 2, dtype=dtype), bias).shape == (2, 4, 8)
        volume, filters = fake(2, 3, 4, 8, 9, dtype=dtype), fake(4, 3, 1, 3, 3, dtype=dtype)
        assert cutwheel.conv3d(volume, filters, bias).shape == (2, 4, 4, 6, 7)


def test_scaled(cutwheel: ModuleType, fake: Make) -> None:
    for dtype, out_dtype in itertools.product((E4M3, torch.int8), (HALF, torch.bfloat16, SINGLE)):
        x, weight = fake(2, 16, 8, 9, dtype=dtype), fake(5, 16, 3, 3, dtype=dtype)
        for scale_weight in (fake(1, dtype=SINGLE), fake(5, dtype=SINGLE), fake(dtype=SINGLE)):
            for bias in (None, fake(5, dtype=SINGLE), fake(5, dtype=out_dtype)):
                given = (x, weight, fake(1, dtype=SINGLE), scale_weight, bias, (2, 1), 1)
                y = cutwheel.scaled_conv2d(*given, out_dtype=out_dtype)
                assert (tuple(y.shape), y.dtype) == ((2, 5, 4, 9), out_dtype)
                assert y.stride() == channels_last_strides(y.shape)


class Net(torch.nn.Module):
    """A block of a residual network, with what it takes of everything."""

    def __init__(self, cutwheel: ModuleType) -> None:
        super().__init__()
        conv, self.cutwheel = cutwheel.nn.Conv2d, cutwheel
        self.first = conv(3, 8, 3, stride=2, padding=1, activation="relu")
        self.second = conv(8, 8, 3, padding="same", activation="relu")
        self.third = conv(8, 8, 1, activation="silu", residual_after_activation=True)
        self.depthwise = conv(8, 8, 3, padding=1, groups=8, padding_mode="reflect")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.second(x, x)
        x = self.depthwise(self.third(x, x))
        x = self.cutwheel.conv1d(x.flatten(2), x[0, :, :1, :1].new_ones(8, 8, 2), padding=1)
        return self.cutwheel.conv2d(x.unsqueeze(2), x.new_ones(1, 8, 1, 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(cutwheel: ModuleType, traced_on_cpu: CpuOps, backend: str) -> None:
    """No graph break; other batches and images without a difference."""
    torch._dynamo.reset()
    net = Net(cutwheel)
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    parameters = list(net.parameters())
    for size in ((2, 3, 9, 8), (3, 3, 9, 8), (5, 3, 12, 11)):
        x = torch.randn(size, requires_grad=True)
        results = [function(x) for function in (compiled, net)]
        assert results[0].stride() == results[1].stride()
        torch.testing.assert_close(*results)
        all_grads = [torch.autograd.grad(y.square().sum(), [x, *parameters]) for y in results]
        for got, want in zip(*all_grads, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), net(x))


def test_compile_with_one_tensor_twice(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = cutwheel.conv2d(x, x, residual=x[:1, :1, :1, :1].expand(2, 2, 1, 1))
        return result.square().sum()

    torch._dynamo.reset()
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    grads = [torch.autograd.grad(f(x), x)[0] for f in (compiled, function)]
    torch.testing.assert_close(*grads)


def test_export(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    net = Net(cutwheel).eval()
    x = torch.randn(2, 3, 9, 8)
    batch = torch.export.Dim("batch", min=2)
    exported = torch.export.export(net, (x,), dynamic_shapes=({0: batch},))
    with torch.no_grad():
        for images in (2, 5):
            x = torch.randn(images, 3, 9, 8)
            torch.testing.assert_close(exported.module()(x), net(x))


def test_opcheck(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    ops, check = torch.ops.cutwheel, torch.library.opcheck
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    where = 2, 1, 1, 0, 2, 1, 1, 2
    for c, ko in ((3, 5), (1, 1)):
        x, weight, bias = torch.randn(2, c, 7, 6), torch.randn(ko, c, 3, 2), torch.randn(ko)
        y = ops.conv2d(x, weight, bias, *where, True)
        residual = torch.randn_like(y)
        fused = (x, weight, bias, residual, *where, "bias_residual_relu", True)
        for op, given in (
            (ops.conv2d, (x, weight, bias, *where, True)),
            (ops.conv2d_fused, fused),
            (ops.conv2d_fused, (x, weight, None, None, *where, "bias_gelu", True)),
            (ops.conv2d_fused_aux, (x, weight, bias, None, *where, "bias_gelu_tanh_aux", True)),
            (ops.conv2d_input_grad, (y, weight, *x.shape[2:], *where, True)),
            (ops.conv2d_weight_grad, (y, x, *weight.shape[2:], *where, True)),
        ):
            check(op.default, given, test_utils=tests)


@pytest.mark.parametrize("groups", [1, 2])
def test_autocast(cutwheel: ModuleType, fake: Make, groups: int) -> None:
    x, weight, bias = (
        fake(*shape, dtype=SINGLE) for shape in ((2, 4, 8, 9), (6, 4 // groups, 3, 3), (6,))
    )
    # torch.autocast itself does nothing without a GPU.
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        for activation in (None, "relu", "softplus"):
            y = cutwheel.conv2d(x, weight, bias, groups=groups, activation=activation)
            assert y.dtype == torch.bfloat16
    finally:
        torch.set_autocast_enabled("cuda", False)


def test_every_argument_reaches_the_op(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """As F.conv2d takes them, by position and by name."""
    x, weight, bias = torch.randn(2, 3, 11, 12), torch.randn(4, 3, 3, 2), torch.randn(4)
    cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, weight, bias, 2, 1, 2), {}),
        ((x, weight, bias, (2,), [1], (2,)), {}),
        ((x, weight), {"stride": torch.Size((2, 1)), "padding": "valid", "dilation": [1, 3]}),
        ((x, weight, bias), {"padding": "same", "dilation": (2, 1)}),
    ]
    for given, named in cases:
        torch.testing.assert_close(cutwheel.conv2d(*given, **named), F.conv2d(*given, **named))
