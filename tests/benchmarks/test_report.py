"""The results file, its tables, and the documents made of it: no GPU is needed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")
from result_rows import ENVIRONMENT, cpu, row, section, unmeasured

from benchmarks import cli
from benchmarks.report import chips, names, performance, record, tables
from cutwheel.tuning.shapes import Conv

MODES = ("torch tensorwise", "torch rowwise")
CONV = list(Conv(2, 8, 7, 6, 16, 3, 3, 2, 1, 1))


def fp8(m: int, tensorwise: float, rowwise: float, ours: float, **changed: Any) -> dict[str, Any]:
    times = dict(zip((*MODES, "cutwheel rowwise"), (tensorwise, rowwise, ours), strict=True))
    return row("fp8", times, m, recipe="rowwise", **changed)


def sections() -> dict[str, dict[str, Any]]:
    """One of each kind, with failures, refusals and shapes kept aside."""
    refused = "torch rowwise: ValueError: no"
    gelu = {"eager": 30.0, "addmm_activation": 18.0, "cutwheel gelu": 20.0}
    gelu_row = row("bias_gelu", gelu, 512)
    gelu_row["ratios"][1]["form"] = "gelu_tanh"
    experts = {"groups": 9, "skew": "skewed", "largest": 90}
    return {
        "mm": section(
            [
                row("mm", {"torch": 20.0, "torch, cublaslt": 10.0, "cutwheel": 10.0}, 1),
                row("mm", {"torch": 10.0, "torch, cublaslt": 16.0, "cutwheel": 20.0}, 64),
                row("mm", {"torch": 10.0, "torch, cublaslt": 12.0, "cutwheel": 40.0}, 96)
                | {"held_out": True},
                unmeasured("mm", "failed", "cutwheel: wrong result"),
                unmeasured("mm", "skipped", "the budget of 1 s was used up"),
            ],
            ceilings={"gbs": 4300.0, "tflops": 790.0},
            held_out={"seed": 7, "cases": 1},
        ),
        "fused": section(
            [gelu_row, row("overhead", {"bias": 10.0, "relu": 20.0}, 512)],
            compile={"mode": "x", "cases": 3, "asked": 2, "measured": 1, "left_out": 1}
            | {"budget_seconds": 60.0},
        ),
        "scaled": section(
            [
                fp8(48, 30.0, 20.0, 20.0),
                fp8(96, 20.0, 30.0, 40.0),
                fp8(8192, 10.0, 10.0, 10.0, reason=refused),
                fp8(4096, 10.0, 10.0, 10.0, reason=refused),
                row("quantize", {"eager": 90.0, "cutwheel": 10.0}, n=0, recipe="rowwise")
                | {"flops_per_byte": 0.0},
                row("blockwise", {"cutwheel 1x128 x 1x128": 10.0}, recipe="blockwise"),
            ]
        ),
        "grouped": section(
            [row("forward", {"torch": 30.0, "cutwheel": 20.0}, 200, **experts)],
            host=[cpu("grouped_mm", 5.0, 4.0)],
        ),
        "conv": section([row("fprop", {"torch": 30.0, "cutwheel": 20.0}, shape=CONV)]),
        "host": section([cpu("mm", 8.0, 4.0), unmeasured_cpu("bmm")]),
    }


def unmeasured_cpu(case: str) -> dict[str, Any]:
    return {"case": case, "status": "failed", "reason": "TypeError: no", "ratio": None}


def result(**changed: Any) -> dict[str, Any]:
    made = {"schema": record.SCHEMA, "gpu": "NVIDIA H200", "sections": sections()}
    return made | changed


# --- the file


def test_a_section_replaces_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h200.json"
    older = ENVIRONMENT | {"commit": "old"}
    record.write_section(path, "host", section([cpu("mm", 8.0, 4.0)]))
    record.write_section(path, "mm", section([], environment=older))
    record.write_section(path, "scaled", section([], environment=older))
    record.write_section(path, "mm", section([row("mm", {"torch": 1.0, "cutwheel": 1.0})]))
    found = record.read(path)["sections"]
    assert list(found) == ["mm", "scaled", "host"]
    commits = {name: each["environment"]["commit"] for name, each in found.items()}
    assert commits == {"mm": "0123456789abcdef", "scaled": "old", "host": "0123456789abcdef"}
    assert len(found["mm"]["results"]) == 1
    assert list(path.parent.iterdir()) == [path]
    other = section([], environment=ENVIRONMENT | {"gpu": "NVIDIA L4"})
    with pytest.raises(ValueError, match="goes to another file"):
        record.write_section(path, "mm", other)


def test_the_file_has_a_line_for_each_row_and_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    rows = [{"group": "mm", "x": [math.nan, 1.0 / 3.0, math.inf]}, {"group": "b", "x": 2}]
    record.write_section(path, "mm", section(rows))
    assert [row["x"] for row in record.read(path)["sections"]["mm"]["results"]] == [
        [None, 0.333333, None],
        2,
    ]
    assert sum('"group"' in line for line in path.read_text().splitlines()) == 2
    record.write(path, result())
    assert record.read(path) == json.loads(json.dumps(result()))
    path.write_text('{"schema": 1}')
    with pytest.raises(ValueError, match="schema is 1"):
        record.read(path)


def test_names_of_files() -> None:
    assert record.path_of("NVIDIA H200", Path("d")) == Path("d/h200.json")
    assert record.device_slug("NVIDIA A100-SXM4-80GB") == "a100_sxm4_80gb"


def test_commit_comes_from_argument_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTWHEEL_COMMIT", "fromenv")
    assert record.git_commit("given") == "given"
    assert record.git_commit(None) == "fromenv"
    assert record.run_text("a-command-that-is-not-there") is None


def test_sections_of_several_calls_are_merged(tmp_path: Path) -> None:
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    record.write_section(first, "mm", section([row("mm", {"torch": 1.0, "cutwheel": 1.0})]))
    record.write_section(second, "conv", section([]))
    folder = tmp_path / "results"
    assert {record.merge(path, folder) for path in (first, second)} == {folder / "h200.json"}
    assert list(record.read(folder / "h200.json")["sections"]) == ["mm", "conv"]
    record.write_section(second, "conv", section([], part="--quick"))
    with pytest.raises(ValueError, match="conv is a part of a benchmark: --quick"):
        record.merge(second, folder)
    two = ENVIRONMENT | {"gpus": 2}
    record.write_section(first, "mm", section([], environment=two))
    assert record.merge(first, folder) == folder / "several" / "h200_x2.json"


# --- lines and tables


def lines(name: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    rows = performance.listed(sections()[name])
    return {(line["group"], line["side"], line["baseline"]): line for line in tables.lines(rows)}


def test_lines() -> None:
    found = lines("scaled")
    best = found["fp8", "cutwheel rowwise", tables.BEST]
    assert (best["shapes"], best["ahead"]) == (4, 3)
    assert best["geomean"] == pytest.approx(0.5**0.25)
    assert (best["worst"], best["worst_shape"]) == (pytest.approx(0.5), "96 x 160 x 512")
    assert best["per_m"] == pytest.approx({"48": 1.0, "96": 0.5, "4096": 1.0, "8192": 1.0})
    mode = found["fp8", "cutwheel rowwise", MODES[0]]
    assert mode["geomean"] == pytest.approx((1.5 * 0.5) ** 0.25)
    # A single baseline has no entry for the best one.
    assert ("quantize rowwise", "cutwheel", "eager") in found
    assert ("quantize rowwise", "cutwheel", tables.BEST) not in found
    assert next(iter(found))[2] == tables.BEST
    assert tables.lines([unmeasured("mm", "failed", "no")]) == []


def test_the_best_is_of_baselines_that_compute_the_same() -> None:
    found = lines("fused")
    assert found["bias_gelu", "cutwheel gelu", "addmm_activation"]["form"] == "gelu_tanh"
    assert found["bias_gelu", "cutwheel gelu", "addmm_activation"]["geomean"] == pytest.approx(0.9)
    (best,) = tables.best_lines(sections()["fused"]["results"][:1])
    assert (best["baseline"], best["geomean"]) == ("eager", pytest.approx(1.5))
    assert tables.best_of(sections()["fused"]["results"][0])[0]["mode"] == "eager"
    assert tables.best_of(sections()["fused"]["results"][1]) == []  # cutwheel itself
    first, second, *_ = sections()["mm"]["results"]
    assert tables.best_of(first)[0]["mode"] == "torch, cublaslt"
    assert tables.best_of(second)[0]["mode"] == "torch"


def test_console_tables() -> None:
    made = sections()
    text = tables.markdown("mm", made["mm"])
    assert "| mm: cutwheel to torch's best | 2 | **0.707** | 0.50 at 64 x 160 x 512 | 1 |" in text
    assert "Drawn at random:" in text
    assert "| mm: cutwheel to torch | 1 | **0.250** |" in text
    assert "- FAILED mm 3 x 5 x 7: cutwheel: wrong result" in text
    assert "- SKIPPED the budget of 1 s was used up (1 shapes, such as mm 3 x 5 x 7)" in text
    assert "commit 0123456789ab," in text
    assert "| torch | 10.0 | 20.0 | 50 | 2.0e-03 | kernel_64 |" in text
    assert text.endswith("**5 cases: 3 ok, 1 failed, 1 skipped.**")
    text = tables.markdown("scaled", made["scaled"])
    assert "WITHOUT fp8: torch rowwise: ValueError: no (2 shapes, such as 8192 x 160" in text
    assert "1 without a baseline" in text
    text = tables.markdown("fused", made["fused"])
    assert "baseline of 1 of 3 cases; it was asked for at 2, 1 left out by its 60 s." in text
    assert "| grouped_mm | 5.00 | 4.00 |" in tables.markdown("grouped", made["grouped"])
    assert "9 groups, 200 x 160 x 512, skewed" in tables.markdown("grouped", made["grouped"])
    assert "2 x 8 x 7 x 6, 16 of 3 x 3, stride 2" in tables.markdown("conv", made["conv"])
    volume = row("volume_fprop", {"torch": 3.0, "cutwheel": 2.0}, volume=[1, 8, 4, 6, 5, 16, 2, 0])
    text = tables.markdown("volumes", section([volume]))
    assert "1 x 8 x 4 x 6 x 5, 16 of 3 x 3 x 3, zeros 2 + 0" in text
    image = row(
        "transposed", {"torch": 3.0, "cutwheel": 2.0}, transposed=[2, 16, 4, 5, 8, 3, 2, 1, 1]
    )
    assert "2 x 16 x 4 x 5, 8 of 3 x 3, stride 2" in tables.markdown("volumes", section([image]))
    text = tables.markdown("host", made["host"])
    assert "| mm | 8.00 | 4.00 | 3.96-4.04 | 2.00 |" in text
    assert "FAILED bmm" in text


def test_drawn_problems_have_a_summary_of_all_groups(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        row("mm", {"torch": ratio, "cutwheel": 1.0}, m, drawn=True)
        for m, ratio in enumerate((0.5, 1.0, 2.0, 4.0), 64)
    ]
    failed = unmeasured("mm", "failed", "no", drawn=True)
    text = tables.summary_table({"mm": [*rows, failed], "host": [], "conv": rows[:1]})
    # 0.15 of the way from the first ratio to the second.
    assert text.splitlines()[-1] == (
        "| mm | 4 | **1.414** | 0.575 | 0.50 at mm 64 x 160 x 512 | 3 |"
    )
    assert tables.summary_table({"mm": rows[:1]}) == ""
    made = section(rows, drawn={"seed": 7, "cases": 4})
    page = performance.document([result(sections={"mm": made})])
    assert "Drawn at random: 4 cases (seed 7) of layers of released models" in page
    assert "**1.414** | 0.575 |" in page
    assert "**1.414** | 0.575 |" in tables.markdown("mm", made)
    assert cli.show({"mm": made, "host": section([cpu("mm", 8.0, 4.0)])})
    assert "Drawn at random, by family:" in capsys.readouterr().out


def test_reports_of_files_fail_on_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    record.write(path, result())
    assert cli.main(["report", str(path)]) == 1
    assert "FAILED" in capsys.readouterr().out
    record.write(path, result(sections={"conv": sections()["conv"]}))
    assert cli.main(["report", str(path)]) == 0


# --- documents


def test_document() -> None:
    text = performance.document([result()])
    assert "One run: NVIDIA H200, driver 580.1, torch 2.11.0, CUDA 13.0" in text
    assert "| `mm` | torch's best | 2 | **0.707** | 0.50, 64 x 160 x 512 | 1 |" in text
    assert "which computes gelu_tanh" in text
    assert "1 cases of shapes drawn at random (seed 7)" in text
    assert "|  | `torch.mm` | 1 | **0.250** |" in text.replace("`mm` | `t", " | `t")
    assert "bf16 989.4 TFLOP/s without sparsity, 4800 GB/s" in text
    assert "FAILED mm 3 x 5 x 7" in text
    assert "left out by its 60 s" in text
    assert "| mm | 8.0 | 4.0 | 2.00 |\n| grouped_mm | 5.0 | 4.0 | 1.25 |" in text
    assert "goal" not in text.lower()


def test_runs_and_commits_are_told_apart() -> None:
    made = result()
    changed = made["sections"]["conv"]
    changed["environment"] = ENVIRONMENT | {"date": "2026-01-02"}
    assert "One commit: " in performance.document([made])
    assert "in 2 runs from" in performance.document([made])
    changed["environment"] = ENVIRONMENT | {"commit": "fedcba9876543210"}
    text = performance.document([made])
    assert "several commits" in text
    assert "commit fedcba987654," in text
    assert "commits 0123456789ab, fedcba987654:" in performance.readme_table([made])


def test_limits_of_chips() -> None:
    chip = chips.chip_of("h200")
    assert chip is not None
    assert chips.limit(chip, "bf16", 1e6) == 989.4
    assert chips.limit(chip, "bf16", 10.0) == pytest.approx(48.0)
    assert chips.limit(chips.CHIPS["geforce_rtx_3090"], "fp8", 10.0) is None
    for slug, each in chips.CHIPS.items():
        assert slug == record.device_slug(slug)
        assert each.tflops["tf32"] * 1.9 < each.tflops["bf16"] < each.tflops["int8"]
    unknown = result(gpu="NVIDIA Q1000")
    assert names.NO_LIMITS in performance.document([unknown])


def test_every_dtype_has_its_limit() -> None:
    made = sections()
    kinds = {
        name: performance.dtype_of(name, made[name]["results"][0])
        for name in made
        if name != "host"
    }
    assert kinds == {
        "mm": "bf16",
        "fused": "bf16",
        "scaled": "fp8",
        "grouped": "bf16",
        "conv": "bf16",
    }
    assert performance.dtype_of("grouped", {"group": "fp8_fast"}) == "fp8"
    assert performance.dtype_of("scaled", {"group": "int8"}) == "int8"
    assert performance.dtype_of("mm_tf32", {"group": "mm"}) == "tf32"


def test_readmes_table() -> None:
    before = f"# a\n{performance.BEGIN}\nold\n{performance.END}\nb\n"
    text = performance.with_table(before, [result()])
    assert text.startswith("# a\n")
    assert text.endswith(f"{performance.END}\nb\n")
    assert "old" not in text
    assert "| `mm` | torch's best | 2 | **0.71** | 0.50 | 1 |" in text
    assert "cost of" not in text
    assert performance.with_table(text, [result()]) == text
    with pytest.raises(ValueError, match="lacks"):
        performance.with_table("# a\n", [result()])


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.report import plots

    text = performance.document([result()])
    drawn = {path.name for path in plots.draw(result(), tmp_path)}
    assert drawn == set(re.findall(r"\(performance/(\S+)\)", text))
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.iterdir())
    assert plots.draw(result(gpu="NVIDIA Q1000"), tmp_path)
    assert (
        plots.draw(result(sections={"mm": section([unmeasured("mm", "failed", "")])}), tmp_path)
        == []
    )


def test_committed_documents_are_those_of_the_results() -> None:
    """After a change of the results or of their texts: python -m benchmarks report"""
    found = performance.results()
    assert performance.DOCUMENT.read_text() == performance.document(found)
    readme = performance.README.read_text()
    assert readme == performance.with_table(readme, found)
    named = set(re.findall(r"\(performance/(\S+)\)", performance.DOCUMENT.read_text()))
    assert named == {path.name for path in performance.PLOTS.iterdir()}
    assert max(path.stat().st_size for path in performance.PLOTS.iterdir()) < 150_000


def test_committed_results_are_of_whole_sections() -> None:
    for path in sorted(record.FOLDER.glob("*.json")):
        found = record.read(path)
        assert path == record.path_of(found["gpu"])
        for name, each in found["sections"].items():
            assert name.partition("_")[0] in names.TITLES
            assert "part" not in each
            assert each["environment"]["gpu"] == found["gpu"]
            assert each["environment"]["commit"]
