#!/usr/bin/env python3
"""Nothing is swapped on the way: SHA-256 of each file as an output of the job that built it.

    python3 tools/release/hashes.py record ARTIFACT FILE...   the output ARTIFACT of this step
    python3 tools/release/hashes.py collect                   NEEDS -> the outputs of a workflow
    python3 tools/release/hashes.py compare FOLDER            are its files those of SHA256?

Outputs travel beside the artifacts, through GitHub's own storage of the run: whoever can replace an
artifact cannot replace them. `record` writes {"ARTIFACT": {"FILE": "SHA-256"}}. `collect` reads all
of these from the environment variable NEEDS, which is `toJSON(needs)`, and writes the outputs
`sha256` (all files), `wheels` (artifacts that hold a wheel) and `gpu-wheels` (those that GPU tests
run with). `compare` takes `sha256` from the environment variable SHA256. Every file has to be
there, and no other. Exit status: 0 done, 1 refused. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from releasing import ReleaseError, compare, digests, write_output

Hashes = dict[str, dict[str, str]]  # artifact -> file -> SHA-256
ARTIFACT = re.compile(r"[a-z][a-z0-9_-]*")
GPU_TESTED = "-x86_64"  # cubins.py: wheels of other platforms hold the same cubins


def parse(text: str, where: str) -> Hashes:
    """What `record` or `collect` wrote."""
    try:
        found = json.loads(text)
        for artifact, files in found.items():
            if not ARTIFACT.fullmatch(artifact) or not files:
                raise ValueError(artifact)
            for name, sha256 in files.items():
                if "/" in name or not re.fullmatch(r"[0-9a-f]{64}", sha256):
                    raise ValueError(name)
    except (ValueError, AttributeError, TypeError) as error:
        raise ReleaseError(f"{where} has no hashes of files ({error}): {text[:200]!r}") from None
    checked: Hashes = found
    if not checked:
        raise ReleaseError(f"{where} names no file: the job that built them has not told")
    return checked


def record(artifact: str, files: Sequence[Path]) -> None:
    if not ARTIFACT.fullmatch(artifact):
        raise ReleaseError(f"{artifact} is no name of an artifact: expected {ARTIFACT.pattern}")
    write_output(artifact, json.dumps({artifact: digests(files)}, sort_keys=True))


def collect(needs: Mapping[str, Mapping[str, object]]) -> Hashes:
    found: Hashes = {}
    for job, state in needs.items():
        outputs = state.get("outputs")
        given = dict(outputs) if isinstance(outputs, Mapping) else {}
        # A matrix declares an output for each of its entries; those that did not run are empty.
        texts = [(name, text) for name, text in given.items() if text]
        if state.get("result") != "success" or not texts:
            raise ReleaseError(f"the job {job} has no hashes: its result is {state.get('result')}")
        for name, text in texts:
            hashes = parse(str(text), f"the output {name} of {job}")
            if twice := found.keys() & hashes.keys():
                raise ReleaseError(f"two jobs built {', '.join(sorted(twice))}")
            found.update(hashes)
    return found


def flatten(hashes: Hashes) -> dict[str, str]:
    found: dict[str, str] = {}
    for artifact, files in hashes.items():
        for name, sha256 in files.items():
            if found.setdefault(name, sha256) != sha256:
                raise ReleaseError(f"{artifact} and another artifact have different files {name}")
    return found


def select(hashes: Hashes, artifacts: Sequence[str]) -> Hashes:
    if unknown := [name for name in artifacts if name not in hashes]:
        raise ReleaseError(f"nothing has built {', '.join(unknown)}, only {', '.join(hashes)}")
    return {name: hashes[name] for name in artifacts} if artifacts else hashes


def write_collected(hashes: Hashes) -> None:
    wheels = [name for name in sorted(hashes) if name.startswith("wheel-")]
    text = json.dumps(hashes, sort_keys=True)
    write_output("sha256", text)
    write_output("wheels", json.dumps(wheels))
    write_output("gpu-wheels", json.dumps([name for name in wheels if name.endswith(GPU_TESTED)]))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):  # `gpu.yml` is started with it by hand
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(f"    {text}\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    recording = steps.add_parser("record")
    recording.add_argument("artifact", metavar="ARTIFACT")
    recording.add_argument("files", metavar="FILE", type=Path, nargs="+")
    steps.add_parser("collect")
    comparing = steps.add_parser("compare")
    comparing.add_argument("folder", metavar="FOLDER", type=Path)
    comparing.add_argument("--artifact", action="append", default=[], help="only files of this one")
    options = parser.parse_args(argv)
    try:
        if options.step == "record":
            record(options.artifact, options.files)
        elif options.step == "collect":
            write_collected(collect(json.loads(os.environ.get("NEEDS") or "{}")))
        else:
            hashes = parse(os.environ.get("SHA256", ""), "SHA256")
            expected = flatten(select(hashes, options.artifact))
            found = digests(path for path in options.folder.iterdir() if path.is_file())
            compare(str(options.folder), expected, found)
    except (ReleaseError, OSError) as error:
        print(f"hashes: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
