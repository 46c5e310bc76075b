"""Whether a kernel is there, and expected to be faster than what Inductor would run.

Plain products go by the figures of `enable()`, which the library has; what is fused goes by
`measured`. Where the number of rows is not known, a gain has to be expected for every number that
the graph may see: nothing is specialised, and no guard is added.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..inspect.explain import kernels
from ..ops._common import batch_invariance
from . import measured
from .products import Product
from .sizes import bounds, static

_SLOWER = "Inductor is expected to be as fast, or faster"
_UNMEASURED = "nothing like it was measured on this GPU"
# The classes of `enable()`: first and last number of rows, and one that was not measured itself.
_ROWS_IN_CLASS: tuple[tuple[int, int | None, int], ...] = (
    (1, 1, 1),
    (2, 16, 11),
    (17, 64, 61),
    (65, 128, 123),
    (129, 512, 509),
    (513, 2048, 2039),
    (2049, None, 9001),
)
_UNKNOWN_SIZE = 7
"""for a size that may be any: no problem with it was measured"""
# With tiles for all numbers of rows, as those that were measured.
_MEASURED_ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
_DTYPES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float8_e4m3fn: "e4m3"}
_ARCHS = {8: ("sm80", "sm89"), 9: ("sm90a",)}


class Target:
    """The GPU that a graph is compiled for, and what is asked of it."""

    def __init__(self, major: int, only_faster: bool) -> None:
        self.major = major
        self.only_faster = only_faster

    @classmethod
    def of(cls, device: torch.device, only_faster: bool) -> Target | str:
        """Why the device is none; else the target. In batch_invariant() a gain does not count,
        since it depends on the number of rows."""
        if device.type != "cuda" or torch.version.cuda is None:
            return "the tensors are not on a CUDA device"
        if not torch.cuda.is_available():
            return "no GPU is there to be asked"
        major, _ = torch.cuda.get_device_capability(device)
        return cls(major, only_faster and not batch_invariance.enabled)

    def has_kernel(
        self,
        op: str,
        dtype: torch.dtype,
        layout: str,
        epilogue: str,
        out_dtype: torch.dtype | None = None,
    ) -> bool:
        """Whether this wheel has a kernel that runs natively.

        Args:
            layout: of A, B and D; of a convolution "fprop", "dgrad" or "wgrad"
            out_dtype: of D; None: that of A
        """
        types = _DTYPES.get(dtype, ""), _DTYPES.get(out_dtype or dtype, "")
        rest = *types, layout, epilogue
        return any((op, arch, *rest) in _available() for arch in _ARCHS.get(self.major, ()))

    def why_not_product(self, product: Product) -> str | None:
        """Why mm, bmm, addmm or baddbmm stays as it is; None: a kernel is expected to be faster."""
        epilogues = ("plain" if product.c is None else "bias", "linear_combination")
        layout = f"{product.layout}t"
        if not any(self.has_kernel("gemm", product.dtype, layout, each) for each in epilogues):
            return "no kernel of this wheel runs natively"
        if not self.only_faster:
            return None
        if self.major != measured.MAJOR:
            return _UNMEASURED
        batch = static(product.batch)
        if batch is None:
            return "the number of matrices is not known"
        n, k = (static(each) or _UNKNOWN_SIZE for each in (product.n, product.k))
        rows = static(product.m)
        op = "bmm" if product.op in ("bmm", "baddbmm") else "mm"
        for m in [rows] if rows is not None else _rows_between(*bounds(product.m)):
            given = f"{op} {product.layout}", m, [batch, m, n, k], self.major
            verdict = torch.ops.cutwheel._interception_verdict(*given)
            if verdict != "taken":
                return f"{verdict}" if rows is not None else f"{verdict} (for {m} rows)"
        return None

    def why_not_fused(self, kind: str, activation: str | None, rows: Any) -> str | None:
        """Why a fused GEMM is not taken.

        Args:
            kind: as `measured` has it
            activation: in the epilogue
            rows: of the result; all leading dimensions together
        """
        if not self.only_faster:
            return None
        if self.major != measured.MAJOR:
            return _UNMEASURED
        if activation is not None and (because := self.why_not_activation(activation)):
            return because
        for most in _classes_between(*bounds(rows)):
            found = measured.GEMMS.get((kind, most))
            if found is None:
                return _UNMEASURED
            if not found:
                return f"{_SLOWER} ({kind}, {_class_text(most)})"
        return None

    def why_not_activation(self, activation: str) -> str | None:
        """Why an activation stays behind a kernel."""
        if not self.only_faster or activation in _MEASURED_ACTIVATIONS:
            return None
        return f"{activation} was not measured"

    def why_not_convolution(self, kind: str, taps: tuple[int, ...], strided: bool) -> str | None:
        """Why a convolution is not taken; `kind` as `measured` has it."""
        if not self.only_faster:
            return None
        if self.major != measured.MAJOR:
            return _UNMEASURED
        name = {(1, 1): "1x1", (3, 3): "3x3", (3, 3, 3): "3x3x3"}.get(
            taps, "other" if len(taps) == 2 else "other volumes"
        )
        found = measured.CONVOLUTIONS.get((kind, name, strided))
        if found is None:
            return _UNMEASURED
        text = f"{name} filters{', strided' if strided else ''}"
        return None if found else f"{_SLOWER} ({kind}, {text})"


def _rows_between(least: int, most: int | None) -> list[int]:
    """A number for each class of `enable()` that a number of rows may fall into."""
    return [
        sample
        for first, last, sample in _ROWS_IN_CLASS
        if (most is None or first <= most) and (last is None or last >= least)
    ]


def _classes_between(least: int, most: int | None) -> list[int]:
    """The classes of `measured` that a number of rows may fall into."""
    found, first = [], 0
    for last in measured.ROWS:
        if least <= last and (most is None or most >= first):
            found.append(last)
        first = last + 1
    if most is None or most >= first:
        found.append(0)
    return found


def _class_text(most: int) -> str:
    return f"up to {most} rows" if most else f"more than {measured.ROWS[-1]} rows"


@functools.cache
def _available() -> frozenset[tuple[str, ...]]:
    """Op, architecture, dtypes of A and D, layout (of convolutions the direction) and epilogue of
    the wheel's kernels."""
    return frozenset(
        (k.op, k.arch, k.a, k.d, k.direction or k.layout or "", k.epilogue)
        for k in kernels()
        if k.epilogue is not None and k.grouping is None and k.scales is None
    )
