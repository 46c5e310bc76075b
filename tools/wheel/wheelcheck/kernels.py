"""Checks of the shipped device code against the manifest, kernel by kernel."""

from __future__ import annotations

import re

import driver_floor

from wheelcheck.archive import MANIFEST, Wheel
from wheelcheck.failure import Failure, shortlist
from wheelcheck.fatbin import KernelId

# sm_90 without its suffix lacks wgmma and TMA; such a cubin is a mistake in the build flags.
PLAIN_SM90 = "sm90"
# What str() makes of a driver_floor.Driver, as cuda/core/driver.cpp has it.
DRIVER = re.compile(rb"driver [\d.]+ or newer \(CUDA \d+\.\d+\)")
# PTX of an architecture with a suffix never loads on another one: dead weight.
SPECIFIC_ARCH = re.compile(r"sm\d+[a-z]")


def cubins(wheel: Wheel) -> str:
    if missing := wheel.manifest.keys() - wheel.device_code.cubins.keys():
        raise Failure(
            f"{len(missing)} of {len(wheel.manifest)} cubins are missing: {shortlist(missing)}; "
            "compile each source for the architectures in its manifest row"
        )
    archs = sorted({kernel.arch for kernel in wheel.manifest})
    names = {kernel.name for kernel in wheel.manifest}
    return f"{len(names)} kernels ({', '.join(archs)})"


def unknown_kernels(wheel: Wheel) -> str:
    shipped = {kernel for kernel in wheel.device_code.cubins if kernel.arch != PLAIN_SM90}
    shipped |= {kernel for kernel in wheel.device_code.ptx if not SPECIFIC_ARCH.match(kernel.arch)}
    if unknown := shipped - wheel.manifest.keys():
        raise Failure(
            f"{len(unknown)} kernels that {MANIFEST} does not know: {shortlist(unknown)}; "
            "remove stale sources or extra architectures"
        )
    return "none"


def ptx(wheel: Wheel) -> str:
    expected = {kernel for kernel, has_ptx in wheel.manifest.items() if has_ptx}
    if missing := expected - wheel.device_code.ptx:
        raise Failure(
            f"no PTX for {len(missing)} kernels: {shortlist(missing)}; "
            "compile them with real and virtual code (CUDA_ARCHITECTURES 80, not 80-real)"
        )
    return f"{len(expected)} kernels"


def no_plain_sm90(wheel: Wheel) -> str:
    plain = {kernel for kernel in wheel.device_code.cubins if kernel.arch == PLAIN_SM90}
    if plain:
        raise Failure(f"sm_90 cubins: {shortlist(plain)}; compile for 90a-real only")
    return "none"


def no_architecture_specific_ptx(wheel: Wheel) -> str:
    specific = {kernel for kernel in wheel.device_code.ptx if SPECIFIC_ARCH.match(kernel.arch)}
    if specific:
        raise Failure(f"PTX that no other GPU loads: {shortlist(specific)}; compile for 90a-real")
    return "none"


def driver(wheel: Wheel) -> str:
    """The oldest driver that loads the kernels is the one that the library tells users."""
    code = wheel.device_code
    try:
        floor = driver_floor.of_code(code.abis, code.compressions)
    except KeyError as error:
        raise Failure(
            f"cubins of ABI {error}: add the first driver that loads them to CUBIN_ABI in "
            "tools/wheel/driver_floor.py"
        ) from None
    found = [
        DRIVER.findall((wheel.root / library.name).read_bytes()) for library in wheel.libraries
    ]
    told = {text.decode() for texts in found for text in texts}
    if told != {str(floor)}:
        raise Failure(
            f"the library says {shortlist(told) or 'nothing'}, but its kernels need {floor}: "
            "configure again, so that CMake asks tools/wheel/driver_floor.py anew"
        )
    return f"{floor}; fatbins: {', '.join(sorted(code.compressions))}"


def kernel_size(wheel: Wheel, budget_kb: float) -> str:
    sizes = wheel.device_code.cubins
    large = {kernel for kernel, size in sizes.items() if size > budget_kb * 1e3}
    if large:
        raise Failure(
            f"{len(large)} kernels exceed the budget of {budget_kb:g} kB: {shortlist(large)}; "
            "shrink their tile or epilogue, or drop them"
        )
    return f"largest {max(sizes.values(), default=0) / 1e3:.1f} kB of {budget_kb:g} kB"


def largest(wheel: Wheel, count: int) -> list[tuple[KernelId, int]]:
    try:
        return wheel.device_code.cubins.most_common(count)
    except Failure:
        return []  # the checks above have said why
