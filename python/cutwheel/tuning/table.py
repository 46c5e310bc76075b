"""Tables of measurements: the format, and what is wrong with a document that is none.

kernelgen loads this file by its path, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

SCHEMA = 1
# An entry keeps the plans that took up to this many times as long as its fastest. The library
# relies on it: a plan that is not there was slower.
KEPT_WITHIN = 1.15
# The bounds of a plan, as in cuda/dispatch/select.h: what is beyond them does not reach a GPU.
MAX_SWIZZLE = 64
MAX_SPLITS = 16384

_INT_MAX = 2**31 - 1

DTYPES = ("f16", "bf16", "f32", "tf32", "e4m3", "e5m2", "s8", "s32")
RASTERS = ("along_m", "along_n")
_CHOICES: dict[str, tuple[str, ...]] = {
    "op": ("gemm", "scaled_mm", "grouped_mm", "conv2d"),
    "a": DTYPES,
    "b": DTYPES,
    "d": DTYPES,
    "layouts": ("tt", "tn", "nt", "nn"),
    "addend": ("none", "row", "matrix", "other"),
    "scales": ("none", "1x128_128x128", "1x128_1x128"),
    "grouping": ("none", "rows", "k"),
    "direction": ("none", "fprop", "dgrad", "wgrad"),
    "padded_filter": ("none", "taps", "filters"),
}


class TableError(ValueError):
    """A document that is no table; the text names the table and the field."""


@dataclass(frozen=True)
class Gpu:
    name: str
    cc: tuple[int, int]
    sm_count: int
    memory_gb_per_s: float
    """what the driver's clock and bus width make"""
    sm_clock_ghz: float = 0.0
    """the highest"""
    l2_bytes: int = 0


@dataclass(frozen=True)
class Request:
    """A request for a kernel: the fields of GemmRequest in cuda/dispatch/select.h.

    Extents are those of the GEMM: those of the mean group where it is grouped, those of the
    implicit GEMM of a convolution.
    """

    op: str
    a: str
    d: str
    layouts: str
    """of A and B: t is row-major, n is column-major"""
    m: int
    n: int
    k: int
    b: str = ""
    """in a document, "" is that of A"""
    addend: str = "none"
    epilogue: str | None = None
    """of an addend "other" and of convolutions"""
    fast_accum: bool = False
    scales: str = "none"
    extents_aligned: bool = True
    batch: int = 1
    grouping: str = "none"
    groups: int = 0
    direction: str = "none"
    taps: int = 1
    step: int = 1
    tensor_maps: bool = True
    padded_filter: str = "none"
    unaligned: str = ""
    """those of a, b and d that do not lie on 16 bytes"""

    def __str__(self) -> str:
        text = f"{self.op} {self.a} {self.m}x{self.n}x{self.k}"
        for value, default in ((self.grouping, "none"), (self.direction, "none")):
            text += f" {value}" if value != default else ""
        return text + (f" batch {self.batch}" if self.batch > 1 else "")


@dataclass(frozen=True)
class Plan:
    row: str
    raster: str
    swizzle: int
    splits: int
    us: float
    """median of one call, in microseconds"""


@dataclass(frozen=True)
class Entry:
    request: Request
    plans: tuple[Plan, ...]
    """fastest first"""


@dataclass(frozen=True)
class Table:
    name: str
    gpu: Gpu
    entries: tuple[Entry, ...]
    cutwheel: str = ""
    """version of the wheel that was measured"""
    driver: str = ""


class _Reader:
    """One value of a document, and where it is."""

    def __init__(self, value: Any, path: str) -> None:
        self.value, self.path = value, path

    def refuse(self, expected: str) -> TableError:
        shown = repr(self.value)
        shown = f"{shown[:60]}..." if len(shown) > 60 else shown
        return TableError(f"{self.path} is {shown}; expected {expected}")

    def mapping(self, known: Sequence[str], needed: Sequence[str]) -> dict[str, _Reader]:
        if not isinstance(self.value, Mapping):
            raise self.refuse("an object")
        for key in needed:
            if key not in self.value:
                raise TableError(f"{self.path}.{key} is missing")
        for key in self.value:
            if key not in known:
                raise TableError(f"{self.path}.{key} is not known; expected {', '.join(known)}")
        return {key: _Reader(value, f"{self.path}.{key}") for key, value in self.value.items()}

    def list(self, length: int | None = None) -> list[_Reader]:
        value = self.value
        if not isinstance(value, (list, tuple)) or length not in (None, len(value)):
            raise self.refuse("a list" if length is None else f"a list of {length}")
        return [_Reader(item, f"{self.path}[{i}]") for i, item in enumerate(value)]

    def text(self) -> str:
        # Tables travel as lines of words.
        if not isinstance(self.value, str) or not self.value.isprintable():
            raise self.refuse("text of one line")
        return self.value

    def choice(self, among: Sequence[str]) -> str:
        if self.value not in among:
            raise self.refuse(f"one of {', '.join(among)}")
        return str(self.value)

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.refuse("true or false")
        return self.value

    def integer(self, least: int, most: int = _INT_MAX) -> int:
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            upper = "" if most == _INT_MAX else f" and at most {most}"
            raise self.refuse(f"a whole number of at least {least}{upper}")
        return value

    def number(self, *, above: float) -> float:
        value = self.value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # An integer may be larger than any float, and still less than infinity.
        if not is_number or not above < value <= sys.float_info.max:
            raise self.refuse(f"a number above {above:g}")
        return float(value)


def parse(document: Any, name: str) -> Table:
    """The table that a JSON document is.

    Args:
        name: of the table, for errors and explanations

    Raises:
        TableError: it is none, or one of another schema; the text names the field
    """
    try:
        return _table(document, name)
    except RecursionError:  # of repr, in the text of a refusal
        raise TableError(f"{name} is nested too deeply; expected a table") from None


def _table(document: Any, name: str) -> Table:
    root = _Reader(document, name)
    if isinstance(document, Mapping) and document.get("schema") != SCHEMA:
        raise TableError(
            f"{name}.schema is {document.get('schema')!r}, and this cutwheel reads {SCHEMA}: "
            "measure again with `python -m cutwheel tune`"
        )
    known = ("schema", "cutwheel", "driver", "gpu", "kernels", "entries")
    parts = root.mapping(known, ("gpu", "kernels", "entries"))
    kernels = [kernel.text() for kernel in parts["kernels"].list()]
    for index, kernel in enumerate(kernels):
        if not kernel or " " in kernel:
            raise TableError(f"{name}.kernels[{index}] is {kernel!r}; expected a kernel's name")
    return Table(
        name,
        _gpu(parts["gpu"]),
        tuple(_entry(entry, kernels) for entry in parts["entries"].list()),
        parts["cutwheel"].text() if "cutwheel" in parts else "",
        parts["driver"].text() if "driver" in parts else "",
    )


def _gpu(reader: _Reader) -> Gpu:
    names, needed = _fields(Gpu)
    parts = reader.mapping(names, needed)
    major, minor = parts["cc"].list(2)
    return Gpu(
        parts["name"].text(),
        (major.integer(1), minor.integer(0)),
        parts["sm_count"].integer(1),
        parts["memory_gb_per_s"].number(above=0),
        parts["sm_clock_ghz"].number(above=-1) if "sm_clock_ghz" in parts else 0.0,
        parts["l2_bytes"].integer(0) if "l2_bytes" in parts else 0,
    )


def _entry(reader: _Reader, kernels: Sequence[str]) -> Entry:
    parts = reader.mapping(("request", "plans"), ("request", "plans"))
    plans = tuple(_plan(plan, kernels) for plan in parts["plans"].list())
    if not plans:
        raise parts["plans"].refuse("at least one plan")
    return Entry(_request(parts["request"]), plans)


def _request(reader: _Reader) -> Request:
    names, needed = _fields(Request)
    given: dict[str, Any] = {}
    for key, value in reader.mapping(names, needed).items():
        if key in _CHOICES:
            given[key] = value.choice(_CHOICES[key])
        elif key in ("fast_accum", "extents_aligned", "tensor_maps"):
            given[key] = value.flag()
        elif key == "unaligned":
            given[key] = value.text()
            if set(given[key]) - {"a", "b", "d"}:
                raise value.refuse("letters of a, b and d")
        elif key == "epilogue":
            given[key] = None if value.value is None else value.text()
        else:
            given[key] = value.integer(0 if key == "groups" else 1)
    given.setdefault("b", given["a"])
    request = Request(**given)
    if request.epilogue is not None and not request.epilogue.isidentifier():
        raise TableError(f"{reader.path}.epilogue is {request.epilogue!r}; expected its name")
    named = request.addend == "other" or request.direction != "none"
    if named and request.epilogue is None:
        raise TableError(f"{reader.path}.epilogue is missing")
    return request


def _plan(reader: _Reader, kernels: Sequence[str]) -> Plan:
    row, raster, swizzle, splits, us = reader.list(5)
    index = row.integer(0)
    if index >= len(kernels):
        raise row.refuse(f"an index of kernels, which has {len(kernels)}")
    return Plan(
        kernels[index],
        raster.choice(RASTERS),
        swizzle.integer(1, MAX_SWIZZLE),
        splits.integer(1, MAX_SPLITS),
        us.number(above=0),
    )


def _fields(kind: type) -> tuple[list[str], list[str]]:
    """All names, and those without a default."""
    every = fields(kind)
    return [f.name for f in every], [f.name for f in every if f.default is MISSING]


def request_document(request: Request) -> dict[str, Any]:
    """Without what is as it is by default."""
    default = {field.name: field.default for field in fields(Request)} | {"b": request.a}
    return {key: value for key, value in asdict(request).items() if value != default[key]}


def dump(table: Table) -> str:
    """JSON, a line for each entry: measurements that are new show in a diff, and nothing else."""
    kernels = sorted({plan.row for entry in table.entries for plan in entry.plans})
    number = {kernel: index for index, kernel in enumerate(kernels)}
    gpu = asdict(table.gpu) | {"cc": list(table.gpu.cc)}
    lines = [
        "{",
        f' "schema": {SCHEMA},',
        f' "cutwheel": {json.dumps(table.cutwheel)},',
        f' "driver": {json.dumps(table.driver)},',
        f' "gpu": {json.dumps(gpu)},',
        ' "kernels": [',
        ",\n".join(f"  {json.dumps(kernel)}" for kernel in kernels),
        " ],",
        ' "entries": [',
        ",\n".join(f"  {_entry_text(entry, number)}" for entry in table.entries),
        " ]",
        "}",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _entry_text(entry: Entry, number: Mapping[str, int]) -> str:
    plans = [
        [number[plan.row], plan.raster, plan.swizzle, plan.splits, round(plan.us, 3)]
        for plan in entry.plans
    ]
    return json.dumps({"request": request_document(entry.request), "plans": plans})
