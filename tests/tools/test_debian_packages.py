"""tools/wheel/debian_packages.py: who installs what a check needs."""

from __future__ import annotations

import subprocess

import debian_packages
import pytest


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands; nothing but apt-get is there."""
    commands: list[list[str]] = []
    monkeypatch.setattr(
        debian_packages.subprocess, "run", lambda command, check: commands.append(command)
    )
    known = {"apt-get": "/usr/bin/apt-get"}
    monkeypatch.setattr(debian_packages.shutil, "which", known.get)
    return commands


def as_user(monkeypatch: pytest.MonkeyPatch, user: int, ci: str) -> None:
    monkeypatch.setattr(debian_packages.os, "geteuid", lambda: user)
    monkeypatch.setenv("CI", ci)


@pytest.mark.parametrize(("user", "ci", "prefix"), [(0, "", []), (1000, "true", ["sudo", "-n"])])
def test_root_and_ci_install(ran, monkeypatch, user: int, ci: str, prefix: list[str]) -> None:
    as_user(monkeypatch, user, ci)
    debian_packages.install(["qemu-user-static", "mmdebstrap"])
    assert [command[: len(prefix) + 1] for command in ran] == [[*prefix, "env"]] * 2
    assert ran[0][-1] == "update"
    assert ran[1][-3:] == ["--no-install-recommends", "qemu-user-static", "mmdebstrap"]


def test_others_are_told(ran, monkeypatch, capsys) -> None:
    as_user(monkeypatch, 1000, "")
    assert debian_packages.main(["redis-server"]) == 1
    assert not ran
    wanted = "redis-server of Debian or Ubuntu is needed: apt-get install --no-install-recommends"
    assert f"{wanted} redis-server" in capsys.readouterr().err


def test_what_is_there_is_not_installed(ran, monkeypatch) -> None:
    as_user(monkeypatch, 1000, "")
    assert debian_packages.main(["apt-get"]) == 0
    debian_packages.install([])
    assert not ran


def test_a_failure_of_apt_is_one(monkeypatch, ran, capsys) -> None:
    as_user(monkeypatch, 0, "")

    def fails(command: list[str], check: bool) -> None:
        raise subprocess.CalledProcessError(100, command)

    monkeypatch.setattr(debian_packages.subprocess, "run", fails)
    assert debian_packages.main(["redis-server"]) == 1
    assert "apt-get ends with status 100" in capsys.readouterr().err
