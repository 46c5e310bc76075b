"""python -m benchmarks all | report | merge | mm | addmm | fused | scaled | grouped | conv | ..."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from . import options, performance, record, report, runs


def show(sections: Mapping[str, Mapping[str, Any]]) -> bool:
    """The tables; false if a result was wrong or could not be had."""
    for name, section in sections.items():
        print(f"\n{report.markdown(name, section)}")
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
    given = options.parser().parse_args(arguments)
    if given.command == "report" and given.files:
        good = [show(record.read(path)["sections"]) for path in given.files]  # all of them
        return 0 if all(good) else 1
    if given.command in ("report", "merge"):
        for path in given.files:
            print(f"{path} -> {record.merge(path)}")
        write_documents()
        return 0
    run = runs.Run.of(given)
    measured = {name: run.section(name) for name in options.sections_of(given)}
    is_good = show(measured)  # all of them, also after a failure
    print(f"wrote {run.path}")
    if run.path.resolve().parent == record.FOLDER.resolve():
        write_documents()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
