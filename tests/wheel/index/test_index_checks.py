"""tools/release/index.py: which wheels it refuses, and what --verify finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Index

MakeWheel = Callable[..., Path]


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


# --- what is refused


def metadata(name: str, version: str) -> str:
    return f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metadata": metadata("cutwheel", "0.1.1")}, "the METADATA in it says cutwheel 0.1.1"),
        ({"metadata": metadata("cutwheels", "0.1.0")}, "the METADATA in it says cutwheels 0.1.0"),
        ({"metadata": "Name: cutwheel\n"}, "is not valid"),
        ({"tag": "py3-none-linux_x86_64"}, "is tagged linux_x86_64, not manylinux"),
        ({"tag": "py3-none-any"}, "is tagged any, not manylinux"),
        ({"tag": "py3-none-manylinux_2_28_x86_64.linux_x86_64"}, "is tagged linux_x86_64, not"),
    ],
)
def test_a_wheel_with_wrong_metadata_or_tag_is_refused(
    index: Index,
    wheels: list[Path],
    make_wheel: MakeWheel,
    tmp_path: Path,
    changes: dict[str, str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    index.publish(wheels[1])
    before = times(index.folder)
    assert index.publish(wheels[0], make_wheel(tmp_path, "0.1.0", **changes)) == 1
    assert message in capsys.readouterr().err
    assert times(index.folder) == before


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("cutwheel.whl", None, "is no wheel's file name"),
        ("cutwheel-0.2.0-{tag}.whl", None, "it holds no cutwheel-0.2.0.dist-info/METADATA"),
        ("cutwheel-0.1.0-{tag}.whl", change_a_byte, "again"),
        ("cutwheel-0.1.0-{tag}.whl", lambda path: path.write_text("text"), "no valid zip file"),
        ("cutwheel-0.1.0-{tag}.whl", Path.unlink, "cannot be read: No such file"),
    ],
    ids=["file name", "renamed", "damaged", "no zip", "missing"],
)
def test_a_renamed_or_damaged_wheel_is_refused(
    index: Index,
    make_wheel: MakeWheel,
    tmp_path: Path,
    name: str,
    spoil: Callable[[Path], object] | None,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tag = "py3-none-manylinux_2_28_x86_64"
    made = make_wheel(tmp_path, "0.1.0", tag=tag, note="x" * 5000, compressed=False)
    wheel = made.rename(tmp_path / name.format(tag=tag))
    if spoil:
        spoil(wheel)
    assert index.publish(wheel) == 1
    assert message in capsys.readouterr().err
    assert not index.folder.exists()


def test_any_tag_is_taken_on_demand(index: Index, make_wheel: MakeWheel, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "0.1.0", tag="py3-none-any")
    assert index.run("--allow-any-tag", "--variant", "cu130", wheel) == 0
    assert index.run("--verify") == 0


# --- verify


@pytest.mark.parametrize("spoil", [change_a_byte, Path.unlink], ids=["changed", "missing"])
@pytest.mark.parametrize(
    "name", ["{wheel}", "{wheel}.metadata", "index.html", "index.v1_json", "../index.html"]
)
def test_verify_finds_what_was_spoilt(
    index: Index,
    wheels: list[Path],
    name: str,
    spoil: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    index.publish(*wheels)
    assert index.run("--verify", "--variant", "cu130") == 0
    capsys.readouterr()
    path = (index.project / name.format(wheel=wheels[0].name)).resolve()
    spoil(path)
    assert index.run("--verify") == 1
    assert str(path) in capsys.readouterr().out


def test_verify_compares_the_page_with_the_wheel(
    index: Index, wheels: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    index.publish(*wheels)
    page = index.project / "index.v1_json"
    page.write_text(page.read_text().replace(">=3.10", ">=3.11", 1))
    assert index.run("--verify") == 1
    assert f"does not say of {wheels[0].name}" in capsys.readouterr().out


def test_verify_needs_an_index(index: Index, wheels: list[Path]) -> None:
    assert index.run("--verify") == 1
    index.publish(wheels[0])
    assert index.run("--verify", "--variant", "cu128") == 1
