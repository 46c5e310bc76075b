"""tools/release/served.py: what a server makes of a published index."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread, Timer
from typing import TYPE_CHECKING

import pytest
import served

if TYPE_CHECKING:
    from conftest import Index


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def site(index: Index, wheels: list[Path], tmp_path: Path) -> Path:
    """A copy of the index, as a server has it after the push."""
    index.publish(*wheels[:2])
    return shutil.copytree(index.folder, tmp_path / "site")


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def read_back(index: Index, url: str, attempts: int = 1) -> int:
    limits = ["--attempts", str(attempts), "--pause", "0.2"]
    return served.main(["--index", str(index.folder), "--url", url, *limits])


def test_what_is_served_as_published_passes(
    index: Index, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_back(index, url) == 0
    # Two wheels with their metadata; two pages of the project, two of the root, two folders.
    assert "10 addresses" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["index.html", "cutwheel/index.html", "cutwheel/index.v1_json", "*.whl", "*.metadata"]
)
@pytest.mark.parametrize("change", ["changed", "missing"])
def test_a_served_file_that_differs_is_found(
    index: Index,
    site: Path,
    url: str,
    name: str,
    change: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = next((site / "cu130").rglob(name) if "*" in name else iter([site / "cu130" / name]))
    if change == "changed":
        path.write_bytes(path.read_bytes() + b" ")
    else:
        path.unlink()
    assert read_back(index, url) == 1
    message = capsys.readouterr().err
    assert f"{url}/cu130/{path.relative_to(site / 'cu130').as_posix()}" in message
    assert ("differs from" if change == "changed" else "cannot be read") in message


def test_a_server_may_lag_behind(index: Index, site: Path, url: str) -> None:
    page = site / "cu130" / "cutwheel" / "index.html"
    new = page.read_bytes()
    page.write_bytes(b"of yesterday")
    late = Timer(0.3, page.write_bytes, [new])
    late.start()
    assert read_back(index, url, attempts=20) == 0
    late.join()


def test_an_empty_folder_or_no_server_is_no_success(
    index: Index, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert served.main(["--index", str(tmp_path / "none"), "--url", url]) == 1
    assert "holds no index" in capsys.readouterr().err
    assert read_back(index, "http://127.0.0.1:9") == 1
