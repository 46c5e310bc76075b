#!/usr/bin/env python3
"""Measure kernels for given shapes: `python -m cutwheel tune` from the source tree.

A table that is to be compiled into the wheel goes to cuda/dispatch/tuned/. docs/tuning.md has more.
"""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> int:
    # At run time: these tools are checked without the package, which needs torch.
    status: int = import_module("cutwheel.tuning.command").main()
    return status


if __name__ == "__main__":
    sys.exit(main())
