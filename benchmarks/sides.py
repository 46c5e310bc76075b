"""What the fused benchmarks compare: torch's ways to compute the same, and the library measured."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from . import harness

gelu_tanh = functools.partial(functional.gelu, approximate="tanh")
ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda z: z,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": gelu_tanh,
    "silu": functional.silu,
}


def eager_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor,
    activation: str | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    y = ACTIVATIONS[activation](functional.linear(x, w, b))
    return y if residual is None else y + residual


def eager_gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(x @ gate.t()) * (x @ up.t())


def addmm_activation(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """cuBLASLt's own epilogue, where torch takes that way."""
    return torch._addmm_activation(b, x, w.t(), use_gelu=True)


@dataclass(frozen=True)
class Library:
    """What is measured against torch."""

    name: str
    linear: Callable[..., torch.Tensor]
    gated: Callable[..., torch.Tensor]  # (x, packed, gate, up)
    linear_aux: Callable[..., tuple[torch.Tensor, torch.Tensor]] | None
    kernel: Callable[..., str | None]


def library(name: str) -> Library:
    """cutwheel, or torch again: the noise."""
    if name == "torch":
        return Library(
            "torch (again)",
            eager_linear,
            lambda x, packed, gate, up: eager_gated(x, gate, up),
            None,
            lambda op, *operands, **keywords: None,
        )
    import cutwheel  # a torch-only run needs no cutwheel

    def linear_aux(*operands: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result: tuple[torch.Tensor, torch.Tensor] = torch.ops.cutwheel.linear_fused_aux(
            *operands, None, "bias_gelu_aux"
        )
        return result

    return Library(
        "cutwheel",
        cutwheel.linear,
        lambda x, packed, gate, up: cutwheel.gated_linear(x, packed, "silu"),
        linear_aux,
        lambda op, *operands, **keywords: cutwheel.explain(op, *operands, **keywords).row,
    )


# ---- torch.compile
MODE = "max-autotune-no-cudagraphs"


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile for one shape, in MODE; all its errors are RuntimeErrors."""
    return raising(torch.compile(function, mode=MODE, dynamic=False))


def compiled_for_any_shape(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile once for shapes that differ, never falling back to eager; likewise.

    One that has failed fails again at once: a compiler that is missing takes its time to say so.
    """
    call = raising(torch.compile(function, dynamic=True, fullgraph=True))
    failures: list[RuntimeError] = []

    def once(*operands: torch.Tensor) -> Any:
        if failures:
            raise failures[0]
        try:
            return call(*operands)
        except RuntimeError as error:
            failures.append(error)
            raise

    return once


def raising(made: Callable[..., Any]) -> Callable[..., Any]:
    """All errors of the compiler are RuntimeErrors: the side is then left out."""

    def call(*operands: torch.Tensor) -> Any:
        try:
            return made(*operands)
        except Exception as error:
            raise RuntimeError(harness.describe(error)) from error

    return call


def keep_caches_in_tmpdir() -> None:
    """Of what torch.compile makes; where a benchmark runs, the home folder may be read-only."""
    folder = Path(tempfile.gettempdir())
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "cutwheel_inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "cutwheel_triton"))


def form_of_addmm_activation(device: str = "cuda") -> str:
    """Which GELU torch._addmm_activation computes: the forms differ by up to 5e-4."""
    z = torch.linspace(-4, -1, 1024, device=device).bfloat16()
    one = torch.eye(16, device=device, dtype=torch.bfloat16)
    x = torch.zeros(1024, 16, device=device, dtype=torch.bfloat16)
    x[:, 0] = z
    found = addmm_activation(x, one, torch.zeros_like(one[0]))[:, 0].double()
    wide = z.double()
    errors = {
        "gelu": (found - functional.gelu(wide)).abs().mean().item(),
        "gelu_tanh": (found - gelu_tanh(wide)).abs().mean().item(),
    }
    return min(errors, key=lambda form: errors[form])
