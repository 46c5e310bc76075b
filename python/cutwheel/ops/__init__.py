"""The ops: a package per family, with signatures, docstrings, autograd and meta functions.

The functions are those of `cutwheel` itself; here, `conv`, `gemm`, `grouped`, `linear` and `scaled`
are the packages.
"""

from . import conv, gemm, grouped, linear, scaled
from ._common import meta_elementwise
from .conv import _meta as _conv_meta
from .gemm import _meta as _gemm_meta
from .grouped import _meta as _grouped_meta
from .linear import _meta as _linear_meta
from .scaled import _meta as _scaled_meta

__all__ = ["conv", "gemm", "grouped", "linear", "scaled"]

for _module in (
    _conv_meta,
    _gemm_meta,
    _grouped_meta,
    _linear_meta,
    _scaled_meta,
    meta_elementwise,
):
    _module.register()
