"""The only speller of kernel and source names.

One string stands for a kernel everywhere: symbol, table row, log line, profiler, test id.
"""

from __future__ import annotations

import re

from kernelgen.families import FAMILIES
from kernelgen.kernel import Kernel, dims


def procedural_name(kernel: Kernel) -> str:
    """{op}_{arch}_{dtypes}_{tile}[_{cluster|warp}]_{layout}_{mode}[_{grouping}][_{scales}]_{epilogue}.

    mode is {schedule}[_swap][_split{k}|_multicast[{m}x{n}]][_fast][_align{n}]. The family stands in
    place of tile, layout and mode where there is none of them, a recipe in place of the epilogue,
    and a convolution's direction in place of the layout.
    """
    parts = [kernel.op, kernel.arch.sm, str(kernel.dtypes)]
    if kernel.is_tiled:
        parts += [*_shapes(kernel), kernel.direction or kernel.layout, _mode(kernel)]
    else:
        parts += [kernel.family]
    epilogue = kernel.epilogue.name if kernel.epilogue else None
    rest = (kernel.grouping, kernel.scales, kernel.recipe, epilogue)
    return "_".join([*parts, *filter(None, rest)])


def source_stem(kernel: Kernel) -> str:
    """Name of the source without part and extension; kernels that share it share the source.

    Headers are parsed four times for each source, which takes as long as ten kernels: so kernels of
    a family share one, and those of small families one of all. Where the templates of a tile cost
    more than the headers, those of a tile do, which differ in types, layouts and epilogues only.
    The compiler's options are those of a source: what is assembled for newer GPUs has its own.
    """
    parts, family = [kernel.op, kernel.arch.sm], FAMILIES[kernel.family]
    if family.tiles_share_source:
        parts.append(family.source or re.sub(r"^sm\d+_", "", kernel.family))
    else:
        parts += [*_shapes(kernel), _mode(kernel)]
        # Two families may have the same tiles, one of them with scales in its mainloop.
        if kernel.scales:
            parts.append("blockwise")
    if kernel.assembled:
        parts.append("assembled")
    return "_".join(parts)


def source_name(stem: str, part: int) -> str:
    """File name of the part-th source, counted from 0.

    The first has no suffix: a growing tile configuration does not rename what is already built.
    """
    return f"{stem}_part{part + 1}.cu" if part else f"{stem}.cu"


def _shapes(kernel: Kernel) -> list[str]:
    """The shapes that the manifest chooses: a family without clusters spells none."""
    tile, keys = kernel.tile, FAMILIES[kernel.family].tile_keys
    shapes = {"tile": tile.shape, "warp": tile.warp, "cluster": tile.cluster}
    return [dims(shape) for key, shape in shapes.items() if key in keys and shape]


def _mode(kernel: Kernel) -> str:
    mode = f"{FAMILIES[kernel.family].mode or kernel.tile.schedule}{kernel.tile.stages or ''}"
    if kernel.tile.swap_ab:
        mode += "_swap"
    if kernel.tile.cluster[2] > 1:
        mode += f"_split{kernel.tile.cluster[2]}"
    if "cluster" not in FAMILIES[kernel.family].tile_keys and max(kernel.tile.cluster[:2]) > 1:
        m, n, _ = kernel.tile.cluster
        # Gathered wgrad shares rows alone, and does not say so.
        if kernel.family == "sm90_persistent" and (m, n) != (2, 1):
            mode += f"_multicast{m}x{n}"
        else:
            mode += "_multicast"
    if kernel.tile.fast_accum:
        mode += "_fast"
    return mode
