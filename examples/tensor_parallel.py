#!/usr/bin/env python3
"""A Llama block in tensor and sequence parallelism, and experts in expert parallelism.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py

Each process has a GPU. Of the block, every GPU has some heads of the attention and some features of
the MLP; between these the tokens are split. Of the experts, every GPU has some. Results and
gradients are compared with those of the whole modules on one GPU; the program prints the
differences, and exits with 1 if one is above the tolerance.
"""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

import cutwheel
from cutwheel.distributed import (
    ColwiseParallel,
    ExpertParallel,
    GatedMLPParallel,
    RowwiseParallel,
)


@dataclass(frozen=True)
class Config:
    hidden: int = 1024
    intermediate: int = 2816
    heads: int = 16
    experts: int = 16
    top_k: int = 2
    batch: int = 2
    tokens: int = 512
    """of a sequence"""
    dtype: torch.dtype = torch.bfloat16
    tolerance: float = 2e-2
    """of norms, relative"""


class Attention(torch.nn.Module):
    """Causal, over whole sequences, with as many heads as the weights have."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head = config.hidden // config.heads
        options: Any = {"bias": False, "dtype": config.dtype}
        self.query = cutwheel.nn.Linear(config.hidden, config.hidden, **options)
        self.key = cutwheel.nn.Linear(config.hidden, config.hidden, **options)
        self.value = cutwheel.nn.Linear(config.hidden, config.hidden, **options)
        self.out = cutwheel.nn.Linear(config.hidden, config.hidden, **options)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.unflatten(-1, (-1, self.head)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2), residual)
        return result


class Block(torch.nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = torch.nn.RMSNorm(config.hidden, dtype=config.dtype)
        self.attention = Attention(config)
        self.mlp_norm = torch.nn.RMSNorm(config.hidden, dtype=config.dtype)
        self.mlp = cutwheel.nn.GatedMLP(config.hidden, config.intermediate, dtype=config.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention(self.attention_norm(x), x)
        result: torch.Tensor = self.mlp(self.mlp_norm(x), x)
        return result


def block_plan() -> dict[str, Any]:
    """Tokens (dimension 1) are split outside of the linear layers, features inside."""
    tokens = Shard(1)
    colwise = ColwiseParallel(input_layouts=tokens)
    return {
        "attention_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "attention.query": colwise,
        "attention.key": colwise,
        "attention.value": colwise,
        "attention.out": RowwiseParallel(output_layouts=tokens),
        "mlp_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "mlp": GatedMLPParallel(input_layouts=tokens, output_layouts=tokens),
    }


def part(tensor: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    return tensor.detach().chunk(mesh.size(), dim)[mesh.get_local_rank()].contiguous()


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def compare(
    module: torch.nn.Module,
    plan: Any,
    mesh: DeviceMesh,
    tensors: tuple[torch.Tensor, ...],
    dim: int,
) -> dict[str, float]:
    """Differences of result and gradients under a plan, where tensors are split along `dim`."""
    whole = copy.deepcopy(module)
    wanted = whole(*tensors)
    wanted.float().square().mean().backward()
    split = parallelize_module(module, mesh, plan)
    got = split(*(part(tensor, mesh, dim) for tensor in tensors))
    # The mean over all devices' tokens.
    (got.float().square().mean() / mesh.size()).backward()
    found = {"result": difference(got, part(wanted, mesh, dim))}
    for (name, one), other in zip(split.named_parameters(), whole.parameters(), strict=True):
        gradient: Any = one.grad
        assert other.grad is not None
        found[f"gradient of {name}"] = difference(gradient.full_tensor(), other.grad)
    return found


def run(config: Config, mesh: DeviceMesh) -> dict[str, float]:
    """Differences by what they are of."""
    device = mesh.device_type
    torch.manual_seed(1)  # the same weights and tokens on every device
    options: Any = {"device": device, "dtype": config.dtype}
    block = Block(config).to(device)
    x = torch.randn(config.batch, config.tokens, config.hidden, **options)
    found = compare(block, block_plan(), mesh, (x,), 1)

    layer = cutwheel.nn.GroupedExperts(
        config.experts, config.hidden, config.intermediate, **options
    )
    tokens = torch.randn(config.batch * config.tokens, config.hidden, **options)
    scores = torch.rand(tokens.shape[0], config.experts, device=device)
    weights, ids = scores.softmax(-1).topk(config.top_k)
    of_experts = compare(
        layer, ExpertParallel(input_layouts=Shard(0)), mesh, (tokens, ids, weights), 0
    )
    return found | {f"experts: {name}": value for name, value in of_experts.items()}


def main() -> int:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    config = Config()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    found = run(config, mesh)
    failed = [name for name, value in found.items() if not value <= config.tolerance]
    if dist.get_rank() == 0:
        for name, value in found.items():
            print(f"{name}: {value:.2e}{' <- too large' if name in failed else ''}")
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
