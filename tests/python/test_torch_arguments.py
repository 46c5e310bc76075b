"""Calls that were written for torch's scaled_mm, grouped_mm and scaled_grouped_mm."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from cpu_reference import CpuOps

E4M3, SINGLE, BRAIN = torch.float8_e4m3fn, torch.float32, torch.bfloat16
Tensor = torch.Tensor
needs_torchs = pytest.mark.skipif(
    not hasattr(F, "scaled_mm"), reason="this torch has no scaled_mm of its own"
)


def operands(w: ModuleType, recipe: str) -> dict[str, Any]:
    x, weight = torch.randn(16, 256), torch.randn(48, 256)
    a, scale_a = w.quantize(x, recipe)
    b, scale_b = w.quantize(weight, recipe)
    scale_b = scale_b if recipe == "tensorwise" else scale_b.t().contiguous()
    return {"mat_a": a, "mat_b": b.t(), "scale_a": scale_a, "scale_b": scale_b}


@needs_torchs
@pytest.mark.parametrize("name", ["scaled_mm", "grouped_mm", "scaled_grouped_mm"])
def test_arguments_are_torchs_in_its_order(cutwheel: ModuleType, name: str) -> None:
    theirs = inspect.signature(getattr(F, name)).parameters
    ours = inspect.signature(getattr(cutwheel, name)).parameters
    assert [*ours][: len(theirs)] == [*theirs]
    for key, parameter in theirs.items():
        assert ours[key].kind is parameter.kind
        if parameter.default is not inspect.Parameter.empty:
            assert ours[key].default == parameter.default
    for key in [*ours][len(theirs) :]:
        assert ours[key].kind is inspect.Parameter.KEYWORD_ONLY


@needs_torchs
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_scaled_mm_as_torchs(cutwheel: ModuleType, cpu_ops: CpuOps, recipe: str) -> None:
    if cutwheel._library.release_of(torch.__version__) < (2, 11):
        pytest.skip("scaled_mm of torch 2.10 has no kernel for CPUs")
    kind = {"tensorwise": F.ScalingType.TensorWise, "rowwise": F.ScalingType.RowWise}[recipe]
    none = F.SwizzleType.NO_SWIZZLE
    given = operands(cutwheel, recipe)
    a, b, scale_a, scale_b = given.values()
    bias = torch.randn(48).bfloat16()
    named = {**given, "scale_recipe_a": kind, "scale_recipe_b": kind, "bias": bias}
    wanted = F.scaled_mm(**named)
    for calls in (
        named,
        {**named, "swizzle_a": none, "swizzle_b": [none], "contraction_dim": (-1, -2)},
        {**named, "output_dtype": BRAIN, "use_fast_accum": True, "contraction_dim": [1, 0]},
        {**named, "scale_a": [scale_a], "scale_recipe_a": [kind], "scale_b": [scale_b]},
    ):
        torch.testing.assert_close(F.scaled_mm(**calls), wanted)
        torch.testing.assert_close(cutwheel.scaled_mm(**calls), wanted)
    in_order = (a, b, scale_a, kind, scale_b, kind, None, None, bias, torch.float32)
    torch.testing.assert_close(cutwheel.scaled_mm(*in_order).bfloat16(), wanted)
    # As strings, and told from the shapes.
    torch.testing.assert_close(
        cutwheel.scaled_mm(a, b, scale_a, recipe, scale_b, bias=bias), wanted
    )
    torch.testing.assert_close(cutwheel.scaled_mm(**given, bias=bias), wanted)


@needs_torchs
def test_what_has_one_answer_is_checked(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    given, errors = operands(cutwheel, "rowwise"), cutwheel.errors
    a, b, scale_a, scale_b = given.values()
    swizzled, row = F.SwizzleType.SWIZZLE_32_4_4, F.ScalingType.RowWise
    refused: tuple[tuple[type[Exception], str, dict[str, Any]], ...] = (
        (NotImplementedError, "swizzle_a is SWIZZLE_32_4_4", {"swizzle_a": swizzled}),
        (NotImplementedError, "swizzle_b is SWIZZLE_32_4_4", {"swizzle_b": [swizzled]}),
        (NotImplementedError, "scale_a has 2 elements", {"scale_a": [scale_a, scale_a]}),
        (NotImplementedError, "scale_recipe_b has 2 elem", {"scale_recipe_b": [row, row]}),
        (errors.ArgumentError, r"contraction_dim is \(0, 1\)", {"contraction_dim": (0, 1)}),
        (errors.ArgumentError, r"contraction_dim is \(-1,\)", {"contraction_dim": [-1]}),
        (errors.ScaledDtypeError, "output_dtype is None, which in torch", {"output_dtype": None}),
    )
    for kind, text, changed in refused:
        with pytest.raises(kind, match=f"^scaled_mm: {text}"):
            cutwheel.scaled_mm(**{**given, **changed})
    # The order of torch._scaled_mm.
    with pytest.raises(TypeError, match="scale_recipe_a is a Tensor; expected a recipe, or None"):
        cutwheel.scaled_mm(a, b, scale_a, scale_b)


@needs_torchs
def test_explain_takes_torchs_arguments(
    cutwheel: ModuleType, cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []

    def answer(*args: Any) -> str:
        asked.append(args)
        return '{"plans": [{"row": "x"}], "request": {}}'

    monkeypatch.setattr(torch.ops.cutwheel, "_explain", answer)
    given, row = operands(cutwheel, "rowwise"), F.ScalingType.RowWise
    a, b, scale_a, scale_b = given.values()
    cutwheel.explain("scaled_mm", a, b, [scale_a], row, [scale_b], [row], None, None, None, SINGLE)
    _, tensors, *rest = asked.pop()
    assert tensors[2] is scale_a
    assert tensors[3] is scale_b
    assert rest == [SINGLE, 1, False, "", 1, 1, False, ()]
    with pytest.raises(ValueError, match="contraction_dim"):
        cutwheel.explain("scaled_mm", **given, contraction_dim=(0, 1))
    offs, groups = torch.tensor([16], dtype=torch.int32), b.unsqueeze(0)
    cutwheel.explain("scaled_grouped_mm", a, groups, scale_a, row, scale_b, row, offs=offs)
    assert asked.pop()[1][4] is offs
    with pytest.raises(ValueError, match="scale_recipe_a is rowwise and scale_recipe_b is block"):
        cutwheel.explain(
            *("scaled_grouped_mm", a, groups, scale_a, row, scale_b),
            *(F.ScalingType.BlockWise128x128,),
            offs=offs,
        )


def test_grouped_mm_as_torchs(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x, w = torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    offs = torch.tensor([3, 8], dtype=torch.int32)
    named: dict[str, Any] = {"mat_a": x, "mat_b": w, "offs": offs, "bias": None, "out_dtype": None}
    theirs = getattr(F, "grouped_mm", None)
    wanted = torch.cat((x[:3] @ w[0], x[3:] @ w[1])) if theirs is None else theirs(**named)
    torch.testing.assert_close(cutwheel.grouped_mm(**named), wanted)


def grouped(w: ModuleType, recipe: str) -> dict[str, Any]:
    x, weight = torch.randn(20, 256), torch.randn(3, 48, 256)
    of_weight = "blockwise_128x128" if recipe == "blockwise_1x128" else recipe
    a, scale_a = w.quantize(x, recipe)
    parts = [w.quantize(each, of_weight) for each in weight]
    b, scale_b = (torch.stack(each) for each in zip(*parts, strict=True))
    scale_b = scale_b[..., 0] if recipe == "rowwise" else scale_b.mT
    offs = torch.tensor([4, 4, 18], dtype=torch.int32)
    given = {"mat_a": a, "mat_b": b.mT, "scale_a": scale_a, "scale_b": scale_b, "offs": offs}
    return given | {"scale_a": scale_a[:, 0] if recipe == "rowwise" else scale_a}


@needs_torchs
def test_scaled_grouped_mm_as_torchs(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    kinds, none = F.ScalingType, F.SwizzleType.NO_SWIZZLE
    for recipe, of_a, of_b in (
        ("rowwise", kinds.RowWise, kinds.RowWise),
        ("blockwise_1x128", kinds.BlockWise1x128, kinds.BlockWise128x128),
    ):
        given = grouped(cutwheel, recipe)
        wanted = cutwheel.scaled_grouped_mm(**given)
        a, b, scale_a, scale_b, offs = given.values()
        named = {**given, "scale_recipe_a": of_a, "scale_recipe_b": of_b, "swizzle_a": none}
        assert torch.equal(cutwheel.scaled_grouped_mm(**named), wanted)
        named |= {"scale_a": [scale_a], "scale_b": [scale_b], "contraction_dim": (-1, -2)}
        assert torch.equal(cutwheel.scaled_grouped_mm(**named), wanted)
        in_order = (a, b, scale_a, of_a, scale_b, of_b, None, None, None, offs, BRAIN)
        assert torch.equal(cutwheel.scaled_grouped_mm(*in_order), wanted)
        for alone in ({"scale_recipe_a": recipe}, {"scale_recipe_b": of_b}):
            assert torch.equal(cutwheel.scaled_grouped_mm(**given, **alone), wanted)


def test_recipes_of_groups_are_checked(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    rows, blocks = grouped(cutwheel, "rowwise"), grouped(cutwheel, "blockwise_1x128")
    errors, one, square = cutwheel.errors, "blockwise_1x128", "blockwise_128x128"
    refused: tuple[tuple[type[Exception], str, dict[str, Any], dict[str, Any]], ...] = (
        (errors.ShapeError, "scale_a has shape", rows, {"scale_recipe_a": one}),
        (errors.ShapeError, "scale_a has shape", rows, {"scale_recipe_b": square}),
        (errors.ShapeError, "scale_a has shape", blocks, {"scale_recipe_a": "rowwise"}),
        (
            *(errors.ArgumentError, "scale_recipe_a is rowwise and scale_recipe_b is blockwise"),
            *(rows, {"scale_recipe_a": "rowwise", "scale_recipe_b": square}),
        ),
        (
            errors.ArgumentError,
            "scale_recipe_a is tensorwise",
            rows,
            {"scale_recipe_a": "tensorwise"},
        ),
        (errors.ArgumentError, "offs is None; expected the end of each", rows, {"offs": None}),
        (TypeError, "scale_b is None; expected a Tensor", rows, {"scale_b": None}),
    )
    for kind, text, given, changed in refused:
        for is_enabled in (False, True):
            with torch.set_grad_enabled(is_enabled), pytest.raises(kind, match=text) as raised:
                cutwheel.scaled_grouped_mm(**{**given, **changed})
            assert type(raised.value) is kind


@needs_torchs
def test_compiled_with_members(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    if cutwheel._library.release_of(torch.__version__) < (2, 13):
        pytest.skip("the compiler of this torch does not know the members of ScalingType")
    row, none = F.ScalingType.RowWise, F.SwizzleType.NO_SWIZZLE

    def model(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
        result: Tensor = cutwheel.scaled_mm(a, b, [scale_a], [row], scale_b, row, none)
        return result

    given = operands(cutwheel, "rowwise").values()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(*given), model(*given))
