"""The result file: what was measured, on what, with what."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SCHEMA = 1  # of result files; raise it when a reader of the old form would misread the new one


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


def environment(commit: str | None, side: str) -> dict[str, Any]:
    import torch  # reports are made where torch may be missing

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    build = None
    if side == "cutwheel":
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


def write(path: Path, result: Mapping[str, Any]) -> None:
    """Whole or not at all, so that an interrupted run leaves the last complete state."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    partial.replace(path)


def finite(value: Any) -> Any:
    """JSON has no NaN: a NaN error of a wrong result becomes null."""
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    if result.get("schema") != SCHEMA:
        raise ValueError(
            f"{path}: schema is {result.get('schema')!r}; this reads {SCHEMA}. Measure again, or"
            " report with the version of benchmarks that wrote it"
        )
    return result
