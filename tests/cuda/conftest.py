"""Device and host units of cuda/, compiled by the C++ compiler of the machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import cuda_toolchain

# In the place of CUTLASS's headers, which need CUDA's.
CUTLASS = """
#include <algorithm>
#define CUTLASS_DEVICE inline
#define CUTLASS_HOST_DEVICE inline
#define CUTLASS_PRAGMA_UNROLL
"""
FAST_MATH = """
namespace cutlass {
struct FastDivmod {
  int divisor = 1;
  FastDivmod() = default;
  explicit FastDivmod(int x) : divisor(x) {}
  void operator()(int& quotient, int& remainder, int dividend) const {
    quotient = dividend / divisor;
    remainder = dividend % divisor;
  }
};
}  // namespace cutlass
"""


@pytest.fixture(scope="session")
def repository() -> Path:
    return Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def compiled(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The program of a source whose headers of cuda/ need of CUDA division and a stream at most."""

    def program(source: str) -> Path:
        compiler = shutil.which("g++") or shutil.which("c++")
        if compiler is None:
            pytest.skip("no C++ compiler")
        folder = tmp_path_factory.mktemp("program")
        (folder / "cutlass").mkdir()
        (folder / "cutlass" / "cutlass.h").write_text(CUTLASS)
        (folder / "cutlass" / "fast_math.h").write_text(FAST_MATH)
        (folder / "cuda_runtime_api.h").write_text("typedef struct CUstream_st* cudaStream_t;\n")
        (folder / "main.cpp").write_text(source)
        includes = [f"-I{repository / 'cuda'}", f"-I{folder}"]
        # Division by zero and overflow end it, by a trap: a runtime library may not be there.
        checks = ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
        command = [compiler, "-std=c++17", *includes, *checks, str(folder / "main.cpp")]
        subprocess.run([*command, "-o", str(folder / "program")], check=True)
        return folder / "program"

    return program


@pytest.fixture(scope="session")
def compiled_with_cutlass(repository: Path) -> Callable[..., Path]:
    """The program, in `folder`, of sources that include headers of CUDA and CUTLASS."""
    cutlass_library = pytest.importorskip("cutlass_library", reason="brings CUTLASS's headers")
    try:
        nvcc = cuda_toolchain.find_nvcc().path
    except cuda_toolchain.ToolchainError as error:
        pytest.skip(f"needs the headers of CUDA: {error}")
    cutlass = Path(cutlass_library.__path__[0], "source", "include")

    def program(source: str, folder: Path, *others: Path) -> Path:
        (folder / "main.cpp").write_text(source)
        includes = [f"-I{path}" for path in (repository / "cuda", folder, cutlass)]
        # Without assertions: on the host, CuTe has no address of shared memory.
        options = ["-std=c++17", "-DNDEBUG", "-include", "cuda_runtime.h", *includes]
        sources = [folder / "main.cpp", *others]
        subprocess.run([nvcc, *options, *sources, "-o", folder / "program"], check=True)
        return folder / "program"

    return program
