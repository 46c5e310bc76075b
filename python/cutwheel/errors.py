"""The classes of cutwheel's errors that are not Python's own.

Each is two classes at once: the one that fits, ValueError or TypeError, and RuntimeError, which
torch's own functions raise for the same mistake. Code that was written around torch.mm catches what
cutwheel.mm raises.

    ArgumentError(ValueError, RuntimeError)     a value that does not fit
        ShapeError                              a rank or a shape
        DeviceError                             a tensor on another device than the others
    DtypeError(TypeError, RuntimeError)         a dtype
        ScaledDtypeError(DtypeError, ValueError)  the same, of scaled products

What torch raises as TypeError, an argument that is no tensor or no number, is a TypeError and
nothing else. RuntimeError and its subclass NotImplementedError are raised as they are, in the cases
that the ops name.
"""

from __future__ import annotations

__all__ = ["ArgumentError", "DeviceError", "DtypeError", "ScaledDtypeError", "ShapeError"]


class ArgumentError(ValueError, RuntimeError):
    """An argument's value does not fit: `out` that overlaps, a stride of 0, an unknown recipe."""


class ShapeError(ArgumentError):
    """A tensor's rank or shape does not fit the other arguments."""


class DeviceError(ArgumentError):
    """Tensors are on different devices."""


class DtypeError(TypeError, RuntimeError):
    """A dtype is not supported, or does not fit the other tensors."""


class ScaledDtypeError(DtypeError, ValueError):
    """A dtype does not fit, in scaled_mm or scaled_grouped_mm, where torch raises ValueError."""
