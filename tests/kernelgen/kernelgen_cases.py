"""Valid manifests to start from, strategies that draw them, and a writer of TOML."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kernelgen.manifest import InvalidManifestError, parse
from kernelgen.tuning import calibration

Table = dict[str, Any]

# Shared machines stall, so no deadline; set here rather than in a profile, which is global.
bounded = settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

EPILOGUES: Table = {
    "plain": {"expr": "alpha * accum"},
    "linear_combination": {
        "expr": "alpha * accum + beta * c",
        "operands": {"c": "matrix[M,N]"},
    },
    "bias_gelu": {"expr": "gelu(alpha * accum + bias)", "operands": {"bias": "row[N]"}},
    "gated_aux": {"expr": "silu(even(z)) * odd(z)", "aux": {"z": "alpha * accum"}},
    "silu_backward": {
        "expr": "grad * silu_grad(z)",
        "operands": {"grad": "matrix[M,N]", "z": "matrix[M,N]"},
    },
}


FUSED = ["linear_combination", "bias_gelu", "gated_aux"]  # sm90_persistent has the first two


def dtypes(a: str, d: str, acc: str = "f32", b: str | None = None) -> Table:
    return {"a": a, "b": b or a, "acc": acc, "d": d}


SM90: Table = {
    "family": "sm90_warpspecialized",
    "arch": ["90a"],
    "dtypes": [dtypes("bf16", "bf16")],
    "layouts": ["tnt"],
    "epilogue": ["plain"],
    "tiles": [{"tile": [128, 128, 64], "cluster": [2, 1, 1], "schedule": "pingpong"}],
}
SM80: Table = {
    "family": "sm80_multistage",
    "arch": ["80"],
    "dtypes": [dtypes("f16", "f16")],
    "layouts": ["tnt"],
    "epilogue": ["linear_combination"],
    "tiles": [{"tile": [128, 128, 32], "warp": [64, 64, 32], "stages": 3}],
}
PERSISTENT: Table = {
    "family": "sm90_persistent",
    "arch": ["90a"],
    "dtypes": [dtypes("bf16", "bf16")],
    "layouts": ["tnt"],
    "epilogue": ["plain"],
    "tiles": [{"tile": [128, 176, 64]}],
}
REDUCE: Table = {
    "family": "splitk_reduce",
    "arch": ["80"],
    "dtypes": [{"a": "f32", "b": "f32", "acc": "f32", "d": "bf16"}],
}
ELEMENTWISE: Table = {
    "family": "elementwise",
    "arch": ["80"],
    "dtypes": [dtypes("bf16", "bf16")],
    "epilogue": ["silu_backward"],
}


SM90_GROUPED: Table = {
    "family": "sm90_grouped",
    "arch": ["90a"],
    "dtypes": [dtypes("bf16", "bf16")],
    "layouts": ["tnt"],
    "grouping": ["rows"],
    "epilogue": ["plain"],
    "tiles": [{"tile": [128, 128, 64]}],
}
SM80_GROUPED: Table = {
    "family": "sm80_grouped",
    "arch": ["80"],
    "dtypes": [dtypes("bf16", "bf16")],
    "layouts": ["tnt"],
    "grouping": ["rows"],
    "epilogue": ["plain"],
    "tiles": [{"tile": [128, 128, 32], "warp": [64, 64, 32], "stages": 4}],
}


SM90_CONV: Table = {
    "family": "sm90_conv",
    "arch": ["90a"],
    "dtypes": [dtypes("bf16", "bf16")],
    "direction": ["fprop"],
    "epilogue": ["plain"],
    "tiles": [{"tile": [128, 128, 64]}],
}
SM90_GATHER_CONV: Table = {**SM90_CONV, "family": "sm90_gather_conv"}
SM90_ROW_CONV: Table = {
    **SM90_CONV,
    "family": "sm90_row_conv",
    "tiles": [{"tile": [256, 128, 64]}],
}
SM90_DIRECT_CONV: Table = {
    "family": "sm90_direct_conv",
    "arch": ["90a"],
    "dtypes": [dtypes("bf16", "bf16")],
    "direction": ["fprop"],
    "epilogue": ["plain"],
    "tiles": [{"tile": [64, 240, 64]}],
}
SM90_STRIDED_DGRAD: Table = {
    **SM90_DIRECT_CONV,
    "family": "sm90_strided_dgrad",
    "direction": ["dgrad"],
}
SM90_SPACE_TO_DEPTH: Table = {
    **SM90_DIRECT_CONV,
    "family": "sm90_space_to_depth",
    "tiles": [{"tile": [64, 240, 16]}],
}
SM90_FEW_CHANNELS: Table = {**SM90_SPACE_TO_DEPTH, "family": "sm90_few_channels"}
SM80_CONV: Table = {
    "family": "sm80_conv",
    "arch": ["80"],
    "dtypes": [dtypes("bf16", "bf16")],
    "direction": ["fprop"],
    "epilogue": ["plain"],
    "tiles": [{"tile": [128, 128, 32], "warp": [64, 64, 32], "stages": 4}],
}


def document(*entries: Table) -> Table:
    return {"epilogue": deepcopy(EPILOGUES), "kernel": [deepcopy(entry) for entry in entries]}


def errors(*entries: Table) -> list[tuple[str, str]]:
    """(entry, reason) of everything that is wrong with a manifest of `entries`."""
    return errors_of(document(*entries))


def errors_of(data: Table) -> list[tuple[str, str]]:
    with pytest.raises(InvalidManifestError) as caught:
        parse(data)
    return [(error.entry, error.reason) for error in caught.value.errors]


def declared(data: Table, **epilogues: Table) -> Table:
    """`data` with more epilogues, behind the others."""
    return {**data, "epilogue": {**data["epilogue"], **epilogues}}


def changed(entry: Table, **values: Any) -> Table:
    """A copy of `entry` with other values of its keys, or of the keys of its first tile."""
    copy = deepcopy(entry)
    for key, value in values.items():
        (copy if key in copy or key not in TILE_KEYS else copy["tiles"][0])[key] = value
    return copy


TILE_KEYS = {*("tile", "cluster", "warp", "stages", "schedule", "swap_ab", "fast_accum")}


def toml(value: Any) -> str:
    """One value as inline TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def write_manifest(root: Path, data: Table, name: str = "gemm") -> Path:
    path = root / "cuda" / "manifests" / f"{name}.toml"
    figures = root / calibration.FILE
    for folder in (path.parent, figures.parent):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).parents[2] / calibration.FILE, figures)
    lines = [f"epilogue = {toml(data['epilogue'])}"]
    for entry in data["kernel"]:
        lines += ["[[kernel]]", *(f"{key} = {toml(value)}" for key, value in entry.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def identity(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def subsets(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, unique_by=identity)


def _sm90_tiles(draw: st.DrawFn, k: list[int]) -> list[Table]:
    def tile(schedule: str) -> st.SearchStrategy[Table]:
        rows = [128, 256] if schedule == "cooperative" else [64, 128]
        return st.fixed_dictionaries(
            {
                "tile": st.tuples(
                    st.sampled_from(rows),
                    st.integers(1, 5).map(lambda n: 32 * n),
                    st.sampled_from(k),
                ).map(list),
                "cluster": st.sampled_from([[1, 1, 1], [2, 1, 1], [1, 2, 1], [4, 2, 1]]),
                "schedule": st.just(schedule),
            },
            optional={"swap_ab": st.just(True)},
        )

    schedules = ["pingpong", "cooperative"]
    return draw(st.lists(st.sampled_from(schedules).flatmap(tile), min_size=1, unique_by=identity))


def _sm80_tiles(draw: st.DrawFn, step: int) -> list[Table]:
    tiles = st.builds(
        lambda warp, counts, k, stages: {
            "tile": [warp[0] * counts[0], warp[1] * counts[1], k],
            "warp": [*warp, k],
            "stages": stages,
        },
        st.sampled_from([[32, 32], [64, 32], [32, 64], [64, 64]]),
        st.tuples(st.integers(1, 2), st.integers(1, 2)),
        st.integers(1, 2).map(lambda count: count * step),
        st.integers(2, 3),
    )
    return draw(st.lists(tiles, min_size=1, unique_by=identity))


def _persistent_tiles(draw: st.DrawFn, k: list[int]) -> list[Table]:
    tiles = st.fixed_dictionaries(
        {
            "tile": st.tuples(
                st.sampled_from([64, 128]), st.sampled_from([64, 128]), st.sampled_from(k)
            ).map(list)
        },
        optional={
            "swap_ab": st.just(True),
            "cluster": st.sampled_from([[1, 1, 2], [1, 1, 4]]),
        },
    )
    return draw(st.lists(tiles, min_size=1, unique_by=identity))


@st.composite
def entries(draw: st.DrawFn) -> Table:
    """A valid entry of any family that has tiles, small enough for every architecture."""
    family = draw(st.sampled_from(["sm90_warpspecialized", "sm90_persistent", "sm80_multistage"]))
    is_sm90 = family != "sm80_multistage"
    is_persistent = family == "sm90_persistent"
    is_tf32 = draw(st.booleans())
    combinations = [dtypes(x, d) for x in ("f16", "bf16") for d in (x, "f32")]
    layouts = ["tnt", "ttt", "nnt", "ntt"]
    if is_tf32:
        combinations = [dtypes("tf32", "f32")]
        if is_persistent:
            layouts = ["tnt"]
        elif is_sm90:
            layouts = ["tnt", "ntt"]  # the others are only built either with or without swap_ab
    entry = {
        "family": family,
        "arch": ["90a"] if is_sm90 else draw(subsets(["80", "89"])),
        "dtypes": draw(subsets(combinations)),
        "layouts": draw(subsets(layouts)),
        "epilogue": draw(subsets([*["plain"] * is_sm90, *FUSED[: 2 if is_persistent else 3]])),
    }
    if is_persistent:
        entry["tiles"] = _persistent_tiles(draw, [32, 64] if is_tf32 else [64, 128])
    elif is_sm90:
        entry["tiles"] = _sm90_tiles(draw, [16, 32] if is_tf32 else [32, 64])
    else:
        entry["tiles"] = _sm80_tiles(draw, 16 if is_tf32 else 32)
    return entry
