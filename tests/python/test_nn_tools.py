"""The modules under what torch and others have for parameters, as torch's modules are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cpu_reference import CpuOps
from processes import run_in_processes
from sharded_modules import CHANNELS, HIDDEN, INTERMEDIATE, Net, images, run_sharded, steps
from torch.nn.utils import parameters_to_vector, parametrize, prune, vector_to_parameters

each_form = pytest.mark.parametrize("packed", [False, True], ids=["separate", "packed"])


def net(cutwheel: ModuleType, packed: bool, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return Net(cutwheel, packed)


def assert_same_state(left: torch.nn.Module, right: torch.nn.Module) -> None:
    ours, theirs = left.state_dict(), right.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=0)


# ---- sharding
@pytest.mark.parametrize("size", [1, 2])
def test_sharded(cutwheel: ModuleType, tmp_path: Path, size: int) -> None:
    run_in_processes(run_sharded, size, size, str(tmp_path))


# ---- parameters as vectors
@each_form
def test_vectors(cutwheel: ModuleType, cpu_ops: CpuOps, packed: bool) -> None:
    model, other = net(cutwheel, packed), net(cutwheel, packed, seed=2)
    vector = parameters_to_vector(model.parameters())
    assert vector.shape == (sum(parameter.numel() for parameter in model.parameters()),)
    vector_to_parameters(vector, other.parameters())
    assert_same_state(other, model)
    torch.testing.assert_close(other(images()), model(images()))
    model(images()).sum().backward()
    grads = parameters_to_vector([parameter.grad for parameter in model.parameters()])
    assert grads.isfinite().all()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=5),
    "fused": lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
    "muon": lambda parameters: torch.optim.Muon([p for p in parameters if p.dim() == 2], 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@each_form
def test_optimizers(cutwheel: ModuleType, cpu_ops: CpuOps, packed: bool, name: str) -> None:
    model, x = net(cutwheel, packed), images()
    optimizer = OPTIMIZERS[name](model.parameters())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad.stride() == parameter.stride()
        return loss

    losses = [optimizer.step(closure).item() for _ in range(5)]
    assert losses[-1] < losses[0]


# ---- parameters that are computed
class Halved(torch.nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


PARAMETERS = {
    "conv": ("conv", "weight"),
    "linear": ("linear", "weight"),
    "gate": ("mlp.gate_proj", "weight"),
    "up": ("mlp.up_proj", "weight"),
    "down": ("mlp.down_proj", "weight"),
    "gate and up": ("mlp", "gate_up_weight"),
    "experts": ("experts", "down_weight"),
}


@pytest.mark.parametrize("which", PARAMETERS)
def test_parametrizations(cutwheel: ModuleType, cpu_ops: CpuOps, which: str) -> None:
    """Results and training follow what is parametrized."""
    packed = which == "gate and up"
    path, name = PARAMETERS[which]
    model, plain = net(cutwheel, packed), net(cutwheel, packed)
    with torch.no_grad():
        plain.get_parameter(f"{path}.{name}").div_(2)
    layer = model.get_submodule(path)
    parametrize.register_parametrization(layer, name, Halved())
    x = images()
    torch.testing.assert_close(model(x), plain(x))
    model(x).sum().backward()
    plain(x).sum().backward()
    original = layer.parametrizations[name].original
    wanted = plain.get_parameter(f"{path}.{name}").grad / 2
    torch.testing.assert_close(original.grad, wanted)
    with torch.no_grad():
        original.zero_()
        plain.get_parameter(f"{path}.{name}").zero_()
    torch.testing.assert_close(model(x), plain(x))
    parametrize.remove_parametrizations(layer, name)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(x), plain(x))


@pytest.mark.parametrize("which", PARAMETERS)
def test_pruning(cutwheel: ModuleType, cpu_ops: CpuOps, which: str) -> None:
    """Pruned elements stay 0, the others are trained."""
    packed = which == "gate and up"
    path, name = PARAMETERS[which]
    model, dense, x = net(cutwheel, packed), net(cutwheel, packed), images()
    layer = model.get_submodule(path)
    prune.l1_unstructured(layer, name, amount=0.5)
    mask = getattr(layer, f"{name}_mask").clone()
    with torch.no_grad():
        dense.get_parameter(f"{path}.{name}").mul_(mask)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):  # the mask is applied anew at each call
        torch.testing.assert_close(model(x), dense(x))
        optimizer.zero_grad()
        dense.zero_grad()
        model(x).square().sum().backward()
        dense(x).square().sum().backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in dense.parameters():
                parameter.sub_(0.1 * parameter.grad)
            dense.get_parameter(f"{path}.{name}").mul_(mask)
    prune.remove(layer, name)
    pruned = model.get_parameter(f"{path}.{name}")
    assert torch.equal(pruned != 0, mask.bool())
    torch.testing.assert_close(model(x), dense(x))


# ---- averages
@each_form
def test_averages(cutwheel: ModuleType, cpu_ops: CpuOps, packed: bool) -> None:
    model, x = net(cutwheel, packed), images()
    before = copy.deepcopy(model)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    steps(model, 2)
    averaged.update_parameters(model)
    for mean, first, last in zip(
        averaged.module.parameters(), before.parameters(), model.parameters(), strict=True
    ):
        torch.testing.assert_close(mean, (first + last) / 2)
    assert averaged(x).isfinite().all()
    # As implementations of moving averages do it.
    shadow = dict(before.named_parameters())
    model.load_state_dict(shadow)
    assert_same_state(model, before)
    with torch.no_grad():
        for parameter, mean in zip(model.parameters(), averaged.module.parameters(), strict=True):
            parameter.data.copy_(mean.data)
        torch.testing.assert_close(model(x), averaged(x))


# ---- files
@each_form
def test_safetensors(cutwheel: ModuleType, tmp_path: Path, packed: bool) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, other = net(cutwheel, packed), net(cutwheel, packed, seed=2)
    path = tmp_path / "model.safetensors"
    safetensors.save_model(model, path)
    assert safetensors.load_model(other, path) == (set(), [])
    assert_same_state(other, model)
    safetensors.save_file(model.state_dict(), path)
    other = net(cutwheel, not packed, seed=2)
    other.load_state_dict(safetensors.load_file(path))
    repacked = copy.deepcopy(model.mlp)
    assert_same_state(
        other.mlp, repacked.unpack_parameters() if packed else repacked.pack_parameters()
    )


# ---- conversions
@each_form
def test_conversions(cutwheel: ModuleType, cpu_ops: CpuOps, packed: bool) -> None:
    model, x = net(cutwheel, packed), images()
    expected = model(x)
    wide = copy.deepcopy(model).to(torch.float64)
    torch.testing.assert_close(wide(x.double()).float(), expected)
    torch.testing.assert_close(wide.float()(x), expected)
    for dtype in (torch.bfloat16, torch.half):
        assert {p.dtype for p in copy.deepcopy(model).to(dtype).parameters()} == {dtype}
    with torch.device("meta"):
        empty = Net(cutwheel, packed)
    loaded = empty.load_state_dict(model.state_dict(), assign=True)
    assert (loaded.missing_keys, loaded.unexpected_keys) == ([], [])
    torch.testing.assert_close(empty(x), expected)
    assert all(parameter.is_contiguous() for parameter in empty.parameters())
    shapes = {"conv.weight": (HIDDEN, CHANNELS, 3, 3), "linear.weight": (HIDDEN, HIDDEN)}
    if packed:
        shapes["mlp.gate_up_weight"] = (2 * INTERMEDIATE, HIDDEN)
    else:
        shapes["mlp.gate_proj.weight"] = shapes["mlp.up_proj.weight"] = (INTERMEDIATE, HIDDEN)
    for name, shape in shapes.items():
        assert model.get_parameter(name).shape == shape
