"""wgmma, with operands that TMA loads, by kernels of our own: Hopper.

One warp loads, and every warpgroup computes and stores its rows of a tile by itself. The number of
stages is what fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kernelgen.families import rules, wgmma
from kernelgen.families.family import Check, Family
from kernelgen.families.rules import FP8_GEMMS, GEMM_DTYPES, INT8_GEMMS, SCALE_BLOCK
from kernelgen.kernel import DIRECTIONS, DTYPE_BYTES, DTypes, Kernel, dims

# Bytes that TMA lays side by side in shared memory, and the most of a staged row of results.
_SWIZZLE_BYTES = 128
_STAGED_ROW_BYTES = 512
# 16-bit elements in a swizzle.
_MN_COLUMNS = _SWIZZLE_BYTES // 2
# Where swizzles span columns, a tile ends with a box of fewer: a multiple of these.
_LAST_COLUMNS = 16
# Threadblocks below and beside each other that share operands.
_SHARING = ((2, 1), (4, 1), (1, 2), (1, 4), (2, 2))
# Rows times columns of a tile that one warpgroup has.
_WARPGROUP_TILE = 128 * 176
# Columns of 64 rows that each of three warpgroups has, with 128 registers for a thread.
_THIRD_COLUMNS = 192
# Pixels that a tile of sm90_row_conv loads beyond its own: kMostTapLines of core/args/conv.h.
_TAP_LINES = 8
# Tiles of K whose block-wise scales are copied together.
_SCALE_CHUNK = 8


def _check_tile(kernel: Kernel) -> Iterator[str]:
    """Tile M and N: rows of a warpgroup, columns of a wgmma and of the staged rows of D."""
    m, n, _ = kernel.tile.shape
    dtypes = kernel.dtypes
    is_promoted = kernel.is_fp8 and not kernel.tile.fast_accum
    tall = ("sm90_persistent", "sm90_gather_conv")
    is_tall = kernel.family in tall or kernel.direction in ("fprop", "dgrad")
    most = 256 if is_tall and not kernel.scales else 128
    can_halve = ("sm90_persistent", "sm90_conv")
    has_halves = kernel.family in can_halve and is_tall and not (is_promoted or kernel.scales)
    if m not in (64, 128, most) and not (m == 192 and has_halves):
        allowed = ", or two of them 128: 64, 128 or 256" if most == 256 else ": 64 or 128"
        if has_halves:
            allowed += ", or all 192 and half of the columns, or three of them 64 each"
        yield f"tile M = {m}; one or two warpgroups take 64 rows each{allowed}"
        return
    parts = 2 if _halves_columns(kernel) else 1  # each warpgroup's own
    if _warpgroups(kernel) == 3 and n > _THIRD_COLUMNS:
        yield f"tile {m}x{n}; the registers of three warpgroups hold {_THIRD_COLUMNS} columns each"
    if _rows(kernel) * n > _WARPGROUP_TILE * parts:
        yield (
            f"tile {m}x{n}; the registers of a warpgroup hold {_rows(kernel)} rows of at most"
            f" {_WARPGROUP_TILE // _rows(kernel)} columns"
        )
    # A swapped tile's columns are rows of D.
    each = 8 if kernel.tile.swap_ab or _may_end_in_eight(kernel) else 16
    step = each * parts
    if n % step or n > 256:
        own = f"rows of D are made of {each} columns"
        why = "columns are rows of D" if kernel.tile.swap_ab else own
        why += ", and a warpgroup has half of them" if parts > 1 else ""
        yield f"tile N = {n}; {why}: a multiple of {step} up to 256"
    elif (width := _wgmma_columns(n // parts, is_promoted, _rows(kernel))) not in _wgmma_widths(
        dtypes
    ):
        widths, rows = _wgmma_widths(dtypes), _rows(kernel)
        every = range(step, 257, step)
        there = [x for x in every if _wgmma_columns(x // parts, is_promoted, rows) in widths]
        yield (
            f"tile N = {n} is multiplied {width} columns at a time, and there is no wgmma of"
            f" {dtypes.a} and {dtypes.b} in that width here; N is one of"
            f" {', '.join(map(str, there))}"
        )
    elif kernel.scales == "1x128_128x128" and not kernel.tile.swap_ab and SCALE_BLOCK % width:
        yield (
            f"tile N = {n} is multiplied {width} columns at a time, which must divide the"
            f" {SCALE_BLOCK} columns that share a scale"
        )
    elif (
        kernel.epilogue
        and n % 16 == 0
        and (row := _row_bytes(kernel)) % 32
        and not _stores_small_pieces(kernel)
    ):
        yield (
            f"tile N = {n}; with epilogue {kernel.epilogue.name} a row of D is {row} bytes, and"
            " TMA stores pieces of 32: N must be a multiple of 32"
        )


def _may_end_in_eight(kernel: Kernel) -> bool:
    """Whether rows of D may be 24 or 40 columns."""
    epilogue = kernel.epilogue
    return _stores_small_pieces(kernel) and (epilogue is None or epilogue.width == "same")


def _stores_small_pieces(kernel: Kernel) -> bool:
    """Whether rows of D that are no multiple of 32 bytes are stored in pieces of 16.

    They serve few rows of D, where a wave of tiles is to have a weight's columns.
    """
    epilogue, dtypes = kernel.epilogue, kernel.dtypes
    return (
        kernel.family == "sm90_persistent"
        and kernel.tile.shape[0] == 64
        and kernel.tile.cluster == (1, 1, 1)
        and dtypes.a == dtypes.b
        and dtypes.a in wgmma.OPERANDS
        and DTYPE_BYTES[dtypes.d] == 2
        and not kernel.scales
        and (epilogue is None or not epilogue.aux)
    )


def _check_k(*swizzles: int) -> Check:
    """Tile K is one of so many swizzles; with block-wise scales it is one."""

    def check(kernel: Kernel) -> Iterator[str]:
        k = kernel.tile.shape[2]
        counts = (1,) if kernel.scales else swizzles
        allowed = [_SWIZZLE_BYTES // kernel.element_bytes * x for x in counts]
        if k not in allowed:
            numbers = " or ".join(map(str, allowed))
            yield f"tile K = {k}; it is {numbers}: one swizzle spans {_SWIZZLE_BYTES} bytes"

    return check


def _check_conv_k(kernel: Kernel) -> Iterator[str]:
    """Tile K is a swizzle, or half of one: for layers whose channels fill half of the last."""
    k, swizzle = kernel.tile.shape[2], _SWIZZLE_BYTES // kernel.element_bytes
    halves = kernel.element_bytes == 2 and kernel.direction in ("fprop", "dgrad")
    allowed = [swizzle // 2, swizzle] if halves else [swizzle]
    if k not in allowed:
        spans = " or ".join(str(x * kernel.element_bytes) for x in allowed)
        yield f"tile K = {k}; it is {' or '.join(map(str, allowed))}: a swizzle spans {spans} bytes"


def _check_dense_layout(kernel: Kernel) -> Iterator[str]:
    own = rules.own_layouts(kernel)
    if kernel.element_bytes == 4 and own != ("t", "n"):
        yield (
            f"layout {kernel.layout}; wgmma reads 32-bit operands K-major only, as they lie in"
            " tnt: sm90_warpspecialized has the other layouts"
        )
    n = kernel.tile.shape[1]
    if kernel.element_bytes == 2 and own[1] == "t" and n % _LAST_COLUMNS:
        yield (
            f"tile N = {n} with layout {kernel.layout}; where K is not contiguous, the last columns"
            f" of a tile are a box of their own: N must be a multiple of {_LAST_COLUMNS}"
        )
    epilogue = kernel.epilogue
    if kernel.tile.swap_ab and epilogue and epilogue.width != "same":
        yield (
            f"epilogue {epilogue.name} pairs columns, which are rows of a swapped tile: leave"
            " swap_ab out"
        )


def _check_conv_operands(kernel: Kernel) -> Iterator[str]:
    if kernel.element_bytes == 4 and kernel.direction in ("dgrad", "wgrad"):
        yield (
            f"direction {kernel.direction} with {kernel.dtypes.a} operands; wgmma reads 32-bit"
            " operands K-major only, as they lie in fprop: sm80_conv has all directions"
        )


def _check_conv_cluster(kernel: Kernel) -> Iterator[str]:
    if kernel.direction == "wgrad" and kernel.tile.cluster != (1, 1, 1):
        cluster = dims(kernel.tile.cluster)
        yield f"cluster {cluster} with direction wgrad; its K is split without: leave cluster out"


def _check_stores(kernel: Kernel) -> Iterator[str]:
    """Rows of what an epilogue stores besides D follow each other in an unswapped, whole tile."""
    if kernel.tile.swap_ab or kernel.tile.cluster[2] > 1:
        yield from rules.check_stores(kernel)


def _check_cluster(kernel: Kernel) -> Iterator[str]:
    """The threadblocks that share the K of a tile, each of which finishes a part of its columns.

    Or those whose tiles lie below each other, and which share their columns by multicast, or beside
    each other, and which share rows, or both.
    """
    cluster, n = kernel.tile.cluster, kernel.tile.shape[1]
    splits = cluster[2]
    has_multicast = kernel.family == "sm90_persistent"
    if has_multicast and splits == 1 and cluster[:2] in _SHARING:
        if kernel.scales:
            yield f"scales {kernel.scales} with cluster {dims(cluster)}; leave one of the two out"
    elif cluster[:2] != (1, 1) or splits not in (1, 2, 4, 8):
        what = "it shares K alone"
        if has_multicast:
            shared = ", ".join(f"[{m}, {n}, 1]" for m, n in _SHARING)
            what = f"it is one of {shared}, or shares K"
        yield f"cluster {dims(cluster)}; {what}: [1, 1, 2], 4 or 8 at the end"
    elif splits == 1:
        return
    elif n % (step := (8 if kernel.tile.swap_ab else 16) * splits):
        yield (
            f"tile N = {n} with cluster {dims(cluster)}; each of {splits} threadblocks finishes a"
            f" multiple of {step // splits} columns: N must be a multiple of {step}"
        )
    elif kernel.dtypes.acc != "f32":
        yield f"cluster {dims(cluster)} with {kernel.dtypes.acc} sums; clusters add float32 alone"


def _check_registers(kernel: Kernel) -> Iterator[str]:
    """Threads that load through registers leave fewer to the sums."""
    m, n, _ = kernel.tile.shape
    if m > 128 or n > 128:
        yield f"tile {m}x{n}; with two warpgroups that load there are registers for 128x128"


def _check_pingpong(kernel: Kernel) -> Iterator[str]:
    """Pingpong goes with neither a cluster that shares K nor block-wise scales."""
    if kernel.tile.schedule != "pingpong":
        return
    most = 192 if kernel.family == "sm90_persistent" else 128
    if (m := kernel.tile.shape[0]) > most:
        whole = "64, 128 or 192" if most == 192 else "64 or 128"
        yield f"tile M = {m} with schedule pingpong; a warpgroup takes whole tiles: {whole}"
    if kernel.direction == "wgrad":
        yield "schedule pingpong with direction wgrad; it has fprop and dgrad: leave schedule out"
    if kernel.tile.cluster[2] > 1:
        cluster = dims(kernel.tile.cluster)
        yield f"cluster {cluster} with schedule pingpong; leave one of the two out"
    if kernel.scales:
        yield f"scales {kernel.scales} with schedule pingpong; leave one of the two out"


def _check_swizzled_columns(kernel: Kernel) -> Iterator[str]:
    """Refuses tiles of a row-major B that are no whole swizzles, which span columns there.

    In a column-major A a swizzle spans rows: 64 and 128 are whole ones.
    """
    n, columns = kernel.tile.shape[1], _MN_COLUMNS
    if kernel.element_bytes == 2 and kernel.layout[1] == "t" and n % columns:
        yield (
            f"tile N = {n} with {rules.operands_lie(kernel)}; of a row-major B one swizzle spans"
            f" {columns} columns: N must be a multiple of {columns}"
        )


def _check_grouped_rows(kernel: Kernel) -> Iterator[str]:
    if kernel.grouping != "rows":
        yield f"grouping {kernel.grouping}; the rows of A are found by their numbers: rows"


def _warpgroups(kernel: Kernel) -> int:
    """Warpgroups that multiply."""
    if kernel.tile.schedule == "pingpong" or _halves_columns(kernel):
        return 2
    m = kernel.tile.shape[0]
    return 3 if m == 192 else max(1, min(m // 64, 2))


def _rows(kernel: Kernel) -> int:
    """Rows of a tile that belong to one warpgroup."""
    m = kernel.tile.shape[0]
    is_whole = kernel.tile.schedule == "pingpong" or _halves_columns(kernel)
    return m if is_whole else m // _warpgroups(kernel)


def _halves_columns(kernel: Kernel) -> bool:
    """Whether each of two warpgroups has all rows of a tile, and half of its columns."""
    m, n, _ = kernel.tile.shape
    if m == 64:
        is_promoted = kernel.is_fp8 and not kernel.tile.fast_accum and not kernel.scales
        is_plain = kernel.tile.schedule != "pingpong" and kernel.tile.cluster[2] == 1
        return n >= 192 and kernel.family == "sm90_persistent" and is_promoted and is_plain
    is_whole = kernel.tile.cluster[2] > 1 or rules.own_layouts(kernel)[1] != "n"
    return m == 192 and n >= 128 and not is_whole and kernel.tile.schedule != "pingpong"


def _own_columns(kernel: Kernel) -> int:
    """Columns of a tile that a warpgroup finishes."""
    parts = kernel.tile.cluster[2] * (2 if _halves_columns(kernel) else 1)
    return kernel.tile.shape[1] // parts


def _wgmma_columns(n: int, is_promoted: bool, rows: int) -> int:
    """Columns of one wgmma, for `n` columns and `rows` of a warpgroup."""
    if not is_promoted:
        return n
    # sm90_promotion_columns(rows, n) of mainloop_fp8.cuh: two sets of partial sums and the tile's
    # accumulators fit into 192 registers.
    fitting = (p for p in range(8, n + 1, 8) if n % p == 0 and rows * n // 128 + p <= 192)
    return max(fitting, default=0)


def _wgmma_widths(dtypes: DTypes) -> tuple[int, ...]:
    is_there = dtypes.a == dtypes.b and dtypes.a in wgmma.OPERANDS
    return (*wgmma.PLAIN, *wgmma.EXTRA) if is_there else wgmma.PLAIN


def _staged_bytes(kernel: Kernel) -> int:
    """Bytes per accumulator column in shared memory: D and aux take turns."""
    stored = DTYPE_BYTES[kernel.dtypes.d] if kernel.epilogue and kernel.epilogue.aux else 0
    return max(rules.result_bytes(kernel), stored)


def _row_bytes(kernel: Kernel) -> int:
    """Bytes of a row of D that one copy stores."""
    if kernel.tile.swap_ab:
        return 64 * rules.result_bytes(kernel)
    return _staged_columns(kernel) * rules.result_bytes(kernel)


def _staged_columns(kernel: Kernel) -> int:
    """Columns of a row of results in shared memory: those of a tile, or an even part of them."""
    n, size = _own_columns(kernel), _staged_bytes(kernel)
    first = n % 16 if _may_end_in_eight(kernel) else 0
    steps = range(first or 16, n + 1, 16)
    parts = (x for x in steps if n % x == 0 and x * size <= _STAGED_ROW_BYTES)
    return max(parts, default=16)  # no part: N is refused


def _stores_by_threads(kernel: Kernel) -> bool:
    """Whether rows of results are staged by 128 bytes: kByThreads of per_warpgroup.cuh."""
    epilogue = kernel.epilogue
    if kernel.op == "conv2d" or kernel.grouping == "rows":
        return False
    if kernel.tile.swap_ab and kernel.is_fp8 and not kernel.tile.fast_accum:
        return False
    if epilogue and epilogue.width != "same":
        return False
    kinds = [kind.enumerator for _, kind in (epilogue.operands if epilogue else ())]
    return "matrix" not in kinds and (_rows(kernel) > 64 or _own_columns(kernel) >= 256)


def _copied_matrix_bytes(kernel: Kernel) -> int:
    """Bytes of a row of the epilogue's matrices that are copied beside the staged rows.

    As kIsCopied and kIsInPlace of per_warpgroup.cuh have it.
    """
    epilogue, columns = kernel.epilogue, _own_columns(kernel)
    if epilogue is None or epilogue.width != "same" or kernel.tile.swap_ab:
        return 0
    sizes = [
        rules.operand_bytes(kernel, kind)
        for _, kind in epilogue.operands
        if kind.enumerator == "matrix"
    ]
    copied = [x for x in sizes if columns * x % (_SWIZZLE_BYTES // 2) == 0]
    if _staged_columns(kernel) == columns:
        in_place = next((x for x in copied if x <= _staged_bytes(kernel)), 0)
        return columns * (sum(copied) - in_place)
    return columns * sum(copied)


def _memory(kernel: Kernel) -> str:
    """Sums of a cluster need none of their own: where they leave few stages, they lie in these."""
    m, n, k = kernel.tile.shape
    warpgroups, operands = _warpgroups(kernel), kernel.element_bytes * k
    own_n = _own_columns(kernel)
    row = own_n * rules.result_bytes(kernel)
    if not kernel.tile.swap_ab:
        row = _staged_columns(kernel) * _staged_bytes(kernel)
    if _stores_by_threads(kernel):
        row = min(row, _SWIZZLE_BYTES)
    gathers = kernel.family in ("sm90_gather_conv", "sm90_gathered_grouped")
    stages = 3 if gathers else 2
    if rules.own_layouts(kernel)[1] == "t" and kernel.element_bytes == 2:
        n = -(-n // _MN_COLUMNS) * _MN_COLUMNS  # whole boxes
    terms = f"{stages} stages x (({m} + {n}) x {operands} + 16)"
    terms += f" + staged rows {64 * warpgroups} x {row}"
    # Each warpgroup has its own vectors and scales, so that none waits until others have read them.
    rows, columns = (own_n, 64) if kernel.tile.swap_ab else (64, own_n)
    lengths = {"col": rows, "row": columns}
    vectors = [
        f"{lengths[kind.enumerator]} x {rules.operand_bytes(kernel, kind)}"
        for _, kind in (kernel.epilogue.operands if kernel.epilogue else ())
        if kind.enumerator in lengths
    ]
    if vectors:
        terms += f" + vectors {warpgroups} x ({' + '.join(vectors)})"
    if row := _copied_matrix_bytes(kernel):
        terms += f" + matrices {64 * warpgroups} x {row}"
    if kernel.scales:
        if kernel.scales == "1x128_128x128":
            columns = -(-columns // SCALE_BLOCK)
        terms += f" + scales {warpgroups} x 2 x {_SCALE_CHUNK} x ({rows} + {columns}) x 4"
    return terms


def _row_memory(kernel: Kernel) -> str:
    """Shared memory of sm90_row_conv: kPixelStages and kStagedBlocks of row_conv.cuh decide it."""
    m, n, k = kernel.tile.shape
    line, warpgroups = kernel.element_bytes * k, _warpgroups(kernel)
    kinds = [kind for _, kind in (kernel.epilogue.operands if kernel.epilogue else ())]
    has_residual = any(kind.enumerator == "matrix" for kind in kinds)
    blocks = m // 64 // warpgroups if has_residual else 1
    stages = 2 if m * n > 256 * 64 and blocks > 1 else 3
    terms = f"pixels {stages} x ({m} + {_TAP_LINES}) x {line} + filters 2 x ({n} x {line} + 16)"
    terms += f" + staged rows {64 * warpgroups * blocks} x {n * rules.result_bytes(kernel)}"
    rows = [f"{n} x {rules.operand_bytes(kernel, x)}" for x in kinds if x.enumerator == "row"]
    return terms + (f" + vectors {warpgroups} x ({' + '.join(rows)})" if rows else "")


_persistent = partial(
    Family,
    archs=("90a",),
    tile_keys=("tile",),
    schedules=("persistent",),
    memory=_memory,
    kernels_per_source=128,  # CUTLASS's headers cost as much as ten kernels
)

# A cluster along K shares out the K of a tile. With pingpong two warpgroups take whole tiles in
# turns.
SM90_PERSISTENT = _persistent(
    name="sm90_persistent",
    seconds=(6, 0.6),
    schedules=("persistent", "pingpong"),
    header="sm90/native/dense.cuh",
    template=(
        "Sm90Persistent<arch, dtypes, layouts, tile, schedule, swap_ab, cluster, epilogue,"
        " fast_accum?, scales?>"
    ),
    dtypes={"gemm": GEMM_DTYPES, "scaled_mm": (*FP8_GEMMS, *INT8_GEMMS)},
    optional_lists=("scales",),
    optional_tile_keys=("swap_ab", "fast_accum", "cluster", "schedule"),
    checks=(
        *(rules.check_gemm, rules.check_promoted_scales, _check_tile, _check_k(1, 2)),
        *(_check_stores, _check_cluster, _check_pingpong, _check_dense_layout),
    ),
)

# Rows of A and B begin anywhere: two warpgroups load them through registers.
SM90_UNALIGNED = _persistent(
    name="sm90_unaligned",
    seconds=(6, 0.6),
    mode="unaligned",
    header="sm90/native/unaligned.cuh",
    template="Sm90Unaligned<arch, dtypes, layouts, tile, epilogue>",
    dtypes={"gemm": tuple(x for x in GEMM_DTYPES if DTYPE_BYTES[x.a] == 2)},
    checks=(
        *(rules.check_gemm, _check_tile, _check_k(1), rules.check_stores),
        *(_check_dense_layout, _check_swizzled_columns, _check_registers),
    ),
)

# The kernel reads the extents of groups from the device.
SM90_GROUPED = _persistent(
    name="sm90_grouped",
    seconds=(6, 0.7),
    header="sm90/native/grouped.cuh",
    template=(
        "Sm90Grouped<arch, dtypes, layouts, tile, schedule, grouping, epilogue, fast_accum,"
        " scales?>"
    ),
    schedules=("persistent", "pingpong"),
    dtypes={"grouped_mm": (*GEMM_DTYPES, *FP8_GEMMS)},
    layouts=("tnt", "ttt", "ntt"),
    lists=("layouts", "grouping", "epilogue", "tiles"),
    optional_lists=("scales",),
    optional_tile_keys=("fast_accum", "schedule"),
    checks=(
        *(rules.check_gemm, rules.check_promoted_scales, _check_tile, _check_k(1)),
        *(rules.check_grouping, _check_swizzled_columns, _check_pingpong),
    ),
)

# The rows of A are found by their numbers.
SM90_GATHERED_GROUPED = _persistent(
    name="sm90_gathered_grouped",
    seconds=(6, 0.5),
    mode="gathered",
    header="sm90/native/gathered_grouped.cuh",
    template="Sm90GatheredGrouped<arch, dtypes, layouts, tile, epilogue>",
    dtypes={"grouped_mm": tuple(x for x in GEMM_DTYPES if DTYPE_BYTES[x.a] == 2)},
    layouts=("tnt",),
    lists=("layouts", "grouping", "epilogue", "tiles"),
    checks=(rules.check_gemm, _check_tile, _check_k(1), _check_grouped_rows),
)

# Implicit GEMMs: TMA finds the elements of A and B in images.
SM90_CONV = _persistent(
    name="sm90_conv",
    seconds=(6, 0.5),
    header="sm90/native/conv.cuh",
    template="Sm90Conv<arch, dtypes, tile, direction, schedule, splits, epilogue>",
    schedules=("persistent", "pingpong"),
    dtypes={"conv2d": rules.CONV_DTYPES},
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction", "epilogue", "tiles"),
    optional_tile_keys=("cluster", "schedule"),
    checks=(
        *(rules.check_gemm, _check_tile, _check_conv_k, _check_cluster, _check_conv_cluster),
        *(_check_stores, _check_pingpong),
        *(rules.check_direction, _check_swizzled_columns, _check_conv_operands),
    ),
)


def _check_gather(kernel: Kernel) -> Iterator[str]:
    if kernel.direction == "dgrad":
        yield "direction dgrad; it has fprop and wgrad: sm90_conv has all directions"


def _check_gather_cluster(kernel: Kernel) -> Iterator[str]:
    """Two threadblocks of wgrad, each of which loads half of the output's gradient for both."""
    cluster, m = kernel.tile.cluster, kernel.tile.shape[0]
    if cluster == (1, 1, 1):
        return
    if kernel.direction != "wgrad" or cluster != (1, 2, 1):
        yield f"cluster {dims(cluster)} with direction {kernel.direction}; wgrad has [1, 2, 1]"
    elif m % (2 * _MN_COLUMNS):
        yield (
            f"tile M = {m} with cluster {dims(cluster)}; each of two threadblocks loads half of the"
            f" rows, in swizzles of {_MN_COLUMNS}: M must be a multiple of {2 * _MN_COLUMNS}"
        )


# Implicit GEMMs whose pixels one or two warpgroups gather by cp.async.
SM90_GATHER_CONV = _persistent(
    name="sm90_gather_conv",
    seconds=(6, 0.5),
    mode="gather",
    header="sm90/native/gather_conv.cuh",
    template="Sm90GatherConv<arch, dtypes, tile, direction, sharing, epilogue>",
    optional_tile_keys=("cluster",),
    dtypes={"conv2d": tuple(x for x in rules.CONV_DTYPES if DTYPE_BYTES[x.a] == 2)},
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction", "epilogue", "tiles"),
    checks=(
        *(rules.check_gemm, _check_tile, _check_k(1), _check_gather, _check_gather_cluster),
        *(rules.check_direction, _check_swizzled_columns),
    ),
)


def _check_rows(kernel: Kernel) -> Iterator[str]:
    if kernel.direction == "wgrad":
        yield "direction wgrad; it has fprop and dgrad: sm90_conv has all directions"
    if (n := kernel.tile.shape[1]) % 32:
        yield f"tile N = {n}; TMA stores 64 bytes of a pixel or more: N must be a multiple of 32"
    if kernel.epilogue is None:
        return
    kinds = [kind.enumerator for _, kind in kernel.epilogue.operands]
    if kinds.count("matrix") > 1 or not {*kinds} <= {"matrix", "row", "scalar"}:
        yield (
            f"epilogue {kernel.epilogue.name}; TMA loads one matrix, and rows and scalars are read"
            " beside it"
        )


# Implicit GEMMs whose taps of a row share their pixels.
SM90_ROW_CONV = _persistent(
    name="sm90_row_conv",
    seconds=(6, 0.4),
    mode="rows",
    header="sm90/native/row_conv.cuh",
    template="Sm90RowConv<arch, dtypes, tile, direction, epilogue>",
    dtypes={"conv2d": tuple(x for x in rules.CONV_DTYPES if DTYPE_BYTES[x.a] == 2)},
    layouts=tuple(DIRECTIONS.values()),
    lists=("direction", "epilogue", "tiles"),
    memory=_row_memory,
    checks=(
        *(rules.check_gemm, _check_tile, _check_conv_k, _check_rows),
        *(rules.check_direction, _check_swizzled_columns),
    ),
)
