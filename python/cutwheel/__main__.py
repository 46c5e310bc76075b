"""Command line: python -m cutwheel doctor [--json]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import _doctor


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cutwheel")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="versions, GPUs, and for every problem what to do",
        description="Exit status: 0 if cutwheel's ops can run here, 1 if not.",
    )
    doctor.add_argument("--json", action="store_true", help="machine-readable output")
    options = parser.parse_args(arguments)
    return _doctor.run(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
