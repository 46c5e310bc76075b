#!/usr/bin/env python3
"""Reads a published package index back: does the server give the bytes that are in the folder?

    python3 tools/release/served.py --index whl --url https://cutwheel.github.io/cutwheel

Every page, wheel, metadata and provenance file of the folder is fetched, and each folder's address,
which has to give `index.html`. A server may lag behind a push, so what differs is fetched again.
Exit status: 0 the same bytes, 1 not. Standard library only.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

ATTEMPTS, PAUSE = 20, 30.0  # GitHub Pages takes some minutes
PAGE = "index.html"


def addresses(index: Path) -> Iterator[tuple[str, Path]]:
    """Path of each address below the index's, and the file whose bytes it has to give."""
    for path in sorted(index.glob("cu*/**/*")):
        if path.is_file():
            where = path.relative_to(index).as_posix()
            if path.name == PAGE:
                yield where.removesuffix(PAGE), path
            yield where, path


def fault(address: str, path: Path) -> str | None:
    # Caches on the way shall ask the server.
    request = urllib.request.Request(address, headers={"Cache-Control": "no-cache"})
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            data = answer.read()
    except (urllib.error.URLError, OSError) as error:
        return f"{address} cannot be read: {error}"
    if data != path.read_bytes():
        return f"{address} differs from {path}: {len(data)} bytes, expected {path.stat().st_size}"
    return None


def faults(index: Path, url: str, attempts: int, pause: float) -> list[str]:
    left = [(f"{url.rstrip('/')}/{quote(where)}", path) for where, path in addresses(index)]
    if not left:
        return [f"{index} holds no index: name the folder that was published"]
    count = len(left)
    found: list[str] = []
    for attempt in range(attempts):
        tried = [(fault(*pair), pair) for pair in left]
        found = [text for text, _ in tried if text]
        left = [pair for text, pair in tried if text]
        if not left:
            print(f"{url}: {count} addresses, all with the bytes of {index}")
            break
        if attempt < attempts - 1:
            time.sleep(pause)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, metavar="DIR", required=True)
    parser.add_argument("--url", required=True, help="where DIR is served")
    parser.add_argument("--attempts", type=int, default=ATTEMPTS)
    parser.add_argument("--pause", type=float, default=PAUSE, help="seconds between attempts")
    options = parser.parse_args(argv)
    wrong = faults(options.index, options.url, options.attempts, options.pause)
    for line in wrong:
        print(f"served: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
