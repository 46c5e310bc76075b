"""float32 where torch's setting forbids TF32: torch computes it, explain and a message say so.

Calls of torch are observed on meta tensors; values are compared on the CPU, where the reference
kernels must not be called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from cpu_reference import CpuOps

Tensor = torch.Tensor
Make = Callable[..., Tensor]
Call = Callable[[ModuleType, Make], Any]


@pytest.fixture(autouse=True)
def full_precision(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cutwheel.ops._common.by_torch, "_told", set())
    conv = torch.backends.cudnn.conv
    before = torch.get_float32_matmul_precision(), conv.fp32_precision
    torch.set_float32_matmul_precision("highest")
    conv.fp32_precision = "ieee"
    yield
    torch.set_float32_matmul_precision(before[0])
    conv.fp32_precision = before[1]


@pytest.fixture
def no_kernels(opaque_ops: CpuOps) -> Iterator[None]:
    torch.set_float32_matmul_precision("highest")
    yield
    assert {name for name, *_ in opaque_ops.calls} <= {"elementwise"}


class Asked(TorchDispatchMode):
    """Which operators of torch and of the wheel are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(str(function._schema.name))
        return function(*args, **(kwargs or {}))

    @property
    def kernels(self) -> set[str]:
        return {
            n for n in self.names if n.startswith("cutwheel::") and not n.startswith("cutwheel::_")
        }


def fake(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def real(*shape: int) -> Tensor:
    return torch.randn(shape)


# name: (who says so, the call, torch's, the operators of torch that it is made of)
CASES: dict[str, tuple[str, Call, Callable[[Make], Any], set[str]]] = {
    "mm": ("mm", lambda w, m: w.mm(m(4, 6), m(6, 8)), lambda m: m(4, 6) @ m(6, 8), {"mm"}),
    "mm_dtype": (
        "mm",
        lambda w, m: w.mm(m(4, 6), m(6, 8), torch.float32),
        lambda m: m(4, 6) @ m(6, 8),
        {"mm"},
    ),
    "bmm": (
        "bmm",
        lambda w, m: w.bmm(m(2, 4, 6), m(2, 6, 8)),
        lambda m: m(2, 4, 6) @ m(2, 6, 8),
        {"bmm"},
    ),
    "addmm": (
        "addmm",
        lambda w, m: w.addmm(m(4, 1), m(4, 6), m(6, 8), beta=2, alpha=0.5),
        lambda m: torch.addmm(m(4, 1), m(4, 6), m(6, 8), beta=2, alpha=0.5),
        {"addmm"},
    ),
    "addmm_beta_0": (
        "addmm",
        lambda w, m: w.addmm(m(8) / 0 * 0, m(4, 6), m(6, 8), beta=0, alpha=0.5),
        lambda m: 0.5 * (m(8), m(4, 6) @ m(6, 8))[1],
        {"mm"},
    ),
    "baddbmm": (
        "baddbmm",
        lambda w, m: w.baddbmm(m(8), m(2, 4, 6), m(2, 6, 8), alpha=3),
        lambda m: m(8) + 3 * (m(2, 4, 6) @ m(2, 6, 8)),
        {"baddbmm"},
    ),
    "matmul": (
        "bmm",
        lambda w, m: w.matmul(m(3, 4, 6), m(3, 6, 5)),
        lambda m: m(3, 4, 6) @ m(3, 6, 5),
        {"bmm"},
    ),
    "list": (
        "mm",
        lambda w, m: w.grouped_mm_list([m(4, 6)], [m(6, 5)])[0],
        lambda m: m(4, 6) @ m(6, 5),
        {"mm"},
    ),
    "batches": (
        "bmm",
        lambda w, m: w.grouped_mm(m(3, 4, 6), m(3, 6, 5)),
        lambda m: m(3, 4, 6) @ m(3, 6, 5),
        {"bmm"},
    ),
    "linear": (
        "linear",
        lambda w, m: w.linear(m(2, 4, 6), m(8, 6), m(8)),
        lambda m: F.linear(m(2, 4, 6), m(8, 6), m(8)),
        {"addmm"},
    ),
    "linear_silu_residual": (
        "linear",
        lambda w, m: w.linear(m(4, 6), m(8, 6), activation="silu", residual=m(4, 8)),
        lambda m: F.silu(F.linear(m(4, 6), m(8, 6)) + m(4, 8)),
        {"mm", "add", "silu"},
    ),
    "linear_residual_last": (
        "linear",
        lambda w, m: w.linear(
            m(4, 6), m(8, 6), activation="tanh", residual=m(4, 8), residual_after_activation=True
        ),
        lambda m: torch.tanh(F.linear(m(4, 6), m(8, 6))) + m(4, 8),
        {"mm", "tanh", "add"},
    ),
    "linear_leaky_relu": (
        "linear",
        lambda w, m: w.linear(m(4, 6), m(8, 6), m(8), activation="leaky_relu"),
        lambda m: F.leaky_relu(F.linear(m(4, 6), m(8, 6), m(8))),
        {"addmm", "leaky_relu"},
    ),
    "gated_linear": (
        "gated_linear",
        lambda w, m: w.gated_linear(m(4, 6), m(8, 6), "gelu", interleaved=True),
        lambda m: (lambda z: F.gelu(z[:, ::2]) * z[:, 1::2])(m(4, 6) @ m(8, 6).t()),
        {"mm", "gelu", "mul"},
    ),
    "gated_linear_bias": (
        "gated_linear",
        lambda w, m: w.gated_linear(m(4, 6), m(8, 6), "gelu", m(8), interleaved=True),
        lambda m: (lambda z: F.gelu(z[:, ::2]) * z[:, 1::2])(F.linear(m(4, 6), m(8, 6), m(8))),
        {"addmm", "gelu", "mul"},
    ),
    "gated_linear_halves": (
        "gated_linear",
        lambda w, m: w.gated_linear(m(4, 6), m(8, 6), "gelu", m(8)),
        lambda m: (lambda z, u: F.gelu(z) * u)(*F.linear(m(4, 6), m(8, 6), m(8)).chunk(2, 1)),
        {"addmm", "gelu", "mul"},
    ),
    "gemm": (
        "gemm",
        lambda w, m: w.gemm(m(4, 6), m(6, 8), "bias_gelu_residual", bias=m(8), residual=m(4, 8)),
        lambda m: F.gelu(m(4, 6) @ m(6, 8) + m(8)) + m(4, 8),
        {"mm", "gelu", "add"},
    ),
    "conv2d": (
        "conv2d",
        lambda w, m: w.conv2d(m(2, 3, 5, 5), m(4, 3, 2, 2), m(4), activation="relu"),
        lambda m: F.relu(F.conv2d(m(2, 3, 5, 5), m(4, 3, 2, 2), m(4))),
        {"convolution", "relu"},
    ),
    "conv1d": (
        "conv1d",
        lambda w, m: w.conv1d(m(2, 3, 5), m(4, 3, 2)),
        lambda m: F.conv1d(m(2, 3, 5), m(4, 3, 2)),
        {"convolution"},
    ),
}


# torch takes what the library refuses: the meta functions are asked first.
CHECKED = {"addmm_beta_0": {"cutwheel::addmm"}, "gemm": {"cutwheel::gemm"}}


class Same:
    """The same random tensors for each call, which require grad."""

    def __init__(self) -> None:
        self.made: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        torch.manual_seed(len(self.made))
        self.made.append(torch.randn(shape).requires_grad_())
        return self.made[-1]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_torch_is_asked(
    cutwheel: ModuleType, caplog: pytest.LogCaptureFixture, name: str, requires_grad: bool
) -> None:
    op, call, _, expected = CASES[name]
    with Asked() as asked:
        result = call(
            cutwheel, lambda *shape: fake(*shape).requires_grad_(requires_grad and name != "gemm")
        )
        assert result.dtype == torch.float32
        if result.requires_grad:
            result.sum().backward()
    assert {f"aten::{each}" for each in expected} <= asked.names
    assert not asked.kernels - CHECKED.get(name, set())
    (record,) = [r for r in caplog.records if r.name == "cutwheel"]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(
        f"{op}: torch computes float32 operands in full precision"
    )
    assert 'fp32_precision = "tf32"' in record.getMessage()
    call(cutwheel, fake)
    assert len([r for r in caplog.records if r.name == "cutwheel"]) == 1


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(cutwheel: ModuleType, no_kernels: None, name: str) -> None:
    _, call, torchs, _ = CASES[name]
    ours, theirs = Same(), Same()
    with torch.set_grad_enabled(name != "gemm"):
        result, expected = call(cutwheel, ours), torchs(theirs)
    torch.testing.assert_close(result, expected)
    if name == "gemm":
        return
    torch.manual_seed(100)
    seed = real(*result.shape)
    for y, leaves in ((result, ours.made), (expected, theirs.made)):
        y.backward(seed)
        for leaf in leaves:
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    for got, want in zip(ours.made, theirs.made, strict=True):
        torch.testing.assert_close(got.grad, want.grad)


def test_out_is_written_and_never_resized(cutwheel: ModuleType, no_kernels: None) -> None:
    a, b, c = real(4, 6), real(6, 8), real(8)
    for call, wanted in (
        (lambda out: cutwheel.mm(a, b, out=out), a @ b),
        (lambda out: cutwheel.addmm(c, a, b, beta=2, out=out), 2 * c + a @ b),
        (lambda out: cutwheel.bmm(a[None], b[None], out=out), (a @ b)[None]),
        (lambda out: cutwheel.baddbmm(c, a[None], b[None], out=out), (c + a @ b)[None]),
        (lambda out: cutwheel.gemm(a, b, "bias", bias=c, out=out), c + a @ b),
    ):
        for out in (torch.empty_like(wanted), torch.empty_like(wanted.mT).mT):
            version = out._version
            assert call(out) is out
            torch.testing.assert_close(out, wanted)
            assert out._version > version
        for wrong in (wanted.new_empty(*wanted.shape[:-1], 7), wanted[..., :1].expand_as(wanted)):
            with pytest.raises(ValueError, match=r"never resized|overlaps"):
                call(wrong)
        with pytest.raises(TypeError, match="out has dtype"):
            call(wanted.half())
    square = real(4, 4)
    wanted = square + square @ square
    assert cutwheel.addmm(square, square.clone(), square.clone(), out=square) is square
    torch.testing.assert_close(square, wanted)
    with pytest.raises(RuntimeError, match="requires grad"):
        cutwheel.mm(a.clone().requires_grad_(), b, out=torch.empty(4, 8))


def test_what_a_call_refuses_it_still_refuses(cutwheel: ModuleType) -> None:
    cases: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ValueError, "mat2 has shape", lambda: cutwheel.mm(fake(4, 6), fake(4, 6))),
        (ValueError, "input has 3 dim", lambda: cutwheel.mm(fake(1, 4, 6), fake(6, 4))),
        (TypeError, "mat2 has dtype", lambda: cutwheel.mm(fake(4, 6), fake(6, 4).half())),
        (TypeError, "mat2 is None", lambda: cutwheel.mm(fake(4, 6), None)),
        (TypeError, "out_dtype is", lambda: cutwheel.mm(fake(4, 6), fake(6, 4), torch.half)),
        (ValueError, "input has shape", lambda: cutwheel.addmm(fake(7), fake(4, 6), fake(6, 8))),
        (
            ValueError,
            "input has shape",
            lambda: cutwheel.addmm(fake(7), fake(4, 6), fake(6, 8), beta=0),
        ),
        (
            TypeError,
            "argument 'alpha'",
            lambda: cutwheel.addmm(fake(8), fake(4, 6), fake(6, 8), alpha="x"),
        ),
        (ValueError, "bias has shape", lambda: cutwheel.linear(fake(4, 6), fake(8, 6), fake(1))),
        (
            TypeError,
            "bias has dtype",
            lambda: cutwheel.linear(fake(4, 6), fake(8, 6), fake(8).half()),
        ),
        (ValueError, "weight has 1 dim", lambda: cutwheel.linear(fake(4, 6), fake(6))),
        (ValueError, "no dimensions", lambda: cutwheel.linear(fake(), fake(6, 6))),
        (
            ValueError,
            "residual has shape",
            lambda: cutwheel.linear(fake(4, 6), fake(8, 6), residual=fake(8)),
        ),
        (
            TypeError,
            "residual has dtype",
            lambda: cutwheel.linear(fake(4, 6), fake(8, 6), residual=fake(4, 8).half()),
        ),
        (
            ValueError,
            "activation is",
            lambda: cutwheel.linear(fake(4, 6), fake(8, 6), activation="x"),
        ),
        (
            ValueError,
            "weight makes 7",
            lambda: cutwheel.gated_linear(fake(4, 6), fake(7, 6), interleaved=True),
        ),
        (ValueError, r"\[2F, K\]", lambda: cutwheel.gated_linear(fake(4, 6), fake(7, 6))),
        (
            ValueError,
            "bias has shape",
            lambda: cutwheel.gated_linear(fake(4, 6), fake(8, 6), bias=fake(1)),
        ),
        (
            TypeError,
            "bias has dtype",
            lambda: cutwheel.gated_linear(fake(4, 6), fake(8, 6), bias=fake(8).half()),
        ),
        (
            ValueError,
            "bias has shape",
            lambda: cutwheel.gemm(fake(4, 6), fake(6, 8), "bias", bias=fake(1)),
        ),
        (
            NotImplementedError,
            "on the CPU",
            lambda: cutwheel.mm(torch.empty(4, 6), torch.empty(6, 8)),
        ),
    ]
    for error, text, call in cases:
        with pytest.raises(error, match=text):
            call()


def test_mixed_devices_are_refused(cutwheel: ModuleType) -> None:
    with FakeTensorMode(), pytest.raises(ValueError, match="mat2 is on cpu and input is on cuda"):
        cutwheel.mm(torch.empty(4, 6, device="cuda"), torch.empty(6, 4))


@pytest.mark.gpu
def test_operators_and_groups_refuse(cutwheel: ModuleType, device: str) -> None:
    def make(*shape: int) -> Tensor:
        return torch.zeros(shape, device=device)

    with pytest.raises(RuntimeError, match="forbids TF32"):
        torch.ops.cutwheel.mm(make(4, 6), make(6, 8))
    offs = torch.tensor([1, 4], dtype=torch.int32, device=device)
    for call in (
        lambda: cutwheel.grouped_mm(make(4, 6), make(2, 6, 8), offs=offs),
        lambda: cutwheel.grouped_mm(make(6, 4), make(4, 8), offs=offs),
        lambda: cutwheel.grouped_linear(make(4, 6), make(2, 8, 6), offs=offs),
        lambda: cutwheel.grouped_gated_linear(make(4, 6), make(2, 8, 6), offs=offs),
    ):
        with pytest.raises(RuntimeError, match="forbids TF32"):
            call()


def test_sixteen_bits_and_allowed_tf32_use_the_kernels(
    cutwheel: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    with Asked() as asked:
        cutwheel.mm(fake(4, 6).half(), fake(6, 8).half())
        assert "cutwheel::mm" in asked.names
        assert "aten::mm" not in asked.names
        asked.names.clear()
        torch.set_float32_matmul_precision("high")
        cutwheel.mm(fake(4, 6), fake(6, 8))
        assert "cutwheel::mm" in asked.names
        assert "aten::mm" not in asked.names
    assert not [r for r in caplog.records if r.name == "cutwheel"]


def test_forward_with_tf32_and_backward_without(cutwheel: ModuleType, opaque_ops: CpuOps) -> None:
    x, w, b = (real(*s).requires_grad_() for s in ((4, 6), (8, 6), (8,)))
    wanted = torch.autograd.grad(F.gelu(F.linear(x, w, b)).sum(), (x, w, b))
    y = cutwheel.linear(x, w, b, activation="gelu")
    assert opaque_ops.names("linear_fused")
    torch.set_float32_matmul_precision("highest")
    torch.testing.assert_close(torch.autograd.grad(y.sum(), (x, w, b)), wanted)
    assert {name for name, *_ in opaque_ops.calls} == {"elementwise"}


@pytest.mark.parametrize("name", [name for name in CASES if name != "list"])
def test_compiled_in_one_graph(
    cutwheel: ModuleType, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    _, call, _, expected = CASES[name]
    shapes: list[tuple[int, ...]] = []

    def remember(*shape: int) -> Tensor:
        shapes.append(shape)
        return fake(*shape)

    def model(*tensors: Tensor) -> Tensor:
        given = iter(tensors)
        result: Tensor = call(cutwheel, lambda *shape: next(given))
        return result

    targets: set[str] = set()

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        with Asked() as asked:
            graph(*inputs)
        targets.update(asked.names)
        return graph.forward

    call(cutwheel, remember)
    cutwheel.ops._common.by_torch._told.clear()
    caplog.clear()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    tensors = [fake(*shape) for shape in shapes]
    compiled(*tensors)
    compiled(*tensors)
    assert {f"aten::{each}" for each in expected} <= targets
    assert not {t for t in targets if t.startswith("cutwheel")} - CHECKED.get(name, set())
    assert len([r for r in caplog.records if r.name == "cutwheel"]) == 1


def test_explain_says_so(cutwheel: ModuleType) -> None:
    a, b, c = fake(4, 6), fake(6, 8), fake(8)
    w = b.t()
    for found, function, after in (
        (cutwheel.explain("mm", a, b), "torch.mm", None),
        (cutwheel.explain("bmm", a[None], b[None]), "torch.bmm", None),
        (cutwheel.explain("addmm", c, a, b), "torch.addmm", None),
        (cutwheel.explain("baddbmm", c, a[None], b[None]), "torch.baddbmm", None),
        (cutwheel.explain("linear", a, w, c), "torch.nn.functional.linear", None),
        (
            cutwheel.explain("linear", a, w, c, activation="tanh", residual=a),
            "torch.nn.functional.linear",
            "torch: tanh, residual",
        ),
        (
            cutwheel.explain("gated_linear", a, w),
            "torch.nn.functional.linear",
            "torch: silu, gate",
        ),
        (
            cutwheel.explain("gemm", a, b, "bias_gelu", bias=c),
            "torch.matmul",
            "torch: gelu(alpha * accum + bias)",
        ),
        (cutwheel.explain("grouped_mm", a[None], b[None]), "torch.bmm", None),
    ):
        assert (found.row, found.candidates) == (None, ())
        assert found.parameters["served_by"] == function
        assert "forbids TF32" in found.parameters["because"]
        assert found.parameters.get("afterwards") == after
        assert f"served_by: {function}" in str(found)
