"""The ops: a module per family, with signatures, docstrings, autograd and fake kernels.

The functions are those of `cutwheel` itself; here, `conv`, `linear`, `gemm` and `grouped` are the
modules.
"""

# gemm, linear and grouped come before whatever else needs their gradients: each of them is imported
# by the module of its gradients in turn.
from . import (
    _fake,
    _fake_conv,
    _fake_fused,
    _fake_grouped,
    _fake_scaled,
    conv,
    gemm,
    grouped,
    linear,
)

__all__ = ["conv", "gemm", "grouped", "linear"]

_fake.register()
_fake_fused.register()
_fake_scaled.register()
_fake_grouped.register()
_fake_conv.register()
