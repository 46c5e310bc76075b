"""Gradients of the matrix products: which are computed, how sums are rounded; torch.compile."""

from __future__ import annotations

import warnings
from types import ModuleType

import pytest
import torch
from autograd_cases import Shapes, random_leaves, torch_op
from fused_cases import assert_near
from gemm_cases import BRAIN, HALF, SINGLE, dtype_id, random_tensor
from reference import Problem

pytestmark = pytest.mark.gpu


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


@pytest.mark.parametrize("lay", ["row", "column"])
@pytest.mark.parametrize("rows", [(24,), (2, 3, 5), (0,), ()], ids=str)
def test_both_gradients_of_a_layer_in_one_call(
    cutwheel: ModuleType, device: str, rows: tuple[int, ...], lay: str
) -> None:
    grad, x = (random_tensor((*rows, size), BRAIN, device) for size in (56, 40))
    weight = random_tensor((56, 40), BRAIN, device)
    weight = weight.t().contiguous().t() if lay == "column" else weight
    op = torch.ops.cutwheel.linear_gradients
    of_x, of_weight = op(grad, x, weight, lay == "column")
    assert of_x.shape == x.shape
    assert of_x.is_contiguous()
    assert (of_weight.shape, of_weight.stride()) == (weight.shape, weight.stride())
    left, right = grad.flatten(0, -2) if rows else grad[None], x.flatten(0, -2) if rows else x[None]
    assert_near(of_x, grad.double() @ weight.double(), BRAIN)
    assert_near(of_weight, left.double().t() @ right.double(), BRAIN)
    for wrong, text in (
        ((grad[..., :48], x, weight), r"grad has shape .*; expected \[\.\.\., 56\]"),
        ((grad, x[..., :32], weight), "input has shape"),
        ((grad, x.half(), weight), "input has dtype float16; expected bfloat16"),
        ((grad, x, weight[None]), "weight has 3 dimensions"),
    ):
        with pytest.raises(RuntimeError, match=text):
            op(*wrong, False)


@pytest.mark.no_dispatch_mode
def test_a_training_step_asks_for_both_gradients_at_once(cutwheel: ModuleType, cuda: str) -> None:
    """From Python every call costs microseconds."""
    x, weight = random_leaves(((24, 40), (56, 40)), BRAIN, cuda)
    for result in (cutwheel.linear(x, weight), cutwheel.mm(x, weight.t())):
        with torch.profiler.profile() as profile:
            result.backward(torch.ones_like(result))
        events = profile.key_averages()
        ops = {event.key: event.count for event in events if "::" in event.key}
        ours = {k: n for k, n in ops.items() if k.startswith(("cutwheel::", "aten::convolution"))}
        assert ours == {"aten::convolution_backward_overrideable": 1}, ops


def test_out_dtype_gradients_have_the_operands_dtype(cutwheel: ModuleType, device: str) -> None:
    a, b = random_leaves(((24, 40), (40, 56)), BRAIN, device)
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
    inputs = random_leaves(shapes, dtype, device)
    with torch.no_grad():
        batch = inputs[1 - broadcast]
        batch[2:] = batch[:2]
        if len(shapes[1]) == 2:  # rows that are no matrix as they lie
            batch = batch.transpose(0, 1).contiguous().transpose(0, 1)
    inputs[1 - broadcast] = batch.requires_grad_()
    seed = random_tensor((4, shapes[0][-2], shapes[1][-1]), dtype, device)
    seed[2:] = -seed[:2] * (1 + 2**-5)
    exact = [x.detach().double().requires_grad_() for x in inputs]
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
        a, b = random_leaves(((m, k), (k, n)), HALF, device)
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
def test_autocast_casts_what_torch_casts(
    cutwheel: ModuleType, device: str, op: str, dtype: torch.dtype
) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    inputs = random_leaves(AUTOCAST[op], SINGLE, device)
    doubles = [t.detach().double() for t in inputs]
    with torch.autocast("cuda", dtype=dtype):
        assert getattr(cutwheel, op)(*inputs).dtype == torch_op(op)(*inputs).dtype
        with pytest.raises(TypeError, match="float64"):
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
    inputs = random_leaves(shapes, dtype, device)
    backend = "inductor" if device != "cpu" else "aot_eager"
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

    x, weight = random_leaves(((24, 40), (56, 40)), SINGLE, device)
    result = torch.compile(model, fullgraph=True)(x, weight)
    assert result.dtype == BRAIN
    result.sum().backward()
    assert weight.grad.dtype == SINGLE


@pytest.mark.no_dispatch_mode
def test_compile_follows_the_tf32_setting(cutwheel: ModuleType, device: str) -> None:
    a, b = (random_tensor((16, 16), SINGLE, device) for _ in range(2))
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
    "linear_gradients": ((2, 3, 56), (2, 3, 40), (56, 40)),
}


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("op", OPCHECK)
def test_opcheck(cutwheel: ModuleType, device: str, op: str) -> None:
    inputs = [random_tensor(shape, HALF, device) for shape in OPCHECK[op]]
    packet = getattr(torch.ops.cutwheel, op)
    if op == "linear_gradients":
        for is_column_major in (False, True):
            torch.library.opcheck(packet.default, (*inputs, is_column_major))
        return
    torch.library.opcheck(packet.default, tuple(inputs))
    if op == "linear":
        torch.library.opcheck(packet.default, tuple(inputs[:2]))
        return
    torch.library.opcheck(packet.default, (*inputs, torch.float32))
    out = torch.empty_like(packet.default(*inputs))
    torch.library.opcheck(packet.out, tuple(inputs), {"out": out})
