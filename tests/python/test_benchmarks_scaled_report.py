"""Tables and plots of the scaled benchmarks, from made-up results: no GPU is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import __main__ as cli
from benchmarks import record, report, scaled_report
from benchmarks.scaled_jobs import DTYPE, FASTER

MODES = ("torch tensorwise", "torch rowwise")


def times(median: float) -> dict[str, float]:
    return {"median": median, "p20": median * 0.99, "p80": median * 1.01}


def made_up(group: str, m: int, us: dict[str, float], **changed: Any) -> dict[str, Any]:
    """us: by side, ours last; in fp8 groups it is compared with the faster mode, too"""
    *baselines, ours = us
    ratios = [{"side": ours, "baseline": name, **times(us[name] / us[ours])} for name in baselines]
    if group.startswith("fp8"):
        best = min(ratios, key=lambda ratio: ratio["median"])
        ratios.insert(0, best | {"baseline": FASTER, "mode": best["baseline"]})
    sides = {
        name: {"relative_error": 2e-3, "worst_error": 1e-2, "us": times(value), "tflops": 500.0}
        for name, value in us.items()
    }
    row = {
        "group": group,
        "recipe": "rowwise",
        "m": m,
        "n": 0 if group == "quantize" else 160,
        "k": 512,
        "status": "ok",
        "reason": "",
        "kernels": {ours: f"kernel_{m}"},
        "ratios": ratios,
        "sides": sides,
    }
    return row | changed


def fp8(m: int, tensorwise: float, rowwise: float, ours: float, **changed: Any) -> dict[str, Any]:
    us = dict(zip((*MODES, "ours rowwise"), (tensorwise, rowwise, ours), strict=True))
    return made_up("fp8", m, us, **changed)


def unmeasured(group: str, status: str, reason: str) -> dict[str, Any]:
    empty = {"ratios": [], "sides": {}, "kernels": {}}
    return made_up(group, 256, {"ours": 1.0}, status=status, reason=reason, **empty)


def rows() -> list[dict[str, Any]]:
    block = {"torch 1x128 x 1x128": 30.0, "ours 1x128 x 1x128": 20.0}
    return [
        fp8(48, 30.0, 20.0, 20.0),
        fp8(96, 30.0, 20.0, 40.0),
        fp8(8192, 10.0, 10.0, 10.0, reason="torch rowwise: ValueError: no"),
        made_up("blockwise", 48, block),
        made_up("blockwise", 1, block, ratios=[], reason="torch 1x128 x 1x128: no"),
        made_up("int8", 48, {"_int_mm + scaling": 28.0, "ours": 20.0}),
        made_up("quantize", 48, {"eager": 90.0, "ours": 10.0}),
        unmeasured("int8", "skipped", "takes 90 GB"),
        unmeasured("quantize", "failed", "ours: wrong result"),
    ]


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "schema": record.SCHEMA,
        "benchmark": "scaled",
        "candidate": "ours",
        "dtype": DTYPE,
        "environment": {
            "gpu": "NVIDIA H200",
            "torch": "2.11.0",
            "cuda": "13.0",
            "driver": "580.1",
            "cutwheel": {"version": "0.1.0"},
            "commit": "0123456789abcdef",
            "date": "2026-01-01T00:00:00+00:00",
        },
        "results": rows,
    }


def test_summary() -> None:
    summary = scaled_report.summarize(rows())
    assert (summary["cases"], summary["ok"], summary["failed"], summary["skipped"]) == (9, 7, 1, 1)
    assert summary["without_baseline"] == 1
    lines = {(line["group"], line["side"], line["baseline"]): line for line in summary["lines"]}
    line = lines["fp8", "ours rowwise", FASTER]
    assert line["shapes"] == 3
    assert line["geomean"] == pytest.approx(0.5 ** (1 / 3))
    assert (line["worst"], line["worst_shape"]) == (pytest.approx(0.5), "96 x 160 x 512")
    assert line["worst_kernel"] == "kernel_96"
    assert (line["goal"], line["worst_goal"], line["small_goal"]) == (1.0, 0.85, 1.0)
    assert line["below"] == 1
    assert line["small"] == pytest.approx(1.0)
    assert line["per_m"] == pytest.approx({"48": 1.0, "96": 0.5, "8192": 1.0})
    assert lines["fp8", "ours rowwise", MODES[0]]["goal"] is None
    assert lines["int8", "ours", "_int_mm + scaling"]["goal"] == 1.4
    assert lines["blockwise", "ours 1x128 x 1x128", "torch 1x128 x 1x128"]["goal"] == 1.0
    assert lines["quantize rowwise", "ours", "eager"]["goal"] is None
    json.dumps(summary, allow_nan=False)


def test_tables() -> None:
    text = report.markdown(result(rows()))
    assert f"fp8: ours rowwise to {FASTER} | 3 | **0.794 (1.00)** | 1.000 (1.00)" in text
    assert "0.500 (0.85) at 96 x 160 x 512 | 1 |" in text
    assert "| torch rowwise | 20.0 | 40.0 | 500 | 2.0e-03 | kernel_96 |" in text
    assert "FAILED quantize rowwise 256 x 512: ours: wrong result" in text
    assert "SKIPPED 1" in text
    assert "WITHOUT fp8: torch rowwise: ValueError: no (1 shapes, such as 8192 x 160 x 512)" in text
    assert "1 without a baseline" in text


def test_a_report_without_measurements() -> None:
    late = [unmeasured("int8", "skipped", "late")]
    assert "0 ok, 0 failed, 1 skipped" in report.markdown(result(late))


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "r.json"
    path.write_text(json.dumps(record.finite(result(rows()))))
    assert cli.main(["report", str(path)]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
