"""The architectures of a build that names none: those of TORCH_CUDA_ARCH_LIST, or all.

    TORCH_CUDA_ARCH_LIST='8.0;8.6;9.0+PTX' python cmake/torch_archs.py    80;90a

The list is written as for other extensions of torch. stderr says what is built, and what is not and
why. Standard library only.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass

from kernelgen.kernel import ARCHS

VARIABLE = "TORCH_CUDA_ARCH_LIST"
# As torch.utils.cpp_extension has them.
NAMED = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
}
_ONE = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?")


class ArchListError(ValueError):
    """A list that means nothing, or of which nothing can be built."""


@dataclass(frozen=True)
class Wanted:
    """The architectures that a list asks for."""

    archs: tuple[str, ...]
    """to build for, as CUTWHEEL_ARCHS has them"""
    note: str
    """the same in words, with what is not built and why"""


def _archs_of(major: int, minor: int, suffix: str) -> tuple[str, ...]:
    """Those whose cubins a GPU of this compute capability runs."""
    if major == 8 and not suffix:
        # The kernels of sm89 come on top of those of sm80: fp8, and tiles for less shared memory.
        return ("80", "89") if minor == 9 else ("80",)
    return ("90a",) if (major, minor) == (9, 0) and suffix in ("", "a") else ()


def wanted(text: str) -> Wanted:
    """The architectures of a list such as "8.0;8.6;9.0+PTX" or "Ampere Hopper".

    Raises:
        ArchListError: an item that is no architecture; a list of which nothing can be built
    """
    items = [part for item in _split(text) for part in _split(NAMED.get(item, item))]
    archs: set[str] = set()
    missing: dict[str, str] = {}
    for item in items:
        found = _ONE.fullmatch(item)
        if not found:
            raise ArchListError(
                f"{VARIABLE}={text}: {item} is no architecture;"
                " expected such as 8.0, 9.0+PTX or Ampere"
            )
        major, minor = int(found[1]), int(found[2])
        own = _archs_of(major, minor, found[3])
        archs.update(own)
        if not own:
            missing[item] = "older than 8.0" if major < 8 else "no kernels of its own"
        elif found[4] and not any(ARCHS[arch].ptx for arch in own):
            missing[f"PTX of {found[1]}.{found[2]}{found[3]}"] = "it would run nowhere else"
    left_out = ", ".join(f"{item} ({reason})" for item, reason in missing.items())
    if not archs:
        raise ArchListError(
            f"{VARIABLE}={text}: nothing is left to build: {left_out}. Add 8.0+PTX for GPUs newer"
            f" than 9.0, or set CUTWHEEL_ARCHS to some of {';'.join(ARCHS)}"
        )
    ordered = tuple(arch for arch in ARCHS if arch in archs)
    note = f"{VARIABLE}={text}: kernels for {';'.join(ordered)}"
    if left_out:
        has_ptx = any(ARCHS[arch].ptx for arch in archs)
        newer = "run the PTX of 80" if has_ptx else "need 8.0+PTX in the list"
        note += f". Not built: {left_out}; GPUs newer than 9.0 {newer}"
    return Wanted(ordered, note)


def _split(text: str) -> list[str]:
    return [item for item in re.split(r"[;,\s]+", text) if item]


def main() -> int:
    text = os.environ.get(VARIABLE, "")
    if not _split(text):
        print(";".join(ARCHS))
        return 0
    try:
        found = wanted(text)
    except ArchListError as error:
        print(error, file=sys.stderr)
        return 1
    print(found.note, file=sys.stderr)
    print(";".join(found.archs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
