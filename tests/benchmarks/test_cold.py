"""Cold start: the processes, the rounds, and what becomes of the answers. On the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("cutwheel")  # the suites import it

from result_rows import section

from benchmarks import first_call
from benchmarks.report import performance, record, tables
from benchmarks.suites import cold

SMALL = """
import json, sys, torch
sys.argv = ["first_call.py", "cpu"]
sys.path.insert(0, {folder!r})
import first_call
small = lambda device: (torch.ones(4, 4), torch.ones(4, 4))
first_call.OPERANDS["mm"] = small
{more}
first_call.main()
"""


def answers(*requests: tuple[str, str], more: str = "") -> list[dict[str, Any]]:
    """Of first_call.py with small operands."""
    lines = [json.dumps({"provider": p, "operation": o}) for p, o in requests]
    code = SMALL.format(folder=str(cold.SCRIPT.parent), more=more)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_request_has_a_process_of_its_own() -> None:
    count = "calls = []\nopens = lambda a, b: open(f'no file {len(calls)}')\n"
    count += "first_call._calls = lambda _: calls.append(1) or {'mm': opens}"
    found = answers(("torch", "mm"), ("torch", "mm"), more=count)
    assert [each["error"].endswith("'no file 1'") for each in found] == [True, True]
    [found] = answers(("torch", "mm"), more="torch.mm = lambda a, b: a @ b")
    keys = ["again", "context", "first", "import", "used_after", "used_before"]
    assert sorted(found) == keys
    assert all(found[key] > 0.0 for key in keys[:4])


def test_a_call_that_fails_is_told() -> None:
    wrong = "mm = {'torch': lambda a, b: a @ b, 'cutwheel': lambda a, b: a}\n"
    wrong += "first_call._calls = lambda provider: {'mm': mm[provider]}\n"
    [found, good] = answers(("cutwheel", "mm"), ("torch", "mm"), more=wrong)
    assert found == {"error": "ValueError: the result differs from torch's, relative error 7.5e-01"}
    assert "first" in good
    [found] = answers(("torch", "mm"), more="first_call._calls = lambda _: {'mm': 1}")
    assert found == {"error": "TypeError: 'int' object is not callable"}
    abort = "first_call._calls = lambda _: first_call.os.abort()"
    [found] = answers(("torch", "mm"), more=abort)
    assert found == {"error": "the process ended with -6"}


def test_a_call_that_hangs_is_ended() -> None:
    hang = "first_call.LIMIT = 1\nimport time\nfirst_call._calls = lambda _: time.sleep(30)"
    [found] = answers(("torch", "mm"), more=hang)
    assert found == {"error": "the process ended with -14"}


def answered(provider: str, first: float, **changed: Any) -> dict[str, Any]:
    used = {"used_before": 100 << 20, "used_after": (110 if provider == "torch" else 104) << 20}
    seconds = {"import": 0.3 * (provider == "cutwheel"), "context": 0.2, "first": first, "again": 0}
    return {"provider": provider, "operation": "mm", **seconds, **used, **changed}


def test_rounds_alternate_and_leave_out_the_first() -> None:
    asked: list[tuple[str, str]] = []
    time = 0.0

    def ask(provider: str, operation: str) -> dict[str, Any]:
        nonlocal time
        asked.append((provider, operation))
        time += 1.0
        return {"first": time}

    each = len(first_call.OPERANDS) * len(first_call.PROVIDERS)
    found = cold.rounds(ask, 4.0 * each, lambda: time)
    assert len(asked) == 4 * each
    assert len(found) == 3 * each
    assert asked[:2] == [("torch", "mm"), ("cutwheel", "mm")]
    assert found[0]["first"] == each + 1
    asked.clear()
    assert len(cold.rounds(ask, 0.0, lambda: time)) == each, "one at least"


def test_a_row_has_medians_and_memory_beyond_torchs_context() -> None:
    given = [answered("torch", s) for s in (0.6, 0.4, 9.0)]
    given += [answered("cutwheel", s, used_before=103 << 20) for s in (0.1, 0.2, 0.05)]
    given.append({"provider": "torch", "operation": "conv2d", "error": "RuntimeError: no"})
    row = cold.row("mm", given)
    assert row["ratio"] == pytest.approx(0.6 / (0.3 + 0.1))
    assert row["mib"] == {"torch": 10.0, "cutwheel": 4.0}
    assert (row["status"], row["rounds"]) == ("ok", 3)
    failed = cold.row("conv2d", given)
    assert (failed["status"], failed["reason"]) == ("failed", "torch: RuntimeError: no")

    made = record.plain(section([row, failed]))
    text = tables.markdown("cold", made)
    assert "| mm | 600 | 300 | 100 | 0 | 1.50 | 10 | 4 |" in text
    assert "FAILED conv2d: torch: RuntimeError: no" in text
    page = performance.document(
        [{"schema": record.SCHEMA, "gpu": "NVIDIA H200", "sections": {"cold": made}}]
    )
    assert "### First call of a process" in page
    assert "| mm | 600 | 300 | 100 | 0 | 1.50 | 10 | 4 |" in page


def test_calls_without_a_gpu_fail_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real processes: torch's calls run on the CPU, and cutwheel refuses."""
    monkeypatch.setattr(cold, "OPERANDS", {"grouped_mm": first_call.OPERANDS["grouped_mm"]})
    [row] = cold.measure(quick=True, device="cpu")
    assert row["status"] == "failed"
    assert row["reason"].startswith("cutwheel: NotImplementedError: grouped_mm: the tensors are on")


def test_a_process_that_does_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(cold, "SCRIPT", tmp_path / "gone.py")
    rows = cold.measure(quick=True, device="cpu")
    assert {row["reason"] for row in rows} == {"torch: gone.py has ended; its message is above"}
