"""Modules: torch.nn.Linear and torch.nn.Conv2d with what follows them in the same kernel, the gated
MLP, the experts of a mixture-of-experts layer, and layers whose weight is quantised.

Building, moving, saving and loading work without a GPU; calling needs one.
"""

from __future__ import annotations

from .conv import Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .dense import GatedMLP, Linear
from .experts import GroupedExperts
from .scaled import ScaledLinear
from .scaled_conv import ScaledConv2d, activation_scales

__all__ = [
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "GatedMLP",
    "GroupedExperts",
    "Linear",
    "ScaledConv2d",
    "ScaledLinear",
    "activation_scales",
]
