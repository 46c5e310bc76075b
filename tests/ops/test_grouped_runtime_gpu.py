"""Grouped products that read what was written just before, in graphs; TF32."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from epilogue_reference import ACTIVATIONS
from fused_cases import assert_near
from gemm_cases import BRAIN, SINGLE, random_tensor
from grouped_cases import Call, draw_ends, torch_gated
from grouped_reference import loop
from op_calls import GROUPS
from runtime import capture

pytestmark = pytest.mark.gpu


# ---- graphs
@pytest.mark.no_dispatch_mode
def test_cuda_graph_of_a_training_step(cutwheel: ModuleType, cuda: str) -> None:
    """Counts of routed rows become offsets on the device, in the same graph."""
    counts = torch.tensor([20, 0, 50, 30], device=cuda)
    x = random_tensor((120, 64), BRAIN, cuda).requires_grad_()
    up = (random_tensor((4, 96, 64), BRAIN, cuda) / 8).requires_grad_()
    down = (random_tensor((4, 64, 48), BRAIN, cuda) / 8).requires_grad_()
    main = torch.zeros(4, 48, 64, device=cuda)
    seed = random_tensor((120, 64), BRAIN, cuda)

    def step() -> list[torch.Tensor]:
        offs = counts.cumsum(0, dtype=torch.int32)
        h = cutwheel.grouped_gated_linear(x, up, activation="silu", offs=offs, interleaved=True)
        y = cutwheel.grouped_mm(h, down.mT, offs=offs)
        grads = torch.autograd.grad(y, (x, up, down), seed)
        cutwheel.grouped_mm(h.detach().t(), seed, offs=offs, accumulate_into=main)
        return [y.detach(), *grads]

    graph, results = capture(step)
    for sizes in ([30, 30, 30, 30], [0, 0, 110, 0], [1, 63, 2, 41], [0, 0, 0, 0]):
        counts.copy_(torch.tensor(sizes))
        with torch.no_grad():
            x.copy_(random_tensor((120, 64), BRAIN, cuda))
        for result in results:
            result.fill_(float("nan"))
        main.zero_()
        graph.replay()
        torch.cuda.synchronize()
        ends = torch.tensor(sizes).cumsum(0).tolist()
        exact = [t.detach().double().requires_grad_() for t in (x, up, down)]
        h = torch_gated(exact[0], exact[1], ends, ACTIVATIONS["silu"])
        y = loop(h, exact[2].mT, ends)
        wanted = [y.detach(), *torch.autograd.grad(y, exact, seed.double())]
        for got, want in zip(results, wanted, strict=True):
            assert_near(got, want, BRAIN)
        assert_near(main, loop(h.detach().t(), seed.double(), ends), BRAIN)


@pytest.mark.no_dispatch_mode
def test_what_was_written_just_before_is_read(cutwheel: ModuleType, cuda: str) -> None:
    """Offsets and operands come from the kernel just before, over and over in one graph."""
    counts = [torch.zeros(GROUPS, dtype=torch.int64, device=cuda) for _ in range(6)]
    x = random_tensor((600, 256), BRAIN, cuda)
    w = random_tensor((GROUPS, 256, 256), BRAIN, cuda) / 16

    def work() -> list[torch.Tensor]:
        found, y = [], x
        for count in counts:
            y = cutwheel.grouped_mm(y, w, offs=count.cumsum(0, dtype=torch.int32))
            found.append(y)
        return found

    graph, results = capture(work)
    for seed in range(4):
        drawn = [draw_ends(600, GROUPS, "random", 10 * seed + i) for i in range(6)]
        for count, ends in zip(counts, drawn, strict=True):
            before = [0, *ends[:-1]]
            count.copy_(torch.tensor([e - b for e, b in zip(ends, before, strict=True)]))
        x.copy_(random_tensor((600, 256), BRAIN, cuda))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        y = x
        for result, ends in zip(results, drawn, strict=True):
            assert_near(result, loop(y.double(), w.double(), ends), BRAIN)
            y = result


def test_tf32_has_to_be_allowed(cutwheel: ModuleType, device: str) -> None:
    call = Call.random("rows", 40, 56, 72, 3, SINGLE, device)
    call.check(cutwheel)
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(RuntimeError, match="TF32"):
        call.run(cutwheel)


def test_tails_of_many_groups(cutwheel: ModuleType, device: str) -> None:
    """A warpgroup without rows in a tile keeps up with the one that has some: 128 experts of any
    length, whose last tiles mostly have 64 rows or fewer."""
    torch.manual_seed(7)
    total, groups, n, k = 32768, 128, 1536, 2048
    chosen = torch.randint(0, groups, (total,))
    ends = torch.bincount(chosen, minlength=groups).cumsum(0)
    offs = ends.to(device, torch.int32)
    x = torch.randn(total, k, device=device, dtype=torch.bfloat16)
    weight = torch.randn(groups, n, k, device=device, dtype=torch.bfloat16) / k**0.5
    plain = [cutwheel.grouped_mm(x, weight.mT, offs=offs) for _ in range(10)]
    gated = [
        cutwheel.grouped_gated_linear(x, weight, offs=offs, interleaved=True) for _ in range(10)
    ]
    torch.cuda.synchronize()
    for results in (plain, gated):
        assert all(torch.equal(results[0], each) for each in results[1:])
    for group in range(0, groups, 9):
        begin, end = int(ends[group - 1]) if group else 0, int(ends[group])
        z = x[begin:end].float() @ weight[group].float().t()
        torch.testing.assert_close(plain[0][begin:end].float(), z, rtol=1.6e-2, atol=1.6e-2)
        expected = torch.nn.functional.silu(z[:, 0::2]) * z[:, 1::2]
        torch.testing.assert_close(gated[0][begin:end].float(), expected, rtol=2e-2, atol=2e-2)
