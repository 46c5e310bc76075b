"""Depthwise convolutions: each filter has one channel, and memory is what they wait for."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen.families.family import Family
from kernelgen.kernel import DIRECTIONS, DTypes, Kernel, Shape3, dims

# R, S and stride by direction, as in cuda/depthwise/kernel.cuh. dgrad: where the stride is 1, the
# kernels of fprop compute it.
_ANYTHING = (1, 1, 1)
_WHOLE = tuple((taps, taps, stride) for taps in (3, 5, 7) for stride in (1, 2))
_TILES: dict[str, tuple[Shape3, ...]] = {
    "fprop": (*_WHOLE, *((1, taps, stride) for taps in (3, 5, 7) for stride in (1, 2)), _ANYTHING),
    "dgrad": tuple((r, taps, 2) for taps in (3, 5, 7) for r in (1, taps)),
    "wgrad": (*_WHOLE, _ANYTHING),
}
_OPERANDS = {"bias": "row", "residual": "matrix"}
# Added up without the code of the others.
_SUMS = ("plain", "bias")


def _check_tile(kernel: Kernel) -> Iterator[str]:
    allowed = _TILES[kernel.direction or "fprop"]
    if kernel.tile.shape not in allowed:
        yield (
            f"tile {dims(kernel.tile.shape)} for {kernel.direction}; R, S and stride are one of"
            f" {', '.join(map(dims, allowed))}"
        )


def check_epilogues(kernel: Kernel) -> Iterator[str]:
    if kernel.direction != "fprop":
        if kernel.epilogues:
            yield f"epilogues of {kernel.direction}; only fprop has any"
        return
    names = tuple(epilogue.name for epilogue in kernel.epilogues)
    if names[: len(_SUMS)] != _SUMS:
        yield f"epilogue begins with {', '.join(names[:2])}; expected {', '.join(_SUMS)} first"
    for epilogue in kernel.epilogues:
        if not epilogue.has_accum or epilogue.aux or epilogue.width != "same":
            yield (
                f"epilogue {epilogue.name}; expected one of the accumulator that stores as many"
                " columns, and nothing else"
            )
        for name, kind in epilogue.operands:
            if _OPERANDS.get(name) != kind.enumerator or kind.dtype not in (None, "d"):
                yield f"epilogue {epilogue.name} reads {name}, {kind}; there are bias and residual"


DEPTHWISE = Family(
    name="depthwise",
    seconds=(3, 0.3),
    header="depthwise/kernel.cuh",
    template="Depthwise<arch, d, tile, direction, epilogues?>",
    archs=("80", "89", "90a"),
    dtypes={"conv2d": tuple(DTypes(x, x, "f32", x) for x in ("bf16", "f16"))},
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction", "tiles"),
    optional_lists=("epilogue",),
    tile_keys=("tile",),
    schedules=("multistage",),
    mode="depthwise",
    epilogues_share_kernel=True,
    checks=(_check_tile, check_epilogues),
)
