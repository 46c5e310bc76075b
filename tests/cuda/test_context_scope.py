"""Which device and context are current during a call and after it: DeviceScope
(cuda/torch/tensor/tensor.h), with a driver, a runtime and shims of a few lines in place of CUDA's
and torch's."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

DRIVER = """
#pragma once
typedef int CUdevice;
typedef void* CUcontext;
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_CONTEXT = 201 } CUresult;
"""
RUNTIME = """
#pragma once
typedef enum { cudaSuccess = 0, cudaErrorInvalidDevice = 101 } cudaError_t;
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError();
char const* cudaGetErrorString(cudaError_t error);
"""
# A thread: its current context, and the device that torch means as long as there is none. Two
# devices have a primary context and a green one each.
SOURCE = r"""
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include "core/driver.h"
#include "torch/tensor/tensor.h"
#include <cuda.h>
enum : std::intptr_t { kNone, kPrimary0, kPrimary1, kGreen0, kGreen1 };
std::intptr_t current;
int torch_device;
int changes;  // of the context

int device_of(std::intptr_t context) { return context == kPrimary1 || context == kGreen1; }
int torch_index() { return current == kNone ? torch_device : device_of(current); }

cudaError_t cudaSetDevice(int device) {
  ++changes;
  if (device > 1) return cudaErrorInvalidDevice;
  current = device ? kPrimary1 : kPrimary0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
char const* cudaGetErrorString(cudaError_t) { return "invalid device ordinal"; }
CUresult get_device(CUdevice* device) {
  *device = device_of(current);
  return current == kNone ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}
CUresult get_current(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(current);
  return CUDA_SUCCESS;
}
CUresult set_current(CUcontext context) {
  ++changes;
  current = reinterpret_cast<std::intptr_t>(context);
  return CUDA_SUCCESS;
}
void* cutwheel::find_driver_function(char const* name) {
  if (!std::strcmp(name, "cuCtxGetDevice")) return reinterpret_cast<void*>(&get_device);
  if (!std::strcmp(name, "cuCtxGetCurrent")) return reinterpret_cast<void*>(&get_current);
  if (!std::strcmp(name, "cuCtxSetCurrent")) return reinterpret_cast<void*>(&set_current);
  return nullptr;
}

extern "C" {
AOTITorchError aoti_torch_get_current_device_index(int32_t* device) {
  *device = torch_index();
  return 0;
}
// As torch's: by cudaSetDevice, which makes primary contexts current.
AOTITorchError aoti_torch_create_device_guard(int32_t device, DeviceGuardHandle* guard) {
  *guard = reinterpret_cast<DeviceGuardHandle>(new int(torch_index()));
  if (device <= 1) cudaSetDevice(device);
  return 0;
}
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard) {
  int* const before = reinterpret_cast<int*>(guard);
  if (torch_index() != *before) cudaSetDevice(*before);
  delete before;
  return 0;
}
}

int main() {
  int device;
  while (std::scanf("%td %d %d", &current, &torch_device, &device) == 3) {
    std::string error;
    std::intptr_t during = -1;
    int inside = -1;
    changes = 0;
    try {
      cutwheel::DeviceScope const scope(device);
      during = current, inside = torch_index();
    } catch (std::exception const& caught) {
      error = caught.what();
    }
    std::printf("{\"during\": [%td, %d], \"after\": [%td, %d], ", during, inside, current,
                torch_index());
    std::printf("\"changes\": %d, \"error\": \"%s\"}\n", changes, error.c_str());
  }
}
"""
NONE, PRIMARY_0, PRIMARY_1, GREEN_0, GREEN_1 = range(5)


@pytest.fixture(scope="module")
def program(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("contexts")
    (folder / "cuda.h").write_text(DRIVER)
    (folder / "cuda_runtime_api.h").write_text(RUNTIME)
    (folder / "main.cpp").write_text(SOURCE)
    cuda = repository / "cuda"
    sources = ("core/context.cpp", "torch/tensor/tensor.cpp", "torch/tensor/shim_errors.cpp")
    command = [
        *(compiler, "-std=c++17", "-DTORCH_TARGET_VERSION=0x020A000000000000ULL"),
        *(f"-I{path}" for path in (cuda, folder, Path(torch.__file__).parent / "include")),
        # Functions that nothing here calls are dropped, with the shims that they would call.
        *("-O1", "-fvisibility=hidden"),
        *("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"),
        *("main.cpp", *(str(cuda / source) for source in sources), "-o", "program", "-ldl"),
    ]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "program"


def call(program: Path, current: int, device: int, torch_device: int = 0) -> dict[str, Any]:
    """Current [context, device] during a call for tensors of this device and after it."""
    done = subprocess.run(
        [program],
        input=f"{current} {torch_device} {device}",
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(
    ("context", "device"), [(PRIMARY_0, 0), (PRIMARY_1, 1), (GREEN_0, 0), (GREEN_1, 1)]
)
def test_a_context_of_the_device_is_left_alone(program: Path, context: int, device: int) -> None:
    answer = call(program, context, device)
    assert answer["during"] == answer["after"] == [context, device]
    assert answer["changes"] == 0


@pytest.mark.parametrize(
    ("context", "device"), [(PRIMARY_0, 1), (PRIMARY_1, 0), (GREEN_0, 1), (GREEN_1, 0)]
)
def test_the_context_of_another_device_is_put_back(
    program: Path, context: int, device: int
) -> None:
    answer = call(program, context, device)
    assert answer["during"] == [PRIMARY_1 if device else PRIMARY_0, device]
    assert answer["after"] == [context, 1 - device]


@pytest.mark.parametrize("device", [0, 1])
def test_a_thread_without_a_context_gets_the_primary_one(program: Path, device: int) -> None:
    primary = PRIMARY_1 if device else PRIMARY_0
    answer = call(program, NONE, device, torch_device=device)
    assert answer["during"] == [primary, device]
    assert answer["after"] == [primary, device]  # as after any call of the runtime


@pytest.mark.parametrize("device", [0, 1])
def test_torch_keeps_its_device_without_a_context(program: Path, device: int) -> None:
    answer = call(program, NONE, device, torch_device=1 - device)
    assert answer["during"] == [PRIMARY_1 if device else PRIMARY_0, device]
    assert answer["after"][1] == 1 - device


def test_a_device_that_cannot_be_made_current_is_named(program: Path) -> None:
    answer = call(program, GREEN_0, 2)
    assert answer["error"] == (
        "cutwheel.RuntimeError: CUDA device 2 cannot be made current: invalid device ordinal"
    )
    assert answer["after"] == [GREEN_0, 0]
