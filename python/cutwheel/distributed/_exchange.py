"""Expert parallelism by exchange: rows go to the devices of their experts, and results back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..ops.grouped._permutation import Routing, route


class _AllToAll(torch.autograd.Function):
    """Rows for the devices in turn, `send[i]` of them for device i; `receive[i]` come from it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        got = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(got, rows.contiguous(), receive, send, group=group)
        return got

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return all_to_all(grad, ctx.receive, ctx.send, ctx.group), None, None, None


all_to_all: Callable[[Tensor, list[int], list[int], Any], Tensor] = _AllToAll.apply


@dataclass(frozen=True)
class Exchange:
    """Which rows go where: a device's rows, sorted by expert, and those for its own experts."""

    send: list[int]
    """rows for each device"""
    receive: list[int]
    """rows from each device"""
    routing: Routing
    """of the received rows, one choice each, to the experts of this device"""
    group: Any

    def dispatch(self, rows: Tensor) -> Tensor:
        """[sent, H], by expert -> [R, H], in the order of the devices that they come from"""
        return all_to_all(rows, self.send, self.receive, self.group)

    def combine(self, rows: Tensor) -> Tensor:
        """[R, H], as dispatch() gives them -> [sent, H], by expert"""
        return all_to_all(rows, self.receive, self.send, self.group)


def experts_of(num_experts: int, group: Any) -> range:
    """The experts of this device: whole runs, as DTensor's Shard(0) splits; the last devices may
    have fewer, or none."""
    each = -(-num_experts // group.size())
    first = min(group.rank() * each, num_experts)
    return range(first, min(first + each, num_experts))


def plan_exchange(offs: Tensor, num_experts: int, group: Any) -> Exchange:
    """Exchanges the numbers of rows, and waits for them: torch allocates results on the host.

    Args:
        offs: [num_experts], the end of each expert's rows on this device
    """
    size, own = group.size(), len(experts_of(num_experts, group))
    each = -(-num_experts // size)
    # Every device counts as many experts: of those that are not there, no rows.
    counts = offs.new_zeros(size * each)
    counts[:num_experts] = torch.diff(offs, prepend=offs.new_zeros(1))
    got = torch.empty_like(counts)
    dist.all_to_all_single(got, counts, group=group)
    by_device = torch.stack((counts, got)).view(2, size, each)
    send, receive = by_device.sum(-1).tolist()  # the only numbers that the host waits for
    rows = sum(receive)
    ids = torch.arange(each, device=offs.device).repeat(size)
    expert = ids.repeat_interleave(got, output_size=rows)
    routing = route(expert.unsqueeze(1), each)
    return Exchange(send, receive, routing._replace(offs=routing.offs[:own]), group)
