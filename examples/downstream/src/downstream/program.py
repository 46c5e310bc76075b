"""The classifier as a program of torch.export: written without a GPU, run on one.

The program is exported on the device "meta", so its file holds no weights and names no GPU. A file
that is exported with CUDA tensors, fake ones included, can only be loaded where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

# Importing it registers torch.ops.cutwheel. Without that torch cannot read such a file.
import cutwheel  # noqa: F401

from .model import CHANNELS, DTYPE, Classifier


def export() -> torch.export.ExportedProgram:
    """For any number of images from 2, of 8 x 8 pixels."""
    images = torch.empty(4, CHANNELS, 8, 8, device="meta", dtype=DTYPE)
    batch = torch.export.Dim("batch", min=2, max=65536)
    return torch.export.export(Classifier("meta"), (images,), dynamic_shapes=({0: batch},))


def save(path: Path) -> None:
    program = export()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names files of the machine that exports
    torch.export.save(program, path)


def load(path: Path, weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """The program of a file with these weights; it runs on their device."""
    module = torch.export.load(path).module()
    module.load_state_dict(weights, assign=True)  # in place of those on "meta"
    return module
