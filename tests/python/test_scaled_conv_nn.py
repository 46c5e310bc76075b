"""ScaledConv2d: results, chains in 8 bits, state dict and conversions; activation_scales."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps
from torch._subclasses.fake_tensor import FakeTensorMode

E4M3, INT8 = torch.float8_e4m3fn, torch.int8
dtypes = pytest.mark.parametrize("dtype", [E4M3, INT8], ids=str)


def conv(*sizes: int, **options: Any) -> torch.nn.Conv2d:
    return torch.nn.Conv2d(*(sizes or (8, 6, 3)), **options)


def off(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


@dtypes
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("bias", [True, False])
def test_computes(
    cutwheel: ModuleType, cpu_ops: CpuOps, dtype: torch.dtype, activation: str | None, bias: bool
) -> None:
    source = conv(stride=2, padding=1, bias=bias)
    layer = cutwheel.nn.ScaledConv2d.from_conv(source, activation, dtype=dtype)
    assert (layer.weight.shape, layer.weight.dtype) == (source.weight.shape, dtype)
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    act = {None: lambda z: z, "relu": torch.relu, "silu": F.silu}[activation]
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(2, 8, 7, 9).to(kind)
        y = layer(x)
        assert (y.dtype, y.requires_grad) == (kind, False)
        assert off(y, act(source(x.float()))) < 0.06
        assert torch.equal(layer(x)[1], y[1])
        assert layer(x[0]).shape == y.shape[1:]


@dtypes
def test_a_chain_stays_in_8_bits(cutwheel: ModuleType, cpu_ops: CpuOps, dtype: torch.dtype) -> None:
    scaled = cutwheel.nn.ScaledConv2d
    first = cutwheel.nn.Conv2d.from_conv(conv(8, 8, 3, padding=1), "relu")
    second = cutwheel.nn.Conv2d.from_conv(conv(8, 8, 1), "relu")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.unused = first, second, conv()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x), x)  # type: ignore[no-any-return]

    net = Net()
    batches = [torch.randn(2, 8, 7, 9), 3 * torch.randn(1, 8, 7, 9)]
    expected = [net(x) for x in batches]
    found = cutwheel.nn.activation_scales(net, batches, ("first", "second"), dtype)
    largest = 448 if dtype == E4M3 else 127
    assert not net.second._forward_hooks
    for name, results in (("first", [first(x) for x in batches]), ("second", expected)):
        wanted = max(y.abs().max() for y in results) / largest
        torch.testing.assert_close(found[name], wanted.detach().view(1))
    x = batches[0]
    values, scale = cutwheel.quantize(x.permute(0, 2, 3, 1).flatten(0, 2), "tensorwise", dtype)
    x8 = values.view(2, 7, 9, 8).permute(0, 3, 1, 2)
    a = scaled.from_conv(first, dtype=dtype, input_scale=scale, result_scale=found["first"])
    b = scaled.from_conv(
        second, dtype=dtype, input_scale=a.result_scale, result_scale=found["second"].view(())
    )
    inside = a(x8)
    assert inside.dtype == dtype
    y = b(inside, x8, scale)
    assert y.dtype == dtype
    assert off(y.float() * b.result_scale, expected[0]) < 0.08
    a.input_scale.fill_(float("nan"))
    assert torch.equal(a(x8, input_scale=scale).float(), inside.float())
    # Without a scale of its own a layer leaves the chain, in the dtype of its input or bfloat16.
    last = scaled.from_conv(first, dtype=dtype, input_scale=found["first"])
    assert last(inside).dtype == torch.bfloat16
    assert off(last(inside), first(inside.float() * found["first"])) < 0.06
    with pytest.raises(ValueError, match="nothing has called unused; expected batches"):
        cutwheel.nn.activation_scales(net, batches, ("unused",))
    with pytest.raises(TypeError, match=r"dtype is torch.int32; expected float8_e4m3fn or int8"):
        cutwheel.nn.activation_scales(net, batches, ("first",), torch.int32)
    zeros = cutwheel.nn.activation_scales(net, [torch.zeros(1, 8, 7, 9)], ("unused", "first")[1:])
    assert zeros["first"] > 0


@dtypes
def test_state_and_conversions(cutwheel: ModuleType, cpu_ops: CpuOps, dtype: torch.dtype) -> None:
    scaled, options = cutwheel.nn.ScaledConv2d, {"dtype": dtype, "activation": "relu"}
    layer = scaled.from_conv(conv(), result_scale=torch.tensor(0.1), **options)
    other = scaled(8, 6, 3, quantize_result=True, **options)
    assert repr(other) == repr(layer)
    assert "quantize_result=True" in repr(layer)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(1, 8, 5, 5)
    assert torch.equal(other(x).float(), layer(x).float())
    for converted in (copy.deepcopy(layer).half(), copy.deepcopy(layer).to(torch.bfloat16)):
        kinds = {name: tensor.dtype for name, tensor in converted.state_dict().items()}
        assert kinds.pop("weight") == dtype
        assert set(kinds.values()) == {torch.float32}
        assert torch.equal(converted(x).float(), layer(x).float())
    with FakeTensorMode():
        fake = scaled(8, 6, 3, device="cuda", quantize_result=True, **options)
        y = fake(torch.empty(2, 8, 9, 9, dtype=dtype, device="cuda"))
        assert (tuple(y.shape), y.dtype) == ((2, 6, 7, 7), dtype)


def test_refusals(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    scaled = cutwheel.nn.ScaledConv2d
    behind = cutwheel.nn.Conv2d(8, 8, 1, residual_after_activation=True)
    hooked = conv()
    hooked.register_forward_hook(lambda *_: None)
    for source, text in (
        (conv(8, 8, 1, groups=2), "conv has groups=2; expected 1"),
        (conv(padding=1, padding_mode="reflect"), "conv has padding_mode='reflect'; expected 'ze"),
        (behind, "conv has residual_after_activation=True; expected False"),
        (hooked, "conv has hooks"),
        (cutwheel.nn.Conv2d(8, 8, 1, activation="gelu"), "activation is 'gelu'; expected one of"),
    ):
        with pytest.raises(ValueError, match=f"ScaledConv2d: {text}"):
            scaled.from_conv(source)
    with pytest.raises(ValueError, match="result_scale has 2 elements; expected one"):
        scaled.from_conv(conv(), result_scale=torch.ones(2))
    with pytest.raises(TypeError, match=r"dtype is torch.float16; expected float8_e4m3fn or int8"):
        scaled(8, 6, 3, dtype=torch.half)
    with pytest.raises(TypeError, match=r"conv is of type Linear; expected a torch.nn.Conv2d"):
        scaled.from_conv(torch.nn.Linear(2, 2))
    layer = scaled.from_conv(conv(), dtype=INT8)
    with pytest.raises(TypeError, match="ScaledConv2d: input is of type int; expected a Tensor"):
        layer(1)
