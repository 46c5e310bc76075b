"""CUTWHEEL_PRECOMPILED: the library of a wheel is taken if it is that of these sources.

The wheel is the one under test; without it, one of a single kernel is built.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import precompiled
import pytest
import tomllib
from builds import ROOT, checked, configure_command, environment, failure, run

KERNELS, ARCHS = "gemm_sm80_*_splitk_reduce", "80"
# Whoever works on the Python side needs none of them.
NO_COMPILER = {"CUDACXX": "/nowhere/nvcc", "CXX": "/nowhere/c++", "CUTWHEEL_CUDA": "auto"}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
BUILD = ("-m", "build", "--no-isolation", "--skip-dependency-check")
ASK = """
import json, cutwheel
from cutwheel import _library
print(json.dumps([len(cutwheel.kernels()), cutwheel.__file__, str(_library.PATH)]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("CUTWHEEL_WHEEL"):
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("built")
    defined = {"CUTWHEEL_KERNELS": KERNELS, "CUTWHEEL_ARCHS": ARCHS}
    options = [f"-Ccmake.define.{key}={value}" for key, value in defined.items()]
    checked(sys.executable, *BUILD, "--wheel", "--outdir", folder, *options)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read("cutwheel/manifest.json"))
    return [kernel["name"] for kernel in manifest["kernels"]]


@pytest.fixture(scope="module")
def selection(names: list[str]) -> list[str]:
    """What the build was told of the kernels that are in the wheel: nothing, if all are."""
    generate = ("cmake/kernelgen/generate.py", "--source-dir", ROOT, "--list")
    if len(names) == len(checked(sys.executable, *generate).split()):
        return []
    archs = {re.findall(r"_sm(\d+a?)_", name)[0] for name in names}
    return [f"-DCUTWHEEL_KERNELS={';'.join(names)}", f"-DCUTWHEEL_ARCHS={';'.join(sorted(archs))}"]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, selection: list[str], wheel: Path) -> Path:
    """What kernelgen writes for the kernels of the wheel; the configure takes its library."""
    build = tmp_path_factory.mktemp("taken")
    output = checked(
        *configure_command(build, *selection), CUTWHEEL_PRECOMPILED=str(wheel), **NO_COMPILER
    )
    assert f"nothing is compiled, _C.so is that of {wheel}" in output
    assert "no work to do" in checked("cmake", "--build", build)
    return build / "generated" / "manifest.json"


def changed(wheel: Path, to: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """A copy of the wheel with other members, and RECORD as it was."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(to / wheel.name, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return to / wheel.name


def member(files: dict[str, bytes], end: str) -> str:
    [name] = (name for name in files if name.endswith(end))
    return name


def entry(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def rewritten(files: dict[str, bytes], end: str, data: bytes) -> None:
    """As a tool does that changes a member: RECORD agrees."""
    name, record = member(files, end), member(files, ".dist-info/RECORD")
    lines = files[record].decode().splitlines()
    kept = [line for line in lines if not line.startswith(f"{name},")]
    files[name] = data
    files[record] = "\n".join([*kept, entry(name, data)]).encode()


def take(path: Path, manifest: Path, sha256: str = "", root: Path = ROOT) -> dict[str, bytes]:
    return precompiled.take(path, sha256, root, VERSION, manifest)


def refusal(*arguments: object, **others: object) -> str:
    with pytest.raises(precompiled.RefusedError) as refused:
        take(*arguments, **others)  # type: ignore[arg-type]
    return str(refused.value)


# --- taken


def test_the_library_of_the_wheel_is_taken_bit_by_bit(wheel, manifest):
    folder = manifest.parents[1] / "precompiled"
    with zipfile.ZipFile(wheel) as archive:
        for name in ("_C.so", "manifest.json"):
            assert (folder / name).read_bytes() == archive.read(f"cutwheel/{name}")
    assert not list(manifest.parents[1].glob("CMakeFiles/_C.dir"))


def installed_kernels(python: str | Path, where: Path, **changes: str) -> list[object]:
    """How many kernels the package has, where it is and where its library is."""
    command = [str(python), "-c", ASK]
    done = subprocess.run(
        command, env=environment(**changes), cwd=where, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def pip_options(selection: list[str]) -> list[str]:
    defined = [f"-Ccmake.define.{option.removeprefix('-D')}" for option in selection]
    return ["--no-deps", "--no-build-isolation", "--quiet", *defined]


def test_pip_installs_a_package_without_compiling(wheel, selection, names, tmp_path):
    target = tmp_path / "target"
    install = (sys.executable, "-m", "pip", "install", "--target", target, ROOT)
    checked(*install, *pip_options(selection), CUTWHEEL_PRECOMPILED=str(wheel), **NO_COMPILER)
    [record] = target.glob("cutwheel-*.dist-info/sources.json")
    assert json.loads(record.read_text())["files"] == precompiled.hashes(ROOT)
    assert list(target.glob("cutwheel-*.dist-info/sboms/cutwheel.cdx.json"))
    count, package, library = installed_kernels(sys.executable, tmp_path, PYTHONPATH=str(target))
    assert count == len(names)
    assert package == str(target / "cutwheel" / "__init__.py")
    assert library == str(target / "cutwheel" / "_C.so")


def test_an_editable_installation_runs_the_sources_beside_the_library(
    wheel, selection, names, tmp_path
):
    venv = tmp_path / "venv"
    checked(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin" / "python"
    [packages] = venv.glob("lib/*/site-packages")
    # torch, and what builds: of this environment.
    (packages / "outer.pth").write_text("\n".join(site.getsitepackages()))
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--editable", ROOT]
    given = {"CUTWHEEL_PRECOMPILED": str(wheel), **NO_COMPILER}
    checked(*install, *pip_options(selection), **given)
    count, package, library = installed_kernels(python, tmp_path, PYTHONPATH="")
    assert count == len(names)
    assert package == str(ROOT / "python" / "cutwheel" / "__init__.py")
    assert library == str(packages / "cutwheel" / "_C.so")


def test_a_source_distribution_has_the_sources_that_are_compared(tmp_path):
    checked(sys.executable, *BUILD, "--sdist", "--outdir", tmp_path)
    [sdist] = tmp_path.glob("*.tar.gz")
    (tmp_path / "source").mkdir()
    checked("tar", "-xzf", sdist, "-C", tmp_path / "source")
    [root] = (tmp_path / "source").iterdir()
    assert precompiled.hashes(root) == precompiled.hashes(ROOT)


@pytest.mark.parametrize("setting", [True, False])
def test_the_backend_asks_for_no_compiler_then(setting):
    key = "cmake.define.CUTWHEEL_PRECOMPILED"
    code = f"import build_backend as b; print(b.get_requires_for_build_editable({{{key!r}: 'x'}}))"
    paths = {"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'cmake'}", "CUTWHEEL_CUDA": "pypi"}
    if not setting:
        code = code.replace(f"{{{key!r}: 'x'}}", "{}")
        assert "nvidia-cuda-nvcc==" in checked(sys.executable, "-c", code, **paths)
        paths["CUTWHEEL_PRECOMPILED"] = "x"
    found = checked(sys.executable, "-c", code, **paths)
    assert "nvidia" not in found
    assert "torch" not in found


# --- refused


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The sources, to be changed."""
    root = tmp_path / "clone"
    for name in [*precompiled.files(ROOT), "pyproject.toml", "python/cutwheel/__init__.py"]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def test_changed_sources_are_refused_by_name(wheel, selection, clone, tmp_path):
    with (clone / "cuda" / "core" / "types.h").open("a") as file:
        file.write("// changed\n")
    (clone / "cuda" / "torch" / "added.cpp").touch()
    (clone / "cmake" / "exports.map").unlink()
    given = {"CUTWHEEL_PRECOMPILED": str(wheel), **NO_COMPILER}
    text = failure(tmp_path / "b", *selection, source=clone, **given)
    assert "changed here: cuda/core/types.h only here: cuda/torch/added.cpp only in the" in text
    assert "only in the wheel: cmake/exports.map Take a wheel of these sources, or" in text
    assert "unset CUTWHEEL_PRECOMPILED" in text


def test_what_shapes_no_library_may_change(wheel, manifest, clone):
    (clone / "python" / "cutwheel" / "__init__.py").write_text("changed = True\n")
    (clone / "cuda" / "core" / ".types.h.swp").touch()
    (clone / "cmake" / "__pycache__").mkdir()
    (clone / "cmake" / "__pycache__" / "precompiled.cpython-311.pyc").touch()
    assert take(wheel, manifest, root=clone)["_C.so"]


def test_a_wheel_of_another_version_is_refused(wheel, manifest):
    with pytest.raises(precompiled.RefusedError, match=r"in the wheel, 99\.0 in pyproject\.toml"):
        precompiled.take(wheel, "", ROOT, "99.0", manifest)


def test_a_wheel_that_does_not_say_its_sources_is_refused(wheel, manifest, tmp_path):
    old = changed(wheel, tmp_path, lambda files: files.pop(member(files, "/sources.json")))
    assert "so it does not say what it was built from" in refusal(old, manifest)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"schema": 2}', b'{"schema": 1, "files": {}}'])
def test_sources_that_cannot_be_read_are_refused(wheel, manifest, tmp_path, data):
    odd = changed(wheel, tmp_path, lambda files: rewritten(files, "/sources.json", data))
    assert "its sources.json cannot be understood" in refusal(odd, manifest)


@pytest.mark.parametrize("end", ["cutwheel/_C.so", "cutwheel/manifest.json", "/sources.json"])
def test_a_wheel_that_was_changed_is_refused(wheel, manifest, tmp_path, end):
    def change(files: dict[str, bytes]) -> None:
        files[member(files, end)] += b" "

    text = refusal(changed(wheel, tmp_path, change), manifest)
    assert re.search(rf"{re.escape(end)} has sha256=\S+, and RECORD says sha256=", text)


def test_a_file_with_another_hash_is_refused(wheel, manifest):
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert take(wheel, manifest, good.upper())["_C.so"]
    assert f"its SHA-256 is {good}, not that behind #sha256=" in refusal(wheel, manifest, "0" * 64)


def test_other_kernels_than_the_selected_are_refused(wheel, selection, names, tmp_path):
    options = ["-DCUTWHEEL_KERNELS=scaled_mm_sm80_s8_*", "-DCUTWHEEL_ARCHS=80"]
    given = {"CUTWHEEL_PRECOMPILED": str(wheel), **NO_COMPILER}
    text = failure(tmp_path / "b", *options, **given)
    assert "its manifest.json is not the one of this selection of kernels" in text
    assert f"({len(names)} in the wheel, " in text
    assert "it also has " in text


def test_a_wheel_of_another_platform_is_refused(wheel, manifest, tmp_path):
    def change(files: dict[str, bytes]) -> None:
        tag = b"Wheel-Version: 1.0\nTag: py3-none-manylinux_2_28_riscv64\n"
        rewritten(files, ".dist-info/WHEEL", tag)

    text = refusal(changed(wheel, tmp_path, change), manifest)
    assert "it is tagged py3-none-manylinux_2_28_riscv64, and this machine is" in text


def test_what_is_no_wheel_is_refused(manifest, tmp_path):
    text = tmp_path / "page.whl"
    text.write_text("<html>")
    with pytest.raises(precompiled.RefusedError, match="it is no wheel"):
        precompiled.take(text, "", ROOT, "1.0", manifest)
    with pytest.raises(precompiled.RefusedError, match=r"cannot be read .* absolute path"):
        precompiled.take(tmp_path / "gone.whl", "", ROOT, "1.0", manifest)


# --- addresses


@pytest.fixture
def served(wheel: Path) -> Iterator[str]:
    """The address of the wheel on a local server."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = partial(Quiet, directory=str(wheel.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{wheel.name}"
        server.shutdown()


def test_a_wheel_is_downloaded_once_and_by_its_hash(served, wheel, selection, tmp_path):
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    command = configure_command(tmp_path, *selection)
    given = {"CUTWHEEL_PRECOMPILED": f"{served}#sha256={sha256}", **NO_COMPILER}
    for downloads in (True, False):
        output = checked(*command, **given)
        assert (f"downloading {served}" in output) == downloads
        assert "nothing is compiled" in output
    with zipfile.ZipFile(wheel) as archive:
        library = archive.read("cutwheel/_C.so")
    assert (tmp_path / "precompiled" / "_C.so").read_bytes() == library


def test_a_download_with_another_hash_is_refused(served, wheel, tmp_path):
    text = failure(tmp_path, CUTWHEEL_PRECOMPILED=f"{served}#sha256={'0' * 64}", **NO_COMPILER)
    assert f"its SHA-256 is {hashlib.sha256(wheel.read_bytes()).hexdigest()}, not that" in text
    assert not list(tmp_path.glob("precompiled/*"))


def test_a_download_that_fails_is_refused(served, tmp_path):
    place = f"{served}.gone#sha256={'0' * 64}"
    text = failure(tmp_path, CUTWHEEL_PRECOMPILED=place, **NO_COMPILER)
    assert "the download failed (HTTP response code said error). Fetch the wheel by other" in text


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("https://wheels.example/x.whl", "what is downloaded needs a hash. Append #sha256="),
        ("https://wheels.example/x.whl#sha256=abc", "expected are 64 hexadecimal digits"),
        ("x.whl#sha256=", "expected are 64 hexadecimal digits"),
        ("nowhere/x.whl", "it cannot be read (No such file or directory). Give an absolute path"),
    ],
)
def test_an_address_that_cannot_be_meant_stops_the_configure(tmp_path, place, message):
    text = failure(tmp_path, CUTWHEEL_PRECOMPILED=place, **NO_COMPILER)
    assert "CUTWHEEL_PRECOMPILED=" in text
    assert message in text


@pytest.mark.parametrize("variable", ["CUTWHEEL_SHARD", "CUTWHEEL_SHARDS"])
@pytest.mark.parametrize("by_option", [True, False])
def test_a_wheel_and_shards_at_once_stop_the_configure(tmp_path, variable, by_option):
    value = "1/2" if variable == "CUTWHEEL_SHARD" else "shards"
    options = [f"-D{variable}={value}"] if by_option else []
    others = {} if by_option else {variable: value}
    text = failure(tmp_path, *options, CUTWHEEL_PRECOMPILED="x.whl", **others, **NO_COMPILER)
    assert f"CUTWHEEL_PRECOMPILED=x.whl takes a finished library, and {variable}={value} " in text
    assert f"Unset {variable} (in the environment and as -D{variable}=) to take" in text
    assert "or CUTWHEEL_PRECOMPILED to work with shards" in text


def test_without_the_variable_the_next_configure_compiles(wheel, selection, tmp_path):
    """It is not kept in the cache of CMake."""
    command = configure_command(tmp_path, *selection)
    checked(*command, CUTWHEEL_PRECOMPILED=str(wheel), **NO_COMPILER)
    without = run(*command, **NO_COMPILER)
    assert without.returncode != 0
    assert "/nowhere/c++" in without.stdout + without.stderr
