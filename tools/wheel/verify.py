#!/usr/bin/env python3
"""Verify a built wheel: `python tools/wheel/verify.py WHEEL`.

Prints one line per check and the largest kernels. Exit status: 0 all checks hold, 1 a check
fails, 2 the file cannot be read as a wheel.
"""

from __future__ import annotations

import argparse
import json
import sys
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from wheelcheck.archive import Wheel, unpacked
from wheelcheck.checks import Budget, Result, run_checks
from wheelcheck.fatbin import KernelId
from wheelcheck.kernels import largest

LARGEST_KERNELS = 10


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    budget = Budget()
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here, too")
    parser.add_argument(
        "--budget-mb", type=float, default=budget.wheel_mb, help="of the file, in 10^6 bytes"
    )
    parser.add_argument(
        "--kernel-budget-kb",
        type=float,
        default=budget.kernel_kb,
        help="of a kernel's uncompressed sections, in 10^3 bytes",
    )
    return parser.parse_args(argv)


def print_report(
    wheel: Wheel, results: Sequence[Result], top: Sequence[tuple[KernelId, int]]
) -> None:
    print(wheel.path.name)
    width = max(len(result.name) for result in results)
    for result in results:
        print(f"  {result.name:<{width}}  {'ok  ' if result.ok else 'FAIL'}  {result.detail}")
    if top:
        print(f"\nLargest kernels (uncompressed kB, {len(top)} of {len(wheel.device_code.cubins)})")
    for kernel, size in top:
        print(f"  {size / 1e3:8.1f}  {kernel}")
    failed = [result.name for result in results if not result.ok]
    print(f"\n{len(failed)} of {len(results)} checks failed" if failed else "\nAll checks passed")


def write_json(path: Path, wheel: Wheel, results: Sequence[Result]) -> None:
    sizes = largest(wheel, sys.maxsize)
    report = {
        "wheel": wheel.path.name,
        "bytes": wheel.path.stat().st_size,
        "checks": [asdict(result) for result in results],
        "kernels": [{"name": k.name, "arch": k.arch, "bytes": size} for k, size in sizes],
    }
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    budget = Budget(arguments.budget_mb, arguments.kernel_budget_kb)
    with ExitStack() as stack:
        try:
            wheel = stack.enter_context(unpacked(arguments.wheel))
        except (OSError, zipfile.BadZipFile) as error:
            print(f"{arguments.wheel} cannot be read as a wheel: {error}", file=sys.stderr)
            return 2
        results = run_checks(wheel, budget)
        print_report(wheel, results, largest(wheel, LARGEST_KERNELS))
        if arguments.json:
            write_json(arguments.json, wheel, results)
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
