"""all_gather_linear, all_gather_gated_linear and linear_reduce_scatter: against the plain sequence,
by cutwheel and by torch, and against torch's fused ops over symmetric memory."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import cutwheel
from cutwheel.tuning.case import Case, Provider
from cutwheel.tuning.measure import deviation, tolerance
from cutwheel.tuning.shapes import Gemm

from .team import Team

Tensor = torch.Tensor
DTYPE = torch.bfloat16
SEED = 2613
SEQUENCE, TORCH, FUSED = "cutwheel, in sequence", "torch, in sequence", "torch, fused"


def _fused_ops() -> Any:
    """torch's own, which come with an import."""
    import torch.distributed._symmetric_memory

    return torch.ops.symm_mem


def _gathered(team: Team, mine: Tensor) -> Tensor:
    from cutwheel.distributed._overlap import _single

    whole = mine.new_empty(team.size * mine.shape[0], mine.shape[1])
    _single("all_gather")(whole, mine, group=team.group)
    return whole


def gather(team: Team, shape: Gemm) -> Case:
    """Rows of all GPUs by this GPU's columns: M, N and K are those of all GPUs together."""
    from cutwheel.distributed import all_gather_linear

    operands, (m, n, k) = team.operands(SEED), shape
    x = operands.normal(m, k)
    weight = team.part(operands.normal(n, k, scale=k**-0.5))
    mine, name, ops = team.part(x), team.group.group_name, _fused_ops()

    def fused(_: int) -> Tensor:
        _, (result,) = ops.fused_all_gather_matmul(mine, [weight.t()], 0, name, return_A=True)
        return result

    @functools.cache
    def reference(_: int) -> Tensor:
        return operands.matmul(x, weight.t())

    providers = [
        Provider(TORCH, lambda _: torch.mm(_gathered(team, mine), weight.t())),
        Provider(FUSED, fused),
        Provider(SEQUENCE, lambda _: cutwheel.mm(_gathered(team, mine), weight.t())),
        Provider("cutwheel", lambda _: all_gather_linear(mine, weight, group=team.group)),
    ]
    return _case(team, shape, providers, reference, mine.nbytes + weight.nbytes)


def gather_gated(team: Team, shape: Gemm) -> Case:
    """The same into a gated unit, whose gate and up have N columns each."""
    from cutwheel.distributed import all_gather_gated_linear

    operands, (m, n, k) = team.operands(SEED), shape
    x = operands.normal(m, k)
    gate, up = (team.part(operands.normal(n, k, scale=k**-0.5)) for _ in range(2))
    both = torch.cat((gate, up))
    mine, name, ops = team.part(x), team.group.group_name, _fused_ops()

    def combined(z: Tensor) -> Tensor:
        first, second = z.chunk(2, -1)
        return torch.nn.functional.silu(first) * second

    def fused(_: int) -> Tensor:
        _, (z,) = ops.fused_all_gather_matmul(mine, [both.t()], 0, name, return_A=True)
        return combined(z)

    @functools.cache
    def reference(_: int) -> Tensor:
        first, second = (operands.matmul(x, weight.t()) for weight in (gate, up))
        return torch.nn.functional.silu(first) * second

    ours = functools.partial(all_gather_gated_linear, mine, (gate, up), group=team.group)
    providers = [
        Provider(TORCH, lambda _: combined(torch.mm(_gathered(team, mine), both.t()))),
        Provider(FUSED, fused),
        Provider(SEQUENCE, lambda _: cutwheel.gated_linear(_gathered(team, mine), (gate, up))),
        Provider("cutwheel", lambda _: ours()),
    ]
    wide = Gemm(m, 2 * n, k)
    return _case(team, wide, providers, reference, mine.nbytes + both.nbytes)


def scatter(team: Team, shape: Gemm) -> Case:
    """All rows by this GPU's part of K, and this GPU's rows of the sums."""
    from cutwheel.distributed import linear_reduce_scatter
    from cutwheel.distributed._overlap import _single

    operands, (m, n, k) = team.operands(SEED), shape
    x, weight = operands.normal(m, k), operands.normal(n, k, scale=k**-0.5)
    mine, part = team.part(x, 1), team.part(weight, 1)
    name, ops = team.group.group_name, _fused_ops()

    def scattered(product: Tensor) -> Tensor:
        if not team.is_on_gpu:  # gloo cannot
            dist.all_reduce(product, group=team.group)
            return team.part(product)
        own = product.new_empty(m // team.size, n)
        _single("reduce_scatter")(own, product, group=team.group)
        return own

    def fused(_: int) -> Tensor:
        result: Tensor = ops.fused_matmul_reduce_scatter(mine, part.t(), "sum", 0, name)
        return result

    @functools.cache
    def reference(_: int) -> Tensor:
        return operands.matmul(team.part(x), weight.t())

    providers = [
        Provider(TORCH, lambda _: scattered(torch.mm(mine, part.t()))),
        Provider(FUSED, fused),
        Provider(SEQUENCE, lambda _: scattered(cutwheel.mm(mine, part.t()))),
        Provider("cutwheel", lambda _: linear_reduce_scatter(mine, part, group=team.group)),
    ]
    return _case(team, shape, providers, reference, mine.nbytes + part.nbytes)


def _case(
    team: Team, shape: Gemm, providers: Sequence[Provider], reference: Any, min_bytes: int
) -> Case:
    m, n, k = shape
    error = team.largest(deviation(providers[0].call(0), reference(0)))
    flops = 2 * m * n * k / team.size
    return Case(providers, 1, reference, tolerance(error, DTYPE), flops, min_bytes)


# ---- rows that are not spread evenly
def splits(team: Team, rows: int) -> list[list[int]]:
    """Rows of each process: one with fewer than the others, and all on the last one."""
    size = team.size
    return [[rows + 13 * i for i in range(size)], [0] * (size - 1) + [rows]]


def uneven(team: Team, shape: Gemm) -> Case:
    """Both functions and their gradients, with rows that differ and with none; M is that of a GPU.

    Nothing is a baseline: a result is right if it is as near as a product of bfloat16 is.
    """
    from cutwheel.distributed import all_gather_linear, linear_reduce_scatter

    operands, (m, n, k) = team.operands(SEED), shape
    up, down = operands.normal(n, k, scale=k**-0.5), operands.normal(k, n, scale=n**-0.5)
    calls = []
    for sizes in splits(team, m):
        x, factors = operands.normal(sum(sizes), k), operands.normal(sum(sizes), k)
        calls.append((sizes, x, factors))

    def run(_: int) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        for sizes, x, factors in calls:
            mine = x.split(sizes)[team.rank].clone().requires_grad_()
            parts = team.part(up).requires_grad_(), team.part(down, 1).requires_grad_()
            how: Any = {"group": team.group, "sizes": sizes}
            y = linear_reduce_scatter(all_gather_linear(mine, parts[0], **how), parts[1], **how)
            of = torch.autograd.grad(y, [mine, *parts], factors.split(sizes)[team.rank])
            # A process without rows has nothing else to compare.
            found += [y.detach(), of[0]] if sizes[team.rank] else []
            found += of[1:]
        return tuple(found)

    @functools.cache
    def reference(_: int) -> tuple[Tensor, ...]:
        def one(sizes: list[int], x: Tensor, factors: Tensor) -> list[Tensor]:
            x, *w = (t.detach().requires_grad_() for t in (x, up.double(), down.double()))
            y = x @ w[0].t() @ w[1].t()
            of_x, of_up, of_down = torch.autograd.grad(y, [x, *w], factors)
            own = [y.detach().split(sizes)[team.rank], of_x.split(sizes)[team.rank]]
            return [*(own if sizes[team.rank] else []), team.part(of_up), team.part(of_down, 1)]

        found: list[Tensor] = []
        for sizes, x, factors in calls:
            found += one(sizes, x.double(), factors.double())
        return tuple(found)

    ours = Provider("cutwheel", run)
    return Case([ours], 1, reference, tolerance(None, DTYPE), pairs=[], stands_alone=True)
