"""tools/wheel/aarch64.py: its gates; `make aarch64` builds, and runs what is built."""

from __future__ import annotations

import importlib.util
import json
import stat
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("auditwheel")  # the environments of `make torch-matrix` have none
import aarch64
import releasing

X86 = "x-1-py3-none-manylinux_2_34_x86_64.whl"
ARM = "x-1-py3-none-manylinux_2_28_aarch64.whl"


def wheel(path: Path, sha256: str) -> Path:
    """A wheel whose SBOM lists one kernel."""
    component = {
        "name": "mm",
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "properties": [{"name": "cutwheel:arch", "value": "sm80"}],
    }
    with zipfile.ZipFile(path, "w") as archive:
        text = json.dumps({"components": [component]})
        archive.writestr("x-1.dist-info/sboms/cutwheel.cdx.json", text)
    return path


def test_the_same_cubins_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aarch64.check_cubins(wheel(tmp_path / X86, "a"), wheel(tmp_path / ARM, "a"))
    assert f"{ARM}: 1 cubins, all those of {X86}" in capsys.readouterr().out


def test_another_cubin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(releasing.ReleaseError, match=r"mm \[sm80\] is another cubin"):
        aarch64.check_cubins(wheel(tmp_path / X86, "a"), wheel(tmp_path / ARM, "b"))


@pytest.mark.parametrize("names", [(X86, X86.replace("34", "28")), (ARM, X86)])
def test_wheels_of_other_machines_are_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    one, other = (wheel(tmp_path / name, "a") for name in names)
    with pytest.raises(aarch64.CrossError, match="expected x86_64 and aarch64"):
        aarch64.check_cubins(one, other)


@pytest.mark.skipif(importlib.util.find_spec("uv") is None, reason="needs uv")
@pytest.mark.parametrize(
    ("name", "installs"), [(ARM, True), (X86, False), (ARM.replace("28", "34"), False)]
)
def test_wheels_of_another_machine_or_a_newer_glibc_do_not_install(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, installs: bool
) -> None:
    made = wheel(tmp_path / name, "a")
    with zipfile.ZipFile(made, "a") as archive:
        tag = name.removeprefix("x-1-").removesuffix(".whl")
        archive.writestr("x-1.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        archive.writestr("x-1.dist-info/RECORD", "")
    target = tmp_path / "site"
    if installs:
        aarch64.uv_install(target, "aarch64", "--offline", str(made))
    else:
        with pytest.raises(aarch64.CrossError, match="uv ends with status"):
            aarch64.uv_install(target, "aarch64", "--offline", str(made))
        assert "incompatible with the current platform" in capfd.readouterr().err
    assert (target / "x-1.dist-info").exists() is installs


def test_it_cross_builds_on_x86_64_alone() -> None:
    aarch64.check_machine("x86_64")
    with pytest.raises(aarch64.CrossError, match="this machine is aarch64: expected x86_64"):
        aarch64.check_machine("aarch64")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(aarch64, "KEYRING", tmp_path / "none")
    monkeypatch.setattr(aarch64.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(aarch64.shutil, "which", lambda name: None)
    wanted = "--no-install-recommends mmdebstrap qemu-user-static debian-archive-keyring"
    with pytest.raises(aarch64.CrossError, match=wanted):
        aarch64.install_tools()


def test_missing_packages_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(aarch64, "KEYRING", tmp_path / "none")
    monkeypatch.setattr(aarch64.shutil, "which", lambda name: None)
    monkeypatch.setattr(aarch64.debian_packages, "install", installed.append)
    aarch64.install_tools()
    assert installed == [["mmdebstrap", "qemu-user-static", "debian-archive-keyring"]]


def test_the_runtime_of_the_target_replaces_that_of_the_compiler(tmp_path: Path) -> None:
    trees = {"ours": ("bin/nvcc", "lib/a", "include/x/a.h"), "theirs": ("lib/a", "include/x/b.h")}
    for tree, files in trees.items():
        for file in files:
            path = tmp_path / tree / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(tree)
    aarch64.overlay(tmp_path / "theirs", tmp_path / "ours")
    whose = {"bin/nvcc": "ours", "lib/a": "theirs"}
    whose |= {"include/x/a.h": "ours", "include/x/b.h": "theirs"}
    assert {path: (tmp_path / "ours" / path).read_text() for path in whose} == whose


def test_both_machines_are_built_at_one_path_and_keep_their_files(tmp_path: Path) -> None:
    places = set()
    for machine in ("x86_64", "aarch64") * 2:
        with aarch64.one_path(tmp_path, machine) as place:
            places.add(place)
            place.mkdir(exist_ok=True)
            with (place / "log").open("a") as log:
                log.write(machine)
    assert len(places) == 1
    assert not place.exists()
    assert (tmp_path / "build-x86_64/log").read_text() == "x86_64x86_64"
    assert (tmp_path / "build-aarch64/log").read_text() == "aarch64aarch64"


def test_a_build_that_fails_keeps_its_files_too(tmp_path: Path) -> None:
    def fail() -> None:
        with aarch64.one_path(tmp_path, "aarch64") as place:
            place.mkdir()
            aarch64.run(["false"])

    with pytest.raises(aarch64.CrossError, match="false ends with status 1"):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["build-aarch64"]


def test_programs_are_executable(tmp_path: Path) -> None:
    program = aarch64.write_program(tmp_path / "say", 'echo "$@"')
    assert program.stat().st_mode & stat.S_IXUSR
    done = subprocess.run([program, "a b"], capture_output=True, text=True, check=True)
    assert done.stdout == "a b\n"


def notes(**changes: str) -> dict[str, str]:
    build = {"compiler": changes.pop("compiler", "GNU 12"), "cuda": changes.pop("cuda", "13.0")}
    return {"build_info": json.dumps(build), "mm": "[4, 8]", **changes}


def test_the_machines_may_differ_in_their_host_compiler_alone() -> None:
    assert aarch64.check_notes(notes(compiler="GNU 10"), notes()) == 2
    changed: list[dict[str, Any]] = [{"mm": "[8, 4]"}, {"cuda": "12.8"}, {"bmm": "[2, 4, 8]"}]
    for changes in changed:
        with pytest.raises(aarch64.CrossError, match=r"behaves differently:\n  \w+: .* on x86-64 "):
            aarch64.check_notes(notes(**changes), notes())


@pytest.mark.parametrize(
    "changes", [{"usable": True}, {"platform": "Linux-6.1-x86_64-with-glibc2.36"}, None]
)
def test_doctor_has_to_run_on_the_machine_and_to_see_no_gpu(changes: dict[str, Any] | None) -> None:
    good = {"usable": False, "platform": "Linux-6.1-aarch64-with-glibc2.36"}
    aarch64.check_doctor(json.dumps(good))
    output = "" if changes is None else json.dumps(good | changes)
    with pytest.raises(aarch64.CrossError, match="doctor: expected a report of problems on aarch6"):
        aarch64.check_doctor(output)
