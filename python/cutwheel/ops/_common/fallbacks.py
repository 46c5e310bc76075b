"""Inductor's fallbacks for cutwheel's ops, made before it meets them.

Up to torch 2.12 Inductor puts an op that it meets for the first time, with its arguments, into a
message of its log, written whether anybody reads it or not: each argument with all that it was
computed from, as often as that is used. An op that comes first behind the blocks of a residual
network takes minutes so, and `torch.compile` of a fused ResNet-50 for one image over four, for 18
seconds with its fallbacks made (H200, torch 2.11).
"""

from __future__ import annotations

import sys

import torch

from ..._library import release_of

ops: list[torch._ops.OpOverload] = []
"""those that have a meta function"""

_pending = release_of(torch.__version__) < (2, 13)


def make_fallbacks() -> None:
    """Those that Inductor would make itself. Does nothing until it is loaded, and once."""
    global _pending
    if not _pending or "torch._inductor.graph" not in sys.modules:
        return
    _pending = False
    try:
        from torch._inductor.lowering import (
            lowerings,
            make_fallback,
            tag_to_layout_constraint,
        )
        from torch._library.utils import get_layout_constraint_tag
    except ImportError:
        return
    for op in ops:
        if op not in lowerings:
            tag = get_layout_constraint_tag(op, with_default=True)
            constraint = tag_to_layout_constraint(tag)
            make_fallback(op, layout_constraint=constraint)  # type: ignore[no-untyped-call]
