"""Convolutions for compute-sanitizer: no read and no write beyond a tensor.

    compute-sanitizer --tool memcheck --error-exitcode 1 python3 tests/ops/sanitize_conv.py
    python3 tests/ops/sanitize_conv.py --list          # which kernels that runs
    python3 tests/ops/sanitize_conv.py --every --seconds 600

No extent is a multiple of a tile, and images are cut out of larger ones: torch's allocator is told
to keep no memory (PYTORCH_NO_CUDA_MEMORY_CACHING=1, which this sets itself), so that what lies
beyond a tensor belongs to nobody. Results are compared with float64 on the CPU. By default one
kernel of each kind runs, and what `--seconds` leaves no time for is named. Needs a GPU and an
installed wheel, or CUTWHEEL_PACKAGE_DIR.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

# First: it tells torch's allocator what to do.
from sanitizing import WRONG, Row, main  # isort: skip

import torch
from conv_cases import (
    PLACES,
    Conv,
    arguments,
    convs_of_row,
    epilogue_of,
    rows,
    serves,
)
from conv_reference import DIRECTIONS, Geometry
from conv_scaled_cases import ScaledConv, scaled_of_row
from gemm_cases import BRAIN, SINGLE, TORCH_DTYPE
from scaled_reference import E4M3, INT8
from volume_cases import PROBLEMS as VOLUMES
from volume_cases import TRANSPOSED, Volume

COARSE = ("family", "arch", "direction", "epilogue", "cluster")
FINE = (*COARSE, "tile", "a", "b", "d")
SAME_3X3 = Geometry((1, 1), (1, 1, 1, 1))
PROBLEMS = (
    ((2, 24, 9, 13), (40, 24, 3, 3), Geometry((1, 2), (1, 1, 2, 2))),
    ((2, 5, 8, 7), (7, 5, 3, 2), Geometry((2, 1), (1, 1, 0, 0))),
    ((3, 3, 33, 31), (65, 3, 7, 7), Geometry((2, 2), (3, 3, 3, 3))),
    ((3, 24, 5, 7), (33, 24, 1, 1), Geometry()),
    ((1, 16, 1, 1), (8, 16, 3, 3), SAME_3X3),
    ((1, 16, 7, 7), (24, 16, 2, 2), Geometry((3, 3))),  # phases of a gradient without a tap
    ((9, 8, 40, 41), (24, 8, 3, 3), SAME_3X3),  # a K of wgrad that is split
)
LAYS = ("channels_last", "cropped", "nchw_offset", "of_odd_channels", "every_second_pixel")


def _on_cpu(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.cpu()


def _compare(result: torch.Tensor, wanted: torch.Tensor, what: object) -> None:
    norm = wanted.norm().item() or 1.0
    error = (result.cpu().double() - wanted).norm().item() / norm
    if not error <= WRONG:
        raise AssertionError(f"relative error {error:.3g}: {what}")


def check(conv: Conv, result: torch.Tensor) -> None:
    operands = {name: _on_cpu(x) for name, x in conv.operands.items()}
    exact = replace(conv, a=conv.a.cpu(), b=conv.b.cpu(), operands=operands).weighed()
    _compare(result, exact.value, conv)


def check_scaled(conv: ScaledConv, result: torch.Tensor) -> None:
    tensors = {name: x.cpu() for name, x in vars(conv).items() if isinstance(x, torch.Tensor)}
    exact = replace(conv, **tensors)
    if conv.scale_result is None:
        _compare(result, exact.problem().value, conv)
    else:
        exact.judge(result.cpu())


def run_row(cutwheel: Any, row: Row, device: str) -> None:
    if TORCH_DTYPE[row["a"]].itemsize == 1:
        for scaled in scaled_of_row(row, device):
            check_scaled(scaled, scaled.run_op())
        return
    for conv in convs_of_row(row, device):
        check(conv, conv.run())
        if conv.direction == "wgrad":
            cut = replace(conv, lay_a="nchw_offset", lay_b="cropped")
        else:
            cut = replace(conv, lay_a="cropped")
        check(cut, cut.run())


def run_dispatched(cutwheel: Any, device: str) -> None:
    """Without a kernel by name: copies of operands, every direction, epilogues, scales."""
    for number, (problem, dtype) in enumerate(itertools.product(PROBLEMS, (BRAIN, SINGLE))):
        for direction in DIRECTIONS:
            lay_a, lay_b = LAYS[number % len(LAYS)], LAYS[(number + 1) % len(LAYS)]
            conv = Conv.random(direction, *problem, dtype, device, lay_a=lay_a, lay_b=lay_b)
            check(conv, conv.run())
    for number, (problem, place) in enumerate(itertools.product(PROBLEMS, PLACES)):
        lay = LAYS[number % len(LAYS)]
        conv = Conv.random("fprop", *problem, BRAIN, device, epilogue_of("relu", place))
        conv = replace(conv, lay_a=lay, lay_residual=lay)
        check(conv, cutwheel.conv2d(**arguments(conv, "relu", place)))
    if torch.cuda.get_device_capability() == (9, 0):
        for number, (problem, direction) in enumerate(itertools.product(VOLUMES, DIRECTIONS)):
            volume = Volume.random(direction, *VOLUMES[problem], BRAIN, device).laid_out(number)
            volume.judge(volume.run())
        for problem, epilogue in itertools.product(TRANSPOSED, ("plain", "bias_relu")):
            given = ("dgrad", *TRANSPOSED[problem], BRAIN, device, epilogue, True)
            transposed = Volume.random(*given)
            transposed.judge(transposed.run())
    for kind in (E4M3, INT8):
        if not serves("fprop", kind, "scaled_bounded"):
            continue
        for number, problem in enumerate(PROBLEMS):
            lay, bias = LAYS[number % len(LAYS)], (None, "d", "f32")[number % 3]
            scaled = ScaledConv.random(*problem, kind, device, bias=bias, lay_x=lay)
            check_scaled(scaled, scaled.run(cutwheel))
            given = (*problem, kind, device, kind, bias, True, True)
            quantized = ScaledConv.random(*given, lay_x=lay, lay_residual=lay)
            check_scaled(quantized, quantized.run(cutwheel))


if __name__ == "__main__":
    floats, scaled_rows = rows()
    sys.exit(
        main(
            __doc__,
            [*floats, *scaled_rows],
            (COARSE[:3], COARSE, FINE[:-3], FINE),
            run_row,
            run_dispatched,
            seconds=60,
        )
    )
