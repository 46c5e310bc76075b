"""Gradients of the matrix products against float64, twice; autocast; torch.compile."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id, random_tensor
from reference import Problem

pytestmark = pytest.mark.gpu

# Relative to the largest element of a gradient: three products of K <= 64 and their roundings.
TOLERANCE = {HALF: 4e-3, BRAIN: 3e-2, SINGLE: 4e-3}

Shapes = tuple[tuple[int, ...], ...]
# name of the op, shapes of its tensors, other arguments
CASES: list[tuple[str, Shapes, dict[str, Any]]] = [
    ("mm", ((24, 40), (40, 56)), {}),
    ("mm", ((23, 41), (41, 57)), {}),
    ("bmm", ((3, 24, 40), (3, 40, 56)), {}),
    ("addmm", ((24, 56), (24, 40), (40, 56)), {}),
    ("addmm", ((56,), (24, 40), (40, 56)), {"beta": 0.5, "alpha": -1.5}),
    ("addmm", ((24, 1), (24, 40), (40, 56)), {"beta": 2, "alpha": 0.25}),
    ("addmm", ((), (24, 40), (40, 56)), {"beta": 2}),
    ("baddbmm", ((3, 24, 56), (3, 24, 40), (3, 40, 56)), {"alpha": 0.5}),
    ("baddbmm", ((1, 56), (3, 24, 40), (3, 40, 56)), {"beta": -1}),
    ("linear", ((24, 40), (56, 40), (56,)), {}),
    ("linear", ((2, 3, 40), (56, 40), (56,)), {}),
    ("linear", ((2, 3, 40), (56, 40)), {}),
    ("linear", ((40,), (56, 40), (56,)), {}),
    ("matmul", ((2, 24, 40), (40, 56)), {}),
    ("matmul", ((2, 1, 24, 40), (3, 40, 56)), {}),
    ("matmul", ((24, 40), (3, 40, 56)), {}),
    ("matmul", ((23, 41), (3, 41, 500)), {}),
    ("matmul", ((5, 24, 40), (1, 40, 56)), {}),
    ("matmul", ((40,), (40, 56)), {}),
]
IDS = [f"{op}-{'-'.join('x'.join(map(str, s)) or '0d' for s in shapes)}" for op, shapes, _ in CASES]


def torch_op(op: str) -> Callable[..., torch.Tensor]:
    return torch.nn.functional.linear if op == "linear" else getattr(torch, op)


def leaves(shapes: Shapes, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    return [random_tensor(shape, dtype, device).requires_grad_() for shape in shapes]


def in_double(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.detach().double().requires_grad_(t.requires_grad) for t in tensors]


def assert_near(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.shape == wanted.shape
    scale = wanted.abs().max().clamp_min(1e-3) if wanted.numel() else 1
    error = ((got.double() - wanted).abs() / scale).max().item() if wanted.numel() else 0.0
    assert error <= TOLERANCE[dtype], f"error {error:.3g} of the largest element"


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize(("op", "shapes", "arguments"), CASES, ids=IDS)
def test_gradients(
    cutwheel: ModuleType,
    device: str,
    op: str,
    shapes: Shapes,
    arguments: dict[str, Any],
    dtype: torch.dtype,
) -> None:
    inputs = leaves(shapes, dtype, device)
    exact = in_double(inputs)
    result = getattr(cutwheel, op)(*inputs, **arguments)
    expected = torch_op(op)(*exact, **arguments)
    seed = random_tensor(tuple(result.shape), dtype, device)
    grads = torch.autograd.grad(result, inputs, seed)
    wanted = torch.autograd.grad(expected, exact, seed.double())
    for tensor, got, want in zip(inputs, grads, wanted, strict=True):
        assert got.dtype == tensor.dtype
        assert_near(got, want, dtype)


@pytest.mark.parametrize(("op", "shapes", "arguments"), CASES, ids=IDS)
def test_second_gradients(
    cutwheel: ModuleType, device: str, op: str, shapes: Shapes, arguments: dict[str, Any]
) -> None:
    inputs = leaves(shapes, SINGLE, device)
    exact = in_double(inputs)
    seconds = []
    for function, tensors in ((getattr(cutwheel, op), inputs), (torch_op(op), exact)):
        result = function(*tensors, **arguments)
        grads = torch.autograd.grad(result.square().mean(), tensors, create_graph=True)
        loss = sum(grad.square().sum() for grad in grads)
        seconds.append(torch.autograd.grad(loss, tensors))
    for got, want in zip(*seconds, strict=True):
        assert_near(got, want, BRAIN)  # four chained TF32 products


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("needed", [0, 1, 2])
def test_only_needed_gradients_are_computed(cutwheel: ModuleType, device: str, needed: int) -> None:
    inputs = [random_tensor(shape, HALF, device) for shape in ((24, 56), (24, 40), (40, 56))]
    inputs[needed].requires_grad_()
    result = cutwheel.addmm(*inputs)
    with torch.profiler.profile() as profile:
        result.backward(torch.ones_like(result))
    calls = [event.key for event in profile.key_averages() if event.key.startswith("cutwheel::")]
    assert len(calls) == (0 if needed == 0 else 1)
    assert [t.grad is not None for t in inputs] == [index == needed for index in range(3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_a_sum_have_no_strides(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    for op, shapes in (
        ("mm", ((24, 40), (40, 56))),
        ("bmm", ((2, 24, 40), (2, 40, 56))),
        ("addmm", ((56,), (24, 40), (40, 56))),
        ("linear", ((2, 3, 40), (56, 40), (56,))),
    ):
        inputs = leaves(shapes, dtype, device)  # type: ignore[arg-type]
        exact = in_double(inputs)
        getattr(cutwheel, op)(*inputs).sum().backward()
        torch_op(op)(*exact).sum().backward()
        for got, want in zip(inputs, exact, strict=True):
            assert_near(got.grad, want.grad, dtype)


def test_noncontiguous_gradients(cutwheel: ModuleType, device: str) -> None:
    a, b = leaves(((33, 41), (41, 57)), HALF, device)
    exact = in_double([a, b])
    seed = random_tensor((57, 33), HALF, device).t()
    cutwheel.mm(a, b).backward(seed)
    torch.mm(*exact).backward(seed.double())
    assert_near(a.grad, exact[0].grad, HALF)
    assert_near(b.grad, exact[1].grad, HALF)


def test_out_dtype_gradients_have_the_operands_dtype(cutwheel: ModuleType, device: str) -> None:
    a, b = leaves(((24, 40), (40, 56)), BRAIN, device)
    c = random_tensor((56,), SINGLE, device).requires_grad_()
    cutwheel.addmm(c, a, b, torch.float32).square().sum().backward()
    assert (a.grad.dtype, b.grad.dtype, c.grad.dtype) == (BRAIN, BRAIN, SINGLE)


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize(
    ("broadcast", "shapes"),
    [
        (0, ((24, 40), (4, 40, 56))),
        (0, ((24, 40), (4, 40, 500))),
        (1, ((4, 24, 40), (1, 40, 56))),
        (1, ((4, 24, 40), (40, 56))),
    ],
    ids=str,
)
def test_sums_over_a_batch_are_rounded_once(
    cutwheel: ModuleType, device: str, broadcast: int, shapes: Shapes, dtype: torch.dtype
) -> None:
    """Terms that nearly cancel: rounded before, they would leave nothing right."""
    inputs = leaves(shapes, dtype, device)
    with torch.no_grad():
        batch = inputs[1 - broadcast]
        batch[2:] = batch[:2]
        if len(shapes[1]) == 2:  # rows that are no matrix as they lie
            batch = batch.transpose(0, 1).contiguous().transpose(0, 1)
    inputs[1 - broadcast] = batch.requires_grad_()
    seed = random_tensor((4, shapes[0][-2], shapes[1][-1]), dtype, device)
    seed[2:] = -seed[:2] * (1 + 2**-5)
    exact = in_double(inputs)
    sizes = [tensor.detach().abs().requires_grad_() for tensor in exact]
    (got,) = torch.autograd.grad(cutwheel.matmul(*inputs), inputs[broadcast], seed)
    (want,) = torch.autograd.grad(torch.matmul(*exact), exact[broadcast], seed.double())
    (size,) = torch.autograd.grad(torch.matmul(*sizes), sizes[broadcast], seed.double().abs())
    assert got.dtype == dtype
    limit = torch.finfo(dtype).eps * want.abs() + 2**-18 * size
    assert ((got.double() - want).abs() <= limit).all()


def test_weights_gradient_lies_as_the_weight(cutwheel: ModuleType, device: str) -> None:
    x = random_tensor((24, 40), HALF, device)
    weight = random_tensor((56, 40), HALF, device).requires_grad_()
    result = cutwheel.mm(x, weight.t())
    (grad,) = torch.autograd.grad(result, weight, torch.ones_like(result))
    assert grad.is_contiguous()


def test_empty_gradients(cutwheel: ModuleType, device: str) -> None:
    for m, n, k in ((0, 8, 16), (8, 0, 16), (8, 16, 0)):
        a, b = leaves(((m, k), (k, n)), HALF, device)
        weight = random_tensor((n, k), HALF, device).requires_grad_()
        (cutwheel.mm(a, b).sum() + cutwheel.linear(a, weight).sum()).backward()
        for tensor in (a, b, weight):
            assert tensor.grad.shape == tensor.shape
            assert not tensor.grad.isnan().any()


AUTOCAST = {
    "mm": ((24, 40), (40, 56)),
    "bmm": ((2, 24, 40), (2, 40, 56)),
    "addmm": ((56,), (24, 40), (40, 56)),
    "baddbmm": ((2, 24, 56), (2, 24, 40), (2, 40, 56)),
    "linear": ((24, 40), (56, 40), (56,)),
    "matmul": ((2, 24, 40), (40, 56)),
}


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
@pytest.mark.parametrize("op", AUTOCAST)
def test_autocast(cutwheel: ModuleType, device: str, op: str, dtype: torch.dtype) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    inputs = leaves(AUTOCAST[op], SINGLE, device)
    exact = in_double(inputs)
    with torch.autocast("cuda", dtype=dtype):
        result = getattr(cutwheel, op)(*inputs)
        assert result.dtype == torch_op(op)(*inputs).dtype == dtype
    result.sum().backward()
    torch_op(op)(*exact).sum().backward()
    for got, want in zip(inputs, exact, strict=True):
        assert got.grad.dtype == SINGLE
        assert_near(got.grad, want.grad, dtype)
    with torch.autocast("cuda", enabled=False):
        assert getattr(cutwheel, op)(*inputs).dtype == SINGLE
    doubles = [t.detach().double() for t in inputs]
    with torch.autocast("cuda", dtype=dtype), pytest.raises(TypeError, match="float64"):
        getattr(cutwheel, op)(*doubles)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("dtype", [BRAIN, SINGLE], ids=dtype_id)
def test_compile_fullgraph_forward_and_backward(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    def model(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        y = cutwheel.linear(x, weight, bias)  # [2, 3, 56]
        y = cutwheel.matmul(y, weight)  # [2, 3, 40]
        z = cutwheel.addmm(bias[:40], y[0], weight.t()[:, :40], beta=0.5, alpha=2)
        square = weight[:40]
        z = cutwheel.mm(z, cutwheel.mm(square, square))  # one tensor twice
        y = cutwheel.bmm(y, y.mT) + cutwheel.baddbmm(bias[:3], y, y.mT)
        return y.sum() + z.square().mean() + cutwheel.mm(out, out.t()).sum()

    shapes = ((2, 3, 40), (56, 40), (56,), (8, 16))
    inputs = leaves(shapes, dtype, device)
    backend = "inductor" if device != "cpu" else "aot_eager"
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    expected = torch.autograd.grad(model(*inputs), inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grads = torch.autograd.grad(compiled(*inputs), inputs)
    for got, want in zip(grads, expected, strict=True):
        assert_near(got, want.double(), BRAIN)
    with torch.no_grad():
        detached = [tensor.detach() for tensor in inputs]
        torch.testing.assert_close(compiled(*detached), model(*detached), rtol=0.03, atol=0.3)


@pytest.mark.no_dispatch_mode
def test_compile_with_autocast(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")

    def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return cutwheel.linear(x, weight)

    x, weight = leaves(((24, 40), (56, 40)), SINGLE, device)
    torch._dynamo.reset()
    result = torch.compile(model, fullgraph=True)(x, weight)
    assert result.dtype == BRAIN
    result.sum().backward()
    assert weight.grad.dtype == SINGLE


@pytest.mark.no_dispatch_mode
def test_compile_follows_the_tf32_setting(cutwheel: ModuleType, device: str) -> None:
    a, b = (random_tensor((16, 16), SINGLE, device) for _ in range(2))
    torch._dynamo.reset()
    compiled = torch.compile(cutwheel.mm, fullgraph=True, backend="eager")
    problem = Problem.of(a, b)
    of_tf32 = problem.errors(compiled(a, b))[0]
    torch.set_float32_matmul_precision("highest")
    exact = compiled(a, b)
    assert torch.equal(exact, torch.mm(a, b))
    if device != "cpu":
        assert problem.errors(exact)[0] < of_tf32 / 10
    torch.set_float32_matmul_precision("high")
    assert problem.errors(compiled(a, b))[0] == of_tf32


OPCHECK = {
    "mm": ((24, 40), (40, 56)),
    "bmm": ((2, 24, 40), (2, 40, 56)),
    "addmm": ((56,), (24, 40), (40, 56)),
    "baddbmm": ((2, 24, 56), (2, 24, 40), (2, 40, 56)),
    "linear": ((2, 3, 40), (56, 40), (56,)),
}


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("op", OPCHECK)
def test_opcheck(cutwheel: ModuleType, device: str, op: str) -> None:
    inputs = [random_tensor(shape, HALF, device) for shape in OPCHECK[op]]
    packet = getattr(torch.ops.cutwheel, op)
    torch.library.opcheck(packet.default, tuple(inputs))
    if op == "linear":
        torch.library.opcheck(packet.default, tuple(inputs[:2]))
        return
    torch.library.opcheck(packet.default, (*inputs, torch.float32))
    out = torch.empty_like(packet.default(*inputs))
    torch.library.opcheck(packet.out, tuple(inputs), {"out": out})
