"""From the command line to a results file, with everything of CUDA made up."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from result_rows import ENVIRONMENT, cpu
from synthetic_clock import SyntheticClock

from benchmarks import __main__ as cli
from benchmarks import (
    fused,
    harness,
    held_out,
    host,
    options,
    performance,
    plan,
    record,
    runs,
    session,
    shapes,
)

TABLE = shapes.load()


def parsed(*arguments: str) -> argparse.Namespace:
    return options.parser().parse_args(list(arguments))


# --- what is asked for


def test_sections_of_commands() -> None:
    assert options.sections_of(parsed("all")) == list(record.SECTIONS)
    assert options.sections_of(parsed("all", "--sections", "host", "mm")) == ["mm", "host"]
    assert options.sections_of(parsed("gemm")) == options.sections_of(parsed("mm")) == ["mm"]
    assert options.sections_of(parsed("gemm", "--bias", "--dtype", "tf32")) == ["addmm_tf32"]
    assert options.sections_of(parsed("conv")) == ["conv"]


def test_parts_do_not_go_to_the_results() -> None:
    assert options.part_of(parsed("all", "--held-out", "--no-compile")) == ""
    assert options.output_path(parsed("all"), "NVIDIA H200") == record.FOLDER / "h200.json"
    for arguments, part in (
        (["mm", "--m", "64", "--nk", "4096x4096"], "--m, --nk"),
        (["scaled", "--recipes", "int8"], "--recipes"),
        (["grouped", "--cases", "0", "--quick"], "--quick, --cases"),
        (["conv", "--candidate", "torch"], "--candidate"),
        (["all", "--budget-seconds", "60"], "--budget-seconds"),
    ):
        given = parsed(*arguments)
        assert options.part_of(given) == part
        assert record.FOLDER not in options.output_path(given, "NVIDIA H200").parents
    given = parsed("mm", "--m", "64", "--out", "x/new.json")
    assert options.output_path(given, "NVIDIA H200") == Path("x/new.json")
    assert options.output_path(parsed("mm", "--out", "x"), "NVIDIA H200") == Path("x/h200.json")


def test_jobs_of_every_section() -> None:
    given = parsed("all")
    counts = {name: len(runs.jobs_of(name, given).all) for name in record.SECTIONS}
    assert counts == {
        "mm": 119,
        "addmm": 119,
        "fused": 325,
        "scaled": 499,
        "grouped": 120,
        "conv": 77,
        "host": 0,
    }
    assert (
        len(runs.jobs_of("conv", parsed("conv", "--convs", "1", "--directions", "wgrad")).all) == 1
    )
    few = runs.jobs_of("grouped", parsed("grouped", "--products", "forward", "--cases", "0", "6"))
    assert len(few.all) == 4
    assert len(runs.jobs_of("mm_f16", parsed("mm", "--square", "64", "--dtype", "f16")).all) == 1


def test_a_whole_run_fits_its_time() -> None:
    """What `make bench` is expected to take on an H200, without torch.compile and with it."""
    without = runs.planned(parsed("all", "--held-out", "--no-compile"))
    assert sum(seconds for seconds, _ in without.values()) < 8 * 60
    everything = runs.planned(parsed("all", "--held-out"))
    assert sum(seconds for seconds, _ in everything.values()) < 15 * 60
    assert everything["fused"][0] > without["fused"][0] + 200
    assert set(runs.LAYERS_KEPT_ASIDE) == set(fused.COMPILED)


# --- shapes kept aside


def test_shapes_kept_aside_follow_from_their_seed() -> None:
    for draw in (held_out.products, held_out.groups, held_out.convolutions):
        found = draw(TABLE, 40, 7)
        assert found == draw(TABLE, 40, 7)
        assert found != draw(TABLE, 40, 8)
        assert found[:10] == draw(TABLE, 10, 7)
        assert len(set(found)) == 40


def test_shapes_kept_aside_are_those_of_models_and_of_no_list() -> None:
    products = held_out.products(TABLE, 400)
    known = {tuple(pair) for pair in TABLE["gemm"]["nk"]}
    assert not known & {(shape.n, shape.k) for shape in products}
    assert all(1 <= shape.m <= 16384 for shape in products)
    assert sum(shape.m <= 128 for shape in products) == pytest.approx(200, abs=40)  # log-uniform
    pair = [products[0].n, products[0].k]
    without = held_out.products(TABLE | {"gemm": {"nk": [pair]}}, 400)
    assert pair not in [[shape.n, shape.k] for shape in without]
    extents = [extent for shape in products for extent in (shape.n, shape.k)]
    assert all(extent % 8 == 0 and 8 <= extent < 32768 for extent in extents)
    assert 0.75 < sum(extent % 64 == 0 for extent in extents) / len(extents) < 0.95
    assert min(shape.m for shape in held_out.products(TABLE, 100, least_m=64)) >= 64
    experts = {shape[2:] for shape in held_out.groups(TABLE, 100)}
    assert not experts & {tuple(case[2:]) for case in TABLE["grouped"]["cases"]}
    for shape in held_out.convolutions(TABLE, 100):
        assert min(shape.p, shape.q) >= 1


def test_shapes_kept_aside_are_asked_for() -> None:
    given = parsed("all", "--held-out", "12", "--seed", "5")
    for name in record.SECTIONS[:-1]:
        jobs = runs.jobs_of(name, given)
        assert jobs.aside
        assert not runs.jobs_of(name, parsed("all")).aside
        assert not {str(job) for job in jobs.listed} & {str(job) for job in jobs.aside}
    assert {job.shape for job in runs.jobs_of("mm", given).aside} == set(
        held_out.products(TABLE, 12, 5)
    )
    only = parsed("fused", "--held-out", "--groups", "gated_silu")
    assert {job.group for job in runs.jobs_of("fused", only).aside} == {"gated_silu"}


# --- runs


def make(job: Any) -> session.Made:
    x = [torch.randn(6, 8) for _ in range(3)]
    scale = 3.0 if job.shape.m == 13 else 2.0
    sides = (
        harness.Side("torch", lambda i: 2 * x[i]),
        harness.Side("cutwheel", lambda i: scale * x[i]),
    )
    return session.Made(harness.Case(sides, 3, lambda i: 2 * x[i], 1e-5), 100, 10)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two listed shapes and one kept aside for each section; the folder of the results."""

    def jobs_of(name: str, given: Any) -> runs.Jobs:
        shape = shapes.GemmShape(given.m[0] if getattr(given, "m", None) else 4, 8, 8)
        group = {"conv": "fprop", "grouped": "forward", "scaled": "int8"}.get(name, name)
        job = shapes.ProductJob(group, shape)
        return (
            runs.Jobs([job, job], [job] * bool(given.held_out)) if name != "host" else runs.Jobs([])
        )

    def setup_of(name: str, given: Any, jobs: Any) -> runs.Setup:
        fields = {"dtype": "bf16"} | ({"host": [cpu("conv2d", 5.0, 4.0)]} if name == "conv" else {})
        return runs.Setup(make, plan.Limits(), fields, clock=SyntheticClock(3e-5, 2e-5))

    def environment(commit: str | None, side: str) -> dict[str, Any]:
        return ENVIRONMENT | {"commit": commit}

    monkeypatch.setattr(runs, "jobs_of", jobs_of)
    monkeypatch.setattr(runs, "setup_of", setup_of)
    monkeypatch.setattr(record, "environment", environment)
    monkeypatch.setattr(host, "measure", lambda *_: [cpu("mm", 8.0, 4.0)])
    monkeypatch.setattr(cli, "write_documents", lambda: None)
    monkeypatch.setattr(record, "FOLDER", tmp_path / "results")
    return tmp_path / "results"


def test_all_sections_are_of_one_run(on_cpu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["all", "--held-out", "--commit", "aaa"]) == 0
    found = record.read(on_cpu / "h200.json")
    assert list(found["sections"]) == list(record.SECTIONS)
    origins = {str(each["environment"]) for each in found["sections"].values()}
    assert len(origins) == 1
    rows = found["sections"]["grouped"]["results"]
    assert [row.get("held_out", False) for row in rows] == [False, False, True]
    assert found["sections"]["mm"]["held_out"] == {"seed": held_out.SEED, "cases": 1}
    assert all("part" not in each for each in found["sections"].values())
    assert found["sections"]["mm"]["dtype"] == "bf16"
    assert found["sections"]["conv"]["host"] == [record.plain(cpu("conv2d", 5.0, 4.0))]
    assert [path.name for path in on_cpu.iterdir()] == ["h200.json"]
    captured = capsys.readouterr()
    assert "[mm 1/3 " in captured.err
    assert " s left of all] mm 4 x 8 x 8: torch 1.500" in captured.err
    assert performance.document([found]).count("One run: ") == 1


def test_one_section_keeps_the_others(on_cpu: Path) -> None:
    cli.main(["all", "--commit", "aaa"])
    assert cli.main(["conv", "--commit", "bbb"]) == 0
    found = record.read(on_cpu / "h200.json")["sections"]
    commits = {name: each["environment"]["commit"] for name, each in found.items()}
    assert commits == dict.fromkeys(record.SECTIONS, "aaa") | {"conv": "bbb"}


def test_parts_and_failures(on_cpu: Path, tmp_path: Path) -> None:
    out = tmp_path / "part.json"
    assert cli.main(["mm", "--m", "13", "--out", str(out)]) == 1
    found = record.read(out)["sections"]["mm"]
    assert found["part"] == "--m"
    assert {row["status"] for row in found["results"]} == {"failed"}
    assert not on_cpu.exists()


def test_an_interrupted_section_leaves_what_it_has(
    on_cpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.main(["mm", "--commit", "aaa"])
    monkeypatch.setattr(runs, "SAVE_SECONDS", -1.0)
    tell = runs.Run._tell

    def interrupt(self: Any, name: str, job: Any, rows: Any, *rest: Any) -> None:
        if len(rows) == 2:
            raise KeyboardInterrupt
        tell(self, name, job, rows, *rest)

    monkeypatch.setattr(runs.Run, "_tell", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["mm", "--commit", "bbb"])
    whole = record.read(on_cpu / "h200.json")["sections"]["mm"]
    assert (whole["environment"]["commit"], len(whole["results"])) == ("aaa", 2)
    left = record.read(on_cpu / "h200.unfinished")["sections"]["mm"]
    assert (left["part"], len(left["results"])) == ("unfinished", 1)


def test_how_many_shapes_got_a_compile_baseline() -> None:
    rows = [
        {"sides": {"compile": {"us": 1}}, "reason": ""},
        {"sides": {"compile": {"relative_error": 1.0}}, "reason": "compile: wrong result"},
        {"sides": {"eager": {"us": 1}}, "reason": f"{runs.LEFT_OUT}, its 5 s were used up"},
        {"sides": {}, "reason": ""},
    ]
    found = runs.compile_record(rows, "default", 4, 3)
    assert (found["cases"], found["asked"], found["measured"], found["left_out"]) == (4, 3, 1, 1)
    assert runs.compile_at(parsed("fused")) == shapes.compiled_shapes(TABLE, None)
    assert runs.compile_at(parsed("fused", "--no-compile")) == set()
    assert runs.compile_at(parsed("all", "--compile", "all")) is None


def test_jobs_say_what_they_are() -> None:
    for name in record.SECTIONS[:-1]:
        for job in runs.jobs_of(name, parsed("all", "--held-out", "4")).all[::7]:
            fields = job.fields()
            assert fields["group"] == job.group
            assert fields["m"] >= 1


# --- what a section is measured with


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makers, limits and records of torch.compile are the real ones; the GPU is not."""
    from benchmarks import conv, fused, gemm, grouped, scaled, sides

    for module in (conv, fused, gemm, grouped, scaled):
        monkeypatch.setattr(module, "gpu", lambda: (torch.device("cpu"), 10_000))
    monkeypatch.setattr(gemm, "ceilings", lambda dtype: {"gbs": 1.0, "tflops": 1.0})
    monkeypatch.setattr(sides, "form_of_addmm_activation", lambda: "gelu_tanh")
    monkeypatch.setattr(sides, "compiled", lambda function: function)
    monkeypatch.setattr(fused, "compiled", lambda function: function)
    monkeypatch.setattr(host, "measure", lambda *_: [cpu("mm", 8.0, 4.0)])
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda name=None: "cublas")


SMALL = ("--m", "4", "--nk", "16x32", "--candidate", "torch")


@pytest.mark.parametrize(
    ("section", "arguments", "rows", "compiled"),
    [
        ("mm", SMALL, 1, None),
        ("addmm_tf32", (*SMALL, "--dtype", "tf32"), 1, None),
        ("fused", (*SMALL, "--compile", "4x16x32"), 5, (3, 3)),
        ("fused", (*SMALL, "--compile", "4x16x32", "--compile-seconds", "0"), 5, (3, 0)),
        ("scaled", (*SMALL, "--recipes", "int8", "--no-compile"), 1, (0, 0)),
        ("grouped", ("--candidate", "torch", "--products", "forward"), 2, None),
        ("conv", ("--candidate", "torch", "--directions", "fprop", "fused"), 2, (0, 0)),
    ],
)
def test_setups(
    section: str,
    arguments: tuple[str, ...],
    rows: int,
    compiled: Any,
    no_gpu: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = {
        "grouped": {"cases": [[3, 24, 16, 16]]},
        "conv": {"cases": [[1, 4, 6, 6, 8, 3, 3, 1, 1, 1]]},
    }
    monkeypatch.setattr(shapes, "load", lambda: TABLE | small)
    given = parsed(section.partition("_")[0], *arguments)
    jobs = runs.jobs_of(section, given)
    setup = runs.setup_of(section, given, jobs)
    clock = SyntheticClock(2e-3)
    with setup.context:
        found = session.measure(jobs.all, setup.make, setup.limits, clock=clock)
    assert len(found) == rows
    for row in found:
        assert row["ratios"] or row["group"] == "fused", row["reason"]
    assert setup.fields["dtype"]
    if compiled is None:
        assert setup.compile is None
    else:
        record_of = setup.compile(found)
        assert (record_of["asked"], record_of["measured"]) == compiled
        assert record_of["left_out"] == compiled[0] - compiled[1]
