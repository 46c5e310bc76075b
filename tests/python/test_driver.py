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
    status, error = ask(cutwheel, stand_in(tmp_path, 12040))
    assert status["ok"] is False
    assert status["driver_version"] == 12040
    assert status["required"] == 13000
    for text in (status["message"], error):
        assert "supports CUDA 12.4" in str(text)
        assert "CUDA 13.0" in str(text)
        assert "update the driver" in str(text)
    assert error.startswith("cutwheel.RuntimeError: ")


def test_a_driver_without_tensor_maps_is_named(cutwheel: ModuleType, tmp_path: Path) -> None:
    status, error = ask(cutwheel, stand_in(tmp_path, 13000))
    assert status["ok"] is False
    assert "cuTensorMapEncodeTiled" in error
    assert "580" in error


@pytest.mark.skipif(
    ctypes.util.find_library("cuda") is not None, reason="a CUDA driver is installed"
)
def test_no_driver_is_named(cutwheel: ModuleType) -> None:
    status, error = ask(cutwheel, None)
    assert status["ok"] is False
    assert status["driver_version"] == 0
    assert "no CUDA driver is installed" in error
    assert "580 or newer" in error
