"""The whole of ResNet-50, as examples/resnet50.py has it: fused, eager and compiled."""

from __future__ import annotations

import copy
import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from . import harness
from .conv_jobs import ConvShape
from .conv_sides import Library, Tensor
from .sides import keep_caches_in_tmpdir, raising

WIDTH = 64  # of the stem; tests take a smaller one
# Of logits, behind 53 layers whose results are rounded to bfloat16, and in eager torch their parts.
TOLERANCE = 4e-2


@functools.cache
def example() -> ModuleType:
    path = Path(__file__).parents[1] / "examples" / "resnet50.py"
    spec = importlib.util.spec_from_file_location("resnet50", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["resnet50"] = found
    spec.loader.exec_module(found)
    return found


def case(
    shape: ConvShape, device: torch.device, library: Library, compile_mode: str | None
) -> tuple[harness.Case, int, int]:
    """Also its operations, and the bytes of images, weights and logits."""
    made = example().make(str(device), torch.bfloat16, shape.h, WIDTH)
    x = [example().images(shape.n, shape.h, str(device), torch.bfloat16) for _ in range(2)]
    precise = copy.deepcopy(made).float()

    def reference(i: int) -> Tensor:
        # Without cuDNN: a convolution of float32 is then one of float32.
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
            logits: Tensor = precise(x[i].float())
        return logits

    def side(name: str, model: Any) -> harness.Side:
        def call(i: int) -> Tensor:
            with torch.no_grad():
                logits: Tensor = model(x[i])
            return logits

        return harness.Side(name, call)

    sides = [side("eager", made)]
    if compile_mode is not None:
        keep_caches_in_tmpdir()
        sides.append(side("compile", raising(torch.compile(made, mode=compile_mode))))
    sides.append(side(library.name, library.fuse(made)))
    found = harness.Case(sides, len(x), reference, TOLERANCE)
    weights = sum(tensor.nbytes for tensor in made.state_dict().values())
    return found, operations(shape), x[0].nbytes + weights


def operations(shape: ConvShape) -> int:
    with torch.device("meta"):
        model, x = example().ResNet50(width=WIDTH), torch.empty(shape.input)
    with FlopCounterMode(display=False) as counter:
        model.eval()(x)
    total: int = counter.get_total_flops()
    return total
