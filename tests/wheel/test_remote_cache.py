"""Compiled kernels from a cache that machines share: Redis, behind ccache and sccache.

`make test-caches` runs them. Elsewhere they are skipped where redis-server, ccache (4 or newer) or
sccache is not on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from builds import checked, configure_command, run

# Two sources that compile quickly, the first for newer GPUs as well.
SOURCES = ["gemm_sm80_memory_bound{}.cu", "gemm_sm90a_memory_bound.cu"]
NARROW = ["-DCUTWHEEL_KERNELS=gemm_sm80_*_splitk_reduce;gemm_sm90a_*_pad_rows"]
NARROW += ["-DCUTWHEEL_ARCHS=80;90a"]


def missing(what: str) -> NoReturn:
    """`make test-caches` installed all of it."""
    (pytest.fail if os.environ.get("CUTWHEEL_CACHES") else pytest.skip)(f"no {what} on PATH")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[str]:
    """The address of a server that holds nothing yet."""
    server = shutil.which("redis-server")
    if server is None:
        missing("redis-server")
    port = free_port()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen([server, *options], stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        else:
            pytest.fail("redis-server does not answer")
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def build(folder: Path, launcher: str, **environment: str) -> dict[str, bytes]:
    """The objects of a build from nothing at this path, as another machine has it.

    sccache does not know PTX that is assembled more than once.
    """
    shutil.rmtree(folder, ignore_errors=True)
    option = f"-DCUTWHEEL_COMPILER_CACHE={launcher}"
    told = checked(*configure_command(folder, *NARROW, option), **environment)
    assert ("with sccache, no PTX is assembled for newer GPUs" in told) == ("sccache" in launcher)
    checked(
        *("cmake", "--build", folder, "--target", "cutwheel_sm80", "cutwheel_sm90a"), **environment
    )
    found = {path.name: path.read_bytes() for path in folder.rglob("*.cu.o")}
    # Without that PTX the kernels of the first source are no others than those of older GPUs.
    assembled = "" if "sccache" in launcher else "_assembled"
    assert sorted(found) == sorted(f"{name.format(assembled)}.o" for name in SOURCES)
    return found


@pytest.mark.slow
def test_ccache_takes_what_another_machine_has_compiled(redis: str, tmp_path: Path) -> None:
    ccache = shutil.which("ccache")
    if ccache is None or "redis-storage" not in checked(ccache, "--version"):
        missing("ccache with storage in Redis")

    def machine(name: str) -> tuple[dict[str, bytes], dict[str, int]]:
        """With a cache of its own, which is empty."""
        local = {"CCACHE_DIR": str(tmp_path / name), "CCACHE_COMPILERCHECK": "content"}
        made = build(tmp_path / "build", ccache, CCACHE_REMOTE_STORAGE=redis, **local)
        lines = checked(ccache, "--print-stats", **local).splitlines()
        return made, {key: int(value) for key, value in (line.split() for line in lines)}

    first, counts = machine("first")
    assert counts["remote_storage_hit"] == 0
    assert counts["cache_miss"] == len(SOURCES)
    second, counts = machine("second")
    assert counts["cache_miss"] == 0
    assert counts["local_storage_hit"] == 0
    assert counts["remote_storage_hit"] == len(SOURCES)
    assert second == first, "the very objects"


@pytest.mark.slow
def test_sccache_takes_what_another_machine_has_compiled(redis: str, tmp_path: Path) -> None:
    sccache = shutil.which("sccache")
    if sccache is None:
        missing("sccache")
    given = {"SCCACHE_REDIS_ENDPOINT": redis, "SCCACHE_SERVER_PORT": str(free_port())}
    given |= {"SCCACHE_IDLE_TIMEOUT": "600", "SCCACHE_DIR": str(tmp_path / "unused")}

    def machine() -> tuple[dict[str, bytes], dict[str, int]]:
        """With a server of its own: all that sccache remembers is in Redis."""
        try:
            made = build(tmp_path / "build", sccache, **given)
            text = checked(sccache, "--show-stats", "--stats-format=json", **given)
        finally:
            run(sccache, "--stop-server", **given)
        stats = json.loads(text)["stats"]
        return made, {
            kind: sum(stats[f"cache_{kind}"]["counts"].values()) for kind in ("hits", "misses")
        }

    first, counts = machine()
    assert counts["hits"] == 0
    assert counts["misses"] >= len(SOURCES)
    second, again = machine()
    assert again == {"hits": counts["misses"], "misses": 0}
    assert second == first, "the very objects"
