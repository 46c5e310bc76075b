"""A prompt's logits, alone and in a batch with others: the same bits, or not.

A small decoder (layer norm, attention, gated MLP) whose linear layers are cutwheel's or torch's. A
serving engine puts a request into whatever batch there is; what differs between two runs of it in
torch is the kernel that the number of rows selects, and with it the order of sums.

    python examples/batch_invariant.py --prompts 64

The two products of attention are batches of one matrix for each prompt and head, and cutwheel's,
too: cuBLAS chooses by their number as well. Norms and softmax are torch's, which reduces each row
in the same way in any batch.
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

import cutwheel


class Decoder:
    """Logits [B, T, vocabulary] of tokens [B, T]."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, seed: int) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)

        def weight(n: int, k: int) -> Tensor:
            values = torch.randn(n, k, device="cuda", generator=generator)
            return (values * float(k) ** -0.5).bfloat16()

        self.heads, hidden = heads, 3 * width
        self.embedding = weight(vocabulary, width) * width**0.5
        self.head = weight(vocabulary, width)
        self.layers = [
            {
                "qkv": weight(3 * width, width),
                "out": weight(width, width),
                "gate_up": weight(2 * hidden, width),
                "down": weight(width, hidden),
            }
            for _ in range(layers)
        ]

    def __call__(self, tokens: Tensor, is_torch: bool) -> Tensor:
        linear = F.linear if is_torch else cutwheel.linear
        bmm = torch.bmm if is_torch else cutwheel.bmm
        x = self.embedding[tokens]
        for layer in self.layers:
            batch, length, _ = x.shape
            qkv = linear(norm(x), layer["qkv"])
            # [3, B * heads, T, width / heads]
            split = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).flatten(1, 2)
            q, k, v = split.contiguous()
            scores = bmm(q, k.mT).float() * q.shape[-1] ** -0.5
            mask = torch.full((length, length), float("-inf"), device="cuda").triu(1)
            mixed = bmm((scores + mask).softmax(-1).to(x.dtype), v)
            mixed = mixed.view(batch, self.heads, length, -1).transpose(1, 2).reshape(x.shape)
            x = x + linear(mixed, layer["out"])
            if is_torch:
                gate, up = linear(norm(x), layer["gate_up"]).chunk(2, -1)
                h = F.silu(gate) * up
            else:
                h = cutwheel.gated_linear(norm(x), layer["gate_up"])
            x = x + linear(h, layer["down"])
        return linear(norm(x), self.head)


def norm(x: Tensor) -> Tensor:
    """One threadblock for each row in torch; x.square().mean(-1) would reduce by their number."""
    return F.layer_norm(x, x.shape[-1:])


def differing(model: Decoder, tokens: Tensor, is_torch: bool) -> tuple[int, float]:
    """Logits of the first prompt with other bits in the batch, and the largest difference."""
    alone = model(tokens[:1], is_torch)[0]
    together = model(tokens, is_torch)[0]
    return int((alone != together).sum()), float((alone - together).abs().max())


def milliseconds(model: Decoder, tokens: Tensor, is_torch: bool, repeats: int = 10) -> float:
    """Of a call with all prompts: the best of three means."""
    means = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            model(tokens, is_torch)
        end.record()
        end.synchronize()
        means.append(start.elapsed_time(end) / repeats)
    return min(means[1:])  # the first one warms up


def main() -> int:
    parser = argparse.ArgumentParser(description="A prompt alone and in a batch.")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model = Decoder(given.layers, given.width, given.width // 64, given.vocabulary, given.seed)
    generator = torch.Generator("cuda").manual_seed(given.seed + 1)
    shape = given.prompts, given.length
    tokens = torch.randint(given.vocabulary, shape, device="cuda", generator=generator)
    with torch.no_grad():
        by_torch = differing(model, tokens, is_torch=True)
        normal = differing(model, tokens, is_torch=False)
        times = [milliseconds(model, tokens, is_torch) for is_torch in (True, False)]
        with cutwheel.batch_invariant():
            invariant = differing(model, tokens, is_torch=False)
            times.append(milliseconds(model, tokens, is_torch=False))
    count = given.length * given.vocabulary
    print(f"{count} logits of a prompt, alone and among {given.prompts}:")
    names = "torch", "cutwheel", "cutwheel.batch_invariant()"
    for name, (other, most), time in zip(names, (by_torch, normal, invariant), times, strict=True):
        speed = f"{time:.2f} ms for all, {times[0] / time:.2f} times as fast as torch"
        print(f"  {name:<27} {other:>8} differ, by {most:.3g} at most; {speed}")
    return int(invariant[0] != 0)


if __name__ == "__main__":
    sys.exit(main())
