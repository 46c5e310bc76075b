"""Calls of cutwheel.quantize, and what they should give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gemm_cases import BRAIN, HALF, SINGLE, TORCH_DTYPE, random_tensor
from scaled_reference import (
    BY_128,
    BY_128_128,
    E4M3,
    E5M2,
    INT8,
    LARGEST,
    ROW,
    TENSOR,
    Quantised,
    group_reduce,
    per_element,
    scale_shape,
    torch_quantize,
)

INPUTS = (BRAIN, HALF, SINGLE)
# (recipe, dtype, symmetric)
KINDS = [
    (recipe, dtype, True) for recipe in (TENSOR, ROW, BY_128, BY_128_128) for dtype in (E4M3, E5M2)
]
KINDS += [(recipe, INT8, symmetric) for recipe in (TENSOR, ROW) for symmetric in (True, False)]

# Where x / scale is this near to a tie, either neighbour is right; scales may differ by as little.
TIE = 1e-6
SCALE_ERROR = 2.0**-22


def kind_id(kind: tuple[str, torch.dtype, bool]) -> str:
    recipe, dtype, symmetric = kind
    name = str(dtype).removeprefix("torch.")
    return f"{recipe}-{name}" + ("" if symmetric else "-asymmetric")


def random_input(rows: int, k: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Groups of different size, and in one of two rows a mean of its own."""
    x = random_tensor((rows, k), SINGLE, device)
    x = x * torch.exp2(4 * torch.rand(rows, 1, device=device) - 2)
    x[::2] += 1.5
    return x.to(dtype)


def run(cutwheel: Any, x: torch.Tensor, kind: tuple[str, torch.dtype, bool]) -> Quantised:
    """The package's answer for x [..., K], with values [rows, K], and what its form has to be."""
    recipe, dtype, symmetric = kind
    keywords = {} if symmetric else {"symmetric": False}
    found = cutwheel.quantize(x, recipe, dtype, **keywords)
    assert isinstance(found, tuple)
    assert len(found) == (2 if symmetric else 3), f"{len(found)} results"
    values, scales = found[:2]
    azp = None if symmetric else found[2]
    k = x.shape[-1]
    rows = x[..., 0].numel() if k else int(torch.tensor(x.shape[:-1]).prod())
    assert (values.shape, values.dtype, values.device) == (x.shape, dtype, x.device)
    assert values.is_contiguous()
    shape = scale_shape(recipe, rows, k)
    assert (tuple(scales.shape), scales.dtype) == (shape, SINGLE), f"{scales.shape} {scales.dtype}"
    if recipe == BY_128 and min(shape) > 1:
        assert scales.stride() == (1, -(-rows // 4) * 4), f"strides {scales.stride()}"
    if recipe != BY_128:
        assert scales.is_contiguous()
    if azp is not None:
        assert (tuple(azp.shape), azp.dtype) == (shape, torch.int32), f"{azp.shape} {azp.dtype}"
    assert not any(tensor.requires_grad for tensor in found)
    return Quantised(values.reshape(rows, k), scales, recipe, azp)


def check(
    cutwheel: Any, x: torch.Tensor, kind: tuple[str, torch.dtype, bool], what: object = ""
) -> Quantised:
    """Runs it and compares scales, zero points and values with the reference."""
    recipe, dtype, symmetric = kind
    about = f"{kind_id(kind)} of {tuple(x.shape)} {x.dtype} {what}"
    poison(x, dtype)
    try:
        found = run(cutwheel, x, kind)
        flat = x.reshape(found.values.shape)
        compare(found, flat, torch_quantize(flat, recipe, dtype, symmetric), symmetric)
    except Exception as error:
        error.add_note(about)
        raise
    return found


def poison(x: torch.Tensor, dtype: torch.dtype) -> None:
    """The allocator gives the values this memory: one that is not written is NaN, or 127."""
    memory = torch.full(x.shape, 0x7F, dtype=torch.uint8, device=x.device)
    scales = torch.full((max(x.numel() // 64, 1),), float("nan"), device=x.device)
    del memory, scales


def compare(found: Quantised, x: torch.Tensor, wanted: Quantised, symmetric: bool) -> None:
    nan = wanted.scales.isnan()
    assert torch.equal(found.scales.isnan(), nan), "scales are NaN elsewhere"
    torch.testing.assert_close(
        found.scales[~nan],
        wanted.scales[~nan],
        rtol=SCALE_ERROR,
        atol=0,
        msg=lambda m: f"scales: {m}",
    )
    rows, k = x.shape
    known = per_element(~nan, wanted.recipe, rows, k)
    scales = per_element(wanted.scales, wanted.recipe, rows, k).double()
    ratio = (x.double() / scales).nan_to_num(0.0, 0.0, 0.0)
    dtype = found.values.dtype
    near = [ratio * (1 - TIE), ratio * (1 + TIE)]
    if symmetric:
        bounds = [_rounded(y.clamp(-LARGEST[dtype], LARGEST[dtype]), dtype) for y in near]
    else:
        zero = _zero_points(found, wanted, x)
        bounds = [(y.round() + zero).clamp(-128, 127) for y in near]
    low, high = torch.minimum(*bounds), torch.maximum(*bounds)
    values = found.values.float().double()
    wrong = known & ~((values >= low) & (values <= high))
    if wrong.any():
        at = tuple(int(i) for i in wrong.nonzero()[0])
        raise AssertionError(
            f"{int(wrong.sum())} of {x.numel()} values are wrong; number {at} is"
            f" {values[at].item():g} for {x[at].item():g} / {scales[at].item():g} ="
            f" {ratio[at].item():.9g}, between {low[at].item():g} and {high[at].item():g}"
        )


def _rounded(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype == INT8:
        return y.round()
    return y.float().to(dtype).float().double()


def _zero_points(found: Quantised, wanted: Quantised, x: torch.Tensor) -> torch.Tensor:
    """Those found, once they are known to be right; a tie may go either way here, too."""
    assert found.azp is not None
    assert wanted.azp is not None
    known = ~wanted.scales.isnan()
    # Extremes of equal size put lo / scale halfway between integers: rounding of the scale decides.
    low, high = (
        group_reduce(x.float(), found.recipe, highest).double() for highest in (False, True)
    )
    exact = 255 * low / (high - low)
    known &= ~((exact - exact.floor() - 0.5).abs() < 1e-4)
    off = (found.azp - wanted.azp).abs()[known]
    assert (off <= 1).all(), f"azp: {found.azp.flatten()[:8]} instead of {wanted.azp.flatten()[:8]}"
    assert int((off == 1).sum()) <= max(1, off.numel() // 100), "azp is off by one in many groups"
    return per_element(found.azp.double(), found.recipe, *x.shape)


def check_row(
    cutwheel: Any, device: str, environment: Callable[..., None], row: Mapping[str, Any]
) -> None:
    """One row of the kernel table of the family quantize."""
    environment(CUTWHEEL_ARCH=row["arch"])  # has no other for these types
    recipe = row["recipe"].removesuffix("_asymmetric")
    kind = (recipe, TORCH_DTYPE[row["d"]], recipe == row["recipe"])
    for rows, k in ((130, 1040), (3, 72), (257, 333)):
        check(cutwheel, random_input(rows, k, TORCH_DTYPE[row["a"]], device), kind)
