"""What chains take fused and by torch, at the sizes that a model calls them with."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from .chains import Chain

_SECONDS_OF_REPLAY = 2e-3
_MOST_CALLS = 200
_MOST_BUFFERS = 64
_ROUNDS = 7


class Times(NamedTuple):
    """Microseconds of a chain."""

    fused: float
    by_torch: float


Compare = Callable[[torch.nn.Module, torch.nn.Module, Sequence[Tensor]], Times]
"""the fused module, the layers by torch, and what both are called with"""


def layers_of(chain: Chain, root: torch.nn.Module) -> GraphModule:
    """The nodes of a chain as a module of their own: a function of its input, and of its residual
    if it has one. It shares its layers with root, the owner of the graph."""
    graph = Graph()
    known: dict[Node, Node] = {chain.input(): graph.placeholder("x")}
    if chain.sum is not None:
        known.setdefault(chain.operand(), graph.placeholder("residual"))

    def copied(node: Node) -> Node:
        if node not in known:
            known[node] = graph.node_copy(node, copied)
        return known[node]

    graph.output(copied(chain.nodes[-1]))
    return GraphModule(root, graph)


def compare(fused: torch.nn.Module, by_torch: torch.nn.Module, given: Sequence[Tensor]) -> Times:
    """GPU time, in CUDA graphs, on copies of what is given that L2 does not hold. cuDNN chooses its
    kernels as torch.backends.cudnn says."""
    from ..tuning.measure import GraphClock, in_turns, iterations, rotation

    device = given[0].device
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    each = sum(x.untyped_storage().nbytes() for x in given)
    buffers = rotation(max(each, 1), l2_bytes, _MOST_BUFFERS)
    sets = [[_copied(x) for x in given] for _ in range(buffers)]
    clock = GraphClock(device, shares_memory=True)
    replays = {}
    for name, module in (("fused", fused), ("by_torch", by_torch)):
        # forward, as calls would run hooks: those that wait for this measurement, too.
        forward: Any = module.forward

        def call(i: int, forward: Any = forward) -> Any:
            return forward(*sets[i])

        clock.warm_up(call, buffers)
        once = clock.record(call, buffers, buffers)
        once.seconds()
        calls = iterations(once.seconds(), buffers, _SECONDS_OF_REPLAY, _MOST_CALLS)
        replays[name] = once if calls == buffers else clock.record(call, buffers, calls)
    samples = in_turns(replays, 1 + _ROUNDS)
    us = {name: statistics.median(seconds[1:]) * 1e6 for name, seconds in samples.items()}
    return Times(us["fused"], us["by_torch"])


def _copied(x: Tensor) -> Tensor:
    """With its strides."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def times_of(
    model: torch.nn.Module,
    chains: Mapping[str, tuple[torch.nn.Module, torch.nn.Module]],
    example_inputs: Sequence[Any],
    compare: Compare,
) -> dict[str, Times]:
    """Calls the model once, and compares each chain at its first call.

    Args:
        chains: by name, the fused module in the model and its layers by torch

    Returns:
        By name; chains that the example did not call are missing
    """
    found: dict[str, Times] = {}
    handles = []
    for name, (fused, by_torch) in chains.items():

        def measure(
            module: torch.nn.Module,
            given: tuple[Any, ...],
            name: str = name,
            by_torch: torch.nn.Module = by_torch,
        ) -> None:
            if name not in found:
                found[name] = compare(module, by_torch, given)

        handles.append(fused.register_forward_pre_hook(measure))
    try:
        with torch.no_grad():
            model(*example_inputs)
    finally:
        for handle in handles:
            handle.remove()
    return found
