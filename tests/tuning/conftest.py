"""Makes the helpers beside the tests, and those of tests/python, importable."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.with_name("python"))]
