"""Epilogues as torch computes them for float32 in full precision, against the reference."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
import torch
from epilogue_reference import FUNCTIONS, Epilogue, evaluate, placed

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def full_precision(tf32: None, cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, which the library would refuse."""
    by_torch = cutwheel.ops._common.by_torch
    monkeypatch.setattr(by_torch, "_is_refused", lambda operand: False)
    torch.set_float32_matmul_precision("highest")


def declared(cutwheel: ModuleType) -> dict[str, Epilogue]:
    path = cutwheel._library.PATH.with_name("manifest.json")
    entries = json.loads(path.read_text("utf-8"))["epilogues"]
    found = {name: Epilogue.of(name, entry) for name, entry in entries.items()}
    # Those of scaled products are named nowhere else.
    named = {epilogue.name for epilogue in cutwheel.epilogues()}
    return {k: e for k, e in found.items() if e.has_accum and k in named}


def test_every_epilogue(cutwheel: ModuleType) -> None:
    epilogues = declared(cutwheel)
    assert len(epilogues) > 30
    for name, epilogue in epilogues.items():
        for batch in ((), (3,)):
            shapes = {
                "row[N]": (*batch, 8),
                "col[M]": (*batch, 4),
                "matrix[M,N]": (*batch, 4, 8),
                "matrix[M,2N]": (*batch, 4, 16),
            }
            a, b = torch.randn(*batch, 4, 6), torch.randn(*batch, 6, 8)
            tensors = {key: torch.randn(shapes[kind]) for key, kind in epilogue.tensors.items()}
            scalars = {key: 0.1 * (3 + i) for i, key in enumerate(epilogue.scalars)}
            for given in (tensors, {}):
                check(cutwheel, epilogue, a, b, given, scalars)
            assert cutwheel.ops._common.by_torch.serves(name, a)


def check(
    cutwheel: ModuleType,
    epilogue: Epilogue,
    a: Tensor,
    b: Tensor,
    tensors: dict[str, Tensor],
    scalars: dict[str, float],
) -> None:
    values: dict[str, Any] = {
        key: placed(kind, tensors[key].double() if key in tensors else torch.zeros(()).double())
        if key in tensors
        else torch.zeros(*a.shape[:-1], 16 if "2N" in kind else 8, dtype=torch.float64)
        for key, kind in epilogue.tensors.items()
    }
    accum = a.double() @ b.double()
    wanted = evaluate(epilogue, {**values, **scalars, "accum": accum})
    results = cutwheel.gemm(a, b, epilogue.name, **tensors, **scalars)
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(wanted)
    outs = tuple(torch.full_like(result, torch.nan) for result in results)
    out = outs if len(outs) > 1 else outs[0]
    assert cutwheel.gemm(a, b, epilogue.name, out=out, **tensors, **scalars) is out
    for result, written, want in zip(results, outs, wanted, strict=True):
        assert result.dtype == torch.float32
        assert result.is_contiguous()
        torch.testing.assert_close(result.double(), want, rtol=1e-5, atol=1e-5)
        assert torch.equal(written, result)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function(cutwheel: ModuleType, name: str) -> None:
    """All functions of expressions, where they bend and far away."""
    x = torch.cat((torch.linspace(-8, 8, 161), torch.tensor([-90.0, 90.0, 1e4, -1e4])))[:164]
    text = {
        "where": "where(x <= y, 0, y)",
        "pair": "pair(x, y)",
        "min": "min(x, y) + min(1, x) + min(x, 2)",
        "max": "max(x, y) + max(1, x) + max(x, 2)",
        "clamp": "clamp(x, -1, 2.5)",
        "leaky_relu": "leaky_relu(x, s)",
    }.get(name, f"{name}(x) / 2 - -y")
    if name in ("even", "odd"):
        text = f"{name}(x) * {name}(y)"
    values = {"x": x, "y": x.flip(0) / 3, "s": 0.25}
    wide = {k: v.double() if isinstance(v, Tensor) else v for k, v in values.items()}
    (wanted,) = evaluate(Epilogue("e", text, {}, {}, "same"), wide)
    got = cutwheel.ops._common.expressions.evaluate(text, values)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_what_is_unknown_is_refused(cutwheel: ModuleType) -> None:
    evaluated = cutwheel.ops._common.expressions.evaluate
    for text in ("sqrt(x)", "x ** 2", "x if x else 1", "'x'", "y + 1", "x < 1 < 2"):
        with pytest.raises(ValueError, match="is not known here"):
            evaluated(text, {"x": torch.ones(2)})
