"""Grouped products among other work: graphs, streams, threads, no waiting; what is refused."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from epilogue_reference import ACTIVATIONS
from fused_cases import assert_near
from gemm_cases import BRAIN, HALF, SINGLE, random_tensor, require_arch
from grouped_cases import DRAWN, Call, archs, draw_ends, offsets, torch_gated
from grouped_reference import loop

pytestmark = pytest.mark.gpu

KINDS = {"rows": (300, 136, 72), "k": (72, 136, 300), "columns": (72, 304, 136)}
GROUPS = 6


@pytest.fixture
def cuda(device: str) -> str:
    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA streams")
    return device


def captured(work: Callable[[], Any]) -> tuple[Any, Any]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    return graph, results


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- graphs
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("arch", archs())
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_graph_replays_with_other_offsets(
    cutwheel: ModuleType, cuda: str, environment: Any, kind: str, arch: str
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    call = Call.random(kind, *KINDS[kind], GROUPS, BRAIN, cuda, how="uniform")
    wide = replace(call, d=SINGLE)
    a, b = call.positional
    offs = call.offs
    assert offs is not None
    long_offs = offs.long()

    def work() -> list[torch.Tensor]:
        results = [cutwheel.grouped_mm(a, b, offs=offs)]
        if wide.is_served:
            results.append(cutwheel.grouped_mm(a, b, offs=long_offs, out_dtype=SINGLE))
        return results

    graph, results = captured(work)
    total = KINDS[kind][{"rows": 0, "k": 2, "columns": 1}[kind]]
    for seed, how in enumerate((*DRAWN, "random")):
        ends = draw_ends(total, GROUPS, how, seed)
        fresh = Call.random(kind, *KINDS[kind], GROUPS, BRAIN, cuda, how=how, seed=seed)
        for held, other in ((a, fresh.a), (b, fresh.b)):
            held.copy_(other)
        for held in (offs, long_offs):
            held.copy_(offsets(ends, cuda))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for of, result in zip((call, wide), results, strict=False):
            replace(of, a=a, b=b, ends=ends).judge(result)


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
        h = cutwheel.grouped_gated_linear(x, up, activation="silu", offs=offs)
        y = cutwheel.grouped_mm(h, down.mT, offs=offs)
        grads = torch.autograd.grad(y, (x, up, down), seed)
        cutwheel.grouped_mm(h.detach().t(), seed, offs=offs, accumulate_into=main)
        return [y.detach(), *grads]

    graph, results = captured(step)
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

    graph, results = captured(work)
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


# ---- the host does not wait
def test_nothing_waits_for_the_device(cutwheel: ModuleType, cuda: str) -> None:
    calls = [
        Call.random(kind, *extents, GROUPS, dtype, cuda, d)
        for kind, extents in (*KINDS.items(), ("k", (67, 131, 77)), ("rows", (67, 131, 77)))
        for dtype, d in ((BRAIN, BRAIN), (HALF, SINGLE), (SINGLE, SINGLE))
    ]
    calls.append(Call.random("rows", 300, 136, 72, GROUPS, BRAIN, cuda, bias=True))
    ready = [(call, call.positional, call.keywords) for call in calls if call.is_served]
    x = random_tensor((300, 64), BRAIN, cuda).requires_grad_()
    w = random_tensor((GROUPS, 96, 64), BRAIN, cuda).requires_grad_()
    main, offs = torch.zeros(GROUPS, 64, 96, device=cuda), ready[0][2]["offs"]
    lists = [[random_tensor((m, 40), BRAIN, cuda) for m in (24, 0, 33)] for _ in range(2)]
    results: list[Any] = []

    def work() -> None:
        results.clear()
        results.extend(cutwheel.grouped_mm(*given, **keywords) for _, given, keywords in ready)
        h = cutwheel.grouped_gated_linear(x, w, activation="silu", offs=offs)
        torch.autograd.grad(h, (x, w), torch.ones_like(h))
        y = cutwheel.grouped_mm(x, w.mT, offs=offs)
        torch.autograd.grad(y.sum(), (x, w))
        cutwheel.grouped_mm(x.detach().t(), y.detach(), offs=offs, accumulate_into=main)
        cutwheel.grouped_mm_list(lists[0], [b.t() for b in lists[1]])

    work()
    with no_waiting():
        # Offsets that do not exist yet: whoever reads them on the host gets others, or waits.
        torch.cuda._sleep(20_000_000)
        work()
    torch.cuda.synchronize()
    for (call, *_), result in zip(ready, results, strict=True):
        call.judge(result)


# ---- streams, threads, devices
def test_stream_of_the_caller(cutwheel: ModuleType, cuda: str) -> None:
    for kind, extents in KINDS.items():
        call = Call.random(kind, *extents, GROUPS, HALF, cuda)
        a, b = call.positional
        offs = call.offs
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # work elsewhere would run before these are filled
            result = cutwheel.grouped_mm(a.clone(), b.clone(), offs=offs.clone())
        stream.synchronize()
        call.judge(result)


@pytest.mark.no_dispatch_mode
def test_two_threads_on_two_streams(cutwheel: ModuleType, cuda: str) -> None:
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                kind = ("rows", "k")[index]
                for seed in range(20):
                    call = Call.random(kind, *KINDS[kind], GROUPS, BRAIN, cuda, seed=seed)
                    results = [call.run(cutwheel) for _ in range(5)]
                torch.cuda.current_stream().synchronize()
                for result in results:
                    call.judge(result)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_device_that_is_not_current(cutwheel: ModuleType, cuda: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for kind, extents in KINDS.items():
        call = Call.random(kind, *extents, GROUPS, HALF, "cuda:1")
        with torch.cuda.device(0):
            result = call.run(cutwheel)
            assert torch.cuda.current_device() == 0
        assert result.device == torch.device("cuda:1")
        call.judge(result)
        offs = call.offs
        assert offs is not None
        with pytest.raises(ValueError, match="offs"):
            call.run(cutwheel, offs=offs.to("cuda:0"))


# ---- memory, bits, explanations
@pytest.mark.no_dispatch_mode
def test_no_memory_is_kept(cutwheel: ModuleType, cuda: str) -> None:
    calls = [
        Call.random(kind, *extents, GROUPS, BRAIN, cuda, lay_a=layout)
        for kind, extents in KINDS.items()
        for layout in ("row", "row_offset", "every_second")
    ]
    x = random_tensor((300, 64), BRAIN, cuda).requires_grad_()
    w = random_tensor((GROUPS, 96, 64), BRAIN, cuda).requires_grad_()

    def work() -> None:
        for call in calls:
            call.run(cutwheel)
        offs = calls[0].offs
        h = cutwheel.grouped_gated_linear(x, w, activation="silu", offs=offs)
        torch.autograd.grad(h.sum(), (x, w))
        with pytest.raises(ValueError, match="mat_b"):
            cutwheel.grouped_mm(x, w, offs=offs)

    work()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        work()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_two_runs_give_the_same_bits(cutwheel: ModuleType, device: str) -> None:
    for kind, extents in (("rows", (3000, 264, 520)), ("k", (264, 520, 3000))):
        call = Call.random(kind, *extents, 20, BRAIN, device, SINGLE)
        call = call if call.is_served else replace(call, d=BRAIN)
        assert torch.equal(call.run(cutwheel), call.run(cutwheel))


def test_explain(cutwheel: ModuleType, cuda: str) -> None:
    names = {kernel.name for kernel in cutwheel.kernels() if kernel.op == "grouped_mm"}
    for kind in ("rows", "k"):
        call = Call.random(kind, *KINDS[kind], GROUPS, BRAIN, cuda)
        explanation = cutwheel.explain("grouped_mm", *call.positional, **call.keywords)
        assert explanation.row in names
        assert explanation.row in str(explanation)
        assert cutwheel.explain(cutwheel.grouped_mm, *call.positional, **call.keywords).row


# ---- what is refused
def _bad_calls(device: str) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    """name: (class, argument named in the message, call)"""
    a, w = random_tensor((30, 24), HALF, device), random_tensor((3, 24, 16), HALF, device)
    b = random_tensor((24, 30), HALF, device)
    offs = offsets([10, 20, 30], device)
    bias = random_tensor((3, 16), HALF, device)
    mm: Callable[..., Callable[[Any], object]] = lambda *x, **y: lambda c: c.grouped_mm(*x, **y)  # noqa: E731
    return {
        "no_offs": (ValueError, "offs", mm(a, w)),
        "offs_of_batches": (ValueError, "offs", mm(w.mT, w, offs=offs)),
        "number_of_offs": (ValueError, "offs", mm(a, w, offs=offs[:2])),
        "rank_of_offs": (ValueError, "offs", mm(a, w, offs=offs[None])),
        "no_groups": (ValueError, "offs", mm(b, a, offs=offs[:0])),
        "too_many_groups": (ValueError, "offs", mm(b, a, offs=offs.new_zeros(1025))),
        "dtype_of_offs": (TypeError, "offs", mm(a, w, offs=offs.float())),
        "narrow_offs": (TypeError, "offs", mm(a, w, offs=offs.short())),
        "list_of_offs": (TypeError, "offs", mm(a, w, offs=[10, 20, 30])),
        "rank_of_a": (ValueError, "mat_a", mm(a[0], w, offs=offs)),
        "rank_of_b": (ValueError, "mat_b", mm(a, w[None], offs=offs)),
        "inner_extent": (ValueError, "mat_b", mm(a, w[:, :-1], offs=offs)),
        "inner_extent_of_k": (ValueError, "mat_b", mm(b, a[:-1], offs=offs)),
        "number_of_batches": (ValueError, "mat_b", mm(w.mT, w[:2])),
        "dtype_of_b": (TypeError, "mat_b", mm(a, w.bfloat16(), offs=offs)),
        "double": (TypeError, "mat_a", mm(a.double(), w.double(), offs=offs)),
        "out_dtype": (TypeError, "out_dtype", mm(a, w, offs=offs, out_dtype=BRAIN)),
        "bias_extent": (ValueError, "bias", mm(a, w, offs=offs, bias=bias[:, :5])),
        "bias_groups": (ValueError, "bias", mm(a, w, offs=offs, bias=bias[:2])),
        "bias_of_k": (ValueError, "bias", mm(b, a, offs=offs, bias=bias)),
        "not_a_tensor": (TypeError, "mat_b", mm(a, [[1.0]], offs=offs)),
        "lists": (ValueError, r"\b[bB]", lambda c: c.grouped_mm_list([a], [])),
        **(
            {}
            if device in ("cpu", "meta")
            else {"cpu_offs": (ValueError, "offs", mm(a, w, offs=offs.cpu()))}
        ),
    }


@pytest.mark.parametrize("name", [*_bad_calls("meta"), "cpu_offs"])
def test_bad_input(
    cutwheel: ModuleType, device: str, name: str, check_class: Callable[..., None]
) -> None:
    calls = _bad_calls(device)
    if name not in calls:
        pytest.skip("needs CUDA tensors")
    error, argument, call = calls[name]
    with pytest.raises(error, match=argument) as raised:
        call(cutwheel)
    check_class(raised.value, error)
    Call.random("rows", 40, 56, 72, 3, HALF, device).check(cutwheel)  # the context is alive


def test_tf32_has_to_be_allowed(cutwheel: ModuleType, device: str) -> None:
    call = Call.random("rows", 40, 56, 72, 3, SINGLE, device)
    call.check(cutwheel)
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(RuntimeError, match="TF32"):
        call.run(cutwheel)
