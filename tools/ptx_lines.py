"""Which lines of the sources a kernel's instructions come from.

    python tools/ptx_lines.py gemm_sm90a_persistent_part2.cu [--kernel 'gemm_*_plain']

Compiles a generated source again to PTX with line numbers, and counts instructions by the line they
were written on, however deep it was inlined. A build spends its time on them: a line that stands
for a tenth of a source's instructions, such as a loop unrolled on a rare path, is worth a look.
Needs a configured build (make wheel leaves build/auto) and no GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]+)"')
KERNEL = re.compile(r"\.visible \.entry (\w+)")
LOCATION = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s")
INSTRUCTION = re.compile(r"\s*(?:@!?%p\d+\s+)?([a-z]\w*)[.\s;]")


class Line(NamedTuple):
    """A line of a source; of no source where the compiler names none."""

    file: str
    number: int


class Count(NamedTuple):
    """Instructions of the kernels that were asked for."""

    kernels: int
    lines: Counter[Line]


def count(ptx: Iterable[str], kernel: str = "*") -> Count:
    """Counts the instructions of the kernels whose names match, by the line each was written on."""
    files: dict[str, str] = {}
    places: list[tuple[str, int]] = []
    place, counts, kernels = ("", 0), False, 0
    for text in ptx:
        if found := FILE.match(text):
            files[found[1]] = found[2]
        elif found := KERNEL.match(text):
            counts = fnmatch(found[1], kernel)
            kernels += counts
            place = ("", 0)
        elif found := LOCATION.match(text):
            place = (found[1], int(found[2]))
        elif counts and INSTRUCTION.match(text):
            places.append(place)
    # Names of files stand behind the code.
    lines = Counter(Line(files.get(file, ""), number) for file, number in places)
    return Count(kernels, lines)


def compile_ptx(source: str, build: Path, to: Path) -> None:
    """Compiles the source of this name to PTX as the build does, with line numbers.

    Raises:
        SystemExit: the build has no such source, or it does not compile
    """
    database = build / "compile_commands.json"
    if not database.is_file():
        sys.exit(f"{build} is not configured: expected {database}; run make wheel")
    entries = [x for x in json.loads(database.read_text()) if Path(x["file"]).name == source]
    if not entries:
        sys.exit(f"{build} has no source {source!r}: expected the name of one in {build}/generated")
    command = shlex.split(entries[0]["command"])
    # nvcc warns where it writes PTX with options for object files.
    kept = [x for x in command[: command.index("-o")] if x != "-c" and "compress" not in x]
    if Path(kept[0]).name == "ccache":
        kept = kept[1:]
    run = [*kept, "-ptx", "-lineinfo", "-o", str(to)]
    if subprocess.run(run, cwd=entries[0]["directory"], check=False).returncode:
        sys.exit(f"{source} does not compile")


def written(line: Line) -> str:
    """The text of the line, or nothing."""
    try:
        return Path(line.file).read_text().splitlines()[line.number - 1].strip()
    except (OSError, IndexError):
        return ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="a generated source's name")
    parser.add_argument("--kernel", default="*", help="of kernels with such names (default: all)")
    parser.add_argument("--build", type=Path, default=Path("build/auto"))
    parser.add_argument("--top", type=int, default=30, help="so many lines (default: 30)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "source.ptx"
        compile_ptx(options.source, options.build, ptx)
        with ptx.open() as text:
            found = count(text, options.kernel)
    if not found.kernels:
        sys.exit(f"{options.source} has no kernel {options.kernel!r}")
    total = found.lines.total()
    print(f"{total} instructions in {found.kernels} kernels")
    for line, n in found.lines.most_common(options.top):
        where = f"{'/'.join(Path(line.file).parts[-3:])}:{line.number}" if line.number else "?"
        print(f"{n:8d} {n / total:6.1%}  {where}  {written(line)[:90]}")


if __name__ == "__main__":
    main()
