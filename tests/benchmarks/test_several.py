"""The benchmark of several GPUs: on CPUs with reference kernels, and its launcher alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.slow,  # the processes are
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this torch has no torch.distributed"
    ),
]

HERE = Path(__file__).parent
SLOW = "600"  # seconds, where nothing is to be waited for


def options(*arguments: str) -> argparse.Namespace:
    from benchmarks import cli

    return cli.parser().parse_args(["several", *arguments])


# ---- all of it, by gloo
@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """The exit status and the sections."""
    import cutwheel
    from benchmarks.report import record
    from benchmarks.several import launch, problems

    out = tmp_path_factory.mktemp("several") / "cpu.json"
    folders = (Path(str(cutwheel.__file__)).parents[1], HERE.parents[1], HERE.parent / "python")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
        status = launch.measure(
            [sys.executable, str(HERE / "several_on_cpu.py")],
            2,
            [*problems.SECTIONS, "faults"],
            options("--budget-seconds", SLOW, "--stall-seconds", SLOW, "--out", str(out)),
        )
    return status, record.read(out)["sections"]


def test_every_problem_is_measured(
    cutwheel: ModuleType, measured: tuple[int, dict[str, Any]]
) -> None:
    from benchmarks.several import SECTIONS, faults, problems

    assert (*problems.SECTIONS, "faults") == SECTIONS
    status, sections = measured
    rows = [(name, row) for name, section in sections.items() for row in section["results"]]
    bad = [(name, row) for name, row in rows if row["status"] != "ok"]
    assert not [f"{name} {row['group']}: {row['reason']}" for name, row in bad]
    assert status == 0
    assert [*sections] == [*sorted(sections)]
    assert {*sections} == {*problems.SECTIONS, "faults"}
    assert [row["case"] for row in sections["faults"]["results"]] == [*faults.FAULTS]
    assert all(section["environment"]["gpus"] == 2 for section in sections.values())


def test_sides_are_compared_with_torchs(
    cutwheel: ModuleType, measured: tuple[int, dict[str, Any]]
) -> None:
    """Each with an error that a rounding to bfloat16 makes, and a ratio that its times give."""
    _, sections = measured
    ours: dict[str, set[str]] = {}
    for name, section in sections.items():
        for row in section["results"]:
            for side in row["sides"].values():
                assert 0 < side["relative_error"] < 2e-2
                assert side["us"]["median"] > 0
            for ratio in row["ratios"]:
                times = (row["sides"][ratio[side]]["us"]["median"] for side in ("baseline", "side"))
                theirs, own = times
                assert ratio["median"] == pytest.approx(theirs / own, rel=1e-4)
                ours.setdefault(name, set()).add(f"{ratio['side']} to {ratio['baseline']}")
    overlapping = {"cutwheel, overlapping to torch"}
    assert ours["tensor_parallel"] == {"cutwheel to torch"} | overlapping
    assert ours["expert_parallel"] == {"cutwheel to torch", "cutwheel, all_gather to torch"}
    # torch's fused ops need GPUs.
    assert ours["overlap"] == {f"cutwheel to {name}, in sequence" for name in ("cutwheel", "torch")}
    assert len(ours["sms"]) == 3


def test_a_process_that_raises_ends_the_others(
    cutwheel: ModuleType, measured: tuple[int, dict[str, Any]]
) -> None:
    """By the error of gloo, whose peer is gone."""
    for row in measured[1]["faults"]["results"]:
        assert row["statuses"][0] == 3
        assert row["statuses"][1] not in (0, 3)
        assert row["raised"].startswith("raised ")
        assert "Connection" in row["ended"] or "closed" in row["ended"], row["ended"]


def test_the_summary_has_every_problem(
    cutwheel: ModuleType, measured: tuple[int, dict[str, Any]]
) -> None:
    from benchmarks.report import several_gpus, tables

    _, sections = measured
    text = several_gpus.summary(sections)
    for name, section in sections.items():
        assert "results" in section
        assert tables.markdown(name, section)
        for row in section["results"]:
            assert f"{name} {row.get('case') or row['group']}" in text
    lines = several_gpus.figures([{"sections": sections}]).splitlines()
    ratios = [
        ratio
        for section in sections.values()
        for row in section["results"]
        for ratio in row["ratios"]
    ]
    assert len(lines) == len(ratios) + 4


def test_the_committed_document_has_the_committed_figures(cutwheel: ModuleType) -> None:
    """After a change of the results: python -m benchmarks report"""
    from benchmarks.report import record, several_gpus

    text = several_gpus.DOCUMENT.read_text()
    assert several_gpus.document(text, several_gpus.results()) == text
    for path in several_gpus.FOLDER.glob("*.json"):
        found = record.read(path)
        assert path.stem.startswith(f"{record.device_slug(found['gpu'])}_x")
        for section in found["sections"].values():
            assert section["environment"]["commit"]


# ---- one process
@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from benchmarks.several.team import Team

    own = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    team = Team.join("cpu", 60, is_small=True)
    yield team
    team.leave()


def contest(**changed: Any) -> Any:
    """A case of torch and cutwheel, whose results are 1 and a little."""
    from cutwheel.tuning.case import Case, Provider
    from cutwheel.tuning.measure import Error

    x = torch.ones(4, 8)
    sides = {"torch": lambda _: x * 1.001, "cutwheel": lambda _: x * 1.002} | changed
    providers = [Provider(name.replace("_", " "), call) for name, call in sides.items()]
    pairs = [(name.replace("_", " "), "torch") for name in sides if name != "torch"]
    return Case(providers, 1, lambda _: x, Error(1e-2, 1e-2), pairs=pairs)


def outcome(team: Any, case: Any) -> Any:
    from benchmarks.several.timing import Limits, Timer, compare

    (found,) = compare(team, case, Limits(1e-4, 3, 4), {"": Timer(team, True)})
    return found


def refuse(_: int) -> torch.Tensor:
    raise RuntimeError("no kernel")


def test_right_results_are_timed(cutwheel: ModuleType, team: Any) -> None:
    found = outcome(team, contest())
    assert found.status == "ok"
    assert {*found.times} == {*found.errors} == {"torch", "cutwheel"}
    assert found.errors["cutwheel"].relative == pytest.approx(2e-3, rel=1e-2)
    assert found.ratios["cutwheel", "torch"].median > 0


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda _: torch.full((4, 8), 1.2), "wrong result, relative error 2.0e-01"),
        (lambda _: torch.full((4, 8), float("nan")), "wrong result, relative error nan"),
        (refuse, "RuntimeError: no kernel"),
    ],
)
def test_a_wrong_side_is_no_time(cutwheel: ModuleType, team: Any, call: Any, reason: str) -> None:
    """The case has failed; what is right in it is timed all the same."""
    found = outcome(team, contest(other_one=call))
    assert found.status == "failed"
    assert found.reason.startswith(f"other one: {reason}")
    assert {*found.times} == {"torch", "cutwheel"}
    assert {*found.ratios} == {("cutwheel", "torch")}


def test_nothing_is_timed_without_a_baseline(cutwheel: ModuleType, team: Any) -> None:
    found = outcome(team, contest(torch=refuse))
    assert found.status == "failed"
    assert not found.times


def test_what_a_call_leaves_unwritten_is_seen(cutwheel: ModuleType, team: Any) -> None:
    """Memory that holds the right values from the call before."""
    kept = torch.ones(4, 8)

    def lazy(_: int) -> torch.Tensor:
        kept[:2] = 1.0
        return kept

    found = outcome(team, contest(cutwheel=lazy))
    assert found.reason.startswith("cutwheel: wrong result, relative error nan")


# ---- the launcher, with processes that measure nothing
ACTOR = """
import json, os, sys, time
journal, names = sys.argv[sys.argv.index("--journal") + 1 :][0], sys.argv[3:]
def wait(name):
    while name not in open(journal).read():
        time.sleep(0.01)
def write(**event):
    if os.environ["RANK"] == "0":
        with open(journal, "a") as file:
            file.write(json.dumps(event) + chr(10))
write(environment={"gpu": "Actor", "driver": 1, "torch": 2, "cuda": 3, "date": 4})
for name in names:
    write(begins=name)
    if "reduce_scatter" in name and os.environ["RANK"] == "1":
        wait(name)
        {deed}
    elif "reduce_scatter" in name:
        time.sleep(600)
    row = {"group": name, "m": 1, "n": 1, "k": 1, "status": "ok", "reason": "", "ratios": []}
    row |= {"sides": {}, "kernels": {}, "flops_per_byte": None}
    write(ended=name, rows=[row], seconds=0.1)
"""


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("time.sleep(600)", "did not end within 8 s"),
        ("sys.exit('a bad end')", "process 1 ended with 1: a bad end"),
    ],
)
def test_a_problem_that_does_not_end_is_left(
    cutwheel: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    deed: str,
    reason: str,
) -> None:
    """The others are measured, in new processes."""
    from benchmarks.several import launch, problems

    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.5)
    script = tmp_path / "actor.py"
    script.write_text(ACTOR.replace("{deed}", deed))
    out = tmp_path / "out.json"
    given = options("--stall-seconds", "8", "--budget-seconds", SLOW, "--out", str(out))
    command = [sys.executable, str(script)]
    assert launch.measure(command, 2, ["overlap"], given) == 1
    rows = json.loads(out.read_text())["sections"]["overlap"]["results"]
    states = {row["group"]: (row["status"], row["reason"]) for row in rows}
    names = [*problems.tasks(["overlap"])]
    lost = [name for name in names if "reduce_scatter" in name]
    assert lost
    assert {name for name, (status, _) in states.items() if status == "ok"} == {*names} - {*lost}
    # Rows that a process has not made have the group of the problem.
    assert [row for row in states.items() if row[1][0] != "ok"] == [
        ("reduce_scatter", ("failed", reason))
    ]
    assert len(rows) == len(names)


def test_the_time_is_kept(cutwheel: ModuleType) -> None:
    from benchmarks.several import problems
    from benchmarks.several.launch import Launch

    launch = Launch(["no such program"], 2, time.monotonic() - 1)
    launch.measure([*problems.tasks(["overlap"])], lambda: None)
    rows = [row for found in launch.found.values() for row in found]
    assert len(rows) == len(problems.SECTIONS["overlap"])
    assert {(row["status"], row["reason"]) for row in rows} == {("skipped", "the time was used up")}


def test_one_gpu_is_too_few(
    cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import cli

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert cli.main(["several"]) == 2
    assert "needs two GPUs or more, and finds 1" in capsys.readouterr().err
