#!/usr/bin/env python3
"""Pins container images by digest: `IMAGE... = name:tag` in a Makefile gets the tag's @sha256:.

    python3 tools/release/images.py Makefile

A digest that is there already is looked up again: a tag moves on. `docker buildx imagetools` asks
the registry and pulls nothing. Exit status: 0 all pinned, 1 refused, and nothing is written.
Standard library only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from releasing import ReleaseError

IMAGE = re.compile(r"^(IMAGE\w* = )([^\s@]+)(?:@sha256:[0-9a-f]{64})?$", re.MULTILINE)
INSPECT = ("docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}")


def digest(image: str) -> str:
    try:
        done = subprocess.run([*INSPECT, image], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ReleaseError(f"docker is needed to ask for the digest of {image}: {error}") from None
    found = done.stdout.strip()
    if done.returncode or not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        told = done.stderr.strip() or f"docker printed {found[:80]!r}"
        raise ReleaseError(f"no digest of {image}: {told}")
    return found


def pinned(text: str) -> str:
    """The Makefile `text` with the digest of each image."""
    if not IMAGE.search(text):
        raise ReleaseError("no line `IMAGE... = name:tag`: is this the Makefile?")
    return IMAGE.sub(lambda line: f"{line[1]}{line[2]}@{digest(line[2])}", text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("makefile", metavar="MAKEFILE", type=Path)
    options = parser.parse_args(argv)
    try:
        text = options.makefile.read_text(encoding="utf-8")
        options.makefile.write_text(found := pinned(text), encoding="utf-8")
    except (ReleaseError, OSError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    for line in IMAGE.finditer(found):
        print(line[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
