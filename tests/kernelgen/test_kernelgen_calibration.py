"""The figures of the cost model: what they become in C++, and which files are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelgen import emit
from kernelgen.tuning import calibration

# The first tile of the file, whose times change with every fit.
FIGURES = (Path(__file__).parents[2] / calibration.FILE).read_text(encoding="utf-8")
(TILE,) = re.findall(r"\n  (\{ tile = \[128, 256, 128\].*\}),\n", FIGURES)[:1]
(TIMES,) = re.findall(r"us = \[.*?\]", TILE)

MMA_TILES = re.findall(r"\{ tile = .*reached = .*\}", FIGURES)


def changed(repository: Path, folder: Path, old: str, new: str) -> Path:
    text = (repository / calibration.FILE).read_text(encoding="utf-8")
    assert old in text
    path = folder / calibration.FILE
    path.parent.mkdir(parents=True)
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return folder


def test_figures_become_tables(repository: Path) -> None:
    text = emit.render([], [], repository, (), calibration.load(repository))["calibration_data.cpp"]
    assert "CalibratedGpu const kCalibratedGpu = {9, 132, 3300.0};" in text
    assert 'tile = [128, 256, 128], schedule = "persistent", us' in TILE
    first = re.findall(r"[\d.]+", TIMES)[0]
    row = "{FigureKind::wide, 128, 256, 128, true, Schedule::persistent, false, 1, 1, 1,"
    assert f"{row} {{{float(first)!r}," in text
    # Of two kernels with the same tile and schedule, ours and CUTLASS's.
    for native in ("true", "false"):
        assert f"{{FigureKind::tf32, 128, 128, 128, {native}, Schedule::pingpong, false, 1," in text
    assert f"int const kTileFigureCount = {text.count('{FigureKind::')};" in text
    # By kind, in the order of the enumerators; there are none for some.
    areas = (
        "{{0.3712, 1.6, 3.0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {0.35, 2.0, 2.2}, {0.32,"
    )
    assert f"kFiguresByArea[] = {areas}" in text
    assert ", {0, 0, 0}};" in text
    assert "{FigureKind::gather_wgrad, 128, 192, 128, true, Schedule::persistent, false, 1," in text
    assert "    {64, 128, 0.698, 19.0},\n" in text
    assert f"int const kMmaFigureCount = {len(MMA_TILES)};" in text


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('kind = "int8"', 'kind = "int4"', "unknown kind 'int4'; allowed: wide, wide_ttt"),
        (TIMES, "us = [0.6, 1.5]", "expected three times"),
        (TIMES, "us = [-1, 1.5, 4.3]", "expected three times"),
        (TIMES, "us = [1, 2, 3], swap = true", "unknown key 'swap'"),
        ("tile = [128, 256, 128]", "tile = [128, 256]", "has 2 extents; expected 3"),
        (TILE, f"{TILE}, {TILE}", "is there twice"),
        ("reached = 0.698", "reached = 1.2", "reached = 1.2; expected a share of the peak"),
        (MMA_TILES[0], f"{MMA_TILES[0]}, {MMA_TILES[0]}", "mma_sync: a tile is there twice"),
        ("sharpness = ", "sharp = ", "limits: 'sharp' is missing or unknown"),
        ("store_us = ", "again = ", "thin: 'again' is missing or unknown"),
        ("sm_count = 132", "", "KeyError('sm_count')"),
        ("[gpu]", "[gpu", "toml: "),
    ],
)
def test_a_wrong_file_is_named(
    repository: Path, tmp_path: Path, old: str, new: str, text: str
) -> None:
    with pytest.raises(calibration.CalibrationError) as caught:
        calibration.load(changed(repository, tmp_path, old, new))
    assert str(caught.value).startswith("cuda/dispatch/tuning/calibration.toml: ")
    assert text in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(calibration.CalibrationError, match=r"calibration\.toml: .*No such file"):
        calibration.load(tmp_path)
