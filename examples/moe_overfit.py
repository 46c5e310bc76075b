#!/usr/bin/env python3
"""Train a tiny mixture-of-experts language model until it knows one text by heart.

    python examples/moe_overfit.py            # eager, then torch.compile
    python examples/moe_overfit.py --eager

The model reads 16 characters and predicts the next one. Its two expert layers are
cutwheel.nn.GroupedExperts behind a softmax router. Parameters are float32, products bfloat16 by
autocast. It prints the losses, and exits with 1 if the last one is above the target.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

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


class ExpertLayer(torch.nn.Module):
    """x + experts(norm(x)), by the experts that the router likes best."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.norm = torch.nn.RMSNorm(config.hidden)
        self.router = torch.nn.Linear(config.hidden, config.experts, bias=False)
        self.experts = cutwheel.nn.GroupedExperts(
            config.experts, config.hidden, config.intermediate
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)  # [T, hidden]
        scores = self.router(h).float().softmax(-1)  # [T, experts]
        weights, ids = scores.topk(self.top_k)  # [T, top_k] each
        weights = weights / weights.sum(-1, keepdim=True)
        result: torch.Tensor = x + self.experts(h, ids, weights)
        return result


class Model(torch.nn.Module):
    def __init__(self, characters: int, config: Config) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(characters, config.embedding)
        self.mix = torch.nn.Linear(config.context * config.embedding, config.hidden)
        self.layers = torch.nn.ModuleList(ExpertLayer(config) for _ in range(config.layers))
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


def train(config: Config, device: str = "cuda", compiled: bool = False, **options: Any) -> float:
    """Trains a model and returns its last loss.

    Args:
        options: of torch.compile
    """
    torch.manual_seed(0)
    contexts, targets, characters = windows(TEXT, config.context, device)
    model = Model(characters, config).to(device)
    forward = torch.compile(model, **options) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    start = time.perf_counter()
    value = float("nan")
    for step in range(1, config.steps + 1):
        with torch.autocast("cuda", torch.bfloat16, enabled=device == "cuda"):
            logits = forward(contexts)
        loss = torch.nn.functional.cross_entropy(logits.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step == 1 or step % 50 == 0 or step == config.steps:
            value = loss.item()
            print(f"  step {step:4}  loss {value:.4f}  {time.perf_counter() - start:5.1f} s")
    return value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="overfit a tiny mixture of experts")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--steps", type=int, default=Config.steps)
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        parser.error("the experts run on a CUDA GPU, and torch sees none")
    config, status = Config(steps=given.steps), 0
    for compiled in (False,) if given.eager else (False, True):
        print("torch.compile" if compiled else "eager")
        loss = train(config, compiled=compiled, fullgraph=True)
        if not loss <= config.target:
            print(f"  the loss is {loss:.4f}; expected at most {config.target}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
