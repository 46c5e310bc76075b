"""tools/release/images.py: digests behind the tags of images, with a stand-in for docker."""

from __future__ import annotations

import re
from pathlib import Path

import images
import pytest

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = f"sha256:{'0' * 64}", f"sha256:{'a' * 64}"
TEXT = f"""IMAGE_12_X86_64 = docker.io/a/b:cuda12.8
IMAGE_12_AARCH64 = docker.io/c/d:cuda12.8@{OLD}
OTHER = docker.io/e/f:1
"""


@pytest.fixture
def makefile(tmp_path: Path) -> Path:
    path = tmp_path / "Makefile"
    path.write_text(TEXT)
    return path


def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A `docker` that runs `script` and writes down its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    log = tmp_path / "log"
    (folder / "docker").write_text(f'#!/bin/sh\necho "$@" >>{log}\n{script}\n')
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return log


def test_each_image_gets_the_digest_of_its_tag(tmp_path, monkeypatch, makefile, capsys):
    log = docker(tmp_path, monkeypatch, f"echo {NEW}")
    assert images.main([str(makefile)]) == 0
    pinned = TEXT.replace(f"@{OLD}", "").replace("cuda12.8", f"cuda12.8@{NEW}")
    assert makefile.read_text() == pinned
    asked = [line.split()[-1] for line in log.read_text().splitlines()]
    assert asked == ["docker.io/a/b:cuda12.8", "docker.io/c/d:cuda12.8"]
    assert capsys.readouterr().out.splitlines() == pinned.splitlines()[:2]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'no such host' >&2; exit 1", "no digest of docker.io/a/b:cuda12.8: no such host"),
        ("echo latest", "docker printed 'latest'"),
    ],
)
def test_without_a_digest_nothing_is_written(
    tmp_path, monkeypatch, makefile, capsys, script, message
):
    docker(tmp_path, monkeypatch, script)
    assert images.main([str(makefile)]) == 1
    assert makefile.read_text() == TEXT
    assert message in capsys.readouterr().err


def test_without_docker_the_reason_is_told(tmp_path, monkeypatch, makefile, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert images.main([str(makefile)]) == 1
    assert "docker is needed to ask for the digest of docker.io/a/b" in capsys.readouterr().err


def test_another_file_is_refused(tmp_path, capsys):
    (tmp_path / "x").write_text("text")
    assert images.main([str(tmp_path / "x")]) == 1
    assert "is this the Makefile?" in capsys.readouterr().err


def test_the_images_of_the_release_are_found():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = [line[1].split()[0] for line in images.IMAGE.finditer(text)]
    assert found == re.findall(r"^(IMAGE\w+) =", text, re.MULTILINE)
    assert found == ["IMAGE_12_X86_64", "IMAGE_12_AARCH64"]
