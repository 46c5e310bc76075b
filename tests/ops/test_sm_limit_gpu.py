"""A kernel under sm_limit(n) has at most n threadblocks, and the results that it has without."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import cutwheel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

SMALL = ("reduce", "elementwise", "quantize", "pad")  # kernels beside the GEMM, never limited


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    cutwheel.set_sm_limit(None)


def grids(call: Callable[[], Any], where: Path) -> list[int]:
    """The threadblocks of each kernel of ours with a grid of its own choice."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(where / "trace.json"))
    events = json.loads((where / "trace.json").read_text())["traceEvents"]
    found = []
    for event in events:
        name = event.get("name", "")
        is_ours = event.get("cat") == "kernel" and re.match(r"\w+_sm(80|89|90a)_", name)
        if is_ours and not any(word in name.lower() for word in SMALL):
            x, y, z = event["args"]["grid"]
            found.append(x * y * z)
    return found


def calls() -> dict[str, Callable[[], Tensor]]:
    def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=dtype)

    a, weight, bias = random(4096, 1024), random(4096, 1024), random(4096)
    deep, thick = random(64, 16384), random(256, 16384)
    experts = random(8, 2048, 1024)
    offs = torch.arange(512, 4097, 512, device="cuda", dtype=torch.int32)
    image = random(8, 128, 56, 56).contiguous(memory_format=torch.channels_last)
    filters = random(256, 128, 3, 3).contiguous(memory_format=torch.channels_last)
    rows, few, added = random(200000, 40), random(240, 40), random(200000, 240)
    one = torch.ones((), device="cuda")
    fp8_a, fp8_b = a.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    return {
        "mm": lambda: cutwheel.mm(a, weight.t()),
        "linear": lambda: cutwheel.linear(a, weight, bias, activation="gelu"),
        "short rows": lambda: cutwheel.mm(rows, few.t()),
        "short rows, residual": lambda: cutwheel.linear(rows, few, residual=added),
        "few tiles": lambda: cutwheel.mm(deep, thick.t()),
        "grouped_mm": lambda: cutwheel.grouped_mm(a, experts.mT, offs=offs),
        "conv2d": lambda: cutwheel.conv2d(image, filters, padding=1),
        "scaled_mm": lambda: cutwheel.scaled_mm(fp8_a, fp8_b.t(), scale_a=one, scale_b=one),
    }


@pytest.mark.parametrize("limit", [116, 64, 7])
@pytest.mark.parametrize("name", list(calls()) if torch.cuda.is_available() else ["mm"])
def test_grids_stay_within_the_limit(name: str, limit: int, tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels of other GPUs than Hopper are not persistent")
    torch.manual_seed(0)
    call = calls()[name]
    expected = call().float()
    with cutwheel.sm_limit(limit):
        found = grids(call, tmp_path)
        result = call().float()
    assert found
    assert max(found) <= max(limit, 8)  # the largest cluster has 8
    # Another kernel may be chosen, which sums in another order.
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


def test_torchs_carveout_limits_grids(tmp_path: Path) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernels of other GPUs than Hopper are not persistent")
    call, sms = calls()["mm"], torch.cuda.get_device_properties(0).multi_processor_count
    assert sms - 16 < max(grids(call, tmp_path))
    torch._C._set_sm_carveout_experimental(16)
    try:
        assert max(grids(call, tmp_path)) <= sms - 16
    finally:
        torch._C._set_sm_carveout_experimental(None)


def test_the_limit_is_not_remembered(tmp_path: Path) -> None:
    """Neither the choice of a kernel nor its number of clusters outlasts the block."""
    call = calls()["mm"]
    with cutwheel.sm_limit(16):
        limited = grids(call, tmp_path)
    assert max(grids(call, tmp_path)) > max(limited)


def test_a_green_context_limits_grids(tmp_path: Path) -> None:
    green = getattr(torch.cuda, "green_contexts", None)
    if green is None or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs torch.cuda.green_contexts and a Hopper GPU")
    call = calls()["mm"]
    every = call()
    try:
        context = green.GreenContext.create(num_sms=32, device_id=0)
    except RuntimeError as error:
        pytest.skip(f"no green context: {error}")
    context.set_context()
    try:
        found, result = grids(call, tmp_path), call()
        torch.cuda.synchronize()
    finally:
        context.pop_context()
    assert max(found) <= 32
    torch.testing.assert_close(result, every, rtol=2e-2, atol=0.5)
