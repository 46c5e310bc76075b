"""Linear layers with what follows them, in one kernel, against what torch does for the same.

Weights are scaled so that a product has a standard deviation of 1: there activations bend, and a
wrong one does not pass the check. All sides are functional, none writes with ``out=``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from . import gemm, harness, plan, session
from .shapes import GemmShape
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
TRAFFIC_BYTES_PER_SECOND = 4.3e12  # what memory traffic besides the product may cost
MOST_BYTES = 20e9  # a gated layer that takes more is skipped
LIMITS = plan.Limits(case_seconds=0.4, max_rounds=15)

_ELEMENT = 2  # bytes of bfloat16


# ---- cases
@dataclass(frozen=True)
class Setting:
    """Of one case: its shape, where it runs, and what is compared."""

    shape: GemmShape
    device: torch.device
    l2_bytes: int
    library: Library
    compile: bool = False

    def random(self, *extents: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(*extents, dtype=torch.bfloat16, device=self.device)
        return values.mul_(scale) if scale != 1.0 else values

    def slots(self, more_bytes: int = 0) -> int:
        return plan.rotation(self.shape.input_bytes(_ELEMENT) + more_bytes, self.l2_bytes)


@dataclass(frozen=True)
class FusedCase:
    case: harness.Case
    flops: int
    kernel: str | None = None
    # side: bytes that it moves and its baseline does not; where a fused epilogue is compared
    # with the plain kernel
    extra_bytes: Mapping[str, int] = field(default_factory=dict)


class SkippedError(Exception):
    """A case that is not to be measured, and why."""


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


def bias_gelu(setting: Setting) -> FusedCase:
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
    if setting.compile:
        in_one = compiled(lambda x, w, b: functional.gelu(functional.linear(x, w, b)))
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
    kernel = ours.kernel("linear", x[0], w[0], b, activation="gelu")
    return FusedCase(case, setting.shape.flops, kernel)


def bias_residual(setting: Setting) -> FusedCase:
    m, n = setting.shape.m, setting.shape.n
    slots, ours = setting.slots(m * n * _ELEMENT), setting.library
    x, w, b = inputs = Inputs.of(setting, slots)
    r = [setting.random(m, n) for _ in range(slots)]
    z = inputs.z()
    sides = (
        harness.Side("eager", lambda i: functional.linear(x[i], w[i], b) + r[i]),
        harness.Side(ours.name, lambda i: ours.linear(x[i], w[i], b, residual=r[i])),
    )
    case = harness.Case(sides, slots, lambda i: z(i) + r[i].float(), TOLERANCE)
    kernel = ours.kernel("linear", x[0], w[0], b, residual=r[0])
    return FusedCase(case, setting.shape.flops, kernel)


def gated_bytes(shape: GemmShape, slots: int, sides: int) -> int:
    """Memory of gated_silu: weights twice, packed and not; results, and eager's temporaries."""
    weights = 4 * shape.n * shape.k
    results = shape.m * shape.n * (sides * (slots + 1) + 3)
    return _ELEMENT * (slots * (weights + shape.m * shape.k) + results)


def gated_silu(setting: Setting) -> FusedCase:
    """N is the width of the result: gate and up are [N, K] each."""
    shape = setting.shape
    more = shape.n * shape.k * _ELEMENT
    slots, ours = setting.slots(more), setting.library
    needed = gated_bytes(shape, slots, 2 + setting.compile)
    if needed > MOST_BYTES:
        raise SkippedError(f"takes {needed / 1e9:.0f} GB; the limit is {MOST_BYTES / 1e9:.0f}")
    x = [setting.random(shape.m, shape.k) for _ in range(slots)]
    gate, up = (
        [setting.random(shape.n, shape.k, scale=shape.k**-0.5) for _ in range(slots)]
        for _ in range(2)
    )
    packed = [torch.stack(pair, 1).flatten(0, 1) for pair in zip(gate, up, strict=True)]
    sides = [harness.Side("eager", lambda i: eager_gated(x[i], gate[i], up[i]))]
    if setting.compile:
        in_one = compiled(eager_gated)
        sides.append(harness.Side("compile", lambda i: in_one(x[i], gate[i], up[i])))
    sides.append(harness.Side(ours.name, lambda i: ours.gated(x[i], packed[i], gate[i], up[i])))

    def expected(i: int) -> torch.Tensor:
        gates = functional.silu(gemm.reference(x[i], gate[i].t()))
        return gates.mul_(gemm.reference(x[i], up[i].t()))

    # The largest of 470 million products of two normally distributed values have large errors.
    case = harness.Case(sides, slots, expected, TOLERANCE, worst=50.0)
    return FusedCase(case, 2 * shape.flops, ours.kernel("gated_linear", x[0], packed[0]))


def training_gelu(setting: Setting) -> FusedCase:
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
    return FusedCase(case, 3 * setting.shape.flops, kernel)


def overhead(setting: Setting) -> FusedCase:
    """Each epilogue against the same library's product with a bias alone."""
    m, n = setting.shape.m, setting.shape.n
    more = m * n * _ELEMENT
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
    extra = {side.name: 0 for side in sides[1:]} | {"residual": more}
    if ours.linear_aux is not None:
        store = ours.linear_aux
        sides.append(
            harness.Side(
                "gelu, z stored",
                lambda i: store(x[i], w[i], b),
                lambda i: (functional.gelu(z(i)), z(i)),
            )
        )
        extra["gelu, z stored"] = more
    pairs = [(other.name, "bias") for other in sides[1:]]
    case = harness.Case(sides, slots, z, TOLERANCE, pairs)
    kernel = ours.kernel("linear", x[0], w[0], b)
    return FusedCase(case, setting.shape.flops, kernel, extra)


GROUPS: dict[str, Callable[[Setting], FusedCase]] = {
    "bias_gelu": bias_gelu,
    "bias_residual": bias_residual,
    "gated_silu": gated_silu,
    "training_gelu": training_gelu,
    "overhead": overhead,
}
COMPILED = ("bias_gelu", "gated_silu")


class Job(NamedTuple):
    group: str
    shape: GemmShape

    def __str__(self) -> str:
        return f"{self.group} {self.shape}"


# ---- results
def row(job: Job, slots: int, made: FusedCase | None, found: harness.Measurement) -> dict[str, Any]:
    """One result, ready for JSON. Times in microseconds for one call."""
    sides: dict[str, Any] = {
        name: {"relative_error": error.relative, "worst_error": error.worst}
        for name, error in found.errors.items()
    }
    for name, seconds in found.times.items():
        sides[name] |= {
            "us": gemm.spread(seconds.scaled(1e6)),
            "tflops": made.flops / seconds.median * 1e-12 if made else None,
        }
    ratios = []
    for (name, baseline), ratio in found.ratios.items():
        entry: dict[str, Any] = {"side": name, "baseline": baseline, **gemm.spread(ratio)}
        if made and name in made.extra_bytes:
            entry["goal"] = allowed(found.times[baseline].median, made.extra_bytes[name])
        ratios.append(entry)
    return {
        "group": job.group,
        "m": job.shape.m,
        "n": job.shape.n,
        "k": job.shape.k,
        "status": found.status,
        "reason": found.reason,
        "kernel": made.kernel if made else None,
        "ratios": ratios,
        "sides": sides,
        "slots": slots,
        "iterations": found.iterations,
        "rounds": found.rounds,
    }


def allowed(plain_seconds: float, extra_bytes: int) -> float:
    """The least ratio to the plain kernel: 3 % for arithmetic, else the time of the traffic."""
    if extra_bytes == 0:
        return 0.97
    return plain_seconds / (plain_seconds + extra_bytes / TRAFFIC_BYTES_PER_SECOND)


def unmeasured(job: Job, status: str, reason: str) -> dict[str, Any]:
    return row(job, 0, None, harness.Measurement(status, reason))


def measure(
    jobs: Sequence[Job],
    limits: plan.Limits,
    *,
    side: str = "cutwheel",
    compile_at: set[GemmShape] | None = None,
    budget_seconds: float | None = None,
    progress: Callable[[list[dict[str, Any]]], None] = lambda rows: None,
) -> list[dict[str, Any]]:
    """A row for each job, see session.run; compile_at: shapes, None for all."""
    keep_caches_in_tmpdir()
    device = torch.device("cuda", torch.cuda.current_device())
    l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    clock = harness.GraphClock(device)
    chosen = library(side)

    def one(job: Job, seconds: float) -> dict[str, Any]:
        wanted = job.group in COMPILED and (compile_at is None or job.shape in compile_at)
        setting = Setting(job.shape, device, l2_bytes, chosen, wanted)
        try:
            made = GROUPS[job.group](setting)
        except SkippedError as reason:
            return unmeasured(job, "skipped", str(reason))
        try:
            found = harness.compare(made.case, clock, limits, seconds)
        finally:
            if wanted:
                torch._dynamo.reset()  # else it gives up after a few shapes
        return row(job, made.case.slots, made, found)

    return session.run(jobs, one, unmeasured, limits, budget_seconds, progress)
