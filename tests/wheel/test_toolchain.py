"""The build itself: which compiler, which headers, and how a configure stops."""

from __future__ import annotations

import json
import re
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import driver_floor
import pytest
from builds import ROOT, cached, checked, configure_command, failure, fake_nvcc
from elftools.elf.elffile import ELFFile

import cuda_toolchain

ARCHS = ("80", "89", "90a")
TORCH_INCLUDE = Path(sysconfig.get_path("platlib"), "torch", "include")


def first_kernel_of_each_architecture() -> list[str]:
    """The name of one GEMM kernel for each of ARCHS."""
    names = checked(
        sys.executable,
        "cmake/kernelgen/generate.py",
        "--source-dir",
        ROOT,
        "--output-dir",
        ROOT / "build",
        "--list",
    ).split()
    return [
        next(n for n in names if n.startswith(f"gemm_sm{a}_") and "splitk" not in n) for a in ARCHS
    ]


# --- which compiler


def test_cudacxx_is_taken_before_anything_else(tmp_path, monkeypatch):
    monkeypatch.delenv("CUTWHEEL_CUDA", raising=False)
    monkeypatch.setenv("CUDACXX", str(fake_nvcc(tmp_path, "12.9")))
    assert cuda_toolchain.find_nvcc() == cuda_toolchain.Nvcc(tmp_path / "nvcc", (12, 9))
    assert cuda_toolchain.requirements() == []


def test_an_old_nvcc_on_path_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUTWHEEL_CUDA", raising=False)
    old = fake_nvcc(tmp_path, "11.8")
    monkeypatch.setattr(cuda_toolchain, "system_candidates", lambda: [old])
    assert cuda_toolchain.requirements() == cuda_toolchain.pins()
    monkeypatch.setattr(cuda_toolchain, "pypi_root", lambda: None)
    with pytest.raises(
        cuda_toolchain.ToolchainError, match=r"nvcc 11\.8 is too old.*\n.*(?s:.*)pip install -r"
    ):
        cuda_toolchain.find_nvcc()


def test_pypi_is_chosen_although_the_system_has_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTWHEEL_CUDA", "pypi")
    monkeypatch.setenv("CUDACXX", str(fake_nvcc(tmp_path, "13.0")))
    root = tmp_path / "nvidia" / "cu13"
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "lib" / "libcudart.so.13").touch()
    fake_nvcc(root / "bin", "13.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cuda_toolchain.find_nvcc().path == root / "bin" / "nvcc"
    assert (root / "lib64" / "libcudart.so").resolve() == root / "lib" / "libcudart.so.13"
    assert cuda_toolchain.find_nvcc().path == root / "bin" / "nvcc"  # links that exist are no error


def test_the_tree_of_pypi_is_placed_once(tmp_path):
    root, place = tmp_path / "root", tmp_path / "place"
    (root / "bin").mkdir(parents=True)
    fake_nvcc(root / "bin", "13.0")
    (root / "lib64").symlink_to("lib")
    assert cuda_toolchain.place_pypi(root, place) == place / "bin" / "nvcc"
    assert (place / "bin" / "nvcc").samefile(root / "bin" / "nvcc")
    assert (place / "lib64").readlink() == Path("lib")
    (place / "kept").touch()
    cuda_toolchain.place_pypi(root, place)
    assert (place / "kept").exists()
    # Another environment has other files of the same names.
    (root / "bin" / "nvcc").unlink()
    fake_nvcc(root / "bin", "13.1")
    cuda_toolchain.place_pypi(root, place)
    assert not (place / "kept").exists()
    assert (place / "bin" / "nvcc").samefile(root / "bin" / "nvcc")


def test_every_package_of_the_pypi_toolchain_is_pinned():
    assert len(cuda_toolchain.pins()) == 5
    assert all("==13.0." in pin for pin in cuda_toolchain.pins())


def test_an_unknown_cutwheel_cuda_stops_the_configure(tmp_path):
    assert "CUTWHEEL_CUDA=conda: expected 'auto' or 'pypi'" in failure(
        tmp_path, CUTWHEEL_CUDA="conda"
    )


def test_a_cudacxx_that_is_too_old_stops_the_configure(tmp_path):
    nvcc = fake_nvcc(tmp_path, "12.3")
    text = failure(tmp_path / "b", CUDACXX=str(nvcc), CUTWHEEL_CUDA="auto")
    assert f"{nvcc}: nvcc 12.3 is too old, 12.4 or newer is needed" in text


def test_a_cudacxx_that_does_not_exist_stops_the_configure(tmp_path):
    text = failure(tmp_path, CUDACXX="/nowhere/nvcc", CUTWHEEL_CUDA="auto")
    assert "CUDACXX=/nowhere/nvcc: there is no such program" in text


# --- configured with the compiler that is there


@pytest.fixture(scope="module")
def configured(tmp_path_factory) -> Path:
    """A build directory configured with the compiler `make` would take, and CUTLASS from a tree."""
    tree = tmp_path_factory.mktemp("cutlass")
    location = checked(
        sys.executable, "-c", "import cutlass_library as c; print(c.__path__[0])"
    ).strip()
    (tree / "include").symlink_to(Path(location, "source", "include"))
    build = tmp_path_factory.mktemp("configured")
    output = checked(*configure_command(build, f"-DCUTLASS_DIR={tree}"))
    assert f"({tree})" in output
    return build


def test_the_system_compiler_is_used(configured):
    nvcc = cuda_toolchain.find_system_nvcc()
    if nvcc is None:
        pytest.skip("this machine has no nvcc of its own")
    assert cached(configured, "CMAKE_CUDA_COMPILER") == str(nvcc.path.absolute())


def test_every_source_is_compiled_for_one_architecture(configured):
    expected = {
        "sm80": "arch=compute_80,code=[compute_80,sm_80]",
        "sm89": "arch=compute_89,code=[compute_89,sm_89]",
        "sm90a": "arch=compute_90a,code=[sm_90a]",
    }
    # PTX of these is assembled for newer GPUs, too.
    manifest = json.loads((configured / "generated" / "manifest.json").read_text())
    assembled = {kernel["source"]: kernel["assembled"] for kernel in manifest["kernels"]}
    assert any(assembled.values())
    commands = json.loads((configured / "compile_commands.json").read_text())
    kernels = [c for c in commands if c["file"].endswith(".cu")]
    assert kernels
    for command in kernels:
        codes = [
            word
            for word in command["command"].replace('"', "").split()
            if "--generate-code" in word
        ]
        (arch,) = re.findall(r"_(sm\d+a?)_", Path(command["file"]).name)
        wanted = [f"--generate-code={expected[arch]}"]
        if newer := assembled[Path(command["file"]).name]:
            targets = ",".join(each.replace("sm", "sm_") for each in newer)
            wanted.append(f"--generate-code=arch=compute_80,code=[{targets}]")
        assert codes == wanted, command["file"]


def test_torch_headers_and_libcuda_stay_out(configured):
    commands = json.loads((configured / "compile_commands.json").read_text())
    headers = configured / "headers" / "torch"  # one path, wherever torch is
    assert headers.samefile(TORCH_INCLUDE)
    folders = {
        "torch" in Path(c["file"]).parts[-3:-1]  # cuda/torch, and a folder in it
        for c in commands
        if f"-isystem {headers}" in c["command"]
    }
    assert folders == {True}
    ninja = (configured / "build.ninja").read_text()
    assert "-lcuda " not in ninja
    assert "libcuda.so" not in ninja


def test_another_compiler_in_the_same_build_directory_stops_the_configure(configured, tmp_path):
    text = failure(configured, CUDACXX=str(fake_nvcc(tmp_path, "13.1")), CUTWHEEL_CUDA="auto")
    assert "was configured with" in text


def test_options_that_an_older_compiler_does_not_know_are_left_out(configured, tmp_path):
    """nvcc 12.4 has neither: one that does not name them stands in for it."""
    nvcc = tmp_path / "nvcc"
    real = cached(configured, "CMAKE_CUDA_COMPILER")
    hide = "sed -e s/--compress-mode/--other/ -e s/--frandom-seed/--another/"
    nvcc.write_text(
        f'#!/bin/sh\nif [ "$*" = --help ]; then {real} --help | {hide}; else exec {real} "$@"; fi\n'
    )
    nvcc.chmod(0o755)
    build = tmp_path / "b"
    checked(*configure_command(build), CUDACXX=str(nvcc), CUTWHEEL_CUDA="auto")
    for folder, knows in ((configured, True), (build, False)):
        commands = json.loads((folder / "compile_commands.json").read_text())
        kernels = [command["command"] for command in commands if command["file"].endswith(".cu")]
        assert kernels
        assert all("-Xfatbin=-compress-all" in command for command in kernels)
        for option in ("--compress-mode=size", "--frandom-seed="):
            assert {option in command for command in kernels} == {knows}, option


def test_nvvm_optimises_less_for_mma_sync(configured):
    """Where it changes nothing; not over what is for Hopper, which it does change."""
    commands = json.loads((configured / "compile_commands.json").read_text())
    kernels = {Path(c["file"]).name: c["command"] for c in commands if c["file"].endswith(".cu")}
    tiles = {name for name in kernels if name.startswith("gemm_") and "splitk" not in name}
    lighter = {name for name in tiles if "-Xcicc=-O2" in kernels[name]}
    assert lighter == {name for name in tiles if "_multistage" in name}
    assert {name.split("_")[1] for name in lighter} == {"sm80", "sm89"}
    assert "sm90a" in {name.split("_")[1] for name in tiles - lighter}


def test_the_library_is_told_its_oldest_driver(configured):
    version = cuda_toolchain.inspect(Path(cached(configured, "CMAKE_CUDA_COMPILER"))).version
    floor = driver_floor.of_build("{}.{}".format(*version), "zstd" if version >= (12, 8) else "lz4")
    header = (configured / "generated" / "build_info.h").read_text()
    assert f"kRequiredDriverCuda = {floor.cuda};" in header
    assert f'kRequiredDriver = "{floor}";' in header


# --- what else stops a configure


def test_a_cutlass_dir_without_cutlass(tmp_path):
    text = failure(tmp_path / "b", f"-DCUTLASS_DIR={tmp_path}")
    assert (
        f"{tmp_path}/include/cutlass/version.h does not exist. CUTLASS_DIR must be the root" in text
    )


def test_a_cutlass_that_is_too_old(tmp_path):
    header = tmp_path / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define CUTLASS_MAJOR 3\n#define CUTLASS_MINOR 9\n#define CUTLASS_PATCH 2\n")
    text = failure(tmp_path / "b", f"-DCUTLASS_DIR={tmp_path}")
    assert "is version 3.9.2; 4.2 or newer is needed" in text


def test_a_torch_include_without_torch(tmp_path):
    text = failure(tmp_path / "b", f"-DTORCH_INCLUDE={tmp_path}")
    assert "TORCH_INCLUDE must be the include directory of torch 2.13 or newer" in text


def test_a_broken_manifest(tmp_path):
    source = tmp_path / "source"
    for name in ("cmake", "cuda", "python", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CMakeLists.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    with (source / "cuda" / "manifests" / "gemm.toml").open("a") as manifest:
        manifest.write('\n[[kernel]]\nfamily = "sm70_wmma"\narch = ["80"]\n')
    text = failure(tmp_path / "b", source=source)
    assert "kernelgen:" in text
    assert "gemm.toml" in text
    assert "sm70_wmma" in text
    assert not list((tmp_path / "b").glob("generated/*"))


def test_a_kernel_filter_that_matches_nothing(tmp_path):
    assert "no_such_kernel" in failure(tmp_path / "b", "-DCUTWHEEL_KERNELS=no_such_kernel")


# --- built with the compiler from PyPI


def check_library(path: Path) -> None:
    """Checks what CMake alone decides; tools/wheel/verify.py checks the rest on the wheel."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        tags = list(elf.get_section_by_name(".dynamic").iter_tags())
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
        assert elf.get_section_by_name(".symtab") is None
    assert "libtorch.so" in needed
    assert not [name for name in needed if name.startswith(("libcuda", "libc10", "libtorch_"))]
    assert not [tag for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]
    defined = [s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s.name]
    assert defined == []
    undefined = [s.name for s in symbols if s["st_shndx"] == "SHN_UNDEF"]
    assert not [name for name in undefined if name.startswith("cu")]


@pytest.mark.slow
def test_the_sdist_builds_in_isolation_with_the_compiler_from_pypi(tmp_path):
    """Steps of `pip install cutwheel.tar.gz` on a machine without a CUDA toolkit."""
    build = (
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        tmp_path,
    )
    checked(sys.executable, *build)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "CMakeLists.txt",
        "cmake/cuda_toolchain.py",
        "requirements/cuda.txt",
        "licenses/CUTLASS.txt",
    } <= names
    assert not [name for name in names if name.startswith(("build/", "wheelhouse/", ".venv/"))]

    kernels = first_kernel_of_each_architecture()
    arguments = f"-DCUTWHEEL_KERNELS={';'.join(kernels)}"
    wheel = ("-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, sdist)
    checked(sys.executable, *wheel, CUTWHEEL_CUDA="pypi", CMAKE_ARGS=arguments)
    (built,) = tmp_path.glob("*.whl")
    assert built.name.endswith("-py3-none-linux_x86_64.whl")
    with zipfile.ZipFile(built) as archive:
        files = archive.namelist()
        manifest = json.loads(archive.read("cutwheel/manifest.json"))
        (sbom,) = (name for name in files if name.endswith(".dist-info/sboms/cutwheel.cdx.json"))
        components = json.loads(archive.read(sbom))["components"]
        archive.extract("cutwheel/_C.so", tmp_path)
    check_library(tmp_path / "cutwheel" / "_C.so")
    assert {c["name"] for c in components if "properties" in c} == set(kernels)
    purls = {c["name"]: c.get("purl", "") for c in components}
    assert purls["CUTLASS"].startswith("pkg:pypi/nvidia-cutlass@4.2.")
    assert purls["libcudart_static.a"] == "pkg:pypi/nvidia-cuda-runtime@13.0.88"
    assert {entry["name"]: entry["arch"] for entry in manifest["kernels"]} == {
        kernel: f"sm{arch}" for kernel, arch in zip(kernels, ARCHS, strict=True)
    }
    assert [name for name in files if name.endswith("licenses/CUTLASS.txt")]
    assert not [name for name in files if "kernelgen" in name]
