#!/usr/bin/env python3
"""Builds one commit twice, in two directories, and compares the files byte by byte.

    python tools/wheel/reproduce.py                           sdist and wheel, as they are released
    python tools/wheel/reproduce.py --kernels 'gemm_sm80_*'   a wheel of few kernels: minutes
    python tools/wheel/reproduce.py --against FOLDER          one build, and published files

Builds begin with a clone and take nothing from a compiler cache; with --cache the first one does,
whose objects were compiled before. The second one compiles the kernels in shards, as wheels.yml
does. Exit status: 0 the same bytes, 1 not (the text names the
files in the wheel that differ, and of libraries the sections).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from platform import machine

from elftools.elf.elffile import ELFFile

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "cibuildwheel --platform linux --output-dir {out} {project}"
# Paths of different lengths: one that is left in a file shifts the bytes behind it.
FOLDERS = ("one", "a/second/and/longer/one")


def run(command: Sequence[str], where: Path, **environment: str) -> None:
    print("+", shlex.join(command), flush=True)
    subprocess.run(command, cwd=where, env={**os.environ, **environment}, check=True)


def settings(kernels: str, *, cached: bool = False) -> dict[str, str]:
    """cibuildwheel's options that differ from a release: no tests, and no cache unless `cached`."""
    options = ["build-dir=build/cibuildwheel"]
    if kernels:
        options.append(f"cmake.define.CUTWHEEL_KERNELS={kernels}")
    given = os.environ.get("CIBW_ENVIRONMENT", "CUTWHEEL_CUDA=pypi")
    # As in pyproject.toml: the compiler is unpacked anew for each build, so its bytes identify it.
    cache = "CCACHE_COMPILERCHECK=content" if cached else "CCACHE_DISABLE=1"
    return {
        "CIBW_TEST_SKIP": "*",
        "CIBW_CONFIG_SETTINGS": " ".join(options),
        "CIBW_ENVIRONMENT": f"{given} {cache}",
    }


def stages(folder: Path, shards: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """Where each run of the build puts its output, and its variables; the last makes the wheel."""
    # cibuildwheel mounts the root of the machine at /host.
    given = {"CUTWHEEL_SHARDS": f"/host{folder / 'shards'}"} if shards > 1 else {}
    for number in range(1, shards + 1) if given else ():
        # What it takes for a wheel holds no library, which auditwheel would ask for.
        repair = {"CIBW_REPAIR_WHEEL_COMMAND": "cp {wheel} {dest_dir}"}
        yield folder / "shard", {**given, **repair, "CUTWHEEL_SHARD": f"{number}/{shards}"}
    yield folder / "wheel", given


def build(
    folder: Path, command: str, kernels: str, shards: int, *, cached: bool
) -> tuple[Path, Path]:
    """Sdist and wheel of the commit that is checked out, built in ``folder``."""
    clone, sdist, unpacked = (folder / name for name in ("clone", "sdist", "source"))
    (folder / "shards").mkdir(parents=True)
    run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], folder)
    commit_time = ["git", "-C", str(clone), "log", "-1", "--format=%ct"]
    epoch = subprocess.run(commit_time, check=True, capture_output=True, text=True).stdout.strip()
    make_sdist = ["-m", "build", "--no-isolation", "--skip-dependency-check", "--sdist", "--outdir"]
    run([sys.executable, *make_sdist, str(sdist)], clone, SOURCE_DATE_EPOCH=epoch)
    [archive] = sdist.glob("*.tar.gz")
    unpacked.mkdir()
    # Not tarfile: its filter="data" came with Python 3.11.4, and Debian 12 has 3.11.2.
    run(["tar", "-xzf", str(archive), "-C", str(unpacked)], folder)
    [project] = unpacked.iterdir()
    for out, given in stages(folder, shards):
        words = [word.format(project=project, out=out) for word in shlex.split(command)]
        rest = settings(kernels, cached=cached) | given
        run(words, folder, SOURCE_DATE_EPOCH=epoch, **rest)
    [wheel] = (folder / "wheel").glob("*.whl")
    return archive, wheel


def sections(data: Path) -> dict[str, bytes]:
    with data.open("rb") as file:
        return {section.name: section.data() for section in ELFFile(file).iter_sections()}


def library_differences(name: str, one: Path, other: Path) -> Iterator[str]:
    first, second = sections(one), sections(other)
    for section in dict.fromkeys([*first, *second]):
        if first.get(section) != second.get(section):
            yield f"{name}: section {section}"


def differences(one: Path, other: Path) -> list[str]:
    """Differences between two wheels: members, and the sections of libraries."""
    found: list[str] = []
    if one.name != other.name:
        found.append(f"the names: {one.name}, {other.name}")
    with (
        zipfile.ZipFile(one) as first,
        zipfile.ZipFile(other) as second,
        tempfile.TemporaryDirectory() as folder,
    ):
        names = dict.fromkeys([*first.namelist(), *second.namelist()])
        for name in names:
            if name not in first.namelist() or name not in second.namelist():
                found.append(f"{name}: in one of them only")
            elif first.read(name) != second.read(name):
                if name.endswith(".so"):
                    paths = [
                        Path(archive.extract(name, Path(folder) / side))
                        for side, archive in (("one", first), ("other", second))
                    ]
                    found += library_differences(name, *paths)
                else:
                    found.append(name)
        if not found and one.read_bytes() != other.read_bytes():
            found.append("the archive itself: order, time stamps, modes or compression")
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def published(folder: Path, platform: str) -> tuple[Path, Path]:
    """Sdist and wheel of a release that is to be reproduced."""
    sdists, wheels = [*folder.glob("*.tar.gz")], [*folder.glob(f"*_{platform}.whl")]
    if len(sdists) != 1 or len(wheels) != 1:
        raise SystemExit(
            f"{folder} has {len(sdists)} sdists and {len(wheels)} wheels for {platform}: "
            "expected one of each"
        )
    return sdists[0], wheels[0]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", default="", help="globs of kernel names, separated by ;")
    parser.add_argument(
        "--build", default=COMMAND, metavar="COMMAND", help=f"with places for both; {COMMAND}"
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PATH",
        help="build once, and compare with this wheel, or with sdist and wheel in this folder",
    )
    parser.add_argument("--platform", default=machine(), help="of the wheel in --against")
    parser.add_argument(
        "--shards", type=int, default=2, metavar="N", help="of the second build; 1: none, 2"
    )
    parser.add_argument(
        "--cache", action="store_true", help="the first of two builds may use the compiler cache"
    )
    arguments = parser.parse_args(argv)
    if arguments.cache and arguments.against:
        parser.error("--cache: a build that is compared with --against has to compile")
    given: list[tuple[Path | None, Path]] = []
    if arguments.against and arguments.against.is_dir():
        given.append(published(arguments.against.resolve(), arguments.platform))
    elif arguments.against:
        given.append((None, arguments.against.resolve()))
    with tempfile.TemporaryDirectory(prefix="reproduce-") as folder:
        plans = [(FOLDERS[0], 1, arguments.cache)]
        if not arguments.against:
            plans.append((FOLDERS[1], arguments.shards, False))
        built = [
            build(Path(folder) / name, arguments.build, arguments.kernels, shards, cached=cached)
            for name, shards, cached in plans
        ]
        pairs = [*built, *given]
        wheels = [wheel for _, wheel in pairs]
        sdists = [sdist for sdist, _ in pairs if sdist]
        for path in [*sdists, *wheels]:
            print(digest(path), path.name)
        found = differences(*wheels)
        if len({digest(sdist) for sdist in sdists}) > 1:
            found.insert(0, "the sdists")
    print("\n".join(["not the same:", *found]) if found else "the same bytes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
