"""Modules: torch.nn.Linear with what follows it in the same kernel, the gated MLP, the experts of
a mixture-of-experts layer, and linear layers whose weight is quantised.

Building, moving, saving and loading work without a GPU; calling needs one.
"""

from __future__ import annotations

from .dense import GatedMLP, Linear
from .experts import GroupedExperts
from .scaled import ScaledLinear

__all__ = ["GatedMLP", "GroupedExperts", "Linear", "ScaledLinear"]
