"""GEMMs without scales: mm, addmm, linear layers, and GEMMs with any named epilogue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional

import cutwheel

from ...ops._common.epilogue import expressions_of, find
from ...ops._common.expressions import evaluate
from ..case import Case, Provider, Setting, explained, first_kernel
from ..measure import Error, Tensor, exactly

# Relative errors of right results: about 2e-3, 2e-4 and 3e-4; partial sums rounded to 16 bits,
# which torch allows itself, add to that.
ALLOWED = {
    torch.bfloat16: Error(1e-2, 1e-1),
    torch.float16: Error(2e-3, 2e-2),
    torch.float32: Error(2e-3, 2e-2),
}
CUBLASLT = "torch, cublaslt"
TRITON = "torch.compile, Triton"


@contextmanager
def blas_library(name: str) -> Iterator[None]:
    """Sets the library that torch.mm calls: "cublas", its own choice, or "cublaslt"."""
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


# By the variant of mm: whether the rows of A and of B are contiguous.
_LAYOUTS = {"dgrad": (True, True), "wgrad": (False, True)}


def mm(setting: Setting) -> Case:
    """Layouts are those of a linear layer: x @ w.T, or those of its gradients if the variant says
    dgrad (dy @ w) or wgrad (dy.T @ x)."""
    return _plain(setting, "mm")


def addmm(setting: Setting) -> Case:
    """C is a row [N], or a matrix [M, N] if the variant says so."""
    m, n, _ = setting.shape
    c = setting.operands.normal(*((m, n) if setting.variant == "matrix" else (n,)))
    return _plain(setting, "addmm", c)


def scores(setting: Setting) -> Case:
    """bmm of queries [B, M, K] and keys [B, N, K], as attention computes its scores."""
    batch, m, n, k = setting.shape
    normal = setting.operands.normal
    return _products(setting, "bmm", lambda: normal(batch, m, k), lambda: normal(batch, n, k).mT)


def values(setting: Setting) -> Case:
    """bmm of probabilities [B, M, K] and values [B, K, N], as attention applies its scores."""
    batch, m, n, k = setting.shape
    normal = setting.operands.normal
    return _products(setting, "bmm", lambda: normal(batch, m, k), lambda: normal(batch, k, n))


def _plain(setting: Setting, op: str, *c: Tensor) -> Case:
    """x [M, K] times w [N, K] transposed, or in the layouts of the variant."""
    (m, n, k), normal = setting.shape, setting.operands.normal
    of_x, of_w = _LAYOUTS.get(setting.variant, (True, False))
    return _products(
        setting,
        op,
        lambda: normal(m, k) if of_x else normal(k, m).t(),
        lambda: normal(k, n) if of_w else normal(n, k).t(),
        *c,
    )


def _products(
    setting: Setting,
    op: str,
    make_x: Callable[[], Tensor],
    make_w: Callable[[], Tensor],
    *c: Tensor,
) -> Case:
    """x times w.

    All providers write with ``out=`` into the same rotated outputs: the same addresses for all, and
    nothing is allocated inside the graphs but workspaces.
    """
    make = setting.operands
    itemsize = make.dtype.itemsize
    buffers = setting.buffers(setting.shape.input_bytes(itemsize))
    x, w = ([made() for _ in range(buffers)] for made in (make_x, make_w))
    result = (*x[0].shape[:-1], w[0].shape[-1])
    out = [torch.empty(result, dtype=make.dtype, device=make.device) for _ in range(buffers)]
    theirs, ours = getattr(torch, op), getattr(cutwheel, op)

    def by_cublaslt(i: int) -> Any:
        # While the graph is captured: a replay does not ask for the library again.
        with blas_library("cublaslt"):
            return theirs(*c, x[i], w[i], out=out[i])

    def reference(i: int) -> Tensor:
        expected = make.matmul(x[i], w[i])
        return expected.add_(c[0].float()) if c else expected

    def explain() -> dict[str, Any]:
        return explained(op, [*c, x[0], w[0]], None, 1, setting.is_tf32)

    providers = [Provider("torch", lambda i: theirs(*c, x[i], w[i], out=out[i]))]
    if op != "addmm":  # which takes cuBLASLt by itself with a row
        providers.append(Provider(CUBLASLT, by_cublaslt))
    if setting.compiled:
        by_triton = setting.compiled(theirs)
        providers.append(Provider(TRITON, lambda i: by_triton(*c, x[i], w[i])))
    for name, other in setting.others.items():
        providers.append(Provider(name, lambda i, other=other: other(x[i], w[i], out=out[i])))  # type: ignore[misc]
    providers.append(Provider("cutwheel", lambda i: ours(*c, x[i], w[i], out=out[i])))
    return Case(
        providers,
        buffers,
        reference,
        ALLOWED[make.dtype],
        setting.shape.flops,
        setting.shape.min_bytes(itemsize) + sum(t.nbytes for t in c if t.dim() == 2),
        kernels={"cutwheel": first_kernel(explain)},
        explain=explain,
    )


# ---- linear layers
ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda z: z,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": functional.hardswish,
    "softplus": functional.softplus,
}


def eager_linear(x: Tensor, w: Tensor, b: Tensor, activation: str | None = None) -> Tensor:
    return ACTIVATIONS[activation](functional.linear(x, w, b))


@dataclass(frozen=True)
class Layer:
    """Operands of a linear layer. Weights are scaled so that a GEMM has a standard deviation of 1:
    there activations bend, and a wrong one does not pass the check."""

    setting: Setting
    x: list[Tensor]
    """[M, K]"""
    w: list[Tensor]
    """[N, K]"""
    b: Tensor
    """[N]"""

    @classmethod
    def of(cls, setting: Setting, buffers: int, grad: bool = False) -> Layer:
        (m, n, k), normal = setting.shape, setting.operands.normal
        return cls(
            setting,
            [normal(m, k).requires_grad_(grad) for _ in range(buffers)],
            [normal(n, k, scale=k**-0.5).requires_grad_(grad) for _ in range(buffers)],
            normal(n).requires_grad_(grad),
        )

    def z(self) -> Callable[[int], Tensor]:
        """slot -> x w^T + b [M, N], computed once for all providers of a case"""

        @functools.cache
        def z(i: int) -> Tensor:
            found = self.setting.operands.matmul(self.x[i].detach(), self.w[i].detach().t())
            return found.add_(self.b.detach().float())

        return z

    def explain(self, activation: str | None) -> dict[str, Any]:
        operands, is_tf32 = [self.x[0], self.w[0], self.b], self.setting.is_tf32
        if activation is None:
            return explained("linear", operands, None, 1, is_tf32)
        return explained("linear_fused", [*operands, None], None, 1, is_tf32, f"bias_{activation}")


def linear(setting: Setting) -> Case:
    """With a bias, then the activation that the variant names; "bias": none"""
    activation = None if setting.variant == "bias" else setting.variant
    itemsize = setting.operands.dtype.itemsize
    buffers = setting.buffers(setting.shape.input_bytes(itemsize))
    layer = Layer.of(setting, buffers)
    x, w, b, z = layer.x, layer.w, layer.b, layer.z()
    return Case(
        [
            Provider("eager", lambda i: eager_linear(x[i], w[i], b, activation)),
            Provider("cutwheel", lambda i: cutwheel.linear(x[i], w[i], b, activation=activation)),
        ],
        buffers,
        lambda i: ACTIVATIONS[activation](z(i)),
        ALLOWED[setting.operands.dtype],
        setting.shape.flops,
        setting.shape.min_bytes(itemsize),
        explain=lambda: layer.explain(activation),
    )


# ---- any epilogue
def gated_linear(setting: Setting) -> Case:
    """N is that of the result: half the columns of the GEMM."""
    shape = setting.shape._replace(n=2 * setting.shape.n)
    return gemm(replace(setting, shape=shape, variant=f"gated_{setting.variant}"))


def gemm(setting: Setting) -> Case:
    """With any named epilogue; what it stores besides the result is not looked at."""
    (m, n, k), make, name = setting.shape, setting.operands, setting.variant
    epilogue = find(name)
    if epilogue is None or not epilogue.has_accum:
        raise ValueError(f"gemm has no epilogue {name}")
    buffers = setting.buffers(setting.shape.input_bytes(make.dtype.itemsize))
    x = [make.normal(m, k) for _ in range(buffers)]
    w = [make.normal(n, k) for _ in range(buffers)]
    extents = {"row[N]": (n,), "col[M]": (m, 1), "matrix[M,N]": (m, n), "matrix[M,2N]": (m, 2 * n)}
    operands: dict[str, Any] = {}
    for key, kind in epilogue.operands.items():
        if kind == "scalar":
            operands[key] = 1.0 if key in ("alpha", "beta") else 0.5
        else:
            value = make.normal(*extents[kind.split()[0]])
            operands[key] = value.float() if kind.endswith(" f32") else value
    given = {k: v.view(m) if v.shape == (m, 1) else v for k, v in operands.items() if _is_tensor(v)}
    scalars = {key: v for key, v in operands.items() if not _is_tensor(v)}

    def call(i: int) -> Tensor:
        result = cutwheel.gemm(x[i], w[i].t(), name, **given, **scalars)
        return result[0] if isinstance(result, tuple) else result

    def composed(x: Tensor, w: Tensor) -> Tensor:
        wide = {key: v.to(x.dtype) if _is_tensor(v) else v for key, v in operands.items()}
        values = {"alpha": 1.0, "beta": 1.0, **wide, "accum": x @ w.t()}
        for key, text in expressions_of(name):
            values[key] = evaluate(text, values)
        result: Tensor = values[""]
        return result

    def explain() -> dict[str, Any]:
        operands = [x[0], w[0].t(), *given.values()]
        return explained("gemm", operands, None, 1, setting.is_tf32, name)

    return Case(
        [Provider("cutwheel", call)],
        buffers,
        lambda i: exactly(composed, x[i], w[i], dtype=make.exact),
        ALLOWED[make.dtype],
        setting.shape.flops,
        explain=explain,
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
