"""cutwheel.nn.Conv2d: torch's parameters and state dict, and what it computes."""

from __future__ import annotations

import copy
import io
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_conv import channels_last_strides
from cpu_reference import CpuOps

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no_bias": {"bias": False, "stride": 2, "padding": 1},
    "same": {"padding": "same", "dilation": (2, 1)},
    "valid": {"padding": "valid"},
    "groups": {"groups": 2, "padding": (1, 0)},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "circular_same": {"padding": "same", "padding_mode": "circular"},
}


def both(cutwheel: ModuleType, **options: Any) -> tuple[Any, torch.nn.Conv2d]:
    """With the same parameters."""
    made = []
    for kind in (cutwheel.nn.Conv2d, torch.nn.Conv2d):
        torch.manual_seed(1)
        made.append(kind(4, 6, (3, 2), **options))
    return made[0], made[1]


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], rtol=0, atol=0)


@pytest.mark.parametrize("name", OPTIONS)
def test_is_torchs(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    ours, theirs = both(cutwheel, **OPTIONS[name])
    assert isinstance(ours, torch.nn.Conv2d)
    assert_same(ours.state_dict(), theirs.state_dict())
    for x in (torch.randn(2, 4, 7, 6), torch.randn(4, 7, 6)):
        results = [module(x) for module in (ours, theirs)]
        torch.testing.assert_close(*results)
        for module, result in zip((ours, theirs), results, strict=True):
            module.zero_grad()
            result.square().sum().backward()
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-4)
    assert bool(cpu_ops.calls) == (name != "groups")


def test_state_dicts_go_both_ways(cutwheel: ModuleType) -> None:
    ours, theirs = both(cutwheel)
    theirs.reset_parameters()
    ours.load_state_dict(theirs.state_dict())
    assert_same(ours.state_dict(), theirs.state_dict())
    ours.reset_parameters()
    theirs.load_state_dict(copy.deepcopy(ours).state_dict())
    assert_same(ours.state_dict(), theirs.state_dict())
    stream = io.BytesIO()
    torch.save(ours.state_dict(), stream)
    stream.seek(0)
    theirs.load_state_dict(torch.load(stream), assign=True)
    assert_same(ours.state_dict(), theirs.state_dict())
    # The weight lies as torch's does, and as it is told to.
    for module in (ours, ours.half(), ours.float(), copy.deepcopy(ours)):
        assert module.weight.is_contiguous()
    ours.to(memory_format=torch.channels_last)
    ours.load_state_dict(torch.nn.Conv2d(4, 6, (3, 2)).state_dict())
    for module in (ours, ours.half(), ours.float(), copy.deepcopy(ours)):
        assert module.weight.stride() == channels_last_strides(module.weight.shape)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_weights_get_gradients_in_their_order(
    cutwheel: ModuleType, cpu_ops: CpuOps, memory_format: torch.memory_format
) -> None:
    conv = cutwheel.nn.Conv2d(4, 6, 3, activation="relu").to(memory_format=memory_format)
    optimizer = torch.optim.AdamW(conv.parameters())
    conv(torch.randn(2, 4, 5, 5)).sum().backward()
    assert conv.weight.grad.stride() == conv.weight.stride()
    before = conv.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(conv.weight, before)
    assert conv.weight.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "hardswish"])
@pytest.mark.parametrize("is_last", [False, True])
def test_what_follows(
    cutwheel: ModuleType, cpu_ops: CpuOps, activation: str | None, is_last: bool
) -> None:
    options = {"activation": activation, "residual_after_activation": is_last}
    ours = cutwheel.nn.Conv2d(4, 6, (3, 2), padding=1, **options)
    theirs = torch.nn.Conv2d(4, 6, (3, 2), padding=1)
    theirs.load_state_dict(ours.state_dict())
    x, residual = torch.randn(2, 4, 7, 6), torch.randn(2, 6, 7, 7)
    act: Any = (lambda z: z) if activation is None else getattr(F, activation)
    torch.testing.assert_close(ours(x), act(theirs(x)))
    wanted = act(theirs(x)) + residual if is_last else act(theirs(x) + residual)
    torch.testing.assert_close(ours(x, residual), wanted)


def test_from_conv(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    for options in OPTIONS.values():
        conv = torch.nn.Conv2d(4, 6, (3, 2), dtype=torch.float32, **options).eval()
        address, strides = conv.weight.data_ptr(), conv.weight.stride()
        made = cutwheel.nn.Conv2d.from_conv(conv, "relu")
        assert made.weight is conv.weight
        assert made.bias is conv.bias
        assert (conv.weight.data_ptr(), conv.weight.stride()) == (address, strides)
        assert not made.training
        x = torch.randn(2, 4, 7, 6)
        torch.testing.assert_close(made(x), conv(x).relu())
        with torch.no_grad():
            conv.weight.mul_(-1)
        torch.testing.assert_close(made(x), conv(x).relu())
        again = cutwheel.nn.Conv2d.from_conv(made)
        assert again.activation == "relu"
        assert repr(again) == repr(made)
    on_meta = torch.nn.Conv2d(4, 6, 3, device="meta", dtype=torch.bfloat16)
    assert cutwheel.nn.Conv2d.from_conv(on_meta).weight.dtype == torch.bfloat16


class Standardised(torch.nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight, self.bias)


class Shifted(torch.nn.Conv2d):
    def _conv_forward(self, x: Any, weight: Any, bias: Any) -> torch.Tensor:
        return super()._conv_forward(x, weight, bias) + 1


class Named(torch.nn.Conv2d):
    """Does what torch's does."""


def hooked(register: str) -> torch.nn.Conv2d:
    conv = torch.nn.Conv2d(4, 6, 3)
    getattr(conv, register)(lambda *given: None)
    return conv


def replaced() -> torch.nn.Conv2d:
    conv = torch.nn.Conv2d(4, 6, 3)
    conv.forward = lambda x: x  # type: ignore[method-assign]
    return conv


HOOKS = ("forward", "forward_pre", "full_backward", "full_backward_pre")
NOT_TAKEN: dict[str, tuple[Any, type[Exception], str]] = {
    "standardised": (Standardised(4, 6, 3), TypeError, "is a Standardised, whose forward is not"),
    "_conv_forward": (Shifted(4, 6, 3), TypeError, "is a Shifted, whose _conv_forward is not"),
    "replaced": (replaced(), ValueError, "has a forward set on the object"),
    "parametrized": (
        torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(4, 6, 3)),
        ValueError,
        r"conv\.weight is no parameter, but computed from others",
    ),
    **{
        hook: (hooked(f"register_{hook}_hook"), ValueError, "conv has hooks, which would be lost")
        for hook in HOOKS
    },
}


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_from_conv_loses_nothing(cutwheel: ModuleType, name: str) -> None:
    conv, error, message = NOT_TAKEN[name]
    with pytest.raises(error, match=f"Conv2d: .*{message}"):
        cutwheel.nn.Conv2d.from_conv(conv)


def test_from_conv_takes_subclasses_that_are_torchs(cutwheel: ModuleType) -> None:
    conv = Named(4, 6, 3)
    assert cutwheel.nn.Conv2d.from_conv(conv).weight is conv.weight


def test_what_is_refused(cutwheel: ModuleType) -> None:
    conv = cutwheel.nn.Conv2d
    with pytest.raises(ValueError, match="Conv2d: activation is 'swish'; expected one of relu"):
        conv(4, 6, 3, activation="swish")
    with pytest.raises(TypeError, match=r"Conv2d: conv is of type Linear; expected a torch\.nn"):
        conv.from_conv(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="Conv2d: conv has the activation 'relu'; expected one wi"):
        conv.from_conv(conv(4, 6, 3, activation="relu"), "silu")


def test_is_readable(cutwheel: ModuleType) -> None:
    conv = cutwheel.nn.Conv2d
    assert repr(conv(4, 6, 3)) == repr(torch.nn.Conv2d(4, 6, 3))
    assert repr(conv(4, 6, 3, activation="silu", residual_after_activation=True)) == (
        "Conv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), activation='silu', "
        "residual_after_activation=True)"
    )
