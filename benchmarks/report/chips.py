"""What data sheets say that GPUs can do: without sparsity, at their boost clock.

Operands of bf16, fp8 and tf32 with sums in float32. By the end of a results file's name.
"""

from __future__ import annotations

from typing import NamedTuple


class Chip(NamedTuple):
    """TFLOP/s (TOP/s of int8) of the tensor cores by dtype, and GB/s of device memory."""

    name: str
    tflops: dict[str, float]
    gbs: float


def _tensor_cores(bf16: float, tf32: float, int8: float, fp8: float | None) -> dict[str, float]:
    found = {"bf16": bf16, "f16": bf16, "tf32": tf32, "int8": int8}
    return found if fp8 is None else found | {"fp8": fp8}


_HOPPER = _tensor_cores(989.4, 494.7, 1978.9, 1978.9)
_HOPPER_PCIE = _tensor_cores(756.0, 378.0, 1513.0, 1513.0)
_A100 = _tensor_cores(312.0, 156.0, 624.0, None)

CHIPS = {
    "h200": Chip("H200 SXM", _HOPPER, 4800.0),
    "h100_80gb_hbm3": Chip("H100 SXM", _HOPPER, 3350.0),
    "h100_pcie": Chip("H100 PCIe", _HOPPER_PCIE, 2000.0),
    "h100_nvl": Chip("H100 NVL", _tensor_cores(835.5, 417.5, 1670.5, 1670.5), 3900.0),
    "a100_sxm4_80gb": Chip("A100 SXM 80 GB", _A100, 2039.0),
    "a100_sxm4_40gb": Chip("A100 SXM 40 GB", _A100, 1555.0),
    "a100_80gb_pcie": Chip("A100 PCIe 80 GB", _A100, 1935.0),
    "a100_pcie_40gb": Chip("A100 PCIe 40 GB", _A100, 1555.0),
    "l4": Chip("L4", _tensor_cores(121.0, 60.0, 242.5, 242.5), 300.0),
    "l40s": Chip("L40S", _tensor_cores(362.05, 183.0, 733.0, 733.0), 864.0),
    "geforce_rtx_4090": Chip("RTX 4090", _tensor_cores(165.2, 82.6, 660.6, 330.3), 1008.0),
    "geforce_rtx_3090": Chip("RTX 3090", _tensor_cores(71.0, 35.6, 284.0, None), 936.0),
}


def chip_of(slug: str) -> Chip | None:
    """None for a GPU that is not in the list: no limit is drawn then."""
    return CHIPS.get(slug)


def limit(chip: Chip, dtype: str, flops_per_byte: float) -> float | None:
    """TFLOP/s that the chip allows at this intensity."""
    peak = chip.tflops.get(dtype)
    return None if peak is None else min(peak, chip.gbs * flops_per_byte * 1e-3)
