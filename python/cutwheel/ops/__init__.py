"""The ops: a module per family, with signatures, docstrings, autograd and fake kernels.

The functions are those of `cutwheel` itself; here, `linear` and `gemm` are the modules.
"""

# gemm and linear come before whatever else needs their gradients: each of them is imported by the
# module of its gradients in turn.
from . import _fake, _fake_fused, _fake_scaled, gemm, linear

__all__ = ["gemm", "linear"]

_fake.register()
_fake_fused.register()
_fake_scaled.register()
