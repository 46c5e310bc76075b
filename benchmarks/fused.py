"""Linear layers with what follows them, in one kernel, against what torch does for the same.

Weights are scaled so that a product has a standard deviation of 1: there activations bend, and a
wrong one does not pass the check. All sides are functional, none writes with ``out=``.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from . import gemm, harness, plan
from .session import Made, SkippedError, gpu
from .shapes import GemmShape, ProductJob
from .sides import (
    ACTIVATIONS,
    Library,
    addmm_activation,
    compiled,
    eager_gated,
    eager_linear,
    gelu_tanh,
    keep_caches_in_tmpdir,
    library,
)

DTYPE = "bf16"
TOLERANCE = 1e-2
TRAINING_TOLERANCE = 2e-2  # gradients of a rounded z, and sums of rounded products
MOST_BYTES = 20e9  # a gated layer that takes more is skipped
LIMITS = plan.Limits(case_seconds=0.4, max_rounds=15)

_ELEMENT = 2  # bytes of bfloat16

Function = Callable[..., Any]
Compile = Callable[[Function], Function]


# ---- cases
@dataclass(frozen=True)
class Setting:
    """Of one case: its shape, where it runs, and what is compared."""

    shape: GemmShape
    device: torch.device
    l2_bytes: int
    library: Library
    compiled: Compile | None = None  # makes one more baseline, if there is one

    def random(self, *extents: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(*extents, dtype=torch.bfloat16, device=self.device)
        return values.mul_(scale) if scale != 1.0 else values

    def slots(self, more_bytes: int = 0) -> int:
        return plan.rotation(self.shape.input_bytes(_ELEMENT) + more_bytes, self.l2_bytes)

    def made(
        self,
        case: harness.Case,
        kernels: dict[str, str | None],
        *,
        products: int = 1,
        more_bytes: int = 0,
        forms: dict[harness.Pair, str] | None = None,
    ) -> Made:
        moved = self.shape.min_bytes(_ELEMENT) + more_bytes
        return Made(case, products * self.shape.flops, moved, kernels, forms=forms or {})


class Inputs(NamedTuple):
    x: list[torch.Tensor]  # [M, K]
    w: list[torch.Tensor]  # [N, K]
    b: torch.Tensor  # [N]

    @classmethod
    def of(cls, setting: Setting, slots: int, grad: bool = False) -> Inputs:
        m, n, k = setting.shape.m, setting.shape.n, setting.shape.k
        return cls(
            [setting.random(m, k).requires_grad_(grad) for _ in range(slots)],
            [setting.random(n, k, scale=k**-0.5).requires_grad_(grad) for _ in range(slots)],
            setting.random(n).requires_grad_(grad),
        )

    def z(self) -> Callable[[int], torch.Tensor]:
        """slot -> x w^T + b [M, N] from float64, computed once for all sides of a case"""

        @functools.cache
        def product(i: int) -> torch.Tensor:
            found = gemm.reference(self.x[i].detach(), self.w[i].detach().t())
            return found.add_(self.b.detach().float())

        return product


def bias_gelu(setting: Setting) -> Made:
    """The erf form; and the tanh form, which is what torch._addmm_activation has on CUDA."""
    slots, ours = setting.slots(), setting.library
    x, w, b = inputs = Inputs.of(setting, slots)
    z = inputs.z()

    def erf(i: int) -> torch.Tensor:
        return functional.gelu(z(i))

    def tanh(i: int) -> torch.Tensor:
        return gelu_tanh(z(i))

    def side(name: str, call: Callable[..., Any], form: Any) -> harness.Side:
        return harness.Side(name, lambda i: call(x[i], w[i], b), form)

    ours_erf, ours_tanh = f"{ours.name} gelu", f"{ours.name} gelu_tanh"
    baselines = [side("eager", functools.partial(eager_linear, activation="gelu"), erf)]
    if setting.compiled:
        in_one = setting.compiled(lambda x, w, b: functional.gelu(functional.linear(x, w, b)))
        baselines.append(side("compile", in_one, erf))
    sides = [
        *baselines,
        side(ours_erf, functools.partial(ours.linear, activation="gelu"), erf),
        side("addmm_activation", addmm_activation, tanh),
        side(ours_tanh, functools.partial(ours.linear, activation="gelu_tanh"), tanh),
    ]
    pairs = [(ours_erf, other.name) for other in baselines]
    pairs += [(ours_erf, "addmm_activation"), (ours_tanh, "addmm_activation")]
    case = harness.Case(sides, slots, erf, TOLERANCE, pairs)
    kernels = {
        name: ours.kernel("linear", x[0], w[0], b, activation=activation)
        for name, activation in ((ours_erf, "gelu"), (ours_tanh, "gelu_tanh"))
    }
    forms = {(ours_erf, "addmm_activation"): "gelu_tanh"}
    return setting.made(case, kernels, forms=forms)


def bias_residual(setting: Setting) -> Made:
    m, n = setting.shape.m, setting.shape.n
    slots, ours = setting.slots(m * n * _ELEMENT), setting.library
    x, w, b = inputs = Inputs.of(setting, slots)
    r = [setting.random(m, n) for _ in range(slots)]
    z = inputs.z()
    sides = [harness.Side("eager", lambda i: functional.linear(x[i], w[i], b) + r[i])]
    if setting.compiled:
        in_one = setting.compiled(lambda x, w, b, r: functional.linear(x, w, b) + r)
        sides.append(harness.Side("compile", lambda i: in_one(x[i], w[i], b, r[i])))
    sides.append(harness.Side(ours.name, lambda i: ours.linear(x[i], w[i], b, residual=r[i])))
    case = harness.Case(sides, slots, lambda i: z(i) + r[i].float(), TOLERANCE)
    kernel = ours.kernel("linear", x[0], w[0], b, residual=r[0])
    return setting.made(case, {ours.name: kernel}, more_bytes=m * n * _ELEMENT)


def gated_bytes(shape: GemmShape, slots: int, sides: int) -> int:
    """Memory of gated_silu: weights twice, packed and not; results, and eager's temporaries."""
    weights = 4 * shape.n * shape.k
    results = shape.m * shape.n * (sides * (slots + 1) + 3)
    return _ELEMENT * (slots * (weights + shape.m * shape.k) + results)


def gated_silu(setting: Setting) -> Made:
    """N is the width of the result: gate and up are [N, K] each."""
    shape = setting.shape
    more = shape.n * shape.k * _ELEMENT
    slots, ours = setting.slots(more), setting.library
    needed = gated_bytes(shape, slots, 2 + bool(setting.compiled))
    if needed > MOST_BYTES:
        raise SkippedError(f"takes {needed / 1e9:.0f} GB; the limit is {MOST_BYTES / 1e9:.0f}")
    x = [setting.random(shape.m, shape.k) for _ in range(slots)]
    gate, up = (
        [setting.random(shape.n, shape.k, scale=shape.k**-0.5) for _ in range(slots)]
        for _ in range(2)
    )
    packed = [torch.stack(pair, 1).flatten(0, 1) for pair in zip(gate, up, strict=True)]
    sides = [harness.Side("eager", lambda i: eager_gated(x[i], gate[i], up[i]))]
    if setting.compiled:
        in_one = setting.compiled(eager_gated)
        sides.append(harness.Side("compile", lambda i: in_one(x[i], gate[i], up[i])))
    sides.append(harness.Side(ours.name, lambda i: ours.gated(x[i], packed[i], gate[i], up[i])))

    def expected(i: int) -> torch.Tensor:
        gates = functional.silu(gemm.reference(x[i], gate[i].t()))
        return gates.mul_(gemm.reference(x[i], up[i].t()))

    # The largest of 470 million products of two normally distributed values have large errors.
    case = harness.Case(sides, slots, expected, TOLERANCE, worst=50.0)
    kernels = {ours.name: ours.kernel("gated_linear", x[0], packed[0])}
    return setting.made(case, kernels, products=2, more_bytes=more)


def training_gelu(setting: Setting) -> Made:
    """Forward, then the gradients of x, w and b for a random gradient of the result."""
    m, n = setting.shape.m, setting.shape.n
    slots, ours = setting.slots(m * n * _ELEMENT), setting.library
    x, w, b = inputs = Inputs.of(setting, slots, grad=True)
    g = [setting.random(m, n) for _ in range(slots)]
    z = inputs.z()

    def step(linear: Callable[..., torch.Tensor]) -> harness.Call:
        def call(i: int) -> tuple[torch.Tensor, ...]:
            y = linear(x[i], w[i], b, activation="gelu")
            return (y.detach(), *torch.autograd.grad(y, (x[i], w[i], b), g[i]))

        return call

    def expected(i: int) -> tuple[torch.Tensor, ...]:
        dz = torch.ops.aten.gelu_backward(g[i].float(), z(i))
        dx = gemm.reference(dz, w[i].detach())
        dw = gemm.reference(dz.t(), x[i].detach())
        return functional.gelu(z(i)), dx, dw, dz.double().sum(0).float()

    sides = (
        harness.Side("eager", step(eager_linear)),
        harness.Side(ours.name, step(ours.linear)),
    )
    case = harness.Case(sides, slots, expected, TRAINING_TOLERANCE)
    kernel = ours.kernel("linear", x[0], w[0], b, activation="gelu")
    more = setting.shape.min_bytes(_ELEMENT)  # g, and a gradient of each input
    return setting.made(case, {ours.name: kernel}, products=3, more_bytes=more)


def overhead(setting: Setting) -> Made:
    """Each epilogue against the same library's product with a bias alone."""
    m, n = setting.shape.m, setting.shape.n
    slots, ours = setting.slots(), setting.library
    x, w, b = inputs = Inputs.of(setting, slots)
    r = [setting.random(m, n) for _ in range(slots)]
    z = inputs.z()

    def side(activation: str | None) -> harness.Side:
        linear = functools.partial(ours.linear, activation=activation)
        return harness.Side(
            activation or "bias",
            lambda i: linear(x[i], w[i], b),
            lambda i: ACTIVATIONS[activation](z(i)),
        )

    sides = [side(activation) for activation in ACTIVATIONS]  # "bias" first
    add = functools.partial(ours.linear, activation=None)
    sides.append(
        harness.Side(
            "residual",
            lambda i: add(x[i], w[i], b, residual=r[i]),
            lambda i: z(i) + r[i].float(),
        )
    )
    if ours.linear_aux is not None:
        store = ours.linear_aux
        sides.append(
            harness.Side(
                "gelu, z stored",
                lambda i: store(x[i], w[i], b),
                lambda i: (functional.gelu(z(i)), z(i)),
            )
        )
    pairs = [(other.name, "bias") for other in sides[1:]]
    case = harness.Case(sides, slots, z, TOLERANCE, pairs)
    return setting.made(case, {"bias": ours.kernel("linear", x[0], w[0], b)})


GROUPS: dict[str, Callable[[Setting], Made]] = {
    "bias_gelu": bias_gelu,
    "bias_residual": bias_residual,
    "gated_silu": gated_silu,
    "training_gelu": training_gelu,
    "overhead": overhead,
}
COMPILED = ("bias_gelu", "bias_residual", "gated_silu")


def asks_for_compile(job: ProductJob, at: set[GemmShape] | None) -> bool:
    """at: shapes, None for all"""
    return job.group in COMPILED and (at is None or job.shape in at)


def maker(
    side: str, compile_at: set[GemmShape] | None, budget: plan.CompileBudget
) -> Callable[[ProductJob], Made]:
    """compile_at: where torch.compile is one more baseline, None for all shapes"""
    keep_caches_in_tmpdir()
    device, l2_bytes = gpu()
    ours = library(side)
    return lambda job: make(job, Setting(job.shape, device, l2_bytes, ours), compile_at, budget)


def make(
    job: ProductJob,
    setting: Setting,
    compile_at: set[GemmShape] | None,
    budget: plan.CompileBudget,
) -> Made:
    """A baseline that the budget leaves out is named."""
    if not asks_for_compile(job, compile_at):
        return GROUPS[job.group](setting)
    torch._dynamo.reset()  # else it gives up after a few shapes
    if not budget.allows():
        refused = f"compile: left out, its {budget.seconds:g} s were used up"
        return dataclasses.replace(GROUPS[job.group](setting), refused=refused)
    chosen = dataclasses.replace(setting, compiled=lambda f: timed(compiled(f), budget))
    return GROUPS[job.group](chosen)


def timed(function: Function, budget: plan.CompileBudget) -> Function:
    """The first call compiles: its time, also that of a failure, goes to the budget."""
    is_first = True

    def call(*operands: torch.Tensor) -> Any:
        nonlocal is_first
        if not is_first:
            return function(*operands)
        is_first = False
        start = time.monotonic()
        try:
            return function(*operands)
        finally:
            budget.add(time.monotonic() - start)

    return call
