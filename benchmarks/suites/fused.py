"""Linear layers with what follows them, in one kernel, against what torch does for the same.

All providers are functional, none writes with ``out=``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import cutwheel
from cutwheel.tuning.case import Case, Provider, Reference, Setting
from cutwheel.tuning.cases.gemm import ACTIVATIONS, Layer, eager_linear
from cutwheel.tuning.measure import Call, Error, matmul

from ..compare import Limits
from . import Suite, compiled, kernel

ALLOWED = Error(1e-2, 1e-1)
# Gradients of a rounded z, and sums of rounded products.
ALLOWED_TRAINING = Error(2e-2, 2e-1)
# The largest of 470 million products of two normally distributed values have large errors.
ALLOWED_GATED = Error(1e-2, 5e-1)
ALLOWED_GATED_TRAINING = Error(2e-2, 5e-1)  # both; torch's are up to 0.3 at the worst element
MODE = "max-autotune-no-cudagraphs"
ELEMENT = 2  # bytes of bfloat16
OVERHEAD = (None, "relu", "gelu", "gelu_tanh", "silu")

Tensor = torch.Tensor


# ---- torch's providers
def eager_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return functional.linear(x, w, b) + r


def eager_gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(x @ gate.t()) * (x @ up.t())


def our_gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    result: Tensor = cutwheel.gated_linear(x, (gate, up), "silu")
    return result


def addmm_activation(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """cuBLASLt's own epilogue, where torch takes that way."""
    return torch._addmm_activation(b, x, w.t(), use_gelu=True)


def form_of_addmm_activation(device: str = "cuda") -> str:
    """Which GELU torch._addmm_activation computes: the forms differ by up to 5e-4."""
    z = torch.linspace(-4, -1, 1024, device=device).bfloat16()
    one = torch.eye(16, device=device, dtype=torch.bfloat16)
    x = torch.zeros(1024, 16, device=device, dtype=torch.bfloat16)
    x[:, 0] = z
    found = addmm_activation(x, one, torch.zeros_like(one[0]))[:, 0].double()
    errors = {
        form: (found - ACTIVATIONS[form](z.double())).abs().mean().item()
        for form in ("gelu", "gelu_tanh")
    }
    return min(errors, key=lambda form: errors[form])


# ---- groups
def _buffers(setting: Setting, more_bytes: int = 0) -> int:
    m, n, _ = setting.shape
    return setting.buffers(setting.shape.input_bytes(ELEMENT) + more_bytes, m * n * ELEMENT, 4)


def bias_gelu(setting: Setting) -> Case:
    """The erf form; and the tanh form, which is what torch._addmm_activation has on CUDA."""
    buffers = _buffers(setting)
    layer = Layer.of(setting, buffers)
    x, w, b = layer.x, layer.w, layer.b
    z = layer.z()
    forms: dict[str, Reference] = {
        form: lambda i, form=form: ACTIVATIONS[form](z(i))  # type: ignore[misc]
        for form in ("gelu", "gelu_tanh")
    }

    def provider(name: str, call: Callable[..., Any], form: str) -> Provider:
        return Provider(name, lambda i: call(x[i], w[i], b), forms[form])

    def ours(form: str) -> Provider:
        call = functools.partial(cutwheel.linear, activation=form)
        return provider(f"cutwheel {form}", call, form)

    baselines = [provider("eager", functools.partial(eager_linear, activation="gelu"), "gelu")]
    if setting.compiled:
        in_one = setting.compiled(lambda x, w, b: functional.gelu(functional.linear(x, w, b)))
        baselines.append(provider("compile", in_one, "gelu"))
    erf, tanh = ours("gelu"), ours("gelu_tanh")
    providers = [*baselines, erf, provider("addmm_activation", addmm_activation, "gelu_tanh"), tanh]
    pairs = [(erf.name, other.name) for other in baselines]
    pairs += [(mine.name, "addmm_activation") for mine in (erf, tanh)]
    return Case(
        providers,
        buffers,
        forms["gelu"],
        ALLOWED,
        setting.shape.flops,
        setting.shape.min_bytes(ELEMENT),
        pairs,
        {
            f"cutwheel {form}": kernel("linear", x[0], w[0], b, activation=form)
            for form in ("gelu", "gelu_tanh")
        },
        {(erf.name, "addmm_activation"): "gelu_tanh"},
    )


def bias_residual(setting: Setting) -> Case:
    m, n, _ = setting.shape
    more = m * n * ELEMENT
    buffers = _buffers(setting, more)
    layer = Layer.of(setting, buffers)
    x, w, b = layer.x, layer.w, layer.b
    r = [setting.operands.normal(m, n) for _ in range(buffers)]
    z = layer.z()
    providers = [Provider("eager", lambda i: eager_residual(x[i], w[i], b, r[i]))]
    if setting.compiled:
        in_one = setting.compiled(eager_residual)
        providers.append(Provider("compile", lambda i: in_one(x[i], w[i], b, r[i])))
    providers.append(Provider("cutwheel", lambda i: cutwheel.linear(x[i], w[i], b, residual=r[i])))
    return Case(
        providers,
        buffers,
        lambda i: z(i) + r[i].float(),
        ALLOWED,
        setting.shape.flops,
        setting.shape.min_bytes(ELEMENT) + more,
        kernels={"cutwheel": kernel("linear", x[0], w[0], b, residual=r[0])},
    )


def gated_silu(setting: Setting) -> Case:
    """N is the width of the result: gate and up are [N, K] each."""
    (m, n, k), normal = setting.shape, setting.operands.normal
    read = (m * k + 2 * n * k) * ELEMENT
    buffers = setting.buffers(read, m * n * ELEMENT, 2 + bool(setting.compiled))
    x = [normal(m, k) for _ in range(buffers)]
    gate, up = ([normal(n, k, scale=k**-0.5) for _ in range(buffers)] for _ in range(2))
    providers = [Provider("eager", lambda i: eager_gated(x[i], gate[i], up[i]))]
    if setting.compiled:
        in_one = setting.compiled(eager_gated)
        providers.append(Provider("compile", lambda i: in_one(x[i], gate[i], up[i])))
    providers.append(Provider("cutwheel", lambda i: our_gated(x[i], gate[i], up[i])))

    def expected(i: int) -> Tensor:
        return functional.silu(matmul(x[i], gate[i].t())).mul_(matmul(x[i], up[i].t()))

    return Case(
        providers,
        buffers,
        expected,
        ALLOWED_GATED,
        2 * setting.shape.flops,
        setting.shape.min_bytes(ELEMENT) + n * k * ELEMENT,
        kernels={"cutwheel": kernel("gated_linear", x[0], (gate[0], up[0]))},
    )


def training_gelu(setting: Setting) -> Case:
    """Forward, then the gradients of x, w and b for a random gradient of the result."""
    m, n, _ = setting.shape
    buffers = _buffers(setting, m * n * ELEMENT)
    layer = Layer.of(setting, buffers, grad=True)
    x, w, b = layer.x, layer.w, layer.b
    g = [setting.operands.normal(m, n) for _ in range(buffers)]
    z = layer.z()

    def step(linear: Callable[..., Tensor]) -> Call:
        def call(i: int) -> tuple[Tensor, ...]:
            y = linear(x[i], w[i], b, activation="gelu")
            return (y.detach(), *torch.autograd.grad(y, (x[i], w[i], b), g[i]))

        return call

    def expected(i: int) -> tuple[Tensor, ...]:
        dz = torch.ops.aten.gelu_backward(g[i].float(), z(i))
        dx = matmul(dz, w[i].detach())
        dw = matmul(dz.t(), x[i].detach())
        return functional.gelu(z(i)), dx, dw, dz.double().sum(0).float()

    return Case(
        [Provider("eager", step(eager_linear)), Provider("cutwheel", step(cutwheel.linear))],
        buffers,
        expected,
        ALLOWED_TRAINING,
        3 * setting.shape.flops,
        2 * setting.shape.min_bytes(ELEMENT),  # also of g, and a gradient of each input
        kernels={"cutwheel": kernel("linear", x[0], w[0], b, activation="gelu")},
    )


def training_gated_silu(setting: Setting) -> Case:
    """Forward, then the gradients of x and of both weights for a random gradient of the result.

    N is the width of the result.
    """
    (m, n, k), normal = setting.shape, setting.operands.normal
    read = (m * k + 2 * n * k + m * n) * ELEMENT
    weights = 2 * n * k * ELEMENT
    buffers = setting.buffers(read, (m * n + m * k) * ELEMENT + weights)
    x = [normal(m, k).requires_grad_() for _ in range(buffers)]
    gate, up = ([normal(n, k, scale=k**-0.5) for _ in range(buffers)] for _ in range(2))
    for weight in (*gate, *up):
        weight.requires_grad_()
    g = [normal(m, n) for _ in range(buffers)]

    def step(gated: Callable[..., Tensor]) -> Call:
        def call(i: int) -> tuple[Tensor, ...]:
            y = gated(x[i], gate[i], up[i])
            return (y.detach(), *torch.autograd.grad(y, (x[i], gate[i], up[i]), g[i]))

        return call

    def expected(i: int) -> tuple[Tensor, ...]:
        own_x, own_gate, own_up = x[i].detach(), gate[i].detach(), up[i].detach()
        z, u = matmul(own_x, own_gate.t()), matmul(own_x, own_up.t())
        dz = torch.ops.aten.silu_backward(g[i].float() * u, z)
        du = functional.silu(z).mul_(g[i])
        dx = matmul(dz, own_gate).add_(matmul(du, own_up))
        return functional.silu(z).mul_(u), dx, matmul(dz.t(), own_x), matmul(du.t(), own_x)

    return Case(
        [Provider("eager", step(eager_gated)), Provider("cutwheel", step(our_gated))],
        buffers,
        expected,
        ALLOWED_GATED_TRAINING,
        6 * setting.shape.flops,
        2 * (m * k + 2 * n * k + m * n) * ELEMENT,  # also of g, and a gradient of each input
        kernels={"cutwheel": kernel("gated_linear", x[0], (gate[0], up[0]))},
    )


def overhead(setting: Setting) -> Case:
    """Each epilogue against cutwheel's own linear layer with a bias alone."""
    m, n, _ = setting.shape
    buffers = _buffers(setting)
    layer = Layer.of(setting, buffers)
    x, w, b = layer.x, layer.w, layer.b
    r = [setting.operands.normal(m, n) for _ in range(buffers)]
    z = layer.z()
    linear = cutwheel.linear

    def provider(activation: str | None) -> Provider:
        return Provider(
            activation or "bias",
            lambda i: linear(x[i], w[i], b, activation=activation),
            lambda i: ACTIVATIONS[activation](z(i)),
        )

    def with_z(i: int) -> Any:
        return torch.ops.cutwheel.linear_fused_aux(x[i], w[i], b, None, "bias_gelu_aux")

    providers = [
        *(provider(activation) for activation in OVERHEAD),  # "bias" first
        Provider(
            "residual",
            lambda i: linear(x[i], w[i], b, residual=r[i]),
            lambda i: z(i) + r[i].float(),
        ),
        Provider("gelu, z stored", with_z, lambda i: (functional.gelu(z(i)), z(i))),
    ]
    return Case(
        providers,
        buffers,
        z,
        ALLOWED,
        setting.shape.flops,
        setting.shape.min_bytes(ELEMENT),
        [(other.name, "bias") for other in providers[1:]],
        {"bias": kernel("linear", x[0], w[0], b)},
    )


SUITE = Suite(
    {
        "bias_gelu": bias_gelu,
        "bias_residual": bias_residual,
        "gated_silu": gated_silu,
        "training_gelu": training_gelu,
        "training_gated_silu": training_gated_silu,
        "overhead": overhead,
    },
    Limits(case_seconds=0.4, max_rounds=15),
    "bf16",
    has_ceilings=True,
    fields=lambda: {"addmm_activation": form_of_addmm_activation()},
    compiled=lambda function, mode: compiled(function, mode=mode, dynamic=False),
    mode=MODE,
)
