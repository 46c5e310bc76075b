"""Makes `cpu_reference` importable under every import mode of pytest, and installs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from cpu_reference import CpuOps

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def cpu_ops(cutwheel: ModuleType) -> Iterator[CpuOps]:
    """Runs the ops on CPU tensors of any dtype, in place of the kernels that only refuse them."""
    import torch
    from cpu_reference import CpuOps, install

    ops = CpuOps()
    library = install(ops)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield ops
    torch.set_float32_matmul_precision(before)
    library._destroy()


@pytest.fixture
def traced_on_cpu(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    """cpu_ops whose fake kernels take CPU tensors, too: for torch.compile and opcheck."""
    from cutwheel.ops import _fake, _fake_conv, _fake_fused, _fake_grouped, _fake_scaled

    for module in (_fake, _fake_conv, _fake_fused, _fake_grouped, _fake_scaled):
        monkeypatch.setattr(module, "check_devices", lambda op, tensors: None)
    return cpu_ops
