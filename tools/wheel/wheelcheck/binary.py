"""Checks of the shared library: platform, dynamic section, symbols, torch ABI."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import torch_abi_audit
from auditwheel.error import AuditwheelError
from auditwheel.wheel_abi import WheelAbIInfo, analyze_wheel_abi
from auditwheel.wheeltools import get_wheel_architecture, get_wheel_libc
from elftools.common.exceptions import ELFError
from packaging.version import Version

from wheelcheck.archive import Wheel
from wheelcheck.elf import Library
from wheelcheck.failure import Failure, shortlist
from wheelcheck.package import file_tags

OP_LIBRARY = "cutwheel/_C.so"
NEWEST_MIN_TORCH = Version("2.10")
# Torch's own libraries are loaded before ours, from wherever torch lives.
TORCH_LIBRARIES = frozenset({"libtorch*.so", "libc10*.so"})
ALLOWED_NEEDED = frozenset(
    {
        "libtorch.so",
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libm.so.6",
        "libc.so.6",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
    }
)
# Markers that some linkers define whatever the version script says.
ALLOWED_EXPORTS = frozenset({"_init", "_fini", "_edata", "_end", "__bss_start"})
# cuInit, cudaMalloc, cublasCreate_v2, __cudaRegisterFatBinary: nothing of CUDA may be left open.
CUDA_SYMBOL = re.compile(r"(?:__)?cu[a-z]*[A-Z]\w*")


def audit_platform(wheel: Wheel) -> WheelAbIInfo:
    """auditwheel's verdict. Its command `show` takes no --exclude, hence the Python API."""
    name = wheel.path.name
    try:
        return analyze_wheel_abi(
            None if "-linux_" in name else get_wheel_libc(name),
            get_wheel_architecture(name),
            wheel.path,
            TORCH_LIBRARIES,
            disable_isa_ext_check=False,
            allow_graft=True,  # leaves the needed libraries to their own check
        )
    except (AuditwheelError, ELFError, OSError, RuntimeError) as error:
        raise Failure(f"auditwheel cannot judge the wheel: {error}") from error


def platform_symbols(wheel: Wheel) -> str:
    platforms = sorted({tag.platform for tag in file_tags(wheel)})
    verdict = audit_platform(wheel)
    supported = verdict.overall_policy
    for platform in platforms:
        try:
            claimed = verdict.policies.get_policy_by_name(platform)
        except LookupError:
            raise Failure(f"auditwheel knows no platform {platform}") from None
        if claimed > supported:
            raise Failure(
                f"tagged {platform}, but only {supported.name} is supported "
                f"({versions(verdict.versioned_symbols)}): build in an older manylinux image"
            )
    return f"{supported.name} or newer ({versions(verdict.versioned_symbols)})"


def versions(symbols: dict[str, set[str]]) -> str:
    """The newest version of each kind: "GLIBC_2.17, GLIBCXX_3.4.21"."""
    newest: dict[str, Version] = {}
    for symbol in set().union(*symbols.values()):
        kind, _, version = symbol.rpartition("_")
        if re.fullmatch(r"[\d.]+", version):
            newest[kind] = max(newest.get(kind, Version("0")), Version(version))
    return ", ".join(f"{kind}_{version}" for kind, version in sorted(newest.items()))


def offenders(wheel: Wheel, find: Callable[[Library], Iterable[str]]) -> str:
    """ "cutwheel/_C.so: a, b (+2 more)" for every library in which `find` finds something."""
    found = {library.name: shortlist(find(library)) for library in wheel.libraries}
    return "; ".join(f"{name}: {names}" for name, names in found.items() if names)


def needed_libraries(wheel: Wheel) -> str:
    if wrong := offenders(wheel, lambda library: set(library.needed) - ALLOWED_NEEDED):
        raise Failure(f"needs {wrong}: link it statically or look it up at run time")
    needed = sorted({name for library in wheel.libraries for name in library.needed})
    if not any(lib.name == OP_LIBRARY and "libtorch.so" in lib.needed for lib in wheel.libraries):
        raise Failure(
            f"{OP_LIBRARY} does not need libtorch.so, so its torch symbols stay unresolved: "
            "link the libtorch stub with --no-as-needed"
        )
    return ", ".join(needed)


def cuda_symbols(wheel: Wheel) -> str:
    if wrong := offenders(wheel, lambda lib: filter(CUDA_SYMBOL.fullmatch, lib.undefined)):
        raise Failure(
            f"undefined {wrong}: link cudart statically and resolve driver functions "
            "through cudaGetDriverEntryPoint"
        )
    return "none undefined"


def rpath(wheel: Wheel) -> str:
    if wrong := offenders(wheel, lambda library: library.rpaths):
        raise Failure(f"RPATH or RUNPATH in {wrong}: build with BUILD_WITH_INSTALL_RPATH ON")
    return "none"


def exports(wheel: Wheel) -> str:
    if wrong := offenders(wheel, lambda library: set(library.defined) - ALLOWED_EXPORTS):
        raise Failure(
            f"exports {wrong}: link with the version script, hidden visibility and "
            "-Wl,--exclude-libs,ALL"
        )
    return "none"


def torch_stable_abi(wheel: Wheel) -> str:
    report = torch_abi_audit.inspect_package(wheel.root)
    libraries = (*report.extensions, *report.bundled_libs)
    if report.torch_verdict != "torch-stable":
        found = [name for library in libraries for name in library.torch.unstable_symbols]
        found += [library.error for library in libraries if library.error]
        # The audit reads symbols with `nm -j` and takes a failing nm for a file without any.
        hint = shortlist(found) or "no torch symbol seen; it needs nm of binutils >= 2.37"
        raise Failure(f"torch-abi-audit says {report.torch_verdict}, expected STABLE ({hint})")
    if report.has_unknown_shim_symbols:
        unknown = [name for library in libraries for name in library.torch.unknown_shim_symbols]
        raise Failure(
            f"torch-abi-audit does not know {shortlist(unknown)}: newer than its data; "
            f"stay within torch {NEWEST_MIN_TORCH} or update torch-abi-audit"
        )
    oldest = report.min_torch_version or "0"
    if Version(oldest) > NEWEST_MIN_TORCH:
        newest = [lib.torch for lib in libraries if lib.torch.min_torch_version == oldest]
        newer = [name for verdict in newest for name in verdict.version_defining_symbols]
        raise Failure(
            f"needs torch {oldest}, expected {NEWEST_MIN_TORCH} or older "
            f"({shortlist(newer)}): lower TORCH_TARGET_VERSION or avoid the function"
        )
    return f"STABLE, min torch {oldest}"
