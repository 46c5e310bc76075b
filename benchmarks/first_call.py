"""First calls, each in a process of its own that has imported torch and nothing else.

    python benchmarks/first_call.py [DEVICE]

reads a request from each line, ``{"provider": "cutwheel", "operation": "mm"}``, and answers it with
a line of JSON: seconds of ``import cutwheel``, of the CUDA context and operands, of the first
call and of another one, and how much device memory was in use before and after the first call.
suites/cold.py makes a table of that.

A script, since the package imports cutwheel. torch is imported once, in seconds, and each
request is a fork: CUDA comes up in the child alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Call = Callable[..., Tensor]
PROVIDERS = ("torch", "cutwheel")
LIMIT = 60  # seconds that one answer may take
TOLERANCE = 2e-2  # of the relative error against torch's result


def _normal(device: str, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16, device=device)


def _mm(device: str) -> tuple[Tensor, ...]:
    return _normal(device, 1024, 2048), _normal(device, 2048, 2048).t()


def _linear(device: str) -> tuple[Tensor, ...]:
    return _normal(device, 1024, 2048), _normal(device, 2048, 2048), _normal(device, 2048)


def _grouped(device: str) -> tuple[Tensor, ...]:
    ends = torch.arange(128, 1025, 128, dtype=torch.int32, device=device)
    return _normal(device, 1024, 1024), _normal(device, 8, 1024, 1024).mT, ends


def _conv(device: str) -> tuple[Tensor, ...]:
    images, filters = _normal(device, 8, 128, 56, 56), _normal(device, 128, 128, 3, 3)
    return tuple(each.to(memory_format=torch.channels_last) for each in (images, filters))


OPERANDS: dict[str, Callable[[str], tuple[Tensor, ...]]] = {
    "mm": _mm,
    "linear, gelu": _linear,
    "grouped_mm": _grouped,
    "conv2d": _conv,
}


def _calls(provider: str) -> dict[str, Call]:
    if provider == "torch":
        return {
            "mm": torch.mm,
            "linear, gelu": lambda x, w, bias: functional.gelu(functional.linear(x, w, bias)),
            "grouped_mm": lambda x, w, ends: torch._grouped_mm(x, w, offs=ends),
            "conv2d": lambda x, w: functional.conv2d(x, w, padding=1),
        }
    import cutwheel

    return {
        "mm": cutwheel.mm,
        "linear, gelu": lambda x, w, bias: cutwheel.linear(x, w, bias, activation="gelu"),
        "grouped_mm": lambda x, w, ends: cutwheel.grouped_mm(x, w, offs=ends),
        "conv2d": lambda x, w: cutwheel.conv2d(x, w, padding=1),
    }


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _used(device: str) -> int:
    """Bytes of the device that torch's allocator does not hold."""
    if device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def first_call(provider: str, operation: str, device: str) -> dict[str, Any]:
    """In a process that has done nothing yet.

    Raises:
        ValueError: the result is not torch's
        NotImplementedError: no kernel
    """
    started = time.perf_counter()
    call = _calls(provider)[operation]
    imported = time.perf_counter()
    operands = OPERANDS[operation](device)
    _wait(device)
    there = time.perf_counter()
    before = _used(device)
    calling = time.perf_counter()
    found = call(*operands)
    _wait(device)
    called = time.perf_counter()
    after = _used(device)
    again = time.perf_counter()
    call(*operands)
    _wait(device)
    ended = time.perf_counter()

    expected = _calls("torch")[operation](*operands).double()
    error = float((found.double() - expected).norm() / expected.norm())
    if not error < TOLERANCE:
        raise ValueError(f"the result differs from torch's, relative error {error:.1e}")
    return {
        "import": imported - started,
        "context": there - imported,
        "first": called - calling,
        "again": ended - again,
        "used_before": before,
        "used_after": after,
    }


def answer(request: dict[str, str], device: str) -> dict[str, Any]:
    """By a child, which may fail in any way."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        sys.dont_write_bytecode = False  # pip compiles what people import
        try:
            found = first_call(request["provider"], request["operation"], device)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        return {"error": f"the process ended with {os.waitstatus_to_exitcode(status)}"}
    given: dict[str, Any] = json.loads(text)
    return given


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), device)), flush=True)


if __name__ == "__main__":
    main()
