#!/usr/bin/env python3
"""Test one built wheel with every torch that it claims to support.

    python tools/compat/torch_matrix.py WHEEL         # each minor version from 2.10 that pip offers
    python tools/compat/torch_matrix.py WHEEL 2.10.0 2.11.0 --markdown table.md
    python tools/compat/torch_matrix.py WHEEL --nightly   # last night's build besides

Each torch gets an environment of its own, with the very same wheel file in it. There, two things
run without a GPU:

- tools/compat/torch_probe.py: schemas, results of meta functions, errors, epilogues, kernels and
  the selection for GPUs that are not here, all written down as text. The text must be that of the
  newest torch;
- the tests of tests/python and tests/tuning.

pip decides which build of a torch is taken: PIP_INDEX_URL or PIP_EXTRA_INDEX_URL with an index of
CPU builds makes this much smaller. The builds of PyPI take 5 to 8 GB each, in build/torch-matrix.

Exit status: 0 every torch passes, 1 one does not, 2 nothing could be tested.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MINIMUM = (2, 10)
NIGHTLY = "nightly"
NIGHTLY_INDEX = "https://download.pytorch.org/whl/nightly/cpu"
PROBE = ROOT / "tools/compat/torch_probe.py"
TESTS = ("tests/python", "tests/tuning", "-m", "not gpu")


@dataclass
class Outcome:
    """One torch."""

    release: str
    torch: str = ""
    python: str = ""
    notes: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    seen: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def newest_of_each_minor(versions: Iterable[str]) -> list[str]:
    """The newest of each minor version from 2.10 that pip offers, in order."""
    newest: dict[tuple[int, int], tuple[int, str]] = {}
    for version in versions:
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:\+\S+)?", version.strip())
        if not found:
            continue  # a pre-release
        major, minor, patch = (int(part) for part in found.groups())
        if (major, minor) >= MINIMUM and patch >= newest.get((major, minor), (-1, ""))[0]:
            newest[major, minor] = patch, f"{major}.{minor}.{patch}"
    return [version for _, (_, version) in sorted(newest.items())]


def offered(python: str) -> list[str]:
    """Versions that pip offers for this Python."""
    done = subprocess.run(
        [python, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True
    )
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(f"pip does not say which versions of torch there are:\n{done.stderr}")
    return newest_of_each_minor(found[1].split(","))


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Nothing that leads to another package, another selection or a GPU."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith("CUTWHEEL_") and name not in ("PYTHONPATH", "PYTHONHOME")
    }
    # CI: a package that does not import fails the tests, which are skipped otherwise.
    return kept | {"CUDA_VISIBLE_DEVICES": "", "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def pin(name: str) -> str:
    """`name==version`, as requirements/test.txt has it."""
    text = (ROOT / "requirements/test.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(name)}==\S+", text, re.MULTILINE)
    if not found:
        raise SystemExit(f"requirements/test.txt does not pin {name}")
    return found[0]


def requirements(release: str) -> list[str]:
    """pip's arguments for torch and pytest."""
    if release == NIGHTLY:
        return ["--pre", "--extra-index-url", NIGHTLY_INDEX, "torch>=0.dev0", pin("pytest")]
    return [f"torch=={release}", pin("pytest")]


def order(release: str) -> list[int]:
    """Releases by their numbers. The nightly comes first: it is compared, and no reference."""
    return [int(part) for part in re.findall(r"\d+", release)]


def run(command: Sequence[str | Path], log: Path) -> int:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\n$ {' '.join(str(part) for part in command)}\n")
        file.flush()
        return subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env=clean_environment(os.environ),
            stdout=file,
            stderr=subprocess.STDOUT,
        ).returncode


def prepare(release: str, folder: Path, python: str, wheel: Path, log: Path) -> str | None:
    """An environment with this torch and the wheel; torch is kept from the last time.

    Returns: what went wrong, if anything did
    """
    wanted = "\n".join(requirements(release))
    stamp = folder / "requirements"
    install: list[str | Path] = [folder / "bin/python", "-m", "pip", "install", "-qq"]
    install.append("--disable-pip-version-check")
    if release == NIGHTLY or not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        if run([python, "-m", "venv", folder], log):
            return f"no environment: see {log}"
        if run([*install, *requirements(release)], log):
            return f"pip does not install torch {release}: see {log}"
        stamp.write_text(wanted, encoding="utf-8")
    if run([*install, "--no-deps", "--force-reinstall", wheel], log):
        return f"pip does not install the wheel: see {log}"
    return None


def read_junit(path: Path) -> tuple[int, int, int, list[str]]:
    """Passed, failed and skipped tests, and what the failed ones are."""
    passed = skipped = 0
    failures = []
    for case in ET.parse(path).getroot().iter("testcase"):
        wrong = [part for part in case if part.tag in ("failure", "error")]
        if wrong:
            message = (wrong[0].get("message") or "").splitlines() or [""]
            failures.append(f"{case.get('classname')}::{case.get('name')}: {message[0]}")
        elif any(part.tag == "skipped" for part in case):
            skipped += 1
        else:
            passed += 1
    return passed, len(failures), skipped, failures


def examine(release: str, cache: Path, python: str, wheel: Path) -> Outcome:
    folder, log = cache / release, cache / f"{release}.log"
    log.unlink(missing_ok=True)
    outcome = Outcome(release)
    problem = prepare(release, folder, python, wheel, log)
    if problem:
        outcome.problems.append(problem)
        return outcome
    start = time.monotonic()
    notes, junit = cache / f"{release}.json", cache / f"{release}.xml"
    for path in (notes, junit):
        path.unlink(missing_ok=True)
    if run([folder / "bin/python", PROBE, notes], log):
        outcome.problems.append(f"the probe fails: see {log}")
        return outcome
    found = json.loads(notes.read_text(encoding="utf-8"))
    outcome.torch, outcome.python, outcome.seen = found["torch"], found["python"], found["seen"]
    outcome.notes = len(outcome.seen)
    outcome.problems += found["problems"]
    if not Path(found["package"]).is_relative_to(folder):
        outcome.problems.append(f"another cutwheel was probed: {found['package']}")
    options = ("-q", "-p", "no:cacheprovider", f"--junitxml={junit}")
    status = run([folder / "bin/python", "-m", "pytest", *options, *TESTS], log)
    if junit.is_file():
        outcome.passed, outcome.failed, outcome.skipped, failures = read_junit(junit)
        outcome.problems += failures
    if status != (1 if outcome.failed else 0) or not outcome.passed:
        outcome.problems.append(f"pytest ends with status {status}: see {log}")
    outcome.seconds = time.monotonic() - start
    return outcome


def differences(
    seen: Mapping[str, str], reference: Mapping[str, str], where: str = "with the newest torch"
) -> list[str]:
    """Differences in what two torches make of the wheel, the newest one being the reference."""
    found = []
    for name in sorted({*seen, *reference}):
        mine, other = seen.get(name, "nothing"), reference.get(name, "nothing")
        if mine != other:
            pairs = zip(mine.splitlines(), other.splitlines(), strict=False)
            first = next(((a, b) for a, b in pairs if a != b), (mine[:200], other[:200]))
            found.append(f"{name}: {first[0]!r}, {where} {first[1]!r}")
    return found


def compare(outcomes: Sequence[Outcome]) -> None:
    """Adds to the problems of each what differs from the newest one that was probed."""
    probed = [outcome for outcome in outcomes if outcome.seen]
    probed.sort(key=lambda outcome: order(outcome.release))
    for outcome in probed[:-1]:
        outcome.problems += differences(outcome.seen, probed[-1].seen)


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| torch | Python | probe | tests passed | failed | skipped | s | result |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for o in outcomes:
        counts = f"{o.notes} | {o.passed} | {o.failed} | {o.skipped} | {o.seconds:.0f}"
        verdict = "fails" if o.problems else "passes"
        lines.append(f"| {o.torch or o.release} | {o.python} | {counts} | {verdict} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("torch", nargs="*", help="versions; default: each minor version from 2.10")
    parser.add_argument("--python", default=sys.executable, help="for the environments")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/torch-matrix", metavar="DIR")
    parser.add_argument("--nightly", action="store_true", help="the newest release and a nightly")
    parser.add_argument("--remove", action="store_true", help="each environment after its tests")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table here, too")
    arguments = parser.parse_args(argv)
    if not arguments.wheel.is_file():
        print(f"no wheel at {arguments.wheel}: make wheel builds it", file=sys.stderr)
        return 2
    wheel, cache = arguments.wheel.resolve(), arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    releases = arguments.torch or offered(arguments.python)
    if arguments.nightly:
        # The newest release is what the nightly is compared with.
        releases = [*(arguments.torch or releases[-1:]), NIGHTLY]
    print(f"{wheel.name}, sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}", flush=True)
    outcomes = []
    for release in releases:
        outcome = examine(release, cache, arguments.python, wheel)
        outcomes.append(outcome)
        print(f"torch {release}: {outcome.passed} passed, {outcome.failed} failed", flush=True)
        if arguments.remove:
            shutil.rmtree(cache / release, ignore_errors=True)
    compare(outcomes)
    print(f"\n{table(outcomes)}")
    for outcome in outcomes:
        for problem in outcome.problems:
            print(f"torch {outcome.release}: {problem}")
    if arguments.markdown:
        arguments.markdown.write_text(table(outcomes) + "\n", encoding="utf-8")
    return 1 if not outcomes or any(outcome.problems for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
