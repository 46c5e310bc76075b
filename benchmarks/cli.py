"""python -m benchmarks: which sections are measured, and what becomes of their results."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import problems
from .report import performance, record, several_gpus, tables
from .several import SECTIONS, STALL_SECONDS

# Options that leave cases out: a run with one of these is no section of the results of a GPU.
FILTERS = ("quick", "shape", "only")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks", description="cutwheel against torch")
    commands = top.add_subparsers(dest="command", required=True)
    common = _common()

    def add(name: str, help: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, parents=[common])

    for name, help in (
        ("mm", "GEMMs of the shapes of shapes.toml"),
        ("addmm", "the same with a bias"),
    ):
        add(name, help).add_argument("--dtype", choices=problems.DTYPES, default="bf16")
    add("bmm", "the two products of attention, by head")
    add("fused", "linear layers with activation and residual")
    add("scaled", "fp8 and int8 GEMMs, and quantisation")
    add("grouped", "grouped GEMMs of experts")
    add("conv", "convolutions in all directions")
    add("volumes", "convolutions of volumes, and transposed ones")
    add("models", "whole models, and training steps")
    add("host", "CPU time of a call")
    add("cold", "import and the first call, in fresh processes")
    everything = add("all", "every section")
    everything.add_argument(
        "--sections", choices=record.SECTIONS, nargs="+", help="these, in the order of the file"
    )

    _several(
        commands.add_parser("several", help="several GPUs of this machine: a process for each")
    )
    again = commands.add_parser(
        "report", help="docs/performance.md and README's table; of files: their tables"
    )
    again.add_argument("files", type=Path, nargs="*")
    merge = commands.add_parser("merge", help="take the sections of files over into the results")
    merge.add_argument("files", type=Path, nargs="+")
    return top


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--quick", action="store_true", help="few shapes and rounds, about 10 s")
    common.add_argument(
        "--shape",
        nargs="+",
        default=[],
        help="in place of the listed ones: MxNxK, batch or groups x rows x N x K, or"
        " N,C,H,W,K,R,S,stride,padding,dilation with x",
    )
    common.add_argument(
        "--only",
        type=regex_argument,
        default="",
        metavar="REGEX",
        help="problems whose name, as it is printed, has it",
    )
    common.add_argument(
        "--drawn",
        type=int,
        nargs="?",
        const=problems.DRAWN,
        default=0,
        metavar="COUNT",
        help=f"beside the listed shapes, so many drawn at random ({problems.DRAWN}) in each family",
    )
    common.add_argument("--seed", type=int, default=problems.SEED, help="of --drawn")
    common.add_argument("--out", type=Path, help="a .json file, or a folder")
    common.add_argument("--commit", help="commit to record (default: CUTWHEEL_COMMIT, then git)")
    common.add_argument(
        "--candidate",
        choices=("cutwheel", "torch"),
        default="cutwheel",
        help="torch measures torch against itself: the noise of the harness",
    )
    common.add_argument(
        "--batch-invariant",
        action="store_true",
        help="cutwheel in batch_invariant(); the same seed without it gives the normal mode",
    )
    common.add_argument("--budget-seconds", type=float, help="skip cases once this is used up")
    common.add_argument(
        "--case-seconds",
        type=float,
        metavar="S",
        help="a case that takes longer, compilations included, is a failure",
    )
    common.add_argument(
        "--no-compile", action="store_true", help="no torch.compile among the baselines"
    )
    common.add_argument(
        "--compile-seconds",
        type=float,
        default=240.0,
        metavar="S",
        help="leave out what torch.compile takes longer for (240)",
    )
    return common


def _several(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--sections", choices=SECTIONS, nargs="+", help="some of all")
    add("--only", default="", metavar="TEXT", help="problems whose name has it")
    add("--gpus", type=int, default=0, help="so many (default: all)")
    add("--budget-seconds", type=float, default=150.0, help="for all of it (150)")
    add("--stall-seconds", type=float, default=STALL_SECONDS, help="for one problem")
    add("--commit", help="commit to record (default: CUTWHEEL_COMMIT, then git)")
    add("--out", type=Path, help="a .json file, or a folder")


def regex_argument(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is no regular expression: {error}") from None
    return text


def part_of(options: argparse.Namespace) -> str:
    """Options that make the run a part of its sections; empty for whole ones."""
    given = [name for name in FILTERS if getattr(options, name)]
    given += ["candidate"] * (options.candidate != "cutwheel")
    given += ["batch_invariant"] * options.batch_invariant
    given += ["budget_seconds"] * (options.budget_seconds is not None)
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def sections_of(options: argparse.Namespace) -> list[str]:
    """Sections of the results file, in its order; another dtype has one of its own."""
    if options.command == "all":
        return [name for name in record.SECTIONS if name in (options.sections or record.SECTIONS)]
    name: str = options.command
    dtype = getattr(options, "dtype", "bf16")
    return [name if dtype == "bf16" else f"{name}_{dtype}"]


def output_path(options: argparse.Namespace, gpu: str) -> Path:
    """Path of the results file; parts of a run go to build/, unless --out says where."""
    if options.out is not None and options.out.suffix == ".json":
        found: Path = options.out
        return found
    default = record.FOLDER
    if part_of(options):
        default = Path(__file__).parents[1] / "build" / "benchmarks"
    return record.path_of(gpu, options.out or default)


# ---- commands
def show(sections: Mapping[str, Mapping[str, Any]]) -> bool:
    """The tables; false if a result was wrong or could not be had."""
    for name, section in sections.items():
        print(f"\n{tables.markdown(name, section)}")
    drawn = {name: performance.drawn(section) for name, section in sections.items()}
    if summary := tables.summary_table(drawn):
        print(f"\nDrawn at random, by family:\n\n{summary}")
    rows = [
        row
        for section in sections.values()
        for row in (*section["results"], *section.get("host", ()))
    ]
    return all(row["status"] != "failed" for row in rows)


def write_documents() -> None:
    for path in (*performance.write_all(), several_gpus.write()):
        print(f"wrote {path}")


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    if given.command == "several":
        from .several import launch

        return launch.main(given)
    if given.command == "report" and given.files:
        good = [show(record.read(path)["sections"]) for path in given.files]  # all of them
        return 0 if all(good) else 1
    if given.command in ("report", "merge"):
        for path in given.files:
            print(f"{path} -> {record.merge(path)}")
        write_documents()
        return 0
    return measure(given)


def measure(given: argparse.Namespace) -> int:
    import cutwheel

    from . import run

    cutwheel.set_batch_invariant(given.batch_invariant)
    environment = record.environment(given.commit, given.candidate)
    path, names = output_path(given, environment["gpu"]), sections_of(given)
    try:
        left = run.TimeLeft(run.planned(names, given))
    except ValueError as error:
        parser().error(str(error))
    running = run.Run(given, environment, path, part_of(given), left)
    is_good = show({name: running.section(name) for name in names})  # all of them, also wrong ones
    print(f"wrote {path}")
    if path.resolve().parent == record.FOLDER.resolve():
        write_documents()
    return 0 if is_good else 1
