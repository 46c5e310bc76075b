"""Grouped convolutions: the filters of a group have its channels, 8 or more of them, or 4."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.families.depthwise import check_epilogues
from kernelgen.families.family import Family
from kernelgen.kernel import DIRECTIONS, DTypes, Kernel, dims

# The sums of a warp that a thread has registers for: as many as M x N / 32.
_MOST_SUMS = 80 * 56


def _check_tile(kernel: Kernel) -> Iterator[str]:
    m, n, k = kernel.tile.shape
    if k != 16 or m % 16 or n % 8 or m * n > _MOST_SUMS:
        yield (
            f"tile {dims(kernel.tile.shape)}; expected K = 16, M a multiple of 16 and N of 8, and "
            f"at most {_MOST_SUMS} sums"
        )


def _check_direction(kernel: Kernel) -> Iterator[str]:
    if kernel.direction == "dgrad":
        yield "dgrad has no kernels of its own; those of fprop compute it"


GROUPED_CONV = Family(
    name="grouped_conv",
    seconds=(4, 0.5),
    header="grouped_conv/kernel.cuh",
    template="GroupedConv<arch, d, tile, direction, epilogues?>",
    archs=("80", "89", "90a"),
    dtypes={"conv2d": tuple(DTypes(x, x, "f32", x) for x in ("bf16", "f16"))},
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction", "tiles"),
    optional_lists=("epilogue",),
    tile_keys=("tile",),
    schedules=("multistage",),
    mode="grouped",
    epilogues_share_kernel=True,
    checks=(_check_tile, _check_direction, check_epilogues),
)
