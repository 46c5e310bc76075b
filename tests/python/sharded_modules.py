"""Work of each process of test_nn_tools on a sharded model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from cpu_reference import CpuOps, install

HIDDEN, INTERMEDIATE, CHANNELS = 8, 12, 4


class Net(torch.nn.Module):
    """A layer of each class."""

    def __init__(self, cutwheel: Any, packed: bool) -> None:
        super().__init__()
        self.conv = cutwheel.nn.Conv2d(CHANNELS, HIDDEN, 3, activation="relu")
        self.linear = cutwheel.nn.Linear(HIDDEN, HIDDEN, activation="silu")
        self.mlp = cutwheel.nn.GatedMLP(HIDDEN, INTERMEDIATE)
        self.experts = cutwheel.nn.GroupedExperts(2, HIDDEN, INTERMEDIATE)
        if packed:
            self.mlp.pack_parameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x).mean((-2, -1))  # [N, HIDDEN]
        h = self.mlp(self.linear(h, h), h)
        ids = torch.arange(h.shape[0], device=h.device).unsqueeze(-1) % 2
        result: torch.Tensor = self.experts(h, ids, torch.ones(ids.shape, dtype=h.dtype))
        return result

    def reset_parameters(self) -> None:
        for layer in self.children():
            layer.reset_parameters()  # type: ignore[operator]


def images() -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(6, CHANNELS, 5, 4)


def steps(model: torch.nn.Module, count: int) -> list[torch.Tensor]:
    """Results without a gradient, before each step of training and after the last."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    results, x = [], images()
    for step in range(count + 1):
        with torch.no_grad():
            results.append(model(x))
        if step < count:
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    return results


def run_sharded(rank: int, size: int, folder: str) -> None:
    """A process of `size`: shards do what one model does, and state dicts go in and out."""
    import torch.distributed as dist

    import cutwheel

    library = install(CpuOps())
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)
    store = f"file://{Path(folder) / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    for packed in (False, True):
        for by_layer in (False, True):
            _train_sharded(cutwheel, size, packed, by_layer)
    dist.destroy_process_group()
    library._destroy()


def _train_sharded(cutwheel: Any, size: int, packed: bool, by_layer: bool) -> None:
    """With by_layer, each layer is sharded on its own, and those in the MLP, too."""
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    torch.manual_seed(7)
    whole = Net(cutwheel, packed)
    expected = copy.deepcopy(whole.state_dict())
    with torch.device("meta"):
        model = Net(cutwheel, packed)
    if by_layer:
        inner = [model.mlp.gate_proj, model.mlp.up_proj, model.mlp.down_proj]
        for layer in (*inner, *model.children()):
            if layer is not None:
                fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 7.0)
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        local = parameter.to_local()  # type: ignore[operator]
        assert local.numel() == 0 or local.abs().max() < 1, f"{name} was not initialised"

    full = StateDictOptions(full_state_dict=True)
    set_model_state_dict(model, dict(expected), options=full)
    found = get_model_state_dict(model, options=full)
    assert list(found) == list(expected) == list(get_model_state_dict(model))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)

    for got, want in zip(steps(model, 3), steps(whole, 3), strict=True):
        torch.testing.assert_close(got, want)
    found = get_model_state_dict(model, options=full)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(found[name], value)
