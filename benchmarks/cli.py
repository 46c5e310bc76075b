"""python -m benchmarks: which sections are measured, and what becomes of their results."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import held_out, problems, shapes
from .report import performance, record, tables

COMPILE_SECONDS = 360.0
# What leaves cases out: a run with one of these is no section of the results of a GPU.
FILTERS = ("quick", "m", "nk", "square", "groups", "recipes", "accumulation", "limit", "products")
FILTERS += ("skew", "cases", "directions", "convs")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks", description="cutwheel against torch")
    commands = top.add_subparsers(dest="command", required=True)
    common, sizes = _common(), _sizes()
    dense, layers, products = _dense(), _layers(), _products()
    experts, images = _experts(), _images()

    def add(name: str, help: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, parents=[common, *parents])

    add("mm", "products over the shapes of shapes.toml", sizes, dense)
    add("addmm", "the same with a bias", sizes, dense)
    add("fused", "linear layers with activation and residual", sizes, layers)
    add("scaled", "fp8 and int8 products, and quantisation", sizes, products)
    add("grouped", "grouped products of experts", experts)
    add("conv", "convolutions in all directions, and ResNet-50", images)
    add("host", "CPU time of a call")
    everything = add("all", "every section", sizes, layers, products, experts, images)
    everything.add_argument(
        "--sections", choices=record.SECTIONS, nargs="+", help="these, in the order of the file"
    )

    again = commands.add_parser(
        "report", help="docs/performance.md and README's table; of files: their tables"
    )
    again.add_argument("files", type=Path, nargs="*")
    merge = commands.add_parser("merge", help="take the sections of files over into the results")
    merge.add_argument("files", type=Path, nargs="+")
    return top


def _parent() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(add_help=False)


def _common() -> argparse.ArgumentParser:
    common = _parent()
    common.add_argument("--quick", action="store_true", help="few shapes and rounds, about 10 s")
    common.add_argument("--out", type=Path, help="a .json file, or a folder")
    common.add_argument("--commit", help="commit to record (default: CUTWHEEL_COMMIT, then git)")
    common.add_argument(
        "--candidate",
        choices=("cutwheel", "torch"),
        default="cutwheel",
        help="torch measures torch against itself: the noise of the harness",
    )
    common.add_argument("--budget-seconds", type=float, help="skip cases once this is used up")
    common.add_argument(
        "--no-compile", action="store_true", help="no torch.compile among the baselines"
    )
    common.add_argument(
        "--held-out",
        type=int,
        nargs="?",
        const=held_out.COUNT,
        default=0,
        metavar="COUNT",
        help=f"shapes drawn at random beside the lists ({held_out.COUNT} products)",
    )
    common.add_argument("--seed", type=int, default=held_out.SEED, help="of --held-out")
    return common


def _sizes() -> argparse.ArgumentParser:
    sizes = _parent()
    sizes.add_argument("--m", type=int, nargs="+")
    sizes.add_argument("--nk", type=nk_argument, nargs="+", metavar="NxK")
    return sizes


def _dense() -> argparse.ArgumentParser:
    dense = _parent()
    dense.add_argument("--dtype", choices=problems.DTYPES, default="bf16")
    dense.add_argument("--square", type=int, nargs="+")
    return dense


def _layers() -> argparse.ArgumentParser:
    layers = _parent()
    layers.add_argument("--groups", choices=problems.LAYERS, nargs="+")
    layers.add_argument(
        "--compile",
        nargs="+",
        metavar="MxNxK",
        help="shapes with torch.compile as a baseline (seconds each), all, or none",
    )
    layers.add_argument(
        "--compile-seconds",
        type=float,
        default=COMPILE_SECONDS,
        help="time for torch.compile; what it leaves out is named (default: %(default)g)",
    )
    return layers


def _products() -> argparse.ArgumentParser:
    products = _parent()
    products.add_argument(
        "--recipes",
        type=recipes_argument,
        nargs="+",
        metavar="RECIPE",
        help=f"of {', '.join(problems.RECIPES)}; all by default",
    )
    products.add_argument(
        "--accumulation",
        choices=tuple(problems.ACCUMULATION),
        nargs="+",
        help="of fp8: with use_fast_accum, or promoted to float32 on the way",
    )
    products.add_argument(
        "--limit", type=int, help="the most shapes of each group, drawn at random"
    )
    return products


def _experts() -> argparse.ArgumentParser:
    experts = _parent()
    experts.add_argument(
        "--products", choices=problems.EXPERTS, nargs="+", help="what is computed of the groups"
    )
    experts.add_argument(
        "--skew",
        choices=problems.SKEWS,
        nargs="+",
        help="rows of the groups: all alike, or Zipf's law and some empty",
    )
    experts.add_argument(
        "--cases",
        type=int,
        nargs="+",
        metavar="NUMBER",
        help="of shapes.toml, from 0; all by default",
    )
    return experts


def _images() -> argparse.ArgumentParser:
    images = _parent()
    images.add_argument(
        "--directions",
        choices=problems.DIRECTIONS,
        nargs="+",
        help="what is computed of the convolutions; resnet50 is a whole model",
    )
    images.add_argument(
        "--convs", type=int, nargs="+", metavar="NUMBER", help="of shapes.toml, from 0"
    )
    images.add_argument(
        "--resnet-compile",
        choices=("default", "max-autotune-no-cudagraphs", "none"),
        default="default",
        help="mode of torch.compile for resnet50",
    )
    return images


def nk_argument(text: str) -> tuple[int, int]:
    try:
        n, k = shapes.extents(text, 2, "4096x14336 (N, K)")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return n, k


def recipes_argument(text: str) -> list[str]:
    """``"rowwise,int8"`` as well as one name."""
    names = text.split(",")
    for name in names:
        if name not in problems.RECIPES:
            known = ", ".join(problems.RECIPES)
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known}")
    return names


def part_of(options: argparse.Namespace) -> str:
    """What makes the run a part of its sections; empty for whole ones."""
    given = [name for name in FILTERS if getattr(options, name, None) not in (None, False)]
    given += ["candidate"] * (options.candidate != "cutwheel")
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
    rows = [
        row
        for section in sections.values()
        for row in (*section["results"], *section.get("host", ()))
    ]
    return all(row["status"] != "failed" for row in rows)


def write_documents() -> None:
    for path in performance.write_all():
        print(f"wrote {path}")


def main(arguments: list[str] | None = None) -> int:
    given = parser().parse_args(arguments)
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
    from . import run  # reports need no torch

    environment = record.environment(given.commit, given.candidate)
    path, names = output_path(given, environment["gpu"]), sections_of(given)
    left = run.TimeLeft(run.planned(names, given))
    running = run.Run(given, environment, path, part_of(given), left)
    is_good = show({name: running.section(name) for name in names})  # all of them, also wrong ones
    print(f"wrote {path}")
    if path.resolve().parent == record.FOLDER.resolve():
        write_documents()
    return 0 if is_good else 1
