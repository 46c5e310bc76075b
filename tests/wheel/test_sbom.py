"""tools/wheel/sbom.py, and the SBOM of the built wheel."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sbom
from wheelcheck.fatbin import find_cuobjdump

if TYPE_CHECKING:
    from conftest import Workshop

SITE = Path(sysconfig.get_path("purelib"))


def named(components: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (item for item in components if item["name"] == name)
    return found


def written(workshop: Workshop, **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(workshop.sbom(workshop.library(), **changes))
    return document


def test_the_same_inputs_give_the_same_bytes(workshop: Workshop) -> None:
    library = workshop.library()
    first = workshop.sbom(library, epoch=0)
    assert workshop.sbom(library, epoch=0) == first
    later = workshop.sbom(library, epoch=1)
    texts = [json.loads(text) for text in (first, later)]
    assert [d["metadata"]["timestamp"] for d in texts] == [
        "1970-01-01T00:00:00+00:00",
        "1970-01-01T00:00:01+00:00",
    ]
    assert len({d["serialNumber"] for d in texts}) == 2
    assert "timestamp" not in written(workshop)["metadata"]


def test_a_cubin_has_the_hash_of_what_cuobjdump_extracts(
    workshop: Workshop, tmp_path: Path
) -> None:
    """The steps that docs/releasing.md gives to users."""
    path = tmp_path / "_C.so"
    path.write_bytes(workshop.library())
    command = [str(find_cuobjdump()), "-xelf", "all", str(path)]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    extracted = {
        file.suffixes[-2][1:].replace("_", ""): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in tmp_path.glob("*.cubin")
    }
    assert extracted.keys() == {"sm80", "sm86", "sm89", "sm90a"}
    for arch, digest in extracted.items():
        properties = {"cutwheel:arch": arch}
        if arch in ("sm80", "sm89"):
            properties["cutwheel:ptx"] = arch.replace("sm", "compute_")
        listed = [{"name": name, "value": value} for name, value in properties.items()]
        (kernel,) = (
            part for part in written(workshop)["components"] if part.get("properties") == listed
        )
        # PTX of sm80 is assembled for sm86.
        assert kernel["name"] == f"gemm_{arch.replace('sm86', 'sm80')}_scale"
        assert kernel["hashes"] == [{"alg": "SHA-256", "content": digest}]


def test_what_is_installed_from_pypi_has_its_version_there(workshop: Workshop) -> None:
    cutlass = metadata.version("nvidia-cutlass")
    parts = written(workshop, cutlass_include=SITE / "cutlass_library" / "source" / "include")[
        "components"
    ]
    assert named(parts, "CUTLASS")["version"] == cutlass
    assert named(parts, "CUTLASS")["purl"] == f"pkg:pypi/nvidia-cutlass@{cutlass}"
    parts = written(workshop)["components"]  # from a tree
    assert named(parts, "CUTLASS")["version"] == "4.2.0"
    assert named(parts, "CUTLASS")["purl"] == "pkg:github/nvidia/cutlass@v4.2.0"


def test_the_runtime_of_a_toolkit_has_the_version_it_lists(
    workshop: Workshop, tmp_path: Path
) -> None:
    parts = written(workshop)["components"]
    assert named(parts, "libcudart_static.a")["version"] == "13.0"
    library = tmp_path / "lib64" / "libcudart_static.a"
    library.parent.mkdir()
    library.write_bytes(b"code")
    (tmp_path / "version.json").write_text('{"cuda_cudart": {"version": "13.0.96"}}')
    runtime = named(written(workshop, cudart=library)["components"], "libcudart_static.a")
    assert runtime["version"] == "13.0.96"
    assert runtime["hashes"][0]["content"] == hashlib.sha256(b"code").hexdigest()
    assert "purl" not in runtime


def test_versions_of_headers_and_compilers(workshop: Workshop) -> None:
    document = written(workshop)
    assert named(document["components"], "libcu++")["version"] == "3.1.2"
    tools = document["formulation"][0]["components"]
    assert [tool["name"] for tool in tools] == ["nvcc", "ptxas", "g++"]
    assert [tool["version"] for tool in tools][2] == "12.2.0"


def arguments(workshop: Workshop, folder: Path, kernels: list[dict[str, Any]]) -> list[str]:
    library, manifest = folder / "_C.so", folder / "manifest.json"
    library.write_bytes(workshop.library())
    manifest.write_text(json.dumps({"kernels": kernels}))
    words = [f"--library={library}", f"--manifest={manifest}", f"--output={folder / 'out.json'}"]
    for name, value in dataclasses.asdict(workshop.sbom_inputs).items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, list):
            words += [option, *map(str, value)]
        elif value is not None:
            words += [option, str(value)]
    return words


def test_the_command_line(workshop: Workshop, tmp_path: Path) -> None:
    rows = json.loads(workshop.files()["cutwheel/manifest.json"])["kernels"]
    command = [sys.executable, sbom.__file__, *arguments(workshop, tmp_path, rows)]
    subprocess.run(command, check=True)
    assert (tmp_path / "out.json").read_bytes() == workshop.sbom(workshop.library())


def test_a_kernel_without_a_cubin_stops_the_build(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"name": "gemm_sm80_gone", "arch": "sm80", "ptx": True, "assembled": []}]
    assert sbom.main(arguments(workshop, tmp_path, rows)) == 1
    assert "no cubin for 1 kernels, gemm_sm80_gone [sm80] first" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_auditwheel_leaves_library_and_sbom_as_they_are(workshop: Workshop, tmp_path: Path) -> None:
    machine = os.uname().machine
    wheel = workshop.pack(tag=f"py3-none-linux_{machine}")
    command = [sys.executable, "-m", "auditwheel", "repair", "--exclude", "libtorch*.so"]
    command += ["--wheel-dir", str(tmp_path), str(wheel)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    (repaired,) = tmp_path.glob("*manylinux*.whl")
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(repaired) as after:
        record = after.read("cutwheel-1.0.dist-info/RECORD").decode()
        for name in ("cutwheel/_C.so", "cutwheel-1.0.dist-info/sboms/cutwheel.cdx.json"):
            assert after.read(name) == before.read(name)
            assert f"{name},sha256=" in record


# --- the built wheel, which is installed here


@pytest.mark.skipif("CUTWHEEL_WHEEL" not in os.environ, reason="CUTWHEEL_WHEEL names no wheel")
def test_versions_of_the_built_wheel_are_those_of_build_info() -> None:
    cutwheel = pytest.importorskip("cutwheel")
    info = cutwheel.build_info()
    with zipfile.ZipFile(os.environ["CUTWHEEL_WHEEL"]) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/sboms/cutwheel.cdx.json"))
        document = json.loads(archive.read(name))
    parts, tools = document["components"], document["formulation"][0]["components"]
    assert document["metadata"]["component"]["version"] == info["version"]
    assert named(tools, "nvcc")["version"] == info["nvcc"]
    assert named(tools, "ptxas")["version"] == info.get("ptxas", info["nvcc"])
    assert f"{named(parts, 'CUTLASS')['version']}.".startswith(f"{info['cutlass']}.")
    assert f"{named(parts, 'libcudart_static.a')['version']}.".startswith(f"{info['cuda']}.")
    kernels = [part for part in parts if "properties" in part]
    assert len({kernel["name"] for kernel in kernels}) == info["kernels"]
    archs = {p["value"] for k in kernels for p in k["properties"] if p["name"] == "cutwheel:arch"}
    assert archs <= {f"sm{arch}" for arch in (*info["archs"], *info["assembled"])}
    assert archs >= {f"sm{arch}" for arch in info["assembled"]}


@pytest.mark.parametrize("name", sbom.CCCL_VERSION)
def test_libcuxx_has_its_version_in_one_of_two_headers(
    workshop: Workshop, tmp_path: Path, name: str
) -> None:
    header = tmp_path / name
    header.parent.mkdir(parents=True)
    header.write_text("#define CCCL_VERSION 2003002\n")
    inputs = dataclasses.replace(workshop.sbom_inputs, cuda_includes=[tmp_path / "other", tmp_path])
    assert sbom.libcuxx(inputs)["version"] == "2.3.2"
    header.unlink()
    with pytest.raises(SystemExit, match=r"no cuda/std/__cccl/version\.h and no "):
        sbom.libcuxx(inputs)
