"""Command line: python -m cutwheel doctor [--json], python -m cutwheel tune."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .inspect import doctor


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cutwheel")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    diagnosis = commands.add_parser(
        "doctor",
        help="versions, GPUs, and for every problem what to do",
        description="Exit status: 0 if cutwheel's ops can run here, 1 if not.",
    )
    diagnosis.add_argument("--json", action="store_true", help="machine-readable output")
    wants_tune = list(sys.argv[1:] if arguments is None else arguments)[:1] == ["tune"]
    if wants_tune:
        # Only then: this needs torch and the library, and the doctor has to start without them.
        try:
            from .tuning import cli
        except ImportError as error:
            print(f"tune: {error}; `python -m cutwheel doctor` says more", file=sys.stderr)
            return 2
    tune = commands.add_parser(
        "tune",
        help="measure which kernels are fastest here, and write a table of it",
        description=cli.DESCRIPTION if wants_tune else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if wants_tune:
        cli.add_arguments(tune)
    options = parser.parse_args(arguments)
    if options.command == "tune":
        return cli.run(options)
    return doctor.run(as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
