"""Measured choices of kernels: tables that this machine, or the wheel's makers, measured.

    python -m cutwheel tune --op linear --shape 512x14336x4096 --table mine.json
    CUTWHEEL_TUNING=mine.json python train.py

or, in the program, cutwheel.load_tuning("mine.json"). docs/tuning.md has the rest.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import _library  # noqa: F401  (registers torch.ops.cutwheel)
from ..ops._common.errors import reraise
from .table import Table, parse

VARIABLE = "CUTWHEEL_TUNING"


def load_tuning(table: str | os.PathLike[str] | Mapping[str, Any]) -> None:
    """Chooses kernels by a table of measurements, from the next call on.

    What the table says of a request wins over what the wheel says; it is used on the GPU that it
    was measured on, and on those with as many SMs of the same architecture and the same bandwidth.
    A table of the same GPU that was loaded before is replaced, other tables stay.

    Args:
        table: what `python -m cutwheel tune` has written: a path, or the document itself

    Raises:
        ValueError: a document that is no table or has another schema, kernels that this wheel does
            not have; the text names the field
        OSError: the file cannot be read
    """
    if isinstance(table, Mapping):
        install(parse(table, "table"))
        return
    path = Path(table)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON, or of UTF-8
        raise ValueError(f"load_tuning: {path} is no JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"load_tuning: {path} is nested too deeply; expected a table") from None
    try:
        install(parse(document, path.name))
    except ValueError as error:
        raise ValueError(f"load_tuning: {error} (in {path})") from None


def clear_tuning() -> None:
    """Forgets all tables that were loaded; those of the wheel stay."""
    torch.ops.cutwheel._clear_tuning()


def install(table: Table) -> None:
    """Raises ValueError if the wheel does not have the table's kernels."""
    rows = {row["name"] for row in json.loads(torch.ops.cutwheel._kernels())}
    for index, entry in enumerate(table.entries):
        for plan in entry.plans:
            if plan.row not in rows:
                raise ValueError(
                    f"{table.name}.entries[{index}].plans: the kernel {plan.row} is not in this"
                    " wheel; measure again with `python -m cutwheel tune`"
                )
    try:
        torch.ops.cutwheel._load_tuning(lines_of(table))
    except RuntimeError as error:
        reraise("load_tuning", error)


def lines_of(table: Table) -> str:
    """The table as the library reads it: see cuda/dispatch/tuning/table.h."""
    gpu = table.gpu
    name = " ".join(table.name.split())
    lines = [f"table {name}", f"gpu {_words(*gpu.cc, gpu.sm_count, gpu.memory_gb_per_s)}"]
    lines[1] += f" {gpu.name}"
    for entry in table.entries:
        r = entry.request
        kind = r.op, r.a, r.b, r.d, r.layouts, r.addend, r.epilogue or "-", int(r.fast_accum)
        extents = r.scales, int(r.extents_aligned), r.m, r.n, r.k, r.batch, r.grouping, r.groups
        conv = r.direction, r.taps, r.step, int(r.tensor_maps), r.padded_filter
        lines.append(f"entry {_words(*kind, *extents, *conv, r.unaligned or '-')}")
        for plan in entry.plans:
            words = _words(plan.row, plan.raster, plan.swizzle, plan.splits, plan.us)
            lines.append(f"plan {words}")
    return "\n".join(lines) + "\n"


def _words(*values: object) -> str:
    return " ".join(map(str, values))


def load_environment() -> None:
    """The tables that CUTWHEEL_TUNING names, separated by os.pathsep. A broken one is warned of."""
    for path in os.environ.get(VARIABLE, "").split(os.pathsep):
        if not path:
            continue
        try:
            load_tuning(path)
        except (OSError, ValueError) as error:
            text = str(error).removeprefix("load_tuning: ")
            warnings.warn(
                f"{VARIABLE}: {text}. Kernels are chosen without this table", stacklevel=2
            )
