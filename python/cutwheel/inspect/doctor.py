"""Tells what a machine has and lacks for cutwheel's ops. Nothing here raises.

collect() asks the machine, diagnose() is a pure function of the answers, report() shows both.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

_T = TypeVar("_T")

MINIMUM_TORCH = (2, 10)
MINIMUM_CAPABILITY = (8, 0)
_ENVIRONMENT = ("CUTWHEEL_ARCH", "CUTWHEEL_KERNEL", "CUDA_VISIBLE_DEVICES")
_PROC_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str = "?"
    capability: tuple[int, int] | None = None
    archs: tuple[str, ...] = ()
    """architectures of this wheel that serve it, best first"""
    error: str | None = None


@dataclass(frozen=True)
class Facts:
    """Findings of collect(); None where one is not known."""

    python: str = ""
    platform: str = ""
    cutwheel: str | None = None
    cutlass: str | None = None
    nvcc: str | None = None
    cuda: str | None = None
    """the CUDA release this wheel was built with"""
    archs: tuple[str, ...] = ()
    assembled: tuple[str, ...] = ()
    """newer architectures, for which the PTX of some kernels was assembled at build time"""
    kernels: tuple[str, ...] = ()
    torch: str | None = None
    torch_error: str | None = None
    torch_cuda: str | None = None
    """the CUDA release of torch; None in a CPU-only torch"""
    cuda_available: bool = False
    cuda_error: str | None = None
    library_error: str | None = None
    driver: str | None = None
    """release of the kernel module, such as 580.65.06"""
    driver_cuda: int = 0
    """newest CUDA release of the driver, 1000 * major + 10 * minor; 0 where there is no driver"""
    required_cuda: int = 0
    required_driver: str = ""
    """the oldest driver that this wheel runs with, in words"""
    driver_ok: bool = False
    driver_message: str = ""
    gpus: tuple[Gpu, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Problem:
    what: str
    remedy: str
    fatal: bool = True
    """whether it keeps every op from running"""


def _attempt(what: Callable[[], _T]) -> tuple[_T | None, str | None]:
    """The result, or the error in words: a probe may fail in any way without ending the report."""
    try:
        return what(), None
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).strip() or 'no message'}".split("\n")[0]


def _driver_release() -> str | None:
    text = _PROC_DRIVER.read_text()
    found = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return found[1] if found else None


def _probe_torch() -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {"torch": str(torch.__version__), "torch_cuda": torch.version.cuda}
    available, facts["cuda_error"] = _attempt(torch.cuda.is_available)
    facts["cuda_available"] = bool(available)
    return facts


def _archs(build: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(f"sm{arch}" for arch in str(build.get(key, "")).split(";") if arch)


def _probe_library() -> dict[str, Any]:
    import torch

    from .. import _library  # noqa: F401  (raises ImportError where the library does not load)

    build = json.loads(torch.ops.cutwheel._build_info())
    driver = json.loads(torch.ops.cutwheel._driver_status())
    return {
        "cutwheel": build.get("version"),
        "cutlass": build.get("cutlass"),
        "nvcc": build.get("nvcc"),
        "cuda": build.get("cuda"),
        "archs": _archs(build, "archs"),
        "assembled": _archs(build, "assembled"),
        "kernels": tuple(row["name"] for row in json.loads(torch.ops.cutwheel._kernels())),
        "driver_ok": bool(driver.get("ok")),
        "driver_cuda": int(driver.get("driver_version") or 0),
        "required_cuda": int(driver.get("required") or 0),
        "required_driver": str(driver.get("required_driver", "")),
        "driver_message": str(driver.get("message", "")),
    }


def _probe_gpu(index: int) -> Gpu:
    import torch

    info = json.loads(torch.ops.cutwheel._device_info(index))
    major, minor = info["cc"]
    return Gpu(index, info["name"], (major, minor), tuple(info["archs_served"]))


def _probe_gpus() -> tuple[Gpu, ...]:
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        gpu, error = _attempt(lambda index=index: _probe_gpu(index))  # type: ignore[misc]
        gpus.append(gpu or Gpu(index, error=error))
    return tuple(gpus)


def collect() -> Facts:
    """Asks the machine. Works without torch, the library, a driver or a GPU."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }
    facts["driver"], _ = _attempt(_driver_release)
    found, facts["torch_error"] = _attempt(_probe_torch)
    facts.update(found or {})
    if found:
        library, facts["library_error"] = _attempt(_probe_library)
        facts.update(library or {})
        if library and facts["cuda_available"]:
            gpus, _ = _attempt(_probe_gpus)
            facts["gpus"] = gpus or ()
    return Facts(**facts)


def _cuda_text(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _torch_problem(facts: Facts) -> Problem | None:
    if facts.torch is None:
        return Problem(
            f"PyTorch cannot be imported ({facts.torch_error}).",
            "Install a CUDA build of torch 2.10 or newer.",
        )
    numbers = tuple(int(part) for part in re.findall(r"\d+", facts.torch)[:2])
    if numbers < MINIMUM_TORCH:
        return Problem(f"torch {facts.torch} is older than 2.10.", "Upgrade torch.")
    return None


def _driver_problems(facts: Facts) -> list[Problem]:
    if facts.driver_ok:
        return []
    wanted = facts.required_driver
    if not facts.driver_cuda:
        return [
            Problem(
                "No NVIDIA driver is installed: libcuda.so.1 was not found or did not start.",
                f"Install NVIDIA {wanted}; in a container, pass the GPUs in (--gpus all).",
            )
        ]
    if facts.driver_cuda < facts.required_cuda:
        installed = f" {facts.driver}" if facts.driver else ""
        return [
            Problem(
                f"The NVIDIA driver{installed} supports CUDA {_cuda_text(facts.driver_cuda)}, and "
                f"this wheel needs CUDA {_cuda_text(facts.required_cuda)}.",
                f"Update to {wanted}.",
            )
        ]
    return [Problem(f"The NVIDIA driver does not work: {facts.driver_message}.", "Reinstall it.")]


def _is_ptx_too_new(facts: Facts, gpu: Gpu) -> bool:
    """Whether the GPU has no machine code here, and its driver is older than the PTX."""
    found = re.fullmatch(r"(\d+)\.(\d+)", facts.cuda or "")
    if not found or not facts.driver_ok:
        return False
    release = 1000 * int(found[1]) + 10 * int(found[2])
    by_ptx = bool(gpu.archs) and all(name.endswith("(PTX)") for name in gpu.archs)
    return by_ptx and facts.driver_cuda < release


def _gpu_problems(facts: Facts) -> list[Problem]:
    usable = any(gpu.archs and not _is_ptx_too_new(facts, gpu) for gpu in facts.gpus)
    problems = []
    for gpu in facts.gpus:
        where = f"cuda:{gpu.index} ({gpu.name})"
        if _is_ptx_too_new(facts, gpu):
            problem = (
                f"{where} runs this wheel's PTX, which is of CUDA {facts.cuda}, and the driver "
                f"supports CUDA {_cuda_text(facts.driver_cuda)}."
            )
            remedy = f"Update to a driver for CUDA {facts.cuda} or newer."
            problems.append(Problem(problem, remedy, fatal=not usable))
        if gpu.archs:
            continue
        if gpu.error is not None:
            problem = f"{where} cannot be asked: {gpu.error}."
            remedy = "See whether nvidia-smi shows the GPU and its errors."
        elif gpu.capability is not None and gpu.capability < MINIMUM_CAPABILITY:
            problem = f"{where} has compute capability {'.'.join(map(str, gpu.capability))}."
            remedy = "Use a GPU of compute capability 8.0 (Ampere) or newer."
        else:
            problem = f"{where} is served by none of this wheel's architectures: " + (
                ", ".join(facts.archs) + "."
            )
            remedy = "Install a wheel that was built for this GPU."
        problems.append(Problem(problem, remedy, fatal=not usable))
    return problems


def _environment_problems(facts: Facts) -> list[Problem]:
    problems = []
    arch = facts.environment.get("CUTWHEEL_ARCH")
    if arch:
        served = {name.split()[0] for gpu in facts.gpus for name in gpu.archs}
        if arch not in facts.archs:
            what = (
                f"CUTWHEEL_ARCH={arch} is no architecture of this wheel ({', '.join(facts.archs)})."
            )
        elif facts.gpus and arch not in served:
            what = f"CUTWHEEL_ARCH={arch} leaves no kernel that runs on this machine's GPUs."
        else:
            what = f"CUTWHEEL_ARCH={arch} restricts the choice of kernels; it is meant for tests."
        fatal = "restricts" not in what
        problems.append(Problem(what, "Unset CUTWHEEL_ARCH.", fatal))
    kernel = facts.environment.get("CUTWHEEL_KERNEL")
    if kernel:
        unknown = kernel not in facts.kernels
        what = (
            "is no kernel of this wheel."
            if unknown
            else "forces one kernel; it is meant for tests."
        )
        problems.append(
            Problem(f"CUTWHEEL_KERNEL={kernel} {what}", "Unset CUTWHEEL_KERNEL.", fatal=unknown)
        )
    return problems


def diagnose(facts: Facts) -> list[Problem]:
    """Everything that keeps the ops from running, or makes them other than they could be."""
    torch_problem = _torch_problem(facts)
    if torch_problem:
        return [torch_problem]
    problems = []
    if facts.library_error:
        problems.append(
            Problem(
                f"cutwheel's op library does not load ({facts.library_error}).",
                "Reinstall cutwheel from a wheel for this platform.",
            )
        )
    if facts.torch_cuda is None:
        problems.append(
            Problem(
                f"torch {facts.torch} is a CPU-only build.",
                "Install a CUDA build of the same version of torch.",
            )
        )
    if not facts.library_error:
        problems += _driver_problems(facts)
    if facts.torch_cuda is not None and not facts.gpus and not problems:
        visible = facts.environment.get("CUDA_VISIBLE_DEVICES")
        why = f": CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else ""
        why = why or (f": {facts.cuda_error}" if facts.cuda_error else "")
        remedy = "Unset it." if visible is not None else "See whether nvidia-smi shows a GPU."
        problems.append(Problem(f"torch sees no CUDA device{why}.", remedy))
    return problems + _gpu_problems(facts) + _environment_problems(facts)


def _versions(facts: Facts) -> dict[str, str]:
    driver = facts.driver or ("none" if not facts.driver_cuda else "unknown release")
    if facts.driver_cuda:
        driver += f" (CUDA {_cuda_text(facts.driver_cuda)})"
    torch_cuda = f"CUDA {facts.torch_cuda}" if facts.torch_cuda else "CPU only"
    return {
        "cutwheel": facts.cutwheel or "unknown",
        "architectures": ", ".join(facts.archs) or "unknown",
        "CUTLASS": facts.cutlass or "unknown",
        "nvcc": facts.nvcc or "unknown",
        "torch": f"{facts.torch} ({torch_cuda})" if facts.torch else "none",
        "driver": driver,
        "Python": facts.python,
        "platform": facts.platform,
    }


def _scaled_formats(facts: Facts, gpu: Gpu) -> list[str]:
    """Operand dtypes of scaled_mm on this GPU, by the names of the kernels that serve it."""
    archs = {name.split()[0] for name in gpu.archs}
    factors = set()
    for kernel in facts.kernels:
        _, is_scaled, rest = kernel.partition("scaled_mm_")
        arch, factor, *_ = [*rest.split("_"), ""]
        if is_scaled and arch in archs:
            factors.add(factor)
    formats = {"fp8": {"e4m3", "e5m2"}, "int8": {"s8"}}
    return [name for name, of in formats.items() if of & factors]


def report(facts: Facts, problems: list[Problem]) -> str:
    versions = _versions(facts)
    width = max(map(len, versions)) + 2
    lines = [f"{key:<{width}}{value}" for key, value in versions.items()]
    for gpu in facts.gpus:
        capability = ".".join(map(str, gpu.capability)) if gpu.capability else "?"
        served = f"served by {', '.join(gpu.archs)}" if gpu.archs else "not served"
        formats = _scaled_formats(facts, gpu)
        served += f"; scaled_mm: {', '.join(formats)}" if formats else ""
        if gpu.capability and f"sm{gpu.capability[0]}0" in facts.assembled:
            served += "; 16-bit GEMMs assembled for it, not run by the authors"
        lines.append(f"{f'cuda:{gpu.index}':<{width}}{gpu.name}, {capability}: {served}")
    for problem in problems:
        kind = "problem" if problem.fatal else "note"
        lines += ["", f"{kind}: {problem.what}", f"  {problem.remedy}"]
    usable = not any(problem.fatal for problem in problems)
    lines += ["", "cutwheel's ops can run here." if usable else "cutwheel's ops cannot run here."]
    return "\n".join(lines)


def run(as_json: bool = False) -> int:
    """Prints the report. Returns the exit status: 0 if the ops can run here, 1 if not."""
    try:
        facts = collect()
        problems = diagnose(facts)
        usable = not any(problem.fatal for problem in problems)
        if as_json:
            data = {"usable": usable, **asdict(facts), "problems": list(map(asdict, problems))}
            text = json.dumps(data, indent=2)
        else:
            text = report(facts, problems)
        try:
            print(text, flush=True)
        except BrokenPipeError:
            # `| head` has read enough. Python flushes once more as it ends, and would fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if usable else 1
    except Exception as error:
        print(f"doctor failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
