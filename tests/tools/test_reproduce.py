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
    cached = reproduce.settings("gemm_*", cached=True)
    environment = "CUTWHEEL_CUDA=pypi CCACHE_COMPILERCHECK=content"
    assert cached == settings | {"CIBW_ENVIRONMENT": environment}


def test_published_files_are_told_by_their_platform(tmp_path: Path) -> None:
    for name in ("x-1.tar.gz", "x-1-py3-none-a_x86_64.whl", "x-1-py3-none-a_aarch64.whl"):
        (tmp_path / name).write_bytes(b"")
    sdist, found = reproduce.published(tmp_path, "aarch64")
    assert (sdist.name, found.name) == ("x-1.tar.gz", "x-1-py3-none-a_aarch64.whl")
    with pytest.raises(SystemExit, match="1 sdists and 0 wheels for riscv64"):
        reproduce.published(tmp_path, "riscv64")


@pytest.mark.parametrize("swapped", [None, "wheel", "sdist"])
def test_a_release_is_compared_with_one_build(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    swapped: str | None,
) -> None:
    """The build itself is made up here; `make reproduce` has a real one."""
    builds = []

    def build(
        folder: Path, command: str, kernels: str, shards: int, *, cached: bool
    ) -> tuple[Path, Path]:
        assert not cached
        builds.append((folder.name, shards))
        folder.mkdir(parents=True)
        sdist = folder / "x-1.tar.gz"
        sdist.write_bytes(b"sdist")
        return sdist, wheel(folder / "wheel", {"a": b"1"})

    published = tmp_path / "published"
    made = wheel(published, {"a": b"2" if swapped == "wheel" else b"1"})
    named = made.rename(published / "cutwheel-1.0-py3-none-manylinux_2_28_x86_64.whl")
    (published / "x-1.tar.gz").write_bytes(b"other" if swapped == "sdist" else b"sdist")
    monkeypatch.setattr(reproduce, "build", build)
    monkeypatch.setitem(globals(), "NAME", named.name)
    status = reproduce.main(["--against", str(published), "--platform", "x86_64"])
    assert builds == [("one", 1)]
    assert status == (1 if swapped else 0)
    expected = {None: "the same bytes", "wheel": "\na\n", "sdist": "\nthe sdists\n"}
    assert expected[swapped] in capsys.readouterr().out


def test_the_second_build_is_made_of_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    builds = []

    def build(
        folder: Path, command: str, kernels: str, shards: int, *, cached: bool
    ) -> tuple[Path, Path]:
        builds.append((shards, cached))
        folder.mkdir(parents=True)
        (folder / "x-1.tar.gz").write_bytes(b"sdist")
        return folder / "x-1.tar.gz", wheel(folder / "wheel", {"a": b"1"})

    monkeypatch.setattr(reproduce, "build", build)
    assert reproduce.main([]) == 0
    assert reproduce.main(["--shards", "3", "--cache"]) == 0
    assert builds == [(1, False), (2, False), (1, True), (3, False)]
    with pytest.raises(SystemExit):
        reproduce.main(["--cache", "--against", "x.whl"])


def test_the_runs_of_a_build_of_shards(tmp_path: Path) -> None:
    assert list(reproduce.stages(tmp_path, 1)) == [(tmp_path / "wheel", {})]
    first, second, last = reproduce.stages(tmp_path, 2)
    shards = f"/host{tmp_path}/shards"
    assert [given["CUTWHEEL_SHARD"] for _, given in (first, second)] == ["1/2", "2/2"]
    assert last == (tmp_path / "wheel", {"CUTWHEEL_SHARDS": shards})
    assert {out.name for out, _ in (first, second)} == {"shard"}
