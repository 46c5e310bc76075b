"""Drivers that cannot serve: none, one that is too old, one without what the kernels need.

A stand-in libcuda.so.1 of a few lines takes the driver's place; the statically linked CUDA runtime
finds it through LD_LIBRARY_PATH like the real one.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import driver_floor
import pytest

# CUresult: 0 is CUDA_SUCCESS, 500 is CUDA_ERROR_NOT_FOUND.
SOURCE = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                        int *status) {
  return cuGetProcAddress(name, function, version, flags);
}
int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  *function = 0;
  if (!strcmp(name, "cuInit")) *function = (void *)cuInit;
  if (!strcmp(name, "cuDriverGetVersion")) *function = (void *)cuDriverGetVersion;
  if (!strcmp(name, "cuGetProcAddress")) *function = (void *)cuGetProcAddress_v2;
  return *function ? 0 : 500;
}
"""

ASK = """
import json, torch, cutwheel
status = json.loads(torch.ops.cutwheel._driver_status())
try:
    torch.ops.cutwheel._device_info(0)
    error = None
except RuntimeError as raised:
    error = str(raised)
print(json.dumps([status, error]))
"""


def ask(package: ModuleType, driver_folder: Path | None) -> tuple[dict[str, object], str]:
    """The driver's status, and the error of a call that needs one, in a fresh process."""
    assert package.__file__ is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    if driver_folder is not None:
        environment["LD_LIBRARY_PATH"] = str(driver_folder)
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    status, error = json.loads(done.stdout)
    assert error is not None, "the call did not refuse"
    return status, error


def stand_in(folder: Path, version: int) -> Path:
    """A folder with a libcuda.so.1 that says it is `version` and has no other function."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stand-in driver")
    source = folder / "driver.c"
    source.write_text(SOURCE)
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            f"-DVERSION={version}",
            "-o",
            str(folder / "libcuda.so.1"),
            str(source),
        ],
        check=True,
    )
    return folder


def test_a_driver_that_is_too_old_is_named(cutwheel: ModuleType, tmp_path: Path) -> None:
    status, error = ask(cutwheel, stand_in(tmp_path, 11080))
    assert status["ok"] is False
    assert status["driver_version"] == 11080
    for text in (status["message"], error):
        assert "supports CUDA 11.8" in str(text)
        assert f"needs {status['required_driver']}: update the driver" in str(text)
    assert error.startswith("cutwheel.RuntimeError: ")


def test_the_oldest_driver_is_that_of_the_compiler(cutwheel: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    built_with = json.loads(torch.ops.cutwheel._build_info())["cuda"]
    status = json.loads(torch.ops.cutwheel._driver_status())
    # Fatbins of zstd since 12.8: driver_floor.py. Read from the file itself by verify.py.
    compression = "lz4" if built_with in ("12.4", "12.5", "12.6") else "zstd"
    floor = driver_floor.of_build(built_with, compression)
    assert (status["required"], status["required_driver"]) == (floor.cuda, str(floor))


@pytest.mark.parametrize("behind", [10, 20])
def test_the_oldest_driver_is_the_first_that_is_accepted(
    cutwheel: ModuleType, tmp_path: Path, behind: int
) -> None:
    torch = pytest.importorskip("torch")
    required = json.loads(torch.ops.cutwheel._driver_status())["required"]
    status, error = ask(cutwheel, stand_in(tmp_path, required - behind))
    assert "update the driver" in error
    (tmp_path / "libcuda.so.1").unlink()
    status, error = ask(cutwheel, stand_in(tmp_path, required))
    assert "update the driver" not in error, "and what it lacks is another thing"
    assert status["driver_version"] == required


def test_a_driver_without_tensor_maps_is_named(cutwheel: ModuleType, tmp_path: Path) -> None:
    status, error = ask(cutwheel, stand_in(tmp_path, 13000))
    assert status["ok"] is False
    assert "cuTensorMapEncodeTiled" in error
    assert f"reinstall {status['required_driver']}" in error


@pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="a CUDA driver is installed"
)
def test_no_driver_is_named(cutwheel: ModuleType) -> None:
    status, error = ask(cutwheel, None)
    assert status["ok"] is False
    assert status["driver_version"] == 0
    assert "no CUDA driver is installed" in error
    assert f"needs {status['required_driver']}" in error
