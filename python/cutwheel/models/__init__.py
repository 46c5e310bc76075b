"""The modules of Transformers' models computed by cutwheel: layers, merged projections, experts.

`replacing` walks through a model and `families` says which class is what. `joined` has the modules
that hold several of the original's parameters as one, and their state dicts, `experts` the function
that Transformers calls for experts, `report` what was done. `torchao` and `vllm` are for these two,
experimental, and imported by those who use them.

Nothing here imports transformers, and nothing is patched or registered by an import.
"""

from __future__ import annotations

from .experts import register_transformers
from .replacing import replace_layers
from .report import Left, Replaced, ReplacementReport

__all__ = ["Left", "Replaced", "ReplacementReport", "register_transformers", "replace_layers"]
