#!/usr/bin/env python3
"""Models of Transformers compiled: torch.compile, with cutwheel's kernels, and with its layers.

    python examples/compiled.py                            # all, in about two minutes
    python examples/compiled.py --only bert --layers 4

Layers of Llama 3 8B (a prefill, a step of 64 sequences, and a training step), of BERT-large and of
ViT-L, in bfloat16 with random weights. For each the program prints how many times as fast as
torch.compile it is

    options    with options=cutwheel.inductor_options()
    freezing   the same, with Inductor's freezing, which knows the weights (inference of the Llama)
    layers     after cutwheel.replace_layers

and what was replaced. It exits with 1 if a result is more than twice as far from float32 as that of
torch.compile. It needs transformers 5 and a GPU.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import cutwheel

Tensor = torch.Tensor


class Case(NamedTuple):
    model: torch.nn.Module
    """in float32"""
    given: dict[str, Any]
    trains: bool = False
    freezes: bool = False


def llama(layers: int) -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=1024,
        max_position_embeddings=4096,
        use_cache=False,
    )
    return LlamaModel(config)


def bert(layers: int) -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=16,
        vocab_size=1024,
    )
    return BertModel(config, add_pooling_layer=False)


def vit(layers: int) -> torch.nn.Module:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=16,
        patch_size=16,
    )
    return ViTModel(config, add_pooling_layer=False)


def tokens(rows: int, length: int) -> dict[str, Any]:
    return {"input_ids": torch.randint(3, 1024, (rows, length), device="cuda")}


CASES: dict[str, Callable[[int], Case]] = {
    "llama, prefill 4096": lambda n: Case(llama(n), tokens(1, 4096), freezes=True),
    "llama, step of 64": lambda n: Case(llama(n), tokens(64, 1), freezes=True),
    "bert-large, 16 x 512": lambda n: Case(bert(n), tokens(16, 512)),
    "vit-l, 32 images": lambda n: Case(
        vit(n), {"pixel_values": torch.randn(32, 3, 224, 224, device="cuda")}
    ),
    "llama, training 4096": lambda n: Case(llama(n), tokens(1, 4096), trains=True),
}


def result_of(model: Any, given: dict[str, Any], trains: bool) -> list[Tensor]:
    """The last hidden state, and where it trains, the gradients."""
    if not trains:
        with torch.no_grad():
            return [model(**given).last_hidden_state]
    model.zero_grad(set_to_none=True)
    state = model(**given).last_hidden_state
    state.backward(torch.ones_like(state) / state.numel() ** 0.5)
    return [state.detach()]


def distance(found: list[Tensor], wanted: list[Tensor]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs)


def grads_of(model: torch.nn.Module) -> list[Tensor]:
    """By the names of the state dict, which replaced layers keep."""
    return [p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None]


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """In a CUDA graph, so that the host's time does not count."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def seconds(call: Callable[[], Any], repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats / 1e3


def times_of(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians of ten rounds, in each of which all take turns."""
    first = next(iter(calls.values()))
    repeats = max(1, min(200, int(0.02 / seconds(first, 3))))
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(10):
        for name, call in calls.items():
            rounds[name].append(seconds(call, repeats))
    return {name: statistics.median(found) for name, found in rounds.items()}


def measure(name: str, case: Case) -> bool:
    """Prints a line for each way; whether all results were near enough."""
    torch._dynamo.reset()
    case.model.to("cuda").train(case.trains)
    wanted = result_of(case.model, case.given, case.trains)
    wanted_grads = [grad.clone() for grad in grads_of(case.model)]
    case.model.zero_grad(set_to_none=True)
    brain = copy.deepcopy(case.model).to(torch.bfloat16)
    given = {
        key: value.bfloat16() if value.is_floating_point() else value
        for key, value in case.given.items()
    }
    replaced = copy.deepcopy(brain)
    cutwheel.replace_layers(replaced)
    options = cutwheel.inductor_options
    ways: dict[str, tuple[torch.nn.Module, dict[str, Any] | None]] = {
        "torch.compile": (brain, None),
        "options": (copy.deepcopy(brain), options()),
        "layers": (replaced, None),
    }
    if case.freezes:
        ways["freezing"] = (copy.deepcopy(brain), options())
    calls, far, found = {}, {}, {}
    for way, (model, how) in ways.items():
        cutwheel.inductor.report(clear=True)
        compiled = torch.compile(model, options=how, dynamic=False)
        begin = time.perf_counter()
        # Dynamo asks for it as well, so it is no option of one compilation.
        with torch._inductor.config.patch(freezing=way == "freezing"):
            got = result_of(compiled, given, case.trains)
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        far[way] = distance(got, wanted)
        if case.trains and way != "layers":  # merged projections have other parameters
            far[f"{way}, gradients"] = distance(grads_of(model), wanted_grads)
        report = cutwheel.inductor.report()
        found[way] = Counter(
            str(entry.replaced_by or f"Inductor ({entry.reason})")
            for graph in report.graphs
            for entry in graph.entries
        )

        def call(compiled: Any = compiled) -> Any:
            return result_of(compiled, given, case.trains)

        calls[way] = call if case.trains else captured(call)
        print(f"  {way}: compiled in {took:.1f} s, {far[way]:.2e} from float32", flush=True)
        for what, count in found[way].items():
            print(f"    {count} x {what}", flush=True)
    times = times_of(calls)
    base = times["torch.compile"]
    rest = ", ".join(f"{way} {base / times[way]:.3f}" for way in ways if way != "torch.compile")
    print(f"{name}: torch.compile {base * 1e3:.3f} ms; {rest}", flush=True)
    near = True
    for way, distance_of_way in far.items():
        suffix = ", gradients" if way.endswith(", gradients") else ""
        if distance_of_way > 2 * far[f"torch.compile{suffix}"]:
            print(f"FAR: {name}, {way}: {distance_of_way:.2e}")
            near = False
    return near


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=1, help="of each model")
    parser.add_argument("--only", default="", help="cases whose name has this")
    parser.add_argument("--seconds", type=float, default=150, help="no case begins after these")
    args = parser.parse_args()
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        print(f"transformers cannot be imported ({error}): pip install 'transformers>=5'")
        return 2
    if not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is False")
        return 2
    begin, near = time.perf_counter(), True
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for name, make in CASES.items():
        if args.only not in name:
            continue
        if time.perf_counter() - begin > args.seconds * 0.85:
            print(f"{name}: left out, {args.seconds:.0f} s are used up")
            continue
        torch.manual_seed(0)
        with torch.device("cuda"):
            case = make(args.layers)
        near &= measure(name, case)
        del case
        torch.cuda.empty_cache()
    return 0 if near else 1


if __name__ == "__main__":
    sys.exit(main())
