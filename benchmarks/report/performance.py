"""docs/performance.md and the table in README.md, from the results files. Needs no GPU, and
matplotlib only for the plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..problems import QUANTIZE
from . import names, record, tables, through_ptx
from .chips import chip_of
from .tables import Line

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "performance.md"
PLOTS = ROOT / "docs" / "performance"
README = ROOT / "README.md"
BEGIN = "<!-- from benchmarks/results: python -m benchmarks report -->"
END = "<!-- end -->"

NO_GEMMS = tuple(f"quantize {name}" for name in QUANTIZE)

Result = Mapping[str, Any]
Section = Mapping[str, Any]


def results(folder: Path = record.FOLDER) -> list[Result]:
    return [record.read(path) for path in sorted(folder.glob("*.json"))]


def plot_name(gpu: str, section: str, kind: str) -> str:
    """kind: ratio, tflops or cpu"""
    return f"{record.device_slug(gpu)}_{section}_{kind}.png"


# ---- which parts of a section there is something to say of
def listed(section: Section) -> list[Mapping[str, Any]]:
    return [row for row in section["results"] if not tables.is_drawn(row)]


def drawn(section: Section) -> list[Mapping[str, Any]]:
    return [row for row in section["results"] if tables.is_drawn(row)]


def dtype_of(section: str, row: Mapping[str, Any]) -> str:
    """By which the limit of the chip goes."""
    if row["group"] == "int8":
        return "int8"
    if section == "scaled" or row["group"] in ("fp8", "fp8_fast"):
        return "fp8"
    return section.partition("_")[2] or "bf16"  # mm_tf32


def intense(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows for the plot of TFLOP/s: problems that have something to be compared with."""
    return [row for row in tables.measured(rows) if row["flops_per_byte"] and tables.best_of(row)]


def host_rows(result: Result) -> list[Mapping[str, Any]]:
    """CPU times per call: the section `host`, then the host rows of other sections."""
    sections = result["sections"]
    found = list(sections["host"]["results"]) if "host" in sections else []
    for section in sections.values():
        found += section.get("host", [])
    return found


# ---- the document
def document(found: Sequence[Result]) -> str:
    parts = ["# Performance", names.METHOD.rstrip()]
    for result in found:
        parts += [f"## {result['gpu']}", run_text(result)]
        for name, section in result["sections"].items():
            if name not in record.OF_CALLS:
                parts += _family(result, name, section)
        parts += _cpu(result)
        parts += _cold(result)
    parts += through_ptx.section()
    parts.append(
        "This page is written by `python -m benchmarks report` from"
        " [benchmarks/results](../benchmarks/results)."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def run_text(result: Result) -> str:
    """One run; or one commit in several; or each section says what it is of."""
    sections = result["sections"].values()
    dates = sorted({section["environment"]["date"] for section in sections})
    if not _is_of_one_commit(result):
        return "Sections are of several commits; each says which."
    text = tables.origin(next(iter(sections)), with_date=False)
    if len(dates) == 1:
        return f"One run: {text}, {dates[0]}."
    return f"One commit: {text}, in {len(dates)} runs from {dates[0]} to {dates[-1]}."


def _is_of_one_commit(result: Result) -> bool:
    sections = result["sections"].values()
    return len({tables.origin(section, with_date=False) for section in sections}) == 1


def _image(result: Result, section: str, kind: str, text: str) -> str:
    return f"![{text}](performance/{plot_name(result['gpu'], section, kind)})"


def _family(result: Result, name: str, section: Section) -> list[str]:
    op, _, dtype = name.partition("_")
    title = names.TITLES.get(op, op)
    parts = [f"### {title}" + (f", {dtype}" if dtype else "")]
    if not _is_of_one_commit(result):
        parts.append(tables.origin(section) + ".")
    rows, random = listed(section), drawn(section)
    found = tables.lines(rows)
    parts += [names.NOTES.get(op, ""), lines_table(op, found)]
    best = tables.best_lines([row for row in rows if row["group"] not in tables.OWN])
    if op not in ("conv", "volumes", "models"):  # whose M is images times pixels, or images
        gemms = [line for line in best if line["group"] not in NO_GEMMS]
        parts.append(tables.per_m_table(gemms, lambda line: names.what(op, line)))
    if best:
        parts.append(_image(result, name, "ratio", f"ratio to torch's best, {title}"))
    if intense(rows):
        parts += [_limits(result, name, rows), _image(result, name, "tflops", f"TFLOP/s, {title}")]
    if random:
        is_old = "held_out" in section
        text = names.KEPT_ASIDE if is_old else names.DRAWN
        seed = section["held_out" if is_old else "drawn"]["seed"]
        parts.append(text.format(count=len(random), seed=seed))
        parts.append(lines_table(op, tables.lines(random)))
        parts.append("" if is_old else tables.summary_table({"all groups": random}))
    notes = [tables.compile_note(section), tables.exceptions(section["results"])]
    return [*parts, *notes]


def _limits(result: Result, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    chip = chip_of(record.device_slug(result["gpu"]))
    if chip is None:
        return names.NO_LIMITS
    dtypes = dict.fromkeys(dtype_of(name, row) for row in intense(rows))
    peaks = ", ".join(f"{dtype} {chip.tflops[dtype]:g}" for dtype in dtypes if dtype in chip.tflops)
    return names.LIMITS.format(name=chip.name, peaks=peaks, gbs=chip.gbs)


def lines_table(section: str, found: Sequence[Line]) -> str:
    body = []
    last = ""
    for line in found:
        title = names.what(section, line)
        body.append(
            [
                title if title != last else "",
                names.against(section, line),
                str(line["shapes"]),
                f"**{line['geomean']:.3f}**",
                f"{line['worst']:.2f}, {line['worst_shape']}",
                str(line["ahead"]),
            ]
        )
        last = title
    head = ["", "against", "shapes", "geometric mean", "worst", "ahead"]
    return tables.table(head, body, left=2) if body else ""


def _cpu(result: Result) -> list[str]:
    rows = host_rows(result)
    if not rows:
        return []
    parts = [f"### {names.TITLES['host']}", names.NOTES["host"]]
    core = result["sections"].get("host")
    if core and not _is_of_one_commit(result):
        parts.append(
            tables.origin(core) + "; those of grouped products and convolutions in their own runs."
        )
    body = [
        [row["case"], f"{torch_us:.1f}", f"{ours:.1f}", f"{row['ratio']:.2f}"]
        for row in tables.measured(rows)
        for torch_us, ours in [[us["median"] for us in row["us"].values()]]
    ]
    parts.append(tables.table(["call", "torch", "cutwheel", "ratio"], body) if body else "")
    if body:
        parts.append(_image(result, "host", "cpu", "CPU time of a call"))
    failed = [row for row in rows if row["status"] != "ok"]
    return [*parts, tables.exceptions(failed, lambda row: row["case"])]


def _cold(result: Result) -> list[str]:
    section = result["sections"].get("cold")
    if section is None:
        return []
    parts = [f"### {names.TITLES['cold']}", names.NOTES["cold"]]
    if not _is_of_one_commit(result):
        parts.append(tables.origin(section) + ".")
    return [*parts, tables.cold_table(section["results"])]


# ---- README
def readme_table(found: Sequence[Result]) -> str:
    """One line for each of our providers, against torch's best."""
    parts = []
    for result in found:
        body = []
        for name, section in result["sections"].items():
            if name in record.OF_CALLS:
                continue
            op = name.partition("_")[0]
            for line in tables.best_lines(listed(section)):
                if line["group"] in (*tables.OWN, *NO_GEMMS):
                    continue
                numbers = [
                    str(line["shapes"]),
                    f"**{line['geomean']:.2f}**",
                    f"{line['worst']:.2f}",
                ]
                body.append(
                    [names.what(op, line), names.against(op, line), *numbers, str(line["ahead"])]
                )
        head = ["", "against", "shapes", "geometric mean", "worst", "ahead"]
        commits = dict.fromkeys(
            (section["environment"].get("commit") or "-")[:12]
            for section in result["sections"].values()
        )
        torch = " and ".join(
            dict.fromkeys(
                section["environment"]["torch"] for section in result["sections"].values()
            )
        )
        named = "commits" if len(commits) > 1 else "commit"
        parts.append(f"{result['gpu']}, torch {torch}, {named} {', '.join(commits)}:")
        parts.append(tables.table(head, body, left=2))
    return "\n\n".join(parts)


def with_table(text: str, found: Sequence[Result]) -> str:
    """README.md with its table written anew."""
    return between_marks(text, readme_table(found), README.name)


def between_marks(text: str, content: str, name: str) -> str:
    """The text of a document, with other content between BEGIN and END."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{name} lacks {BEGIN} or {END}")
    return f"{before}{BEGIN}\n\n{content}\n\n{END}{after}"


# ---- writing
def write_all(folder: Path = record.FOLDER) -> list[Path]:
    """The document, its plots and README's table; returns what was written."""
    found = results(folder)
    DOCUMENT.write_text(document(found))
    README.write_text(with_table(README.read_text(), found))
    written = [DOCUMENT, README]
    try:
        from . import plots
    except ImportError as error:
        print(f"no plots ({error}); where matplotlib is: python -m benchmarks report")
        return written
    PLOTS.mkdir(parents=True, exist_ok=True)
    new = [path for result in found for path in plots.draw(result, PLOTS)]
    for path in PLOTS.glob("*.png"):
        if path not in new:
            path.unlink()
    return [*written, *new]
