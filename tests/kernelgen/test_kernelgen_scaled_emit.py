"""Emitted text for scaled_mm: names, sources, rows of the table."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import (
    ELEMENTWISE,
    REDUCE,
    SM80,
    SM80_CONV,
    SM80_GROUPED,
    SM90,
    SM90_CONV,
    SM90_GROUPED,
    Table,
    bounded,
    changed,
    dtypes,
    write_manifest,
)
from kernelgen_cases import document as gemm_document
from kernelgen_scaled_cases import (
    BLOCK_SM89,
    BLOCK_SM90,
    E4M3,
    EPILOGUES,
    FP8_RECIPES,
    FP8_SM90,
    INT8_RECIPES,
    INT8_SM80,
    PERSISTENT_SM90,
    QUANTIZE,
    document,
    entries,
    manifest,
    rendered,
)

from kernelgen import emit
from kernelgen.families import FAMILIES
from kernelgen.manifest import InvalidManifestError, load, parse
from kernelgen.naming import procedural_name

# The grammar of names, spelled a second time on purpose: everything outside the build reads them.
NAME = re.compile(
    r"scaled_mm_sm(?P<arch>80|89|90a)_(?P<dtypes>[a-z0-9]+_[a-z0-9]+_[fs]32_[a-z0-9]+)_"
    r"(?:(?P<tile>\d+x\d+x\d+)(?:_(?P<second>\d+x\d+x\d+))?_(?P<layout>tnt)"
    r"_(?P<schedule>pingpong|cooperative|persistent|multistage)(?P<stages>\d+)?(?P<swap>_swap)?"
    r"(?:_split(?P<splits>\d))?(?P<fast>_fast)?(?:_(?P<scales>1x128_(?:1x128|128x128)))?"
    rf"_(?P<epilogue>{'|'.join(EPILOGUES)})|quantize_(?P<recipe>\w+))"
)


@bounded
@given(entries())
def test_a_name_says_everything_about_its_kernel(entry: Table) -> None:
    kernels = manifest(entry).kernels
    expected = 1
    for axis in ("arch", "dtypes", "epilogue", "scales", "recipes", "tiles"):
        expected *= len(entry.get(axis, [None]))
    assert len({procedural_name(kernel) for kernel in kernels}) == len(kernels) == expected
    for kernel in kernels:
        match = NAME.fullmatch(procedural_name(kernel))
        assert match is not None, procedural_name(kernel)
        field, tile = match.groupdict(), kernel.tile
        assert (field["arch"], field["dtypes"]) == (kernel.arch.name, str(kernel.dtypes))
        assert (field["scales"], field["recipe"]) == (kernel.scales, kernel.recipe)
        assert (field["tile"] is None) == (kernel.family == "quantize")
        if field["tile"]:
            assert kernel.epilogue is not None
            assert field["epilogue"] == kernel.epilogue.name
            assert (bool(field["swap"]), bool(field["fast"])) == (tile.swap_ab, tile.fast_accum)
            assert field["tile"] == "x".join(map(str, tile.shape))
            second = "x".join(map(str, tile.warp or tile.cluster))
            is_persistent = kernel.family == "sm90_persistent"
            assert field["second"] == (None if is_persistent else second)
            assert int(field["splits"] or 1) == (tile.cluster[2] if is_persistent else 1)
            assert field["schedule"] == tile.schedule
            assert field["stages"] == (str(tile.stages) if tile.stages else None)


@bounded
@given(st.lists(entries(), min_size=1, max_size=4, unique_by=lambda entry: entry["family"]))
def test_a_source_has_kernels_of_one_family(drawn: list[Table]) -> None:
    found = manifest(*drawn)
    plan = emit.sources(found.kernels, found.epilogues)
    planned = [procedural_name(kernel) for group in plan.values() for kernel in group]
    assert sorted(planned) == [procedural_name(kernel) for kernel in found.kernels]
    for group in plan.values():
        assert len({(k.op, k.family, k.arch) for k in group}) == 1
        tiles = {k.tile for k in group}
        assert len(tiles) == 1 or FAMILIES[group[0].family].tiles_share_source
        assert len(group) <= FAMILIES[group[0].family].kernels_per_source


def test_names_follow_the_documented_spelling() -> None:
    swapped = changed(BLOCK_SM90, tile=[128, 32, 128], cluster=[1, 1, 1], swap_ab=True)
    fast = changed(FP8_SM90, swap_ab=True, fast_accum=True)
    persistent = changed(PERSISTENT_SM90, tiles=[{"tile": [64, 96, 128], "fast_accum": True}])
    entries = [swapped, fast, BLOCK_SM89, changed(QUANTIZE, arch=["90a"])]
    kernels = manifest(*entries, PERSISTENT_SM90, persistent).kernels
    assert [procedural_name(kernel) for kernel in kernels] == [
        "scaled_mm_sm89_e4m3_e4m3_f32_bf16_128x128x128_64x32x128_tnt_multistage3_1x128_1x128"
        "_block_bias",
        "scaled_mm_sm90a_bf16_bf16_f32_e4m3_quantize_rowwise",
        "scaled_mm_sm90a_e4m3_e4m3_f32_bf16_128x128x128_2x1x1_tnt_pingpong_swap_fast_scaled",
        "scaled_mm_sm90a_e4m3_e4m3_f32_bf16_128x160x128_tnt_persistent_scaled",
        "scaled_mm_sm90a_e4m3_e4m3_f32_bf16_128x32x128_1x1x1_tnt_pingpong_swap_1x128_128x128"
        "_block_bias",
        "scaled_mm_sm90a_e4m3_e4m3_f32_bf16_64x96x128_tnt_persistent_fast_scaled",
    ]


PRODUCT = "DType::e4m3, DType::e4m3, DType::f32, DType::bf16"
INTEGERS = "DType::s8, DType::s8, DType::s32, DType::bf16"
STEMS = {
    "sm90_warpspecialized": "scaled_mm_sm90a_warpspecialized",
    "sm80_multistage": "scaled_mm_sm89_multistage",
    "sm90_blockwise": "scaled_mm_sm90a_128x128x128_2x1x1_pingpong_blockwise",
    "sm90_persistent": "scaled_mm_sm90a_persistent",
    "sm89_blockwise": "scaled_mm_sm89_blockwise",
    "quantize": "scaled_mm_sm89_quantize",
}


@pytest.mark.parametrize(
    ("entry", "header", "spelled"),
    [
        (
            FP8_SM90,
            "sm90/cutlass/warpspecialized.cuh",
            f"Sm90WarpSpecialized<Arch::sm90a, {PRODUCT}, Layout::row, Layout::column,"
            " Shape3<128, 128, 128>, Shape3<2, 1, 1>, Schedule::pingpong, /*swap_ab=*/false,"
            " epilogue::scaled, /*fast_accum=*/false>",
        ),
        (
            changed(INT8_SM80, arch=["89"]),
            "sm80/multistage.cuh",
            f"Sm80Multistage<Arch::sm89, {INTEGERS}, Layout::row, Layout::column,"
            " Shape3<128, 128, 64>, Shape3<64, 64, 64>, /*stages=*/3, epilogue::scaled,"
            " /*fast_accum=*/false>",
        ),
        (
            BLOCK_SM90,
            "sm90/cutlass/blockwise.cuh",
            f"Sm90Blockwise<Arch::sm90a, {PRODUCT}, Shape3<128, 128, 128>, Shape3<2, 1, 1>,"
            " Schedule::pingpong, /*swap_ab=*/false, BlockScales::a1x128_b128x128,"
            " epilogue::block_bias>",
        ),
        (
            BLOCK_SM89,
            "sm80/sm89_blockwise.cuh",
            f"Sm89Blockwise<Arch::sm89, {PRODUCT}, Shape3<128, 128, 128>,"
            " Shape3<64, 32, 128>, /*stages=*/3, BlockScales::a1x128_b1x128, epilogue::block_bias>",
        ),
        (
            PERSISTENT_SM90,
            "sm90/native/dense.cuh",
            f"Sm90Persistent<Arch::sm90a, {PRODUCT}, Layout::row, Layout::column,"
            " Shape3<128, 160, 128>, Schedule::persistent,"
            " /*swap_ab=*/false, Shape3<1, 1, 1>, epilogue::scaled,"
            " /*fast_accum=*/false>",
        ),
        (
            changed(QUANTIZE, arch=["89"]),
            "elementwise/quantize.cuh",
            "Quantize<Arch::sm89, DType::bf16, DType::e4m3, QuantizeRecipe::rowwise>",
        ),
    ],
)
def test_a_source(entry: Table, header: str, spelled: str) -> None:
    text = rendered(entry)[f"{STEMS[entry['family']]}.cu"]
    assert text.startswith("// Generated by kernelgen from cuda/manifests/*.toml. Do not edit.")
    assert f'#include "{header}"\n' in text
    assert "\nnamespace cutwheel::scaled_mm {\nusing namespace gemm;\n" in text
    assert f"\nusing K0 = {spelled};\n" in text
    assert ("#define CUTLASS_ENABLE_GDC_FOR_SM90 1\n" in text) == (
        "_sm90a_" in STEMS[entry["family"]]
    )
    assert text.endswith("\n}  // namespace cutwheel::scaled_mm\n")


def test_fast_accum_is_spelled() -> None:
    files = rendered(FP8_SM90, changed(FP8_SM90, fast_accum=True))
    stem = STEMS["sm90_warpspecialized"]
    assert "epilogue::scaled, /*fast_accum=*/true>;" in files[f"{stem}.cu"]
    assert "/*fast_accum=*/false>;" in files[f"{stem}.cu"]
    files = rendered(PERSISTENT_SM90, changed(PERSISTENT_SM90, fast_accum=True))
    stem = STEMS["sm90_persistent"]
    assert "epilogue::scaled, /*fast_accum=*/true>;" in files[f"{stem}.cu"]
    assert "/*fast_accum=*/false>;" in files[f"{stem}.cu"]
    fast = changed(INT8_SM80, dtypes=[E4M3], arch=["89"], fast_accum=True)
    text = rendered(fast)[f"{STEMS['sm80_multistage']}.cu"]
    assert "epilogue::scaled, /*fast_accum=*/true>;" in text


def test_quantisation_of_one_architecture_is_one_source() -> None:
    fp8 = [dtypes(x, d) for x in ("bf16", "f16", "f32") for d in ("e4m3", "e5m2")]
    int8 = [dtypes(x, "s8") for x in ("bf16", "f16", "f32")]
    files = rendered(
        changed(QUANTIZE, dtypes=fp8, recipes=FP8_RECIPES),
        changed(QUANTIZE, dtypes=int8, recipes=INT8_RECIPES),
    )
    sources = [name for name in files if name.endswith(".cu")]
    assert sources == [f"scaled_mm_sm{arch}_quantize.cu" for arch in ("80", "89", "90a")]
    assert files[sources[0]].count("using K") == 36


def test_the_table() -> None:
    fast = changed(FP8_SM90, fast_accum=True)
    table = re.sub(r"\s+", " ", rendered(fast, BLOCK_SM90, QUANTIZE)["kernel_table.cpp"])
    assert "namespace cutwheel::scaled_mm { using namespace gemm; Status launch_scaled_mm_" in table
    name = "scaled_mm_sm90a_e4m3_e4m3_f32_bf16_128x128x128_2x1x1_tnt_pingpong_fast_scaled"
    assert (
        f'{{"{name}", Op::scaled_mm, Family::sm90_warpspecialized, Arch::sm90a,'
        f" /*has_ptx=*/false, {PRODUCT}, Layout::row, Layout::column, Epilogue::scaled,"
        " {128, 128, 128}, /*cluster=*/{2, 1, 1}, /*stages=*/0, Schedule::pingpong,"
        " /*swap_ab=*/false, /*fast_accum=*/true, BlockScales::none,"
        ' QuantizeRecipe::none, Grouping::none, Direction::none, "wgmma.k32",'
        f" /*assembled=*/{{}}, &scaled_mm::smem_{name},"
        f" &scaled_mm::launch_{name}, &scaled_mm::workspace_{name}}},"
    ) in table
    assert "Op::scaled_mm, Family::sm90_blockwise, Arch::sm90a," in table
    persistent = re.sub(r"\s+", " ", rendered(PERSISTENT_SM90)["kernel_table.cpp"])
    assert "Op::scaled_mm, Family::sm90_persistent, Arch::sm90a, /*has_ptx=*/false," in persistent
    assert (
        "{128, 160, 128}, /*cluster=*/{1, 1, 1}, /*stages=*/0, Schedule::persistent,"
        " /*swap_ab=*/false, /*fast_accum=*/false, BlockScales::none,"
    ) in persistent
    assert "/*fast_accum=*/false, BlockScales::a1x128_b128x128, QuantizeRecipe::none," in table
    assert (
        "Op::scaled_mm, Family::quantize, Arch::sm80, /*has_ptx=*/true, DType::bf16, DType::bf16,"
        " DType::f32, DType::e4m3, Layout::row, Layout::row, Epilogue{}, {1, 1, 1},"
    ) in table
    assert "/*fast_accum=*/false, BlockScales::none, QuantizeRecipe::rowwise," in table


COMPILER = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
def test_the_table_is_cpp(tmp_path: Path, repository: Path) -> None:
    """Against the hand-written row, whose columns and enumerators it has to know; without CUDA."""
    gemm = gemm_document(SM90, SM80, REDUCE, ELEMENTWISE)
    write_manifest(tmp_path, gemm)
    quantize = changed(QUANTIZE, recipes=FP8_RECIPES)
    integers = changed(QUANTIZE, dtypes=[dtypes("f32", "s8")], recipes=INT8_RECIPES)
    products = [FP8_SM90, INT8_SM80, BLOCK_SM90, BLOCK_SM89, PERSISTENT_SM90]
    scaled = document(*products, quantize, integers)
    write_manifest(tmp_path, scaled, "scaled")
    by_k = changed(SM90_GROUPED, layouts=["ntt"], grouping=["k"])
    write_manifest(tmp_path, gemm_document(SM90_GROUPED, SM80_GROUPED, by_k), "grouped")
    gradients = changed(SM90_CONV, direction=["dgrad", "wgrad"])
    write_manifest(tmp_path, gemm_document(SM90_CONV, SM80_CONV, gradients), "conv")
    found = load(tmp_path)
    for name, text in emit.render(found.kernels, found.epilogues, tmp_path).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "cuda_runtime_api.h").write_text("typedef struct CUstream_st* cudaStream_t;\n")
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I."]
    command += [f"-I{repository / 'cuda'}", "kernel_table.cpp"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr


def test_the_json() -> None:
    fast = changed(FP8_SM90, fast_accum=True)
    entries = [fast, BLOCK_SM90, changed(QUANTIZE, arch=["90a"])]
    data = json.loads(rendered(*entries)["manifest.json"])
    assert [(k["fast_accum"], k["scales"], k["recipe"]) for k in data["kernels"]] == [
        (False, None, "rowwise"),
        (False, "1x128_128x128", None),
        (True, None, None),
    ]
    assert data["epilogues"]["scaled"]["operands"] == EPILOGUES["scaled"]["operands"]


def test_manifests_of_two_ops_make_one_table(tmp_path: Path) -> None:
    write_manifest(tmp_path, gemm_document(SM90, SM80))
    write_manifest(tmp_path, document(FP8_SM90), "scaled")
    found = load(tmp_path)
    names = [epilogue.name for epilogue in found.epilogues]
    assert names == [*gemm_document()["epilogue"], *EPILOGUES]
    files = emit.render(found.kernels, found.epilogues, tmp_path)
    namespaces = re.findall(r"\nnamespace (cutwheel::\w+) \{\n(using)?", files["kernel_table.cpp"])
    assert namespaces == [("cutwheel::gemm", ""), ("cutwheel::scaled_mm", "using")]
    # Sources of gemm do not depend on the other manifest.
    alone = parse(gemm_document(SM90, SM80))
    for name, text in emit.render(alone.kernels, alone.epilogues, tmp_path).items():
        if name.endswith((".cu", ".cuh")):
            assert files[name] == text


def test_an_epilogue_means_the_same_in_every_manifest(tmp_path: Path) -> None:
    write_manifest(tmp_path, gemm_document(SM90))
    data = document(FP8_SM90)
    data["epilogue"]["bias_gelu"] = {"expr": "gelu(accum)"}
    write_manifest(tmp_path, data, "scaled")
    with pytest.raises(InvalidManifestError, match="declared with another expression in another"):
        load(tmp_path)
