"""The result file of a GPU: what was measured, on what, with what; a section for each family."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SCHEMA = 2  # of result files; raise it when a reader of the old form would misread the new one
SECTIONS = (
    *("mm", "addmm", "bmm", "fused", "scaled", "grouped", "conv", "volumes", "models", "host"),
    "cold",
)
"""in their order"""
OF_CALLS = ("host", "cold")
"""those with a row for each call, which has no shape"""


def run_text(*command: str) -> str | None:
    """The first line a command prints, None if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines else None


def git_commit(given: str | None) -> str | None:
    """--commit, else CUTWHEEL_COMMIT, else git: where benchmarks run there may be no .git."""
    here = str(Path(__file__).parent)
    return (
        given
        or os.environ.get("CUTWHEEL_COMMIT")
        or run_text("git", "-C", here, "rev-parse", "HEAD")
    )


def environment(commit: str | None, provider: str) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    build = None
    if provider == "cutwheel":
        import cutwheel  # noqa: F401  registers the ops

        build = json.loads(torch.ops.cutwheel._build_info())
    return {
        "gpu": properties.name,
        "compute_capability": [properties.major, properties.minor],
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "driver": run_text("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cutwheel": build,
        "commit": git_commit(commit),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def device_slug(gpu: str) -> str:
    """``"NVIDIA H200"`` -> ``"h200"``, for file names."""
    name = re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_")
    return name.removeprefix("nvidia_")


Section = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "results"


SEVERAL = "several"
"""the folder of what several GPUs do"""


def path_of(gpu: str, folder: Path = FOLDER) -> Path:
    return folder / f"{device_slug(gpu)}.json"


def write_section(path: Path, name: str, section: Mapping[str, Any]) -> None:
    """Replaces one section of a file, which may be new; the others stay as they are.

    ``environment`` of each section says what it was measured with.
    """
    gpu = section["environment"]["gpu"]
    found = read(path) if path.exists() else {"schema": SCHEMA, "gpu": gpu, "sections": {}}
    if found["gpu"] != gpu:
        raise ValueError(f"{path} is of {found['gpu']}; a section of {gpu} goes to another file")
    sections = found["sections"] | {name: plain(section)}
    known = [each for each in SECTIONS if each in sections]
    others = sorted(set(sections) - set(known))
    write(path, found | {"sections": {each: sections[each] for each in (*known, *others)}})


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Whole or not at all, so that an interrupted run leaves the last complete state."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(layout(result) + "\n")
    partial.replace(path)


def layout(value: Any, depth: int = 0) -> str:
    """JSON with a line for each row of results, for diffs that can be read."""
    if isinstance(value, Mapping) and depth < 3:
        parts = [f"{json.dumps(key)}: {layout(item, depth + 1)}" for key, item in value.items()]
        ends = "{}"
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        parts = [json.dumps(item, allow_nan=False) for item in value]
        ends = "[]"
    else:
        return json.dumps(value, allow_nan=False)
    if not parts:
        return ends
    indent = "\n" + " " * depth
    return f"{ends[0]}{indent} " + f",{indent} ".join(parts) + f"{indent}{ends[1]}"


def plain(value: Any) -> Any:
    """For JSON: floats to six digits, and no NaN, which it lacks: that becomes null."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    if result.get("schema") != SCHEMA:
        raise ValueError(
            f"{path}: schema is {result.get('schema')!r}; this reads {SCHEMA}. Measure again, or"
            " report with the version of benchmarks that wrote it"
        )
    return result


def merge(source: Path, folder: Path = FOLDER) -> Path:
    """Takes the sections of a file over into that of their GPU, or GPUs, which it returns."""
    found = read(source)
    target = path_of(found["gpu"], folder)
    for name, section in found["sections"].items():
        if gpus := section["environment"].get("gpus"):
            target = path_of(f"{found['gpu']} x{gpus}", folder / SEVERAL)
        if section.get("part"):
            raise ValueError(
                f"{source}: section {name} is a part of a benchmark: {section['part']}"
            )
        write_section(target, name, section)
    return target
