#!/usr/bin/env python3
"""Inference of a Llama of Transformers: torch, torch.compile, cutwheel, and cutwheel in fp8.

    python examples/llama.py                      # 2 layers as wide as those of Llama 3 8B
    python examples/llama.py --layers 32 --tokens 512

The model has random weights. For each way the program prints the time of a prefill and of a step
with one token of each of many sequences, beside eager torch, and how far the logits are from
float32. It exits with 1 if cutwheel's are more than twice as far as torch's. It needs transformers
5 and a GPU.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from typing import Any

import torch

import cutwheel


def milliseconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """The best of five means, in a CUDA graph, so that the host's time does not count."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    means = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        end.synchronize()
        means.append(start.elapsed_time(end) / repeats)
    return min(means)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--tokens", type=int, default=4096, help="of the prefill")
    parser.add_argument("--sequences", type=int, default=64, help="of the step")
    args = parser.parse_args()
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        print(f"transformers cannot be imported ({error}): pip install 'transformers>=5'")
        return 2
    if not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is False")
        return 2

    heads = max(args.hidden // 128, 1)
    config = LlamaConfig(
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1),
        vocab_size=4096,
        max_position_embeddings=max(args.tokens, 2048),
    )
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    with torch.device("cuda"):
        single = LlamaForCausalLM(config).eval()
    prompt = torch.randint(0, 4096, (1, args.tokens), device="cuda")
    step = torch.randint(0, 4096, (args.sequences, 1), device="cuda")
    want = single(prompt, use_cache=False).logits

    eager = single.to(torch.bfloat16)
    ours = copy.deepcopy(eager)
    print(cutwheel.replace_layers(ours))
    ways = {
        "torch": eager,
        "torch.compile": torch.compile(eager, dynamic=False),
        "cutwheel": ours,
        "cutwheel, compiled": torch.compile(ours, dynamic=False),
    }
    if torch.cuda.get_device_capability() >= (8, 9):
        scaled = copy.deepcopy(eager)
        cutwheel.replace_layers(scaled, "fp8")
        ways["fp8"] = scaled
        ways["fp8, compiled"] = torch.compile(scaled, dynamic=False)

    print(f"\n{'':<20}{'prefill ms':>12}{'':>8}{'step ms':>10}{'':>8}{'error':>9}")
    first: tuple[float, float] | None = None
    errors = {}
    for name, model in ways.items():

        def run(tokens: torch.Tensor, model: Any = model) -> torch.Tensor:
            logits: torch.Tensor = model(tokens, use_cache=False).logits
            return logits

        errors[name] = float((run(prompt).float() - want).norm() / want.norm())
        times = milliseconds(lambda run=run: run(prompt)), milliseconds(lambda run=run: run(step))
        first = first or times
        cells = (f"{t:>10.3f}{f'({f / t:.2f})':>9}" for t, f in zip(times, first, strict=True))
        print(f"{name:<20}  {''.join(cells)}{errors[name]:>9.4f}", flush=True)
    return int(errors["cutwheel"] > 2 * errors["torch"])


if __name__ == "__main__":
    sys.exit(main())
