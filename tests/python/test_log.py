"""CUTWHEEL_LOG, and what is told of choices."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from selection import H200, explain, needs_all


@pytest.fixture
def log(cutwheel: ModuleType, caplog: pytest.LogCaptureFixture) -> Iterator[ModuleType]:
    from cutwheel.ops._common import log

    caplog.set_level(logging.DEBUG, "cutwheel")
    log.tell_choices(True)
    yield log
    log.tell_choices(False)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    records = [record for record in caplog.records if record.name == "cutwheel"]
    return [record.getMessage() for record in records if record.levelno == logging.DEBUG]


def program(source: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", source],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


CONV = "import torch, cutwheel; x = torch.empty(1, 8, 4, 4, device='meta', dtype=torch.float64); "
CALL = "cutwheel.conv2d(x, x.new_empty(8, 8, 1, 1)); cutwheel.conv2d(x, x.new_empty(8, 8, 1, 1))"
LINE = (
    "cutwheel: conv2d float64 [1, 8, 4, 4] float64 [8, 8, 1, 1]: by torch: input has dtype "
    "float64; expected float16, bfloat16 or float32"
)


def written(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Lines about the call; torch may warn of its own."""
    return [line for line in done.stderr.splitlines() if "conv2d" in line]


def test_debug_goes_to_stderr_once(cutwheel: ModuleType) -> None:
    done = program(CONV + CALL, CUTWHEEL_LOG="debug")
    assert (done.returncode, written(done)) == (0, [LINE])


@pytest.mark.parametrize("level", ["", "info"])
def test_other_levels_do_not_tell_choices(cutwheel: ModuleType, level: str) -> None:
    done = program(CONV + CALL, CUTWHEEL_LOG=level)
    assert (done.returncode, written(done)) == (0, [])


def test_handlers_of_the_program_come_first(cutwheel: ModuleType) -> None:
    setup = "import logging; logging.basicConfig(format='mine: %(message)s'); "
    done = program(setup + CONV + CALL, CUTWHEEL_LOG="debug")
    assert written(done) == [LINE.replace("cutwheel:", "mine:")]


def test_an_unknown_level_is_refused(cutwheel: ModuleType) -> None:
    done = program("import cutwheel", CUTWHEEL_LOG="verbose")
    assert done.returncode != 0
    assert (
        'ValueError: CUTWHEEL_LOG is "verbose"; expected debug, info, warning, error, or leave it '
        "unset" in done.stderr
    )


def test_the_library_takes_a_listener_and_none(cutwheel: ModuleType) -> None:
    @ctypes.CFUNCTYPE(None, ctypes.c_char_p)
    def listen(text: bytes) -> None:
        raise AssertionError

    address = ctypes.cast(listen, ctypes.c_void_p).value
    torch.ops.cutwheel._set_choice_listener(address)
    torch.ops.cutwheel._set_choice_listener(0)


def test_calls_of_torch_are_told_with_the_reason(
    cutwheel: ModuleType, log: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    try:
        a = torch.empty(4, 8, device="meta")
        for _ in range(2):
            cutwheel.mm(a, a.t())
            cutwheel.linear(a, a)
        cutwheel.mm(a[:2], a.t())
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    because = "by torch: the operands have dtype float32, and torch's setting for matrix products"
    assert [text.partition(" forbids")[0] for text in told(caplog)] == [
        f"mm float32 [4, 8]: {because}",
        f"linear float32 [4, 8]: {because}",
        f"mm float32 [2, 8]: {because}",
    ]


@pytest.mark.parametrize("op", ["conv2d", "conv3d", "conv_transpose2d", "mm"])
def test_transforms_are_told(
    cutwheel: ModuleType, log: ModuleType, caplog: pytest.LogCaptureFixture, op: str
) -> None:
    dims = {"mm": 0, "conv3d": 3}.get(op, 2)
    a = torch.empty(8, 8, *(1,) * dims, device="meta", dtype=torch.bfloat16)
    function = getattr(cutwheel, op)
    torch.func.jvp(lambda x: function(x, a), (a,), (a,))
    assert [text.partition(" bfloat16")[0] for text in told(caplog)] == [op]
    assert "a transform of torch.func" in told(caplog)[0]


def test_traced_calls_are_told_in_one_graph(
    cutwheel: ModuleType, log: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.empty(1, 8, 4, 4, device="meta", dtype=torch.float64)

    @torch.compile(backend="eager", fullgraph=True)
    def traced(x: torch.Tensor) -> torch.Tensor:
        return cutwheel.conv2d(x, x.new_empty(8, 8, 1, 1))

    traced(x)
    assert [text.partition(":")[0] for text in told(caplog)] == ["conv2d"]


@needs_all
def test_a_choice_is_one_line(log: ModuleType) -> None:
    found = explain(H200, 4096, 4096, 4096)
    chosen = found["plans"][0]
    text = log.choice_text(
        {"op": "mm", "request": found["request"], "plan": chosen, "choice": found["choice"]}
    )
    assert text.startswith(
        f"mm M=4096 N=4096 K=4096 dtype=bf16 out_dtype=bf16 layout=tnt: {chosen['row']} (raster "
    )
    assert text.endswith(f" us, {found['choice']})")
    assert ("splits" in text) == (chosen["splits"] > 1)


def test_what_is_unusual_of_a_problem_is_told(log: ModuleType) -> None:
    usual = {"m": 1, "n": 2, "k": 3, **dict(log._USUAL)}
    assert log.problem_text(usual) == "M=1 N=2 K=3"
    unusual = usual | {"batch": 4, "unaligned": "a", "layout": None, "batch_invariant": True}
    assert log.problem_text(unusual) == "M=1 N=2 K=3 batch=4 unaligned=a batch_invariant=True"


def test_a_kernel_that_is_no_choice_is_told(log: ModuleType, caplog: Any) -> None:
    text = {"op": "quantize", "request": {"m": 8, "n": 1, "k": 64}, "plan": {"row": "name"}}
    log._hear(json.dumps(text).encode())
    assert told(caplog) == ["quantize M=8 N=1 K=64: name"]
