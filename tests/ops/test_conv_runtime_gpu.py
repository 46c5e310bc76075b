"""Convolutions among other work: graphs, streams, threads, no waiting; what is refused."""

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
from conv_cases import (
    BIAS,
    Conv,
    archs_of,
    arguments,
    check_public,
    epilogue_of,
    rows,
    serves,
)
from conv_gradients import STRIDED, both, leaves
from conv_reference import DIRECTIONS, Geometry, dgrad, fprop, wgrad
from fused_cases import assert_near, in_double, values
from gemm_cases import BRAIN, HALF, SINGLE, require_arch

pytestmark = pytest.mark.gpu

ARCHS = archs_of(rows()[0])
SAME_3X3 = Geometry((1, 1), (1, 1, 1, 1))
EVEN = ((2, 24, 9, 14), (40, 24, 3, 3), Geometry((1, 2), (1, 1, 2, 2)))
ODD = ((2, 5, 8, 7), (7, 5, 3, 2), Geometry((2, 1), (1, 1, 0, 0)))
ONE_TAP = ((3, 24, 5, 6), (40, 24, 1, 1), Geometry())
LONG = ((16, 16, 40, 40), (24, 16, 3, 3), SAME_3X3)  # K of wgrad is split


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


def all_kinds(device: str, **options: Any) -> list[Conv]:
    """Each direction, in 16 bits and in 32, in one kernel, in several and as a matrix product."""
    found = [
        Conv.random(direction, *problem, dtype, device, **options)
        for direction in DIRECTIONS
        for problem in (EVEN, ODD, ONE_TAP, LONG)
        for dtype in (BRAIN, SINGLE)
    ]
    return [conv for conv in found if serves(conv.direction, conv.a.dtype)]


# ---- graphs
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("lay", ["channels_last", "nchw"])
@pytest.mark.parametrize("arch", ARCHS)
def test_cuda_graph_replays_with_other_values(
    cutwheel: ModuleType, cuda: str, environment: Any, arch: str, lay: str
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    held = [
        replace(conv, a=conv.positional[0], b=conv.positional[1])
        for conv in all_kinds(cuda, lay_a=lay, lay_b=lay)
    ]
    graph, results = captured(lambda: [conv.run(as_they_are=True) for conv in held])
    for _ in range(3):
        for conv, result in zip(held, results, strict=True):
            conv.a.copy_(values(conv.a.shape, conv.a.dtype, cuda))
            conv.b.copy_(values(conv.b.shape, conv.b.dtype, cuda) / 16)
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for conv, result in zip(held, results, strict=True):
            conv.judge(result)


@pytest.mark.no_dispatch_mode
def test_cuda_graph_of_a_training_step(cutwheel: ModuleType, cuda: str) -> None:
    ours, theirs = both(cutwheel, STRIDED[2], "relu", "before")
    given = [x for x in leaves(STRIDED, BRAIN, cuda, place="before") if x is not None]
    seed = values(given[3].shape, BRAIN, cuda)

    def step() -> list[torch.Tensor]:
        y = ours(*given)
        return [y.detach(), *torch.autograd.grad(y, given, seed)]

    graph, results = captured(step)
    for _ in range(3):
        with torch.no_grad():
            given[0].copy_(values(given[0].shape, BRAIN, cuda))
            given[3].copy_(values(given[3].shape, BRAIN, cuda))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        exact = [x for x in in_double([*given]) if x is not None]
        y = theirs(*exact)
        wanted = [y.detach(), *torch.autograd.grad(y, exact, seed.double())]
        for got, want in zip(results, wanted, strict=True):
            assert_near(got, want, BRAIN)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("arch", ARCHS)
def test_what_was_written_just_before_is_read(
    cutwheel: ModuleType, cuda: str, environment: Any, arch: str
) -> None:
    """Every operand comes from the kernel just before, over and over in one graph."""
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    c, small = 64, Geometry((2, 2), (1, 1, 1, 1))
    same, halved = SAME_3X3.numbers, small.numbers
    x = values((8, c, 28, 28), BRAIN, cuda).contiguous(memory_format=torch.channels_last)
    weight = values((c, c, 3, 3), BRAIN, cuda) / 16
    ops = torch.ops.cutwheel

    def work() -> list[torch.Tensor]:
        y, found = x, []
        for _ in range(4):
            y = ops.conv2d(y, weight, None, *same)  # the input
            w = ops.conv2d_weight_grad(y, x, 3, 3, *same)  # the gradient
            z = ops.conv2d(x, w, None, *halved)  # the weight, of a reduction
            dx = ops.conv2d_input_grad(z, weight, 28, 28, *halved)  # the gradient
            y = ops.conv2d_fused(x, weight, None, dx, *same, "bias_residual_relu")
            found += [w, z, dx, y]
            y = y * 2.0**-16  # keeps numbers in range
            found.append(y)
        return found

    graph, results = captured(work)
    for _ in range(3):
        x.copy_(values(x.shape, BRAIN, cuda))
        for result in results:
            result.fill_(float("nan"))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        exact_x, exact_w = x.double(), weight.double()
        for i in range(0, len(results), 5):
            w, z, dx, y, _ = (result.double() for result in results[i : i + 5])
            before = exact_x if i == 0 else results[i - 1].double()
            hidden = fprop(before, exact_w, SAME_3X3).to(BRAIN).double()
            assert_near(w, wgrad(hidden, exact_x, weight.shape, SAME_3X3), BRAIN, "weight_grad")
            assert_near(z, fprop(exact_x, w, small), BRAIN, "conv2d")
            assert_near(dx, dgrad(z, exact_w, x.shape, small), BRAIN, "input_grad")
            assert_near(y, torch.relu(fprop(exact_x, exact_w, SAME_3X3) + dx), BRAIN, "residual")


# ---- the host does not wait
def test_nothing_waits_for_the_device(cutwheel: ModuleType, cuda: str) -> None:
    convs = [*all_kinds(cuda), *all_kinds(cuda, lay_a="nchw", lay_b="of_odd_channels")]
    ready = [replace(conv, a=conv.positional[0], b=conv.positional[1]) for conv in convs]
    ours, _ = both(cutwheel, STRIDED[2], "silu", "after")
    given = [x for x in leaves(STRIDED, BRAIN, cuda, place="after") if x is not None]
    results: list[torch.Tensor] = []

    def work() -> None:
        results.clear()
        results.extend(conv.run(as_they_are=True) for conv in ready)
        torch.autograd.grad(ours(*given).sum(), given)

    work()
    with no_waiting():
        torch.cuda._sleep(20_000_000)
        work()
    torch.cuda.synchronize()
    for conv, result in zip(ready, results, strict=True):
        conv.judge(result)


# ---- streams, threads, devices
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_stream_of_the_caller(cutwheel: ModuleType, cuda: str, direction: str) -> None:
    for problem, lay in ((EVEN, "channels_last"), (ODD, "nchw"), (LONG, "channels_last")):
        conv = Conv.random(direction, *problem, HALF, cuda, lay_a=lay)
        a, b = conv.positional
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # work elsewhere would run before these are filled
            result = replace(conv, a=a.clone(), b=b.clone()).run(as_they_are=True)
        stream.synchronize()
        conv.judge(result)


@pytest.mark.no_dispatch_mode
def test_two_threads_on_two_streams(cutwheel: ModuleType, cuda: str) -> None:
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(10):
                    for direction in DIRECTIONS:
                        conv = Conv.random(direction, *(EVEN, LONG)[index], BRAIN, cuda)
                        results = [conv.run() for _ in range(3)]
                torch.cuda.current_stream().synchronize()
                for result in results:
                    conv.judge(result)
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
    for problem in (EVEN, ODD, ONE_TAP, LONG):
        for direction in DIRECTIONS:
            conv = Conv.random(direction, *problem, HALF, "cuda:1", lay_a="nchw")
            with torch.cuda.device(0):
                result = conv.run()
                assert torch.cuda.current_device() == 0
            assert result.device == torch.device("cuda:1")
            conv.judge(result)
    conv = Conv.random("fprop", *EVEN, HALF, "cuda:1", epilogue_of("relu"))
    given = arguments(conv, "relu", "no_residual")
    for name in ("weight", "bias"):
        with pytest.raises(ValueError, match=name):
            cutwheel.conv2d(**{**given, name: given[name].to("cuda:0")})


# ---- memory, bits, explanations
@pytest.mark.no_dispatch_mode
def test_no_memory_is_kept(cutwheel: ModuleType, cuda: str) -> None:
    convs = all_kinds(cuda, lay_a="nchw", lay_b="of_odd_channels")
    ours, _ = both(cutwheel, STRIDED[2], "relu", "before")
    given = [x for x in leaves(STRIDED, BRAIN, cuda, place="before") if x is not None]

    def work() -> None:
        for conv in convs:
            conv.run()
        torch.autograd.grad(ours(*given).sum(), given)
        with pytest.raises(ValueError, match="weight"):
            cutwheel.conv2d(given[0], given[1][:, :5])

    work()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        work()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_two_runs_give_the_same_bits(cutwheel: ModuleType, device: str) -> None:
    for conv in all_kinds(device):
        assert torch.equal(conv.run(), conv.run()), str(conv)


def test_explain(cutwheel: ModuleType, cuda: str) -> None:
    names = {kernel.name: kernel for kernel in cutwheel.kernels()}
    for activation, place in ((None, "no_residual"), ("relu", "before"), ("silu", "after")):
        conv = Conv.random("fprop", *EVEN, BRAIN, cuda, epilogue_of(activation, place))
        given = arguments(conv, activation, place)
        explanation = cutwheel.explain("conv2d", **given)
        assert names[explanation.row].op == "conv2d"
        assert names[explanation.row].direction == "fprop"
        assert explanation.row in str(explanation)
        assert cutwheel.explain(cutwheel.conv2d, **given).row == explanation.row
    conv = Conv.random("fprop", *ONE_TAP, BRAIN, cuda, BIAS)
    explanation = cutwheel.explain("conv2d", **arguments(conv, None, "no_residual"))
    assert names[explanation.row].op == "gemm", "1x1 filters are matrix products"


def test_few_channels_are_read_as_they_lie(cutwheel: ModuleType, cuda: str) -> None:
    """Not a tap at a time, whether channels have to be added or not."""
    require_arch("90a")
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("blocks of pixels are read by kernels of compute capability 9.0")
    weight = torch.randn(64, 8, 7, 7, device=cuda, dtype=torch.bfloat16)
    for channels, route in ((3, "implicit GEMM of blocks of pixels"), (8, "implicit GEMM")):
        x = torch.randn(64, channels, 128, 128, device=cuda, dtype=torch.bfloat16)
        found = cutwheel.explain("conv2d", x, weight[:, :channels], stride=2, padding=3)
        assert "_fprop_space_to_depth_" in found.row
        assert found.parameters["route"] == route


def test_explain_says_what_torch_computes(cutwheel: ModuleType, device: str) -> None:
    x, weight = values((2, 16, 8, 8), BRAIN, device), values((8, 4, 3, 3), BRAIN, device)
    explanation = cutwheel.explain("conv2d", x, weight, groups=4)
    assert explanation.row is None
    assert "groups" in str(explanation)
    volume, filters = x.unsqueeze(2), values((8, 16, 3, 3, 3), BRAIN, device)
    explanation = cutwheel.explain("conv3d", volume, filters, padding=1)
    assert explanation.row is None
    assert "depth" in str(explanation)


def test_what_no_kernel_takes_is_torchs(cutwheel: ModuleType, device: str) -> None:
    x, weight, bias = (x.double() for x in leaves(EVEN, SINGLE, device) if x is not None)
    ours, theirs = both(cutwheel, EVEN[2], "relu")
    result = ours(x, weight, bias)
    assert result.dtype == torch.float64
    torch.testing.assert_close(result, theirs(x, weight, bias))


# ---- what is refused
def _bad_calls(device: str) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    """name: (class, argument named in the message, call)"""
    x, w = values((2, 16, 8, 8), HALF, device), values((24, 16, 3, 3), HALF, device)
    bias, residual = values((24,), HALF, device), values((2, 24, 6, 6), HALF, device)

    def conv(*given: Any, **more: Any) -> Callable[[Any], object]:
        return lambda cutwheel: cutwheel.conv2d(*given, **more)

    calls: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
        "rank_of_input": (ValueError, "input", conv(x[0, 0], w)),
        "rank_of_weight": (ValueError, "weight", conv(x, w[0])),
        "channels": (ValueError, "weight", conv(x, w[:, :5])),
        "empty_image": (ValueError, "input", conv(x[:, :, :0], w, padding=3)),
        "filter_does_not_fit": (ValueError, "filter", conv(x[:, :, :2], w)),
        "dilated_filter_does_not_fit": (ValueError, "filter", conv(x, w, dilation=(1, 4))),
        "bias_extent": (ValueError, "bias", conv(x, w, bias[:5])),
        "bias_rank": (ValueError, "bias", conv(x, w, bias[None])),
        "dtype_of_weight": (TypeError, "weight", conv(x, w.bfloat16())),
        "dtype_of_bias": (TypeError, "bias", conv(x, w, bias.float())),
        "dtype_of_residual": (TypeError, "residual", conv(x, w, residual=residual.float())),
        "shape_of_residual": (ValueError, "residual", conv(x, w, residual=residual[:1])),
        "no_stride": (ValueError, "stride", conv(x, w, stride=0)),
        "number_of_strides": (ValueError, "stride", conv(x, w, stride=(1, 2, 1))),
        "negative_padding": (ValueError, "padding", conv(x, w, padding=-1)),
        "name_of_padding": (ValueError, "padding", conv(x, w, padding="full")),
        "same_with_a_stride": (ValueError, "padding", conv(x, w, None, 2, "same")),
        "no_dilation": (ValueError, "dilation", conv(x, w, dilation=0)),
        "activation": (ValueError, "activation", conv(x, w, activation="rely")),
        "not_a_tensor": (TypeError, "weight", conv(x, [[1.0]])),
    }
    if device not in ("cpu", "meta"):
        calls |= {
            "cpu_tensors": (NotImplementedError, "CPU", conv(x.cpu(), w.cpu())),
            "cpu_weight": (ValueError, "weight", conv(x, w.cpu())),
            "cpu_bias": (ValueError, "bias", conv(x, w, bias.cpu())),
            "cpu_residual": (ValueError, "residual", conv(x, w, residual=residual.cpu())),
        }
    return calls


ON_CPU = ("cpu_tensors", "cpu_weight", "cpu_bias", "cpu_residual")


@pytest.mark.parametrize("name", [*_bad_calls("cpu"), *ON_CPU])
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
    assert "cutwheel." not in str(raised.value), "the class prefix is not for people"
    conv = Conv.random("fprop", *EVEN, HALF, device, epilogue_of(None))
    check_public(cutwheel, conv)  # the context is alive


def test_gradients_of_other_sizes_are_refused(cutwheel: ModuleType, device: str) -> None:
    """By the ops themselves, which autograd calls with sizes that fit."""
    conv = Conv.random("dgrad", *EVEN, HALF, device)
    dy, weight = conv.positional
    ops, where = torch.ops.cutwheel, EVEN[2].numbers
    x = torch.zeros(2, 24, 9, 14, dtype=HALF, device=device)
    for grad, size in ((dy, (9, 20)), (dy, (0, 14)), (dy, (9, -14)), (dy[:, 1:], (9, 14))):
        with pytest.raises(RuntimeError, match=r"cutwheel\.(Shape|Value)Error"):
            ops.conv2d_input_grad(grad, weight, *size, *where)
    for image, size in ((x, (5, 5)), (x, (3, 0)), (x, (-3, 3)), (x[1:], (3, 3))):
        with pytest.raises(RuntimeError, match=r"cutwheel\.(Shape|Value)Error"):
            ops.conv2d_weight_grad(dy, image, *size, *where)
