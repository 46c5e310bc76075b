"""Shapes, dtypes, strides and errors of the meta functions, on fake CUDA tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from refusals import places
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
Make = Callable[..., torch.Tensor]


@pytest.fixture
def fake(cutwheel: ModuleType) -> Iterator[Make]:
    """Makes fake CUDA tensors; none of it needs a GPU.

    They are not indexed in these tests: a CPU-only torch has no device guard for that.
    """
    with FakeTensorMode():
        yield lambda *shape, dtype=HALF, device="cuda": torch.empty(
            shape, dtype=dtype, device=device
        )


def same_as(result: torch.Tensor, expected: torch.Tensor) -> bool:
    return (
        result.shape == expected.shape
        and result.dtype == expected.dtype
        and result.device == expected.device
        and result.stride() == expected.stride()
    )


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_results_are_those_of_torchs_meta_kernels(
    cutwheel: ModuleType, fake: Make, dtype: torch.dtype
) -> None:
    a, b = fake(4, 6, dtype=dtype), fake(6, 8, dtype=dtype)
    a3, b3 = fake(2, 4, 6, dtype=dtype), fake(2, 6, 8, dtype=dtype)
    row, weight, x = fake(8, dtype=dtype), fake(8, 6, dtype=dtype), fake(2, 3, 6, dtype=dtype)
    linear = torch.nn.functional.linear
    pairs = [
        (cutwheel.mm(a, b), torch.mm(a, b)),
        (cutwheel.mm(a, fake(8, 6, dtype=dtype).t()), torch.mm(a, b)),
        (cutwheel.bmm(a3, b3), torch.bmm(a3, b3)),
        (cutwheel.addmm(row, a, b, beta=2, alpha=3), torch.addmm(row, a, b)),
        (cutwheel.baddbmm(row, a3, b3), torch.baddbmm(row, a3, b3)),
        (cutwheel.linear(x, weight, row), linear(x, weight, row)),
        (cutwheel.linear(x, weight), linear(x, weight)),
        (cutwheel.linear(row, fake(6, 8, dtype=dtype)), linear(row, fake(6, 8, dtype=dtype))),
    ]
    for result, expected in pairs:
        assert same_as(result, expected)


@pytest.mark.parametrize("m", [0, 5])
@pytest.mark.parametrize("n", [0, 8])
@pytest.mark.parametrize("k", [0, 16])
def test_empty_extents(cutwheel: ModuleType, fake: Make, m: int, n: int, k: int) -> None:
    assert cutwheel.mm(fake(m, k), fake(k, n)).shape == (m, n)
    assert cutwheel.bmm(fake(0, m, k), fake(0, k, n)).shape == (0, m, n)
    assert cutwheel.addmm(fake(n), fake(m, k), fake(k, n)).shape == (m, n)
    assert cutwheel.linear(fake(2, m, k), fake(n, k), fake(n)).shape == (2, m, n)


def test_out_dtype(cutwheel: ModuleType, fake: Make) -> None:
    a, b = fake(4, 6), fake(6, 8)
    assert cutwheel.mm(a, b, torch.float32).dtype == SINGLE
    assert cutwheel.mm(a, b, out_dtype=torch.float16).dtype == HALF
    assert cutwheel.addmm(fake(8, dtype=SINGLE), a, b, torch.float32).dtype == SINGLE


def test_out(cutwheel: ModuleType, fake: Make) -> None:
    a, b, out = fake(4, 6), fake(6, 8), fake(8, 4).t()
    assert cutwheel.mm(a, b, out=out) is out
    assert cutwheel.addmm(fake(8), a, b, out=out) is out
    a3, b3, out3 = fake(2, 4, 6), fake(2, 6, 8), fake(2, 4, 8)
    assert cutwheel.bmm(a3, b3, out=out3) is out3
    assert cutwheel.baddbmm(fake(8), a3, b3, out=out3) is out3


MATMUL = [
    ((5,), (5,)),
    ((5,), (5, 7)),
    ((6, 5), (5,)),
    ((6, 5), (5, 7)),
    ((2, 6, 5), (5,)),
    ((5,), (3, 5, 7)),
    ((2, 6, 5), (5, 7)),
    ((6, 5), (3, 5, 7)),
    ((3, 6, 5), (3, 5, 7)),
    ((3, 1, 6, 5), (4, 5, 7)),
    ((2, 1, 6, 5), (1, 4, 5, 7)),
    ((0, 6, 5), (5, 7)),
    ((4, 0, 5), (4, 5, 7)),
    ((3, 6, 0), (0, 7)),
    ((0, 3, 6, 5), (1, 5, 7)),
]


@pytest.mark.parametrize(("left", "right"), MATMUL, ids=str)
def test_matmul_shapes(
    cutwheel: ModuleType, fake: Make, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = fake(*left), fake(*right)
    assert cutwheel.matmul(a, b).shape == torch.matmul(a, b).shape


def test_matmul_expands_without_a_copy(cutwheel: ModuleType, fake: Make) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[str] = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    a, b = fake(6, 5), fake(3, 5, 7)
    with Record():
        cutwheel.matmul(a, b)
        cutwheel.matmul(b.mT, a.t())
        cutwheel.matmul(fake(2, 3, 6, 5), fake(5, 7))
    copies = [name for name in calls if "copy" in name or "clone" in name or "contiguous" in name]
    assert not copies, calls


def bad_calls(make: Make) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    a, b, c = make(4, 6), make(6, 8), make(4, 8)
    a3 = make(2, 4, 6)
    single = make(4, 6, dtype=SINGLE), make(6, 8, dtype=SINGLE)
    return {
        "rank": (ValueError, "mat2 has 1 dimensions", lambda w: w.mm(a, make(6))),
        "inner": (
            ValueError,
            r"mat2 has shape \[5, 8\]; expected \[6, N\]",
            lambda w: w.mm(a, make(5, 8)),
        ),
        "batch": (
            ValueError,
            r"mat2 has shape \[1, 6, 8\]; expected \[2, 6, N\]",
            lambda w: w.bmm(a3, make(1, 6, 8)),
        ),
        "batch2": (ValueError, "batch2", lambda w: w.baddbmm(c, a3, make(2, 5, 8))),
        "double": (TypeError, "input has dtype float64", lambda w: w.mm(a.double(), b.double())),
        "complex": (TypeError, "complex64", lambda w: w.mm(a.cfloat(), b.cfloat())),
        "mixed": (
            TypeError,
            "mat2 has dtype bfloat16; expected float16",
            lambda w: w.mm(a, b.bfloat16()),
        ),
        "addend": (ValueError, r"input has shape \[3, 8\]", lambda w: w.addmm(make(3, 8), a, b)),
        "addend_dtype": (
            TypeError,
            "input has dtype bfloat16",
            lambda w: w.addmm(c.bfloat16(), a, b),
        ),
        "weight": (ValueError, "weight", lambda w: w.linear(a, b)),
        "bias": (ValueError, "bias", lambda w: w.linear(a, b.t(), c)),
        "bias_dtype": (TypeError, "bias", lambda w: w.linear(a, b.t(), make(8, dtype=SINGLE))),
        "out_shape": (ValueError, "never resized", lambda w: w.mm(a, b, out=make(4, 7))),
        "out_dtype": (
            TypeError,
            "out has dtype",
            lambda w: w.mm(a, b, out=make(4, 8, dtype=BRAIN)),
        ),
        "out_expanded": (
            ValueError,
            "out overlaps itself",
            lambda w: w.mm(a, b, out=make(4, 1).expand(4, 8)),
        ),
        "result_dtype": (
            TypeError,
            "mm: out_dtype is bfloat16; expected float16 or float32",
            lambda w: w.mm(a, b, BRAIN),
        ),
        "tf32": (RuntimeError, "TF32", lambda w: torch.ops.cutwheel.mm(*single)),
        "matmul_scalar": (ValueError, "input has no dimensions", lambda w: w.matmul(make(), b)),
        "matmul_inner": (ValueError, "other has shape", lambda w: w.matmul(a3, make(5, 8))),
        "matmul_batch": (ValueError, "do not broadcast", lambda w: w.matmul(a3, make(3, 6, 8))),
        "not_a_tensor": (
            TypeError,
            "mat2 is of type list; expected a Tensor",
            lambda w: w.mm(a, [1]),
        ),
        "none": (TypeError, "input is None; expected a Tensor", lambda w: w.linear(None, b)),
    }


def maker(device: str) -> Make:
    return lambda *shape, dtype=HALF: torch.empty(shape, dtype=dtype, device=device)


ONLY_LIBRARY = (
    *("double", "complex", "mixed", "addend_dtype", "bias", "bias_dtype", "out_shape", "out_dtype"),
    *("out_expanded", "result_dtype", "tf32"),
)


@pytest.mark.parametrize(("name", "where"), places(bad_calls(maker("meta")), ONLY_LIBRARY))
def test_bad_input(
    cutwheel: ModuleType, name: str, where: str, check_class: Callable[..., None]
) -> None:
    error, message, call = bad_calls(maker(where))[name]
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(error, match=message) as raised:
        call(cutwheel)
    check_class(raised.value, error)


def test_mixed_devices(cutwheel: ModuleType) -> None:
    with FakeTensorMode():
        a, b = torch.empty(4, 6, device="cuda").half(), torch.empty(6, 8).half()
    with pytest.raises(ValueError, match="mat2 is on cpu and input is on cuda"):
        cutwheel.mm(a, b)


def test_fake_cpu_tensors(cutwheel: ModuleType) -> None:
    """In the words of the library's CPU kernels."""
    with FakeTensorMode():
        a, b = torch.empty(4, 6).half(), torch.empty(6, 8).half()
    for call, words in (
        (lambda: cutwheel.mm(a, b), r"^mm: the tensors are on the CPU; .*, or use torch\.mm$"),
        (lambda: cutwheel.mm(a, b, out=b[:4]), "^mm: the tensors are on the CPU"),
        (lambda: cutwheel.gated_linear(a, b.t()), "^gated_linear: the tensors are on the CPU"),
        (
            lambda: cutwheel.conv2d(a[None, None], b[None, None]),
            r"^conv2d: the tensors are on the CPU.*, or use torch\.nn\.functional\.conv2d$",
        ),
        (
            lambda: cutwheel.quantize(a, "rowwise"),
            r"^quantize: the tensors .* with \.to\(\"cuda\"\)$",
        ),
    ):
        with pytest.raises(NotImplementedError, match=words):
            call()


@pytest.mark.parametrize(
    ("version", "is_refused"), [("2.11.0+cu130", False), ("2.12.1", False), ("2.13.0", True)]
)
def test_fake_cpu_tensors_of_dtensors(
    cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch, version: str, is_refused: bool
) -> None:
    """Older versions of torch ask for a DTensor's shape with them, on any mesh."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch, "__version__", version)
    with FakeTensorMode():
        a, b = torch.empty(4, 6).half(), torch.empty(6, 8).half()
        if is_refused:
            with pytest.raises(NotImplementedError, match="the tensors are on the CPU"):
                torch.ops.cutwheel.mm(a, b)
        else:
            assert torch.ops.cutwheel.mm(a, b).shape == (4, 8)


def test_dynamic_shapes_trace_once(cutwheel: ModuleType) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def model(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return cutwheel.linear(x, weight, bias)

    graph = make_fx(model, tracing_mode="symbolic")(
        torch.empty(4, 6, device="meta", dtype=HALF),
        torch.empty(8, 6, device="meta", dtype=HALF),
        torch.empty(8, device="meta", dtype=HALF),
    )
    assert "cutwheel.linear.default" in graph.code


def test_compile_traces_without_a_graph_break(cutwheel: ModuleType) -> None:
    """Forward and backward of every op on meta tensors, which run the meta functions."""

    def model(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, batch: torch.Tensor
    ) -> torch.Tensor:
        y = cutwheel.linear(x, weight, bias)  # [4, 8]
        z = cutwheel.addmm(bias, x, weight.t(), beta=0.5, alpha=2)
        y = cutwheel.mm(y.t(), z)  # [8, 8]
        w = cutwheel.bmm(batch, batch.mT)  # [2, 3, 3]
        w = cutwheel.baddbmm(bias[:3], w, w, alpha=3)  # one tensor twice
        return y.sum() + w.sum() + cutwheel.matmul(batch, weight.t()).sum()

    for dtype in (HALF, SINGLE):
        torch.set_float32_matmul_precision("high")
        shapes = ((4, 6), (8, 6), (8,), (2, 3, 6))
        inputs = [torch.empty(s, dtype=dtype, device="meta").requires_grad_() for s in shapes]
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        compiled(*inputs).backward()
        assert [t.grad.shape for t in inputs] == [t.shape for t in inputs]
        with torch.no_grad():
            compiled(*inputs)
    torch.set_float32_matmul_precision("highest")
