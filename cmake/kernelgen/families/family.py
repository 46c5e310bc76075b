"""A kernel family: one class template of cuda/, what it accepts and how its type is spelled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kernelgen import cpp
from kernelgen.families.rules import GEMM_LAYOUTS
from kernelgen.kernel import DTypes, Kernel

# Yields every reason why a kernel cannot be built.
Check = Callable[[Kernel], Iterator[str]]

# Template arguments by the names that Family.template has for them.
_ARGUMENTS: dict[str, Callable[[Kernel], str]] = {
    "arch": lambda kernel: f"Arch::{kernel.arch.sm}",
    "dtypes": lambda kernel: cpp.dtypes(kernel.dtypes),
    "a": lambda kernel: f"DType::{kernel.dtypes.a}",
    "d": lambda kernel: f"DType::{kernel.dtypes.d}",
    "layouts": cpp.layouts,
    "tile": lambda kernel: cpp.shape(kernel.tile.shape),
    "warp": lambda kernel: cpp.shape(kernel.tile.warp or (1, 1, 1)),
    "cluster": lambda kernel: cpp.shape(kernel.tile.cluster),
    "splits": lambda kernel: f"/*splits=*/{kernel.tile.cluster[2]}",
    "sharing": lambda kernel: f"/*sharing=*/{max(kernel.tile.cluster[:2])}",
    "stages": lambda kernel: f"/*stages=*/{kernel.tile.stages}",
    "schedule": lambda kernel: f"Schedule::{kernel.tile.schedule}",
    "swap_ab": lambda kernel: f"/*swap_ab=*/{cpp.boolean(kernel.tile.swap_ab)}",
    "fast_accum": lambda kernel: f"/*fast_accum=*/{cpp.boolean(kernel.tile.fast_accum)}",
    "scales": cpp.block_scales,
    "grouping": cpp.grouping,
    "direction": cpp.direction,
    "recipe": cpp.recipe,
    "epilogue": lambda kernel: f"epilogue::{kernel.epilogue.name}" if kernel.epilogue else "",
    "epilogues": lambda kernel: ", ".join(
        f"EpilogueCase<Epilogue::{e.name}, epilogue::{e.name}>" for e in kernel.epilogues
    ),
}
# Those with a default, which are spelled for some kernels only.
_SPELLED: dict[str, Callable[[Kernel], bool]] = {
    "fast_accum?": lambda kernel: kernel.element_bytes == 1,
    "scales?": lambda kernel: kernel.scales is not None,
    "epilogues?": lambda kernel: bool(kernel.epilogues),
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One class template.

    The manifest chooses architectures, data types and what `lists` names, and may choose what
    `optional_lists` names.
    """

    name: str
    header: str  # below cuda/
    # "Name<arch, ...>", with the arguments as in _ARGUMENTS. The architecture is always the first
    # one: instantiations for two architectures must never merge into one weak symbol.
    template: str
    archs: tuple[str, ...]
    # Core-seconds that a source with one kernel takes, and each further kernel in it. They are
    # estimates from build logs: tools/progress.py needs only their proportions.
    seconds: tuple[float, float]
    dtypes: Mapping[str, tuple[DTypes, ...]]  # by op: they tell the op of a kernel
    checks: tuple[Check, ...] = ()
    # The least bytes of shared memory that a kernel runs with, as arithmetic with words in it.
    memory: Callable[[Kernel], str] = lambda kernel: "0"
    layouts: tuple[str, ...] = GEMM_LAYOUTS
    lists: tuple[str, ...] = ("layouts", "epilogue", "tiles")
    optional_lists: tuple[str, ...] = ()
    tile_keys: tuple[str, ...] = ()
    optional_tile_keys: tuple[str, ...] = ()
    schedules: tuple[str, ...]
    mode: str = ""  # in names, instead of the schedule
    tiles_share_source: bool = True  # False: a tile's templates cost more than the headers
    source: str = ""  # shared by families whose kernels take less time than the headers
    # More in one would be the long pole of a parallel build.
    kernels_per_source: int = 64
    epilogues_share_kernel: bool = False  # one kernel has all that an entry lists

    def op(self, dtypes: DTypes) -> str:
        return next(op for op, combinations in self.dtypes.items() if dtypes in combinations)

    def check(self, kernel: Kernel) -> Iterator[str]:
        """Yields every reason why the family cannot build `kernel`, shared memory aside."""
        for check in self.checks:
            yield from check(kernel)

    def shared_memory(self, kernel: Kernel) -> tuple[int, str]:
        """Least bytes of shared memory that `kernel` runs with, and the arithmetic."""
        terms = self.memory(kernel)
        formula = re.sub(r"\bx\b", "*", terms)
        total = int(eval(re.sub("[a-z]+", "", formula)))
        return total, f"{terms} = {total} bytes"

    def cpp_type(self, kernel: Kernel) -> str:
        """The class template with its arguments."""
        name, parameters = self.template.removesuffix(">").split("<")
        arguments = [
            _ARGUMENTS[parameter.removesuffix("?")](kernel)
            for parameter in parameters.split(", ")
            if parameter not in _SPELLED or _SPELLED[parameter](kernel)
        ]
        return f"{name}<{', '.join(arguments)}>"
