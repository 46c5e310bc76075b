"""Meta functions of scaled_mm and quantize: results, recipes told from shapes, tracing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import ScalingType

E4M3, E5M2, INT8, INT32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
Make = Callable[..., torch.Tensor]
TENSOR, ROW = "tensorwise", "rowwise"
BY_128, BY_128_128 = "blockwise_1x128", "blockwise_128x128"


def make_fake(*shape: int, dtype: torch.dtype = SINGLE, device: str = "cuda") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


@pytest.fixture
def fake(cutwheel: ModuleType) -> Iterator[Make]:
    """Makes fake CUDA tensors; none of it needs a GPU."""
    with FakeTensorMode():
        yield make_fake


def blocks(extent: int) -> int:
    return -(-extent // 128)


def scale_shapes(m: int, n: int, k: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """(of a, of b) by recipe"""
    return {
        TENSOR: ((1,), (1,)),
        ROW: ((m, 1), (1, n)),
        BY_128: ((m, blocks(k)), (blocks(k), n)),
        BY_128_128: ((-1,), (blocks(k), blocks(n))),
    }


PAIRS = [*itertools.product((TENSOR, ROW), repeat=2), (BY_128, BY_128_128), (BY_128, BY_128)]
EXTENTS = [(5, 300, 260), (1, 1, 1), (130, 128, 128), (0, 300, 260), (5, 0, 260), (5, 300, 0)]


@pytest.mark.parametrize("recipes", PAIRS, ids="-".join)
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("d", [HALF, BRAIN, SINGLE])
def test_recipes_are_told_from_shapes(
    cutwheel: ModuleType,
    fake: Make,
    recipes: tuple[str, str],
    extents: tuple[int, int, int],
    d: torch.dtype,
) -> None:
    m, n, k = extents
    shapes = scale_shapes(*extents)
    a, b = fake(m, k, dtype=E4M3), fake(n, k, dtype=E4M3).t()
    scale_a, scale_b = fake(*shapes[recipes[0]][0]), fake(*shapes[recipes[1]][1])
    names = {"scale_recipe_a": recipes[0], "scale_recipe_b": recipes[1]}
    for given in (
        {},
        names,
        {"scale_recipe_a": recipes[0]},
        {"scale_recipe_b": recipes[1]},
        {"bias": fake(n)},
        {"bias": fake(n, dtype=d), "use_fast_accum": True},
    ):
        result = cutwheel.scaled_mm(a, b, scale_a, scale_b=scale_b, output_dtype=d, **given)
        assert (result.shape, result.dtype, result.device) == ((m, n), d, a.device)
        assert result.is_contiguous()
    out = fake(n, m, dtype=d).t()
    assert cutwheel.scaled_mm(a, b, scale_a, scale_b=scale_b, out=out, **names) is out


def test_members_of_scaling_type(cutwheel: ModuleType, fake: Make) -> None:
    a, b = fake(5, 260, dtype=E4M3), fake(260, 300, dtype=E5M2)
    shapes = scale_shapes(5, 300, 260)
    for of_a, of_b in (("RowWise", "TensorWise"), ("BlockWise1x128", "BlockWise128x128")):
        ours = {"RowWise": ROW, "TensorWise": TENSOR, "BlockWise1x128": BY_128}
        scales = fake(*shapes[ours[of_a]][0]), fake(*shapes[ours.get(of_b, BY_128_128)][1])
        recipes = {
            "scale_recipe_a": getattr(ScalingType, of_a),
            "scale_recipe_b": getattr(ScalingType, of_b),
        }
        assert cutwheel.scaled_mm(a, b, scales[0], scale_b=scales[1], **recipes).dtype == BRAIN


def test_other_shapes_of_scales(cutwheel: ModuleType, fake: Make) -> None:
    a, b = fake(5, 260, dtype=E4M3), fake(260, 300, dtype=E4M3)
    for scale in (fake(), fake(1), fake(1, 1), fake(1, 1, 1)):
        assert cutwheel.scaled_mm(a, b, scale, scale_b=fake(1, 300)).shape == (5, 300)
    rows, columns = fake(5), fake(300)
    recipes = {"scale_recipe_a": ROW, "scale_recipe_b": ROW}
    assert cutwheel.scaled_mm(a, b, rows, scale_b=columns, **recipes).shape == (5, 300)


def test_integers(cutwheel: ModuleType, fake: Make) -> None:
    a, b, one = fake(5, 260, dtype=INT8), fake(260, 300, dtype=INT8), fake(1)
    unscaled = cutwheel.scaled_mm(a, b, output_dtype=INT32)
    assert (unscaled.shape, unscaled.dtype) == ((5, 300), INT32)
    out = fake(5, 300, dtype=INT32)
    assert cutwheel.scaled_mm(a, b, out=out) is out
    sums = fake(300, dtype=INT32)
    for azp in (fake(1, dtype=INT32), fake(dtype=INT32), fake(5, 1, dtype=INT32)):
        for adj in (None, sums, sums.unsqueeze(0)):
            result = cutwheel.scaled_mm(a, b, one, scale_b=one, azp=azp, azp_adj=adj)
            assert (result.shape, result.dtype) == ((5, 300), BRAIN)


# ---- quantize
QUANTISED = [
    *((dtype, recipe, True) for dtype in (E4M3, E5M2) for recipe in (TENSOR, ROW, BY_128)),
    *((INT8, recipe, symmetric) for recipe in (TENSOR, ROW) for symmetric in (True, False)),
]


@pytest.mark.parametrize(("dtype", "recipe", "symmetric"), QUANTISED, ids=str)
@pytest.mark.parametrize("rows", [(5,), (2, 3), (0,), (4, 1, 2)], ids=str)
@pytest.mark.parametrize("k", [300, 1, 0])
def test_quantize(
    cutwheel: ModuleType,
    fake: Make,
    dtype: torch.dtype,
    recipe: str,
    symmetric: bool,
    rows: tuple[int, ...],
    k: int,
) -> None:
    m = torch.Size(rows).numel()
    shape = {TENSOR: (1,), ROW: (m, 1), BY_128: (m, blocks(k))}[recipe]
    for x in (fake(*rows, k, dtype=HALF), fake(*rows, k).requires_grad_()):
        with torch.no_grad():
            values, scales, *azp = cutwheel.quantize(x, recipe, dtype, symmetric=symmetric)
        assert (values.shape, values.dtype, values.is_contiguous()) == (x.shape, dtype, True)
        assert (scales.shape, scales.dtype) == (shape, SINGLE)
        assert not values.requires_grad
        assert not scales.requires_grad
        if recipe == BY_128:
            assert scales.stride() == (1, -(-m // 4) * 4)
        else:
            assert scales.is_contiguous()
        assert [(t.shape, t.dtype) for t in azp] == ([] if symmetric else [(shape, INT32)])


def test_quantize_blocks(cutwheel: ModuleType, fake: Make) -> None:
    x = fake(300, 130, dtype=BRAIN).t()
    for recipe in (BY_128_128, ScalingType.BlockWise128x128):
        values, scales = cutwheel.quantize(x, recipe)
        assert (values.shape, values.is_contiguous()) == ((130, 300), True)
        assert (scales.shape, scales.is_contiguous()) == ((2, 3), True)


@pytest.mark.parametrize("recipe", [TENSOR, ROW, BY_128, BY_128_128])
def test_a_weight_goes_there_transposed(cutwheel: ModuleType, fake: Make, recipe: str) -> None:
    x, weight = fake(5, 260, dtype=BRAIN), fake(300, 260, dtype=BRAIN)
    a, scale_a = cutwheel.quantize(x, BY_128 if recipe == BY_128_128 else recipe)
    b, scale_b = cutwheel.quantize(weight, recipe)
    result = cutwheel.scaled_mm(
        a, b.t(), scale_a, scale_b=scale_b if recipe == TENSOR else scale_b.t()
    )
    assert result.shape == (5, 300)


# ---- tracing
def test_dynamic_shapes_trace_once(cutwheel: ModuleType) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def model(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        for recipe in (ROW, BY_128, BY_128_128):
            cutwheel.quantize(x, recipe)
        a, scale_a = cutwheel.quantize(x, ROW)
        recipes = {"scale_recipe_a": ROW, "scale_recipe_b": ROW}
        named: torch.Tensor = cutwheel.scaled_mm(a, weight.t(), scale_a, scale_b=scale, **recipes)
        return named + cutwheel.scaled_mm(a, weight.t(), scale_a, scale_b=scale)

    graph = make_fx(model, tracing_mode="symbolic")(
        torch.empty(4, 260, device="meta", dtype=HALF),
        torch.empty(8, 260, device="meta", dtype=E4M3),
        torch.empty(1, 8, device="meta"),
    )
    assert "cutwheel.scaled_mm.default" in graph.code
    assert "cutwheel.quantize.default" in graph.code


def test_compile_traces_without_a_graph_break(cutwheel: ModuleType) -> None:
    def model(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        total = torch.zeros((), device="meta")
        for of_x, of_weight in ((TENSOR, TENSOR), (ROW, ROW), (BY_128, BY_128_128)):
            a, scale_a = cutwheel.quantize(x, of_x)
            b, scale_b = cutwheel.quantize(weight, of_weight)
            scale_b = scale_b if of_weight == TENSOR else scale_b.t()
            y = cutwheel.scaled_mm(
                a, b.t(), scale_a, scale_b=scale_b, bias=bias, use_fast_accum=True
            )
            total = total + y.float().sum()
        # By name: the compiler of torch 2.12 does not know the members of torch's own ScalingType.
        a, scale_a, azp = cutwheel.quantize(x, ROW, INT8, symmetric=False)
        b, scale_b = cutwheel.quantize(weight, TENSOR, INT8)
        return total + cutwheel.scaled_mm(a, b.t(), scale_a, scale_b=scale_b, azp=azp).float().sum()

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    inputs = [
        torch.empty(shape, dtype=BRAIN, device="meta") for shape in ((5, 260), (300, 260), (300,))
    ]
    assert compiled(*inputs).shape == ()
    with torch.no_grad():
        assert compiled(inputs[0].requires_grad_(), *inputs[1:]).requires_grad is False
