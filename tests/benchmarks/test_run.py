"""From problems to a results file, with everything of CUDA made up."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from result_rows import ENVIRONMENT, cpu, first_call
from synthetic_clock import SyntheticClock

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from benchmarks import cli, problems, run
from benchmarks.compare import Limits
from benchmarks.problems import Problem
from benchmarks.report import performance, record
from benchmarks.suites import Suite, fused, scaled
from cutwheel.tuning.case import Case, Provider, SkippedError
from cutwheel.tuning.measure import Error, Operands
from cutwheel.tuning.shapes import Gemm

SHAPE = Gemm(48, 40, 64)


def parsed(*arguments: str) -> argparse.Namespace:
    return cli.parser().parse_args(list(arguments))


# --- runs


def small_case(setting: Any) -> Case:
    x = [torch.randn(6, 8) for _ in range(3)]
    scale = 3.0 if setting.shape.m == 13 else 2.0
    providers = (
        Provider("torch", lambda i: 2 * x[i]),
        Provider("cutwheel", lambda i: scale * x[i]),
    )
    return Case(providers, 3, lambda i: 2 * x[i], Error(1e-5, 1e-4), 100, 10)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two listed shapes and a drawn one for each section; the folder of the results."""
    groups = {"conv": "fprop", "grouped": "forward", "scaled": "int8", "fused": "bias_gelu"}

    def of_section(name: str, given: Any) -> problems.Problems:
        shape = Gemm(*map(int, given.shape[0].split("x"))) if given.shape else Gemm(4, 8, 8)
        one = Problem(groups.get(name, name), shape)
        if name in record.OF_CALLS:
            return problems.Problems([])
        return problems.Problems([one, one], [one] * bool(given.drawn))

    def suite_of(op: str) -> Suite:
        hosts = (lambda device: []) if op in ("conv", "host") else None
        alone = (lambda quick: [first_call(10.0, 8.0)]) if op == "cold" else None
        made = {groups.get(op, op): small_case}
        return Suite(made, Limits(), "bf16", host=hosts, alone=alone)

    def environment(commit: str | None, provider: str) -> dict[str, Any]:
        return ENVIRONMENT | {"commit": commit}

    monkeypatch.setattr(problems, "of_section", of_section)
    monkeypatch.setattr(run, "suite_of", suite_of)
    monkeypatch.setattr(run, "operands_of", lambda dtype: Operands(torch.device("cpu"), 1000))
    monkeypatch.setattr(run.Run, "clock", lambda self: SyntheticClock(3e-5, 2e-5))
    monkeypatch.setattr(run, "compare_on_host", lambda *_: [cpu("conv2d", 5.0, 4.0)])
    monkeypatch.setattr(run, "keep_caches_in_tmpdir", lambda: None)
    monkeypatch.setattr(record, "environment", environment)
    monkeypatch.setattr(cli, "write_documents", lambda: None)
    monkeypatch.setattr(record, "FOLDER", tmp_path / "results")
    return tmp_path / "results"


def test_all_sections_are_of_one_run(on_cpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["all", "--drawn", "--commit", "aaa"]) == 0
    found = record.read(on_cpu / "h200.json")
    assert list(found["sections"]) == list(record.SECTIONS)
    origins = {str(each["environment"]) for each in found["sections"].values()}
    assert len(origins) == 1
    rows = found["sections"]["grouped"]["results"]
    assert [row.get("drawn", False) for row in rows] == [False, False, True]
    assert found["sections"]["mm"]["drawn"] == {"seed": problems.SEED, "cases": 1}
    assert all("part" not in each for each in found["sections"].values())
    assert found["sections"]["mm"]["dtype"] == "bf16"
    assert found["sections"]["conv"]["host"] == [record.plain(cpu("conv2d", 5.0, 4.0))]
    assert found["sections"]["host"]["results"] == found["sections"]["conv"]["host"]
    assert "dtype" not in found["sections"]["host"]
    assert found["sections"]["cold"]["results"] == [record.plain(first_call(10.0, 8.0))]
    assert [name for name, each in found["sections"].items() if "compile" in each] == [
        "mm",
        "fused",
        "scaled",
        "models",
    ]
    assert [path.name for path in on_cpu.iterdir()] == ["h200.json"]
    captured = capsys.readouterr()
    assert "[mm 1/3 " in captured.err
    assert " s left of all] mm 4 x 8 x 8: torch 1.500" in captured.err
    assert performance.document([found]).count("One run: ") == 1


def test_torch_in_our_place(on_cpu: Path, tmp_path: Path) -> None:
    out = tmp_path / "noise.json"
    assert cli.main(["mm", "--candidate", "torch", "--out", str(out)]) == 0
    found = record.read(out)["sections"]["mm"]
    assert (found["candidate"], found["part"]) == ("torch (again)", "--candidate")
    assert [row["ratios"][0]["side"] for row in found["results"]] == ["torch (again)"] * 2
    assert cli.main(["cold", "--candidate", "torch", "--out", str(out)]) == 0
    assert record.read(out)["sections"]["cold"]["results"] == [], "torch imports nothing"


def test_one_section_keeps_the_others(on_cpu: Path) -> None:
    cli.main(["all", "--commit", "aaa"])
    assert cli.main(["conv", "--commit", "bbb"]) == 0
    found = record.read(on_cpu / "h200.json")["sections"]
    commits = {name: each["environment"]["commit"] for name, each in found.items()}
    assert commits == dict.fromkeys(record.SECTIONS, "aaa") | {"conv": "bbb"}


def test_parts_and_failures(on_cpu: Path, tmp_path: Path) -> None:
    out = tmp_path / "part.json"
    assert cli.main(["mm", "--shape", "13x8x8", "--out", str(out)]) == 1
    found = record.read(out)["sections"]["mm"]
    assert found["part"] == "--shape"
    assert {row["status"] for row in found["results"]} == {"failed"}
    assert not on_cpu.exists()


def test_an_interrupted_section_leaves_what_it_has(
    on_cpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["mm", "--commit", "aaa"])
    monkeypatch.setattr(run, "SAVE_SECONDS", -1.0)
    tell = run.Run._tell

    def interrupt(self: Any, name: str, problem: Any, rows: Any, *rest: Any) -> None:
        if len(rows) == 2:
            raise KeyboardInterrupt
        tell(self, name, problem, rows, *rest)

    monkeypatch.setattr(run.Run, "_tell", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["mm", "--commit", "bbb"])
    whole = record.read(on_cpu / "h200.json")["sections"]["mm"]
    assert (whole["environment"]["commit"], len(whole["results"])) == ("aaa", 2)
    left = record.read(on_cpu / "h200.unfinished")["sections"]["mm"]
    assert (left["part"], len(left["results"])) == ("unfinished", 1)


def test_a_run_goes_on_after_a_failure_and_stops_at_its_budget() -> None:
    def make(problem: Problem) -> Case:
        if problem.shape.m == 1:
            raise ValueError("no\nadvice")
        if problem.shape.m == 2:
            raise SkippedError("takes 90 GB")
        if problem.shape.m == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.\nadvice")
        return small_case(problem)

    seen: list[int] = []
    wanted = [Problem("mm", Gemm(m, 1, 1)) for m in range(5)]
    clock = SyntheticClock(1e-3)
    rows = run.measure(wanted, make, clock, Limits(), None, lambda rows: seen.append(len(rows)))
    assert [row["status"] for row in rows] == ["ok", "failed", "skipped", "skipped", "ok"]
    assert [row["reason"] for row in rows[1:4]] == [
        "ValueError: no",
        "takes 90 GB",
        "OutOfMemoryError: CUDA out of memory.",
    ]
    assert [row["m"] for row in rows] == [0, 1, 2, 3, 4]
    assert seen == [1, 2, 3, 4, 5]
    late = run.measure(wanted, make, clock, Limits(), -1.0)
    assert [row["status"] for row in late] == ["skipped"] * 5
    assert "budget of -1 s" in late[0]["reason"]


def test_a_lost_context_skips_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    wanted = [Problem("mm", SHAPE)] * 2

    def make(problem: Problem) -> Case:
        return small_case(problem)

    rows = run.measure(wanted, make, SyntheticClock(1e-3), Limits())
    assert [row["status"] for row in rows] == ["ok", "skipped"]
    assert "broke the CUDA context" in rows[1]["reason"]


def test_allowance_shares_the_budget() -> None:
    limits = Limits(case_seconds=0.8)
    assert run.allowance(None, 100, limits) == 0.8
    assert run.allowance(10.0, 100, limits) == pytest.approx(0.05)
    assert run.allowance(1000.0, 1, limits) == 0.8
    assert run.allowance(0.0, 1, limits) == 0.0


# --- torch.compile


def compiling(at: Any = None) -> run.Compiling:
    return run.Compiling(fused.MODE, problems.COMPILED["fused"], at, 60.0)


@pytest.mark.parametrize(
    ("group", "at", "expected"),
    [
        ("bias_gelu", {SHAPE}, True),
        ("gated_silu", None, True),
        ("bias_residual", set(), False),
        ("training_gelu", None, False),
    ],
)
def test_compile_where_it_is_asked_for(
    group: str, at: Any, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "compiled", lambda function, **_: function)
    operands = Operands(torch.device("cpu"), 8000)
    make = run.maker(fused.SUITE, operands, compiling(at), "cutwheel")
    case = make(Problem(group, SHAPE))
    assert ("compile" in {provider.name for provider in case.providers}) == expected


def test_how_many_shapes_got_a_compile_baseline() -> None:
    rows = [
        {"sides": {"compile": {"us": 1}}, "reason": ""},
        {"sides": {"compile": {"relative_error": 1.0}}, "reason": "compile: wrong result"},
        {"sides": {"eager": {"us": 1}}, "reason": ""},
        {"sides": {}, "reason": ""},
    ]
    wanted = [Problem("gated_silu", shape) for shape in (SHAPE, SHAPE, Gemm(1, 2, 3), SHAPE)]
    found = compiling({SHAPE}).record(wanted, [row | {"group": "gated_silu"} for row in rows])
    assert found == {"mode": fused.MODE, "cases": 4, "asked": 3, "measured": 1}


def test_which_problems_ask_for_torch_compile() -> None:
    def asked(op: str, *arguments: str) -> tuple[int, str]:
        given = parsed(*arguments)
        found = run.compiling_of(op, given, run.suite_of(op).mode)
        assert found is not None
        return sum(map(found.asks, problems.of_section(op, given).all)), found.mode

    assert asked("fused", "fused") == (24, fused.MODE)
    assert asked("fused", "fused", "--no-compile")[0] == 0
    assert asked("scaled", "scaled") == (142, "dynamic=True")
    assert asked("scaled", "scaled", "--quick")[0] == 0
    assert asked("models", "models") == (26, "default")
    assert asked("models", "models", "--no-compile")[0] == 0
    assert asked("mm", "mm") == (4, "max_autotune, Triton alone")
    assert asked("mm", "mm", "--no-compile")[0] == 0
    assert run.compiling_of("mm_f16", parsed("mm", "--dtype", "f16"), "") is None
    assert run.compiling_of("grouped", parsed("grouped"), "") is None
    assert scaled.SUITE.mode == "dynamic=True"


# --- how long it takes


def test_a_whole_run_fits_its_time() -> None:
    """Time that `make bench` is expected to take on an H200, without torch.compile and with it."""
    without = run.planned(record.SECTIONS, parsed("all", "--drawn", "--no-compile"))
    assert sum(seconds for seconds, _ in without.values()) < 13 * 60
    everything = run.planned(record.SECTIONS, parsed("all", "--drawn"))
    assert sum(seconds for seconds, _ in everything.values()) < 42 * 60
    assert everything["fused"][0] > without["fused"][0] + 200
    for name in record.SECTIONS:  # each command has its own options
        assert set(run.planned([name], parsed(name))) == {name}


def test_time_left_follows_the_pace() -> None:
    left = run.TimeLeft({"a": (100.0, 100), "b": (50.0, 5)})
    assert left.after("a", 0, 0.0) == pytest.approx(150.0)
    assert left.after("a", 50, 50.0) == pytest.approx(100.0)
    assert left.after("a", 90, 180.0) == pytest.approx(1.9 * 10 + 50.0)
    assert left.after("b", 5, 70.0) == 0.0
