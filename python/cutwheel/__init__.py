"""CUTLASS kernels as PyTorch ops, compiled ahead of time in one small wheel.

    import cutwheel
    y = cutwheel.linear(x, weight, bias)      # x: [..., K], weight: [N, K], bias: [N]
    y = cutwheel.linear(x, weight, bias, activation="gelu")   # in one kernel
    y = cutwheel.scaled_mm(a, b, scale_a, scale_b=scale_b)    # fp8 or int8
    y = cutwheel.grouped_mm(x, weights.mT, offs=ends)         # a weight for each group of rows
    y = cutwheel.conv2d(x, filters, bias, padding=1, activation="relu")   # in one kernel

The ops take CUDA tensors. Importing works without a GPU, a CUDA driver or a CUDA build of torch;
``python -m cutwheel doctor`` says what a machine lacks to run them.
"""

from __future__ import annotations

import sys

__all__ = [
    "CallReport",
    "Calls",
    "Epilogue",
    "Explanation",
    "FusionReport",
    "Kernel",
    "ReplacementReport",
    "__version__",
    "addmm",
    "baddbmm",
    "batch_invariant",
    "bmm",
    "build_info",
    "clear_tuning",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "disable",
    "enable",
    "enabled",
    "epilogues",
    "errors",
    "explain",
    "fuse",
    "gated_linear",
    "gemm",
    "get_sm_limit",
    "grouped_gated_linear",
    "grouped_linear",
    "grouped_mm",
    "grouped_mm_list",
    "inductor",
    "inductor_options",
    "is_batch_invariant",
    "kernels",
    "linear",
    "load_tuning",
    "matmul",
    "mm",
    "models",
    "nn",
    "pack_gated_weight",
    "quantize",
    "replace_layers",
    "report",
    "scaled_conv2d",
    "scaled_grouped_mm",
    "scaled_mm",
    "set_batch_invariant",
    "set_sm_limit",
    "sm_limit",
    "unpack_gated_weight",
]


def _is_started_by_dash_m() -> bool:
    # runpy puts "-m" into argv[0] while it imports the package, and only then.
    return sys.argv[:1] == ["-m"] and "cutwheel" in sys.orig_argv


try:
    from . import _library, errors, inductor, models, nn, tuning
    from .fusion import FusionReport, fuse
    from .inductor import inductor_options
    from .inspect.explain import Explanation, Kernel, build_info, explain, kernels
    from .interception import CallReport, Calls, disable, enable, enabled, report
    from .models import ReplacementReport, replace_layers
    from .ops._common import batch_invariance, log
    from .ops._common import sm_limit as _sm_limit
    from .ops._common.batch_invariance import (
        batch_invariant,
        is_batch_invariant,
        set_batch_invariant,
    )
    from .ops._common.epilogue import Epilogue, epilogues
    from .ops._common.sm_limit import get_sm_limit, set_sm_limit, sm_limit
    from .ops.conv import (
        conv1d,
        conv2d,
        conv3d,
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
    )
    from .ops.gemm import addmm, baddbmm, bmm, gemm, matmul, mm
    from .ops.grouped import grouped_gated_linear, grouped_linear, grouped_mm, grouped_mm_list
    from .ops.linear import gated_linear, linear, pack_gated_weight, unpack_gated_weight
    from .ops.scaled import quantize, scaled_conv2d, scaled_grouped_mm, scaled_mm
    from .tuning import clear_tuning, load_tuning

    __version__ = _library.VERSION
    log.load_environment()
    tuning.load_environment()
    batch_invariance.load_environment()
    _sm_limit.load_environment()
    _sm_limit.follow_torch()
except ImportError:
    # The doctor has to be able to say why this import fails.
    if not _is_started_by_dash_m():
        raise
