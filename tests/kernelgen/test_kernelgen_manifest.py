"""Validation: every wrong entry is refused with its place, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import (
    REDUCE,
    SM80,
    SM90,
    Table,
    bounded,
    changed,
    document,
    dtypes,
    entries,
    write_manifest,
)

from kernelgen import generate
from kernelgen.manifest import InvalidManifestError, Manifest, load, parse
from kernelgen.naming import procedural_name

SM90_TILE = "[[kernel]] #1 (family sm90_warpspecialized), tiles[0]"
SM80_TILE = "[[kernel]] #1 (family sm80_multistage), tiles[0]"


def errors(*entries: Table) -> list[tuple[str, str]]:
    with pytest.raises(InvalidManifestError) as caught:
        parse(document(*entries), "cuda/gemm/kernels.toml")
    return [(error.entry, error.reason) for error in caught.value.errors]


def names(manifest: Manifest) -> list[str]:
    return [procedural_name(kernel) for kernel in manifest.kernels]


def test_the_manifests_of_the_repository_are_valid(repository: Path) -> None:
    manifest = load(repository)
    assert {kernel.arch.name for kernel in manifest.kernels} == {"80", "89", "90a"}
    assert [e.name for e in manifest.epilogues] == ["plain", "bias", "linear_combination"]
    for kernel in manifest.kernels:
        assert (kernel.family == "sm90_warpspecialized") <= (kernel.arch.name == "90a")


@bounded
@given(entries())
def test_an_entry_expands_to_the_product_of_its_lists(entry: Table) -> None:
    expected = 1
    for axis in ("arch", "dtypes", "layouts", "epilogue", "tiles"):
        expected *= len(entry[axis])
    found = names(parse(document(entry)))
    assert len(found) == len(set(found)) == expected
    assert found == sorted(found)


# The grammar of names, spelled a second time on purpose: everything outside the build reads them.
NAME = re.compile(
    r"(?P<op>gemm)_sm(?P<arch>80|89|90a)_(?P<a>\w+?)_(?P<b>\w+?)_(?P<acc>f32)_(?P<d>f32|f16|bf16)"
    r"_(?P<tile>\d+x\d+x\d+)_(?P<second>\d+x\d+x\d+)_(?P<layout>[tn]{2}t)"
    r"_(?P<schedule>pingpong|cooperative|streamk|warpspecialized|multistage)(?P<stages>\d+)?"
    r"(?P<swap>_swap)?_(?P<epilogue>plain|linear_combination)"
)


@bounded
@given(entries())
def test_a_name_says_everything_about_its_kernel(entry: Table) -> None:
    for kernel in parse(document(entry)).kernels:
        match = NAME.fullmatch(procedural_name(kernel))
        assert match is not None, procedural_name(kernel)
        field, tile = match.groupdict(), kernel.tile
        assert (field["arch"], field["layout"]) == (kernel.arch.name, kernel.layout)
        types = kernel.dtypes
        spelled = (field["a"], field["b"], field["acc"], field["d"])
        assert spelled == (types.a, types.b, types.acc, types.d)
        assert field["tile"] == "x".join(map(str, tile.shape))
        assert field["second"] == "x".join(map(str, tile.warp or tile.cluster))
        assert field["schedule"] == tile.schedule
        assert field["stages"] == (str(tile.stages) if tile.stages else None)
        assert bool(field["swap"]) == tile.swap_ab
        assert kernel.epilogue is not None
        assert field["epilogue"] == kernel.epilogue.name


def test_names_follow_the_documented_spelling() -> None:
    swapped = changed(SM90, tile=[64, 16, 128], cluster=[1, 1, 1], swap_ab=True)
    assert names(parse(document(SM90, swapped, SM80, REDUCE))) == [
        "gemm_sm80_f16_f16_f32_f16_128x128x32_64x64x32_tnt_multistage3_linear_combination",
        "gemm_sm80_f32_f32_f32_bf16_splitk_reduce",
        "gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_2x1x1_tnt_pingpong_plain",
        "gemm_sm90a_bf16_bf16_f32_bf16_64x16x128_1x1x1_tnt_pingpong_swap_plain",
    ]
    narrow = names(parse(document(changed(SM80, alignment=2))))
    assert "_multistage3_align2_linear_combination" in narrow[0]


# Changes that make any valid entry invalid, with a part of the text that must come.
MUTATIONS: dict[str, tuple[Callable[[Table], Table], str]] = {
    "family": (lambda e: changed(e, family="sm70"), "unknown family 'sm70'"),
    "no family": (lambda e: {k: v for k, v in e.items() if k != "family"}, "'family' is missing"),
    "key": (lambda e: {**e, "layuots": ["tnt"]}, "unknown key 'layuots'; allowed: family, arch"),
    "missing key": (lambda e: {k: v for k, v in e.items() if k != "tiles"}, "'tiles' is missing"),
    "arch": (lambda e: changed(e, arch=["90"]), "unknown architecture '90'; allowed: "),
    "no list": (lambda e: changed(e, arch="80"), "arch must be a list"),
    "empty": (lambda e: changed(e, layouts=[]), "layouts must be a list of at least one"),
    "repeated": (lambda e: {**e, "layouts": ["tnt", "tnt"]}, "layouts[1]: repeats layouts[0]"),
    "layout": (lambda e: changed(e, layouts=["tnn"]), "unknown layout 'tnn'; allowed: tnt, ttt"),
    "dtype": (lambda e: changed(e, dtypes=[dtypes("f8", "f16")]), "a: unknown dtype 'f8'"),
    "dtypes": (
        lambda e: changed(e, dtypes=[dtypes("bf16", "f16")]),
        "combination bf16_bf16_f32_f16 (a_b_acc_d); supported: f16_f16_f32_f16, ",
    ),
    "mixed": (lambda e: changed(e, dtypes=[dtypes("f16", "f16", b="bf16")]), "f16_bf16_f32_f16"),
    "dtype key": (lambda e: changed(e, dtypes=[{"a": "f16"}]), "dtypes[0]: key 'b' is missing"),
    "epilogue": (
        lambda e: changed(e, epilogue=["gelu"]),
        "unknown epilogue 'gelu'; allowed: plain, linear_combination",
    ),
    "tile": (lambda e: changed(e, tile=[128, 128]), "tile: must be three positive integers"),
    "tile type": (lambda e: changed(e, tile=[128, True, 64]), "tile: must be three positive"),
    "zero": (lambda e: changed(e, tile=[128, 0, 64]), "tile: must be three positive integers"),
    "tile key": (lambda e: changed(e, tiles=[{"shape": [1, 1, 1]}]), "unknown key 'shape'"),
    "smem": (lambda e: changed(e, tile=[128, 128, 4096]), "needs too much shared memory for sm"),
    "alignment": (lambda e: changed(e, alignment=3), "alignment of 3 elements is "),
    "no alignment": (lambda e: changed(e, alignment=0), "must be a positive integer, not 0"),
}


@bounded
@given(entry=entries(), others=st.booleans())
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_entry_is_refused_and_nothing_is_written(
    mutation: str,
    entry: Table,
    others: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    change, text = MUTATIONS[mutation]
    wrong = change(deepcopy(entry))
    data = document(REDUCE, wrong, changed(REDUCE, arch=["89"])) if others else document(wrong)
    root = tmp_path_factory.mktemp("root")
    write_manifest(root, data)
    number = 2 if others else 1
    with pytest.raises(InvalidManifestError) as caught:
        load(root)
    assert all(error.file == "cuda/gemm/kernels.toml" for error in caught.value.errors)
    assert all(error.entry.startswith(f"[[kernel]] #{number}") for error in caught.value.errors)
    assert text in str(caught.value)
    output = root / "generated"
    assert generate.main(["--source-dir", str(root), "--output-dir", str(output)]) == 1
    assert not output.exists()


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [96, 128, 64]}, "tile M = 96 is no multiple of 64, as pingpong needs"),
        ({"tile": [64, 128, 64], "schedule": "cooperative"}, "no multiple of 128, as cooperative"),
        ({"tile": [64, 128, 64], "schedule": "streamk"}, "no multiple of 128, as streamk"),
        ({"tile": [128, 100, 64]}, "tile N = 100; wgmma takes multiples of 8 up to 256"),
        ({"tile": [64, 264, 32]}, "tile N = 264; wgmma takes"),
        ({"tile": [128, 128, 48]}, "tile K = 48 of 2-byte elements is 96 bytes"),
        ({"cluster": [1, 3, 1]}, "cluster 1x3x1; M and N are 1, 2 or 4"),
        ({"cluster": [4, 4, 1]}, "cluster 4x4x1"),
        ({"cluster": [1, 1, 2]}, "cluster 1x1x2"),
        ({"tile": [64, 8, 64]}, "tile N = 8 is multicast to cluster M = 2 threadblocks"),
        ({"schedule": "multistage"}, "unknown schedule 'multistage'; allowed: pingpong, "),
        ({"swap_ab": 1}, "swap_ab: must be true or false, not 1"),
        ({"alignment": 4}, "8 bytes; TMA needs exactly 16 bytes (8 elements)"),
        ({"stages": 3}, "unknown key 'stages'; allowed: tile, cluster, schedule, swap_ab, alig"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
    ],
)
def test_rules_of_sm90_warpspecialized(values: Table, text: str) -> None:
    found = errors(changed(SM90, **values))
    assert len(found) == 1, found
    assert text in ": ".join(found[0])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [128, 96, 32]}, "tile 128x96x32 is not divisible by warp 64x64x32"),
        ({"tile": [256, 160, 32], "warp": [32, 32, 32]}, "takes 40 warps of 32x32x32; at most 16"),
        ({"warp": [64, 64, 16]}, "16-bit operands need multiples of 16x8x32 (mma 16x8x16"),
        ({"tile": [48, 64, 32], "warp": [24, 32, 32]}, "warp 24x32x32; 16-bit operands"),
        ({"stages": 1}, "stages = 1; 2 to 8 are supported"),
        ({"stages": 9, "tile": [64, 64, 32]}, "stages = 9"),
        ({"alignment": 1}, "2 bytes; cp.async moves 4, 8 or 16 bytes (2, 4, 8 elements)"),
        ({"cluster": [1, 1, 1]}, "unknown key 'cluster'; allowed: tile, warp, stages, alignment"),
        ({"arch": ["90a"]}, "unknown architecture '90a'; allowed: 80, 89"),
    ],
)
def test_rules_of_sm80_multistage(values: Table, text: str) -> None:
    found = errors(changed(SM80, **values))
    assert len(found) == 1, found
    assert text in ": ".join(found[0])


def test_tf32_has_its_own_mma_shape() -> None:
    tf32 = changed(SM80, dtypes=[dtypes("tf32", "f32")], tile=[128, 128, 24], warp=[64, 64, 24])
    assert "32-bit operands need multiples of 16x8x16 (mma 16x8x8" in errors(tf32)[0][1]
    assert parse(document(changed(tf32, tile=[128, 128, 16], warp=[64, 64, 16])))


@pytest.mark.parametrize(("layout", "swap_ab"), [("ttt", True), ("nnt", False)])
def test_tf32_of_sm90_needs_b_k_major_or_a_not(layout: str, swap_ab: bool) -> None:
    tf32 = changed(SM90, dtypes=[dtypes("tf32", "f32")], layouts=[layout], tile=[128, 128, 32])
    assert parse(document(changed(tf32, swap_ab=swap_ab)))
    found = errors(changed(tf32, swap_ab=not swap_ab))
    assert len(found) == 1
    assert found[0][1].startswith(f"layout {layout} with{'out' if swap_ab else ''} swap_ab has A")
    assert found[0][1].endswith(f"set swap_ab = {str(swap_ab).lower()}")
    assert parse(document(changed(SM90, layouts=[layout], swap_ab=not swap_ab)))


def test_shared_memory_is_that_of_the_architecture() -> None:
    entry = changed(SM80, arch=["80", "89"], tile=[128, 128, 64], warp=[64, 64, 64], stages=4)
    assert errors(entry) == [
        (
            SM80_TILE,
            "needs too much shared memory for sm89: 4 stages x (128 + 128) x 64 x 2"
            " = 131072 bytes, but a threadblock has at most 101376 bytes (99 KiB)",
        )
    ]


def test_the_epilogue_counts_in_shared_memory() -> None:
    """64 rows of C and D fit beside the mainloop of 16-bit output, 128 rows of f32 do not."""
    tile = {"tile": [256, 160, 128], "cluster": [1, 1, 1], "schedule": "cooperative"}
    entry = changed(SM90, tiles=[tile])
    assert parse(document(entry))
    entry = changed(entry, dtypes=[dtypes("bf16", "f32")], epilogue=["linear_combination"])
    assert errors(entry) == [
        (
            SM90_TILE,
            "needs too much shared memory for sm90a: 2 stages x ((256 + 160) x 128 x 2 + 16)"
            " + epilogue 4 x 128 x 32 x 4 = 278560 bytes, but a threadblock has at most"
            " 232448 bytes (227 KiB)",
        )
    ]


def test_all_errors_are_reported_at_once() -> None:
    wrong = changed(SM90, layouts=["xxx"], cluster=[3, 1, 1], tile=[100, 100, 100])
    found = errors(wrong, changed(SM90, tile=[100, 100, 100]), changed(SM80, stages=9))
    assert [entry[:13] for entry, _ in found] == (
        ["[[kernel]] #1"] * 5 + ["[[kernel]] #2"] * 3 + ["[[kernel]] #3"]
    )


def test_duplicates_name_both_entries() -> None:
    found = errors(SM90, SM80, changed(SM90, layouts=["ttt", "tnt"]))
    assert found == [
        (
            "[[kernel]] #3 (family sm90_warpspecialized), tiles[0]",
            "kernel gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_2x1x1_tnt_pingpong_plain"
            f" is already declared by {SM90_TILE}",
        )
    ]


def test_a_family_without_tiles_takes_no_tile_keys() -> None:
    found = errors({**REDUCE, "layouts": ["tnt"]})
    assert found[0][1] == "unknown key 'layouts'; allowed: family, arch, dtypes"
    assert len(parse(document(changed(REDUCE, arch=["80", "89", "90a"]))).kernels) == 3


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"expr": "gelu(accum)"}, '[epilogue.mine] expr: column 1 of "gelu(accum)": function call'),
        ({"expr": "alpha * accum - 1"}, 'operator "-"; supported: "alpha * accum", "alpha * acc'),
        ({"expr": 1}, "[epilogue.mine] expr: must be a string"),
        ({}, "[epilogue.mine]: key 'expr' is missing"),
        ({"expr": "alpha * accum", "opernads": {}}, "unknown key 'opernads'"),
        (
            {"expr": "alpha * accum", "operands": {"bias": "col[M]"}},
            'bias = \'col[M]\' is not supported; supported: c = "matrix[M,N]", bias = "row[N]"',
        ),
        ({"expr": "alpha * accum", "operands": []}, "operands: must be a table"),
    ],
)
def test_a_wrong_epilogue_is_refused_once(body: Table, text: str) -> None:
    data = document(changed(SM90, epilogue=["mine"]))
    data["epilogue"]["mine"] = body
    with pytest.raises(InvalidManifestError) as caught:
        parse(data)
    assert len(caught.value.errors) == 1
    assert text in str(caught.value)


def test_the_name_of_an_epilogue_is_an_identifier() -> None:
    data = document(SM90)
    data["epilogue"]["Mine-2"] = {"expr": "alpha * accum"}
    with pytest.raises(InvalidManifestError, match="made of a-z"):
        parse(data)


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifestError, match="no manifest found"):
        load(tmp_path)
    path = write_manifest(tmp_path, document(SM90))
    path.write_text("[[kernel]\n", encoding="utf-8")
    with pytest.raises(InvalidManifestError, match=r"cuda/gemm/kernels.toml: not valid TOML: .*1"):
        load(tmp_path)


def test_an_entry_belongs_to_the_manifest_of_its_op(tmp_path: Path) -> None:
    write_manifest(tmp_path, document(SM90), op="conv2d")
    with pytest.raises(InvalidManifestError, match=r"belongs to cuda/gemm/kernels\.toml"):
        load(tmp_path)


def test_top_level_typos_are_refused() -> None:
    with pytest.raises(InvalidManifestError, match="unknown key 'kernels'; allowed: epilogue, ker"):
        parse({**document(SM90), "kernels": []})
    with pytest.raises(InvalidManifestError, match=r"must be an array of tables: \[\[kernel\]\]"):
        parse({**document(), "kernel": SM90})
