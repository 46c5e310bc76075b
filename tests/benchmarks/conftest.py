"""Makes `benchmarks`, and the helpers beside the tests, importable under every import mode."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
