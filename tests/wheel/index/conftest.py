"""Small wheels without torch, and indexes to publish them in."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import index as build_index
import pytest

TIME = "2026-11-24T10:00:00.000000Z"
MANYLINUX = "py3-none-manylinux_2_28_x86_64"
# version -> Requires-Python
RELEASES = {"0.1.0": ">=3.10", "0.1.1": ">=3.10", "0.1.2": "", "0.2.0": ">=3.10"}
RELEASES |= {"0.2.0+cu130.r1": "<4,>=3.10", "0.3.0rc1": "", "0.4.0": ">=4"}


def pack_wheel(
    folder: Path,
    version: str,
    tag: str = MANYLINUX,
    requires_python: str = ">=3.10",
    metadata: str | None = None,
    note: str = "",
    compressed: bool = True,
) -> Path:
    """A wheel with the module `cutwheel`; `note` makes other bytes of the same name."""
    dist_info = f"cutwheel-{version}.dist-info"
    if metadata is None:
        metadata = f"Metadata-Version: 2.4\nName: cutwheel\nVersion: {version}\n"
        metadata += f"Requires-Python: {requires_python}\n" if requires_python else ""
    files = {
        "cutwheel.py": f'__version__ = "{version}"  # {note}\n',
        f"{dist_info}/METADATA": metadata,
        f"{dist_info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    record = f"{dist_info}/RECORD"
    files[record] = "".join(f"{name},,\n" for name in [*files, record])
    path = folder / f"cutwheel-{version}-{tag}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, method)
    return path


@dataclass
class Index:
    folder: Path

    @property
    def project(self) -> Path:
        return self.folder / "cu130" / "cutwheel"

    def run(self, *arguments: object) -> int:
        return build_index.main(["--index", str(self.folder), *map(str, arguments)])

    def publish(self, *wheels: Path) -> int:
        return self.run("--variant", "cu130", "--upload-time", TIME, *wheels)

    def files(self) -> dict[str, dict[str, Any]]:
        page = json.loads((self.project / "index.v1_json").read_bytes())
        return {row["filename"]: row for row in page["files"]}


@pytest.fixture(scope="session")
def make_wheel() -> Callable[..., Path]:
    return pack_wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One of each release, in order of versions."""
    folder = tmp_path_factory.mktemp("built")
    return [pack_wheel(folder, v, requires_python=r) for v, r in RELEASES.items()]


@pytest.fixture(scope="session")
def make_index() -> type[Index]:
    return Index


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "whl")
