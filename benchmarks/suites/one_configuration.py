"""A product by Triton in one configuration for all sizes, the common way to batch invariance.

Written after the description of Thinking Machines' batch_invariant_ops: persistent programs take
tiles of 128 x 128 in groups of eight rows of them, and K in steps of 64, whatever M is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

NAME = "Triton, one configuration"
TILE_M, TILE_N, TILE_K = 128, 128, 64
GROUP = 8  # rows of tiles that share their columns of B in L2


@triton.jit
def _kernel(
    a_ptr,
    b_ptr,
    d_ptr,
    m,
    n,
    k,
    a_m,
    a_k,
    b_k,
    b_n,
    d_m,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    group: tl.constexpr,
    programs: tl.constexpr,
):
    tiles_m = tl.cdiv(m, tile_m)
    tiles_n = tl.cdiv(n, tile_n)
    for tile in range(tl.program_id(0), tiles_m * tiles_n, programs):
        in_group = group * tiles_n
        first = tile // in_group * group
        height = min(tiles_m - first, group)
        rows = (first + tile % in_group % height) * tile_m + tl.arange(0, tile_m)
        columns = tile % in_group // height * tile_n + tl.arange(0, tile_n)
        # Rows beyond the end read the first ones; they are not stored.
        a_rows = tl.where(rows < m, rows, 0).to(tl.int64)
        b_columns = tl.where(columns < n, columns, 0).to(tl.int64)
        steps = tl.arange(0, tile_k)
        a = a_ptr + a_rows[:, None] * a_m + steps[None, :] * a_k
        b = b_ptr + steps[:, None] * b_k + b_columns[None, :] * b_n
        sums = tl.zeros((tile_m, tile_n), dtype=tl.float32)
        for step in range(tl.cdiv(k, tile_k)):
            left = k - step * tile_k
            x = tl.load(a, mask=steps[None, :] < left, other=0.0)
            y = tl.load(b, mask=steps[:, None] < left, other=0.0)
            sums = tl.dot(x, y, sums)
            a += tile_k * a_k
            b += tile_k * b_k
        d = d_ptr + rows.to(tl.int64)[:, None] * d_m + columns[None, :]
        is_inside = (rows[:, None] < m) & (columns[None, :] < n)
        tl.store(d, sums.to(d_ptr.dtype.element_ty), mask=is_inside)


def mm(x: torch.Tensor, w: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    """x [M, K] times w [K, N] into a contiguous `out`"""
    (m, k), n = x.shape, w.shape[1]
    programs = torch.cuda.get_device_properties(x.device).multi_processor_count
    tiles = triton.cdiv(m, TILE_M) * triton.cdiv(n, TILE_N)
    sizes = TILE_M, TILE_N, TILE_K, GROUP, programs
    _kernel[(min(programs, tiles),)](
        *(x, w, out, m, n, k, *x.stride(), *w.stride(), out.stride(0), *sizes),
        num_stages=3,
        num_warps=8,
    )
    return out
