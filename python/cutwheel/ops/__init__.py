"""The ops: a package per family, with signatures, docstrings, autograd and meta functions.

The functions are those of `cutwheel` itself; here, `conv`, `gemm`, `grouped`, `linear` and `scaled`
are the packages.
"""

from . import _node_gradients as _node_gradients  # registers an op
from . import _sharding, conv, gemm, grouped, linear, scaled
from .conv import _meta as _conv_meta  # noqa: F401  (registers its meta functions, as those below)
from .gemm import _meta as _gemm_meta  # noqa: F401
from .grouped import _meta as _grouped_meta  # noqa: F401
from .linear import _meta as _linear_meta  # noqa: F401
from .scaled import _meta as _scaled_meta  # noqa: F401

_sharding.install()

__all__ = ["conv", "gemm", "grouped", "linear", "scaled"]
