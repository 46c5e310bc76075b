"""Inputs of the matrix-product tests: shapes, layouts, and operands that lie oddly in memory."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ARCHS = ("sm80", "sm89", "sm90a")
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
DTYPES = (HALF, BRAIN, SINGLE)
# (operands, result)
DTYPE_PAIRS = ((HALF, HALF), (HALF, SINGLE), (BRAIN, BRAIN), (BRAIN, SINGLE), (SINGLE, SINGLE))
TORCH_DTYPE = {
    "f16": HALF,
    "bf16": BRAIN,
    "f32": SINGLE,
    "tf32": SINGLE,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
    "s32": torch.int32,
}

# Extents where kernels go wrong: 1, primes, around vector widths and tiles, and the largest.
EXTENTS = (1, 2, 3, 7, 8, 16, 17, 31, 64, 65, 97, 127, 128, 129, 256, 257, 509, 1024, 1031, 4097)


def dtype_id(value: object) -> str | None:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple) and value and all(isinstance(v, torch.dtype) for v in value):
        return "_".join(str(v).removeprefix("torch.") for v in value)
    return None


def shapes(count: int, seed: int = 0, largest: int = 4097) -> list[tuple[int, int, int]]:
    """Random (M, N, K): half from EXTENTS, half log-uniform in 1..largest."""
    rng = random.Random(seed)
    allowed = [extent for extent in EXTENTS if extent <= largest]

    def extent() -> int:
        if rng.random() < 0.5:
            return rng.choice(allowed)
        return min(largest, int(2 ** rng.uniform(0, 12.0003)))

    found = [(1, 1, 1), (1, 4097, 64), (4097, 1, 65), (33, 65, 4097), (130, 258, 514)]
    found = [shape for shape in found if max(shape) <= largest][:count]
    while len(found) < count:
        found.append((extent(), extent(), extent()))
    return found


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


def canary(x: torch.Tensor) -> float:
    """Value of memory that no kernel may read: in a product it would show."""
    return float("nan") if x.is_floating_point() else 127


# Each takes contiguous values and returns a tensor of the same values that lies otherwise.
def _row(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous()


def _column(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def _padded(by: int, column: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    def lay(x: torch.Tensor) -> torch.Tensor:
        source = x.mT if column else x
        wide = x.new_full((*source.shape[:-1], source.shape[-1] + by), canary(x))
        view = wide[..., : source.shape[-1]]
        view.copy_(source)
        return view.mT if column else view

    return lay


def _offset(column: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    # One element into its storage: no multiple of 16 bytes.
    def lay(x: torch.Tensor) -> torch.Tensor:
        source = x.mT if column else x
        flat = x.new_full((source.numel() + 1,), canary(x))
        view = flat[1:].view(source.shape)
        view.copy_(source)
        return view.mT if column else view

    return lay


def _every_second(x: torch.Tensor) -> torch.Tensor:
    wide = x.new_full((*x.shape[:-1], 2 * x.shape[-1]), canary(x))
    view = wide[..., ::2]
    view.copy_(x)
    return view


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row": _row,
    "column": _column,
    "row_padded_8": _padded(8),
    "column_padded_8": _padded(8, column=True),
    "row_padded_3": _padded(3),
    "column_padded_1": _padded(1, column=True),
    "row_offset": _offset(),
    "column_offset": _offset(column=True),
    "every_second": _every_second,
}
COMMON_LAYOUTS = ("row", "column")


def operands(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    device: str,
    layout_a: str = "row",
    layout_b: str = "row",
    batch: tuple[int, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """a [*batch, M, K] and b [*batch, K, N] in the given layouts."""
    a = LAYOUTS[layout_a](random_tensor((*batch, m, k), dtype, device))
    b = LAYOUTS[layout_b](random_tensor((*batch, k, n), dtype, device))
    return a, b


def torch_product(a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """torch's own op; with out_dtype where this torch and device have it."""
    op = torch.mm if a.dim() == 2 else torch.bmm
    if out_dtype == a.dtype:
        return op(a, b)
    if a.is_cuda:
        return op(a, b, out_dtype=out_dtype)
    return op(a.to(out_dtype), b.to(out_dtype))


def require_arch(arch: str) -> None:
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    if arch == "sm90a" and capability != (9, 0):
        pytest.skip("sm90a kernels run on compute capability 9.0 only")
    if arch == "sm89" and capability < (8, 9):
        pytest.skip("sm89 kernels need compute capability 8.9 or newer")


@functools.cache
def manifest() -> dict[str, Any]:
    """The manifest.json beside the built package; empty without one."""
    folder = os.environ.get("CUTWHEEL_PACKAGE_DIR")
    if folder:
        path = Path(folder) / "cutwheel" / "manifest.json"
    else:
        spec = importlib.util.find_spec("cutwheel")
        if spec is None or spec.origin is None:
            return {}
        path = Path(spec.origin).with_name("manifest.json")
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


# Kernels of ops of their own, which test_routing_gpu.py has.
ROUTING = ("route", "permute", "unpermute", "permute_dots", "sm90_gathered_grouped")


def manifest_kernels(op: str = "gemm") -> tuple[dict[str, Any], ...]:
    """Rows of the kernel table that serve this op."""
    kernels = manifest().get("kernels", ())
    return tuple(row for row in kernels if row["op"] == op and row["family"] not in ROUTING)
