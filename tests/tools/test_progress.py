"""The share that is done and the time left, of builds that never ran."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import progress
import pytest
from progress import OTHER, Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begun(clock: Clock, folder: Path, estimates: dict[str, float], jobs: int = 2) -> Progress:
    path = folder / "estimates.json"
    path.write_text(json.dumps(estimates))
    shown = Progress(clock)
    text = f"-- cutwheel: {jobs} jobs, estimates in {path}"
    assert shown.line(text) == text
    return shown


def left(line: str) -> float:
    found = re.search(r"about (\d+) (s|min) left", line)
    assert found, line
    return int(found[1]) * (1 if found[2] == "s" else 60)


def built(shown: Progress, number: int, total: int, source: str) -> str:
    return shown.line(f"[{number}/{total}] Building CUDA object x.dir/generated/{source}.o")


def test_sources_count_by_their_estimates(clock: Clock, tmp_path: Path) -> None:
    shown = begun(clock, tmp_path, {"small.cu": 10, "large.cu": 90})
    clock.now = 5
    line = built(shown, 1, 2, "small.cu")
    assert line.startswith("[1/2, 10 %, 5 s gone, about ")
    assert line.endswith(" left] Building CUDA object x.dir/generated/small.cu.o")
    clock.now = 50
    assert built(shown, 2, 2, "large.cu").startswith("[2/2, 100 %, 50 s gone, done] ")


@pytest.mark.parametrize("speed", [0.25, 1.0, 4.0])
def test_the_time_left_follows_the_machine(clock: Clock, tmp_path: Path, speed: float) -> None:
    """`speed`: estimated seconds of a core in a second of a job."""
    names = [f"k{index}.cu" for index in range(100)]
    shown = begun(clock, tmp_path, dict.fromkeys(names, 10.0))
    for number, name in enumerate(names[:50], 1):
        clock.now += 10 / (2 * speed)
        line = built(shown, number, 100, name)
    assert left(line) == pytest.approx(50 * 10 / (2 * speed), rel=0.2)


def test_what_a_cache_had_is_forgotten(clock: Clock, tmp_path: Path) -> None:
    names = [f"k{index}.cu" for index in range(300)]
    shown = begun(clock, tmp_path, dict.fromkeys(names, 10.0))
    for number, name in enumerate(names[:200], 1):
        clock.now += 0.01
        line = built(shown, number, 300, name)
    assert left(line) < 60
    for number, name in enumerate(names[200:290], 201):
        clock.now += 20
        line = built(shown, number, 300, name)
    assert left(line) == pytest.approx(10 * 20, rel=0.25)


def test_other_steps_and_other_lines(clock: Clock, tmp_path: Path) -> None:
    shown = begun(clock, tmp_path, {"k.cu": 10 * OTHER})
    assert shown.line("warning: [3/4] of nothing") == "warning: [3/4] of nothing"
    line = shown.line("[1/11] Building CXX object a.cpp.o")
    assert line.startswith(f"[1/11, {int(100 / 20)} %")  # 1 of 10 others and 10 for the kernel


def test_a_rebuild_of_few_expects_only_these(clock: Clock, tmp_path: Path) -> None:
    shown = begun(clock, tmp_path, {f"k{index}.cu": 10.0 for index in range(100)})
    clock.now = 5
    assert left(built(shown, 1, 3, "k7.cu")) < 20


def test_without_estimates_steps_count_alike(clock: Clock, tmp_path: Path) -> None:
    shown = Progress(clock)
    missing = f"-- cutwheel: 2 jobs, estimates in {tmp_path}/none.json"
    assert shown.line(missing) == missing
    assert built(shown, 1, 4, "k.cu").startswith("[1/4, 25 %")


def test_bytes_that_are_no_text_pass_through() -> None:
    program = Path(progress.__file__)
    data = b"gcc: \xe2\x80\x98x\xe2\x80\x99 \xff\n[1/2] Building\n"
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, program], input=data, env=environment, capture_output=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == data.splitlines()[0]
    assert second.startswith(b"[1/2, 50 %, ")
