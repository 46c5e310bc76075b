"""The figures of the cost model (cuda/dispatch/tuning/calibration.toml) as constant data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomllib

from kernelgen import cpp

FILE = Path("cuda/dispatch/tuning/calibration.toml")
KINDS = (
    *("wide", "wide_ttt", "wide_ntt", "wide_f32"),
    *("tf32", "fp8", "fp8_fast", "int8", "blocks_of_b", "columns_of_b", "unaligned"),
    *("grouped_rows", "grouped_k"),
    *("fprop", "dgrad", "wgrad", "gather_fprop", "gather_wgrad"),
    *("row_fprop", "row_dgrad", "strided_dgrad"),
)
_LIMITS = (
    *("l2", "lone_l2", "sm", "paired", "dram", "sharpness", "split_lines"),
    *("reduce_us", "reduce_tb_per_s", "beyond_us", "padding_counts"),
)


class CalibrationError(Exception):
    """A file of figures that lacks something, or has something that the model does not know."""


def load(source_dir: Path) -> dict[str, object]:
    """Values for calibration_data.cpp.in. Raises CalibrationError."""
    path = source_dir / FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        return _render(data)
    except (OSError, tomllib.TOMLDecodeError, CalibrationError) as error:
        raise CalibrationError(f"{FILE}: {error}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise CalibrationError(f"{FILE}: {error!r}: see the comments in the file") from None


def _render(data: Mapping[str, Any]) -> dict[str, object]:
    gpu, limits, direct = data["gpu"], data["limits"], data["direct_conv"]
    tiles = list(_tiles(data["tiles"]))
    for kind in data["by_area"]:
        _check_kind(kind)
    return {
        "gpu": ", ".join(str(gpu[key]) for key in ("cc_major", "sm_count"))
        + f", {float(gpu['least_memory_gb_per_s'])!r}",
        "dense": _limits(limits["dense"]),
        "mma_sync": _limits(limits["mma_sync"]),
        "conv": _limits(limits["conv"]),
        "grouped": _limits(limits["grouped"]),
        "others": _limits(limits["others"]),
        "tiles": "".join(f"    {tile},\n" for tile in tiles),
        "tile_count": len(tiles),
        "by_area": ", ".join(
            _figures(data["by_area"][kind]) if kind in data["by_area"] else "{0, 0, 0}"
            for kind in KINDS
        ),
        **_mma_sync(data["mma_sync"]),
        "thin": _named("thin", data["thin"], _THIN),
        **{name: _figures(direct[name]) for name in ("plain", *_SPACE_TO_DEPTH, "few_channels")},
    }


_SPACE_TO_DEPTH = ("space_to_depth_16", "space_to_depth_32")


# Of a tile's figures. splits: threadblocks that share K; columns, rows: those that share these by
# multicast.
_KEYS = {"tile", "schedule", "native", "us", "swap_ab", "splits", "columns", "rows"}


def _tiles(groups: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    seen = set()
    for group in groups:
        kind = _check_kind(group["kind"])
        for row in group["figures"]:
            if unknown := set(row) - _KEYS:
                raise CalibrationError(f"kind {kind}: unknown key {min(unknown)!r} in {row}")
            is_native = row.get("native", row["schedule"] == "persistent")
            key = (
                f"FigureKind::{kind}, {_extents(row['tile'], 3)}, {cpp.boolean(is_native)},"
                f" Schedule::{row['schedule']},"
                f" {cpp.boolean(row.get('swap_ab', False))}, {row.get('splits', 1)},"
                f" {row.get('columns', 1)}, {row.get('rows', 1)}"
            )
            if key in seen:
                raise CalibrationError(f"kind {kind}: {row} is there twice")
            seen.add(key)
            yield f"{{{key}, {_figures(row['us'])}}}"


def _mma_sync(figures: Mapping[str, Any]) -> dict[str, object]:
    rows = {
        f"{{{_extents(row['tile'], 2)}, {_share(row['reached'])}, {float(row['latency'])!r}}}"
        for row in figures["tiles"]
    }
    if len({tuple(row["tile"]) for row in figures["tiles"]}) != len(figures["tiles"]):
        raise CalibrationError("mma_sync: a tile is there twice")
    return {
        "mma_tile_us": repr(float(figures["tile_us"])),
        "mma_launch_us": repr(float(figures["launch_us"])),
        "mma_tiles": "".join(f"    {row},\n" for row in sorted(rows)),
        "mma_tile_count": len(rows),
    }


_THIN = (
    *("launch_us", "weight_us", "matrix_us", "strip_us"),
    *("pass_us", "store_us", "step_us", "dram"),
)


def _named(table: str, figures: Mapping[str, float], keys: Sequence[str]) -> str:
    if unknown := set(figures) ^ set(keys):
        raise CalibrationError(f"{table}: {min(unknown)!r} is missing or unknown")
    return ", ".join(repr(float(figures[key])) for key in keys)


def _share(value: float) -> str:
    if not 0 < value <= 1:
        raise CalibrationError(f"mma_sync: reached = {value}; expected a share of the peak")
    return repr(float(value))


def _check_kind(kind: str) -> str:
    if kind not in KINDS:
        raise CalibrationError(f"unknown kind {kind!r}; allowed: {', '.join(KINDS)}")
    return kind


def _extents(values: Sequence[int], count: int) -> str:
    if len(values) != count:
        raise CalibrationError(f"tile {values} has {len(values)} extents; expected {count}")
    return ", ".join(str(int(value)) for value in values)


def _figures(values: Sequence[float]) -> str:
    if len(values) != 3 or min(values) < 0:
        raise CalibrationError(f"us {values}; expected three times in microseconds")
    return "{" + ", ".join(repr(float(value)) for value in values) + "}"


def _limits(limits: Mapping[str, Any]) -> str:
    if unknown := set(limits) ^ set(_LIMITS):
        raise CalibrationError(f"limits: {min(unknown)!r} is missing or unknown")
    return ", ".join(
        "{" + ", ".join(map(repr, value)) + "}"
        if isinstance(value := limits[key], list)
        else cpp.boolean(value)
        if isinstance(value, bool)
        else repr(float(value))
        for key in _LIMITS
    )
