"""tools/tuning/compare.py, on journals whose times are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import compare
import pytest

journals = pytest.importorskip("cutwheel.tuning.journal", reason="needs the built package")
from cutwheel.tuning.table import Gpu, Request  # noqa: E402

GPU = Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 3352.3, 1.98, 52428800)
SAME = {f"gemm_tile_{i}": 10.0 + i for i in range(6)}
REQUEST = Request("gemm", "bf16", "bf16", "tn", 1, 1, 1)


def written(path: Path, jobs: Mapping[str, Mapping[str, float]], driver: str = "580") -> Path:
    setup = journals.Setup(GPU, "0.1.0", "digest", driver, "2.11.0")
    journal = journals.open_journal(path, setup)
    for job, times in jobs.items():
        plans = [journals.Candidate(row, "along_m", 1, 1, us, us) for row, us in times.items()]
        # A second raster order that is slower, and one plan that is wrong, however fast.
        plans += [replace(plans[0], swizzle=2, us=plans[0].us * 2)]
        plans += [journals.Candidate("gemm_wrong", "along_m", 1, 1, 1.0, 1.0, "wrong")]
        journal.add(journals.Record(job, job.split()[0], REQUEST, "", None, tuple(plans)))
    return path


def test_a_warm_gpu_is_taken_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"mm:bf16:plain 1x2x3": {**SAME, "gemm_turns": 9.0}}
    warm = {name: us * 1.05 for name, us in {**SAME, "gemm_turns": 9.0 * 0.8}.items()}
    old = written(tmp_path / "old.jsonl", before)
    new = written(tmp_path / "new.jsonl", {"mm:bf16:plain 1x2x3": warm})
    out = tmp_path / "result.json"
    arguments = [
        "--before",
        str(old),
        "--since",
        str(new),
        "--changed",
        "*_turns",
        "--out",
        str(out),
    ]
    assert compare.main(arguments) == 0
    text = capsys.readouterr().out
    assert "9.0 to 7.6 us, gemm_turns; 0.800 (unchanged kernels 1.050, 6)" in text
    assert "gemm_turns: 0.800 (0.800 to 0.800; 1)" in text
    result = json.loads(out.read_text())
    assert result["gpu"] == GPU.name
    assert result["columns"] == list(compare.COLUMNS)
    assert result["rows"] == [
        ["mm:bf16:plain", "1x2x3", "gemm_turns", 9.0, "gemm_turns", 7.6, 1.05]
    ]


def test_the_median_of_runs_counts_and_changed_kernels_follow_the_fastest(tmp_path: Path) -> None:
    runs = [
        written(tmp_path / f"old{i}.jsonl", {"mm 1x1x1": {**SAME, "gemm_turns": us}})
        for i, us in enumerate((30.0, 20.0, 70.0))
    ]
    times = compare.times_of(journals.read(path) for path in runs)
    assert times["mm 1x1x1"]["gemm_turns", 1] == 30.0
    (found,) = compare.compare(
        times, {"mm 1x1x1": {**times["mm 1x1x1"], ("gemm_turns", 1): 15.0}}, ["*turns"]
    )
    assert (found.before, found.since) == ((("gemm_tile_0", 1), 10.0), (("gemm_tile_0", 1), 10.0))
    assert found.ratio == pytest.approx(1.0)
    assert [row[2:6] for row in compare.rows_of([found])] == [
        ["gemm_tile_0", 10.0, "gemm_tile_0", 10.0],
        ["gemm_turns", 30.0, "gemm_turns", 15.0],
    ]


def test_too_few_controls_make_no_ratio(tmp_path: Path) -> None:
    few = {("gemm_tile", 1): 10.0, ("gemm_turns", 4): 5.0}
    (found,) = compare.compare({"mm 1x1x1": few}, {"mm 1x1x1": few}, ["gemm_turns"])
    assert found.ratio is None
    lines = compare.summary([found])
    assert lines[0] == (
        "mm 1x1x1: 5.0 to 5.0 us, gemm_turns /4; 1 unchanged kernels are too few to compare with"
    )


@pytest.mark.parametrize(
    ("jobs", "driver", "changed", "words"),
    [
        ({"mm 9x9x9": SAME}, "580", "gemm_tile_0", "no problem in common"),
        ({"mm 1x1x1": SAME}, "580", "gemm_til", "--changed gemm_til: no kernel"),
        ({"mm 1x1x1": SAME}, "590", "gemm_tile_0", "unlike machines"),
    ],
)
def test_what_says_nothing_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    jobs: Mapping[str, Mapping[str, float]],
    driver: str,
    changed: str,
    words: str,
) -> None:
    old = written(tmp_path / "old.jsonl", {"mm 1x1x1": SAME})
    new = written(tmp_path / "new.jsonl", jobs, driver)
    arguments = ["--before", str(old), "--since", str(new), "--changed", changed]
    assert compare.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_no_journal_is_an_error_not_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_text("no journal\n")
    assert compare.main(["--before", str(path), "--since", str(path), "--changed", "*"]) == 2
