"""Plans for torch.distributed.tensor.parallel.parallelize_module, and layers that overlap.

    from torch.distributed.tensor.parallel import parallelize_module
    from cutwheel.distributed import (
        ColwiseParallel, ExpertParallel, GatedMLPParallel, RowwiseParallel
    )

    parallelize_module(block, mesh, {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp": GatedMLPParallel(),           # a cutwheel.nn.GatedMLP
        "experts": ExpertParallel(),         # a cutwheel.nn.GroupedExperts
    })

Importing this module imports torch.distributed.tensor. The ops take DTensors without it: their
sharding strategies are registered as soon as that has been imported.
"""

from __future__ import annotations

import torch

if not torch.distributed.is_available():
    raise ImportError(
        "cutwheel.distributed needs torch.distributed, which this build of torch lacks: install "
        "one that has it (torch.distributed.is_available())"
    )

from ..ops._sharding import register
from ._overlap import all_gather_gated_linear, all_gather_linear, linear_reduce_scatter
from ._plans import ColwiseParallel, ExpertParallel, GatedMLPParallel, RowwiseParallel

register()

__all__ = [
    "ColwiseParallel",
    "ExpertParallel",
    "GatedMLPParallel",
    "RowwiseParallel",
    "all_gather_gated_linear",
    "all_gather_linear",
    "linear_reduce_scatter",
]
