#!/usr/bin/env python3
"""Build or extend the static package index that pip and uv install cutwheel from.

    python tools/release/index.py --index DIR --variant cu130 WHEEL...
    python tools/release/index.py --index DIR --variant cu130 --provenance DIR --url URL WHEEL...
    python tools/release/index.py --index DIR --variant cu130 --yank REASON WHEEL...
    python tools/release/index.py --index DIR --variant cu130 --yank REASON --release VERSION
    python tools/release/index.py --index DIR --verify

An index is append-only: a published file is never replaced. Exit status: 0 done, 1 refused or
not as it should be, 2 wrong usage. docs/releasing.md says how it is used.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from packageindex.provenance import with_provenance
from packageindex.store import names_of, publish, verify, yank
from packageindex.wheels import Refusal, Wheel, read_wheel

UPLOAD_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"  # PEP 700
VARIANT = re.compile(r"cu\d{3,}")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--index", type=Path, metavar="DIR", required=True)
    parser.add_argument("--variant", help="the folder in DIR, as cu130 for CUDA 13.0")
    parser.add_argument("wheels", type=Path, metavar="WHEEL", nargs="*")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--verify", action="store_true", help="check every link, hash and page")
    mode.add_argument("--yank", metavar="REASON", help="only exact pins get these files from now")
    mode.add_argument("--unyank", action="store_true", help="undo --yank")
    parser.add_argument("--release", metavar="VERSION", help="yank every file of this version")
    parser.add_argument("--upload-time", metavar="TIME", help="for tests; default: now")
    parser.add_argument(
        "--provenance", type=Path, metavar="DIR", help="has WHEEL.sigstore.jsonl for each WHEEL"
    )
    parser.add_argument("--url", help="where DIR will be served; --provenance needs it")
    parser.add_argument("--allow-any-tag", action="store_true", help="for tests")
    arguments = parser.parse_args(argv)
    if arguments.variant is not None and not VARIANT.fullmatch(arguments.variant):
        parser.error(f"--variant {arguments.variant}: expected cu and CUDA's version, as in cu130")
    if arguments.verify and arguments.wheels:
        parser.error("--verify checks what is published and takes no wheels")
    yanking = arguments.yank is not None or arguments.unyank
    if arguments.release and (arguments.wheels or not yanking):
        parser.error("--release goes with --yank or --unyank, and without file names")
    if (arguments.provenance is None) != (arguments.url is None):
        parser.error("--provenance and --url need each other")
    given = arguments.wheels or arguments.release
    if not arguments.verify and not (arguments.variant and given):
        parser.error("--variant and at least one wheel are needed")
    if arguments.yank == "":
        parser.error("--yank needs a reason")
    return arguments


def run_verify(index: Path, variant: str | None) -> bool:
    names = [variant] if variant else [path.name for path in index.glob("cu*")]
    folders = [index / name for name in sorted(names) if VARIANT.fullmatch(name)]
    wrong = [line for folder in folders for line in verify(folder)]
    if not any(folder.is_dir() for folder in folders):
        wrong = [f"{index} holds no index{f' of {variant}' if variant else ''}"]
    print("\n".join(wrong or [f"{folder}: all as it should be" for folder in folders]))
    return not wrong


def read(path: Path, arguments: argparse.Namespace) -> Wheel:
    wheel = read_wheel(path, arguments.allow_any_tag)
    now = datetime.now(timezone.utc).strftime(UPLOAD_TIME)
    wheel = replace(wheel, file=replace(wheel.file, uploaded=arguments.upload_time or now))
    if arguments.provenance is None:
        return wheel
    bundles = arguments.provenance / f"{path.name}.sigstore.jsonl"
    project = path.name.partition("-")[0]
    return with_provenance(wheel, bundles, f"{arguments.url}/{arguments.variant}/{project}")


def run(arguments: argparse.Namespace) -> bool:
    if arguments.verify:
        return run_verify(arguments.index, arguments.variant)
    folder = arguments.index / arguments.variant
    if arguments.yank or arguments.unyank:
        names = [path.name for path in arguments.wheels]
        names = names or names_of(folder, arguments.release)
        yank(folder, names, arguments.yank)
        print(
            "\n".join(f"{name}: {'yanked' if arguments.yank else 'not yanked'}" for name in names)
        )
        return True
    wheels = [read(path, arguments) for path in arguments.wheels]
    for name, new in publish(folder, wheels).items():
        print(f"{name}: {'published' if new else 'was there already'}")
    return True


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    try:
        return 0 if run(arguments) else 1
    except Refusal as error:
        message = str(error)
    except OSError as error:
        message = f"{error}; the index is whole, run the same command again"
    print(f"index: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
