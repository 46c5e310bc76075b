"""Errors of the library where torch has no memory: cuda/torch/tensor/shim_errors.cpp, loaded
beside torch as the library is."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

# torch's shims catch every exception. TORCH_TEXT, where it is defined, is what this torch tells.
SOURCE = r"""
#include <cstdint>
#include <cstring>
#include <exception>
#include "torch/tensor/shim_errors.h"
extern "C" {
#ifdef TORCH_TEXT
// Found before torch's own.
char const* torch_exception_get_what_without_backtrace() { return TORCH_TEXT; }
#endif
int aoti_torch_empty_strided(std::int64_t, std::int64_t const*, std::int64_t const*, std::int32_t,
                             std::int32_t, std::int32_t, void**);
int aoti_torch_dtype_uint8();
int aoti_torch_device_type_cuda();

void allocate(char* text, std::int64_t rows, std::int64_t cols, int element_bytes, int device) {
  std::int64_t const sizes[] = {rows, cols};
  try {
    cutwheel::fail_allocation(sizes, 2, element_bytes, device);
  } catch (std::exception const& error) {
    std::strncpy(text, error.what(), 999);
  }
}

void view(char* text) {
  try {
    cutwheel::fail_shim("make a view");
  } catch (std::exception const& error) {
    std::strncpy(text, error.what(), 999);
  }
}

// A shim that fails wherever there is no GPU of this number.
int fail_for_real() {
  std::int64_t const size = 16, stride = 1;
  void* tensor = nullptr;
  return aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(),
                                  aoti_torch_device_type_cuda(), 77, &tensor);
}
}
"""
ALLOCATOR = "CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a total capacity of 1 GiB"


@pytest.fixture(scope="module")
def build(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ctypes.CDLL]:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")

    def build(*options: str) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp("shims")
        (folder / "empty.cpp").touch()
        (folder / "main.cpp").write_text(SOURCE)
        # DT_NEEDED libtorch.so: CMakeLists.txt.
        library = [compiler, "-std=c++17", "-shared", "-fPIC"]
        stub = ["-Wl,-soname,libtorch.so", "-o", "libtorch.so", "empty.cpp"]
        subprocess.run([*library, *stub], cwd=folder, check=True)
        sources = ["main.cpp", str(repository / "cuda/torch/tensor/shim_errors.cpp")]
        linked = [f"-I{repository / 'cuda'}", "-L.", "-Wl,--no-as-needed", "-ltorch", "-ldl"]
        program = [*library, *options, "-o", "shims.so", *sources, *linked]
        subprocess.run(program, cwd=folder, check=True)
        return ctypes.CDLL(str(folder / "shims.so"))

    return build


def allocate(
    library: ctypes.CDLL, rows: int, cols: int, element_bytes: int = 2, device: int = 3
) -> str:
    text = ctypes.create_string_buffer(1000)
    extents = ctypes.c_int64(rows), ctypes.c_int64(cols)
    library.allocate(text, *extents, element_bytes, device)
    return text.value.decode()


def view(library: ctypes.CDLL) -> str:
    text = ctypes.create_string_buffer(1000)
    library.view(text)
    return text.value.decode()


def test_the_allocators_text_is_told(build: Callable[..., ctypes.CDLL]) -> None:
    library = build(f'-DTORCH_TEXT="{ALLOCATOR}"')
    assert allocate(library, 4096, 4096) == f"cutwheel.OutOfMemoryError: {ALLOCATOR}"
    expected = f"cutwheel.RuntimeError: torch could not make a view: {ALLOCATOR}"
    assert view(library) == expected


def test_other_failures_are_no_lack_of_memory(build: Callable[..., ctypes.CDLL]) -> None:
    library = build('-DTORCH_TEXT="CUDA error: an illegal memory access"')
    assert allocate(library, 4096, 4096) == (
        "cutwheel.RuntimeError: torch could not allocate 33554432 bytes on GPU 3:"
        " CUDA error: an illegal memory access"
    )


def test_bytes_and_gpu_are_told_where_torch_is_silent(build: Callable[..., ctypes.CDLL]) -> None:
    library = build("-DTORCH_TEXT=nullptr")
    start = "cutwheel.OutOfMemoryError: CUDA out of memory. Tried to allocate"
    assert allocate(library, 4096, 4096) == f"{start} 33554432 bytes on GPU 3"
    assert allocate(library, 2**40, 2**40) == f"{start} {2**63 - 1} bytes on GPU 3"
    assert view(library) == "cutwheel.RuntimeError: torch could not make a view"


def test_torchs_own_text_is_found(build: Callable[..., ctypes.CDLL]) -> None:
    library = build()
    torch_tells = torch.__version__ >= (2, 13)
    assert library.fail_for_real() != 0
    text = allocate(library, 4096, 4096)
    if torch_tells:
        start = "cutwheel.RuntimeError: torch could not allocate 33554432 bytes on GPU 3: "
        assert text.startswith(start)
        assert len(text) > len(start) + 10
    else:
        assert text.endswith("Tried to allocate 33554432 bytes on GPU 3")
