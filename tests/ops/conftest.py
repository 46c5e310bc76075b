"""Makes the modules of this folder importable under every import mode of pytest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def tf32(request: pytest.FixtureRequest) -> Iterator[None]:
    """TF32 is allowed in every test of this folder, for cutwheel and for torch alike."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(autouse=True)
def meta_agreement(request: pytest.FixtureRequest) -> Iterator[None]:
    """In every gpu test, what an op returns is what its meta function infers."""
    node = request.node
    if not node.get_closest_marker("gpu") or node.get_closest_marker("no_dispatch_mode"):
        yield
        return
    from meta_agreement import MetaAgreement

    with MetaAgreement():
        yield


@pytest.fixture
def cuda(device: str) -> str:
    """The device, for what only CUDA has: streams, graphs, contexts."""
    import torch

    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA")
    return device
