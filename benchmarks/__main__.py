"""python -m benchmarks gemm | fused | scaled | grouped | conv | host | all | report"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import (
    conv_jobs,
    conv_report,
    fused_report,
    grouped_jobs,
    grouped_report,
    plan,
    record,
    report,
    scaled_jobs,
    scaled_report,
    shapes,
)

RESULTS = Path(__file__).with_name("results")
DTYPES = ("bf16", "f16", "tf32")
GROUPS = ("bias_gelu", "bias_residual", "gated_silu", "training_gelu", "overhead")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks", description="cutwheel against torch")
    commands = top.add_subparsers(dest="command", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--quick", action="store_true", help="few shapes and rounds, about 10 s")
    common.add_argument("--out", type=Path, help="a .json file, or a folder (default: results)")
    common.add_argument("--commit", help="commit to record (default: CUTWHEEL_COMMIT, then git)")
    common.add_argument(
        "--candidate",
        choices=("cutwheel", "torch"),
        default="cutwheel",
        help="torch measures torch against itself: the noise of the harness",
    )
    sizes = argparse.ArgumentParser(add_help=False)
    sizes.add_argument("--m", type=int, nargs="+")
    sizes.add_argument("--nk", type=nk_argument, nargs="+", metavar="NxK")
    sizes.add_argument("--budget-seconds", type=float, help="skip shapes once this is used up")
    dense = argparse.ArgumentParser(add_help=False)
    dense.add_argument("--dtype", choices=DTYPES, default="bf16")
    dense.add_argument("--bias", action="store_true", help="addmm with a row instead of mm")
    dense.add_argument("--square", type=int, nargs="+")
    layers = argparse.ArgumentParser(add_help=False)
    layers.add_argument("--groups", choices=GROUPS, nargs="+", default=GROUPS)
    layers.add_argument(
        "--compile",
        nargs="+",
        metavar="MxNxK",
        help="shapes with torch.compile as a baseline (seconds each), all, or none",
    )
    products = argparse.ArgumentParser(add_help=False)
    products.add_argument(
        "--recipes",
        type=recipes_argument,
        nargs="+",
        default=[list(scaled_jobs.RECIPES)],
        metavar="RECIPE",
        help=f"of {', '.join(scaled_jobs.RECIPES)}; all by default",
    )
    products.add_argument(
        "--accumulation",
        choices=tuple(scaled_jobs.ACCUMULATION),
        nargs="+",
        default=tuple(scaled_jobs.ACCUMULATION),
        help="of fp8: with use_fast_accum, or promoted to float32 on the way",
    )
    products.add_argument(
        "--limit", type=int, help="the most shapes of each group, drawn at random"
    )
    products.add_argument(
        "--no-compile", action="store_true", help="no torch.compile among the baselines"
    )

    experts = argparse.ArgumentParser(add_help=False)
    experts.add_argument(
        "--products",
        choices=grouped_jobs.GROUPS,
        nargs="+",
        default=grouped_jobs.GROUPS,
        help="what is computed of the groups",
    )
    experts.add_argument(
        "--skew",
        choices=grouped_jobs.SKEWS,
        nargs="+",
        default=grouped_jobs.SKEWS,
        help="rows of the groups: all alike, or Zipf's law and some empty",
    )
    experts.add_argument(
        "--cases",
        type=int,
        nargs="+",
        metavar="NUMBER",
        help="of shapes.toml, from 0; all by default",
    )

    images = argparse.ArgumentParser(add_help=False)
    images.add_argument(
        "--directions",
        choices=conv_jobs.GROUPS,
        nargs="+",
        default=conv_jobs.GROUPS,
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

    commands.add_parser(
        "gemm", parents=[common, sizes, dense], help="mm over the shapes of shapes.toml"
    )
    commands.add_parser(
        "fused", parents=[common, sizes, layers], help="linear layers with activation and residual"
    )
    commands.add_parser(
        "scaled", parents=[common, sizes, products], help="fp8 and int8 products, and quantisation"
    )
    grouped = commands.add_parser(
        "grouped", parents=[common, experts], help="grouped products of experts"
    )
    grouped.add_argument("--budget-seconds", type=float, help="skip cases once this is used up")
    conv = commands.add_parser(
        "conv", parents=[common, images], help="convolutions in all directions, and ResNet-50"
    )
    conv.add_argument("--budget-seconds", type=float, help="skip cases once this is used up")
    commands.add_parser("host", parents=[common], help="CPU time of a call")
    commands.add_parser(
        "all",
        parents=[common, sizes, dense, layers, products, experts, images],
        help="gemm, fused, scaled, grouped, conv and host, in this order",
    )
    again = commands.add_parser("report", help="tables and plots of result files")
    again.add_argument("files", type=Path, nargs="+")
    return top


def nk_argument(text: str) -> tuple[int, int]:
    try:
        return shapes.parse_nk(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def recipes_argument(text: str) -> list[str]:
    """``"rowwise,int8"`` as well as one name."""
    names = text.split(",")
    for name in names:
        if name not in scaled_jobs.RECIPES:
            known = ", ".join(scaled_jobs.RECIPES)
            raise argparse.ArgumentTypeError(f"{name!r} is none of {known}")
    return names


def output_path(out: Path | None, stem: str, gpu: str) -> Path:
    if out is not None and out.suffix == ".json":
        return out
    return (out or RESULTS) / f"{stem}_{record.device_slug(gpu)}.json"


def header(options: argparse.Namespace, benchmark: str) -> dict[str, Any]:
    again = options.candidate == "torch"
    return {
        "schema": record.SCHEMA,
        "benchmark": benchmark,
        "candidate": "torch (again)" if again else "cutwheel",
        "environment": record.environment(options.commit, options.candidate),
    }


def stem(options: argparse.Namespace, name: str) -> str:
    return f"noise_{name}" if options.candidate == "torch" else name


Rows = list[dict[str, Any]]


def progress_of(
    jobs: Sequence[Any],
    result: dict[str, Any],
    path: Path,
    summarize: Callable[[Rows], dict[str, Any]],
    each: int = 1,
) -> Callable[[Rows], None]:
    """Prints a line for each job, and writes the file after as many of them as `each` says."""
    started = time.monotonic()

    def progress(rows: Rows) -> None:
        last, job = rows[-1], jobs[len(rows) - 1]
        seconds = time.monotonic() - started
        found = [f"{entry['baseline']} {entry['median']:.3f}" for entry in last["ratios"]]
        state = ", ".join(found) or f"{last['status']}, {last['reason']}"
        print(f"[{len(rows)}/{len(jobs)} {seconds:.0f} s] {job}: {state}", file=sys.stderr)
        result["seconds"] = seconds
        result["results"] = rows
        if len(rows) % each == 0 or len(rows) == len(jobs):
            result["summary"] = summarize(rows)
            record.write(path, record.finite(result))

    return progress


def run_gemm(options: argparse.Namespace) -> Path:
    from . import gemm  # reports need no torch

    started = time.monotonic()
    table = shapes.load()
    wanted = shapes.gemm_shapes(
        table, quick=options.quick, m=options.m, nk=options.nk, square=options.square
    )
    limits = plan.QUICK if options.quick else plan.Limits()
    result = header(options, "gemm") | {"dtype": options.dtype, "bias": options.bias}
    gpu = result["environment"]["gpu"]
    path = output_path(
        options.out, stem(options, f"gemm_{options.dtype}" + "_bias" * options.bias), gpu
    )

    def progress(rows: list[dict[str, Any]]) -> None:
        seconds = time.monotonic() - started
        last = rows[-1]
        state = f"{last['ratio']['median']:.3f}" if last["ratio"] else last["status"]
        shape = f"{last['m']} x {last['n']} x {last['k']}"
        print(f"[{len(rows)}/{len(wanted)} {seconds:.0f} s] {shape}: {state}", file=sys.stderr)
        result["seconds"] = seconds
        result["results"] = rows
        result["summary"] = report.summarize(rows)
        record.write(path, record.finite(result))

    with gemm.precision(options.dtype):
        result["ceilings"] = gemm.ceilings(options.dtype)
        gemm.measure(
            wanted,
            options.dtype,
            limits,
            budget_seconds=options.budget_seconds,
            side=options.candidate,
            with_bias=options.bias,
            progress=progress,
        )
    return path


def run_fused(options: argparse.Namespace) -> Path:
    from . import fused, gemm, sides  # reports need no torch

    table = shapes.load()
    wanted = shapes.fused_shapes(table, quick=options.quick, m=options.m, nk=options.nk)
    compile_at = shapes.compiled_shapes(table, ["none"] if options.quick else options.compile)
    jobs = [fused.Job(group, shape) for group in options.groups for shape in wanted]
    result = header(options, "fused") | {"dtype": fused.DTYPE}
    name = stem(options, f"fused_{fused.DTYPE}")
    path = output_path(options.out, name, result["environment"]["gpu"])
    result["addmm_activation"] = sides.form_of_addmm_activation()
    result["ceilings"] = gemm.ceilings(fused.DTYPE)

    fused.measure(
        jobs,
        plan.QUICK if options.quick else fused.LIMITS,
        side=options.candidate,
        compile_at=compile_at,
        budget_seconds=options.budget_seconds,
        progress=progress_of(jobs, result, path, fused_report.summarize),
    )
    return path


def run_scaled(options: argparse.Namespace) -> Path:
    from . import scaled  # reports need no torch

    table = shapes.load()
    products = shapes.gemm_shapes(table, quick=options.quick, m=options.m, nk=options.nk)
    recipes = [name for names in options.recipes for name in names]
    jobs = scaled_jobs.jobs(table, products, recipes, options.accumulation, options.limit)
    result = header(options, "scaled") | {"dtype": scaled_jobs.DTYPE}
    name = stem(options, scaled_jobs.name_of(recipes, options.accumulation))
    path = output_path(options.out, name, result["environment"]["gpu"])

    scaled.measure(
        jobs,
        plan.QUICK if options.quick else scaled.LIMITS,
        side=options.candidate,
        compile=not (options.no_compile or options.quick),
        budget_seconds=options.budget_seconds,
        progress=progress_of(jobs, result, path, scaled_report.summarize, each=20),
    )
    return path


def run_grouped(options: argparse.Namespace) -> Path:
    from . import grouped, grouped_host, host  # reports need no torch

    wanted = grouped_jobs.shapes(shapes.load(), quick=options.quick)
    if options.cases is not None:
        wanted = [wanted[number] for number in options.cases]
    jobs = grouped_jobs.jobs(wanted, options.products, options.skew)
    result = header(options, "grouped") | {"dtype": grouped_jobs.DTYPE}
    name = stem(options, grouped_jobs.name_of(options.products, options.skew))
    path = output_path(options.out, name, result["environment"]["gpu"])
    repeats = 15 if options.quick else 60
    result["host"] = host.measure(repeats, options.candidate, grouped_host.make_cases)

    grouped.measure(
        jobs,
        plan.QUICK if options.quick else grouped.LIMITS,
        side=options.candidate,
        budget_seconds=options.budget_seconds,
        progress=progress_of(jobs, result, path, grouped_report.summarize),
    )
    return path


def run_conv(options: argparse.Namespace) -> Path:
    from . import conv, conv_host, conv_sides, host  # reports need no torch

    wanted = conv_jobs.shapes(shapes.load(), quick=options.quick)
    if options.convs is not None:
        wanted = [wanted[number] for number in options.convs]
    jobs = conv_jobs.jobs(wanted, options.directions)
    result = header(options, "conv") | {"dtype": conv_jobs.DTYPE}
    name = stem(options, conv_jobs.name_of(options.directions))
    path = output_path(options.out, name, result["environment"]["gpu"])
    repeats = 15 if options.quick else 60
    with conv_sides.tuned_cudnn():
        result["host"] = host.measure(repeats, options.candidate, conv_host.make_cases)
    conv.measure(
        jobs,
        plan.QUICK if options.quick else conv.LIMITS,
        side=options.candidate,
        compile_mode=None if options.resnet_compile == "none" else options.resnet_compile,
        budget_seconds=options.budget_seconds,
        progress=progress_of(jobs, result, path, conv_report.summarize),
    )
    return path


def run_host(options: argparse.Namespace) -> Path:
    from . import host  # reports need no torch

    result = header(options, "host")
    result["results"] = host.measure(15 if options.quick else 60, options.candidate)
    path = output_path(options.out, stem(options, "host"), result["environment"]["gpu"])
    record.write(path, record.finite(result))
    return path


def show(path: Path) -> bool:
    """Plots first, the tables last; false if a result was wrong or could not be had."""
    result = record.read(path)
    try:
        from . import plot  # a GPU machine may lack matplotlib
    except ImportError as error:
        print(f"no plots ({error}); where matplotlib is: python -m benchmarks report {path}")
    else:
        for written in plot.draw(result, path):
            print(f"wrote {written}")
    print(f"wrote {path}\n\n{report.markdown(result)}\n")
    rows = (*result["results"], *result.get("host", ()))
    return all(row["status"] != "failed" for row in rows)


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.command == "all" and options.out is not None and options.out.suffix == ".json":
        parser().error("all writes several files: --out must be a folder")
    paths: list[Path] = []
    if options.command == "report":
        paths = options.files
    if options.command in ("gemm", "all"):
        paths.append(run_gemm(options))
    if options.command in ("fused", "all"):
        paths.append(run_fused(options))
    if options.command in ("scaled", "all"):
        paths.append(run_scaled(options))
    if options.command in ("grouped", "all"):
        paths.append(run_grouped(options))
    if options.command in ("conv", "all"):
        paths.append(run_conv(options))
    if options.command in ("host", "all"):
        paths.append(run_host(options))
    good = [show(path) for path in paths]  # all of them, also after a failure
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
