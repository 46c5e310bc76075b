#!/usr/bin/env python3
"""Is the GPU here of the kind that the label of the runner names?

    python3 tools/release/card.py cutwheel-sm90

A runner with a wrong label would pass tests for a card that was never used. Every GPU of the
machine has to have the compute capability at the label's end. Exit status: 0 yes, 1 no. Needs
nvidia-smi.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")


def fault(label: str) -> str | None:
    named = re.fullmatch(r".*sm(\d+)(\d)", label)
    if not named:
        return f"{label} names no compute capability: expected a label such as cutwheel-sm90"
    wanted = f"{named[1]}.{named[2]}"
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"nvidia-smi does not run ({error}): install the driver"
    cards = [line.rsplit(", ", 1) for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not cards:
        return f"nvidia-smi finds no GPU: {done.stdout}{done.stderr}".strip()
    if wrong := [f"{name} ({have})" for name, have in cards if have.strip() != wanted]:
        return f"the label {label} asks for {wanted}, but here is {', '.join(wrong)}"
    print(f"{label}: {', '.join(name for name, _ in cards)}")
    return None


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    if wrong := fault(arguments[0]):
        print(f"card: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
