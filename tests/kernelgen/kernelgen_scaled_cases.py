"""Valid manifests of scaled_mm to start from, and strategies that draw them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from kernelgen_cases import Table, dtypes, errors_of, identity, subsets

from kernelgen.emit import render
from kernelgen.manifest import Manifest, parse

_SCALES = {"scale_a": "col[1|M] f32", "scale_b": "row[1|N] f32"}
_ZERO_POINTS = {"azp": "col[1|M] s32", "azp_adj": "row[N] s32"}
EPILOGUES: Table = {
    "accumulator": {"expr": "accum"},
    "scaled": {
        "expr": "scale_a * scale_b * accum + bias",
        "operands": {**_SCALES, "bias": "row[N]"},
    },
    "scaled_azp_bias_f32": {
        "expr": "scale_a * scale_b * (accum - azp * azp_adj) + bias",
        "operands": {**_SCALES, "bias": "row[N] f32", **_ZERO_POINTS},
    },
    "block_bias": {"expr": "accum + bias", "operands": {"bias": "row[N]"}},
}
E4M3 = dtypes("e4m3", "bf16")
INT8 = dtypes("s8", "bf16", acc="s32")

FP8_SM90: Table = {
    "family": "sm90_warpspecialized",
    "arch": ["90a"],
    "dtypes": [E4M3],
    "layouts": ["tnt"],
    "epilogue": ["scaled"],
    "tiles": [{"tile": [128, 128, 128], "cluster": [2, 1, 1], "schedule": "pingpong"}],
}
INT8_SM80: Table = {
    "family": "sm80_multistage",
    "arch": ["80", "89"],
    "dtypes": [INT8],
    "layouts": ["tnt"],
    "epilogue": ["scaled"],
    "tiles": [{"tile": [128, 128, 64], "warp": [64, 64, 64], "stages": 3}],
}
BLOCK_SM90: Table = {
    "family": "sm90_blockwise",
    "arch": ["90a"],
    "dtypes": [E4M3],
    "epilogue": ["block_bias"],
    "scales": ["1x128_128x128"],
    "tiles": [{"tile": [128, 128, 128], "cluster": [2, 1, 1], "schedule": "pingpong"}],
}
BLOCK_SM89: Table = {
    "family": "sm89_blockwise",
    "arch": ["89"],
    "dtypes": [E4M3],
    "epilogue": ["block_bias"],
    "scales": ["1x128_1x128"],
    "tiles": [{"tile": [128, 128, 128], "warp": [64, 32, 128], "stages": 3}],
}
PERSISTENT_SM90: Table = {
    "family": "sm90_persistent",
    "arch": ["90a"],
    "dtypes": [E4M3],
    "layouts": ["tnt"],
    "epilogue": ["scaled"],
    "tiles": [{"tile": [128, 160, 128]}],
}
QUANTIZE: Table = {
    "family": "quantize",
    "arch": ["80", "89", "90a"],
    "dtypes": [dtypes("bf16", "e4m3")],
    "recipes": ["rowwise"],
}
FP8_RECIPES = ["tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128"]
INT8_RECIPES = ["tensorwise", "rowwise", "tensorwise_asymmetric", "rowwise_asymmetric"]


def document(*entries: Table) -> Table:
    return {"epilogue": deepcopy(EPILOGUES), "kernel": [deepcopy(entry) for entry in entries]}


def manifest(*entries: Table) -> Manifest:
    return parse(document(*entries))


def errors(*entries: Table) -> list[tuple[str, str]]:
    return errors_of(document(*entries))


def rendered(*entries: Table) -> dict[str, str]:
    found = manifest(*entries)
    return render(found.kernels, found.epilogues, Path("/out"))


FAMILIES = [FP8_SM90, INT8_SM80, BLOCK_SM90, BLOCK_SM89, PERSISTENT_SM90, QUANTIZE]
FP8_ALONE = ("sm90_blockwise", "sm89_blockwise", "sm90_persistent")
FP8_PAIRS = [("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3")]


def _fp8(draw: st.DrawFn) -> list[Any]:
    return draw(subsets([dtypes(a, d, b=b) for a, b in FP8_PAIRS for d in ("bf16", "f16", "f32")]))


def _sm90_tiles(draw: st.DrawFn, rows: list[int], flags: tuple[str, ...]) -> list[Any]:
    tiles = st.fixed_dictionaries(
        {
            "tile": st.tuples(st.sampled_from(rows), st.sampled_from([128, 256])).map(
                lambda shape: [*shape, 128]
            ),
            "cluster": st.sampled_from([[1, 1, 1], [2, 1, 1], [1, 2, 1]]),
            "schedule": st.sampled_from(["pingpong", "cooperative"]),
        },
        optional=dict.fromkeys(flags, st.just(True)),
    )
    return draw(st.lists(tiles, min_size=1, max_size=4, unique_by=identity))


def _warp_tiles(draw: st.DrawFn, k: int) -> list[Any]:
    tiles = st.builds(
        lambda warp, count, stages: {
            "tile": [warp[0] * count, warp[1], k],
            "warp": [*warp, k],
            "stages": stages,
        },
        st.sampled_from([[32, 32], [64, 32], [64, 64]]),
        st.integers(1, 2),
        st.integers(2, 4),
    )
    return draw(st.lists(tiles, min_size=1, max_size=4, unique_by=identity))


def _persistent_tiles(draw: st.DrawFn) -> list[Any]:
    tiles = st.fixed_dictionaries(
        {
            "tile": st.tuples(st.sampled_from([64, 128]), st.sampled_from([64, 128, 192])).map(
                lambda shape: [*shape, 128]
            )
        },
        optional={
            "fast_accum": st.just(True),
            "swap_ab": st.just(True),
            "cluster": st.sampled_from([[1, 1, 2], [1, 1, 4]]),
        },
    )
    return draw(st.lists(tiles, min_size=1, max_size=4, unique_by=identity))


@st.composite
def entries(draw: st.DrawFn) -> Table:
    """A valid entry of any family that serves scaled_mm."""
    entry: Table = {"family": draw(st.sampled_from(FAMILIES))["family"]}
    is_fp8 = entry["family"] in FP8_ALONE or draw(st.booleans())
    scales = draw(subsets(["1x128_128x128", "1x128_1x128"]))
    int8 = [dtypes("s8", d, acc="s32") for d in ("bf16", "f16", "f32")]
    entry["dtypes"] = _fp8(draw) if is_fp8 else draw(subsets(int8))
    entry["epilogue"] = draw(subsets(["scaled", "scaled_azp_bias_f32", "block_bias"]))
    match entry["family"]:
        case "sm90_warpspecialized":
            flags = ("swap_ab", "fast_accum") if is_fp8 else ("swap_ab",)
            tiles = _sm90_tiles(draw, [128], flags)
            return {**entry, "arch": ["90a"], "layouts": ["tnt"], "tiles": tiles}
        case "sm80_multistage":
            archs = ["89"] if is_fp8 else draw(subsets(["80", "89"]))
            tiles = _warp_tiles(draw, 64)
            return {**entry, "arch": archs, "layouts": ["tnt"], "tiles": tiles}
        case "sm90_blockwise":
            tiles = _sm90_tiles(draw, [128], ("swap_ab",))
            return {**entry, "arch": ["90a"], "scales": scales, "tiles": tiles}
        case "sm90_persistent":
            tiles = _persistent_tiles(draw)
            return {**entry, "arch": ["90a"], "layouts": ["tnt"], "tiles": tiles}
        case "sm89_blockwise":
            return {**entry, "arch": ["89"], "scales": scales, "tiles": _warp_tiles(draw, 128)}
    del entry["epilogue"]
    values = draw(subsets(["e4m3", "e5m2"])) if is_fp8 else ["s8"]
    entry["dtypes"] = [dtypes(x, d) for x in draw(subsets(["bf16", "f16", "f32"])) for d in values]
    entry["recipes"] = draw(subsets(FP8_RECIPES if is_fp8 else INT8_RECIPES))
    return {**entry, "arch": draw(subsets(["80", "89", "90a"]))}
