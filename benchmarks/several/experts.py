"""Experts in expert parallelism: rows go to the GPUs of their experts, and results back.

"torch" is the same layer by torch's ops alone, with torch._grouped_mm, in the way of Transformers'
experts: rows are sorted, indexed, multiplied and put back. Both exchange alike. The host waits in
each call for the numbers of rows, so times are those of calls as the host launches them.
"cutwheel, all_gather" gathers all tokens, and does not wait.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch.nn import functional

import cutwheel
from cutwheel.distributed._exchange import all_to_all, experts_of
from cutwheel.tuning.case import Case, Provider
from cutwheel.tuning.cases.grouped import torch_grouped_mm
from cutwheel.tuning.measure import deviation, exactly, tolerance

from .team import Team

Tensor = torch.Tensor
DTYPE = torch.bfloat16
SEED = 2612


class Experts(NamedTuple):
    tokens: int
    """of each GPU"""
    experts: int
    """of all GPUs"""
    top_k: int
    hidden: int
    intermediate: int

    @property
    def flops(self) -> int:
        """Operations of a forward pass of one GPU's tokens."""
        return 6 * self.tokens * self.top_k * self.hidden * self.intermediate

    def fields(self, _: str) -> dict[str, Any]:
        return {"input": list(self), "m": self.tokens}

    def __str__(self) -> str:
        return " x ".join(map(str, self))


class TorchExperts(torch.nn.Module):
    """What GroupedExperts computes; gate_up_weight has the rows of gate, then those of up."""

    def __init__(
        self, experts: int, hidden: int, between: int, process_group: Any, **options: Any
    ) -> None:
        super().__init__()
        own = len(experts_of(experts, process_group))
        self.experts, self.group = experts, process_group
        self.gate_up_weight = torch.nn.Parameter(torch.empty(own, 2 * between, hidden, **options))
        self.down_weight = torch.nn.Parameter(torch.empty(own, hidden, between, **options))

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        k = ids.shape[1]
        sorted_ids, order = torch.sort(ids.flatten(), stable=True)
        numbers = torch.arange(self.experts, device=x.device)
        ends = torch.searchsorted(sorted_ids, numbers, right=True)
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        results = self._exchange(x[order // k], counts)
        by_token = results[torch.argsort(order)].view(*ids.shape, -1)
        return (by_token * weights.unsqueeze(-1)).sum(1).to(x.dtype)

    def _exchange(self, rows: Tensor, counts: Tensor) -> Tensor:
        got = torch.empty_like(counts)
        torch.distributed.all_to_all_single(got, counts, group=self.group)
        by_device = torch.stack((counts, got)).view(2, self.group.size(), -1)
        send, receive = by_device.sum(-1).tolist()
        received = all_to_all(rows, send, receive, self.group)
        each = by_device.shape[-1]
        numbers = torch.arange(each, device=rows.device).repeat(self.group.size())
        order = torch.sort(numbers.repeat_interleave(got, output_size=sum(receive)), stable=True)[1]
        results = self._compute(received[order], by_device[1].sum(0).cumsum(0, dtype=torch.int32))
        return all_to_all(results[torch.argsort(order)], receive, send, self.group)

    def _compute(self, rows: Tensor, offs: Tensor) -> Tensor:
        gate, up = torch_grouped_mm(rows, self.gate_up_weight.mT, offs).chunk(2, -1)
        return torch_grouped_mm(functional.silu(gate) * up, self.down_weight.mT, offs)


def case(team: Team, shape: Experts, *, is_training: bool) -> Case:
    """A pass over [T, H] on each GPU; in training the gradients of tokens and weights, too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import parallelize_module

    from cutwheel.distributed import ExpertParallel

    operands, total = team.operands(SEED), shape.tokens * team.size
    options: Any = {"device": team.device, "dtype": DTYPE}
    # The same numbers everywhere.
    hidden, between = shape.hidden, shape.intermediate
    gate, up = (operands.normal(shape.experts, between, hidden, scale=hidden**-0.5) for _ in "gu")
    down = operands.normal(shape.experts, hidden, between, scale=between**-0.5)
    x, factors = operands.normal(total, hidden), operands.normal(total, hidden)
    scores = torch.randn(total, shape.experts, device=team.device)
    weights, ids = scores.softmax(-1).topk(shape.top_k)
    mine, my_factors, my_ids, my_weights = (team.part(t) for t in (x, factors, ids, weights))

    sizes = (shape.experts, hidden, between)
    torchs = TorchExperts(*sizes, process_group=team.group, **options)
    ours = cutwheel.nn.GroupedExperts(*sizes, process_group=team.group, **options)
    own = slice(*_bounds(ours, team))
    in_turn = torch.stack((gate, up), 2).flatten(1, 2)
    with torch.no_grad():
        torchs.gate_up_weight.copy_(torch.cat((gate[own], up[own]), 1))
        ours.gate_up_weight.copy_(in_turn[own])
        for layer in (torchs, ours):
            layer.down_weight.copy_(down[own])

    def step(layer: Any, is_packed: bool) -> Any:
        if not is_training:
            with torch.no_grad():
                return layer(mine, my_ids, my_weights)
        given = mine.detach().requires_grad_()
        y = layer(given, my_ids, my_weights)
        wanted = [given, layer.gate_up_weight, layer.down_weight]
        of_x, of_both, of_down = torch.autograd.grad(y, wanted, my_factors)
        halves = (of_both[:, 0::2], of_both[:, 1::2]) if is_packed else of_both.chunk(2, 1)
        return y.detach(), of_x, *halves, of_down

    @functools.cache
    def reference(_: int) -> Any:
        """An expert after the other, of the tokens of all GPUs if their gradients are wanted."""
        first = team.rank * shape.tokens
        some = slice(None) if is_training else slice(first, first + shape.tokens)
        every: list[list[Tensor]] = []

        def run() -> tuple[Tensor, Tensor]:
            y = torch.zeros(x[some].shape, dtype=torch.float32, device=team.device)
            of_x = torch.zeros_like(y)
            for expert in range(shape.experts):
                rows, place = (ids[some] == expert).nonzero(as_tuple=True)
                given = x[some][rows].float().requires_grad_(is_training)
                parts = [w[expert].float().requires_grad_(is_training) for w in (gate, up, down)]
                h = functional.silu(given @ parts[0].t()) * (given @ parts[1].t())
                result = h @ parts[2].t() * weights[some][rows, place].unsqueeze(-1)
                y.index_add_(0, rows, result.detach())
                if is_training:
                    wanted = [given, *parts]
                    of_rows, *rest = torch.autograd.grad(result, wanted, factors[rows].float())
                    of_x.index_add_(0, rows, of_rows)
                    if own.start <= expert < own.stop:
                        every.append(rest)
            return y, of_x

        y, of_x = exactly(run, dtype=torch.float32)
        if not is_training:
            return y
        gradients = (torch.stack(some) for some in zip(*every, strict=True))
        return team.part(y), team.part(of_x), *gradients

    baseline = Provider("torch", lambda _: step(torchs, False))
    providers, pairs = [baseline], [("cutwheel", "torch")]
    if not is_training:
        gathering = cutwheel.nn.GroupedExperts(*sizes, **options)
        with torch.no_grad():
            gathering.gate_up_weight.copy_(in_turn)
            gathering.down_weight.copy_(down)
        mesh = init_device_mesh(team.device.type, (team.size,))
        plan = ExpertParallel(input_layouts=Shard(0))
        gathering = parallelize_module(gathering, mesh, plan)
        providers.append(Provider("cutwheel, all_gather", lambda _: step(gathering, True)))
        pairs.append(("cutwheel, all_gather", "torch"))
    del in_turn
    providers.append(Provider("cutwheel", lambda _: step(ours, True)))
    allowed = tolerance(team.largest(deviation(baseline.call(0), reference(0))), DTYPE)
    of_weights = sum(parameter.nbytes for parameter in ours.parameters())
    flops = (3 if is_training else 1) * shape.flops
    return Case(providers, 1, reference, allowed, flops, of_weights, pairs)


def _bounds(layer: cutwheel.nn.GroupedExperts, team: Team) -> tuple[int, int]:
    """The experts of this process: whole runs."""
    each = -(-layer.num_experts // team.size)
    first = min(team.rank * each, layer.num_experts)
    return first, min(first + each, layer.num_experts)
