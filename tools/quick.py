"""What `make quick` asks and does besides building.

python tools/quick.py archs [ARCHS]    architectures to build for; by default the GPU's
python tools/quick.py run              a product by the installed package, compared with float64
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

DEFAULT = "90a"


def note(text: str) -> None:
    print(f"quick: {text}", file=sys.stderr, flush=True)


def capabilities() -> list[str]:
    """Compute capabilities of the GPUs that nvidia-smi sees, such as "9.0"; none without it."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = re.findall(r"^\s*(\d+\.\d)\s*$", done.stdout, re.MULTILINE)
    return sorted(set(found), key=lambda text: tuple(map(int, text.split("."))))


def archs_for(found: Sequence[str]) -> tuple[str, str]:
    """CUTWHEEL_ARCHS for GPUs of these compute capabilities, and the same in words."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cmake"))
    import torch_archs

    if not found:
        return DEFAULT, f"no GPU: kernels for {DEFAULT}; ARCHS='80;89' builds for others"
    # What is newer than 9.0 runs the PTX of 80.
    wanted = [item if _number(item) <= _number("9.0") else "8.0+PTX" for item in found]
    try:
        archs = ";".join(torch_archs.wanted(";".join(wanted)).archs)
    except torch_archs.ArchListError:
        raise SystemExit(
            f"quick: compute capability {', '.join(found)} is older than 8.0, which no kernel runs"
            " on. ARCHS=80 builds for a GPU of another machine"
        ) from None
    return archs, f"compute capability {', '.join(found)}: kernels for {archs}"


def _number(capability: str) -> tuple[int, ...]:
    return tuple(map(int, capability.split(".")))


def run() -> int:
    """One fused linear layer and what `doctor` says; without a GPU, its shape."""
    began = time.monotonic()
    import torch

    import cutwheel
    from cutwheel.inspect import doctor

    note(f"{len(cutwheel.kernels())} kernels in {Path(str(cutwheel.__file__)).parent}")
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "meta"
    x, weight, bias = (
        torch.randn(shape, device=device, dtype=torch.bfloat16)
        for shape in ((512, 1024), (2048, 1024), (2048,))
    )
    y = cutwheel.linear(x, weight, bias, activation="gelu")
    if (y.shape, y.dtype) != ((512, 2048), torch.bfloat16):
        raise SystemExit(f"quick: linear gave {tuple(y.shape)} of {y.dtype}, expected (512, 2048)")
    healthy = doctor.run() == 0
    if not on_gpu:
        note(
            "no GPU that torch can use, so no kernel ran: linear of meta tensors gave"
            f" {tuple(y.shape)}. doctor (above) says what a run needs"
        )
        return 0
    exact = torch.nn.functional.gelu(
        x.double() @ weight.double().t() + bias.double(), approximate="none"
    )
    torch.testing.assert_close(y.double(), exact, rtol=2e-2, atol=2e-1)
    print(cutwheel.explain("linear", x, weight, bias, activation="gelu"))
    note(f"linear with GELU agrees with float64 ({time.monotonic() - began:.0f} s)")
    return 0 if healthy else 1


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["archs"] and len(arguments) <= 2:
        given = arguments[1] if len(arguments) == 2 else ""
        archs, words = (given, f"kernels for {given}") if given else archs_for(capabilities())
        note(words)
        print(archs)
        return 0
    if arguments == ["run"]:
        os.environ.pop("CUTWHEEL_KERNEL", None)  # it would be another kernel's
        return run()
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
