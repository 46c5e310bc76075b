"""tools/release/index.py: what it writes, and that published files stay as they are."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import index as build_index
import pytest

if TYPE_CHECKING:
    from conftest import Index

CLI = Path(build_index.__file__)
MakeWheel = Callable[..., Path]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


# --- pages


def test_pages_list_each_file_in_order_of_versions(index: Index, wheels: list[Path]) -> None:
    assert index.publish(*reversed(wheels)) == 0
    page = json.loads((index.project / "index.v1_json").read_bytes())
    assert page["meta"] == {"api-version": "1.3"}
    assert page["name"] == "cutwheel"
    assert page["versions"] == [wheel.name.split("-")[1] for wheel in wheels]
    assert [row["filename"] for row in page["files"]] == [wheel.name for wheel in wheels]
    local = page["files"][4]
    assert local["url"] == wheels[4].name.replace("+", "%2B")
    assert local["hashes"] == {"sha256": sha256(wheels[4])}
    assert local["size"] == wheels[4].stat().st_size
    assert local["requires-python"] == "<4,>=3.10"
    metadata = index.project / f"{wheels[4].name}.metadata"
    assert local["core-metadata"] == {"sha256": sha256(metadata)}
    with zipfile.ZipFile(wheels[4]) as archive:
        member = "cutwheel-0.2.0+cu130.r1.dist-info/METADATA"
        assert metadata.read_bytes() == archive.read(member)

    text = (index.project / "index.html").read_text()
    assert re.findall(r">(cutwheel-.*\.whl)</a>", text) == [wheel.name for wheel in wheels]
    assert f'href="{local["url"]}#sha256={sha256(wheels[4])}"' in text
    assert 'data-requires-python="&lt;4,&gt;=3.10"' in text
    assert f'data-core-metadata="sha256={sha256(metadata)}"' in text
    root = (index.folder / "cu130" / "index.html").read_text()
    assert '<a href="cutwheel/">cutwheel</a>' in root


def test_the_same_files_give_the_same_bytes_in_any_order(
    make_index: type[Index], tmp_path: Path, wheels: list[Path]
) -> None:
    at_once, one_by_one = make_index(tmp_path / "a"), make_index(tmp_path / "b")
    assert at_once.publish(*wheels) == 0
    for wheel in reversed(wheels):
        assert one_by_one.publish(wheel) == 0
    assert tree(at_once.folder) == tree(one_by_one.folder)


def test_upload_times_are_those_of_the_first_publication(index: Index, wheels: list[Path]) -> None:
    index.publish(wheels[0])
    [first] = [row["upload-time"] for row in index.files().values()]
    assert index.run("--variant", "cu130", *wheels[:2]) == 0
    times = {name: row["upload-time"] for name, row in index.files().items()}
    assert times[wheels[0].name] == first
    now = datetime.now(timezone.utc)
    told = datetime.fromisoformat(times[wheels[1].name].replace("Z", "+00:00"))
    assert timedelta(0) <= now - told < timedelta(minutes=5)


def test_github_pages_is_told_not_to_run_jekyll(
    index: Index, wheels: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    index.publish(wheels[0])
    assert index.run("--verify") == 0
    (index.folder / ".nojekyll").unlink()
    assert index.run("--verify") == 1
    assert ".nojekyll is not up to date" in capsys.readouterr().out


def test_a_whole_version_is_yanked(index: Index, wheels: list[Path]) -> None:
    index.publish(*wheels)
    command = ["--variant", "cu130", "--release", "0.1.1"]
    assert index.run(*command, "--yank", "wrong results") == 0
    yanked = [name for name, row in index.files().items() if row["yanked"]]
    assert yanked == [wheel.name for wheel in wheels if "-0.1.1-" in wheel.name]
    assert index.run(*command, "--unyank") == 0
    assert not any(row["yanked"] for row in index.files().values())
    assert index.run("--variant", "cu130", "--release", "9.9.9", "--yank", "why") == 1


def test_files_are_readable_for_a_web_server(index: Index, wheels: list[Path]) -> None:
    mask = os.umask(0o022)
    try:
        index.publish(wheels[0])
    finally:
        os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in index.project.iterdir()} == {0o644}


def test_yanking_is_shown_on_both_pages_and_can_be_undone(index: Index, wheels: list[Path]) -> None:
    index.publish(*wheels)
    before = tree(index.folder)
    name = wheels[1].name
    assert index.run("--variant", "cu130", "--yank", 'wrong "tanh"', name) == 0
    assert index.files()[name]["yanked"] == 'wrong "tanh"'
    assert [row["yanked"] for row in index.files().values()].count(False) == len(wheels) - 1
    text = (index.project / "index.html").read_text()
    assert 'data-yanked="wrong &quot;tanh&quot;"' in text
    assert index.publish(wheels[1]) == 0  # does not undo it
    assert index.files()[name]["yanked"]
    assert index.run("--verify") == 0
    assert index.run("--variant", "cu130", "--unyank", name) == 0
    assert tree(index.folder) == before


def test_only_published_files_are_yanked(
    index: Index, wheels: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert index.run("--variant", "cu130", "--yank", "why", wheels[1].name) == 1
    index.publish(wheels[0])
    before = tree(index.folder)
    assert index.run("--variant", "cu130", "--yank", "why", wheels[0].name, wheels[1].name) == 1
    assert f"{wheels[1].name} is not published" in capsys.readouterr().err
    assert tree(index.folder) == before


# --- append-only


def test_publishing_again_changes_nothing(
    index: Index, wheels: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    index.publish(*wheels)
    before = times(index.folder)
    assert index.publish(*wheels) == 0
    assert times(index.folder) == before
    assert f"{wheels[0].name}: was there already" in capsys.readouterr().out


def test_another_file_of_a_published_name_is_refused(
    index: Index,
    make_wheel: MakeWheel,
    wheels: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index.publish(wheels[0])
    before = times(index.folder)
    other = make_wheel(tmp_path / "again", "0.1.0", note="other")
    assert index.publish(wheels[1], other) == 1
    message = capsys.readouterr().err
    assert all(part in message for part in (other.name, sha256(wheels[0]), sha256(other)))
    assert times(index.folder) == before


def test_two_files_of_one_name_are_refused(
    index: Index, make_wheel: MakeWheel, wheels: list[Path], tmp_path: Path
) -> None:
    other = make_wheel(tmp_path / "again", "0.1.0", note="other")
    assert index.publish(wheels[0], other) == 1
    assert tree(index.folder) == {}


def test_an_unlisted_file_is_not_replaced(
    index: Index,
    make_wheel: MakeWheel,
    wheels: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index.publish(wheels[1])
    shutil.copy(wheels[0], index.project)
    other = make_wheel(tmp_path / "again", "0.1.0", note="other")
    assert index.publish(other) == 1
    assert "no page lists" in capsys.readouterr().err
    assert index.publish(wheels[0]) == 0


def test_a_damaged_index_is_not_extended(
    index: Index, wheels: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    index.publish(wheels[0])
    (index.project / wheels[0].name).write_bytes(b"")
    before = tree(index.folder)
    assert index.publish(wheels[1]) == 1
    assert f"{wheels[0].name} has sha256" in capsys.readouterr().err
    assert tree(index.folder) == before


@pytest.mark.parametrize("content", [None, b"[]", b"{", b'{"files": [{"filename": "x.whl"}]}'])
def test_a_lost_or_broken_page_is_not_written_anew(
    index: Index, wheels: list[Path], content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    index.publish(wheels[0])
    page = index.project / "index.v1_json"
    page.unlink() if content is None else page.write_bytes(content)
    before = tree(index.folder)
    assert index.publish(wheels[1]) == 1
    assert "restore it from a backup" in capsys.readouterr().err
    assert tree(index.folder) == before
    assert index.run("--verify") == 1


def test_only_one_process_changes_an_index(
    index: Index, wheels: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    index.publish(wheels[0])
    descriptor = os.open(index.folder / "cu130", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert index.publish(wheels[1]) == 1
    finally:
        os.close(descriptor)
    assert "by another process" in capsys.readouterr().err


def links(page: Path) -> list[tuple[str, str, str]]:
    """(file, sha256 of it, sha256 of its metadata) for each link of a page."""
    if page.suffix == ".html":
        pattern = r'href="([^"#]+)#sha256=(\w+)".* data-core-metadata="sha256=(\w+)"'
        return [(unquote(a), b, c) for a, b, c in re.findall(pattern, page.read_text())]
    rows = json.loads(page.read_bytes())["files"]
    digests = ((row["hashes"], row["core-metadata"]) for row in rows)
    return [
        (r["filename"], a["sha256"], b["sha256"]) for r, (a, b) in zip(rows, digests, strict=True)
    ]


@pytest.mark.parametrize("first", [True, False], ids=["first", "next"])
def test_an_interruption_leaves_every_link_right(
    index: Index,
    make_index: type[Index],
    wheels: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    first: bool,
) -> None:
    wheels = wheels[:3]
    whole = make_index(tmp_path / "whole")
    whole.publish(*wheels)
    replace_file = Path.replace
    for step in range(100):
        shutil.rmtree(index.folder, ignore_errors=True)
        old = [] if first else wheels[:1]
        assert first or index.publish(*old) == 0
        steps = iter(range(step))

        def replace(path: Path, target: Path, left: Iterator[int] = steps) -> Path:
            if next(left, None) is None:
                raise OSError("no space left on device")
            return replace_file(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            status = index.publish(*wheels)
        assert not [name for name in tree(index.folder) if name.endswith(".tmp")]
        for page in index.project.glob("index.*"):
            listed = links(page)
            assert {wheel.name for wheel in old} <= {name for name, _, _ in listed}
            for name, file_digest, metadata_digest in listed:
                assert sha256(index.project / name) == file_digest
                assert sha256(index.project / f"{name}.metadata") == metadata_digest
        capsys.readouterr()
        index.run("--verify")
        wrong = capsys.readouterr().out.splitlines()
        assert all("not up to date" in line or "as it should be" in line for line in wrong)
        assert index.publish(*wheels) == 0  # the same command completes it
        assert tree(index.folder) == tree(whole.folder)
        if status == 0:
            break
    assert step == 2 * (len(wheels) - len(old)) + (5 if first else 2)


# --- command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["x.whl"],
        ["--variant", "cu130"],
        ["--variant", "../cu130", "x.whl"],
        ["--verify", "x.whl"],
        ["--variant", "cu130", "--yank", "", "x.whl"],
    ],
)
def test_wrong_usage(index: Index, arguments: Sequence[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        index.run(*arguments)
    assert stopped.value.code == 2


def test_the_command_line(index: Index, wheels: list[Path]) -> None:
    command = [sys.executable, CLI, "--index", index.folder]
    done = subprocess.run(
        [*command, "--variant", "cu130", wheels[0]], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{wheels[0].name}: published\n")
    (index.project / wheels[0].name).unlink()
    done = subprocess.run([*command, "--verify"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith(f"{index.project / wheels[0].name} is missing\n")
