"""cutwheel.fuse with an example: which chains stay, by times that a test sets."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from cpu_reference import CpuOps
from fusion_models import C, Net, conv, images, rows, same
from torch.nn import functional as F

from cutwheel.fusion.measuring import Times
from cutwheel.fusion.model import keep_faster

Tensor = torch.Tensor


def two(net: Any, x: Tensor, r: Tensor) -> Tensor:
    """Either convolution may take the sum in."""
    return torch.relu(net.other(torch.relu(net.norm(net.conv(x)))) + r)


class Stopwatch:
    """Says how long a chain takes by the type of its last part, and notes what it was given."""

    def __init__(self, **slow: bool) -> None:
        self.slow = slow
        self.seen: list[tuple[torch.nn.Module, torch.nn.Module, Sequence[Tensor]]] = []

    def __call__(
        self, fused: torch.nn.Module, by_torch: torch.nn.Module, given: Sequence[Tensor]
    ) -> Times:
        self.seen.append((fused, by_torch, given))
        name = next(str(n.target) for n in by_torch.graph.nodes if n.op == "call_module")  # type: ignore[operator, union-attr]
        return Times(2.0, 1.0) if self.slow.get(name) else Times(1.0, 2.0)


def test_what_is_compared_is_the_same_function(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model, given, watch = Net(two), images(), Stopwatch()
    fused = keep_faster(model, given, watch)
    assert len(watch.seen) == 2
    for module, by_torch, args in watch.seen:
        torch.testing.assert_close(module(*args), by_torch(*args))
    same(model, fused, *given)
    for replacement in fused.fusion_report.replaced:
        assert (replacement.us, replacement.torch_us) == (1.0, 2.0)
        assert str(replacement).endswith(", 1.0 us in place of 2.0")


@pytest.mark.parametrize("slow", ["conv", "other"])
def test_slower_chains_stay(cutwheel: ModuleType, cpu_ops: CpuOps, slow: str) -> None:
    model, given = Net(two), images()
    fused = keep_faster(model, given, Stopwatch(**{slow: True}))
    report = fused.fusion_report
    (kept,), (replaced,) = report.kept, report.replaced
    assert (kept.name, replaced.name) == (slow, "other" if slow == "conv" else "conv")
    assert kept.reason.startswith("conv + bias + ")
    assert kept.reason.endswith(" took 2.0 us fused, 1.0 by torch")
    assert type(fused.get_submodule(slow)) is torch.nn.Conv2d
    same(model, fused, *given)


def test_a_sum_that_becomes_free_is_measured(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """What the first one left to the other is a chain of its own."""

    def forward(net: Any, x: Tensor, r: Tensor) -> Tensor:
        return net.conv(x) + net.other(r)

    model, given, watch = Net(forward), images(), Stopwatch()
    first = keep_faster(model, given, watch).fusion_report.replaced
    (owner,) = (each.name for each in first if "residual" in each.parts)
    watch = Stopwatch(**{owner: True})
    fused = keep_faster(model, given, watch)
    (replaced,) = fused.fusion_report.replaced
    assert replaced.name != owner
    assert "residual" in replaced.parts
    assert (replaced.us, replaced.torch_us) == (1.0, 2.0)
    assert len(watch.seen) == 3
    same(model, fused, *given)


def test_all_parts_are_measured(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Zeros, scales, permutations, and a residual that is the input."""

    def forward(net: Any, x: Tensor, r: Tensor) -> Tensor:
        x = x + net.conv(x)
        x = net.valid(F.pad(x, (1, 1, 1, 1)))
        return F.gelu(net.norm(net.other(x)) * net.scale) + r

    model, given, watch = Net(forward, valid=conv(padding=0)), images(), Stopwatch()
    fused = keep_faster(model, given, watch)
    assert len(watch.seen) == 3
    for module, by_torch, args in watch.seen:
        torch.testing.assert_close(module(*args), by_torch(*args), rtol=1e-4, atol=1e-5)
    same(model, fused, *given)

    def of_rows(net: Any, x: Tensor, r: Tensor) -> Tensor:
        return torch.relu(net.linear(x)) + r

    model, given, watch = Net(of_rows), rows(), Stopwatch()
    same(model, keep_faster(model, given, watch), *given)
    ((module, by_torch, args),) = watch.seen
    torch.testing.assert_close(module(*args), by_torch(*args))


def test_what_the_example_does_not_call(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (torch.nn.Sequential(conv(), torch.nn.ReLU()) for _ in range(2))
            self.eval()

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if x.sum().item() < 1e9 else self.b(x)

    watch = Stopwatch()
    fused = keep_faster(Two(), images()[:1], watch)
    assert [each.us for each in fused.fusion_report.replaced] == [1.0, None]


def test_a_model_without_chains(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    watch = Stopwatch()
    fused = keep_faster(torch.nn.Sequential(torch.nn.ReLU()).eval(), (torch.ones(C),), watch)
    assert not watch.seen
    assert not fused.fusion_report.replaced


def test_errors(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    with pytest.raises(TypeError, match="example_inputs are of type dict; expected a tuple"):
        cutwheel.fuse(Net(two), {"x": 1})
    with pytest.raises(ValueError, match=r"takes a GPU, and model is on cpu: call model\.cuda\(\)"):
        cutwheel.fuse(Net(two), images())
