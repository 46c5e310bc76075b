"""Makes `kernelgen_cases` importable under every import mode of pytest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[2]
