"""Rows and sections of a results file, made up."""

from __future__ import annotations

from typing import Any

ENVIRONMENT = {
    "gpu": "NVIDIA H200",
    "torch": "2.11.0",
    "cuda": "13.0",
    "driver": "580.1",
    "cutwheel": {"version": "0.1.0"},
    "commit": "0123456789abcdef",
    "date": "2026-01-01T00:00:00+00:00",
}


def times(median: float) -> dict[str, float]:
    return {"median": median, "p20": median * 0.99, "p80": median * 1.01}


def row(group: str, us: dict[str, float], m: int = 48, **changed: Any) -> dict[str, Any]:
    """us: by provider, ours last"""
    *baselines, ours = us
    providers = {
        name: {"relative_error": 2e-3, "worst_error": 1e-2, "us": times(value)}
        | {"tflops": 1000.0 / value, "gbs": 900.0}
        for name, value in us.items()
    }
    ratios = [{"side": ours, "baseline": name, **times(us[name] / us[ours])} for name in baselines]
    made = {
        "group": group,
        "m": m,
        "n": 160,
        "k": 512,
        "status": "ok",
        "reason": "",
        "kernels": {ours: f"kernel_{m}"},
        "ratios": ratios,
        "flops_per_byte": 100.0,
        "sides": providers,
        "slots": 5,
        "iterations": 100,
        "rounds": 25,
    }
    return made | changed


def unmeasured(group: str, status: str, reason: str, **changed: Any) -> dict[str, Any]:
    empty = {"ratios": [], "sides": {}, "kernels": {}, "flops_per_byte": None}
    made = {"group": group, "m": 3, "n": 5, "k": 7, "status": status, "reason": reason}
    return made | empty | {"slots": 0, "iterations": 0, "rounds": 0} | changed


def cpu(case: str, torch_us: float, ours_us: float) -> dict[str, Any]:
    made = {"case": case, "status": "ok", "reason": "", "ratio": torch_us / ours_us}
    return made | {"us": {"torch": times(torch_us), "cutwheel": times(ours_us)}}


def first_call(torch_ms: float, ours_ms: float) -> dict[str, Any]:
    def phases(first: float) -> dict[str, float]:
        return {"import": 0.5, "context": 200.0, "first": first, "again": 0.1}

    made = {"case": "mm", "status": "ok", "reason": "", "rounds": 3}
    made |= {"ms": {"torch": phases(torch_ms), "cutwheel": phases(ours_ms)}}
    return made | {"mib": {"torch": 30.0, "cutwheel": 4.0}, "ratio": torch_ms / (0.5 + ours_ms)}


def section(rows: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    made = {"candidate": "cutwheel", "environment": ENVIRONMENT, "dtype": "bf16"}
    return made | changed | {"results": rows}
