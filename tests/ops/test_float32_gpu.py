"""float32 where torch forbids TF32: as exact as torch, in every op that torch can compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gemm_cases import SINGLE, random_tensor
from runtime import capture

pytestmark = pytest.mark.gpu

Tensor = torch.Tensor
Function = Callable[..., Any]
# Error in units of the norm; TF32 has 3e-4.
FLOOR = 5e-6


@pytest.fixture(autouse=True)
def full_precision(tf32: None) -> Iterator[None]:
    conv = torch.backends.cudnn.conv
    before = conv.fp32_precision
    torch.set_float32_matmul_precision("highest")
    conv.fp32_precision = "ieee"
    yield
    conv.fp32_precision = before


def gated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.silu(F.linear(x, w[0::2], b[0::2])) * F.linear(x, w[1::2], b[1::2])


# name: (cutwheel's function, torch's, shapes)
CASES: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda w: w.mm, torch.mm, ((65, 257), (257, 131))),
    "bmm": (lambda w: w.bmm, torch.bmm, ((3, 65, 257), (3, 257, 131))),
    "addmm": (
        lambda w: lambda *t: w.addmm(*t, beta=0.5, alpha=2),
        lambda *t: torch.addmm(*t, beta=0.5, alpha=2),
        ((131,), (65, 257), (257, 131)),
    ),
    "baddbmm": (
        lambda w: w.baddbmm,
        torch.baddbmm,
        ((65, 1), (3, 65, 257), (3, 257, 131)),
    ),
    "matmul": (lambda w: w.matmul, torch.matmul, ((2, 65, 257), (257, 131))),
    "linear": (lambda w: w.linear, F.linear, ((2, 65, 257), (131, 257), (131,))),
    "linear_gelu_residual": (
        lambda w: lambda x, y, b, r: w.linear(x, y, b, activation="gelu", residual=r),
        lambda x, y, b, r: F.gelu(F.linear(x, y, b) + r),
        ((65, 257), (131, 257), (131,), (65, 131)),
    ),
    "linear_softplus": (
        lambda w: lambda x, y: w.linear(x, y, activation="softplus"),
        lambda x, y: F.softplus(F.linear(x, y)),
        ((65, 257), (131, 257)),
    ),
    "gated_linear": (
        lambda w: lambda x, y, b: w.gated_linear(x, y, bias=b, interleaved=True),
        gated,
        ((65, 257), (132, 257), (132,)),
    ),
    "conv2d": (
        lambda w: lambda *t: w.conv2d(*t, padding=1, activation="silu"),
        lambda *t: F.silu(F.conv2d(*t, padding=1)),
        ((2, 17, 9, 10), (24, 17, 3, 3), (24,)),
    ),
}


def error(got: Tensor, exact: Tensor) -> float:
    assert got.shape == exact.shape
    return ((got.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(cutwheel: ModuleType, device: str, name: str) -> None:
    ours, torchs, shapes = CASES[name]
    tensors = [random_tensor(shape, SINGLE, device) for shape in shapes]
    found = []
    seed: Tensor | None = None
    for function, dtype in (
        (ours(cutwheel), SINGLE),
        (torchs, SINGLE),
        (torchs, torch.float64),
    ):
        leaves = [t.detach().to(dtype).requires_grad_() for t in tensors]
        result = function(*leaves)
        assert result.dtype == dtype
        seed = torch.randn_like(result) if seed is None else seed
        given = seed.to(dtype).expand_as(result)
        found.append([result.detach(), *torch.autograd.grad(result, leaves, given)])
    for got, theirs, exact in zip(*found, strict=True):
        assert error(got, exact) <= 2 * error(theirs, exact) + FLOOR
    with torch.no_grad():
        assert (
            error(ours(cutwheel)(*tensors), found[2][0])
            <= 2 * error(found[1][0], found[2][0]) + FLOOR
        )


@pytest.mark.parametrize("epilogue", ["bias_gelu_aux", "gated_silu", "linear_combination"])
def test_gemm(cutwheel: ModuleType, device: str, poison: Callable[..., Any], epilogue: str) -> None:
    a, b = random_tensor((65, 257), SINGLE, device), random_tensor((257, 130), SINGLE, device)
    z = a.double() @ b.double()
    given: dict[str, Any]
    if epilogue == "bias_gelu_aux":
        bias = random_tensor((130,), SINGLE, device)
        z = z + bias
        given, wanted = {"bias": bias}, (F.gelu(z), z)
    elif epilogue == "gated_silu":
        given, wanted = {"alpha": 0.5}, (F.silu(0.5 * z[:, ::2]) * 0.5 * z[:, 1::2],)
    else:
        c = random_tensor((65, 130), SINGLE, device)
        given, wanted = {"c": c, "beta": 2.0}, (z + 2 * c,)
    results = cutwheel.gemm(a, b, epilogue, **given)
    results = results if isinstance(results, tuple) else (results,)
    outs = tuple(poison(torch.empty_like(result)) for result in results)
    cutwheel.gemm(a, b, epilogue, out=outs if len(outs) > 1 else outs[0], **given)
    for result, out, exact in zip(results, outs, wanted, strict=True):
        assert error(result, exact) <= FLOOR
        assert torch.equal(out, result)


@pytest.mark.parametrize("column_major", [False, True])
def test_out(
    cutwheel: ModuleType, device: str, poison: Callable[..., Any], column_major: bool
) -> None:
    a, b = random_tensor((65, 257), SINGLE, device), random_tensor((257, 131), SINGLE, device)
    out = poison(torch.empty(131, 65, device=device).t() if column_major else a.new_empty(65, 131))
    assert cutwheel.mm(a, b, out=out) is out
    assert torch.equal(out, torch.mm(a, b))
    square = a[:, :65].contiguous()
    wanted = square @ square
    assert torch.equal(cutwheel.mm(square, square, out=square), wanted)  # it may overlap here


def test_autocast_does_not_change_a_call_with_out(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    a, b = random_tensor((65, 257), SINGLE, device), random_tensor((257, 131), SINGLE, device)
    wanted = torch.mm(a, b)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(cutwheel.mm(a, b, out=torch.empty_like(wanted)), wanted)


def test_explain_and_message(
    cutwheel: ModuleType,
    device: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cutwheel.ops._common.by_torch, "_told", set())
    a, b = random_tensor((16, 16), SINGLE, device), random_tensor((16, 16), SINGLE, device)
    found = cutwheel.explain("mm", a, b)
    assert (found.row, found.parameters["served_by"]) == (None, "torch.mm")
    if device != "cpu":
        assert found.device == torch.cuda.get_device_name(device)
    for _ in range(2):
        cutwheel.mm(a, b)
    (record,) = [r for r in caplog.records if r.name == "cutwheel"]
    assert record.getMessage().startswith("mm: torch computes float32")
    torch.set_float32_matmul_precision("high")
    assert cutwheel.explain("mm", a, b).row is not None


def test_errors_are_those_of_the_op(cutwheel: ModuleType, device: str) -> None:
    a, b = random_tensor((8, 24), SINGLE, device), random_tensor((24, 16), SINGLE, device)
    for kind, text, call in (
        (ValueError, "mat2 has shape", lambda: cutwheel.mm(a, a)),
        (TypeError, "mat2 has dtype float16", lambda: cutwheel.mm(a, b.half())),
        (ValueError, "mat2 is on cpu", lambda: cutwheel.mm(a, b.cpu())),
        (ValueError, "input is on cpu", lambda: cutwheel.addmm(b[0].cpu(), a, b)),
        (ValueError, "bias has shape", lambda: cutwheel.linear(a, b.t(), b[0, :1])),
        (NotImplementedError, "on the CPU", lambda: cutwheel.mm(a.cpu(), b.cpu())),
        (TypeError, "float64", lambda: cutwheel.mm(a.double(), b.double())),
    ):
        with pytest.raises(kind, match=text):
            call()


@pytest.mark.no_dispatch_mode
def test_captured_and_compiled(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu":
        pytest.skip("CUDA graphs")
    x, w = random_tensor((16, 24), SINGLE, device), random_tensor((32, 24), SINGLE, device)

    def call(x: Tensor) -> Tensor:
        result: Tensor = cutwheel.linear(x, w, activation="silu")
        return result

    wanted = F.silu(F.linear(x, w))
    graph, captured = capture(lambda: call(x))
    captured.fill_(torch.nan)
    graph.replay()
    torch.testing.assert_close(captured, wanted, rtol=1e-5, atol=1e-5)
    compiled = torch.compile(call, fullgraph=True)
    torch.testing.assert_close(compiled(x), wanted, rtol=1e-5, atol=1e-5)
