"""Tables of measurements: what they become, and what a build makes of kernels that are gone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kernelgen_cases import EPILOGUES, REDUCE, SM80, SM90, changed, document, write_manifest

from kernelgen import generate
from kernelgen.manifest import parse
from kernelgen.naming import procedural_name
from kernelgen.tuning import tuned

FOUND = parse(document(SM90, SM80, REDUCE))
KERNELS = FOUND.kernels
NAMES = {kernel.family: procedural_name(kernel) for kernel in KERNELS}
HOPPER, AMPERE = NAMES["sm90_warpspecialized"], NAMES["sm80_multistage"]
REQUEST: dict[str, Any] = {
    "op": "gemm",
    "a": "bf16",
    "d": "bf16",
    "layouts": "tn",
    "m": 128,
    "n": 4096,
    "k": 512,
}


def table(*entries: dict[str, Any], kernels: list[str] | None = None, **other: Any) -> Any:
    gpu = {"name": 'A "GPU"', "cc": [9, 0], "sm_count": 132, "memory_gb_per_s": 4917.0}
    return {
        "schema": 1,
        "cutwheel": "0.1.0",
        "driver": "580",
        "gpu": gpu,
        "kernels": kernels or [HOPPER, AMPERE],
        "entries": list(entries),
        **other,
    }


def entry(*plans: list[Any], **request: Any) -> dict[str, Any]:
    return {
        "request": REQUEST | request,
        "plans": list(plans) or [[0, "along_n", 2, 1, 12.5], [1, "along_m", 1, 4, 13.0]],
    }


def rendered(tmp_path: Path, *documents: Any, **options: Any) -> dict[str, object]:
    folder = tmp_path / tuned.FOLDER
    folder.mkdir(parents=True)
    for number, one in enumerate(documents):
        (folder / f"t{number}.json").write_text(json.dumps(one), encoding="utf-8")
    kernels = options.pop("kernels", KERNELS)
    return tuned.render(tuned.load(tmp_path), kernels, EPILOGUES, **options)


def test_an_entry_becomes_a_request_and_its_plans(tmp_path: Path) -> None:
    values = rendered(tmp_path, table(entry(), entry([0, "along_m", 1, 1, 3], m=256)))
    text = str(values["bodies"])
    index = {procedural_name(kernel): i for i, kernel in enumerate(KERNELS)}
    assert (
        "{Op::gemm, /*device=*/0, DType::bf16, DType::bf16, DType::bf16, Layout::row,"
        " Layout::column, Addend::none, Epilogue{}, false, BlockScales::none, true, true, true,"
        " true, 128, 4096, 512, 1, Grouping::none, 0, Direction::none, 1, 1, true,"
        " FilterPadding::none}, 0, 2}" in text
    )
    assert f"{{{index[HOPPER]}, RasterOrder::along_n, 2, 1, 12.5f}}" in text
    assert f"{{{index[AMPERE]}, RasterOrder::along_m, 1, 4, 13.0f}}" in text
    assert "FilterPadding::none}, 2, 1}" in text, (
        "the second entry's plans begin behind those of the first"
    )
    assert values["count"] == 1
    assert '{"t0.json", {"A \\"GPU\\"", 9, 0, 132, 4917.0}, kEntries0, 2, kPlans0}' in str(
        values["tables"]
    )


def test_other_operands_scales_and_epilogues(tmp_path: Path) -> None:
    request = {"op": "scaled_mm", "a": "e4m3", "b": "e5m2", "addend": "other"}
    one = entry(**request, epilogue="bias_gelu", scales="1x128_1x128", fast_accum=True)
    text = str(rendered(tmp_path, table(one))["bodies"])
    assert "DType::e4m3, DType::e5m2, DType::bf16" in text
    assert "Epilogue::bias_gelu, true, BlockScales::a1x128_b1x128" in text


def test_without_tables_there_is_still_a_file_that_compiles(tmp_path: Path) -> None:
    assert rendered(tmp_path) == {"bodies": "", "tables": "    {},\n", "count": 0}


def test_a_kernel_that_is_not_declared_is_an_error_with_table_and_row(tmp_path: Path) -> None:
    with pytest.raises(tuned.TuningError, match=r"t0\.json: no kernel gemm_gone is declared"):
        rendered(tmp_path, table(entry(), kernels=[HOPPER, "gemm_gone"]))


def test_an_epilogue_that_is_not_declared_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(tuned.TuningError, match=r"t0\.json: no epilogue gone is declared"):
        rendered(tmp_path, table(entry(addend="other", epilogue="gone")))


def test_a_narrowed_build_leaves_out_what_it_does_not_have(tmp_path: Path) -> None:
    few = [kernel for kernel in KERNELS if procedural_name(kernel) == AMPERE]
    both, hopper_alone = entry(), entry([0, "along_m", 1, 1, 3], m=256)
    values = rendered(tmp_path, table(both, hopper_alone), kernels=few, narrowed=True)
    text = str(values["bodies"])
    assert "{0, RasterOrder::along_m, 1, 4, 13.0f}" in text
    assert "FilterPadding::none}, 0, 1}" in text
    assert ", 256, 4096," not in text


def test_a_table_of_which_nothing_is_left_is_no_table(tmp_path: Path) -> None:
    alone = table(entry([0, "along_m", 1, 1, 3]))
    assert rendered(tmp_path, alone, kernels=[], narrowed=True)["count"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, r"t0\.json\.schema is 2, and this cutwheel reads 1"),
        ({"gpu": {}}, r"t0\.json\.gpu\.name is missing"),
        ({"entries": [{"request": REQUEST, "plans": []}]}, r"entries\[0\]\.plans is \[\]"),
        ({"entries": 3}, r"t0\.json\.entries is 3; expected a list"),
    ],
    ids=str,
)
def test_a_broken_table_is_an_error_with_its_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(tuned.TuningError, match=message):
        rendered(tmp_path, table(entry()) | change)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_manifest(tmp_path, document(SM90, SM80, REDUCE))
    return tmp_path


def run(root: Path, *arguments: str) -> int:
    return generate.main(["--source-dir", str(root), "--output-dir", str(root / "out"), *arguments])


def test_the_generator_writes_the_tables_and_names_the_source(root: Path) -> None:
    (root / tuned.FOLDER / "mine.json").write_text(json.dumps(table(entry())), encoding="utf-8")
    assert run(root) == 0
    assert '{"mine.json", {' in (root / "out" / "tuned_tables.cpp").read_text("utf-8")
    assert "/tuned_tables.cpp" in (root / "out" / "manifest.cmake").read_text("utf-8")


def test_the_generator_refuses_a_kernel_that_is_gone(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = table(entry(), kernels=[HOPPER, "gemm_gone"])
    (root / tuned.FOLDER / "mine.json").write_text(json.dumps(gone), encoding="utf-8")
    assert run(root) == 1
    assert "mine.json: no kernel gemm_gone is declared" in capsys.readouterr().err
    assert not (root / "out").exists()
    assert run(root, "--archs", "90a") == 0, "a narrowed build leaves it out"


def test_broken_json_is_an_error_with_the_name(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / tuned.FOLDER / "mine.json").write_text("{", encoding="utf-8")
    assert run(root) == 1
    assert "mine.json: Expecting" in capsys.readouterr().err


def test_what_is_generated_compiles(root: Path, repository: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    write_manifest(root, document(SM90, SM80, changed(SM80, epilogue=["bias_gelu"])))
    one = entry(addend="other", epilogue="bias_gelu", direction="none")
    (root / tuned.FOLDER / "mine.json").write_text(json.dumps(table(one, entry(m=1))), "utf-8")
    assert run(root) == 0
    # The header of the kernels' arguments needs CUDA's; a table does not.
    standin = root / "standin"
    standin.mkdir()
    (standin / "cuda_runtime_api.h").write_text("typedef struct CUstream_st* cudaStream_t;\n")
    includes = [f"-I{folder}" for folder in (repository / "cuda", root / "out", standin)]
    source = str(root / "out" / "tuned_tables.cpp")
    subprocess.run(
        [compiler, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *includes, source],
        check=True,
    )
