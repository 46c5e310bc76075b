"""Command line of kernelgen, run by CMake when it configures.

  python cmake/kernelgen/generate.py --source-dir . --output-dir build/generated

Exit code 0, or 1 with one text on stderr; then no output has changed.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

if not __package__:  # run as a script: the package lies in the folder above this one
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from kernelgen import emit, manifest
from kernelgen.kernel import ARCHS, Kernel
from kernelgen.naming import procedural_name
from kernelgen.tuning import calibration, tuned


class SelectionError(Exception):
    """A selection of kernels or architectures that cannot be meant."""


def select(
    kernels: Sequence[Kernel],
    patterns: str = "",
    archs: str = "",
    sets: Mapping[str, Sequence[str]] | None = None,
) -> list[Kernel]:
    """The kernels whose name matches one of `patterns` and whose architecture is in `archs`.

    Both are lists separated by ";"; an empty one selects everything. "@name" among the patterns
    stands for those of a set. Raises SelectionError for an unknown architecture or set, and for a
    pattern that matches no kernel at all.
    """
    arch_names = _split(archs) or list(ARCHS)
    if unknown := [arch for arch in arch_names if arch not in ARCHS]:
        raise SelectionError(
            f'unknown architecture "{unknown[0]}"; allowed: {", ".join(ARCHS)} (separated by ";")'
        )
    named = {procedural_name(kernel): kernel for kernel in kernels}
    globs = list(_globs(patterns, sets or {})) or ["*"]
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in named):
            near = difflib.get_close_matches(glob, named, n=5, cutoff=0)
            raise SelectionError(
                "\n  ".join([f'no kernel matches "{glob}"; the nearest names are', *near])
            )
    matching = [
        kernel for name, kernel in named.items() if any(fnmatchcase(name, g) for g in globs)
    ]
    selected = [kernel for kernel in matching if kernel.arch.name in arch_names]
    if not selected:
        found = ", ".join(sorted({kernel.arch.name for kernel in matching})) or "none"
        raise SelectionError(
            f'"{patterns or "*"}" has kernels for architectures {found} only,'
            f" but the selected architectures are {', '.join(arch_names)}"
        )
    return selected


def _globs(patterns: str, sets: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for pattern in _split(patterns):
        if not pattern.startswith("@"):
            yield pattern
        elif pattern[1:] in sets:
            yield from sets[pattern[1:]]
        else:
            known = ", ".join(f"@{name}" for name in sets) or "none is declared"
            raise SelectionError(f'unknown set of kernels "{pattern}"; sets: {known}')


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.output_dir is None and not options.list:
        parser.error("--output-dir is required unless --list is given")
    try:
        declared = manifest.load(options.source_dir)
        kernels = select(declared.kernels, options.kernels, options.archs, declared.sets)
        if options.assembles != "*":
            able = _split(options.assembles)
            kernels = [
                replace(kernel, assembled=tuple(a for a in kernel.assembled if a in able))
                for kernel in kernels
            ]
        tables = tuned.load(options.source_dir)
        figures = calibration.load(options.source_dir)
        narrowed = len(kernels) < len(declared.kernels)
        if not options.list:
            files = emit.render(
                kernels, declared.epilogues, options.output_dir, tables, figures, narrowed=narrowed
            )
    except manifest.InvalidManifestError as error:
        count = len(error.errors)
        print(
            f"kernelgen: {count} error{'s' if count > 1 else ''} in the kernel manifests;"
            f" nothing was written\n\n{error}",
            file=sys.stderr,
        )
        return 1
    except (
        SelectionError,
        manifest.ManifestError,
        tuned.TuningError,
        calibration.CalibrationError,
    ) as error:
        print(f"kernelgen: {error}", file=sys.stderr)
        return 1
    if options.list:
        print("\n".join(map(procedural_name, kernels)))
        return 0
    changed = emit.write(files, options.output_dir)
    print(f"kernelgen: {len(kernels)} kernels, {len(changed)} of {len(files)} files changed")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="generate.py", description="Generates kernel sources.")
    parser.add_argument("--source-dir", type=Path, required=True, help="root of the repository")
    parser.add_argument("--output-dir", type=Path, help="where the outputs go")
    parser.add_argument("--kernels", default="", help='globs of names or @sets, separated by ";"')
    parser.add_argument("--archs", default="", help='architectures, e.g. "80;89;90a"')
    parser.add_argument(
        "--assembles",
        default="*",
        help='architectures that the compiler makes machine code for (";"), or "*": all',
    )
    parser.add_argument("--list", action="store_true", help="print the names and write nothing")
    return parser


def _split(text: str) -> list[str]:
    return [item for item in (part.strip() for part in text.split(";")) if item]


if __name__ == "__main__":
    sys.exit(main())
