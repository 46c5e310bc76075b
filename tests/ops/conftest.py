"""Makes `reference` and `gemm_cases` importable under every import mode of pytest."""

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
