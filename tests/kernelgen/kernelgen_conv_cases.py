"""Manifests of convolutions for the tests of kernelgen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelgen_cases import Table, changed, declared, document, errors_of

from kernelgen.emit import render
from kernelgen.manifest import Manifest, parse

PRODUCT = "DType::bf16, DType::bf16, DType::f32, DType::bf16"
EPILOGUES: Table = {
    # An epilogue that 8-bit operands may have.
    "scaled": {"expr": "scale * accum", "operands": {"scale": "row[1|N] f32"}},
    "bias": {"expr": "alpha * accum + bias", "operands": {"bias": "row[N]"}},
    "bias_residual_relu": {
        "expr": "relu(alpha * accum + bias + residual)",
        "operands": {"bias": "row[N]", "residual": "matrix[M,N]"},
    },
    "two_residuals": {
        "expr": "alpha * accum + c + residual",
        "operands": {"c": "matrix[M,N]", "residual": "matrix[M,N]"},
    },
    "relu_aux": {"expr": "relu(z)", "aux": {"z": "alpha * accum"}},
    "gated": {"expr": "even(accum) * odd(accum)"},
    "doubled": {"expr": "pair(accum, 2 * accum)"},
}


def manifest(*entries: Table) -> Manifest:
    return parse(declared(document(*entries), **EPILOGUES))


def errors(entry: Table, **values: Any) -> list[tuple[str, str]]:
    return errors_of(declared(document(changed(entry, **values)), **EPILOGUES))


def one_error(entry: Table, **values: Any) -> str:
    found = errors(entry, **values)
    assert len(found) == 1, found
    return ": ".join(found[0])


def rendered(*entries: Table) -> dict[str, str]:
    found = manifest(*entries)
    return render(found.kernels, found.epilogues, Path("/out"))
