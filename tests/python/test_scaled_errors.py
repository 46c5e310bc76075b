"""Calls that scaled_mm and quantize refuse, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from refusals import places
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import ScalingType

E4M3, E5M2, INT8, INT32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
Make = Callable[..., torch.Tensor]
TENSOR, ROW = "tensorwise", "rowwise"
BY_128, BY_128_128 = "blockwise_1x128", "blockwise_128x128"


def maker(device: str) -> Make:
    return lambda *shape, dtype=SINGLE: torch.empty(shape, dtype=dtype, device=device)


def bad_calls(make: Make) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    a, b, one = make(5, 260, dtype=E4M3), make(260, 300, dtype=E4M3), make(1)
    c, d = make(5, 260, dtype=INT8), make(260, 300, dtype=INT8)
    e8m0 = getattr(torch, "float8_e8m0fnu", None)
    zero, sums = make(1, dtype=INT32), make(300, dtype=INT32)
    half = make(5, 260, dtype=HALF)
    calls: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
        "dtype": (
            TypeError,
            "mat_a has dtype float16",
            lambda w: w.scaled_mm(half, b, one, scale_b=one),
        ),
        "mixed": (
            TypeError,
            "mat_b has dtype int8 and mat_a has dtype float8_e4m3fn; expected both fp8 or both",
            lambda w: w.scaled_mm(a, d, one, scale_b=one),
        ),
        "e5m2": (
            TypeError,
            "mat_a and mat_b have dtype float8_e5m2; expected float8_e4m3fn for one",
            lambda w: w.scaled_mm(
                make(5, 260, dtype=E5M2), make(260, 300, dtype=E5M2), one, scale_b=one
            ),
        ),
        "rank": (
            ValueError,
            "mat_b has 3 dimensions",
            lambda w: w.scaled_mm(a, make(1, 260, 300, dtype=E4M3), one, scale_b=one),
        ),
        "inner": (
            ValueError,
            r"mat_b has shape \[300, 260\]; expected \[260, N\]",
            lambda w: w.scaled_mm(a, make(300, 260, dtype=E4M3), one, scale_b=one),
        ),
        "scales": (
            ValueError,
            r"scale_a has shape \[5, 3\] and scale_b has shape \[3, 2\] where M=5, N=300, K=260; "
            r"expected\n  tensorwise or rowwise: scale_a of one element or \[5, 1\], scale_b of "
            r"one element or \[1, 300\]\n  blockwise_1x128 for mat_a and blockwise_128x128 for "
            r"mat_b: scale_a \[5, 3\], scale_b \[3, 3\]\n.*scale_b \[3, 300\]",
            lambda w: w.scaled_mm(a, b, make(5, 3), scale_b=make(3, 2)),
        ),
        "flat_rows": (
            ValueError,
            r"scale_a has shape \[5\] and scale_b has shape \[300\] where M=5",
            lambda w: w.scaled_mm(a, b, make(5), scale_b=make(300)),
        ),
        "pair": (
            ValueError,
            "scale_recipe_a is rowwise and scale_recipe_b is blockwise_128x128, which do not ",
            lambda w: w.scaled_mm(
                a, b, make(5, 1), scale_b=make(3, 3), scale_recipe_a=ROW, scale_recipe_b=BY_128_128
            ),
        ),
        "blocks_of_a": (
            ValueError,
            "scale_recipe_a is blockwise_128x128, which is for mat_b; mat_a takes blockwise_1x128",
            lambda w: w.scaled_mm(a, b, make(1, 3), scale_b=make(3, 3), scale_recipe_a=BY_128_128),
        ),
        "blocks_of_integers": (
            ValueError,
            r"\(blockwise scales are for fp8\)",
            lambda w: w.scaled_mm(c, d, make(5, 3), scale_b=make(3, 3)),
        ),
        "named_rows": (
            ValueError,
            r"scale_a has shape \[6\]; expected \[5, 1\] as scale_recipe_a is rowwise",
            lambda w: w.scaled_mm(a, b, make(6), scale_b=one, scale_recipe_a=ROW),
        ),
        "named_one": (
            ValueError,
            r"scale_b has shape \[1, 300\]; expected one element as scale_recipe_b is tensorwise",
            lambda w: w.scaled_mm(a, b, one, scale_b=make(1, 300), scale_recipe_b=TENSOR),
        ),
        "named_blocks": (
            ValueError,
            r"scale_b has shape \[3\]; expected \[3, 3\] as scale_recipe_b is blockwise_128x128",
            lambda w: w.scaled_mm(a, b, make(5, 3), scale_b=make(3), scale_recipe_b=BY_128_128),
        ),
        "recipe": (
            ValueError,
            "scale_recipe_a is 'row'; expected one of tensorwise, rowwise",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, scale_recipe_a="row"),
        ),
        "recipe_object": (
            ValueError,
            "scale_recipe_b is 3; expected",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, scale_recipe_b=3),
        ),
        "mxfp8": (
            NotImplementedError,
            "scale_recipe_a is BlockWise1x32.* compute capability 10.0 .*no kernel of this wheel",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, scale_recipe_a=ScalingType.BlockWise1x32),
        ),
        "nvfp4": (
            NotImplementedError,
            "scale_recipe_b is BlockWise1x16.* compute capability 10.0",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, scale_recipe_b=ScalingType.BlockWise1x16),
        ),
        "nvfp4_scale": (
            NotImplementedError,
            "scale_a has dtype float8_e4m3fn.* compute capability 10.0",
            lambda w: w.scaled_mm(a, b, make(5, 20, dtype=E4M3), scale_b=one),
        ),
        "scale_dtype": (
            TypeError,
            "scale_b has dtype float16; expected float32",
            lambda w: w.scaled_mm(a, b, one, scale_b=one.half()),
        ),
        "no_scale": (
            ValueError,
            "scale_b is None and scale_a is given; expected both",
            lambda w: w.scaled_mm(a, b, one, scale_b=None),
        ),
        "no_scales": (
            ValueError,
            r"scale_a and scale_b are None; expected float32 tensors \(torch.ones\(1\)",
            lambda w: w.scaled_mm(a, b),
        ),
        "no_scales_of_integers": (
            ValueError,
            "or output_dtype=torch.int32",
            lambda w: w.scaled_mm(c, d),
        ),
        "scales_and_int32": (
            TypeError,
            "output_dtype is int32, which is for the unscaled sums",
            lambda w: w.scaled_mm(c, d, one, scale_b=one, output_dtype=INT32),
        ),
        "int32_of_fp8": (
            ValueError,
            "scale_a and scale_b are None",
            lambda w: w.scaled_mm(a, b, output_dtype=INT32),
        ),
        "unscaled_bias": (
            ValueError,
            "bias is given, and scale_a and scale_b are None",
            lambda w: w.scaled_mm(c, d, bias=make(300), output_dtype=INT32),
        ),
        "out_dtype": (
            TypeError,
            "output_dtype is float8_e4m3fn; expected float16, bfloat16 or float32",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, output_dtype=E4M3),
        ),
        "bias_dtype": (
            TypeError,
            "bias has dtype float16; expected bfloat16, the dtype of the result, or float32",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, bias=make(300, dtype=HALF)),
        ),
        "bias_shape": (
            ValueError,
            r"bias has shape \[1, 300\]; expected \[300\]",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, bias=make(1, 300)),
        ),
        "azp_of_fp8": (
            TypeError,
            "only int8 has a zero point",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, azp=zero),
        ),
        "azp_adj_alone": (
            ValueError,
            "azp_adj is given without azp",
            lambda w: w.scaled_mm(c, d, one, scale_b=one, azp_adj=sums),
        ),
        "azp_dtype": (
            TypeError,
            "azp has dtype int8; expected int32",
            lambda w: w.scaled_mm(c, d, one, scale_b=one, azp=make(1, dtype=INT8)),
        ),
        "azp_shape": (
            ValueError,
            r"azp has shape \[6\]; expected one element, \[5\] or \[5, 1\]",
            lambda w: w.scaled_mm(c, d, one, scale_b=one, azp=make(6, dtype=INT32)),
        ),
        "azp_adj_shape": (
            ValueError,
            r"azp_adj has shape \[300, 1\]; expected \[300\] or \[1, 300\]",
            lambda w: w.scaled_mm(c, d, one, scale_b=one, azp=zero, azp_adj=sums.unsqueeze(1)),
        ),
        "out_shape": (
            ValueError,
            "never resized",
            lambda w: w.scaled_mm(a, b, one, scale_b=one, out=make(5, 299, dtype=BRAIN)),
        ),
        "out_and_out_dtype": (
            TypeError,
            "out has dtype torch.float16; expected torch.float32 as output_dtype says",
            lambda w: w.scaled_mm(
                a, b, one, scale_b=one, out=make(5, 300, dtype=HALF), output_dtype=SINGLE
            ),
        ),
        "not_a_tensor": (
            TypeError,
            "scale_a is of type float; expected a Tensor",
            lambda w: w.scaled_mm(a, b, 1.0, scale_b=one),
        ),
        "none": (
            TypeError,
            "mat_b is None; expected a Tensor",
            lambda w: w.scaled_mm(a, None, one, scale_b=1),
        ),
        "quantize_dtype": (
            TypeError,
            "quantize: dtype is bfloat16; expected float8_e4m3fn, float8_e5m2 or int8",
            lambda w: w.quantize(half, ROW, BRAIN),
        ),
        "quantize_no_dtype": (
            TypeError,
            "quantize: expected a value of type torch.dtype for argument 'dtype'",
            lambda w: w.quantize(half, ROW, "int8"),
        ),
        "quantize_input": (
            TypeError,
            "quantize: x has dtype float8_e4m3fn; expected float16, bfloat16 or float32",
            lambda w: w.quantize(a, ROW),
        ),
        "quantize_integers_by_blocks": (
            ValueError,
            "quantize: recipe is blockwise and dtype is int8; expected tensorwise or rowwise",
            lambda w: w.quantize(half, BY_128, INT8),
        ),
        "quantize_asymmetric": (
            ValueError,
            "quantize: symmetric is False and dtype is float8_e4m3fn; only int8 has a zero point",
            lambda w: w.quantize(half, ROW, symmetric=False),
        ),
        "quantize_vector": (
            ValueError,
            r"quantize: x has 1 dimensions \(shape \[5\]\); expected \[\.\.\., K\], at least 2",
            lambda w: w.quantize(make(5), ROW),
        ),
        "quantize_blocks_of_a_batch": (
            ValueError,
            r"quantize: x has 3 dimensions .*expected \[M, K\] for blockwise_128x128",
            lambda w: w.quantize(make(2, 5, 7), BY_128_128),
        ),
        "quantize_recipe": (
            ValueError,
            "quantize: recipe is None; expected one of",
            lambda w: w.quantize(half, None),
        ),
        "quantize_none": (TypeError, "quantize: x is None", lambda w: w.quantize(None, ROW)),
    }
    if e8m0 is not None:
        calls["mxfp8_scale"] = (
            NotImplementedError,
            "scale_b has dtype float8_e8m0fnu.* compute capability 10.0",
            lambda w: w.scaled_mm(a, b, one, scale_b=make(9, 300, dtype=e8m0)),
        )
    return calls


ONLY_LIBRARY = (
    *("dtype", "mixed", "e5m2", "scales", "flat_rows", "pair", "blocks_of_a", "blocks_of_integers"),
    *("named_rows", "named_one", "named_blocks", "nvfp4_scale", "scale_dtype", "no_scale"),
    *("no_scales", "no_scales_of_integers", "scales_and_int32", "int32_of_fp8", "unscaled_bias"),
    *("out_dtype", "bias_dtype", "bias_shape", "azp_of_fp8", "azp_adj_alone", "azp_dtype"),
    *("azp_shape", "azp_adj_shape", "out_shape", "quantize_dtype", "quantize_input"),
    *("quantize_integers_by_blocks", "quantize_asymmetric"),
    *(("mxfp8_scale",) if hasattr(torch, "float8_e8m0fnu") else ()),
)


@pytest.mark.parametrize(("name", "where"), places(bad_calls(maker("meta")), ONLY_LIBRARY))
def test_bad_input(
    cutwheel: ModuleType, name: str, where: str, check_class: Callable[..., None]
) -> None:
    error, message, call = bad_calls(maker(where))[name]
    with pytest.raises(error, match=message) as raised:
        call(cutwheel)
    check_class(raised.value, error)


@pytest.mark.gpu
def test_float4_is_refused(cutwheel: ModuleType, device: str) -> None:
    dtype = getattr(torch, "float4_e2m1fn_x2", None)
    if dtype is None:
        pytest.skip("this torch has no float4")
    a = torch.empty(16, 16, dtype=dtype, device=device)
    one = torch.ones(1, device=device)
    with pytest.raises(NotImplementedError, match=r"mat_a has dtype float4_e2m1fn_x2.*10\.0"):
        cutwheel.scaled_mm(a, a, one, scale_b=one)


def test_mixed_devices(cutwheel: ModuleType) -> None:
    with FakeTensorMode():
        a = torch.empty(4, 6, device="cuda", dtype=E4M3)
        b, one = torch.empty(6, 8, dtype=E4M3), torch.ones(1)
    with pytest.raises(ValueError, match="mat_b is on cpu and mat_a is on cuda"):
        cutwheel.scaled_mm(a, b, one, scale_b=one)
