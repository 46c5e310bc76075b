"""The command line: selection, listing, exit codes; run the way CMake runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import REDUCE, SM80, SM90, bounded, changed, document, write_manifest

from kernelgen import generate
from kernelgen.emit import seconds, sources
from kernelgen.generate import SelectionError, main, select
from kernelgen.manifest import InvalidManifestError, load, parse
from kernelgen.naming import procedural_name

KERNELS = parse(
    document(
        changed(SM90, layouts=["tnt", "ttt"]),
        changed(SM80, arch=["80", "89"]),
        changed(REDUCE, arch=["80", "89", "90a"]),
    )
).kernels
NAMES = [procedural_name(kernel) for kernel in KERNELS]


def selected(patterns: str = "", archs: str = "") -> list[str]:
    return [procedural_name(kernel) for kernel in select(KERNELS, patterns, archs)]


def test_selection() -> None:
    assert selected() == selected("*") == selected(";") == selected("", "80;89;90a") == NAMES
    assert selected("*_ttt_*") == [n for n in NAMES if "_ttt_" in n]
    assert selected("*_ttt_*;*splitk*", "90a") == [
        n for n in NAMES if "sm90a" in n and ("_ttt_" in n or "splitk" in n)
    ]
    assert selected(archs=" 80 ; 89 ") == [n for n in NAMES if "sm80" in n or "sm89" in n]
    # A pattern may be for an architecture that is not built this time.
    assert selected("gemm_sm80_*;gemm_sm90a_*", "80") == selected(archs="80")


@bounded
@given(st.sets(st.sampled_from(NAMES), min_size=1))
def test_names_select_themselves(names: set[str]) -> None:
    assert selected(";".join(names)) == sorted(names)


def test_a_selection_of_nothing_is_an_error() -> None:
    with pytest.raises(SelectionError, match=r"no kernel matches .*nearest names are\n") as caught:
        selected("*_tnt_*;gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_2x1x1_tnt_pingpong_plane")
    nearest = str(caught.value).splitlines()[1].strip()
    assert nearest == "gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_2x1x1_tnt_pingpong_plain"
    with pytest.raises(SelectionError, match='unknown architecture "90"; allowed: 80, 89, 90a'):
        selected(archs="80;90")
    with pytest.raises(SelectionError, match=r"architectures 90a only, .* selected .* are 80"):
        selected("*_ttt_*", "80")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_manifest(tmp_path, document(SM90, SM80))
    return tmp_path


def test_the_script_runs_outside_the_repository(repository: Path, root: Path) -> None:
    script = repository / "cmake" / "kernelgen" / "generate.py"
    command = [sys.executable, "-B", str(script), "--source-dir", ".", "--output-dir", "build/out"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "2 kernels" in run.stdout
    assert len(list((root / "build" / "out").glob("*.cu"))) == 2
    assert f'"{root}/build/out/' in (root / "build" / "out" / "manifest.cmake").read_text("utf-8")


def test_a_narrower_selection_deletes_the_other_sources(root: Path) -> None:
    arguments = ["--source-dir", str(root), "--output-dir", str(root / "out")]
    assert generate.main(arguments) == 0
    assert generate.main([*arguments, "--archs", "90a"]) == 0
    assert [p.name for p in (root / "out").glob("*.cu")] == ["gemm_sm90a_warpspecialized.cu"]
    text = (root / "out" / "manifest.cmake").read_text("utf-8")
    assert 'set(CUTWHEEL_KERNEL_SOURCES_80\n  "")' in text


def test_a_failed_run_leaves_the_outputs_alone(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--source-dir", str(root), "--output-dir", str(root / "out")]
    assert generate.main(arguments) == 0
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in (root / "out").iterdir()}
    assert generate.main([*arguments, "--kernels", "nothing*"]) == 1
    assert "no kernel matches" in capsys.readouterr().err
    write_manifest(root, document(SM90, changed(SM80, stages=9)))
    assert generate.main([*arguments, "--archs", "90a"]) == 1
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in before} == before
    assert capsys.readouterr().err == (
        "kernelgen: 1 error in the kernel manifests; nothing was written\n\n"
        "cuda/manifests/gemm.toml: [[kernel]] #2 (family sm80_multistage), tiles[0]:"
        " stages = 9; 2 to 8 are supported\n"
    )


def test_listing_writes_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--source-dir", str(root), "--list", "--kernels", "*_plain"]) == 0
    assert capsys.readouterr().out == (
        "gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_2x1x1_tnt_pingpong_plain\n"
    )
    assert [path.name for path in root.iterdir()] == ["cuda"]


def test_an_output_folder_is_needed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        generate.main(["--source-dir", str(root)])
    assert "--output-dir is required" in capsys.readouterr().err


SETS = {"small": ("*_ttt_*", "*splitk*")}


def test_a_set_stands_for_its_globs() -> None:
    def names(patterns: str, archs: str = "") -> list[str]:
        return [procedural_name(kernel) for kernel in select(KERNELS, patterns, archs, SETS)]

    assert names("@small") == selected("*_ttt_*;*splitk*")
    assert names("@small;*_tnt_*", "90a") == selected("*_ttt_*;*splitk*;*_tnt_*", "90a")
    with pytest.raises(SelectionError, match=r'unknown set of kernels "@big"; sets: @small$'):
        names("@big")
    with pytest.raises(SelectionError, match=r'"@small"; sets: none is declared$'):
        selected("@small")


def test_a_set_finds_kernels_with_every_glob() -> None:
    data = document(SM80) | {"set": {"a": {"kernels": ["*_sm80_*", "*_sm{80,99}_*"]}}}
    with pytest.raises(InvalidManifestError) as caught:
        parse(data)
    assert str(caught.value) == ("kernels.toml: [set.a], kernels[1]: no kernel matches '*_sm99_*'")
    with pytest.raises(InvalidManifestError, match=r"\[set.a\]: key 'kernels' is missing"):
        parse(document(SM80) | {"set": {"a": {}}})
    with pytest.raises(InvalidManifestError, match=r"must be a glob of kernel names, not 3"):
        parse(document(SM80) | {"set": {"a": {"kernels": [3]}}})


def test_ptx_is_assembled_for_newer_gpus() -> None:
    marked = {"assembled": {"archs": ["100", "120"], "kernels": ["*_sm80_*"]}}
    found = parse(document(SM80, SM90) | marked).kernels
    by_arch = {kernel.arch.name: kernel.assembled for kernel in found}
    assert by_arch == {"80": ("100", "120"), "90a": ()}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"archs": ["100"]}, r"\[assembled\]: key 'kernels' is missing"),
        (
            {"archs": ["110"], "kernels": ["*_sm80_*"]},
            r"\[assembled\], archs\[0\]: must be one of 100, 120, not '110'",
        ),
        ({"archs": ["100"], "kernels": ["*_sm99_*"]}, r"no kernel matches '\*_sm99_\*'"),
        ({"archs": ["100"], "kernels": ["*_sm90a_*"]}, "matches, has no PTX to assemble"),
    ],
)
def test_what_cannot_be_assembled_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidManifestError, match=message):
        parse(document(SM80, SM90) | {"assembled": body})


def test_nothing_is_assembled_that_the_compiler_does_not_know(
    repository: Path, tmp_path: Path
) -> None:
    """The repository's own: of its manifests to CMake, the table and manifest.json."""
    for assembles, archs in (("80;90a;100;120", "100 120"), ("80;100", "100"), ("80;90a", '""')):
        given = ["--source-dir", str(repository), "--output-dir", str(tmp_path)]
        narrow = ["--kernels", "gemm_sm80_bf16_*_64x64x64_*", "--assembles", assembles]
        assert main([*given, *narrow]) == 0
        text = (tmp_path / "manifest.cmake").read_text()
        assert f"set(CUTWHEEL_ASSEMBLED_ARCHS {archs})" in text
        assert ("gemm_sm80_multistage_assembled.cu" in text.split("ASSEMBLED_SOURCES")[1]) == (
            archs != '""'
        )
        names = [] if archs == '""' else archs.split()
        rows = json.loads((tmp_path / "manifest.json").read_text())["kernels"]
        assert {tuple(row["assembled"]) for row in rows} == {tuple(f"sm{arch}" for arch in names)}
        majors = ", ".join(arch[:-1] for arch in names)
        assert f"/*assembled=*/{{{majors}}}," in (tmp_path / "kernel_table.cpp").read_text()


def test_every_16_bit_gemm_of_ampere_is_assembled_for_blackwell(repository: Path) -> None:
    """And what they need besides, or the first call would wait for the driver's compiler."""
    for kernel in load(repository).kernels:
        is_gemm = kernel.op == "gemm" and kernel.family in ("sm80_multistage", "splitk_reduce")
        is_wanted = is_gemm and kernel.dtypes.a in ("f16", "bf16", "f32")
        is_wanted |= kernel.family == "pad_rows"
        is_wanted &= kernel.arch.name == "80"
        assert kernel.assembled == (("100", "120") if is_wanted else ()), procedural_name(kernel)


def test_the_core_set_is_a_first_result_on_every_gpu(repository: Path) -> None:
    """Within the budget that sets.toml states."""
    declared = load(repository)
    for archs in ("80", "80;89", "90a"):
        kernels = select(declared.kernels, "@core", archs, declared.sets)
        assert {kernel.op for kernel in kernels} >= {"gemm", "grouped_mm", "conv2d"}
        assert archs == "80" or any(kernel.is_fp8 for kernel in kernels)
        plan = sources(kernels, declared.epilogues).values()
        assert sum(map(seconds, plan)) <= 150
