"""The functions that overlap, on the GPUs of this machine, for torchrun.

Compares results and gradients with those of one GPU, through symmetric memory and without, and
exits with 1 where they differ.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from cutwheel import pack_gated_weight
from cutwheel.distributed import (
    _overlap,
    all_gather_gated_linear,
    all_gather_linear,
    linear_reduce_scatter,
)


def difference(got: torch.Tensor, want: torch.Tensor) -> float:
    if not want.numel():
        return 0.0 if got.shape == want.shape else float("inf")
    return float((got.double() - want.double()).norm() / want.double().norm())


def check_gated(x: torch.Tensor, sizes: list[int], columns: int) -> list[float]:
    """Differences of all_gather_gated_linear, for each form of its weight."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gate, up = (x.new_empty(columns * size, x.shape[1]).normal_() for _ in range(2))
    scale = x.shape[1] ** -0.5
    whole = [t.double().requires_grad_() for t in (x, gate.mul_(scale), up.mul_(scale))]
    linear = torch.nn.functional.linear
    want = torch.nn.functional.silu(linear(whole[0], whole[1])) * linear(whole[0], whole[2])
    factors = torch.randn_like(want).to(x.dtype)
    gradients = torch.autograd.grad(want, whole, factors.double())
    wanted = gradients[0].split(sizes)[rank], *(g.chunk(size)[rank] for g in gradients[1:])
    want, factors = want.chunk(size, 1)[rank], factors.chunk(size, 1)[rank]
    found = []
    for form in (lambda *both: both, lambda *both: torch.cat(both), pack_gated_weight):
        mine = [x.split(sizes)[rank], gate.chunk(size)[rank], up.chunk(size)[rank]]
        mine = [t.clone().requires_grad_() for t in mine]
        for _ in range(3):  # the memory of a call is that of the one before
            weight = form(mine[1], mine[2])
            how = {"sizes": sizes, "interleaved": form is pack_gated_weight}
            got = all_gather_gated_linear(mine[0], weight, **how)  # type: ignore[arg-type]
            of = torch.autograd.grad(got, mine, factors)
        with torch.no_grad():
            again = all_gather_gated_linear(mine[0], weight, **how)  # type: ignore[arg-type]
        found += [difference(got, want), difference(again, want)]
        found += [difference(one, other) for one, other in zip(of, wanted, strict=True)]
    return found


def check_autocast(rows: int = 64, features: int = 256) -> float:
    """Differences of float32 operands under autocast, from those that are cast by hand."""
    size, low = dist.get_world_size(), torch.bfloat16
    torch.manual_seed(6 + dist.get_rank())
    x, weight = torch.randn(rows * size, features), torch.randn(2 * features, features)
    x, weight = x.cuda(), (weight * features**-0.5).cuda()
    found = []
    for function in (all_gather_linear, all_gather_gated_linear, linear_reduce_scatter):
        with torch.autocast("cuda", low):
            got = function(x, weight)
        assert got.dtype == low
        found.append(difference(got, function(x.to(low), weight.to(low))))
    return max(found)


def check(sizes: list[int], features: int, columns: int) -> float:
    """The largest difference of both functions, on this process."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(sum(sizes), features, **options)  # type: ignore[arg-type]
    weight = torch.randn(columns * size, features, **options)  # type: ignore[arg-type]
    bias = torch.randn(columns * size, **options)  # type: ignore[arg-type]
    found = []

    def compare(
        got: torch.Tensor, want: torch.Tensor, pairs: list[tuple[torch.Tensor, ...]]
    ) -> None:
        found.append(difference(got, want))
        for one, other in pairs:
            assert one.grad is not None
            found.append(difference(one.grad, other))

    whole = [t.double().requires_grad_() for t in (x, weight, bias)]
    want = torch.nn.functional.linear(*whole)
    factors = torch.randn_like(x[:, :1]) * torch.ones_like(want).to(x.dtype)
    (want * factors).sum().backward()
    gradients = [t.grad for t in whole]
    mine = [x.split(sizes)[rank], weight.chunk(size)[rank], bias.chunk(size)[rank]]
    mine = [t.clone().requires_grad_() for t in mine]
    for _ in range(3):  # the memory of a call is that of the one before
        for t in mine:
            t.grad = None
        got = all_gather_linear(*mine, sizes=sizes)
        (got * factors.chunk(size, 1)[rank]).sum().backward()
    parts = gradients[0].split(sizes)[rank], *(g.chunk(size)[rank] for g in gradients[1:])
    compare(got, want.chunk(size, 1)[rank], list(zip(mine, parts, strict=True)))

    found += check_gated(x, sizes, columns)
    wide = torch.randn(sum(sizes), columns * size, **options)  # type: ignore[arg-type]
    narrow = torch.randn(features, columns * size, **options)  # type: ignore[arg-type]
    added = torch.randn(features, **options)  # type: ignore[arg-type]
    whole = [t.double().requires_grad_() for t in (wide, narrow, added)]
    want = torch.nn.functional.linear(*whole)
    factors = torch.randn_like(want).to(x.dtype)
    (want * factors).sum().backward()
    gradients = [t.grad for t in whole]
    mine = [wide.chunk(size, 1)[rank], narrow.chunk(size, 1)[rank], added]
    mine = [t.clone().requires_grad_() for t in mine]
    for _ in range(3):
        for t in mine:
            t.grad = None
        got = linear_reduce_scatter(*mine, sizes=sizes)
        (got * factors.split(sizes)[rank]).sum().backward()
    parts = (*(g.chunk(size, 1)[rank] for g in gradients[:2]), gradients[2])
    compare(got, want.split(sizes)[rank], list(zip(mine, parts, strict=True)))
    return max(found)


def main() -> int:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    group, size = dist.group.WORLD, dist.get_world_size()
    assert group is not None
    is_symmetric = _overlap.has_symmetric_memory(torch.empty(1, device="cuda"), group)
    worst = torch.full((), check_autocast(), device="cuda")
    for symmetric in (is_symmetric, False):
        _overlap._symmetric[group.group_name] = symmetric
        for sizes in ([512] * size, [100 + 60 * i for i in range(size)], [0] * (size - 1) + [64]):
            for features, columns in ((1024, 512), (4096, 2048)):
                found = check(sizes, features, columns)
                print(
                    f"symmetric={symmetric} {sizes} {features} {columns}: {found:.1e}", flush=True
                )
                worst = worst.clamp(min=found)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    dist.destroy_process_group()
    print("symmetric memory:", is_symmetric)
    return 0 if float(worst) < 2e-2 else 1


if __name__ == "__main__":
    sys.exit(main())
