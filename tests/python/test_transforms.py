"""Forward-mode AD and torch.func: derivatives are those of torch's functions, or are refused.

The reference kernels are opaque here, as real ones are: a derivative of zero would show.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from cpu_reference import CpuOps

Tensor = torch.Tensor
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def ops(opaque_ops: CpuOps) -> Iterator[CpuOps]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batching rule.*")
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        yield opaque_ops


def gated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    z, u = F.linear(x, w, b).chunk(2, -1)
    return F.gelu(z) * u


def evaluated(a: Tensor, b: Tensor, bias: Tensor, c: Tensor) -> Tensor:
    return F.silu(0.5 * (a @ b) + bias) + c


# name: (cutwheel's function, torch's, shapes of their tensors)
CASES: dict[str, tuple[Function, Function, tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda w: w.mm, torch.mm, ((4, 5), (5, 6))),
    "bmm": (lambda w: w.bmm, torch.bmm, ((2, 4, 5), (2, 5, 6))),
    "addmm": (
        lambda w: lambda *t: w.addmm(*t, beta=0.5, alpha=2),
        lambda *t: torch.addmm(*t, beta=0.5, alpha=2),
        ((6,), (4, 5), (5, 6)),
    ),
    "addmm_beta_0": (
        lambda w: lambda *t: w.addmm(torch.full((4, 4), torch.nan), *t, beta=0, alpha=2),
        lambda *t: 2 * torch.mm(*t),
        ((4, 4), (4, 4)),
    ),
    "baddbmm": (
        lambda w: lambda *t: w.baddbmm(*t, alpha=3),
        lambda *t: torch.baddbmm(*t, alpha=3),
        ((4, 1), (2, 4, 5), (2, 5, 6)),
    ),
    "matmul": (lambda w: w.matmul, torch.matmul, ((2, 1, 4, 5), (3, 5, 6))),
    "matmul_rows": (lambda w: w.matmul, torch.matmul, ((2, 4, 5), (5,))),
    "linear": (lambda w: w.linear, F.linear, ((2, 4, 5), (6, 5), (6,))),
    "linear_gelu": (
        lambda w: lambda *t: w.linear(*t, activation="gelu"),
        lambda *t: F.gelu(F.linear(*t)),
        ((4, 5), (6, 5), (6,)),
    ),
    "linear_silu": (
        lambda w: lambda *t: w.linear(*t, activation="silu"),
        lambda *t: F.silu(F.linear(*t)),
        ((4, 5), (6, 5), (6,)),
    ),
    "linear_softplus": (
        lambda w: lambda *t: w.linear(*t, activation="softplus"),
        lambda *t: F.softplus(F.linear(*t)),
        ((4, 5), (6, 5)),
    ),
    "linear_residual": (
        lambda w: lambda x, y, b, r: w.linear(x, y, b, activation="gelu", residual=r),
        lambda x, y, b, r: F.gelu(F.linear(x, y, b) + r),
        ((4, 5), (6, 5), (6,), (4, 6)),
    ),
    "linear_residual_last": (
        lambda w: (
            lambda x, y, r: w.linear(
                x, y, activation="tanh", residual=r, residual_after_activation=True
            )
        ),
        lambda x, y, r: torch.tanh(F.linear(x, y)) + r,
        ((4, 5), (6, 5), (4, 6)),
    ),
    "gated_linear": (
        lambda w: lambda x, y, b: w.gated_linear(x, y, "gelu", b),
        gated,
        ((4, 5), (6, 5), (6,)),
    ),
    "gated_linear, interleaved": (
        lambda w: lambda x, y, b: w.gated_linear(x, y, "gelu", b, interleaved=True),
        lambda x, y, b: gated(x, torch.cat((y[0::2], y[1::2])), torch.cat((b[0::2], b[1::2]))),
        ((4, 5), (6, 5), (6,)),
    ),
    "conv1d": (
        lambda w: lambda *t: w.conv1d(*t, padding=1),
        lambda *t: F.conv1d(*t, padding=1),
        ((2, 3, 5), (4, 3, 2)),
    ),
    "conv2d": (
        lambda w: lambda *t: w.conv2d(*t, padding="same", activation="gelu"),
        lambda *t: F.gelu(F.conv2d(*t, padding="same")),
        ((2, 3, 4, 3), (4, 3, 2, 2), (4,)),
    ),
    "conv2d_residual": (
        lambda w: lambda x, y, r: w.conv2d(x, y, stride=2, residual=r, activation="relu"),
        lambda x, y, r: F.relu(F.conv2d(x, y, stride=2) + r),
        ((2, 3, 5, 5), (4, 3, 2, 2), (2, 4, 2, 2)),
    ),
    "conv3d": (
        lambda w: w.conv3d,
        F.conv3d,
        ((1, 3, 2, 4, 4), (4, 3, 1, 2, 2), (4,)),
    ),
}
IDS = list(CASES)


def make(*shape: int) -> Tensor:
    return torch.randn(shape)


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", IDS)
def test_forward_mode(cutwheel: ModuleType, ops: CpuOps, name: str) -> None:
    ours, torchs, shapes = CASES[name]
    primals, tangents = ([make(*shape) for shape in shapes] for _ in range(2))
    for function in (ours(cutwheel), torchs):
        close(
            func.jvp(function, tuple(primals), tuple(tangents)),
            func.jvp(torchs, tuple(primals), tuple(tangents)),
        )
    assert not ops.calls
    output, push = func.linearize(ours(cutwheel), *primals)
    close(push(*tangents), func.jvp(torchs, tuple(primals), tuple(tangents))[1])
    close(output, torchs(*primals))
    ops.calls.clear()
    for index in range(len(shapes)):
        with forward_ad.dual_level():
            given = list(primals)
            given[index] = forward_ad.make_dual(primals[index], tangents[index])
            got, want = (forward_ad.unpack_dual(f(*given)) for f in (ours(cutwheel), torchs))
            close(got.primal, want.primal)
            assert got.tangent.abs().sum() > 0
            close(got.tangent, want.tangent)
    assert not ops.calls
    close(ours(cutwheel)(*primals), torchs(*primals))
    assert ops.calls  # outside of transforms the kernels are used


@pytest.mark.parametrize("name", IDS)
def test_other_transforms(cutwheel: ModuleType, name: str) -> None:
    ours, torchs, shapes = CASES[name]
    tensors = [make(*shape) for shape in shapes]
    batches = [make(3, *shape) for shape in shapes]
    every = tuple(range(len(shapes)))
    results = []
    for function in (ours(cutwheel), torchs):

        def loss(*given: Tensor, function: Function = function) -> Tensor:
            return function(*given).square().sum()

        results.append(
            (
                func.jacfwd(function, every)(*tensors),
                func.jacrev(function, every)(*tensors),
                func.grad(loss, every)(*tensors),
                func.vmap(function)(*batches),
                func.vmap(func.grad(loss, every))(*batches),
                func.grad(lambda *t, loss=loss: func.vmap(loss)(*t).sum(), every)(*batches),
                func.hessian(loss)(*tensors),
                func.hessian(loss, len(shapes) - 1)(*tensors),
            )
        )
    close(*results)


def test_gemm(cutwheel: ModuleType) -> None:
    a, b, bias, c = make(4, 5), make(5, 6), make(6), make(4, 6)

    def ours(a: Tensor, b: Tensor, bias: Tensor, c: Tensor) -> Tensor:
        result: Tensor = cutwheel.gemm(a, b, "bias_silu_residual", alpha=0.5, bias=bias, residual=c)
        return result

    tensors = (a, b, bias, c)
    close(func.jvp(ours, tensors, tensors), func.jvp(evaluated, tensors, tensors))
    close(func.vmap(ours)(*(t.expand(2, *t.shape) for t in tensors))[1], evaluated(*tensors))
    with pytest.raises(RuntimeError, match="a requires grad"):
        func.grad(lambda a: ours(a, b, bias, c).sum())(a)


def test_sixteen_bits_and_their_result(cutwheel: ModuleType) -> None:
    a, b = make(4, 5).bfloat16(), make(5, 6).bfloat16()
    c = make(6)
    values, tangents = func.jvp(lambda *t: cutwheel.mm(*t), (a, b), (a, b))
    assert values.dtype == tangents.dtype == torch.bfloat16
    for autocast in (False, True):
        with torch.autocast("cuda", enabled=autocast):
            wide = func.jvp(lambda *t: cutwheel.addmm(c, *t, torch.float32), (a, b), (a, b))
        exact = a.float() @ b.float()
        close(wide, (exact + c, 2 * exact))
    out = torch.empty(4, 6)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, a)
        assert cutwheel.mm(dual, b, out=out) is out
    close(out, exact)


def test_what_a_call_refuses_it_refuses_here(cutwheel: ModuleType) -> None:
    a, b = make(4, 5), make(5, 6)
    wrong: list[tuple[type[Exception], str, Function]] = [
        (ValueError, "mat2 has shape", lambda x: cutwheel.mm(x, x)),
        (TypeError, "mat2 has dtype float16", lambda x: cutwheel.mm(x, b.half())),
        (TypeError, "mat2 is None", lambda x: cutwheel.mm(x, None)),
        (TypeError, "out_dtype is float16", lambda x: cutwheel.mm(x, b, torch.float16)),
        (ValueError, "input has shape", lambda x: cutwheel.addmm(a.new_ones(7), x, b, beta=0)),
        (ValueError, "bias has shape", lambda x: cutwheel.linear(x, b.t(), a.new_ones(1))),
        (ValueError, "weight has 1 dim", lambda x: cutwheel.linear(x, b[:, 0])),
        (
            ValueError,
            "residual has shape",
            lambda x: cutwheel.linear(x, b.t(), residual=a.new_ones(1, 6)),
        ),
        (
            ValueError,
            "weight makes 5",
            lambda x: cutwheel.gated_linear(x, a.new_ones(5, 5), interleaved=True),
        ),
        (ValueError, r"\[2F, K\]", lambda x: cutwheel.gated_linear(x, a.new_ones(5, 5))),
        (ValueError, "never resized", lambda x: cutwheel.mm(x, b, out=a.new_ones(4, 5))),
        (ValueError, "overlaps", lambda x: cutwheel.mm(x, b, out=a.new_ones(1, 6).expand(4, 6))),
        (ValueError, "bias has shape", lambda x: cutwheel.gemm(x, b, "bias", bias=a.new_ones(1))),
        (ValueError, "activation is 'swish'", lambda x: cutwheel.linear(x, b, activation="swish")),
    ]
    for error, text, call in wrong:
        with pytest.raises(error, match=text):
            func.vmap(call)(a.expand(2, 4, 5))
        with forward_ad.dual_level(), pytest.raises(error, match=text):
            call(forward_ad.make_dual(a, a))


OFFS = torch.tensor([1, 4], dtype=torch.int32)
WEIGHT, ROWS = torch.ones(2, 6, 128), torch.ones(4, 6)
BYTES, FP8 = torch.ones(4, 128).char(), torch.ones(4, 128).to(torch.float8_e4m3fn)


def scaled_linear(w: ModuleType, **options: Any) -> Function:
    layer: Function = w.nn.ScaledLinear(128, 6, dtype=torch.int8, **options)
    return layer


def experts(w: ModuleType) -> Function:
    layer = w.nn.GroupedExperts(2, 128, 4).requires_grad_(False)
    return lambda x: layer(x, torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1))


# name: who says what is called with a [4, 128], and is not to be differentiated with respect to it
REFUSED: dict[str, tuple[str, Function]] = {
    "rows": ("grouped_mm", lambda w: lambda x: w.grouped_mm(x, WEIGHT.mT, offs=OFFS)),
    "columns": ("grouped_mm", lambda w: lambda x: w.grouped_mm(WEIGHT, x.t(), offs=OFFS)),
    "k": ("grouped_mm", lambda w: lambda x: w.grouped_mm(x.t(), ROWS, offs=OFFS)),
    "accumulate": (
        "grouped_mm",
        lambda w: (
            lambda x: w.grouped_mm(x.t(), ROWS, offs=OFFS, accumulate_into=torch.zeros(2, 128, 6))
        ),
    ),
    "linear": ("grouped_linear", lambda w: lambda x: w.grouped_linear(x, WEIGHT, offs=OFFS)),
    "relu": (
        "grouped_linear",
        lambda w: lambda x: w.grouped_linear(x, WEIGHT, offs=OFFS, activation="relu"),
    ),
    "gated": (
        "grouped_gated_linear",
        lambda w: lambda x: w.grouped_gated_linear(x, WEIGHT, offs=OFFS),
    ),
    "experts": ("GroupedExperts", experts),
    "quantize": ("quantize", lambda w: lambda x: w.quantize(x, "rowwise", torch.int8)[1]),
    "scaled_mm": (
        "scaled_mm",
        lambda w: lambda x: w.scaled_mm(BYTES, BYTES.t(), x[:, :1], scale_b=x[:1, :4].clone()),
    ),
    "scaled_grouped": (
        "scaled_grouped_mm",
        lambda w: (
            lambda x: w.scaled_grouped_mm(
                FP8, FP8.t().expand(2, 128, 4), x[:, 0], scale_b=x[:2, :4], offs=OFFS
            )
        ),
    ),
    "scaled_conv": (
        "scaled_conv2d",
        lambda w: (
            lambda x: w.scaled_conv2d(
                *(BYTES.view(1, 4, 8, 16), BYTES[:, :4].reshape(4, 4, 1, 1), x[0, :1], x[:, 0])
            )
        ),
    ),
    "layer": ("ScaledLinear", scaled_linear),
    "trained": ("ScaledLinear", lambda w: scaled_linear(w, straight_through=True)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(cutwheel: ModuleType, name: str) -> None:
    x = make(4, 128).abs()
    who, build = REFUSED[name]
    text = f"^{who}: .* is differentiated by torch.func or by forward-mode AD"
    call = build(cutwheel)

    for transformed in (
        lambda: func.jvp(call, (x,), (x,)),
        lambda: func.jacfwd(call)(x),
        lambda: func.linearize(call, x)[1](x),
        lambda: func.vmap(lambda y: func.jvp(call, (y,), (y,)))(x.expand(2, 4, 128)),
        lambda: func.grad(lambda y: func.vmap(call)(y).sum())(x.expand(2, 4, 128)),
    ):
        with pytest.raises(NotImplementedError, match=text):
            transformed()
    with pytest.raises((NotImplementedError, RuntimeError), match=f"{text}|requires grad"):
        func.grad(lambda y: call(y).float().sum())(x)
    with pytest.raises((NotImplementedError, RuntimeError), match=f"{text}|requires grad"):
        func.vmap(call)(x.expand(2, 4, 128).clone().requires_grad_())
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match=text):
            call(forward_ad.make_dual(x, x))
        # Calls that are not differentiated are not refused.
        call(x)
        with torch.no_grad():
            call(x.clone().requires_grad_())


def test_what_is_constant_in_a_transform_is_served(cutwheel: ModuleType) -> None:
    x = make(4, 128)

    def call(y: Tensor) -> Tensor:
        with torch.no_grad():
            values, _ = cutwheel.quantize(x, "rowwise", torch.int8)
        result: Tensor = y * values.float().sum() * cutwheel.grouped_mm(x.t(), x, offs=OFFS).sum()
        return result

    value, tangent = func.jvp(call, (torch.tensor(2.0),), (torch.tensor(1.0),))
    close(tangent, value / 2)


class Layers(torch.nn.Module):
    def __init__(self, w: ModuleType) -> None:
        super().__init__()
        self.conv = w.nn.Conv2d(3, 4, 2, activation="gelu")
        self.linear = w.nn.Linear(4, 8, activation="silu")
        self.mlp = w.nn.GatedMLP(8, 6)

    def forward(self, image: Tensor) -> Tensor:
        rows = self.linear(self.conv(image).mean((2, 3)))
        result: Tensor = self.mlp(rows, rows)
        return result


def test_modules(cutwheel: ModuleType) -> None:
    """Per-sample gradients, and the derivative along a direction of the parameters."""
    model, image = Layers(cutwheel), make(2, 3, 4, 4)
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    direction = {k: torch.randn_like(v) for k, v in parameters.items()}

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        result: Tensor = func.functional_call(model, parameters, (image,)).square().sum()
        return result

    each = func.vmap(func.grad(loss), (None, 0))(parameters, image.unsqueeze(1))
    model.zero_grad()
    model(image).square().sum().backward()
    for name, parameter in model.named_parameters():
        close(each[name].sum(0), parameter.grad)
    _, along = func.jvp(lambda p: loss(p, image), (parameters,), (direction,))
    close(along, sum((p.grad * direction[k]).sum() for k, p in model.named_parameters()))


# torch has no forward-mode derivative of the backward pass of its own silu.
@pytest.mark.parametrize("name", [name for name in IDS if "silu" not in name])
def test_backward_of_a_dual_gradient(cutwheel: ModuleType, ops: CpuOps, name: str) -> None:
    """The kernels ran outside; what backward computes inside of the level has tangents."""
    ours, torchs, shapes = CASES[name]
    tensors = [make(*shape) for shape in shapes]
    tangents = []
    for function in (ours(cutwheel), torchs):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        result = function(*leaves)
        torch.manual_seed(0)
        grad, tangent = make(*result.shape), make(*result.shape)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(grad, tangent)
            grads = torch.autograd.grad(result, leaves, dual)
            tangents.append([forward_ad.unpack_dual(g).tangent for g in grads])
    close(*tangents)


def test_gradients_reach_what_vmap_was_given(cutwheel: ModuleType) -> None:
    a, b = make(3, 4, 5), make(3, 5, 6)
    grads = []
    for function in (cutwheel.mm, torch.mm):
        leaf = a.clone().requires_grad_()
        func.vmap(function)(leaf, b).square().sum().backward()
        grads.append(leaf.grad)
    close(*grads)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lambda *t: func.jvp(f, t, t)[1],
        lambda f: lambda *t: func.jacfwd(f)(*t),
        lambda f: lambda *t: func.grad(lambda *u: f(*u).square().sum())(*t),
        lambda f: lambda a, b: func.vmap(f, (0, None))(a.expand(2, *a.shape), b),
        lambda f: lambda *t: f(*t) + func.jvp(f, t, t)[1] + f(*t),
    ],
    ids=["jvp", "jacfwd", "grad", "vmap", "mixed"],
)
@pytest.mark.parametrize("name", ["mm", "linear"])
def test_compiled(
    cutwheel: ModuleType, traced_on_cpu: CpuOps, name: str, transform: Function
) -> None:
    a, b = make(4, 5), make(5, 5)
    ours, torchs = (getattr(cutwheel, name), {"mm": torch.mm, "linear": F.linear}[name])
    compiled = torch.compile(transform(ours), fullgraph=True, backend="aot_eager")
    close(compiled(a, b), transform(torchs)(a, b))


def test_compiled_outside_is_not_used_inside(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    a, b = make(4, 5), make(5, 6)
    compiled = torch.compile(cutwheel.mm, backend="aot_eager")
    close(compiled(a, b), a @ b)
    with forward_ad.dual_level():
        dual = compiled(forward_ad.make_dual(a, a), b)
        close(forward_ad.unpack_dual(dual).tangent, a @ b)
    close(compiled(a, b), a @ b)
