"""The order in which a kernel adds up the products of an element of D, as a short key.

Two kernels with the same key, operand types and epilogue give the same bits for the same operands:
what else distinguishes them (tile M and N, the cluster along them, the schedule, swapped operands,
who loads) moves elements between threads and leaves each sum as it is.

A key is made of: the instruction and its K, from which float32 sums go on to the next instruction;
`promoteP`, where the tensor cores' sums are added to registers every P of K; `scaled`, where they
are multiplied by block-wise scales on the way; what shares K, as `clusterCxT` (C threadblocks of
tiles of T, and from C = 3 on the tile's `columnsN`, or `rowsN` of D, that they share out); and of
convolutions the order of taps and channels.
"""

from __future__ import annotations

from kernelgen.families.rules import SCALE_BLOCK
from kernelgen.kernel import Kernel

# Convolutions, by family: how K goes through taps and channels. Whole instructions for each tap;
# one tap behind the other without a gap; and as the halo tiles of direct convolutions have them.
_CONVOLUTIONS = {
    "sm90_conv": "taps",
    "sm90_gather_conv": "gathered",
    "sm90_row_conv": "rows",
    "sm80_conv": "gathered",
    "sm90_direct_conv": "halo",
    "sm90_strided_dgrad": "residues",
    "sm90_space_to_depth": "blocks",
    "sm90_few_channels": "few",
}
_SM80 = ("sm80_multistage", "sm80_grouped", "sm80_conv", "sm89_blockwise")
_SM90 = (
    *("sm90_warpspecialized", "sm90_blockwise", "sm90_persistent", "sm90_unaligned"),
    *("sm90_grouped", "sm90_gathered_grouped", "sm90_conv", "sm90_gather_conv"),
    *("sm90_row_conv", "sm90_direct_conv", "sm90_strided_dgrad", "sm90_space_to_depth"),
    "sm90_few_channels",
)


def summation_order(kernel: Kernel) -> str | None:
    """The key; None: the kernel is no choice between several for a product."""
    is_sm80, is_thin = kernel.family in _SM80, kernel.family == "thin"
    if not is_sm80 and not is_thin and kernel.family not in _SM90:
        return None
    if kernel.dtypes.acc == "s32":
        return "exact"  # no sum of integers depends on its order
    k = kernel.tile.shape[2]
    parts = [f"{'mma' if is_sm80 else 'wgmma'}.k{32 // kernel.element_bytes}"]
    if is_thin:
        parts.append("thin")  # an instruction multiplies four of eight adjacent elements of K
    if kernel.is_fp8 and not kernel.tile.fast_accum:
        # The mainloop of sm80 promotes after each tile of K, all others after 128.
        is_tile = is_sm80 and not kernel.scales
        parts.append(f"promote{k if is_tile else SCALE_BLOCK}")
    if kernel.scales:
        parts.append("scaled")
    if kernel.tile.cluster[2] > 1:
        parts.append(f"cluster{kernel.tile.cluster[2]}x{k}")
        # Each threadblock adds the others' sums to its own, for its part of the tile's columns:
        # with three parts or more these decide the order (rows of D in swapped operands).
        if kernel.tile.cluster[2] > 2:
            parts.append(f"{'rows' if kernel.tile.swap_ab else 'columns'}{kernel.tile.shape[1]}")
    if kernel.family in _CONVOLUTIONS:
        parts.append(_CONVOLUTIONS[kernel.family])
    return ".".join(parts)
