"""The package index: pip and uv install from it what a downstream project pins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
from packaging.version import Version

if TYPE_CHECKING:
    from conftest import Index

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
YANKED = "0.1.2"


@dataclass
class Server:
    url: str
    negotiates: bool
    requests: list[str] = field(default_factory=list)  # "path: content type"


class Handler(SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, log: list[str], negotiates: bool, **options: Any) -> None:
        self.log, self.negotiates = log, negotiates
        super().__init__(*args, **options)

    def send_head(self) -> Any:
        if self.path.endswith("/"):
            wants_json = self.negotiates and JSON_TYPE in self.headers["Accept"]
            self.path += "index.v1_json" if wants_json else "index.html"
        self.log.append(f"{unquote(self.path)}: {self.guess_type(self.path)}")
        return super().send_head()

    def guess_type(self, path: Any) -> str:
        return JSON_TYPE if str(path).endswith(".v1_json") else super().guess_type(path)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def published(
    tmp_path_factory: pytest.TempPathFactory, make_index: type[Index], wheels: list[Path]
) -> Index:
    index = make_index(tmp_path_factory.mktemp("published") / "whl")
    assert index.publish(*wheels) == 0
    (yanked,) = (wheel.name for wheel in wheels if f"-{YANKED}-" in wheel.name)
    assert index.run("--variant", "cu130", "--yank", "wrong results", yanked) == 0
    return index


@pytest.fixture(params=[False, True], ids=["html", "json"])
def server(published: Index, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Serves the index as any static host does, or as one that negotiates JSON."""
    log: list[str] = []
    options = {"directory": str(published.folder.parent), "log": log, "negotiates": request.param}
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, **options)) as httpd:
        Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
        yield Server(f"http://127.0.0.1:{httpd.server_port}/whl/cu130/", request.param, log)
        httpd.shutdown()


def uv_program() -> str:
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None and os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail("uv is not installed: requirements/test.txt pins it", pytrace=False)
    return found or pytest.skip("uv is not installed (requirements/test.txt)")


def run(command: Sequence[str], home: Path) -> subprocess.CompletedProcess[str]:
    """Without the machine's configuration, and with no network but the server of the test."""
    closed = "http://127.0.0.1:9"  # a proxy where nobody listens
    environment = {"http_proxy": closed, "https_proxy": closed, "no_proxy": "127.0.0.1"}
    environment |= {"PIP_CONFIG_FILE": os.devnull, "HOME": str(home), "PATH": os.environ["PATH"]}
    options: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    return subprocess.run(command, cwd=home, env=environment, **options)


@dataclass
class Client:
    """Installs from one index into a folder."""

    name: str
    folder: Path

    def command(self) -> list[str]:
        if self.name == "pip":
            options = ["--no-cache-dir", "--no-compile", "--disable-pip-version-check"]
            return [sys.executable, "-m", "pip", "install", *options]
        options = ["--no-cache", "--no-config", "--no-progress", "--python", sys.executable]
        return [uv_program(), "pip", "install", *options]

    def install(self, server: Server, *what: str) -> subprocess.CompletedProcess[str]:
        options = ["--target", str(self.folder / "site"), "--index-url", server.url]
        return run([*self.command(), *options, *what], self.folder)

    def installed(self, server: Server, *what: str) -> str:
        done = self.install(server, *what)
        assert done.returncode == 0, done.stdout + done.stderr
        text = (self.folder / "site" / "cutwheel.py").read_text()
        return text.split('"')[1]


@pytest.fixture(params=["pip", "uv"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Client:
    return Client(request.param, tmp_path)


html_only = pytest.mark.parametrize("server", [False], ids=["html"], indirect=True)


@html_only
@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("cutwheel==0.1.0", "0.1.0"),
        ("cutwheel~=0.1.0", "0.1.1"),  # not 0.1.2, which is yanked
        ("cutwheel<0.2", "0.1.1"),
        ("cutwheel", "0.2.0+cu130.r1"),  # not 0.3.0rc1; 0.4.0 is for Python 4
        ("cutwheel==0.2.0+cu130.r1", "0.2.0+cu130.r1"),
        ("cutwheel==0.3.0rc1", "0.3.0rc1"),
        (f"cutwheel=={YANKED}", YANKED),
    ],
)
def test_a_pin_gets_its_version(
    client: Client, server: Server, requirement: str, expected: str
) -> None:
    assert client.installed(server, requirement) == expected


@html_only
def test_a_version_that_is_not_there_is_not_found(client: Client, server: Server) -> None:
    done = client.install(server, "cutwheel==0.4.0")
    assert done.returncode != 0
    assert not (client.folder / "site" / "cutwheel.py").exists()


def test_page_then_metadata_then_wheel_are_fetched(client: Client, server: Server) -> None:
    assert client.installed(server, "cutwheel~=0.1.0") == "0.1.1"
    page = f"index.v1_json: {JSON_TYPE}" if server.negotiates else "index.html: text/html"
    if client.name == "pip" and Version(version("pip")) < Version("23.2"):
        pytest.skip(f"pip {version('pip')} does not read metadata files (PEP 714)")
    fetched = [line.removeprefix("/whl/cu130/cutwheel/") for line in server.requests]
    wheel = "cutwheel-0.1.1-py3-none-manylinux_2_28_x86_64.whl"
    files = [line.partition(": ")[0] for line in fetched]
    assert page in fetched
    assert files.index(f"{wheel}.metadata") < files.index(wheel)


@html_only
def test_hash_checking_mode(client: Client, server: Server, published: Index) -> None:
    row = next(row for name, row in published.files().items() if "-0.1.0-" in name)
    requirements = client.folder / "requirements.txt"
    requirements.write_text(f"cutwheel==0.1.0 --hash=sha256:{row['hashes']['sha256']}\n")
    options = ["--require-hashes", "-r", str(requirements)]
    assert client.installed(server, *options) == "0.1.0"


@html_only
def test_a_wrong_hash_is_refused(client: Client, server: Server) -> None:
    requirements = client.folder / "requirements.txt"
    requirements.write_text(f"cutwheel==0.1.0 --hash=sha256:{'0' * 64}\n")
    done = client.install(server, "--require-hashes", "-r", str(requirements))
    assert done.returncode != 0
    assert "hash" in done.stderr.lower()
    assert not (client.folder / "site" / "cutwheel.py").exists()


@html_only
def test_uv_locks_from_an_explicit_index(server: Server, tmp_path: Path) -> None:
    """The example of docs/releasing.md."""
    (tmp_path / "pyproject.toml").write_text(
        f"""
[project]
name = "downstream"
version = "1"
requires-python = ">=3.10"
dependencies = ["cutwheel ~= 0.1.0"]

[[tool.uv.index]]
name = "cutwheel-cu130"
url = "{server.url}"
explicit = true

[tool.uv.sources]
cutwheel = {{ index = "cutwheel-cu130" }}
"""
    )
    options = ["--no-cache", "--no-progress", "--python", sys.executable]
    done = run([uv_program(), "lock", *options], tmp_path)
    assert done.returncode == 0, done.stderr
    lock = (tmp_path / "uv.lock").read_text()
    assert 'version = "0.1.1"' in lock
    assert re.search(r'url = ".*cutwheel-0\.1\.1-.*\.whl", hash = "sha256:', lock)
