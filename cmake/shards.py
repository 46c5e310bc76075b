"""Kernels compiled by several machines: each builds a shard of the sources, one links them all.

    python cmake/shards.py plan --shard 2/3 --estimates build/generated/estimates.json --output FILE
    python cmake/shards.py pack --shard 2/3 --folder shards OBJECT... + what follows
    python cmake/shards.py take --folder shards --output-dir build/shards SOURCE... + what follows
        --source-dir . --build-dir build --tools nvcc ptxas ... --headers build/headers/cutlass

``pack`` writes the objects of a shard into one file, with a fingerprint of all that they follow
from: sources, generated sources, compile commands, compilers, headers. ``take`` unpacks the
objects of all shards if their fingerprints are that of the build which links them. nvcc puts a hash
of the absolute path of a source into the names of internal symbols, so the commands, paths
included, have to be the same. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import precompiled

SCHEMA = 1
FINGERPRINT = "shard.json"
NAME = re.compile(r"cutwheel-shard-(\d+)-of-(\d+)\.zip")
# The same objects give the same file.
EPOCH = (1980, 1, 1, 0, 0, 0)


class ShardError(Exception):
    """Shards that cannot be planned or linked; the text says what to do."""


@dataclass(frozen=True)
class Shard:
    number: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
        if not found or int(found[1]) > int(found[2]):
            raise ShardError(f"CUTWHEEL_SHARD={text}: expected i/n with i from 1 to n, such as 2/3")
        return Shard(int(found[1]), int(found[2]))

    @property
    def file(self) -> str:
        return f"cutwheel-shard-{self.number}-of-{self.count}.zip"

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def plan(estimates: Mapping[str, float], count: int) -> list[list[str]]:
    """The sources of each shard: the longest first, each to the shard that has least to do."""
    shards: list[list[str]] = [[] for _ in range(count)]
    seconds = [0.0] * count
    for name in sorted(estimates, key=lambda name: (-estimates[name], name)):
        lightest = seconds.index(min(seconds))
        shards[lightest].append(name)
        seconds[lightest] += estimates[name]
    return [sorted(shard) for shard in shards]


# --- what objects follow from

Fingerprint = dict[str, dict[str, str]]
# Each part of a fingerprint, in the words of an error.
PARTS = {
    "sources": "other sources",
    "generated": "other generated sources",
    "commands": "other commands (nvcc puts a hash of the path into objects: build and sources have"
    " to lie at the same paths everywhere)",
    "tools": "other compilers",
    "headers": "other headers",
}


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree(root: Path) -> str:
    """One hash of all files below `root`."""
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(root).as_posix()}\0{sha256(path)}\n".encode())
    return digest.hexdigest()


def fingerprint(
    source_dir: Path, build_dir: Path, tools: Iterable[Path], headers: Iterable[Path]
) -> Fingerprint:
    generated = build_dir / "generated"
    kinds = ("*.cu", "*.cuh", "*.h")
    files = sorted(path for kind in kinds for path in generated.glob(kind))
    commands = json.loads((build_dir / "compile_commands.json").read_text(encoding="utf-8"))
    return {
        "sources": precompiled.hashes(source_dir),
        "generated": {path.name: sha256(path) for path in files},
        "commands": {
            Path(entry["file"]).name: f"{entry['command']} (in {entry['directory']})"
            for entry in commands
            if entry["file"].endswith(".cu")
        },
        "tools": {path.name: sha256(path) for path in tools},
        "headers": {path.name: tree(path) for path in headers},
    }


def differences(there: Fingerprint, here: Fingerprint) -> Iterator[str]:
    """`there` is of a shard, which compiled some of the sources of `here`."""
    for part, words in PARTS.items():
        one, other = there.get(part, {}), here[part]
        # A shard generates all sources and has the commands of its own.
        names = one.keys() if part == "commands" else one.keys() | other.keys()
        if wrong := sorted(name for name in names if one.get(name) != other.get(name)):
            yield f"{words}: {precompiled.shortlist(wrong)}"
            if part == "commands":
                yield f"  of the shard: {one[wrong[0]]}"
                yield f"  of this build: {other.get(wrong[0], 'none')}"


# --- files of shards


def source_of(path: Path) -> str:
    """gemm.cu, of CMakeFiles/cutwheel_sm80.dir/generated/gemm.cu.o"""
    return path.name.removesuffix(".o")


def pack(shard: Shard, objects: Sequence[Path], made: Fingerprint, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"schema": SCHEMA, "shard": str(shard), "fingerprint": made}
    path = folder / shard.file
    temporary = path.with_name(f"{path.name}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(zipfile.ZipInfo(FINGERPRINT, EPOCH), json.dumps(document, indent=1))
        for item in sorted(objects, key=source_of):
            archive.writestr(zipfile.ZipInfo(item.name, EPOCH), item.read_bytes())
    temporary.replace(path)
    return path


def files(folder: Path) -> list[Path]:
    """Those of all shards of one build, in their order."""
    found = {path: NAME.fullmatch(path.name) for path in folder.glob("*.zip")}
    shards = {Shard(int(name[1]), int(name[2])): path for path, name in found.items() if name}
    counts = sorted({shard.count for shard in shards})
    what = "`CUTWHEEL_SHARD=i/n` builds one into this folder"
    if not counts:
        raise ShardError(f"{folder} has no shard (cutwheel-shard-i-of-n.zip): {what}")
    if len(counts) > 1:
        listed = " and ".join(map(str, counts))
        raise ShardError(f"{folder} has shards of {listed}: remove those of another build")
    wanted = [Shard(number, counts[0]) for number in range(1, counts[0] + 1)]
    if missing := [str(shard) for shard in wanted if shard not in shards]:
        raise ShardError(f"{folder} lacks {precompiled.shortlist(missing)}: {what}")
    return [shards[shard] for shard in wanted]


def take(folder: Path, sources: Sequence[str], here: Fingerprint) -> dict[str, bytes]:
    """The object of each source.

    Raises:
        ShardError: a shard is missing or damaged, follows from something else than this build, or
            all together are not the objects of `sources`
    """
    objects: dict[str, bytes] = {}
    for path in files(folder):
        try:
            with zipfile.ZipFile(path) as archive:
                document = json.loads(archive.read(FINGERPRINT))
                names = [name for name in archive.namelist() if name != FINGERPRINT]
                inside = {source_of(Path(name)): archive.read(name) for name in names}
            if document["schema"] != SCHEMA:
                raise ValueError(f"schema {document['schema']}")
            there: Fingerprint = document["fingerprint"]
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise ShardError(f"{path} is damaged ({error!r}): build this shard again") from error
        if different := list(differences(there, here)):
            raise ShardError(
                f"{path} was compiled from something else than this build would be.\n  "
                + "\n  ".join(different)
                + "\nBuild this shard again, from these sources, at this path, by these compilers"
            )
        if twice := objects.keys() & inside.keys():
            raise ShardError(f"{path} has {precompiled.shortlist(twice)}, as another shard has")
        objects |= inside
    if missing := sorted(set(sources) - objects.keys()):
        raise ShardError(f"no shard in {folder} has {precompiled.shortlist(missing)}")
    if further := sorted(objects.keys() - set(sources)):
        raise ShardError(f"{folder} also has {precompiled.shortlist(further)}: other kernels")
    return objects


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["plan", "pack", "take"])
    parser.add_argument("names", nargs="*", help="pack: objects; take: sources")
    parser.add_argument("--shard", help="i/n")
    parser.add_argument("--estimates", type=Path, help="what kernelgen wrote")
    parser.add_argument("--output", type=Path, help="plan: the estimates of this shard's sources")
    parser.add_argument("--folder", type=Path, help="where the files of shards are")
    parser.add_argument("--source-dir", type=Path, help="root of the repository")
    parser.add_argument("--build-dir", type=Path)
    parser.add_argument("--tools", type=Path, nargs="*", default=[], help="compilers")
    parser.add_argument("--headers", type=Path, nargs="*", default=[], help="trees of headers")
    parser.add_argument("--output-dir", type=Path, help="take: where the objects go")
    options = parser.parse_args()
    try:
        if options.what == "plan":
            shard = Shard.parse(options.shard)
            estimates = json.loads(options.estimates.read_text(encoding="utf-8"))
            names = plan(estimates, shard.count)[shard.number - 1]
            text = json.dumps({name: estimates[name] for name in names}, indent=1)
            options.output.write_text(text, encoding="utf-8")
            print(";".join(names))
            return 0
        here = fingerprint(options.source_dir, options.build_dir, options.tools, options.headers)
        if options.what == "pack":
            objects = [Path(name) for name in options.names]
            print(pack(Shard.parse(options.shard), objects, here, options.folder))
        else:
            taken = take(options.folder, [Path(name).name for name in options.names], here)
            options.output_dir.mkdir(parents=True, exist_ok=True)
            for name, data in taken.items():
                (options.output_dir / f"{name}.o").write_bytes(data)
    except ShardError as error:
        print(f"shards: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
