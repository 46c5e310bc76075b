"""scaled_mm where operands, scales and results lie oddly, are empty, or do not fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, LAYOUTS, SINGLE, canary
from scaled_cases import BLOCKWISE, SPREAD, Call, integers
from scaled_reference import E4M3, E5M2, INT8, ROW, TENSOR

pytestmark = pytest.mark.gpu

KINDS = {"fp8": (E4M3, E4M3), "int8": (INT8, INT8)}
EVERYWHERE = [("fp8", pair) for pair in (*SPREAD, *BLOCKWISE)] + [("int8", p) for p in SPREAD]


# ---- layouts
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_may_lie_anyhow(cutwheel: ModuleType, device: str, layout: str, kind: str) -> None:
    recipes = {"fp8": BLOCKWISE[0], "int8": (ROW, ROW)}[kind]
    for m, n, k in ((72, 136, 208), (67, 131, 77), (1, 40, 24)):
        call = Call.random(m, n, k, device, KINDS[kind], recipes, d=HALF)
        replace(call, lay_a=layout).check(cutwheel)
        replace(call, lay_b=layout).check(cutwheel)
        replace(call, lay_a=layout, lay_b=layout).check(cutwheel)


def test_operands_may_be_slices_and_expanded(cutwheel: ModuleType, device: str) -> None:
    call = Call.random(64, 96, 144, device)
    a, b, scale_a, scale_b = call.positional
    rows = replace(call, a=replace(call.a, values=call.a.values[:1].expand(64, 144)))
    rows.check(cutwheel)
    expanded = cutwheel.scaled_mm(a[:1].expand(64, 144), b, scale_a, scale_b=scale_b)
    rows.judge(expanded)
    # Rows and columns of something larger: [16:80, 16:] starts at 16 bytes, [3:67, 5:] does not.
    for first, left in ((16, 16), (3, 5)):
        whole = torch.full((96, 176), 0x7F, dtype=torch.uint8, device=device)
        part = whole[first : first + 64, left : left + 144]
        part.copy_(call.a.values.view(torch.uint8))
        call.judge(cutwheel.scaled_mm(part.view(E4M3), b, scale_a, scale_b=scale_b))


@pytest.mark.parametrize(("kind", "recipes"), EVERYWHERE, ids=str)
def test_scales_may_have_any_strides(
    cutwheel: ModuleType, device: str, kind: str, recipes: tuple[str, str]
) -> None:
    for m, n, k in ((130, 264, 272), (17, 72, 33)):
        call = Call.random(m, n, k, device, KINDS[kind], recipes, d=SINGLE)
        a, b, scale_a, scale_b = call.positional
        wanted = call.check(cutwheel)
        for layout in LAYOUTS:
            if scale_a.dim() == 2:
                result = cutwheel.scaled_mm(
                    a, b, LAYOUTS[layout](scale_a), scale_b=scale_b, output_dtype=SINGLE
                )
                assert torch.equal(result, wanted), f"scale_a {layout} {call}"
            if scale_b.dim() == 2:
                result = cutwheel.scaled_mm(
                    a, b, scale_a, scale_b=LAYOUTS[layout](scale_b), output_dtype=SINGLE
                )
                assert torch.equal(result, wanted), f"scale_b {layout} {call}"
        # One value for all rows, or for all groups: stride 0.
        alike = [
            scale[:1, :1].expand(scale.shape) if scale.dim() == 2 else scale
            for scale in (scale_a, scale_b)
        ]
        result = cutwheel.scaled_mm(a, b, alike[0], scale_b=alike[1], output_dtype=SINGLE)
        solid = [scale.contiguous() for scale in alike]
        wanted = cutwheel.scaled_mm(a, b, solid[0], scale_b=solid[1], output_dtype=SINGLE)
        assert torch.equal(result, wanted)


def test_bias_may_lie_anyhow(cutwheel: ModuleType, device: str) -> None:
    for (kind, recipes), d, of in itertools.product(
        (EVERYWHERE[1], EVERYWHERE[4], EVERYWHERE[7]), (BRAIN, SINGLE), ("d", "f32")
    ):
        call = Call.random(72, 131, 208, device, KINDS[kind], recipes, d, of)
        assert call.bias is not None
        for layout in ("row_offset", "every_second", "row_padded_3"):
            replace(call, bias=LAYOUTS[layout](call.bias[None])[0]).check(cutwheel)
        replace(call, bias=call.bias[:1].expand(131)).check(cutwheel)


# ---- results
def canary_out(
    m: int, n: int, d: torch.dtype, device: str, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out [M, N], the buffer around it); NaN everywhere, or 127."""
    shape, cut = {
        "whole": ((m, n), (slice(None), slice(None))),
        # Rows above and below, columns left and right: at 16 bytes and with such a pitch, and not.
        "aligned": ((m + 4, -(-(n + 64) // 32) * 32), (slice(2, m + 2), slice(32, n + 32))),
        "odd": ((m + 4, n + 6), (slice(2, m + 2), slice(3, n + 3))),
        "every_second": ((m, 2 * n), (slice(None), slice(None, None, 2))),
        "column": ((n + 2, m + 3), (slice(1, n + 1), slice(1, m + 1))),
    }[layout]
    like = torch.empty(0, dtype=d, device=device)
    buffer = torch.full(shape, canary(like), dtype=d, device=device)
    out = buffer[cut]
    return (out.t() if layout == "column" else out), buffer


def assert_untouched(buffer: torch.Tensor, out: torch.Tensor) -> None:
    """All of the buffer but `out` is as it was; this destroys `out`."""
    value = canary(buffer)
    out.fill_(value)
    changed = ~buffer.isnan() if value != value else buffer != value
    assert not changed.any(), f"{int(changed.sum())} elements around out were written"


@pytest.mark.parametrize("layout", ["whole", "aligned", "odd", "every_second", "column"])
@pytest.mark.parametrize(("kind", "recipes"), EVERYWHERE, ids=str)
def test_out(
    cutwheel: ModuleType, device: str, kind: str, recipes: tuple[str, str], layout: str
) -> None:
    for (m, n, k), d in itertools.product(
        ((130, 264, 272), (17, 129, 40), (1, 72, 160)), (BRAIN, HALF, SINGLE)
    ):
        call = Call.random(m, n, k, device, KINDS[kind], recipes, d, "d")
        out, buffer = canary_out(m, n, d, device, layout)
        strides, address = out.stride(), out.data_ptr()
        assert call.run(cutwheel, out=out) is out
        assert (out.stride(), out.data_ptr()) == (strides, address)
        call.judge(out)
        assert_untouched(buffer, out)


def test_out_of_integers(cutwheel: ModuleType, device: str) -> None:
    for layout in ("whole", "aligned", "odd", "every_second", "column"):
        call = Call.random(67, 72, 96, device, KINDS["int8"])
        wanted = integers(call, cutwheel)
        out, buffer = canary_out(67, 72, torch.int32, device, layout)
        a, b, *_ = call.positional
        cutwheel.scaled_mm(a, b, output_dtype=torch.int32, out=out)
        assert torch.equal(out, wanted)
        assert_untouched(buffer, out)


# ---- empty extents
@pytest.mark.parametrize(("kind", "recipes"), EVERYWHERE, ids=str)
def test_empty_extents(
    cutwheel: ModuleType, device: str, kind: str, recipes: tuple[str, str]
) -> None:
    for m, n, k in ((0, 40, 64), (40, 0, 64), (0, 0, 0), (5, 40, 0), (1, 1, 0), (0, 40, 0)):
        for bias in (None, "d", "f32"):
            call = Call.random(m, n, k, device, KINDS[kind], recipes, BRAIN, bias, named=True)
            result = call.run(cutwheel)
            assert (result.shape, result.dtype) == ((m, n), BRAIN)
            wanted = torch.zeros(m, n, dtype=BRAIN, device=device)
            if call.bias is not None:
                wanted += call.bias.to(BRAIN)
            assert torch.equal(result, wanted), str(call)
            out, buffer = canary_out(m, n, BRAIN, device, "odd")
            call.run(cutwheel, out=out)
            assert torch.equal(out, wanted)
            assert_untouched(buffer, out)
    if kind == "int8":
        integers(Call.random(5, 40, 0, device, KINDS[kind]), cutwheel)


# ---- what is refused
def arguments(device: str) -> SimpleNamespace:
    """a [8, 144], b [144, 40] and all that goes with them"""

    def empty(*shape: int, dtype: torch.dtype = SINGLE) -> torch.Tensor:
        return torch.ones(shape, device=device).to(dtype)

    return SimpleNamespace(
        empty=empty,
        a=empty(8, 144, dtype=E4M3),
        b=empty(40, 144, dtype=E4M3).t(),
        a5=empty(8, 144, dtype=E5M2),
        b5=empty(40, 144, dtype=E5M2).t(),
        ai=empty(8, 144, dtype=INT8),
        bi=empty(40, 144, dtype=INT8).t(),
        one=empty(1),
        sa=empty(8, 1),
        sb=empty(1, 40),
        ka=empty(8, 2),  # 1x128
        kb=empty(2, 40),  # 1x128
        qb=empty(2, 1),  # 128x128
        mx=empty(1024, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        bias=empty(40, dtype=BRAIN),
        zero=torch.zeros(1, dtype=torch.int32, device=device),
        adj=torch.zeros(40, dtype=torch.int32, device=device),
    )


TYPE, VALUE, ABSENT, RUN = (TypeError,), (ValueError,), (NotImplementedError,), (RuntimeError,)
REFUSED = (TypeError, ValueError, NotImplementedError)
Bad = tuple[tuple[type[Exception], ...], str, Callable[[Any, Any], object]]
# name: (classes, what the message has, call with the function and the arguments above)
BAD: dict[str, Bad] = {
    "rank_of_a": (VALUE, "mat_a", lambda f, t: f(t.a[0], t.b, t.sa, scale_b=t.sb)),
    "rank_of_b": (VALUE, "mat_b", lambda f, t: f(t.a, t.b[:, 0], t.sa, scale_b=t.sb)),
    "inner_extent": (VALUE, "mat_b", lambda f, t: f(t.a, t.b[:-1], t.sa, scale_b=t.sb)),
    "half_a": (TYPE, "mat_a", lambda f, t: f(t.a.to(HALF), t.b, t.sa, scale_b=t.sb)),
    "mixed": (TYPE, "mat_b", lambda f, t: f(t.a, t.bi, t.sa, scale_b=t.sb)),
    "uint8": (TYPE, "mat_a", lambda f, t: f(t.ai.view(torch.uint8), t.bi, t.sa, scale_b=t.sb)),
    "e5m2_e5m2": (REFUSED, "e5m2", lambda f, t: f(t.a5, t.b5, t.sa, scale_b=t.sb)),
    "no_tensor": (TYPE, "mat_b", lambda f, t: f(t.a, [[1.0]], t.sa, scale_b=t.sb)),
    "no_scale": (REFUSED, "scale_b", lambda f, t: f(t.a, t.b, t.sa, scale_b=None)),
    "scale_is_a_number": (TYPE, "scale_a", lambda f, t: f(t.a, t.b, 1.0, scale_b=t.sb)),
    "dtype_of_scale": (TYPE, "scale_a", lambda f, t: f(t.a, t.b, t.sa.to(HALF), scale_b=t.sb)),
    "shape_of_scale": (VALUE, "scale_a.*scale_b", lambda f, t: f(t.a, t.b, t.sa[:5], scale_b=t.sb)),
    "scale_of_the_weight": (VALUE, "scale_b", lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb.t())),
    "block_with_row": (REFUSED, "scale", lambda f, t: f(t.a, t.b, t.ka, scale_b=t.sb)),
    "block_128_for_a": (
        REFUSED,
        "1x128",
        lambda f, t: f(
            t.a,
            t.b,
            t.empty(1, 2),
            scale_b=t.kb,
            scale_recipe_a="blockwise_128x128",
            scale_recipe_b="blockwise_1x128",
        ),
    ),
    "block_of_int8": (
        REFUSED,
        "int8|fp8",
        lambda f, t: f(
            t.ai,
            t.bi,
            t.ka,
            scale_b=t.qb,
            scale_recipe_a="blockwise_1x128",
            scale_recipe_b="blockwise_128x128",
        ),
    ),
    "recipe": (
        VALUE,
        "scale_recipe_a",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, scale_recipe_a="by_row"),
    ),
    "recipe_and_shape": (
        VALUE,
        "scale_a",
        lambda f, t: f(t.a, t.b, t.one, scale_b=t.sb, scale_recipe_a="rowwise"),
    ),
    "out_dtype": (
        REFUSED,
        "output_dtype",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, output_dtype=INT8),
    ),
    "int32_of_fp8": (
        REFUSED,
        "output_dtype|int32",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, output_dtype=torch.int32),
    ),
    "int32_with_scales": (
        REFUSED,
        "scale|output_dtype",
        lambda f, t: f(t.ai, t.bi, t.sa, scale_b=t.sb, output_dtype=torch.int32),
    ),
    "bias_extent": (VALUE, "bias", lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, bias=t.bias[:5])),
    "bias_of_one": (VALUE, "bias", lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, bias=t.bias[:1])),
    "bias_rank": (
        VALUE,
        "bias",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, bias=t.bias.expand(8, 40)),
    ),
    "bias_dtype": (
        TYPE,
        "bias",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, bias=t.bias.to(HALF)),
    ),
    "azp_of_fp8": (
        TYPE,
        "azp",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, azp=t.zero, azp_adj=t.adj),
    ),
    "azp_adj_alone": (
        REFUSED,
        "azp",
        lambda f, t: f(t.ai, t.bi, t.sa, scale_b=t.sb, azp_adj=t.adj),
    ),
    "azp_shape": (
        VALUE,
        "azp",
        lambda f, t: f(t.ai, t.bi, t.sa, scale_b=t.sb, azp=t.adj, azp_adj=t.adj),
    ),
    "azp_dtype": (
        TYPE,
        "azp",
        lambda f, t: f(t.ai, t.bi, t.sa, scale_b=t.sb, azp=t.zero.float(), azp_adj=t.adj),
    ),
    "azp_adj_shape": (
        VALUE,
        "azp_adj",
        lambda f, t: f(t.ai, t.bi, t.sa, scale_b=t.sb, azp=t.zero, azp_adj=t.adj[:5]),
    ),
    "out_shape": (
        VALUE,
        "out",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, out=t.empty(8, 39, dtype=BRAIN)),
    ),
    "out_dtype_of_out": (
        TYPE,
        "out",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, out=t.empty(8, 40, dtype=INT8)),
    ),
    "out_expanded": (
        VALUE,
        "out",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, out=t.empty(8, 1, dtype=BRAIN).expand(8, 40)),
    ),
}
NO_KERNEL: dict[str, Bad] = {  # what only newer GPUs have
    "mx_scales": (
        ABSENT,
        r"10\.0",
        lambda f, t: f(t.a, t.b, t.mx, scale_b=t.mx),
    ),
    "mx_recipe": (
        ABSENT,
        r"10\.0",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, scale_recipe_a=_scaling("BlockWise1x32")),
    ),
    "nv_recipe": (
        ABSENT,
        r"10\.0",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, scale_recipe_b=_scaling("BlockWise1x16")),
    ),
}


def _scaling(name: str) -> Any:
    kinds = getattr(torch.nn.functional, "ScalingType", None)
    if kinds is None:
        pytest.skip("this torch has no ScalingType")
    return getattr(kinds, name)


GRAD: dict[str, Bad] = {
    "bias": (
        RUN,
        "ScaledLinear",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, bias=t.bias.requires_grad_()),
    ),
    "scale_a": (RUN, "ScaledLinear", lambda f, t: f(t.a, t.b, t.sa.requires_grad_(), scale_b=t.sb)),
    "scale_b": (RUN, "ScaledLinear", lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb.requires_grad_())),
}
ELSEWHERE: dict[str, Bad] = {
    "cpu": (ABSENT, "CPU", lambda f, t: f(t.a.cpu(), t.b.cpu(), t.sa.cpu(), scale_b=t.sb.cpu())),
    "cpu_b": (VALUE, "mat_b", lambda f, t: f(t.a, t.b.cpu(), t.sa, scale_b=t.sb)),
    "cpu_scale": (VALUE, "scale_a", lambda f, t: f(t.a, t.b, t.sa.cpu(), scale_b=t.sb)),
    "cpu_bias": (VALUE, "bias", lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, bias=t.bias.cpu())),
    "cpu_out": (
        VALUE,
        "out",
        lambda f, t: f(t.a, t.b, t.sa, scale_b=t.sb, out=t.empty(8, 40, dtype=BRAIN).cpu()),
    ),
}
ALL_BAD = {**BAD, **NO_KERNEL, **{f"grad_of_{k}": v for k, v in GRAD.items()}, **ELSEWHERE}


@pytest.mark.parametrize("name", ALL_BAD)
def test_bad_input(
    cutwheel: ModuleType, device: str, name: str, check_class: Callable[..., None]
) -> None:
    if name in ELSEWHERE and torch.device(device).type != "cuda":
        pytest.skip("needs CUDA tensors")
    classes, words, call = ALL_BAD[name]
    with pytest.raises(classes, match=f"(?s){words}") as raised:
        call(cutwheel.scaled_mm, arguments(device))
    check_class(raised.value, classes)
    assert "Error: " not in str(raised.value), "the class prefix is not for people"
    # The context is alive, and nothing of the failed call is left.
    Call.random(40, 56, 72, device).check(cutwheel)


def test_gradients_may_be_wanted_elsewhere(cutwheel: ModuleType, device: str) -> None:
    t = arguments(device)
    with torch.no_grad():
        result = cutwheel.scaled_mm(t.a, t.b, t.sa.requires_grad_(), scale_b=t.sb)
    assert not result.requires_grad


def test_no_fit_names_both_shapes(cutwheel: ModuleType, device: str) -> None:
    t = arguments(device)
    with pytest.raises(ValueError, match="scale_a") as raised:
        cutwheel.scaled_mm(t.a, t.b, t.empty(7, 3), scale_b=t.empty(5, 11))
    text = str(raised.value)
    for shape in ((7, 3), (5, 11)):
        assert any(f"{left}{shape[0]}, {shape[1]}{right}" in text for left, right in ("[]", "()"))
    assert "1x128" in text
    assert TENSOR in text or "tensor" in text
