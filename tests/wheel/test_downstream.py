"""The built wheel as a dependency: examples/downstream, installed beside it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch_matrix

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
INSTALL = ("install", "-q", "--no-index", "--no-cache-dir", "--no-compile")

pytestmark = [
    pytest.mark.skipif("CUTWHEEL_WHEEL" not in os.environ, reason="CUTWHEEL_WHEEL names no wheel"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(
        bool(os.environ.get("CUTWHEEL_NARROW")), reason="a selection may lack what it calls"
    ),
]


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = torch_matrix.clean_environment(os.environ)
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def checked(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sample, so that its build leaves nothing in the source tree."""
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", ".*")
    copy = tmp_path_factory.mktemp("sample") / "downstream"
    return shutil.copytree(ROOT / "examples" / "downstream", copy, ignore=ignored)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with the wheel; torch, pytest and setuptools are this one's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    wheel = Path(os.environ["CUTWHEEL_WHEEL"]).resolve()
    checked(run(*PIP, "--python", python, *INSTALL, "--no-deps", wheel, cwd=folder))
    # Behind the environment's own packages, and only now: pip would take another cutwheel that is
    # installed here for the one it is to install.
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    (site_packages / "shared.pth").write_text("\n".join(sorted(paths)) + "\n")
    return python


def install(python: Path, sample: Path) -> subprocess.CompletedProcess[str]:
    """pip checks the sample's pin, and the wheel's requirements, against what is installed."""
    return run(*PIP, "--python", python, *INSTALL, "--no-build-isolation", sample, cwd=sample)


def test_a_pin_that_the_wheel_does_not_meet_is_refused(
    python: Path, sample: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(sample, tmp_path / "other")
    project = other / "pyproject.toml"
    project.write_text(project.read_text().replace("cutwheel ~= 0.1.0", "cutwheel ~= 99.0"))
    done = install(python, other)
    assert done.returncode != 0
    assert "No matching distribution found for cutwheel~=99.0" in done.stdout


@pytest.mark.slow
def test_the_sample_works_with_the_wheel(python: Path, sample: Path) -> None:
    checked(install(python, sample))
    for name in ("cutwheel", "downstream"):
        code = f"import importlib.util; print(importlib.util.find_spec('{name}').origin)"
        file = checked(run(python, "-c", code, cwd=sample)).strip()
        assert Path(file).is_relative_to(python.parents[1]), file
    options = ("-p", "no:cacheprovider", "-m", "not gpu", "--strict-config")
    text = checked(run(python, "-m", "pytest", *options, cwd=sample))
    programs = len([*(sample / "programs").glob("*.pt2")])
    assert programs > 0
    assert f"{5 + programs} passed, {1 + programs} deselected" in text
