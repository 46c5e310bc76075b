"""The tuner's journals, its loop over jobs, and reports."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from selection import H200  # noqa: E402

from cutwheel.tuning import cli, jobs, journal, report  # noqa: E402
from cutwheel.tuning.journal import Candidate, Journal, JournalError, Record, Setup  # noqa: E402
from cutwheel.tuning.table import Gpu, Request, parse  # noqa: E402

GPU = Gpu("described", (9, 0), H200.sms, H200.bandwidth, H200.clock, 50 << 20)
SETUP = Setup(GPU, "0.1.0", "digest")


# ---- journals


def a_record(name: str, *candidates: Candidate, **change: Any) -> Record:
    request = Request("gemm", "bf16", "bf16", "tn", len(name), 64, 64, "bf16")
    base = Record(name, "mm:bf16:plain", request, "cost model", ("a", "along_m", 1, 1), candidates)
    return replace(base, **change)


def a_plan(row: str, us: float | None, **change: Any) -> Candidate:
    return replace(Candidate(row, "along_m", 1, 1, 10.0, us), **change)


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "j.jsonl"
    book = journal.open_journal(path, SETUP)
    records = [
        a_record("one", a_plan("a", 3.0), a_plan("b", None, status="wrong", note="why")),
        a_record(
            "two", error="no kernel", dispatch=None, request=replace(a_record("t").request, m=9)
        ),
    ]
    for record in records:
        book.add(record)
    again = journal.open_journal(path, SETUP)
    assert again.records == records
    assert again.setup == SETUP
    assert again.done == {"one", "two"}


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = journal.open_journal(path, SETUP)
    book.add(a_record("one", a_plan("a", 3.0)))
    with path.open("a") as stream:
        stream.write(a_record("two").line()[:40])
    again = journal.open_journal(path, SETUP)
    assert again.done == {"one"}
    again.add(a_record("two"))
    assert journal.read(path).done == {"one", "two"}


@pytest.mark.parametrize(
    ("setup", "what"),
    [
        (replace(SETUP, gpu=replace(GPU, sm_count=114)), "gpu"),
        (replace(SETUP, kernels="other"), "kernels"),
        (replace(SETUP, cutwheel="0.2.0"), "cutwheel"),
    ],
)
def test_a_journal_of_something_else_is_not_continued(
    tmp_path: Path, setup: Setup, what: str
) -> None:
    path = tmp_path / "j.jsonl"
    journal.open_journal(path, SETUP).add(a_record("one"))
    with pytest.raises(JournalError, match=f"has another {what}"):
        journal.open_journal(path, setup)
    assert not journal.open_journal(path, setup, restart=True).records


@pytest.mark.parametrize("text", ["{}\n", "no\nlines\n", '{"journal": 9}\n', "[]\n"])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(text)
    with pytest.raises(JournalError):
        journal.open_journal(path, SETUP)
    assert path.read_text() == text


def test_a_table_keeps_what_is_nearly_as_fast_as_the_best() -> None:
    timed = [
        a_plan("a", 10.0),
        a_plan("a", 10.1, swizzle=2),
        a_plan("a", 10.2, splits=2),
        a_plan("b", 11.4),
        a_plan("quick", 11.0, status="slow"),
        a_plan("c", 11.6),
    ]
    plans = journal.best_plans(timed)
    assert [(plan.row, plan.swizzle, plan.splits) for plan in plans] == [
        ("a", 1, 1),
        ("a", 1, 2),
        ("b", 1, 1),
    ]


def test_a_table_that_is_written_is_read(tmp_path: Path) -> None:
    book = Journal(
        SETUP, [a_record("one", a_plan("a", 3.21049)), a_record("three", a_plan("b", 2))]
    )
    cli.write_table(book, tmp_path / "deep" / "t.json")
    (path,) = (tmp_path / "deep").iterdir()
    text = path.read_text()
    table = parse(json.loads(text), "t.json")
    assert table == replace(
        book.table("t.json"),
        entries=tuple(
            replace(e, plans=tuple(replace(p, us=round(p.us, 3)) for p in e.plans))
            for e in book.table("t.json").entries
        ),
    )
    assert sum('"request"' in line for line in text.splitlines()) == 2, "a line for each entry"


# ---- the loop


def a_job(m: int) -> jobs.Job:
    return jobs.Job(jobs.Family("mm", "bf16", "plain"), (m, 64, 64))


def test_what_the_journal_has_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j.jsonl"
    wanted = [a_job(m) for m in (1, 2, 3, 4)]
    asked: list[jobs.Job] = []

    def one(job: jobs.Job) -> Record:
        asked.append(job)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return a_record(str(job), a_plan("a", 3.0))

    with pytest.raises(KeyboardInterrupt):
        cli.loop(journal.open_journal(path, SETUP), wanted, one, None)
    assert cli.loop(journal.open_journal(path, SETUP), wanted, one, None) == 0
    assert [job.shape[0] for job in asked] == [1, 2, 3, 3, 4]
    out = capsys.readouterr().out
    assert "2 of 4 jobs are in" in out
    assert "[2/2, 0:00 left]" in out


def test_time_that_is_up_begins_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = iter(range(0, 1000, 10))
    book = journal.open_journal(tmp_path / "j.jsonl", SETUP)
    wanted = [a_job(m) for m in range(1, 9)]
    cli.loop(book, wanted, lambda job: a_record(str(job)), 35.0, clock=lambda: float(next(times)))
    assert len(book.done) == 2
    assert "6 jobs are left" in capsys.readouterr().out


def test_a_lost_gpu_ends_the_run_and_the_next_goes_on_behind(tmp_path: Path) -> None:
    book = journal.open_journal(tmp_path / "j.jsonl", SETUP)
    wanted = [a_job(1), a_job(2)]

    def one(job: jobs.Job) -> Record:
        return a_record(str(job), error="AcceleratorError: illegal memory access")

    assert cli.loop(book, wanted, one, None, healthy=lambda: False) == 3
    assert book.done == {str(wanted[0])}


NO_MEMORY = [
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.",
    "AcceleratorError: CUDA error: out of memory",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
]


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_job_that_ran_out_of_memory_is_tried_again(
    tmp_path: Path, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j.jsonl"
    wanted = [a_job(1), a_job(2)]
    asked: list[jobs.Job] = []

    def one(job: jobs.Job) -> Record:
        asked.append(job)
        if len(asked) == 1:
            return a_record(str(job), error=error, dispatch=None)
        return a_record(str(job), a_plan("a", 3.0))

    assert cli.loop(journal.open_journal(path, SETUP), wanted, one, None) == 1
    assert "out of memory in 1 job: the same command tries again" in capsys.readouterr().out
    assert f"- {wanted[0]}: {error}" in report.text_of(journal.read(path))
    assert cli.loop(journal.open_journal(path, SETUP), wanted, one, None) == 0
    assert [job.shape[0] for job in asked] == [1, 2, 1]
    text = report.text_of(journal.read(path))
    assert "Not measured" not in text
    assert "2 jobs, 2 plans measured" in text


def test_a_job_that_no_kernel_serves_is_done(tmp_path: Path) -> None:
    book = journal.open_journal(tmp_path / "j.jsonl", SETUP)
    error = "NotImplementedError: no kernel serves it: needs 228 KiB of shared memory"
    assert cli.loop(book, [a_job(1)], lambda job: a_record(str(job), error=error), None) == 0
    assert book.done == {str(a_job(1))}


def test_without_a_gpu_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    assert cli.run(parser.parse_args(["--shape", "1x2x3"])) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_jobs_are_listed_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    from cutwheel.__main__ import main

    shapes = ("--shape", "1x2x3", "4x5x6", "--shape", "7x8x9")
    assert main(["tune", "--op", "mm", "--dtype", "f16", *shapes, "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == [f"mm:f16:plain {shape}" for shape in ("1x2x3", "4x5x6", "7x8x9")]


# ---- reports


def test_a_report_says_what_dispatch_reaches_and_what_kernels_are_worth(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    book = journal.open_journal(path, SETUP)
    liked = {"predicted_us": 1.0}
    book.add(a_record("j 1", a_plan("a", 10.0, **liked), a_plan("b", 12.0), a_plan("c", 20.0)))
    book.add(a_record("j 2", a_plan("a", 10.0, **liked), a_plan("b", 8.0), a_plan("c", 9.0)))
    book.add(a_record("j 3", a_plan("d", None, status="wrong", note="far off")))
    (family,) = report.families(book.records)
    assert family.geomean == pytest.approx((1.0 * 0.8) ** 0.5)
    assert (family.worst, family.worst_job) == (0.8, "j 2")
    assert family.by_model == pytest.approx(family.geomean)
    assert family.unmeasured == 1
    kernels = {kernel.row: kernel for kernel in report.kernels(book.records)}
    assert kernels["a"].loss == pytest.approx((12 / 10) ** 0.5)
    assert kernels["b"].loss == pytest.approx((9 / 8) ** 0.5)
    assert (kernels["c"].loss, kernels["c"].wins, kernels["c"].measured) == (1.0, 0, 2)
    assert kernels["d"].wrong == 1
    text = report.text_of(book)
    assert "never the fastest:\n\n- c (2 jobs)" in text
    assert "- d: 1 wrong, 0 refused\n  j 3: wrong, far off" in text


def test_a_report_is_printed_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cutwheel.__main__ import main

    path = tmp_path / "j.jsonl"
    journal.open_journal(path, SETUP).add(a_record("j 1", a_plan("a", 10.0)))
    assert main(["tune", "--report", str(path)]) == 0
    assert "| mm:bf16:plain | 1 | 100.0 % | 100.0 % |" in capsys.readouterr().out
    assert main(["tune", "--report", str(tmp_path / "none.jsonl")]) == 2
