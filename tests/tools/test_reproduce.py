"""tools/wheel/reproduce.py: what it says of two wheels; `make reproduce` builds them."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("elftools")  # the environments of `make torch-matrix` have none
import reproduce

NAME = "cutwheel-1.0-py3-none-any.whl"


def wheel(folder: Path, files: dict[str, bytes], date: int = 2026) -> Path:
    folder.mkdir()
    path = folder / NAME
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (date, 1, 1, 0, 0, 0)), data)
    return path


def compared(folder: Path, one: dict[str, bytes], other: dict[str, bytes]) -> list[str]:
    return reproduce.differences(wheel(folder / "one", one), wheel(folder / "other", other))


def test_the_same_bytes(tmp_path: Path) -> None:
    assert compared(tmp_path, {"a": b"1", "b": b"2"}, {"a": b"1", "b": b"2"}) == []


def test_files_that_differ_or_are_missing_are_named(tmp_path: Path) -> None:
    found = compared(tmp_path, {"a": b"1", "b": b"2", "c": b"3"}, {"a": b"1", "b": b"x"})
    assert found == ["b", "c: in one of them only"]


def test_an_archive_differs_in_more_than_its_files(tmp_path: Path) -> None:
    one = wheel(tmp_path / "one", {"a": b"1"})
    other = wheel(tmp_path / "other", {"a": b"1"}, date=2025)
    assert reproduce.differences(one, other) == [
        "the archive itself: order, time stamps, modes or compression"
    ]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_sections_of_a_library_are_named(tmp_path: Path) -> None:
    def library(name: str, text: str) -> bytes:
        path = tmp_path / name
        source = f'char const text[] = "{text}"; int value(void) {{ return 1; }}'
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run([*command, "-Wl,--build-id=none", "-s"], input=source.encode(), check=True)
        return path.read_bytes()

    one, other = library("one.so", "one"), library("other.so", "two")
    assert compared(tmp_path, {"x/_C.so": one}, {"x/_C.so": other}) == ["x/_C.so: section .rodata"]


def test_builds_take_nothing_from_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CIBW_ENVIRONMENT", raising=False)
    settings = reproduce.settings("gemm_*")
    assert settings["CIBW_ENVIRONMENT"] == "CUTWHEEL_CUDA=pypi CCACHE_DISABLE=1"
    assert settings["CIBW_CONFIG_SETTINGS"].endswith("cmake.define.CUTWHEEL_KERNELS=gemm_*")
