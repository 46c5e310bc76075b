"""The ops: a module per family, with signatures, docstrings, autograd and fake kernels."""

from . import _fake
from ._matmul import matmul
from .gemm import addmm, baddbmm, bmm, linear, mm

__all__ = ["addmm", "baddbmm", "bmm", "linear", "matmul", "mm"]

_fake.register()
