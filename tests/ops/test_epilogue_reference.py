"""The reference of the epilogue tests itself, on the CPU: it has to be right, and strict."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from epilogue_cases import Call, declared, served
from epilogue_reference import (
    ACTIVATIONS,
    BOUND_FUNCTIONS,
    FUNCTIONS,
    KINDS,
    Bound,
    Epilogue,
    evaluate,
)
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id

from kernelgen import emit, manifest

ROOT = Path(__file__).parents[2]


def entries() -> dict[str, Epilogue]:
    """Epilogues that the source declares for cutwheel.gemm, built or not."""
    found = manifest.load(ROOT)
    used = {
        kernel.epilogue.name for kernel in found.kernels if kernel.op == "gemm" and kernel.epilogue
    }
    plan: dict[str, list[Any]] = {}
    written = json.loads(emit._manifest_json(plan, found.epilogues))["epilogues"]
    return {name: Epilogue.of(name, e) for name, e in written.items() if name in used}


DECLARED = entries()
PRODUCTS = [epilogue for epilogue in DECLARED.values() if epilogue.has_accum]


def epilogue_of(expr: str, width: str = "same", **operands: str) -> Epilogue:
    return Epilogue("e", expr, {}, operands, width)


def value(expr: str, **values: object) -> torch.Tensor:
    result: torch.Tensor = evaluate(epilogue_of(expr), values)[0]
    return result


# ---- values
@pytest.mark.parametrize("epilogue", DECLARED.values(), ids=lambda e: e.name)
def test_every_declared_epilogue_can_be_evaluated(epilogue: Epilogue) -> None:
    assert {kind.split()[0] for kind in epilogue.operands.values()} <= set(KINDS)
    values: dict[str, object] = {"accum": torch.randn(3, 8, dtype=torch.float64)}
    for name, kind in epilogue.tensors.items():
        values[name] = torch.randn(3, 16 if "2N" in kind else 8, dtype=torch.float64)
    values |= dict.fromkeys(epilogue.scalars, 0.5)
    for result, columns in zip(
        evaluate(epilogue, values), [epilogue.columns(8), *(8 for _ in epilogue.aux)], strict=True
    ):
        assert result.shape == (3, columns)
        assert result.isfinite().all()
    bounds = {name: Bound.of(x) if isinstance(x, torch.Tensor) else x for name, x in values.items()}
    weighed = evaluate(epilogue, bounds, BOUND_FUNCTIONS)
    for bound, result in zip(weighed, evaluate(epilogue, values), strict=True):
        assert torch.equal(bound.value, result)
        assert (bound.wide >= 0).all()
        assert (torch.as_tensor(bound.approx) >= 0).all()


def test_known_values() -> None:
    z = torch.linspace(-4, 4, 41, dtype=torch.float64)
    phi = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    known = {
        "relu(z)": z.clamp_min(0),
        "gelu(z)": z * phi,
        "gelu_tanh(z)": 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
        "silu(z)": z / (1 + torch.exp(-z)),
        "sigmoid(z)": 1 / (1 + torch.exp(-z)),
        "softplus(z)": torch.log1p(torch.exp(z)),
        "hardswish(z)": z * (z + 3).clamp(0, 6) / 6,
        "leaky_relu(z, 0.25)": torch.where(z > 0, z, 0.25 * z),
        "identity(z) - -z": 2 * z,
        "clamp(z, -1, 0.5)": z.clamp(-1, 0.5),
        "where(z > 1, z, 2 * z)": torch.where(z > 1, z, 2 * z),
        "where(1 <= z, z, 0)": torch.where(z >= 1, z, 0 * z),
        "min(z, 0.5) + max(z, -1)": z.clamp_max(0.5) + z.clamp_min(-1),
        "abs(z) / 2": z.abs() / 2,
        "gelu_grad(z)": phi + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi),
        "silu_grad(z)": torch.sigmoid(z) * (1 + z * (1 - torch.sigmoid(z))),
        "tanh_grad(z)": 1 - torch.tanh(z) ** 2,
        "sigmoid_grad(z)": torch.sigmoid(z) * torch.sigmoid(-z),
        "relu_grad(z)": (z > 0).double(),
    }
    for expr, expected in known.items():
        torch.testing.assert_close(value(expr, z=z), expected, rtol=1e-12, atol=1e-12, msg=expr)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "identity"])
def test_derivatives_are_those_of_differences(name: str) -> None:
    z = torch.linspace(-5, 5, 37, dtype=torch.float64) + 0.01
    step = 1e-6
    slope = (FUNCTIONS[name](z + step) - FUNCTIONS[name](z - step)) / (2 * step)
    torch.testing.assert_close(FUNCTIONS[f"{name}_grad"](z), slope, rtol=1e-6, atol=1e-8)


def test_columns_of_pairs() -> None:
    x = torch.arange(6.0).view(1, 6)
    assert value("even(x) * 10 + odd(x)", x=x).tolist() == [[1, 23, 45]]
    assert value("pair(even(x), odd(x))", x=x).tolist() == x.tolist()
    assert value("pair(even(x), even(0 * x))", x=x).tolist() == [[0, 0, 2, 0, 4, 0]]


def test_nan_as_in_torch() -> None:
    x = torch.tensor([math.nan, 1.0])
    for expr in ("min(x, 0)", "max(x, 0)", "clamp(x, 0, 1)", "relu(x)", "leaky_relu(x, 0.1)"):
        assert value(expr, x=x).isnan().tolist() == [True, False], expr
    assert value("where(x > 0, 1, 2)", x=x).tolist() == [2, 1]


def test_unknown_syntax_is_refused() -> None:
    for expr in ("x[0]", "x ** 2", "lambda: x", "x if x else x", "f(x, y=1)", "1 < x < 2"):
        with pytest.raises((ValueError, KeyError)):
            value(expr, x=torch.ones(2))


# ---- strictness: what a kernel might get wrong, made by torch on the CPU
class Kernel:
    """Stands in for the package: rounds a float64 result once, after `spoil` has had it."""

    def __init__(self, call: Call, spoil: object = None, instead: str = "") -> None:
        self.call, self.spoil, self.instead = call, spoil, instead

    def gemm(self, *_: object, **__: object) -> object:
        call = self.call
        if self.instead:
            call = replace(call, epilogue=replace(call.epilogue, expr=self.instead))
        d, *aux = (result.float() for result in call.torchs(torch.float64))
        if callable(self.spoil):
            d = self.spoil(d)
        results = tuple(x.to(call.d).contiguous() for x in (d, *aux))
        return results if aux else results[0]


def random_call(name: str, dtype: torch.dtype, m: int = 67, n: int = 132, k: int = 200) -> Call:
    call = Call.random(DECLARED[name], m, n, k, dtype, "cpu")
    return replace(call, exact=dtype == SINGLE)  # the CPU has no TF32


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("epilogue", PRODUCTS, ids=lambda e: e.name)
def test_right_results_pass(epilogue: Epilogue, dtype: torch.dtype) -> None:
    for shape in ((67, 132, 77), (1, 40, 24), (5, 8, 0), (0, 8, 8)):
        call = random_call(epilogue.name, dtype, *shape)
        call.check(Kernel(call))
        call = call.with_operands(**dict.fromkeys(call.operands))
        call.check(Kernel(call))


@pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)
def test_hardware_approximations_pass(dtype: torch.dtype) -> None:
    """An error as that of tanh.approx, 2^-11 of tanh, in the tanh form of GELU."""
    call = random_call("bias_gelu_tanh", dtype)
    z = call.torchs(torch.float64)[0].float()
    noise = (torch.rand_like(z) - 0.5) * 2.0**-11
    call.check(Kernel(call, lambda d: d + noise * z.abs()))


def drop_row(d: torch.Tensor) -> torch.Tensor:
    d = d.clone()
    d[-1] = 0
    return d


def shift(d: torch.Tensor) -> torch.Tensor:
    return d.roll(1, -1)


def one_nan(d: torch.Tensor) -> torch.Tensor:
    d = d.clone()
    d[3, 5] = math.nan
    return d


def one_wrong(d: torch.Tensor) -> torch.Tensor:
    d = d.clone()
    d[3, 5] += 0.5
    return d


def biased(d: torch.Tensor) -> torch.Tensor:
    return d * 1.03


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("spoil", [drop_row, shift, one_nan, one_wrong, biased])
@pytest.mark.parametrize("name", ["bias_gelu", "gated_silu", "bias_residual_relu", "bias_tanh"])
def test_wrong_results_fail(name: str, spoil: object, dtype: torch.dtype) -> None:
    call = random_call(name, dtype)
    with pytest.raises(AssertionError, match=name):
        call.check(Kernel(call, spoil))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("bias_gelu", "gelu(accum + bias)"),
        ("bias_gelu", "gelu(alpha * accum)"),
        ("bias_gelu", "silu(alpha * accum + bias)"),
        ("bias_gelu", "gelu(alpha * (accum + bias))"),
        ("bias_gelu_residual", "gelu(alpha * accum + bias + residual)"),
        ("bias_residual_gelu", "gelu(alpha * accum + bias) + residual"),
        ("linear_combination", "alpha * accum - beta * c"),
        ("gated_silu", "silu(alpha * odd(accum)) * (alpha * even(accum))"),
        ("gated_silu", "silu(alpha * even(accum)) * odd(accum)"),
        ("gated_bias_silu", "silu(alpha * even(accum) + even(bias)) * (alpha * odd(accum))"),
        (
            "gated_bias_silu",
            "silu(alpha * even(accum) + odd(bias)) * (alpha * odd(accum) + even(bias))",
        ),
        ("bias_leaky_relu", "relu(alpha * accum + bias)"),
    ],
)
def test_wrong_formulas_fail(name: str, wrong: str, dtype: torch.dtype) -> None:
    call = random_call(name, dtype)
    with pytest.raises(AssertionError, match=name):
        call.check(Kernel(call, instead=wrong))


def test_the_two_forms_of_gelu_differ_where_the_accumulator_is_exact() -> None:
    """Random products cannot tell them apart in 16 bits; exact ones in float32 can."""
    z = torch.linspace(-4, 4, 200).bfloat16().float()
    a, b = torch.zeros(200, 8), torch.zeros(8, 8)
    a[:, 0], b[0] = z, 1
    left_out = {"bias": None}
    call = Call(DECLARED["bias_gelu"], a, b, SINGLE, left_out, {"alpha": 1.0}, exact=True)
    call.check(Kernel(call))
    with pytest.raises(AssertionError, match="bias_gelu"):
        call.check(Kernel(call, instead="gelu_tanh(alpha * accum + bias)"))


def test_every_epilogue_runs_on_every_gpu() -> None:
    """In bfloat16 at least. GPUs of compute capability 8.9 also run the kernels of sm80."""
    if os.environ.get("CUTWHEEL_NARROW") or not set(DECLARED) <= set(declared()):
        pytest.skip("the package holds a selection of the kernels, or is older than the source")
    found = {(case.epilogue.name, case.arch) for case in served(list(declared().values()), BRAIN)}
    missing = [f"{name} on {arch}" for name in DECLARED for arch in ("sm80", "sm90a")]
    missing = [text for text in missing if tuple(text.split(" on ")) not in found]
    assert not missing, f"no kernels: {', '.join(missing)}"
