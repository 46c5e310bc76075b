"""nn.Linear: torch's layer, and what it computes; weights of gated layers, packed."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=0, atol=0)


def test_names_are_public(cutwheel: ModuleType) -> None:
    assert cutwheel.nn.__all__ == [
        *("Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
        *("GatedMLP", "GroupedExperts", "Linear"),
        *("ScaledConv2d", "ScaledLinear", "activation_scales"),
    ]
    for name in cutwheel.nn.__all__:
        assert getattr(cutwheel.nn, name).__doc__


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_torchs(cutwheel: ModuleType, bias: bool) -> None:
    torch.manual_seed(1)
    ours = cutwheel.nn.Linear(4, 3, bias=bias, activation="gelu")
    torch.manual_seed(1)
    theirs = torch.nn.Linear(4, 3, bias=bias)
    assert isinstance(ours, torch.nn.Linear)
    assert_same(ours.state_dict(), theirs.state_dict())
    theirs.reset_parameters()
    ours.load_state_dict(theirs.state_dict())
    assert_same(ours.state_dict(), theirs.state_dict())
    ours.reset_parameters()
    theirs.load_state_dict(ours.state_dict())
    assert_same(copy.deepcopy(ours).state_dict(), theirs.state_dict())


def test_linear_takes_what_torchs_takes(cutwheel: ModuleType) -> None:
    """In its order: device is the fourth argument, dtype the fifth."""
    for made in (torch.nn.Linear, cutwheel.nn.Linear):
        layer = made(4, 3, False, "meta", torch.half)
        assert (layer.weight.device.type, layer.weight.dtype) == ("meta", torch.half)
        assert layer.bias is None
    with pytest.raises(TypeError, match="positional argument"):
        cutwheel.nn.Linear(4, 3, True, None, None, "relu")


def test_linear_is_readable(cutwheel: ModuleType) -> None:
    linear = cutwheel.nn.Linear
    assert repr(linear(4, 3)) == "Linear(in_features=4, out_features=3, bias=True)"
    assert repr(linear(4, 3, False, activation="silu", residual_after_activation=True)) == (
        "Linear(in_features=4, out_features=3, bias=False, activation='silu', "
        "residual_after_activation=True)"
    )


def test_unknown_activations_of_linear_are_refused(cutwheel: ModuleType) -> None:
    with pytest.raises(ValueError, match="Linear: activation is 'swish'; expected one of relu"):
        cutwheel.nn.Linear(4, 3, activation="swish")


@pytest.mark.parametrize("last", [False, True])
def test_linear_computes(cutwheel: ModuleType, cpu_ops: CpuOps, last: bool) -> None:
    options: dict[str, Any] = {"activation": "silu", "residual_after_activation": last}
    layer = cutwheel.nn.Linear(4, 3, **options, dtype=torch.float64)
    x, residual = torch.randn(2, 4).double(), torch.randn(2, 3).double()
    z = F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), F.silu(z))
    expected = F.silu(z) + residual if last else F.silu(z + residual)
    torch.testing.assert_close(layer(x, residual), expected)
    plain = cutwheel.nn.Linear(4, 3, dtype=torch.float64)
    torch.testing.assert_close(plain(x), F.linear(x, plain.weight, plain.bias))


def test_packing(cutwheel: ModuleType) -> None:
    gate, up = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4)
    packed = cutwheel.pack_gated_weight(gate, up)
    expected = [gate[0], up[0], gate[1], up[1], gate[2], up[2]]
    torch.testing.assert_close(packed, torch.stack(expected))
    assert packed.is_contiguous()
    back = cutwheel.unpack_gated_weight(packed)
    torch.testing.assert_close(back, (gate, up))
    assert back[0].data_ptr() == packed.data_ptr(), "a view"
    (grad,) = torch.autograd.grad(back[0].square().sum(), gate)
    torch.testing.assert_close(grad, 2 * gate)


def test_wrong_weights_are_refused(cutwheel: ModuleType) -> None:
    pack, unpack = cutwheel.pack_gated_weight, cutwheel.unpack_gated_weight
    weight = torch.ones(3, 4)
    with pytest.raises(TypeError, match="pack_gated_weight: up is None"):
        pack(weight, None)
    with pytest.raises(ValueError, match=r"gate has shape \[1, 1, 3, 4\]; expected \[F, K\]"):
        pack(weight[None, None], weight[None, None])
    with pytest.raises(ValueError, match=r"up has shape \[2, 4\]; expected \[3, 4\]"):
        pack(weight, weight[:2])
    with pytest.raises(TypeError, match=r"up has dtype torch\.float16"):
        pack(weight, weight.half())
    with pytest.raises(ValueError, match="up is on meta and gate is on cpu"):
        pack(weight, weight.to("meta"))
    with pytest.raises(ValueError, match=r"weight has shape \[3, 4\]; expected \[2F, K\]"):
        unpack(weight)
    with pytest.raises(TypeError, match="unpack_gated_weight: weight is of type list"):
        unpack([1])
