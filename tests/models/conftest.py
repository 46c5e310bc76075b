"""Makes the folder's modules, and the reference kernels and tools of its neighbours, importable."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), *(str(HERE.with_name(name)) for name in ("python", "ops"))]
