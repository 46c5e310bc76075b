"""Models of a few layers for the tests of cutwheel.fuse, and checks that fusing keeps them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

Tensor = torch.Tensor
C = 8


class Net(torch.nn.Module):
    """Some layers, and a function of this and the arguments as forward."""

    def __init__(self, function: Callable[..., Any], **layers: torch.nn.Module) -> None:
        super().__init__()
        self.function = function
        self.conv = conv()
        self.other = conv()
        self.norm = norm()
        self.relu = torch.nn.ReLU()
        self.relu_ = torch.nn.ReLU(inplace=True)
        self.linear = torch.nn.Linear(C, C)
        self.scale = torch.nn.Parameter(torch.randn(1, C, 1, 1))
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.eval()

    def forward(self, x: Tensor, r: Tensor) -> Any:
        return self.function(self, x, r)


def conv(**options: Any) -> torch.nn.Conv2d:
    return torch.nn.Conv2d(C, C, 3, **({"padding": 1} | options))


def norm(**options: Any) -> torch.nn.BatchNorm2d:
    """With statistics and weights of which all matter."""
    made = torch.nn.BatchNorm2d(C, **options)
    for tensor in (made.running_mean, made.weight, made.bias):
        if tensor is not None:
            torch.nn.init.normal_(tensor)
    if made.running_var is not None:
        torch.nn.init.uniform_(made.running_var, 0.5, 2.0)
    return made


def images(size: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(2, C, size, size), torch.randn(2, C, size, size)


def rows() -> tuple[Tensor, Tensor]:
    return torch.randn(3, C), torch.randn(3, C)


def same(one: torch.nn.Module, other: torch.nn.Module, *given: Any) -> None:
    """Their results, strides and dtypes included, and what they do to their arguments."""
    with torch.no_grad():
        of_one, of_other = ([_copy(x) for x in given] for _ in range(2))
        results = one(*of_one), other(*of_other)
        # Strides of dimensions of size 1 mean nothing.
        strides = [[_strides(x) for x in tree_leaves(each)] for each in results]
        assert strides[0] == strides[1]
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(of_one, of_other, rtol=1e-4, atol=1e-5)


def _copy(x: Any) -> Any:
    """In the same strides."""
    if not isinstance(x, Tensor):
        return x
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x)


def _strides(x: Any) -> list[int] | None:
    if not isinstance(x, Tensor):
        return None
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def fused(cutwheel: ModuleType, model: torch.nn.Module, *given: Any) -> Any:
    """The fused model, which computes the same; the model is as it was."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {owner: dict(vars(owner)) for owner in model.modules()}
    generator = torch.get_rng_state()
    made = cutwheel.fuse(model)
    assert torch.equal(generator, torch.get_rng_state())
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert all(vars(owner) == known for owner, known in attributes.items())
    theirs = {tensor.data_ptr() for tensor in after.values()}
    assert not theirs & {tensor.data_ptr() for tensor in made.state_dict().values()}
    same(made, model, *given)
    return made


def parts(model: Any) -> list[str]:
    return [" + ".join(each.parts) for each in model.fusion_report.replaced]
