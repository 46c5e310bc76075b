"""What tools/tuning/gains.py writes for torch.compile, and the page that shows it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from pathlib import Path

import fused_gains
import gains
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tasks" / "compile.md"


def test_written_files_are_what_results_say() -> None:
    assert gains.main(["--check"]) == 0


def test_a_changed_file_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = tmp_path / "measured.py"
    stale.write_text(fused_gains.MODULE.read_text().replace("True", "False", 1))
    monkeypatch.setattr(fused_gains, "MODULE", stale)
    monkeypatch.setattr(gains, "ROOT", tmp_path)
    assert gains.main(["--check"]) == 1
    assert gains.main([]) == 0
    assert stale.read_text() == (ROOT / "python/cutwheel/inductor/measured.py").read_text()


def table(first: str) -> dict[str, list[str]]:
    """A table of the page, whose first row begins so: cells by the row's name."""
    rows: dict[str, list[str]] = {}
    lines = iter(PAGE.read_text().splitlines())
    for line in lines:
        if line.startswith(f"| {first}"):
            next(lines)
            for row in lines:
                if not row.startswith("|"):
                    return rows
                name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
                rows[re.sub(r" \(.*", "", name)] = cells
    raise AssertionError(f"no table begins with {first}")


def cell(ratios: list[float]) -> str:
    if len(ratios) < fused_gains.LEAST:
        return ""
    mean = f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}"
    return f"**{mean}**" if gains.is_faster(ratios) else mean


def test_the_page_has_the_figures() -> None:
    figures = fused_gains.figures()
    ends = ("", ", shared", ", goes on")
    fused = {f"{kind}{end}" for kind in ("activation", "residual", "gated") for end in ends}
    names = {
        "bias": "bias",
        **{name: name for name in fused},
        "fp8, rowwise": "rowwise",
        "fp8, rowwise, fast accumulation": "rowwise, fast",
        "fp8, tensorwise": "tensorwise",
        "fp8, tensorwise, fast accumulation": "tensorwise, fast",
    }
    shown = table("bfloat16, H100 and H200")
    assert set(shown) == set(names)
    for name, kind in names.items():
        expected = [cell(figures.get((kind, rows), [])) for rows in (*fused_gains.ROWS, 0)]
        assert shown[name] == expected, name
    names = {
        **{f"with what follows{end}": f"convolution{end}" for end in ends},
        "alone": "fprop",
        "gradient of the input": "dgrad",
        "gradient of the weight": "wgrad",
    }
    taps = ("1x1", "3x3", "other")
    filters = (*((name, strided) for name in taps for strided in (False, True)), ("3x3x3", False))
    shown = table("convolutions")
    assert set(shown) == set(names)
    for name, kind in names.items():
        expected = [cell(figures.get((kind, where), [])) for where in filters]
        assert shown[name] == expected, name


def test_the_time_of_eager_torch_is_the_most_that_inductor_is_taken_to_need() -> None:
    def case(group: str, **us: float) -> dict[str, object]:
        sides = {name.replace("_", " "): {"us": {"median": time}} for name, time in us.items()}
        return {"group": group, "status": "ok", "m": 512, "n": 1024, "k": 64, "sides": sides}

    def ratios(eager: float) -> list[float]:
        sections = {
            "mm": {"results": [case("mm", torch=10.0)]},
            "fused": {"results": [case("bias_residual", cutwheel=10.0, eager=eager)]},
        }
        found: fused_gains.Figures = defaultdict(list)
        fused_gains._of_gemms(sections, 1000.0, found)
        return [found[f"residual{end}", 512][0] for end in fused_gains.ENDS]

    once = 512 * 1024 * 2 / 1e6  # us at 1000 GB/s
    # Of three passes of Inductor's kernel one less, and another, as the result goes on.
    assert ratios(100.0) == pytest.approx([(10 + passes * once) / 10 for passes in (3, 2, 1)])
    assert ratios(11.0) == pytest.approx([(11 - passes * once) / 10 for passes in (0, 1, 2)])
