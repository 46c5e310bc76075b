"""Files that are no tables: nested too deeply, numbers too large, journals in a table's place."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from cutwheel.tuning import cli, journal, search, shapes  # noqa: E402
from cutwheel.tuning.journal import JournalError, Setup  # noqa: E402
from cutwheel.tuning.table import Gpu  # noqa: E402

NESTED = "[" * 100_000 + "]" * 100_000
HUGE = 10**400  # JSON has such integers, and no float is as large


def document(**gpu: Any) -> dict[str, Any]:
    facts = {"name": "described", "cc": [9, 0], "sm_count": 132, "memory_gb_per_s": 4917.0}
    return {"schema": 1, "gpu": facts | gpu, "kernels": [], "entries": []}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# ---- load_tuning


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text(NESTED, encoding="utf-8")
    with pytest.raises(ValueError, match=r"load_tuning: .*deep\.json is nested too deeply"):
        cutwheel.load_tuning(path)


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match=r"table is nested too deeply"):
        cutwheel.load_tuning(document(name=nested(100_000)))


@pytest.mark.parametrize("field", ["memory_gb_per_s", "sm_clock_ghz"])
def test_a_number_that_no_float_holds_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=rf"table\.gpu\.{field} is 1000.*; expected a number"):
        cutwheel.load_tuning(document(**{field: HUGE}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NESTED, "nested too deeply"),
        (json.dumps(document(memory_gb_per_s=HUGE)), "expected a number above 0"),
    ],
)
def test_whatever_the_environment_names_the_package_is_imported(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    package = str(Path(cutwheel.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", "import cutwheel; print(cutwheel.__version__)"],
        env=os.environ | {"CUTWHEEL_TUNING": str(path), "PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == cutwheel.__version__
    assert reason in done.stderr
    assert "Kernels are chosen without this table" in done.stderr


# ---- tune

SETUP = Setup(Gpu("described", (9, 0), 132, 4917.0, 1.98, 50 << 20), "0.1.0", "digest")


def tune(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return cli.run(parser.parse_args([*map(str, arguments), "--shape", "1x2x3"]))


def test_the_effort_is_that_of_the_options() -> None:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    usual = search.Effort()
    assert cli._effort(parser.parse_args([])) == usual
    effort = cli._effort(parser.parse_args(["--exhaustive", "--rounds", "60"]))
    assert effort == dataclasses.replace(usual, predicted=None, rounds=60)


@pytest.mark.parametrize("rounds", ["0", "-1", "2.5", "many"])
def test_a_number_of_rounds_that_means_nothing_is_refused(
    rounds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        tune("--rounds", rounds)
    assert f"{rounds} is no number of replays" in capsys.readouterr().err


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the first call of torch.cuda that needs one of them."""

    def set_device(device: torch.device) -> None:
        if device.index >= 2:
            raise RuntimeError("CUDA error: invalid device ordinal")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(cli, "setup_of", lambda device: SETUP)
    monkeypatch.setattr(cli, "_measurer", lambda options, gpu, device: None)
    monkeypatch.setattr(cli, "loop", lambda *arguments: 0)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("table", ["mine.json", "folder/../mine.json", "linked.json"])
@pytest.mark.parametrize("restart", [(), ("--restart",)])
def test_a_table_does_not_take_the_place_of_its_journal(
    tmp_path: Path, table: str, restart: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    journal.open_journal(path, SETUP)
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked.json").symlink_to(path)
    before = path.read_bytes()
    given = () if table == "mine.json" else ("--table", tmp_path / table)
    assert tune("--journal", path, *given, *restart) == 2
    assert path.read_bytes() == before
    text = capsys.readouterr().err
    assert "mine.json" in text
    assert "--table" in text


@pytest.mark.usefixtures("two_gpus")
def test_a_journal_that_is_not_there_yet_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    assert tune("--journal", tmp_path / "mine.json") == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("two_gpus")
def test_a_table_does_not_take_the_place_of_another_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    journal.open_journal(other, SETUP)
    before = other.read_bytes()
    assert tune("--journal", tmp_path / "j.jsonl", "--table", other) == 2
    assert other.read_bytes() == before
    assert "other.jsonl is a journal" in capsys.readouterr().err


@pytest.mark.usefixtures("two_gpus")
def test_a_table_is_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert tune("--journal", tmp_path / "j.jsonl") == 0
    assert json.loads((tmp_path / "j.json").read_text(encoding="utf-8"))["schema"] == 1
    assert journal.read(tmp_path / "j.jsonl").setup == SETUP


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("device", ["9", "2", "-1"])
def test_a_gpu_that_is_not_there_is_refused(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune("--journal", tmp_path / "j.jsonl", f"--device={device}") == 2
    assert not list(tmp_path.iterdir())
    assert f"--device {device}: expected 0 to 1" in capsys.readouterr().err


def test_a_journal_that_is_nested_too_deeply_is_none(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text(NESTED + "\n", encoding="utf-8")
    with pytest.raises(JournalError, match="line 1, is no JSON"):
        journal.read(path)


def test_a_file_of_shapes_that_is_nested_too_deeply_is_none(tmp_path: Path) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(f"shapes = {NESTED}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"deep\.toml is nested too deeply"):
        shapes.read_toml(path)
