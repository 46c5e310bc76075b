#!/usr/bin/env python3
"""Experts of which each GPU has some, and tokens that go to them.

    torchrun --nproc-per-node 2 examples/expert_parallel.py

Each process has a GPU, a part of the experts, and tokens of its own: the first one more than the
others. A router chooses experts for each token, rows travel to the GPUs of these experts and back,
and gradients take the same way. Results and gradients are compared with those of all experts on one
GPU; the program prints the differences, and exits with 1 if one is above the tolerance.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import cutwheel


@dataclass(frozen=True)
class Config:
    hidden: int = 1024
    intermediate: int = 1408
    experts: int = 16
    top_k: int = 2
    tokens: int = 1000
    """of each GPU; the first has half as many more"""
    dtype: torch.dtype = torch.bfloat16
    tolerance: float = 2e-2
    """of norms, relative"""


class Layer(torch.nn.Module):
    """A router, the same on all GPUs, and experts."""

    def __init__(self, config: Config, group: Any = None, **options: Any) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.router = torch.nn.Linear(config.hidden, config.experts, bias=False, **options)
        self.experts = cutwheel.nn.GroupedExperts(
            config.experts, config.hidden, config.intermediate, process_group=group, **options
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, ids = self.router(x).float().softmax(-1).topk(self.top_k)
        result: torch.Tensor = self.experts(x, ids, weights)
        return result


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    got, wanted = got.detach().double(), wanted.detach().double()
    norm = float(wanted.norm())
    return float((got - wanted).norm()) / norm if norm else float(got.norm())


def run(config: Config, group: Any, device: str) -> dict[str, float]:
    """Differences by what they are of, the largest of all GPUs."""
    rank, size = group.rank(), group.size()
    torch.manual_seed(1)  # the same weights and tokens on every device
    options: Any = {"device": device, "dtype": config.dtype}
    whole = Layer(config, **options)
    tokens = [config.tokens + (config.tokens // 2 if i == 0 else 0) for i in range(size)]
    x = torch.randn(sum(tokens), config.hidden, **options)
    wanted = whole(x)
    wanted.float().square().sum().backward()

    layer = Layer(config, group, **options)
    layer.router.load_state_dict(whole.router.state_dict())
    each = -(-config.experts // size)
    with torch.no_grad():
        for one, other in zip(layer.experts.parameters(), whole.experts.parameters(), strict=True):
            one.copy_(other[rank * each : (rank + 1) * each])
    got = layer(x.split(tokens)[rank])
    got.float().square().sum().backward()
    # Weights of experts have the gradients of all tokens; the router has those of its own.
    assert layer.router.weight.grad is not None
    dist.all_reduce(layer.router.weight.grad, group=group)

    found = {"result": difference(got, wanted.split(tokens)[rank])}
    for (name, one), other in zip(layer.named_parameters(), whole.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        is_own = name.startswith("experts")
        part = other.grad[rank * each : (rank + 1) * each] if is_own else other.grad
        found[f"gradient of {name}"] = difference(one.grad, part)
    worst = torch.tensor([*found.values()], device=device, dtype=torch.float64)
    dist.all_reduce(worst, dist.ReduceOp.MAX, group=group)
    return dict(zip(found, worst.tolist(), strict=True))


def main() -> int:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    config = Config()
    found = run(config, dist.group.WORLD, "cuda")
    failed = [name for name, value in found.items() if not value <= config.tolerance]
    if dist.get_rank() == 0:
        for name, value in found.items():
            print(f"{name}: {value:.2e}{' <- too large' if name in failed else ''}")
    dist.destroy_process_group()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
