"""Makes `cpu_reference` importable under every import mode of pytest, and installs it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from cpu_reference import CpuOps

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def opaque_ops(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> Iterator[CpuOps]:
    """cpu_ops as torch sees kernels: it cannot look into them, so no derivative passes through.

    Computations of torch in their place run on the CPU, too.
    """
    import torch
    from cpu_reference import NAMES
    from torch.autograd import forward_ad

    from cutwheel.ops._common import by_torch

    def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
        def strip(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return [strip(each) for each in value] if isinstance(value, list) else value
            if forward_ad._current_level >= 0:
                value = forward_ad.unpack_dual(value).primal
            return value.detach()

        def call(*given: Any, **out: Any) -> Any:
            with torch.no_grad():
                return function(*map(strip, given), **out)

        return call

    library = torch.library.Library("cutwheel", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            function = getattr(cpu_ops, name.replace(".", "_"))
            library.impl(name, opaque(function), "CPU", allow_override=True)
    monkeypatch.setattr(by_torch, "_is_refused", lambda x: x.dtype not in by_torch.DTYPES)
    yield cpu_ops
    library._destroy()


@pytest.fixture
def inductor_graphs(
    traced_on_cpu: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Makes a `Compiled` of a function: its graphs go through the pass for torch.compile, on the
    CPU, as on a Hopper GPU that has every kernel."""
    import torch
    from inductor_on_cpu import Compiled, pretend_gpu

    from cutwheel.inductor import report

    pretend_gpu(monkeypatch.setattr)
    report(clear=True)
    yield lambda function, **how: Compiled(traced_on_cpu, function, **how)
    torch._dynamo.reset()
    report(clear=True)
