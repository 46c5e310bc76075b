"""The built wheel in clean environments of every supported Python, without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
TORCH_NEEDS = (
    "filelock",
    "fsspec",
    "jinja2",
    "networkx",
    "setuptools",
    "sympy",
    "typing-extensions",
)
OFFERED = ("torch>=2.10",)
ALONE = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
WITHOUT_TORCH = """
import compileall, importlib.metadata, json, pathlib
distribution = importlib.metadata.distribution("cutwheel")
package = pathlib.Path(distribution.locate_file("cutwheel"))
try:
    import cutwheel
    error = ""
except ImportError as missing:
    error = str(missing)
print(json.dumps({
    "version": distribution.version,
    "compiled": bool(compileall.compile_dir(package, quiet=1)),
    "library": (package / "_C.so").stat().st_size,
    "manifest": len(json.loads((package / "manifest.json").read_text())["kernels"]),
    "error": error,
}))
"""
WITH_TORCH = """
import json, cutwheel, torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    a = torch.empty(4, 8, device="cuda", dtype=torch.bfloat16)
    shape = list(cutwheel.mm(a, a.t()).shape)
kernels = cutwheel.build_info()["kernels"]
print(json.dumps({"version": cutwheel.__version__, "kernels": kernels, "shape": shape}))
"""


# This version and no other, and nothing is skipped: `make test-clean` on a machine that has it.
REQUIRED = os.environ.get("CUTWHEEL_PYTHON")


def missing(reason: str) -> None:
    """What a machine may lack, unless it was set up for this test."""
    if REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def interpreter(version: str) -> str:
    """A Python of this version: on PATH, of pyenv, or of uv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    uv = Path(sys.executable).with_name("uv")
    found = [shutil.which(f"python{version}"), *root.glob(f"versions/{version}.*/bin/python")]
    if uv.exists():
        command = [uv, "python", "find", "--no-python-downloads", version]
        found.append(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    for python in filter(None, found):  # a shim of pyenv is there for versions that are not
        if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
            return str(python)
    missing(f"no Python {version} here")
    raise AssertionError


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([python, "-I", *arguments], capture_output=True, text=True, env=ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module", params=[REQUIRED] if REQUIRED else PYTHONS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the wheel and nothing else."""
    wheel = os.environ.get("CUTWHEEL_WHEEL")
    if not wheel:
        missing("CUTWHEEL_WHEEL names no wheel")
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([interpreter(request.param), "-m", "venv", folder], check=True, env=ALONE)
    python = folder / "bin" / "python"
    named = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").stdout
    assert named.strip() == request.param
    run(python, "-m", "pip", "install", "--no-index", "--no-deps", wheel)
    return python


def test_it_installs_and_says_that_it_needs_torch(installed: Path) -> None:
    found = json.loads(run(installed, "-c", WITHOUT_TORCH).stdout)
    name = Path(os.environ["CUTWHEEL_WHEEL"]).name
    assert name.startswith(f"cutwheel-{found['version']}-py3-none-manylinux")
    assert found["compiled"]
    assert found["library"] > 0
    assert found["manifest"] > 0
    assert "torch" in found["error"]


def test_it_imports_beside_torch(installed: Path) -> None:
    pins = (Path(__file__).resolve().parents[2] / "requirements" / "torch.txt").read_text()
    [pin] = [line for line in pins.splitlines() if line and not line.startswith("#")]
    install = [installed, "-m", "pip", "install", "-q"]
    # A CPU build that is at hand, not gigabytes from an index. Where it has to be there, any torch
    # that the wheel allows: the pinned one may be older than this Python.
    at_hand = ([*install, "--no-index", "--no-deps", pin], [*install, *TORCH_NEEDS])
    for command in ([*install, *OFFERED],) if REQUIRED else at_hand:
        done = subprocess.run(command, capture_output=True, text=True, env=ALONE)
        if done.returncode != 0:
            missing(f"no CPU build of {pin} for this Python among pip's find-links\n{done.stderr}")
    found = json.loads(run(installed, "-c", WITH_TORCH).stdout)
    assert found["kernels"] > 0
    assert found["shape"] == [4, 4]
