"""The kernel families: what each accepts, its shared memory and how its C++ is spelled.

A family is one header of cuda/ with one class template. The rules repeat what the template and the
hardware demand, so that a wrong manifest entry stops the configure with a sentence instead of the
compiler with a page.
"""

from __future__ import annotations

from kernelgen.families import (
    depthwise,
    elementwise,
    grouped_conv,
    sm80,
    sm90_cutlass,
    sm90_direct_conv,
    sm90_native,
    thin,
)
from kernelgen.families.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        sm80.SM80_MULTISTAGE,
        sm90_cutlass.SM90_WARPSPECIALIZED,
        elementwise.SPLITK_REDUCE,
        elementwise.SPLITK_EPILOGUE,
        elementwise.ELEMENTWISE,
        sm80.SM89_BLOCKWISE,
        sm90_cutlass.SM90_BLOCKWISE,
        sm90_native.SM90_PERSISTENT,
        sm90_native.SM90_GROUPED,
        sm90_native.SM90_GATHERED_GROUPED,
        sm80.SM80_GROUPED,
        sm90_native.SM90_CONV,
        sm90_native.SM90_GATHER_CONV,
        sm90_native.SM90_ROW_CONV,
        sm90_direct_conv.SM90_DIRECT_CONV,
        sm90_direct_conv.SM90_STRIDED_DGRAD,
        sm90_direct_conv.SM90_SPACE_TO_DEPTH,
        sm90_direct_conv.SM90_FEW_CHANNELS,
        sm80.SM80_CONV,
        elementwise.QUANTIZE,
        sm90_native.SM90_UNALIGNED,
        elementwise.PAD_ROWS,
        elementwise.COL2IM,
        elementwise.ROUTE,
        elementwise.PERMUTE,
        elementwise.UNPERMUTE,
        elementwise.PERMUTE_DOTS,
        depthwise.DEPTHWISE,
        grouped_conv.GROUPED_CONV,
        thin.THIN,
    )
}
