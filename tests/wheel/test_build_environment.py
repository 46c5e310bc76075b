"""Environment variables that a build reads as other extensions of torch do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builds import ROOT, cached, checked, configure_command, environment, failure, fake_nvcc, run

import cuda_toolchain
import torch_archs

# Few, and some for each architecture.
KERNELS = "gemm_sm80_bf16_*_64x64x64_*;*_splitk_reduce"


@pytest.fixture
def no_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("CUDACXX", "CUDA_HOME", "CUTWHEEL_CUDA"):
        monkeypatch.delenv(variable, raising=False)


def toolkit(folder: Path, release: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    fake_nvcc(folder / "bin", release)
    return folder


# --- CUDA_HOME


@pytest.mark.usefixtures("no_compiler_is_named")
def test_the_compiler_of_cuda_home_comes_before_that_on_path(tmp_path, monkeypatch):
    on_path = fake_nvcc(tmp_path, "13.1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert cuda_toolchain.find_nvcc() == cuda_toolchain.Nvcc(on_path, (13, 1))
    home = toolkit(tmp_path / "toolkit", "12.9")
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert cuda_toolchain.find_nvcc() == cuda_toolchain.Nvcc(home / "bin" / "nvcc", (12, 9))
    assert cuda_toolchain.requirements() == []
    monkeypatch.setenv("CUDA_HOME", "")
    assert cuda_toolchain.find_nvcc().path == on_path


@pytest.mark.usefixtures("no_compiler_is_named")
def test_cudacxx_comes_before_cuda_home(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDACXX", str(fake_nvcc(tmp_path, "13.1")))
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path / "toolkit", "12.9")))
    assert cuda_toolchain.find_nvcc().version == (13, 1)
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert cuda_toolchain.find_nvcc().version == (13, 1)


@pytest.mark.usefixtures("no_compiler_is_named")
def test_the_compiler_from_pypi_comes_before_cuda_home_if_it_is_chosen(monkeypatch):
    monkeypatch.setenv("CUTWHEEL_CUDA", "pypi")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert cuda_toolchain.find_system_nvcc() is None
    assert cuda_toolchain.requirements() == cuda_toolchain.pins()


def test_a_cuda_home_without_nvcc_stops_the_configure(tmp_path):
    text = failure(tmp_path / "b", CUDACXX="", CUDA_HOME=str(tmp_path), CUTWHEEL_CUDA="auto")
    assert f"CUDA_HOME={tmp_path}: there is no nvcc in {tmp_path}/bin. Set CUDA_HOME to" in text


def test_a_cuda_home_that_is_too_old_stops_the_configure(tmp_path):
    home = toolkit(tmp_path / "toolkit", "12.3")
    text = failure(tmp_path / "b", CUDACXX="", CUDA_HOME=str(home), CUTWHEEL_CUDA="auto")
    assert f"CUDA_HOME={home}: {home}/bin/nvcc: nvcc 12.3 is too old, 12.4 or newer" in text


def test_a_cuda_home_without_nvcc_stops_the_build_backend(tmp_path):
    code = "import build_backend as b; b.get_requires_for_build_wheel({})"
    paths = {"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'cmake'}"}
    given = {"CUDACXX": "", "CUDA_HOME": str(tmp_path), "CUTWHEEL_CUDA": "auto"}
    result = run(sys.executable, "-c", code, **paths, **given)
    assert result.returncode == 1
    assert result.stderr.strip().startswith(f"CUDA_HOME={tmp_path}: there is no nvcc")


# --- platforms


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("sys.platform = 'win32'", "cutwheel: win32 is not supported"),
        ("sys.platform = 'darwin'", "cutwheel: darwin is not supported"),
        ("platform.machine = lambda: 'ppc64le'", "cutwheel: ppc64le with 64-bit Python is not"),
        ("platform.machine = lambda: 'i686'", "cutwheel: i686 with 64-bit Python is not"),
        ("sys.maxsize = 2**31 - 1", "with 32-bit Python is not supported"),
        ("platform.libc_ver = lambda: ('', '')", "not built for glibc (Alpine is not)"),
    ],
)
@pytest.mark.parametrize(
    "hook", ["get_requires_for_build_wheel", "get_requires_for_build_editable"]
)
def test_an_unsupported_platform_stops_the_build_before_downloads(change, message, hook):
    code = f"import platform, sys; import build_backend as b; {change}; b.{hook}({{}})"
    paths = {"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'cmake'}"}
    result = run(sys.executable, "-c", code, **paths, CUTWHEEL_CUDA="pypi")
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_both_cpu_architectures_are_built_for(machine):
    code = "import platform; import build_backend as b\n"
    code += f"platform.machine = lambda: '{machine}'; print(b.get_requires_for_build_wheel({{}}))"
    paths = {"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'cmake'}"}
    result = run(sys.executable, "-c", code, **paths, CUTWHEEL_CUDA="pypi")
    assert "nvidia-cuda-nvcc==" in result.stdout, result.stderr


# --- MAX_JOBS


def jobs_of(build: Path) -> str:
    """The depth of the pool that compiles."""
    lines = (build / "CMakeFiles" / "rules.ninja").read_text(encoding="utf-8").splitlines()
    return lines[lines.index("pool compile") + 1].split("=")[1].strip()


def configured(build: Path, *definitions: str, **changes: str) -> str:
    command = configure_command(build, f"-DCUTWHEEL_KERNELS={KERNELS}", *definitions)
    return checked(*command, **changes)


def test_max_jobs_is_the_number_of_compile_jobs(tmp_path):
    configured(tmp_path, MAX_JOBS="13")
    assert jobs_of(tmp_path) == "13"


def test_cutwheel_jobs_comes_before_max_jobs(tmp_path):
    configured(tmp_path, "-DCUTWHEEL_JOBS=7", MAX_JOBS="13")
    assert jobs_of(tmp_path) == "7"


@pytest.mark.parametrize(
    ("cores", "gib", "jobs"),
    [(2, 8, 1), (4, 16, 3), (4, 64, 4), (64, 128, 25), (0, 16, 3), (8, 1, 1)],
)
def test_jobs_follow_from_cores_and_memory(tmp_path, cores, gib, jobs):
    """5 GiB a job; a machine whose cores cannot be counted (0) has the memory's."""
    script = tmp_path / "jobs.cmake"
    script.write_text(
        f"include({ROOT}/cmake/BuildTools.cmake)\n"
        f"cutwheel_jobs_for({cores} {gib * 1024} jobs)\n"
        'message("jobs: ${jobs}")\n'
    )
    done = run("cmake", "-P", script)
    assert f"jobs: {jobs}\n" in done.stderr, done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "many", "2.5", "4;5"])
def test_a_max_jobs_that_is_no_number_of_jobs_stops_the_configure(tmp_path, value):
    text = failure(tmp_path / "b", MAX_JOBS=value)
    assert f"MAX_JOBS={value}: expected a whole number of at least 1" in text


# --- TORCH_CUDA_ARCH_LIST


@pytest.mark.parametrize(
    ("text", "archs"),
    [
        ("8.0;8.6;9.0+PTX", "80;90a"),
        ("8.0", "80"),
        ("8.6+PTX", "80"),
        ("8.7", "80"),
        ("8.9", "80;89"),  # what sm89 lacks is that of sm80
        ("9.0", "90a"),
        ("9.0a 8.9 8.0", "80;89;90a"),
        ("7.5 8.0 8.6 9.0 10.0 12.0+PTX", "80;90a"),
        ("Ampere;Ada", "80;89"),
        ("Hopper, Blackwell", "90a"),
    ],
)
def test_torchs_list_becomes_architectures(text, archs):
    found = torch_archs.wanted(text)
    assert ";".join(found.archs) == archs
    assert found.note.startswith(f"TORCH_CUDA_ARCH_LIST={text}: kernels for {archs}")


@pytest.mark.parametrize(
    ("text", "not_built"),
    [
        ("8.0;8.6+PTX;8.9;9.0", None),
        ("8.0;9.0+PTX", "PTX of 9.0 (it would run nowhere else); GPUs newer than 9.0 run the PTX"),
        ("9.0+PTX", "PTX of 9.0 (it would run nowhere else); GPUs newer than 9.0 need 8.0+PTX in"),
        ("7.0;7.5+PTX;8.0", "7.0 (older than 8.0), 7.5+PTX (older than 8.0); GPUs newer"),
        ("8.0;10.0a;12.0", "10.0a (no kernels of its own), 12.0 (no kernels of its own); GPUs"),
        ("Turing;Ampere", "7.5+PTX (older than 8.0); GPUs newer"),
    ],
)
def test_what_of_torchs_list_is_not_built_is_named(text, not_built):
    _, _, named = torch_archs.wanted(text).note.partition(". Not built: ")
    assert named.startswith(not_built) if not_built else named == ""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("7.5", "nothing is left to build: 7.5 (older than 8.0)"),
        ("12.0+PTX", "nothing is left to build: 12.0+PTX (no kernels of its own). Add 8.0+PTX"),
        ("8.0;sm_90", "sm_90 is no architecture; expected such as 8.0, 9.0+PTX or Ampere"),
        ("80", "80 is no architecture"),
    ],
)
def test_a_list_that_cannot_be_built_stops_the_configure(tmp_path, text, reason):
    assert f"TORCH_CUDA_ARCH_LIST={text}: {reason}" in failure(
        tmp_path / "b", TORCH_CUDA_ARCH_LIST=text
    )


def archs_of(output: str) -> str:
    (line,) = (
        line for line in output.splitlines() if " kernels for " in line and "_LIST" not in line
    )
    return line.rpartition(" ")[2]


def test_a_build_is_for_the_architectures_of_torchs_list(tmp_path):
    """And each configure reads the list anew."""
    output = configured(tmp_path, TORCH_CUDA_ARCH_LIST="8.0;8.6;9.0+PTX")
    assert "TORCH_CUDA_ARCH_LIST=8.0;8.6;9.0+PTX: kernels for 80;90a. Not built: PTX" in output
    assert archs_of(output) == "80;90a"
    info = (tmp_path / "generated" / "build_info.h").read_text(encoding="utf-8")
    assert 'kArchs = "80;90a"' in info
    commands = (tmp_path / "compile_commands.json").read_text(encoding="utf-8")
    assert [arch for arch in ("sm80", "sm89", "sm90a") if f"_{arch}_" in commands] == [
        "sm80",
        "sm90a",
    ]
    assert archs_of(configured(tmp_path, TORCH_CUDA_ARCH_LIST="8.9")) == "80;89"
    assert archs_of(configured(tmp_path)) == "80;89;90a"
    assert cached(tmp_path, "CUTWHEEL_ARCHS") == ""


def test_cutwheel_archs_comes_before_torchs_list(tmp_path):
    output = configured(tmp_path, "-DCUTWHEEL_ARCHS=80;89", TORCH_CUDA_ARCH_LIST="9.0;7.5")
    assert archs_of(output) == "80;89"
    assert "TORCH_CUDA_ARCH_LIST" not in output


@pytest.mark.parametrize(
    ("settings", "archs", "narrow"),
    [
        ([], "80;89;90a", False),
        (["ARCHS=89"], "89", True),
        (["TORCH_CUDA_ARCH_LIST=8.0;9.0"], "", True),
        (["TORCH_CUDA_ARCH_LIST=8.0", "ARCHS=80;89;90a"], "80;89;90a", False),
        (["TORCH_CUDA_ARCH_LIST=8.0", "WHEEL=dist/some.whl"], None, False),
    ],
)
def test_make_leaves_torchs_list_to_cmake(settings, archs, narrow):
    done = subprocess.run(
        ["make", "-n", "test", *settings],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    if archs is not None:
        assert f"-Ccmake.define.CUTWHEEL_ARCHS={archs}'" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "CUTWHEEL_NARROW=" in line)
    assert ("CUTWHEEL_NARROW='' " not in line) is narrow
