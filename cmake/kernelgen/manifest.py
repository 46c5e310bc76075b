"""Manifests: load, validate, expand.

`load` returns every kernel of every manifest, or raises one InvalidManifestError that holds *all*
errors, each with its file, its entry and what is allowed instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import filter as matching
from itertools import product
from pathlib import Path
from typing import Any

import tomllib

from kernelgen.epilogues import braces
from kernelgen.epilogues import epilogue as epilogues
from kernelgen.epilogues.epilogue import Epilogue, ExpressionError
from kernelgen.epilogues.identifiers import epilogue_fault
from kernelgen.families import FAMILIES
from kernelgen.families.family import Family
from kernelgen.kernel import (
    ARCHS,
    CHOICES,
    DIRECTIONS,
    DTYPE_BYTES,
    NEWER_ARCHS,
    DTypes,
    Kernel,
    Tile,
)
from kernelgen.naming import procedural_name
from kernelgen.schema import Checker, InvalidManifestError, ManifestError

__all__ = ["InvalidManifestError", "Manifest", "ManifestError", "load", "parse"]

FOLDER = Path("cuda/manifests")

# Names of items in errors, where they differ from the list's.
_SINGULAR = {"arch": "architecture", "layouts": "layout", "recipes": "recipe"}


@dataclass(frozen=True)
class Manifest:
    """Declarations of all manifests together: kernels sorted by name."""

    kernels: tuple[Kernel, ...]
    epilogues: tuple[Epilogue, ...]  # in order of declaration: the value of the C++ enumerator
    sets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> globs of kernels


def load(source_dir: Path) -> Manifest:
    """Reads, validates and expands every manifest below `source_dir`."""
    reader = _Reader()
    # Messages list epilogues in this order: those of mm first.
    found = (source_dir / FOLDER).glob("*.toml")
    paths = sorted(found, key=lambda path: (path.stem != "gemm", path))
    if not paths:
        reader.error(f"{FOLDER}/*.toml", "no manifest found below the source directory")
    documents: list[tuple[str, dict[str, Any]]] = []
    for path in paths:
        reader.file = path.relative_to(source_dir).as_posix()
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            reader.error("", f"not valid TOML: {error}")
        else:
            documents.append((reader.file, data))
    # Kernels use the epilogues of every manifest, of those that come later, too.
    for reader.file, data in documents:
        reader.read_epilogues(data)
    for reader.file, data in documents:
        reader.read_kernels(data)
    for reader.file, data in documents:
        reader.read_sets(data)
        reader.read_assembled(data)
    return reader.result()


def parse(data: Mapping[str, Any], file: str = "kernels.toml") -> Manifest:
    """Validates and expands one manifest that is already read."""
    reader = _Reader()
    reader.file = file
    reader.read_epilogues(data)
    reader.read_kernels(data)
    reader.read_sets(data)
    reader.read_assembled(data)
    return reader.result()


class _Reader(Checker):
    """Collects kernels and errors of one manifest after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._kernels: dict[str, Kernel] = {}
        self._epilogues: dict[str, Epilogue | None] = {}  # None: declared, but wrong
        self._sets: dict[str, tuple[str, ...]] = {}
        self._assembled: dict[str, tuple[str, ...]] = {}  # name of a kernel -> NEWER_ARCHS

    def result(self) -> Manifest:
        self.raise_errors()
        kernels = tuple(
            replace(self._kernels[name], assembled=self._assembled.get(name, ()))
            for name in sorted(self._kernels)
        )
        epilogues = tuple(e for e in self._epilogues.values() if e is not None)
        return Manifest(kernels, epilogues, self._sets)

    def read_epilogues(self, data: Mapping[str, Any]) -> None:
        self.keys("", data, optional=("assembled", "epilogue", "kernel", "set"))
        declared = data.get("epilogue", {})
        if self.table("epilogue", declared):
            for name, body in declared.items():
                for full, alternative in self._expand(f"[epilogue.{name}]", name):
                    self._read_epilogue(f"[epilogue.{full}]", full, braces.fill(body, alternative))

    def read_kernels(self, data: Mapping[str, Any]) -> None:
        entries = data.get("kernel", [])
        if not isinstance(entries, list):
            self.error("kernel", "must be an array of tables: [[kernel]]")
            return
        for number, entry in enumerate(entries, start=1):
            self._read_kernel(f"[[kernel]] #{number}", entry)

    def read_sets(self, data: Mapping[str, Any]) -> None:
        """Named sets of kernels; behind all kernels, of which every glob has to find one."""
        declared = data.get("set", {})
        if not self.table("set", declared):
            return
        for name, body in declared.items():
            where = f"[set.{name}]"
            if name in self._sets:
                self.error(where, "declared by another manifest, too")
            elif self.table(where, body) and self.keys(where, body, ("kernels",)):
                self._sets[name] = tuple(self._globs(where, body))

    def read_assembled(self, data: Mapping[str, Any]) -> None:
        """Kernels whose PTX is also assembled for newer GPUs; behind all kernels."""
        if "assembled" not in data:
            return
        where, body = "[assembled]", data["assembled"]
        if not (self.table(where, body) and self.keys(where, body, ("archs", "kernels"))):
            return
        if self._assembled:
            self.error(where, "declared by another manifest, too")
            return
        archs = []
        for at, value in self.items(where, body, "archs"):
            if value in NEWER_ARCHS:
                archs.append(value)
            else:
                self.error(at, f"must be one of {', '.join(NEWER_ARCHS)}, not {value!r}")
        for glob in self._globs(where, body):
            for name in matching(self._kernels, glob):
                if not self._kernels[name].arch.ptx:
                    self.error(where, f"{name}, which {glob!r} matches, has no PTX to assemble")
                self._assembled[name] = tuple(archs)

    def _globs(self, where: str, body: Mapping[str, Any]) -> Iterator[str]:
        for at, value in self.items(where, body, "kernels"):
            if not isinstance(value, str):
                self.error(at, f"must be a glob of kernel names, not {value!r}")
                continue
            for glob, _ in self._expand(at, value):
                # Where kernels are wrong, not all of them are known.
                if not self._errors and not matching(self._kernels, glob):
                    self.error(at, f"no kernel matches {glob!r}")
                yield glob

    def _expand(self, where: str, name: str) -> list[tuple[str, str | None]]:
        try:
            return braces.expand(name)
        except ValueError as error:
            self.error(where, str(error))
            return []

    def _read_epilogue(self, where: str, name: str, body: Any) -> None:
        previous = self._epilogues.setdefault(name, None)
        if fault := epilogue_fault(name):
            self.error(where, fault)
            return
        if not self.table(where, body):
            return
        if not self.keys(where, body, ("expr",), ("operands", "aux")):
            return
        operands, aux = body.get("operands", {}), body.get("aux", {})
        texts = {"expr": body["expr"]}
        for key, table in (("operands", operands), ("aux", aux)):
            if not self.table(f"{where} {key}", table):
                return
            texts |= {f"{key} {item}": value for item, value in table.items()}
        for key, value in texts.items():
            if not isinstance(value, str):
                self.error(f"{where} {key}", f"must be a string, not {value!r}")
                return
        try:
            built = epilogues.build(name, body["expr"], operands, aux)
        except ExpressionError as error:
            self.error(f"{where} {error.where}", str(error))
            return
        if previous is not None and previous != built:
            self.error(where, "declared with another expression in another manifest")
        self._epilogues[name] = built

    def _read_kernel(self, where: str, entry: Any) -> None:
        if not self.table(where, entry):
            return
        if "family" not in entry:
            self.error(where, f"key 'family' is missing; allowed: {', '.join(FAMILIES)}")
            return
        family = self.one_of(where, "family", entry["family"], FAMILIES)
        if family is None:
            return
        where = f"{where} (family {family.name})"
        self.keys(where, entry, ("family", "arch", "dtypes", *family.lists), family.optional_lists)

        archs = [ARCHS[arch] for arch in self._names(where, entry, "arch", family.archs)]
        dtypes = [
            combination
            for at, value in self.items(where, entry, "dtypes")
            if (combination := self._dtypes(at, value, family))
        ]
        # A list that the family does not have, or that is left out, has one value.
        chosen: dict[str, list[Any]] = {axis: [None] for axis in ("epilogue", *CHOICES)}
        chosen["layouts"] = list(family.layouts)
        for axis, allowed in {"layouts": family.layouts, **CHOICES}.items():
            if axis in family.lists or (axis in family.optional_lists and axis in entry):
                chosen[axis] = self._names(where, entry, axis, allowed)
        together: tuple[Epilogue, ...] = ()
        if "epilogue" in (*family.lists, *(key for key in family.optional_lists if key in entry)):
            listed = [
                epilogue
                for at, value in self.items(where, entry, "epilogue")
                for name in self._alternatives(at, value)
                if (epilogue := self.one_of(at, "epilogue", name, self._epilogues))
            ]
            if family.epilogues_share_kernel:
                together = tuple(listed)
            else:
                chosen["epilogue"] = listed
        tiles = [(where, Tile((1, 1, 1), family.schedules[0]))]
        if "tiles" in family.lists:
            tiles = [
                (at, tile)
                for at, value in self.items(where, entry, "tiles")
                if (tile := self._tile(at, value, family))
            ]
        for at, tile in tiles:
            # Tiles are checked even where no layout or epilogue is right: all errors at once.
            axes: list[Sequence[Any]] = [
                *(archs, dtypes, chosen["layouts"] or family.layouts[:1]),
                *(chosen["epilogue"] or [None], [tile]),
                *(chosen[axis] or [None] for axis in CHOICES),
                *([self.file], [at]),
            ]
            kernels = [
                replace(Kernel(family.op(values[1]), family.name, *values), epilogues=together)
                for values in product(*axes)
            ]
            if "direction" in family.lists:
                # It says how operands lie.
                kernels = [k for k in kernels if k.layout == DIRECTIONS[k.direction or "fprop"]]
            self._check(at, family, kernels)
            if all(chosen.values()):
                self._add(kernels)

    def _check(self, where: str, family: Family, kernels: Sequence[Kernel]) -> None:
        """Checks the kernels of one tile."""
        for kernel in kernels:
            for reason in family.check(kernel):
                self.error(where, reason)
        # The kernel that needs most speaks for all of its architecture.
        for arch in dict.fromkeys(kernel.arch for kernel in kernels):
            need, terms = max(family.shared_memory(k) for k in kernels if k.arch == arch)
            if need > arch.shared_memory:
                self.error(
                    where,
                    f"needs too much shared memory for {arch.sm}: {terms}, but a threadblock"
                    f" has at most {arch.shared_memory} bytes ({arch.shared_memory // 1024} KiB)",
                )

    def _add(self, kernels: Sequence[Kernel]) -> None:
        """Enters kernels under their names."""
        for kernel in kernels:
            name = procedural_name(kernel)
            other = self._kernels.setdefault(name, kernel)
            if other is not kernel:
                at = other.entry if other.file == kernel.file else f"{other.file}: {other.entry}"
                self.error(kernel.entry, f"kernel {name} is already declared by {at}")

    def _names(
        self, where: str, entry: Mapping[str, Any], key: str, allowed: Iterable[str]
    ) -> list[str]:
        """The items of a list of names that are among `allowed`."""
        return [
            name
            for at, value in self.items(where, entry, key)
            if (name := self.name(at, _SINGULAR.get(key, key), value, allowed))
        ]

    def _dtypes(self, where: str, value: Any, family: Family) -> DTypes | None:
        keys = ("a", "b", "acc", "d")
        if not self.table(where, value) or not self.keys(where, value, keys):
            return None
        names = [self.name(f"{where} {key}", "dtype", value[key], DTYPE_BYTES) for key in keys]
        known = [name for name in names if name is not None]
        if len(known) < len(keys):
            return None
        dtypes = DTypes(*known)
        supported = [served for combinations in family.dtypes.values() for served in combinations]
        if dtypes in supported:
            return dtypes
        self.error(
            where,
            f"dtype combination {dtypes} (a_b_acc_d); supported: {', '.join(map(str, supported))}",
        )
        return None

    def _alternatives(self, where: str, value: Any) -> list[Any]:
        if not isinstance(value, str):
            return [value]
        return [name for name, _ in self._expand(where, value)]

    def _tile(self, where: str, value: Any, family: Family) -> Tile | None:
        if not self.table(where, value):
            return None
        keys = (*family.tile_keys, *family.optional_tile_keys)
        complete = self.keys(where, value, family.tile_keys, family.optional_tile_keys)
        # A family with one schedule does not make the manifest repeat it.
        fields: dict[str, Any] = {"schedule": family.schedules[0]}
        for key in (key for key in keys if key in value):
            at, item = f"{where} {key}", value[key]
            if key == "schedule":
                fields[key] = self.name(at, key, item, family.schedules)
            elif key in ("swap_ab", "fast_accum"):
                fields[key] = self.flag(at, item)
            elif key == "stages":
                fields[key] = self.positive(at, item)
            else:
                fields["shape" if key == "tile" else key] = self.shape(at, item)
        return Tile(**fields) if complete and None not in fields.values() else None
