"""Grouped products: the rules of their families, names, sources and rows of the table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import (
    SM80,
    SM80_GROUPED,
    SM90,
    SM90_GROUPED,
    Table,
    bounded,
    changed,
    declared,
    document,
    dtypes,
    errors_of,
    subsets,
    write_manifest,
)
from kernelgen_scaled_cases import E4M3, FP8_PAIRS, FP8_SM90
from kernelgen_scaled_cases import document as scaled_document

from kernelgen.emit import render
from kernelgen.families import FAMILIES
from kernelgen.generate import main
from kernelgen.manifest import InvalidManifestError, Manifest, load, parse
from kernelgen.naming import procedural_name

TF32 = dtypes("tf32", "f32")
BY_K = {"layouts": ["ntt"], "grouping": ["k"]}
# An epilogue that 8-bit operands may have.
SCALED = {"expr": "scale * accum", "operands": {"scale": "row[N] f32"}}


def manifest(*entries: Table) -> Manifest:
    return parse(declared(document(*entries), scaled=SCALED))


def errors(entry: Table, **values: Any) -> list[tuple[str, str]]:
    data = declared(document(changed(entry, **values)), scaled=SCALED)
    return errors_of(data)


def one_error(entry: Table, **values: Any) -> str:
    found = errors(entry, **values)
    assert len(found) == 1, found
    return ": ".join(found[0])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [256, 128, 64]}, "tile M = 256; one or two warpgroups take 64 rows each: 64 or"),
        ({"tile": [128, 8, 64]}, "tile N = 8; rows of D are made of 16 columns"),
        ({"tile": [64, 272, 64]}, "tile N = 272; rows of D are made of 16 columns"),
        (
            {"dtypes": [TF32], "tile": [128, 160, 32]},
            "no wgmma of tf32 and tf32 in that width here; N is one of 16, 32, 64, 96, 128, 192, 2",
        ),
        ({"dtypes": [TF32], "tile": [64, 208, 32]}, "tile N = 208 is multiplied 208 columns at a"),
        ({"tile": [128, 128, 128]}, "tile K = 128; it is 64: one swizzle spans 128 bytes"),
        ({"tile": [128, 128, 32]}, "tile K = 32; it is 64: one swizzle spans 128 bytes"),
        ({"dtypes": [TF32]}, "tile K = 64; it is 32: one swizzle spans 128 bytes"),
        (
            {"layouts": ["ttt"], "tile": [128, 96, 64]},
            "tile N = 96 with layout ttt; of a row-major B one swizzle spans 64 columns: N must be",
        ),
        ({**BY_K, "tile": [128, 32, 64]}, "tile N = 32 with layout ntt; of a row-major B one swi"),
        ({"cluster": [1, 1, 1]}, "unknown key 'cluster'; allowed: tile, fast_accum, schedule"),
        (
            {"schedule": "cooperative"},
            "unknown schedule 'cooperative'; allowed: persistent, pingpong",
        ),
        ({"fast_accum": True}, "fast_accum with bf16 operands; only sums of fp8 products can stay"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
        ({"dtypes": [dtypes("s8", "bf16", acc="s32")]}, "combination s8_s8_s32_bf16"),
        ({"dtypes": [dtypes("bf16", "f16")]}, "combination bf16_bf16_f32_f16"),
    ],
)
def test_rules_of_sm90_grouped(values: Table, text: str) -> None:
    assert text in one_error(SM90_GROUPED, **values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"warp": [64, 64, 16]}, "16-bit operands need multiples of 16x16x32 (pairs of mma"),
        ({"tile": [128, 96, 32]}, "tile 128x96x32 is not divisible by warp 64x64x32"),
        ({"stages": 9, "tile": [64, 64, 32]}, "stages = 9; 2 to 8 are supported"),
        ({"swap_ab": True}, "unknown key 'swap_ab'; allowed: tile, warp, stages, fast_accum"),
        ({"arch": ["90a"]}, "unknown architecture '90a'; allowed: 80, 89"),
        ({"dtypes": [dtypes("s8", "bf16", acc="s32")]}, "combination s8_s8_s32_bf16"),
        ({"fast_accum": True}, "fast_accum with bf16 operands; only sums of fp8 products can stay"),
        (
            {"stages": 8, "arch": ["89"]},
            "8 stages x (128 + 128) x 32 x 2 + 8200 for the ends of groups = 139272 bytes, but a",
        ),
    ],
)
def test_rules_of_sm80_grouped(values: Table, text: str) -> None:
    assert text in one_error(SM80_GROUPED, **values)


@pytest.mark.parametrize("entry", [SM90_GROUPED, SM80_GROUPED])
@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"layouts": ["ntt"]},
            "layout ntt with grouping rows; bf16 operands have tnt or ttt",
        ),
        ({"grouping": ["k"]}, "layout tnt with grouping k; bf16 operands have ntt there"),
        ({**BY_K, "layouts": ["ttt"]}, "layout ttt with grouping k; bf16 operands have ntt there"),
        ({"layouts": ["nnt"]}, "unknown layout 'nnt'; allowed: tnt, ttt, ntt"),
        ({"grouping": ["columns"]}, "unknown grouping 'columns'; allowed: rows, k"),
        ({"grouping": ["k", "k"], "layouts": ["ntt"]}, "grouping[1]: repeats grouping[0]"),
        ({"grouping": []}, "grouping must be a list of at least one item"),
        ({"epilogue": ["silu_backward"]}, "epilogue silu_backward does not use accum; it is for"),
    ],
)
def test_rules_of_groups(entry: Table, values: Table, text: str) -> None:
    assert text in one_error(entry, **values)


@pytest.mark.parametrize("entry", [SM90_GROUPED, SM80_GROUPED])
@pytest.mark.parametrize("grouping", ["rows", "k"])
def test_32_bit_operands_have_one_layout(entry: Table, grouping: str) -> None:
    k = 32 if entry is SM90_GROUPED else 16
    tf32 = changed(entry, dtypes=[TF32], grouping=[grouping], tile=[128, 128, k])
    if entry is SM80_GROUPED:
        tf32 = changed(tf32, warp=[64, 64, k])
    assert manifest(tf32)
    for layout in ("ttt", "ntt"):
        text = f"layout {layout} with grouping {grouping}; tf32 operands have tnt there"
        assert text in one_error(tf32, layouts=[layout])


def test_8_bit_operands() -> None:
    every = [dtypes(a, d, b=b) for a, b in FP8_PAIRS for d in ("bf16", "f16", "f32")]
    wide = {"tile": [128, 256, 128]}
    fp8 = changed(
        SM90_GROUPED,
        dtypes=every,
        epilogue=["scaled"],
        tiles=[wide, {**wide, "fast_accum": True}],
    )
    assert len(manifest(fp8).kernels) == 2 * len(every)
    fp8 = changed(SM90_GROUPED, dtypes=[E4M3], epilogue=["scaled"], tile=[128, 160, 128])
    assert manifest(fp8)
    assert "tensor cores read 8-bit operands K-major only" in one_error(fp8, layouts=["ttt"])
    assert "grouping k with e4m3 operands; scaled products have groups of rows only" in one_error(
        fp8, grouping=["k"]
    )
    assert "epilogue plain is one of mm and addmm, with alpha or beta; products of 8-bit" in (
        one_error(fp8, epilogue=["plain"])
    )


def test_grouping_belongs_to_grouped_families() -> None:
    for entry in (SM90, SM80):
        found = errors_of(document({**entry, "grouping": ["rows"]}))
        assert "unknown key 'grouping'; allowed: family, arch, dtypes, layouts" in found[0][1]
    for entry in (SM90_GROUPED, SM80_GROUPED):
        assert {kernel.op for kernel in manifest(entry).kernels} == {"grouped_mm"}
        del (without := changed(entry))["grouping"]
        assert errors(without)[0][1] == "key 'grouping' is missing"


WIDE = {"expr": "silu(even(z)) * odd(z)", "aux": {"z": "accum"}}


@pytest.mark.parametrize(
    ("body", "values", "arithmetic"),
    [
        (
            {"expr": "accum"},
            {},
            "2 stages x ((128 + 128) x 128 + 16) + staged rows 128 x 256 =",
        ),
        (
            {"expr": "accum"},
            {"tile": [64, 256, 64]},
            "((64 + 256) x 128 + 16) + staged rows 64 x",
        ),
        (
            {"expr": "accum"},
            {"dtypes": [TF32], "tile": [128, 256, 32]},
            "((128 + 256) x 128 + 16) + staged rows 128 x 512 =",
        ),
        (
            {"expr": "accum + v", "operands": {"v": "row[N]"}},
            {},
            "+ staged rows 128 x 256 + vectors 2 x (128 x 2) =",
        ),
        # D has half the columns. An auxiliary output has all, and takes turns with it.
        ({"expr": "even(accum) * odd(accum)"}, {}, "+ staged rows 128 x 128 ="),
        (WIDE, {}, "+ staged rows 128 x 256 ="),
        (WIDE, {"tile": [128, 256, 64]}, "+ staged rows 128 x 512 ="),
        # With pingpong a warpgroup has all rows of a tile: of groups of K they leave by 128 bytes.
        ({"expr": "accum"}, {"schedule": "pingpong"}, "+ staged rows 128 x 256 ="),
        ({"expr": "accum"}, {"schedule": "pingpong", **BY_K}, "+ staged rows 128 x 128 ="),
        (WIDE, {"dtypes": [TF32], "tile": [128, 192, 32]}, "+ staged rows 128 x 384 ="),
        ({"expr": "2 * z", "aux": {"z": "accum"}}, {}, "+ staged rows 128 x 256 ="),
    ],
)
def test_shared_memory_of_sm90_grouped(body: Table, values: Table, arithmetic: str) -> None:
    entry = changed(SM90_GROUPED, epilogue=["mine"], **values)
    (kernel,) = parse(declared(document(entry), mine=body)).kernels
    total, terms = FAMILIES[kernel.family].shared_memory(kernel)
    assert arithmetic in terms
    assert terms.endswith(f" = {total} bytes")


def test_half_a_row_is_stored_in_pieces_of_32_bytes() -> None:
    entry = changed(SM90_GROUPED, dtypes=[E4M3], epilogue=["mine"], tile=[64, 80, 128])
    data = declared(document(entry), mine=WIDE)
    assert "with epilogue mine a row of D is 80 bytes" in errors_of(data)[0][1]
    assert parse(declared(document(changed(entry, tile=[64, 96, 128])), mine=WIDE))


def test_shared_memory_of_sm80_grouped() -> None:
    (kernel,) = manifest(SM80_GROUPED).kernels
    need = FAMILIES["sm80_grouped"].shared_memory(kernel)
    terms = "4 stages x (128 + 128) x 32 x 2 + 8200 for the ends of groups = 73736 bytes"
    assert need == (73736, terms)


@st.composite
def entries(draw: st.DrawFn) -> Table:
    """A valid entry of a family with groups."""
    entry = changed(draw(st.sampled_from([SM90_GROUPED, SM80_GROUPED])))
    entry["dtypes"] = draw(subsets([dtypes(x, d) for x in ("f16", "bf16") for d in (x, "f32")]))
    entry["epilogue"] = draw(subsets(["plain", "linear_combination", "bias_gelu", "gated_aux"]))
    if entry["family"] == "sm90_grouped" and draw(st.booleans()):
        entry["tiles"] = [{**tile, "schedule": "pingpong"} for tile in entry["tiles"]]
    if draw(st.booleans()):
        return changed(entry, **BY_K)
    return changed(entry, layouts=draw(subsets(["tnt", "ttt"])))


# The grammar of names, spelled a second time on purpose: everything outside the build reads them.
NAME = re.compile(
    r"grouped_mm_(?P<arch>sm80|sm90a)_(?P<dtypes>\w+?_\w+?_f32_\w+?)_(?P<tile>\d+x\d+x\d+)"
    r"(_(?P<warp>\d+x\d+x\d+))?_(?P<layout>[tn]{2}t)_(?P<mode>persistent|pingpong|multistage4)"
    r"_(?P<grouping>rows|k)_(?P<epilogue>plain|linear_combination|bias_gelu|gated_aux)"
)


@bounded
@given(entries())
def test_a_name_says_everything_about_its_kernel(entry: Table) -> None:
    kernels = manifest(entry).kernels
    expected = 1
    for axis in ("dtypes", "layouts", "grouping", "epilogue"):
        expected *= len(entry[axis])
    assert len({procedural_name(kernel) for kernel in kernels}) == len(kernels) == expected
    for kernel in kernels:
        match = NAME.fullmatch(procedural_name(kernel))
        assert match is not None, procedural_name(kernel)
        assert kernel.epilogue is not None
        assert match["arch"] == kernel.arch.sm
        assert match["dtypes"] == str(kernel.dtypes)
        assert match["layout"] == kernel.layout
        assert match["grouping"] == kernel.grouping
        assert match["epilogue"] == kernel.epilogue.name
        assert (match["warp"] is None) == (kernel.family == "sm90_grouped")


def test_names_follow_the_documented_spelling() -> None:
    fast = changed(
        SM90_GROUPED, dtypes=[E4M3], epilogue=["scaled"], tile=[64, 128, 128], fast_accum=True
    )
    kernels = manifest(SM90_GROUPED, changed(SM80_GROUPED, **BY_K), fast).kernels
    assert [procedural_name(kernel) for kernel in kernels] == [
        "grouped_mm_sm80_bf16_bf16_f32_bf16_128x128x32_64x64x32_ntt_multistage4_k_plain",
        "grouped_mm_sm90a_bf16_bf16_f32_bf16_128x128x64_tnt_persistent_rows_plain",
        "grouped_mm_sm90a_e4m3_e4m3_f32_bf16_64x128x128_tnt_persistent_fast_rows_scaled",
    ]


PRODUCT = "DType::bf16, DType::bf16, DType::f32, DType::bf16"


def rendered(*entries: Table) -> dict[str, str]:
    found = manifest(*entries)
    return render(found.kernels, found.epilogues, Path("/out"))


def test_tiles_and_groupings_of_sm90_share_a_source() -> None:
    narrow = changed(SM90_GROUPED, tile=[64, 128, 64], layouts=["ttt"])
    files = rendered(SM90_GROUPED, narrow, changed(SM90_GROUPED, **BY_K))
    assert [name for name in files if name.endswith(".cu")] == ["grouped_mm_sm90a_grouped.cu"]
    text = files["grouped_mm_sm90a_grouped.cu"]
    assert text.startswith("// Generated by kernelgen from cuda/manifests/*.toml. Do not edit.")
    assert "#define CUTLASS_ENABLE_GDC_FOR_SM90 1\n" in text
    assert '#include "sm90/native/grouped.cuh"\n' in text
    assert "\nnamespace cutwheel::grouped_mm {\nusing namespace gemm;\n" in text
    assert re.findall(r"\nusing K\d = (.*);", text) == [
        f"Sm90Grouped<Arch::sm90a, {PRODUCT}, {layouts}, Shape3<{tile}>,"
        f" Schedule::persistent, Grouping::{grouping}, epilogue::plain, /*fast_accum=*/false>"
        for layouts, tile, grouping in (
            ("Layout::column, Layout::row", "128, 128, 64", "k"),
            ("Layout::row, Layout::column", "128, 128, 64", "rows"),
            ("Layout::row, Layout::row", "64, 128, 64", "rows"),
        )
    ]


def test_a_source_of_sm80_grouped() -> None:
    files = rendered(SM80_GROUPED, changed(SM80_GROUPED, **BY_K))
    text = files["grouped_mm_sm80_grouped.cu"]
    assert '#include "sm80/grouped.cuh"\n' in text
    for layouts, grouping in (("row, Layout::column", "rows"), ("column, Layout::row", "k")):
        assert (
            f"Sm80Grouped<Arch::sm80, {PRODUCT}, Layout::{layouts}, Shape3<128, 128, 32>,"
            f" Shape3<64, 64, 32>, /*stages=*/4, Grouping::{grouping}, epilogue::plain>;"
        ) in text


def test_the_table_and_the_json() -> None:
    files = rendered(changed(SM90_GROUPED, **BY_K))
    name = "grouped_mm_sm90a_bf16_bf16_f32_bf16_128x128x64_ntt_persistent_k_plain"
    table = re.sub(r"\s+", " ", files["kernel_table.cpp"])
    assert "namespace cutwheel::grouped_mm { using namespace gemm; Status launch_grouped_" in table
    assert (
        f'{{"{name}", Op::grouped_mm, Family::sm90_grouped, Arch::sm90a, /*has_ptx=*/false,'
        f" {PRODUCT}, Layout::column, Layout::row, Epilogue::plain, {{128, 128, 64}},"
        " /*cluster=*/{1, 1, 1}, /*stages=*/0, Schedule::persistent, /*swap_ab=*/false,"
        " /*fast_accum=*/false, BlockScales::none, QuantizeRecipe::none,"
        ' Grouping::k, Direction::none, "wgmma.k16",'
        f" /*assembled=*/{{}}, &grouped_mm::smem_{name},"
        f" &grouped_mm::launch_{name}, &grouped_mm::workspace_{name}}},"
    ) in table
    (row,) = json.loads(files["manifest.json"])["kernels"]
    assert (row["op"], row["family"], row["grouping"]) == ("grouped_mm", "sm90_grouped", "k")


def test_epilogues_of_later_manifests_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Manifests are read in the order of their paths: scaled_mm comes behind grouped_mm."""
    write_manifest(tmp_path, document(SM90))
    fp8 = changed(SM90_GROUPED, dtypes=[E4M3], epilogue=["scaled"], tile=[128, 128, 128])
    write_manifest(tmp_path, {"epilogue": {}, "kernel": [SM90_GROUPED, fp8]}, "grouped")
    write_manifest(tmp_path, scaled_document(FP8_SM90), "scaled")
    used = [k.epilogue.name for k in load(tmp_path).kernels if k.epilogue and k.op == "grouped_mm"]
    assert used == ["plain", "scaled"]
    unknown = {"epilogue": {}, "kernel": [changed(SM90_GROUPED, epilogue=["unscaled"])]}
    write_manifest(tmp_path, unknown, "grouped")
    with pytest.raises(InvalidManifestError, match="unknown epilogue 'unscaled'; allowed: plain, "):
        load(tmp_path)
    assert main(["--source-dir", str(tmp_path), "--list"]) == 1
    assert "cuda/manifests/grouped.toml: [[kernel]] #1 (family sm90_grouped), epilogue[0]" in (
        capsys.readouterr().err
    )
