#!/usr/bin/env python3
"""Train a tiny mixture-of-experts language model until it knows one text by heart.

    python examples/moe_overfit.py            # eager, then torch.compile
    python examples/moe_overfit.py --eager
    python examples/moe_overfit.py --hidden 1024 --intermediate 1408 --experts 64

The model reads 16 characters and predicts the next one. Its two expert layers are
cutwheel.nn.GroupedExperts behind a softmax router. Parameters are float32, products bfloat16 by
autocast. The same model with experts by torch.nn.functional.grouped_mm is trained beside it. It
prints losses, and the time of a step of both; it exits with 1 if cutwheel's last loss is above the
target.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import cutwheel

TEXT = """\
A mixture of experts has many feed-forward layers and uses few of them at a time. A router gives
every token a weight for each expert, and only the experts with the largest weights see the token.
Sorted by expert, the tokens form groups of unequal sizes. A grouped product multiplies each group
with the weights of its expert in one launch, and nobody has to know on the host how large the
groups are. In the backward pass the gradient of the tokens is a grouped product with the transposed
weights, and the gradient of the weights sums over the tokens of each group. An expert without
tokens has a gradient of zero. What is left is to add up the results in the order of the tokens.
"""


@dataclass(frozen=True)
class Config:
    context: int = 16
    embedding: int = 16
    hidden: int = 128
    intermediate: int = 256
    experts: int = 8
    top_k: int = 2
    layers: int = 2
    steps: int = 300
    learning_rate: float = 3e-3
    target: float = 0.05
    """for the loss, in nats per character"""


class TorchExperts(torch.nn.Module):
    """What GroupedExperts computes, by torch: gate and up lie in halves, as torch reads them."""

    def __init__(self, experts: int, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate_up = torch.nn.Parameter(torch.empty(experts, 2 * intermediate, hidden))
        self.down = torch.nn.Parameter(torch.empty(experts, hidden, intermediate))
        for weight in (self.gate_up, self.down):
            bound = weight.shape[-1] ** -0.5
            torch.nn.init.uniform_(weight, -bound, bound)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        dtype = torch.bfloat16  # autocast leaves grouped_mm alone, and it takes no other compiled
        order = ids.flatten().argsort(stable=True)
        token = order // ids.shape[1]
        counts = F.one_hot(ids.flatten(), self.down.shape[0]).sum(0)
        offs = counts.cumsum(0, dtype=torch.int32)
        z = F.grouped_mm(x[token].to(dtype), self.gate_up.to(dtype).mT, offs=offs)
        gate, up = z.chunk(2, -1)
        y = F.grouped_mm(F.silu(gate) * up, self.down.to(dtype).mT, offs=offs)
        y = y.float() * weights.flatten()[order, None]
        return torch.zeros_like(x, dtype=torch.float32).index_add(0, token, y).to(x.dtype)


class ExpertLayer(torch.nn.Module):
    """x + experts(norm(x)), by the experts that the router likes best."""

    def __init__(self, config: Config, is_torch: bool = False) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.norm = torch.nn.RMSNorm(config.hidden)
        self.router = torch.nn.Linear(config.hidden, config.experts, bias=False)
        experts = TorchExperts if is_torch else cutwheel.nn.GroupedExperts
        self.experts = experts(config.experts, config.hidden, config.intermediate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)  # [T, hidden]
        scores = self.router(h).float().softmax(-1)  # [T, experts]
        weights, ids = scores.topk(self.top_k)  # [T, top_k] each
        weights = weights / weights.sum(-1, keepdim=True)
        result: torch.Tensor = x + self.experts(h, ids, weights)
        return result


class Model(torch.nn.Module):
    def __init__(self, characters: int, config: Config, is_torch: bool = False) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(characters, config.embedding)
        self.mix = torch.nn.Linear(config.context * config.embedding, config.hidden)
        layers = (ExpertLayer(config, is_torch) for _ in range(config.layers))
        self.layers = torch.nn.ModuleList(layers)
        self.norm = torch.nn.RMSNorm(config.hidden)
        self.head = torch.nn.Linear(config.hidden, characters)

    def forward(self, contexts: torch.Tensor) -> torch.Tensor:
        """[T, context] -> logits of the next character, [T, characters]"""
        x = self.mix(self.embedding(contexts).flatten(1))
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def windows(text: str, context: int, device: str) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Every `context` characters, the one behind them, and the number of different ones."""
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text], device=device)
    every = codes.unfold(0, context + 1, 1)
    return every[:, :-1].contiguous(), every[:, -1].contiguous(), len(alphabet)


class Trained(NamedTuple):
    loss: float
    milliseconds: float
    """of a step: the mean of those behind the first tenth"""


def train(
    config: Config,
    device: str = "cuda",
    compiled: bool = False,
    is_torch: bool = False,
    **options: Any,
) -> Trained:
    """Trains a model.

    Args:
        is_torch: with experts by torch
        options: of torch.compile
    """
    torch.manual_seed(0)
    contexts, targets, characters = windows(TEXT, config.context, device)
    model = Model(characters, config, is_torch).to(device)
    forward = torch.compile(model, **options) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    start, value, warm = time.perf_counter(), float("nan"), config.steps // 10
    for step in range(1, config.steps + 1):
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            logits = forward(contexts)
        loss = F.cross_entropy(logits.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step in (1, warm, config.steps) or step % 50 == 0:
            value = loss.item()  # waits for the GPU
            print(f"  step {step:4}  loss {value:.4f}  {time.perf_counter() - start:5.1f} s")
        if step == max(warm, 1):
            warm_until = time.perf_counter()
    timed = max(config.steps - max(warm, 1), 1)
    return Trained(value, (time.perf_counter() - warm_until) / timed * 1e3)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="overfit a tiny mixture of experts")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    for name in ("steps", "hidden", "intermediate", "experts"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name))
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("the experts run on a CUDA GPU, and torch sees none")
    sizes = {name: value for name, value in vars(given).items() if name != "eager"}
    config, status = Config(**sizes), 0
    for compiled in (False,) if given.eager else (False, True):
        print("cutwheel, torch.compile" if compiled else "cutwheel, eager")
        ours = train(config, compiled=compiled, fullgraph=True)
        print("torch, torch.compile" if compiled else "torch, eager")
        other = train(config, compiled=compiled, is_torch=True, fullgraph=True)
        beside = other.milliseconds / ours.milliseconds
        print(
            f"a step: {ours.milliseconds:.2f} ms, torch {other.milliseconds:.2f} ms: {beside:.2f} "
            "times as fast"
        )
        if not ours.loss <= config.target:
            print(f"  the loss is {ours.loss:.4f}; expected at most {config.target}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
