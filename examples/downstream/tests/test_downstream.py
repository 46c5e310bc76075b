"""Run with pytest where this project is installed; what needs no GPU runs anywhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from downstream import Classifier, export, load, save
from downstream.model import CHANNELS, CLASSES, DTYPE
from torch._subclasses.fake_tensor import FakeTensorMode

OPS = ["conv2d_fused", "linear_fused", "quantize", "scaled_mm"]
# Programs that releases of cutwheel have exported: every later one runs them.
PROGRAMS = sorted((Path(__file__).parents[1] / "programs").glob("*.pt2"))
# Another process: it knows nothing but torch, and then cutwheel.
LOADS = """
import sys, torch
try:
    torch.export.load(sys.argv[1])
except RuntimeError:
    print("not without cutwheel")
import cutwheel
print(torch.export.load(sys.argv[1]).graph)
"""


def images(count: int, device: str) -> torch.Tensor:
    return torch.empty(count, CHANNELS, 8, 8, device=device, dtype=DTYPE)


def ops_of(program: torch.export.ExportedProgram) -> list[str]:
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return [target.split(".")[1] for target in targets if target.startswith("cutwheel.")]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "classifier.pt2"
    save(path)
    return path


def test_eager_calls_on_meta_tensors_give_shapes() -> None:
    logits = Classifier("meta")(images(3, "meta"))
    assert (logits.shape, logits.dtype) == ((3, CLASSES), torch.bfloat16)


def test_the_program_calls_the_ops() -> None:
    assert ops_of(export()) == OPS


def test_fake_cuda_tensors_give_the_same_calls() -> None:
    with FakeTensorMode():
        model, batch = Classifier("cuda"), images(4, "cuda")
    assert ops_of(torch.export.export(model, (batch,))) == OPS


def test_another_process_loads_the_program_once_it_imports_cutwheel(path: Path) -> None:
    command = [sys.executable, "-c", LOADS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("not without cutwheel\n")
    # torch logs the reason; the error that it raises refers to its log.
    assert "torch.ops.cutwheel.conv2d_fused.default" in done.stderr
    assert "import the custom op to register it" in done.stderr
    for op in OPS:
        assert f"torch.ops.cutwheel.{op}.default" in done.stdout


def test_the_program_runs_where_its_weights_are(path: Path) -> None:
    with FakeTensorMode():
        weights, batch = Classifier("cuda").state_dict(), images(7, "cuda")
    logits = load(path, weights)(batch)
    assert (logits.shape, logits.device.type) == ((7, CLASSES), "cuda")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_of_a_release_still_runs(program: Path) -> None:
    with FakeTensorMode():
        weights, batch = Classifier("cuda").state_dict(), images(7, "cuda")
    logits = load(program, weights)(batch)
    assert (logits.shape, logits.dtype) == ((7, CLASSES), torch.bfloat16)
    assert (logits.stride(), logits.device.type) == ((CLASSES, 1), "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_of_a_release_gives_what_the_eager_model_gives(program: Path) -> None:
    torch.manual_seed(21)
    model = Classifier("cuda").randomize()
    batch = images(33, "cuda").normal_()
    torch.testing.assert_close(load(program, model.state_dict())(batch), model(batch))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_program_gives_what_the_eager_model_gives(path: Path) -> None:
    torch.manual_seed(20)
    model = Classifier("cuda").randomize()
    program = load(path, model.state_dict())
    for count in (2, 33):
        batch = images(count, "cuda").normal_()
        logits = model(batch)
        assert logits.isfinite().all()
        assert logits.std() > 0
        torch.testing.assert_close(program(batch), logits)
