"""Rates of GPUs by their data sheets: chips.toml."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import tomllib


class Chip(NamedTuple):
    """TFLOP/s (TOP/s of int8) of the tensor cores by dtype, and GB/s of device memory."""

    name: str
    tflops: dict[str, float]
    gbs: float


def _load() -> dict[str, Chip]:
    found = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for chip in found.values():
        chip["tflops"]["f16"] = chip["tflops"]["bf16"]
    return {slug: Chip(**chip) for slug, chip in found.items()}


CHIPS = _load()


def chip_of(slug: str) -> Chip | None:
    """None for a GPU that is not in the list: no limit is drawn then."""
    return CHIPS.get(slug)


def limit(chip: Chip, dtype: str, flops_per_byte: float) -> float | None:
    """TFLOP/s that the chip allows at this intensity."""
    peak = chip.tflops.get(dtype)
    return None if peak is None else min(peak, chip.gbs * flops_per_byte * 1e-3)
