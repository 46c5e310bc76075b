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
    ELEMENTWISE,
    REDUCE,
    SM80,
    SM90,
    Table,
    bounded,
    changed,
    declared,
    document,
    dtypes,
    entries,
    errors,
    write_manifest,
)

from kernelgen import generate
from kernelgen.manifest import InvalidManifestError, Manifest, load, parse
from kernelgen.naming import procedural_name

SM90_TILE = "[[kernel]] #1 (family sm90_warpspecialized), tiles[0]"
SM80_TILE = "[[kernel]] #1 (family sm80_multistage), tiles[0]"


def names(manifest: Manifest) -> list[str]:
    return [procedural_name(kernel) for kernel in manifest.kernels]


def test_the_manifests_of_the_repository_are_valid(repository: Path) -> None:
    manifest = load(repository)
    assert {kernel.arch.name for kernel in manifest.kernels} == {"80", "89", "90a"}
    assert {e.name: e.addend for e in manifest.epilogues if e.addend != "other"} == {
        "plain": "none",
        "bias": "row",
        "linear_combination": "matrix",
    }
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
    r"_(?P<tile>\d+x\d+x\d+)(_(?P<second>\d+x\d+x\d+))?_(?P<layout>[tn]{2}t)"
    r"_(?P<schedule>pingpong|cooperative|persistent|multistage)"
    r"(?P<stages>\d+)?(?P<swap>_swap)?(_split(?P<splits>\d)|_multicast(\dx\d)?)?_(?P<epilogue>plain|linear_combination|bias_gelu|gated_aux)"
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
        if kernel.family == "sm90_persistent":
            assert field["second"] is None
            assert (1, 1, int(field["splits"] or 1)) == tile.cluster
        else:
            assert field["second"] == "x".join(map(str, tile.warp or tile.cluster))
            assert field["splits"] is None
        assert field["schedule"] == tile.schedule
        assert field["stages"] == (str(tile.stages) if tile.stages else None)
        assert bool(field["swap"]) == tile.swap_ab
        assert kernel.epilogue is not None
        assert field["epilogue"] == kernel.epilogue.name


def test_names_follow_the_documented_spelling() -> None:
    swapped = changed(SM90, tile=[64, 16, 128], cluster=[1, 1, 1], swap_ab=True)
    assert names(parse(document(SM90, swapped, SM80, REDUCE, ELEMENTWISE))) == [
        "gemm_sm80_bf16_bf16_f32_bf16_elementwise_silu_backward",
        "gemm_sm80_f16_f16_f32_f16_128x128x32_64x64x32_tnt_multistage3_linear_combination",
        "gemm_sm80_f32_f32_f32_bf16_splitk_reduce",
        "gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_2x1x1_tnt_pingpong_plain",
        "gemm_sm90a_bf16_bf16_f32_bf16_64x16x128_1x1x1_tnt_pingpong_swap_plain",
    ]


# Changes that make any valid entry invalid, with a part of the text that must come: one of those
# between bars, where families differ.
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
        "unknown epilogue 'gelu'; allowed: plain, linear_combination, bias_gelu, gated_aux, ",
    ),
    "tile": (lambda e: changed(e, tile=[128, 128]), "tile: must be three positive integers"),
    "tile type": (lambda e: changed(e, tile=[128, True, 64]), "tile: must be three positive"),
    "zero": (lambda e: changed(e, tile=[128, 0, 64]), "tile: must be three positive integers"),
    "tile key": (lambda e: changed(e, tiles=[{"shape": [1, 1, 1]}]), "unknown key 'shape'"),
    "smem": (lambda e: changed(e, tile=[128, 128, 4096]), "needs too much shared memory for sm"),
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
    assert all(error.file == "cuda/manifests/gemm.toml" for error in caught.value.errors)
    assert all(error.entry.startswith(f"[[kernel]] #{number}") for error in caught.value.errors)
    assert any(one in str(caught.value) for one in text.split(" | "))
    output = root / "generated"
    assert generate.main(["--source-dir", str(root), "--output-dir", str(output)]) == 1
    assert not output.exists()


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
        (
            {"expr": "swish(accum)"},
            '[epilogue.mine] expr: column 1 of "swish(accum)": unknown function "swish"',
        ),
        ({"expr": "alpha * accum %\n 2"}, 'expr: column 15 of "alpha * accum %  2": operator "%"'),
        ({"expr": "z", "aux": {"z": "accum +"}}, '[epilogue.mine] aux z: column 8 of "accum +": '),
        ({"expr": 1}, "[epilogue.mine] expr: must be a string, not 1"),
        ({}, "[epilogue.mine]: key 'expr' is missing"),
        ({"expr": "alpha * accum", "opernads": {}}, "unknown key 'opernads'; allowed: expr, op"),
        (
            {"expr": "alpha * accum", "operands": {"bias": "column[M]"}},
            'operands: bias = "column[M]" is no kind of operand; allowed: "scalar", "row[N]"',
        ),
        ({"expr": "accum", "operands": {"bias": 3}}, "operands bias: must be a string, not 3"),
        ({"expr": "accum", "aux": {"z": ["accum"]}}, "aux z: must be a string, not ['accum']"),
        ({"expr": "alpha * accum", "operands": []}, "operands: must be a table"),
        ({"expr": "alpha * accum", "aux": "z"}, "aux: must be a table"),
    ],
)
def test_a_wrong_epilogue_is_refused_once(body: Table, text: str) -> None:
    data = document(changed(SM90, epilogue=["mine"]))
    data["epilogue"]["mine"] = body
    with pytest.raises(InvalidManifestError) as caught:
        parse(data)
    assert len(caught.value.errors) == 1
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("Mine-2", "made of a-z"), ("a__b", "made of a-z"), ("auto", "means something else in C")],
)
def test_the_name_of_an_epilogue_is_an_identifier(name: str, reason: str) -> None:
    with pytest.raises(InvalidManifestError, match=reason):
        parse(declared(document(SM90), **{name: {"expr": "alpha * accum"}}))


def test_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifestError, match="no manifest found"):
        load(tmp_path)
    path = write_manifest(tmp_path, document(SM90))
    path.write_text("[[kernel]\n", encoding="utf-8")
    with pytest.raises(InvalidManifestError, match=r"manifests/gemm.toml: not valid TOML: .*1"):
        load(tmp_path)


def with_epilogues(names: list[str], *entries: Table) -> Table:
    """A manifest that declares `names` of the epilogues alone."""
    data = document(*entries)
    return {**data, "epilogue": {name: data["epilogue"][name] for name in names}}


def write_four_manifests(root: Path) -> None:
    write_manifest(root, with_epilogues(["silu_backward"]), "conv")
    gelu = changed(SM90, epilogue=["bias_gelu"])
    write_manifest(root, with_epilogues(["bias_gelu"], gelu), "a")
    write_manifest(root, with_epilogues(["plain"], SM90))
    write_manifest(root, with_epilogues(["gated_aux"], ELEMENTWISE), "z")


def test_there_are_as_many_manifests_as_one_likes(tmp_path: Path) -> None:
    write_four_manifests(tmp_path)
    manifest = load(tmp_path)
    # Their order is the enumerators' in C++, and that of messages.
    order = ["plain", "bias_gelu", "silu_backward", "gated_aux"]
    assert [epilogue.name for epilogue in manifest.epilogues] == order
    assert {(kernel.op, kernel.file) for kernel in manifest.kernels} == {
        ("gemm", f"cuda/manifests/{name}.toml") for name in ("a", "gemm", "z")
    }


def test_manifests_are_checked_together(tmp_path: Path) -> None:
    write_four_manifests(tmp_path)
    write_manifest(tmp_path, with_epilogues([], REDUCE, SM90), "z")
    with pytest.raises(InvalidManifestError) as caught:
        load(tmp_path)
    assert str(caught.value) == (
        "cuda/manifests/z.toml: [[kernel]] #2 (family sm90_warpspecialized), tiles[0]: kernel"
        " gemm_sm90a_bf16_bf16_f32_bf16_128x128x64_2x1x1_tnt_pingpong_plain is already declared by"
        f" cuda/manifests/gemm.toml: {SM90_TILE}"
    )
    other = {"epilogue": {"plain": {"expr": "accum"}}, "kernel": []}
    write_manifest(tmp_path, other, "z")
    expected = r"^cuda/manifests/z.toml: \[epilogue.plain\]: decl"
    with pytest.raises(InvalidManifestError, match=expected):
        load(tmp_path)


def test_top_level_typos_are_refused() -> None:
    with pytest.raises(InvalidManifestError, match="unknown key 'kernels'; allowed: assembled, ep"):
        parse({**document(SM90), "kernels": []})
    with pytest.raises(InvalidManifestError, match=r"must be an array of tables: \[\[kernel\]\]"):
        parse({**document(), "kernel": SM90})
