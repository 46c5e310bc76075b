"""Keys of summation orders: what decides the bits of a sum is in them, and nothing else."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from kernelgen_cases import (
    ELEMENTWISE,
    PERSISTENT,
    REDUCE,
    SM80,
    SM80_CONV,
    SM90,
    SM90_CONV,
    SM90_DIRECT_CONV,
    SM90_GATHER_CONV,
    SM90_ROW_CONV,
    changed,
    document,
)

from kernelgen import manifest
from kernelgen.emit import render
from kernelgen.kernel import Kernel
from kernelgen.summation import summation_order

ROOT = Path(__file__).parents[2]


def order(entry: dict[str, Any], **values: Any) -> str | None:
    (kernel,) = manifest.parse(document(changed(entry, **values))).kernels
    return summation_order(kernel)


@pytest.mark.parametrize(
    ("entry", "values", "key"),
    [
        (SM90, {}, "wgmma.k16"),
        (
            SM90,
            {"tiles": [{"tile": [64, 32, 128], "cluster": [1, 1, 1], "schedule": "pingpong"}]},
            "wgmma.k16",
        ),
        (PERSISTENT, {}, "wgmma.k16"),
        (PERSISTENT, {"tiles": [{"tile": [64, 128, 64], "swap_ab": True}]}, "wgmma.k16"),
        (
            PERSISTENT,
            {"tiles": [{"tile": [64, 128, 128], "cluster": [1, 1, 4]}]},
            "wgmma.k16.cluster4x128.columns128",
        ),
        (
            PERSISTENT,
            {"tiles": [{"tile": [64, 128, 64], "cluster": [1, 1, 2]}]},
            "wgmma.k16.cluster2x64",
        ),
        (SM80, {}, "mma.k16"),
        (SM90_CONV, {}, "wgmma.k16.taps"),
        (SM90_GATHER_CONV, {}, "wgmma.k16.gathered"),
        (SM90_ROW_CONV, {}, "wgmma.k16.rows"),
        (SM90_DIRECT_CONV, {}, "wgmma.k16.halo"),
        (SM80_CONV, {}, "mma.k16.gathered"),
        (REDUCE, {}, None),
        (ELEMENTWISE, {}, None),
    ],
)
def test_the_key(entry: dict[str, Any], values: dict[str, Any], key: str | None) -> None:
    assert order(entry, **values) == key


def declared() -> tuple[Kernel, ...]:
    return manifest.load(ROOT).kernels


def test_what_is_chosen_for_a_product_has_a_key() -> None:
    for kernel in declared():
        is_other = kernel.family in (
            *("splitk_reduce", "splitk_epilogue", "elementwise", "quantize", "pad_rows"),
            *("col2im", "depthwise", "grouped_conv"),
            *("route", "permute", "unpermute", "permute_dots"),
        )
        assert (summation_order(kernel) is None) == is_other, kernel.family


def test_kernels_of_one_key_agree_in_what_orders_a_sum() -> None:
    """Whatever shares K is in the key, and so is the precision of partial sums."""
    of_key: dict[tuple[str, str, str], set[Any]] = defaultdict(set)
    for kernel in declared():
        key = summation_order(kernel)
        if key is None or key == "exact":
            continue
        tile, fp8 = kernel.tile, kernel.is_fp8
        parts = tile.cluster[2], tile.shape[2] if tile.cluster[2] > 1 else 0
        slices = tile.shape[2] // tile.warp[2] if tile.warp else 1
        traits = (
            parts,
            slices,
            fp8 and tile.fast_accum,
            bool(kernel.scales),
            kernel.family == "thin",
        )
        of_key[kernel.op, kernel.dtypes.a, key].add(traits)
    assert len(of_key) > 20
    assert {key: traits for key, traits in of_key.items() if len(traits) > 1} == {}


def test_integers_are_exact_in_any_order() -> None:
    assert {summation_order(k) for k in declared() if k.dtypes.acc == "s32"} == {"exact", None}


def test_the_table_and_the_manifest_have_it() -> None:
    parsed = manifest.parse(document(PERSISTENT, REDUCE))
    files = render(parsed.kernels, parsed.epilogues, Path("out"))
    rows = json.loads(files["manifest.json"])["kernels"]
    assert sorted(str(row["summation"]) for row in rows) == ["None", "wgmma.k16"]
    assert 'Direction::none, "wgmma.k16",' in files["kernel_table.cpp"]
    assert "Direction::none, nullptr," in files["kernel_table.cpp"]
