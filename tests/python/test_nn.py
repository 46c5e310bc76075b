"""The modules: state dicts as torch's, in both directions, and what they compute."""

from __future__ import annotations

import copy
import io
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps

HIDDEN, INTERMEDIATE = 6, 10
KEYS = ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]


class TorchMLP(torch.nn.Module):
    """What GatedMLP stands for, as model code writes it."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE, bias=False, **options)
        self.up_proj = torch.nn.Linear(HIDDEN, INTERMEDIATE, bias=False, **options)
        self.down_proj = torch.nn.Linear(INTERMEDIATE, HIDDEN, bias=False, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


def mlp(cutwheel: ModuleType, **options: Any) -> Any:
    return cutwheel.nn.GatedMLP(HIDDEN, INTERMEDIATE, **options)


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=0, atol=0)


def test_names_are_public(cutwheel: ModuleType) -> None:
    assert cutwheel.nn.__all__ == [
        *("Conv2d", "GatedMLP", "GroupedExperts", "Linear", "ScaledLinear"),
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


def test_linear_is_readable(cutwheel: ModuleType) -> None:
    linear = cutwheel.nn.Linear
    assert repr(linear(4, 3)) == "Linear(in_features=4, out_features=3, bias=True)"
    assert repr(linear(4, 3, False, "silu", True)) == (
        "Linear(in_features=4, out_features=3, bias=False, activation='silu', "
        "residual_after_activation=True)"
    )
    assert "GatedMLP" in repr(mlp(cutwheel))
    assert "hidden_size=6, intermediate_size=10, activation='silu'" in repr(mlp(cutwheel))


def test_unknown_activations_are_refused(cutwheel: ModuleType) -> None:
    with pytest.raises(ValueError, match="Linear: activation is 'swish'; expected one of relu"):
        cutwheel.nn.Linear(4, 3, activation="swish")
    with pytest.raises(ValueError, match="GatedMLP: activation is 'tanh'; expected one of relu"):
        mlp(cutwheel, activation="tanh")


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


def test_gated_mlp_computes(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    theirs = TorchMLP(dtype=torch.float64)
    ours = mlp(cutwheel, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, HIDDEN, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x, x), theirs(x) + x)
    ours(x).sum().backward()
    theirs(x).sum().backward()
    gate, up = cutwheel.unpack_gated_weight(ours.gate_up_weight.grad)
    torch.testing.assert_close(gate, theirs.gate_proj.weight.grad)
    torch.testing.assert_close(up, theirs.up_proj.weight.grad)
    torch.testing.assert_close(ours.down_proj.weight.grad, theirs.down_proj.weight.grad)


def test_gated_mlp_is_initialised_as_three_linear_layers(cutwheel: ModuleType) -> None:
    torch.manual_seed(1)
    ours = mlp(cutwheel)
    torch.manual_seed(1)
    theirs = TorchMLP()
    assert_same(ours.state_dict(), theirs.state_dict())
    torch.manual_seed(2)
    ours.reset_parameters()
    torch.manual_seed(2)
    for layer in (theirs.gate_proj, theirs.up_proj, theirs.down_proj):
        layer.reset_parameters()
    assert_same(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts_go_both_ways(cutwheel: ModuleType, nested: bool, assign: bool) -> None:
    ours, theirs = mlp(cutwheel), TorchMLP()
    keys = list(KEYS)
    if nested:
        ours = torch.nn.Sequential(torch.nn.LayerNorm(HIDDEN), ours)
        theirs = torch.nn.Sequential(torch.nn.LayerNorm(HIDDEN), theirs)  # type: ignore[assignment]
        keys = ["0.weight", "0.bias", *(f"1.{key}" for key in KEYS)]
    given = theirs.state_dict()
    assert list(ours.state_dict()) == keys
    for strict in (True, False):
        done = ours.load_state_dict(given, strict=strict, assign=assign)
        assert (done.missing_keys, done.unexpected_keys) == ([], [])
    assert list(given) == keys, "what was given is left as it was"
    assert_same(ours.state_dict(), given)
    ours[1].reset_parameters() if nested else ours.reset_parameters()
    theirs.load_state_dict(ours.state_dict(), assign=assign)
    assert_same(theirs.state_dict(), ours.state_dict())


def test_entries_of_the_state_dict_follow_the_parameter(cutwheel: ModuleType) -> None:
    ours = mlp(cutwheel)
    state = ours.state_dict()
    assert not any(value.requires_grad for value in state.values())
    with torch.no_grad():
        ours.gate_up_weight.zero_()
    assert state[KEYS[0]].eq(0).all()
    assert state[KEYS[1]].eq(0).all()
    assert [name for name, _ in ours.named_parameters()] == ["gate_up_weight", "down_proj.weight"]
    assert ours.state_dict(keep_vars=True)[KEYS[0]].requires_grad


def test_wrong_state_dicts_are_refused(cutwheel: ModuleType) -> None:
    ours, state = mlp(cutwheel), TorchMLP().state_dict()
    before = copy.deepcopy(ours.state_dict())
    missing = {key: value for key, value in state.items() if key != KEYS[1]}
    with pytest.raises(RuntimeError, match=r'Missing key.*"up_proj\.weight"') as raised:
        ours.load_state_dict(missing)
    assert "gate_up_weight" not in str(raised.value)
    with pytest.raises(RuntimeError, match=r"Missing key.*gate_proj\.weight.*up_proj\.weight"):
        ours.load_state_dict({})
    ours = mlp(cutwheel)
    ours.load_state_dict(before)
    done = ours.load_state_dict({KEYS[0]: state[KEYS[0]]}, strict=False)
    assert done.unexpected_keys == []
    torch.testing.assert_close(ours.state_dict()[KEYS[0]], state[KEYS[0]])
    torch.testing.assert_close(ours.state_dict()[KEYS[1]], before[KEYS[1]])
    with pytest.raises(RuntimeError, match=r"Unexpected key.*gate_proj\.bias"):
        ours.load_state_dict({**state, "gate_proj.bias": torch.zeros(INTERMEDIATE)})
    with pytest.raises(RuntimeError, match=r"size mismatch for up_proj.weight.*\[3, 6\]"):
        ours.load_state_dict({**state, KEYS[1]: torch.zeros(3, HIDDEN)})
    with pytest.raises(RuntimeError, match=r'expected a Tensor for "up_proj\.weight"'):
        ours.load_state_dict({**state, KEYS[1]: 3})
    with pytest.raises(RuntimeError, match=r"up has dtype torch\.float16"):
        ours.load_state_dict({**state, KEYS[1]: state[KEYS[1]].half()})


def test_meta_device_and_checkpoints(cutwheel: ModuleType) -> None:
    with torch.device("meta"):
        ours = mlp(cutwheel)
    assert mlp(cutwheel, device="meta", dtype=torch.bfloat16).gate_up_weight.is_meta
    assert ours.gate_up_weight.is_meta
    state = TorchMLP(dtype=torch.bfloat16).state_dict()
    ours.load_state_dict(state, assign=True)
    assert ours.gate_up_weight.dtype == torch.bfloat16
    assert isinstance(ours.gate_up_weight, torch.nn.Parameter)
    assert ours.gate_up_weight.requires_grad
    assert_same(ours.state_dict(), state)
    with torch.device("meta"):
        empty = mlp(cutwheel)
    empty = empty.to_empty(device="cpu")
    empty.reset_parameters()
    assert empty.gate_up_weight.abs().max() <= HIDDEN**-0.5
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    assert_same(torch.load(file), state)


def test_copies_are_independent(cutwheel: ModuleType) -> None:
    ours = mlp(cutwheel)
    copied = copy.deepcopy(ours)
    assert_same(copied.state_dict(), ours.state_dict())
    with torch.no_grad():
        ours.gate_up_weight.zero_()
    assert not copied.gate_up_weight.eq(0).any()
    copied.load_state_dict(ours.state_dict())
    assert_same(copied.state_dict(), ours.state_dict())


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
    with pytest.raises(ValueError, match=r"gate has shape \[4\]; expected \[F, K\]"):
        pack(weight[0], weight[0])
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
