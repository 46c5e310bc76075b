"""Kernels that several machines compile: who builds what, the same bytes, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shards
from builds import ROOT, checked, configure_command, failure, run
from shards import Shard, ShardError

# Three sources that compile quickly, for two architectures.
SOURCES = [f"gemm_{name}.cu" for name in ("sm80_memory_bound", "sm80_memory_bound_assembled")]
SOURCES += ["gemm_sm90a_memory_bound.cu"]
NARROW = ["-DCUTWHEEL_KERNELS=gemm_*_pad_rows;gemm_sm80_*_route"]
NARROW += ["-DCUTWHEEL_ARCHS=80;90a", "-DCUTWHEEL_COMPILER_CACHE="]


# --- who builds what


def test_the_longest_sources_come_first_and_go_where_least_is_to_do():
    estimates = {"a": 10.0, "b": 9.0, "c": 4.0, "d": 4.0, "e": 3.0}
    assert shards.plan(estimates, 1) == [["a", "b", "c", "d", "e"]]
    assert shards.plan(estimates, 2) == [["a", "d"], ["b", "c", "e"]]
    assert shards.plan(estimates, 3) == [["a"], ["b"], ["c", "d", "e"]]
    assert shards.plan({"a": 1.0}, 2) == [["a"], []]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_shards_of_all_kernels_are_even(tmp_path, count):
    generate = ("cmake/kernelgen/generate.py", "--source-dir", ROOT, "--output-dir", tmp_path)
    checked(sys.executable, *generate)
    estimates = json.loads((tmp_path / "estimates.json").read_text())
    found = shards.plan(estimates, count)
    assert sorted(name for shard in found for name in shard) == sorted(estimates)
    seconds = [sum(estimates[name] for name in shard) for shard in found]
    assert max(seconds) - min(seconds) < 0.05 * sum(seconds) / count


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "1/0", "a/b", "-1/3", "01/3"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(ShardError, match="expected i/n with i from 1 to n, such as 2/3"):
        Shard.parse(text)


def test_a_configure_stops_at_what_is_no_shard(tmp_path):
    text = failure(tmp_path, *NARROW, CUTWHEEL_SHARD="4/3", CUTWHEEL_SHARDS=str(tmp_path))
    assert "CUTWHEEL_SHARD=4/3: expected i/n" in text
    text = failure(tmp_path, *NARROW, CUTWHEEL_SHARD="1/3")
    assert "set CUTWHEEL_SHARDS to the folder that the shard shall be written to" in text


# --- what is refused

HERE: shards.Fingerprint = {
    "sources": {"cuda/core/types.h": "1"},
    "generated": {"a.cu": "1", "b.cu": "1"},
    "commands": {"a.cu": "nvcc a.cu", "b.cu": "nvcc b.cu"},
    "tools": {"ptxas": "1"},
    "headers": {"cutlass": "1"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of one source each."""
    folder = tmp_path / "shards"
    for number, name in ((1, "a"), (2, "b")):
        item = tmp_path / f"{name}.cu.o"
        item.write_text(f"object {name}")
        commands = {f"{name}.cu": f"nvcc {name}.cu"}
        shards.pack(Shard(number, 2), [item], {**HERE, "commands": commands}, folder)
    return folder


def refusal(folder: Path, wanted: tuple[str, ...] = ("a.cu", "b.cu"), **changes: Any) -> str:
    with pytest.raises(ShardError) as refused:
        shards.take(folder, wanted, {**HERE, **changes})
    return str(refused.value)


def test_all_shards_together_have_the_objects(folder):
    found = shards.take(folder, ["a.cu", "b.cu"], HERE)
    assert found == {"a.cu": b"object a", "b.cu": b"object b"}


def test_the_same_objects_give_the_same_file(folder, tmp_path):
    first = (folder / "cutwheel-shard-1-of-2.zip").read_bytes()
    commands = {"a.cu": "nvcc a.cu"}
    again = shards.pack(Shard(1, 2), [tmp_path / "a.cu.o"], {**HERE, "commands": commands}, folder)
    assert again.read_bytes() == first


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("sources", {"cuda/core/types.h": "2"}, "other sources: cuda/core/types.h"),
        ("sources", {}, "other sources: cuda/core/types.h"),
        ("generated", {"a.cu": "1", "b.cu": "2"}, "other generated sources: b.cu"),
        ("tools", {"ptxas": "2"}, "other compilers: ptxas"),
        ("headers", {"cutlass": "2"}, "other headers: cutlass"),
        (
            "commands",
            {"a.cu": "nvcc /elsewhere/a.cu", "b.cu": "nvcc b.cu"},
            "have to lie at the same paths everywhere): a.cu\n    of the shard: nvcc a.cu\n",
        ),
    ],
)
def test_what_differs_from_this_build_is_named(folder, part, value, message):
    text = refusal(folder, **{part: value})
    assert "was compiled from something else than this build would be" in text
    assert message in text
    assert "Build this shard again" in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.unlink(), "lacks 2/2: `CUTWHEEL_SHARD=i/n` builds one"),
        (lambda path: path.write_bytes(b"PK"), "is damaged"),
        (
            lambda path: shutil.copy(path, path.with_name("cutwheel-shard-1-of-3.zip")),
            "has shards of 2 and 3: remove those of another build",
        ),
        (
            lambda path: shutil.copy(path.with_name("cutwheel-shard-1-of-2.zip"), path),
            "has a.cu, as another shard has",
        ),
    ],
)
def test_shards_that_are_not_all_and_whole_are_refused(
    folder: Path, change: Callable[[Path], object], message: str
) -> None:
    change(folder / "cutwheel-shard-2-of-2.zip")
    assert message in refusal(folder)


def test_shards_of_other_kernels_are_refused(folder):
    assert "no shard in" in refusal(folder, ("a.cu", "b.cu", "c.cu"))
    assert "also has b.cu: other kernels" in refusal(folder, ("a.cu",))
    assert "has no shard (cutwheel-shard-i-of-n.zip)" in refusal(folder.parent)


# --- built


def link_inputs(build: Path) -> list[str]:
    """The names of the kernels' objects, in the order in which they are linked."""
    lines = checked("ninja", "-C", build, "-t", "query", "_C.so").splitlines()
    return [Path(line.strip()).name for line in lines if line.endswith(".cu.o")]


def linked(objects: list[Path], library: Path) -> bytes:
    """Of an object, the names of nvcc's temporary files differ each time; linking drops them."""
    checked("c++", "-shared", "-s", *objects, "-o", library)
    return library.read_bytes()


@pytest.mark.slow
def test_shards_link_the_objects_of_one_build(tmp_path):
    """What `make reproduce` compares of whole wheels; here, without the host's code."""
    build, folder = tmp_path / "build", tmp_path / "shards"
    command = configure_command(build, *NARROW)
    for number, count in ((1, 1), (2, 1), (3, 1), (4, 0)):
        given = {"CUTWHEEL_SHARD": f"{number}/4", "CUTWHEEL_SHARDS": str(folder)}
        output = checked(*command, **given)
        assert f"shard {number}/4, {count} sources; nothing is linked" in output
        [announced] = re.findall(r"estimates in (\S+)", output)
        assert len(json.loads(Path(announced).read_text())) == count
        checked("cmake", "--build", build)
        for objects in build.glob("CMakeFiles/cutwheel_sm*"):
            shutil.rmtree(objects)  # the next shard is another machine's
    with zipfile.ZipFile(folder / "cutwheel-shard-1-of-4.zip") as archive:
        assert len(archive.namelist()) == 2  # its fingerprint, and one object

    checked(*command, CUTWHEEL_SHARDS=str(folder))
    assert "Building CUDA object" not in checked("ninja", "-C", build, "-n")
    checked("cmake", "--build", build, "--target", "take_shards")
    taken = {path.name: path for path in (build / "shards").iterdir()}
    assert sorted(taken) == [f"{name}.o" for name in SOURCES]
    order = link_inputs(build)
    assert sorted(order) == sorted(taken)
    library = linked([taken[name] for name in order], tmp_path / "shards.so")

    checked(*command)
    kernels = ("cmake", "--build", build, "--target", "cutwheel_sm80", "cutwheel_sm90a")
    checked(*kernels)
    checked(*command)
    assert "no work to do" in checked(*kernels)  # a second configure leaves nothing to compile
    compiled = {path.name: path for path in build.glob("CMakeFiles/cutwheel_sm*.dir/**/*.o")}
    assert link_inputs(build) == order
    assert linked([compiled[name] for name in order], tmp_path / "whole.so") == library

    # The same sources at another path.
    other = tmp_path / "other"
    checked(*configure_command(other, *NARROW), CUTWHEEL_SHARDS=str(folder))
    refused = run("cmake", "--build", other, "--target", "take_shards")
    assert refused.returncode != 0
    assert "have to lie at the same paths everywhere): gemm_" in refused.stdout + refused.stderr
