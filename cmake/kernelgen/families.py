"""The kernel families: what each accepts, its shared memory and how its C++ is spelled.

A family is one header of cuda/ with one class template. The rules repeat what the template and the
hardware demand, so that a wrong manifest entry stops the configure with a sentence instead of the
compiler with a page.
"""

from __future__ import annotations

from kernelgen.family import Family
from kernelgen.family_sm80 import Sm80Conv, Sm80Grouped, Sm80Multistage, Sm89Blockwise
from kernelgen.family_sm90 import Sm90Blockwise, Sm90WarpSpecialized
from kernelgen.family_sm90_direct_conv import Sm90DirectConv, Sm90SpaceToDepth, Sm90StridedDgrad
from kernelgen.family_sm90_persistent import Sm90Conv, Sm90Grouped, Sm90Persistent
from kernelgen.family_untiled import Elementwise, Quantize, SplitkReduce

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Sm80Multistage(),
        Sm90WarpSpecialized(),
        SplitkReduce(),
        Elementwise(),
        Sm89Blockwise(),
        Sm90Blockwise(),
        Sm90Persistent(),
        Sm90Grouped(),
        Sm80Grouped(),
        Sm90Conv(),
        Sm90DirectConv(),
        Sm90StridedDgrad(),
        Sm90SpaceToDepth(),
        Sm80Conv(),
        Quantize(),
    )
}
