"""scaled_mm and quantize on CPU tensors, with reference kernels: what Python makes of a call."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
import torch
from cpu_reference import CpuOps

E4M3, E5M2, INT8, INT32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32
TENSOR, ROW = "tensorwise", "rowwise"
BY_128, BY_128_128 = "blockwise_1x128", "blockwise_128x128"
PAIRS = [*itertools.product((TENSOR, ROW), repeat=2), (BY_128, BY_128_128), (BY_128, BY_128)]


def operands(
    w: ModuleType, recipes: tuple[str, str], dtype: torch.dtype = E4M3, **sizes: int
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    """x, weight, and what scaled_mm takes for x @ weight.T"""
    m, n, k = (sizes.get(name, default) for name, default in (("m", 5), ("n", 200), ("k", 300)))
    x, weight = torch.randn(m, k), torch.randn(n, k)
    a, scale_a = w.quantize(x, recipes[0], dtype)
    b, scale_b = w.quantize(weight, recipes[1], dtype)
    scale_b = scale_b if recipes[1] == TENSOR else scale_b.t()
    return x, weight, {"mat_a": a, "mat_b": b.t(), "scale_a": scale_a, "scale_b": scale_b}


def assert_near(result: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """The deviation, by that of what is expected."""
    difference = (result.double() - expected.double()).square().mean().sqrt()
    assert difference < tolerance * expected.double().square().mean().sqrt()


@pytest.mark.parametrize(
    ("recipes", "dtype"),
    [*((pair, E4M3) for pair in PAIRS), *((pair, INT8) for pair in PAIRS[:4])],
    ids=str,
)
def test_quantised_products(
    cutwheel: ModuleType, cpu_ops: CpuOps, recipes: tuple[str, str], dtype: torch.dtype
) -> None:
    x, weight, given = operands(cutwheel, recipes, dtype)
    bias = torch.randn(200)
    result = cutwheel.scaled_mm(**given, bias=bias, output_dtype=torch.float32)
    assert_near(result, x @ weight.t() + bias, 0.05)
    out = torch.empty(5, 200, dtype=torch.float16)
    version = out._version
    assert cutwheel.scaled_mm(**given, bias=bias, out=out) is out
    assert out._version > version
    torch.testing.assert_close(out, result.half())
    codes = {TENSOR: 0, ROW: 1, BY_128: 2, BY_128_128: 3}
    cpu_ops.calls.clear()
    cutwheel.scaled_mm(
        **given, scale_recipe_a=recipes[0], scale_recipe_b=recipes[1], use_fast_accum=True
    )
    assert cpu_ops.calls == [("scaled_mm", tuple(codes[recipe] for recipe in recipes), True)]


def test_zero_points(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x, weight = torch.rand(5, 300) + 1, torch.randn(200, 300)
    b, scale_b = cutwheel.quantize(weight, ROW, INT8)
    for recipe in (TENSOR, ROW):
        a, scale_a, azp = cutwheel.quantize(x, recipe, INT8, symmetric=False)
        given = {"mat_a": a, "mat_b": b.t(), "scale_a": scale_a, "scale_b": scale_b.t()}
        torch.testing.assert_close(scale_a * (a - azp), x, rtol=0, atol=0.01)
        sums = b.sum(1, dtype=INT32)
        for adj in (None, sums, sums.unsqueeze(0)):
            result = cutwheel.scaled_mm(**given, azp=azp, azp_adj=adj)
            assert_near(result, x @ weight.t(), 0.05)
    unscaled = cutwheel.scaled_mm(a, b.t(), output_dtype=INT32)
    torch.testing.assert_close(unscaled, a.int() @ b.int().t())


@pytest.mark.parametrize("name", ["mat_a", "mat_b", "scale_a", "scale_b", "bias", "out"])
def test_gradients_are_refused(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    _, _, given = operands(cutwheel, (ROW, ROW))
    named: dict[str, Any] = {**given, "bias": torch.randn(200)}
    named["out"] = torch.empty(5, 200) if name == "out" else None
    named[name] = named[name].detach().requires_grad_()
    with pytest.raises(RuntimeError, match=f"scaled_mm: {name} requires grad.*ScaledLinear") as no:
        cutwheel.scaled_mm(**named)
    assert type(no.value) is RuntimeError
    with torch.no_grad():
        assert not cutwheel.scaled_mm(**named).requires_grad or name == "out"


def test_quantisation_has_no_gradient(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x = torch.randn(5, 300, requires_grad=True)
    for recipe in (TENSOR, ROW, BY_128, BY_128_128):
        with pytest.raises(RuntimeError, match=r"quantize: x requires grad.*pass x\.detach\(\)"):
            cutwheel.quantize(x, recipe)
        assert not any(t.requires_grad for t in cutwheel.quantize(x.detach(), recipe))
        with torch.no_grad():
            assert not any(t.requires_grad for t in cutwheel.quantize(x, recipe))


def test_definition_of_scales(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x = torch.tensor([[0.0, 0.0], [448.0, -7.0], [float("nan"), 1.0], [float("inf"), 1.0]])
    values, scales = cutwheel.quantize(x, ROW)
    assert scales[:2, 0].tolist() == [1, 1]
    assert scales[2:].isnan().all()
    assert values[:2].float().tolist() == x[:2].tolist()
    values, scales = cutwheel.quantize(x, ROW, INT8)
    assert values[2:].eq(0).all()
    assert cutwheel.quantize(x, TENSOR)[1].isnan().all()
    wide = torch.tensor([[2.0, -1.0], [0.0, 0.0]])
    values, scales, azp = cutwheel.quantize(wide, ROW, INT8, symmetric=False)
    assert azp[:, 0].tolist() == [-43, 0]
    torch.testing.assert_close(scales[:, 0], torch.tensor([3 / 255, 1]))
    assert values.tolist() == [[127, -128], [0, 0]]


@pytest.mark.parametrize(
    ("recipes", "dtype", "azp"),
    [*((pair, E4M3, False) for pair in PAIRS), ((ROW, ROW), INT8, True)],
    ids=str,
)
def test_ops_pass_torchs_own_checks(
    cutwheel: ModuleType,
    traced_on_cpu: CpuOps,
    recipes: tuple[str, str],
    dtype: torch.dtype,
    azp: bool,
) -> None:
    def check(op: Any, *args: Any, **kwargs: Any) -> None:
        # torch's check of schemas multiplies tensors, which it cannot do with fp8 on the CPU.
        tests = ("test_faketensor", *(("test_schema",) if dtype == INT8 else ()))
        torch.library.opcheck(op, args, kwargs, test_utils=tests)

    codes = {TENSOR: 0, ROW: 1, BY_128: 2, BY_128_128: 3}
    ops = torch.ops.cutwheel
    _, _, given = operands(cutwheel, recipes, dtype)
    tensors = list(given.values())
    zero = (torch.ones(1, dtype=INT32), tensors[1].sum(0, dtype=INT32)) if azp else (None, None)
    numbers = [codes[recipe] for recipe in recipes]
    check(ops.scaled_mm.default, *tensors, torch.randn(200), *zero, torch.float16, *numbers)
    check(ops.scaled_mm.default, *tensors, None, *zero)
    check(ops.scaled_mm.out, *tensors, None, *zero, *numbers, True, out=torch.empty(5, 200))
    for recipe in numbers:
        check(ops.quantize.default, torch.randn(130, 300), recipe, dtype)
        check(ops.quantize.default, torch.randn(300, 130).half().t(), recipe, dtype)
    if azp:
        check(ops.quantize.default, torch.randn(2, 3, 4), 1, INT8, False)


@pytest.mark.parametrize("recipes", PAIRS[::3] + PAIRS[4:], ids="-".join)
def test_compiled(cutwheel: ModuleType, traced_on_cpu: CpuOps, recipes: tuple[str, str]) -> None:
    def model(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        a, scale_a = cutwheel.quantize(x, recipes[0])
        b, scale_b = cutwheel.quantize(weight, recipes[1])
        scale_b = scale_b if recipes[1] == TENSOR else scale_b.t()
        result: torch.Tensor = cutwheel.scaled_mm(
            a,
            b.t(),
            scale_a,
            scale_b=scale_b,
            bias=bias,
            scale_recipe_a=recipes[0],
            scale_recipe_b=recipes[1],
        )
        return result

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for m in (5, 7, 0, 130):
        inputs = torch.randn(m, 300), torch.randn(200, 300), torch.randn(200)
        torch.testing.assert_close(compiled(*inputs), model(*inputs))


def test_cpu_tensors_are_refused(cutwheel: ModuleType) -> None:
    x, one = torch.randn(4, 8), torch.ones(1)
    with pytest.raises(NotImplementedError, match="scaled_mm: the tensors are on the CPU"):
        cutwheel.scaled_mm(x.to(E4M3), x.to(E4M3).t(), one, scale_b=one)
    with pytest.raises(NotImplementedError, match="quantize: the tensors are on the CPU"):
        cutwheel.quantize(x, ROW)


def test_explain_asks_the_library(
    cutwheel: ModuleType, cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def answer(*args: Any) -> str:
        asked.append(args)
        return '{"plans": [{"row": "scaled_mm_x"}], "request": {"m": 5}}'

    monkeypatch.setattr(torch.ops.cutwheel, "_explain", answer)
    _, _, given = operands(cutwheel, (ROW, ROW), INT8)
    assert cutwheel.explain("scaled_mm", **given).row == "scaled_mm_x"
    name, tensors, *rest = asked.pop()
    assert name == "scaled_mm"
    assert all(x is y for x, y in zip(tensors, given.values(), strict=False))
    assert tensors[4:] == [None] * 3
    assert rest == [torch.bfloat16, 1, False, "", None, None, False, ()]
    zero, options = torch.ones(1, dtype=INT32), {"scale_recipe_b": ROW, "use_fast_accum": True}
    cutwheel.explain(cutwheel.scaled_mm, **given, azp=zero, output_dtype=torch.half, **options)
    _, tensors, *rest = asked.pop()
    torch.testing.assert_close(tensors[6], given["mat_b"].sum(0, dtype=INT32))
    assert rest == [torch.half, 1, False, "", None, 1, True, ()]
    a, b = given["mat_a"], given["mat_b"]
    cutwheel.explain("scaled_mm", a, b, output_dtype=INT32)
    assert asked.pop()[1][2:] == [None] * 5
    with pytest.raises(TypeError, match="scaled_mm: mat_b is None"):
        cutwheel.explain("scaled_mm", a)
    with pytest.raises(TypeError, match="explain: beta is no argument of scaled_mm"):
        cutwheel.explain("scaled_mm", **given, beta=1)
    with pytest.raises(ValueError, match="scale_recipe_a is 'row'"):
        cutwheel.explain("scaled_mm", **given, scale_recipe_a="row")
