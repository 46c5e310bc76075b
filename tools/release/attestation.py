#!/usr/bin/env python3
"""Was each file built by this repository's workflow, from the tag, on a machine of GitHub?

    python3 tools/release/attestation.py TAG FILE...
    python3 tools/release/attestation.py TAG FILE... --download FOLDER   keep the bundles, too

`gh attestation verify` answers that; FOLDER then has a `FILE.sigstore.jsonl` for each file, from
which `index.py --provenance` makes the provenance of the package index. Exit status: 0 all, 1 not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from releasing import ROOT, ReleaseError, commit_of, digest, gh, repository

BUILDER = ".github/workflows/wheels.yml"  # the workflow that compiles and signs


def verify(tag: str, files: Sequence[Path], root: Path) -> None:
    name, commit = repository(root), commit_of(tag, root)
    for path in files:
        if not path.is_file():  # gh takes what is no file for an address
            raise ReleaseError(f"{path} is not there")
        gh(
            "attestation",
            "verify",
            str(path),
            f"--repo={name}",
            f"--signer-workflow={name}/{BUILDER}",
            f"--source-ref=refs/tags/{tag}",
            f"--source-digest={commit}",
            "--deny-self-hosted-runners",
        )
        print(f"{path.name}: built by {BUILDER} from {tag} ({commit})")


def download(files: Sequence[Path], folder: Path, root: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        with tempfile.TemporaryDirectory() as here:
            found = ["attestation", "download", str(path.resolve()), f"--repo={repository(root)}"]
            gh(*found, folder=Path(here))
            [bundle] = Path(here).iterdir()
            if digest(path) not in bundle.name:
                raise ReleaseError(f"gh gave {bundle.name} for {path.name}, which is another file")
            (folder / f"{path.name}.sigstore.jsonl").write_bytes(bundle.read_bytes())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tag", metavar="TAG")
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("--download", metavar="FOLDER", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT, help="for tests")
    options = parser.parse_args(argv)
    try:
        verify(options.tag, options.files, options.root)
        if options.download:
            download(options.files, options.download, options.root)
    except (ReleaseError, OSError) as error:
        print(f"attestation: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
