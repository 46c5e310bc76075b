"""Tables of measurements (cuda/dispatch/tuning/*.json) as constant data: tuned_tables.cpp.

The format and its checks are those of the package, in python/cutwheel/tuning/table.py.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelgen import cpp
from kernelgen.kernel import BLOCK_SCALES, Kernel
from kernelgen.naming import procedural_name

FOLDER = Path("cuda/dispatch/tuning")
_FORMAT = Path(__file__).resolve().parents[3] / "python/cutwheel/tuning/table.py"


class TuningError(Exception):
    """A table that is none, or that is of other kernels."""


def _load_format() -> ModuleType:
    # Not through the package: importing that needs torch and a built library.
    spec = importlib.util.spec_from_file_location("kernelgen_tuning_table", _FORMAT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table_format = _load_format()


def load(source_dir: Path) -> list[Any]:
    """The tables of a source tree, by name. Raises TuningError for a file that is none."""
    tables = []
    for path in sorted((source_dir / FOLDER).glob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            tables.append(table_format.parse(document, path.name))
        except ValueError as error:  # broken JSON, and what is wrong in a table
            text = str(error)
            raise TuningError(
                text if text.startswith(path.name) else f"{path.name}: {text}"
            ) from None
    return tables


def render(
    tables: Iterable[Any],
    kernels: Sequence[Kernel],
    epilogues: Iterable[str],
    *,
    narrowed: bool = False,
) -> dict[str, object]:
    """Values for tuned_tables.cpp.in.

    Args:
        kernels: those that are built, in the order of the table of kernels
        epilogues: the names of all that are declared
        narrowed: the build has a selection of the kernels: measurements of others are left out

    Raises:
        TuningError: a kernel or an epilogue is not declared any more
    """
    number = {procedural_name(kernel): index for index, kernel in enumerate(kernels)}
    known = set(epilogues)
    bodies: list[str] = []
    heads: list[str] = []
    for table in tables:
        if not narrowed:
            _check(table, number, known)
        lines: list[str] = []
        plans: list[str] = []
        for entry in table.entries:
            rows = [_plan(plan, number[plan.row]) for plan in entry.plans if plan.row in number]
            epilogue = entry.request.epilogue
            if not rows or (epilogue is not None and epilogue not in known):
                continue
            lines.append(f"    {{{_request(entry.request)}, {len(plans)}, {len(rows)}}},\n")
            plans += rows
        if not lines:
            continue
        index = len(heads)
        bodies.append(
            f"constexpr TunedEntry kEntries{index}[] = {{\n{''.join(lines)}}};\n"
            f"constexpr TunedPlan kPlans{index}[] = {{\n{''.join(plans)}}};\n\n"
        )
        gpu = table.gpu
        facts = f"{gpu.cc[0]}, {gpu.cc[1]}, {gpu.sm_count}, {gpu.memory_gb_per_s!r}"
        heads.append(
            f"    {{{json.dumps(table.name)}, {{{json.dumps(gpu.name)}, {facts}}}, "
            f"kEntries{index}, {len(lines)}, kPlans{index}}},\n"
        )
    # C++ has no empty arrays.
    return {"bodies": "".join(bodies), "tables": "".join(heads) or "    {},\n", "count": len(heads)}


def _check(table: Any, number: dict[str, int], epilogues: set[str]) -> None:
    for entry in table.entries:
        epilogue = entry.request.epilogue
        if epilogue is not None and epilogue not in epilogues:
            raise TuningError(f"{table.name}: no epilogue {epilogue} is declared; {_REMEDY}")
        for plan in entry.plans:
            if plan.row not in number:
                raise TuningError(
                    f"{table.name}: no kernel {plan.row} is declared"
                    f" (in the entry of {entry.request}); {_REMEDY}"
                )


_REMEDY = "measure again with `python -m cutwheel tune`, or delete the entries"


def _request(r: Any) -> str:
    """GemmRequest, in the order of its members."""
    values = [
        f"Op::{r.op}, /*device=*/0, DType::{r.a}, DType::{r.b}, DType::{r.d}",
        f"{cpp.LAYOUTS[r.layouts[0]]}, {cpp.LAYOUTS[r.layouts[1]]}, Addend::{r.addend}",
        f"Epilogue::{r.epilogue}" if r.epilogue is not None else "Epilogue{}",
        f"{cpp.boolean(r.fast_accum)}, BlockScales::{BLOCK_SCALES.get(r.scales, 'none')}",
        cpp.boolean(r.extents_aligned),
        ", ".join(cpp.boolean(operand not in r.unaligned) for operand in ("a", "b", "d")),
        f"{r.m}, {r.n}, {r.k}, {r.batch}",
        f"Grouping::{r.grouping}, {r.groups}, Direction::{r.direction}, {r.taps}, {r.step}",
        cpp.boolean(r.tensor_maps),
        f"FilterPadding::{r.padded_filter}",
    ]
    return f"{{{', '.join(values)}}}"


def _plan(plan: Any, row: int) -> str:
    return (
        f"    {{{row}, RasterOrder::{plan.raster}, {plan.swizzle}, {plan.splits}, {plan.us!r}f}},\n"
    )
