"""What CUTWHEEL_LOG=debug tells where kernels run: each choice once, as `explain` has it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.fixture
def told(
    cutwheel: ModuleType, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[[], list[str]]]:
    from cutwheel.ops._common import log

    caplog.set_level(logging.DEBUG, "cutwheel")
    log.tell_choices(True)
    yield lambda: [r.getMessage() for r in caplog.records if r.name == "cutwheel"]
    log.tell_choices(False)


def kernel(line: str) -> str:
    found = re.search(r": (\w+)(?: \(|$)", line)
    assert found is not None, line
    return found[1]


def test_each_choice_is_told_once_as_explained(
    cutwheel: ModuleType, told: Any, device: str
) -> None:
    a = torch.randn(512, 1024, device=device, dtype=torch.bfloat16)
    b = torch.randn(1024, 256, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        cutwheel.mm(a, b)
    cutwheel.mm(a[:64], b)
    lines = told()
    assert [line.partition(" dtype")[0] for line in lines] == [
        "mm M=512 N=256 K=1024",
        "mm M=64 N=256 K=1024",
    ]
    for line, operand in zip(lines, (a, a[:64]), strict=True):
        explanation = cutwheel.explain("mm", operand, b)
        assert kernel(line) == explanation.row
        assert explanation.parameters["choice"] in line


def test_backward_passes_are_told(cutwheel: ModuleType, told: Any, device: str) -> None:
    x = torch.randn(256, 512, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(128, 512, device=device, dtype=torch.bfloat16, requires_grad=True)
    cutwheel.linear(x, weight, activation="gelu").sum().backward()
    lines = told()
    assert lines[0].startswith("linear M=256 N=128 K=512")
    assert any("elementwise" in line for line in lines)
    sizes = {re.sub(r".*(M=\d+ N=\d+ K=\d+).*", r"\1", line) for line in lines}
    assert sizes >= {"M=256 N=512 K=128", "M=128 N=512 K=256"} or sizes >= {
        "M=256 N=512 K=128",
        "M=512 N=128 K=256",
    }


@pytest.mark.no_dispatch_mode
def test_compiled_code_is_told(cutwheel: ModuleType, told: Any, device: str) -> None:
    image = torch.randn(2, 64, 16, 16, device=device, dtype=torch.bfloat16)
    filters = torch.randn(64, 64, 3, 3, device=device, dtype=torch.bfloat16)
    depthwise = torch.randn(64, 1, 3, 3, device=device, dtype=torch.bfloat16)

    @torch.compile(fullgraph=True)
    def run(image: torch.Tensor) -> torch.Tensor:
        y = cutwheel.conv2d(image, filters, padding=1, activation="relu")
        return cutwheel.conv2d(y, depthwise, padding=1, groups=64)

    run(image)
    ops = [line.partition(" ")[0] for line in told()]
    assert len(ops) >= 2
    assert all(op.startswith("conv2d") for op in ops if op != "a")


def test_nothing_is_told_without_a_listener(
    cutwheel: ModuleType, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    caplog.set_level(logging.DEBUG, "cutwheel")
    a = torch.randn(64, 64, device=device, dtype=torch.float16)
    cutwheel.mm(a, a)
    assert not [r for r in caplog.records if r.name == "cutwheel"]
