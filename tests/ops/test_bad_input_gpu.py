"""Input that ops refuse: the error's class, the argument that it names, and that they go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_cases import values
from gemm_cases import BRAIN, HALF, operands, random_tensor
from grouped_cases import offsets
from op_calls import OPS
from scaled_reference import INT8

pytestmark = pytest.mark.gpu

Bad = dict[str, tuple[type[Exception], str, Callable[[Any], object]]]
"""name: (class, argument named in the message, call)"""


def _gemm(device: str) -> Bad:
    a, b = operands(8, 16, 24, HALF, device)  # [8, 24], [24, 16]
    c = random_tensor((8, 16), HALF, device)
    batch_a, batch_b = operands(8, 16, 24, HALF, device, batch=(2,))
    full = random_tensor((40, 40), HALF, device)

    def empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    calls: Bad = {
        "rank_of_input": (ValueError, "input", lambda w: w.mm(batch_a, b)),
        "rank_of_mat2": (ValueError, "mat2", lambda w: w.mm(a, b[0])),
        "rank_of_batch": (ValueError, "input", lambda w: w.bmm(a, batch_b)),
        "rank_of_weight": (ValueError, "weight", lambda w: w.linear(a, b[:, 0])),
        "scalar_input": (ValueError, "input", lambda w: w.linear(a[0, 0], b)),
        "inner_extent": (ValueError, "mat2", lambda w: w.mm(a, b[:-1])),
        "inner_extent_of_batches": (ValueError, "mat2", lambda w: w.bmm(batch_a, batch_b[:, 1:])),
        "batch_count": (ValueError, "mat2", lambda w: w.bmm(batch_a, batch_b[:1])),
        "batch_count_of_baddbmm": (
            ValueError,
            "batch2",
            lambda w: w.baddbmm(c, batch_a, batch_b[:1]),
        ),
        "inner_extent_of_linear": (ValueError, "weight", lambda w: w.linear(a, b)),
        "inner_extent_of_matmul": (ValueError, "other", lambda w: w.matmul(batch_a, b[:-1])),
        "batches_of_matmul": (
            ValueError,
            "input",
            lambda w: w.matmul(batch_a, batch_b[:1].expand(3, 24, 16)),
        ),
        "addend_too_wide": (ValueError, "input", lambda w: w.addmm(c[:, :5], a, b)),
        "addend_of_three_dims": (ValueError, "input", lambda w: w.addmm(c[None], a, b)),
        "bias_extent": (ValueError, "bias", lambda w: w.linear(a, b.t(), c[0, :5])),
        "bias_rank": (ValueError, "bias", lambda w: w.linear(a, b.t(), c)),
        "double": (TypeError, "input", lambda w: w.mm(a.double(), b.double())),
        "integer": (TypeError, "input", lambda w: w.mm(a.int(), b.int())),
        "complex": (TypeError, "input", lambda w: w.mm(a.cfloat(), b.cfloat())),
        "mixed_dtypes": (TypeError, "mat2", lambda w: w.mm(a, b.bfloat16())),
        "dtype_of_addend": (TypeError, "input", lambda w: w.addmm(c.bfloat16(), a, b)),
        "dtype_of_bias": (TypeError, "bias", lambda w: w.linear(a, b.t(), c[0].bfloat16())),
        "out_dtype": (TypeError, "out_dtype", lambda w: w.mm(a, b, torch.bfloat16)),
        "out_dtype_is_no_dtype": (TypeError, "out_dtype", lambda w: w.mm(a, b, "float32")),
        "not_a_tensor": (TypeError, "mat2", lambda w: w.mm(a, [[1.0]])),
        "none": (TypeError, "input", lambda w: w.mm(None, b)),
        "not_a_tensor_in_linear": (TypeError, "bias", lambda w: w.linear(a, b.t(), 1.0)),
        "alpha": (TypeError, "alpha", lambda w: w.addmm(c, a, b, alpha="2")),
        "out_shape": (ValueError, "out", lambda w: w.mm(a, b, out=empty(8, 15))),
        "out_transposed": (ValueError, "out", lambda w: w.mm(a, b, out=empty(16, 8))),
        "out_empty": (ValueError, "out", lambda w: w.mm(a, b, out=empty(0))),
        "out_of_other_dtype": (
            TypeError,
            "out",
            lambda w: w.mm(a, b, out=empty(8, 16, dtype=BRAIN)),
        ),
        "out_and_out_dtype": (
            TypeError,
            "out",
            lambda w: w.mm(a, b, torch.float32, out=empty(8, 16)),
        ),
        "out_is_no_tensor": (TypeError, "out", lambda w: w.mm(a, b, out=[1])),
        "out_expanded": (ValueError, "out", lambda w: w.mm(a, b, out=empty(8, 1).expand(8, 16))),
        "out_is_input": (
            ValueError,
            "out",
            lambda w: w.mm(full[:16, :16], full[:16, 16:32], out=full[:16, :16]),
        ),
        "out_overlaps_mat2": (
            ValueError,
            "out",
            lambda w: w.mm(full[:8, :8], full[8:16, 8:16], out=full[10:18, 10:18]),
        ),
        "out_overlaps_addend": (
            ValueError,
            "out",
            lambda w: w.addmm(full[1:9, :16], a, b, out=full[:8, :16]),
        ),
    }
    calls |= {
        "cpu_tensors": (NotImplementedError, "CPU", lambda w: w.mm(a.cpu(), b.cpu())),
        "cpu_mat2": (ValueError, "mat2", lambda w: w.mm(a, b.cpu())),
        "cpu_input": (ValueError, "input", lambda w: w.mm(a.cpu(), b)),
        "cpu_bias": (ValueError, "bias", lambda w: w.linear(a, b.t(), c[0].cpu())),
        "cpu_out": (ValueError, "out", lambda w: w.mm(a, b, out=empty(8, 16).cpu())),
    }
    return calls


def _grouped(device: str) -> Bad:
    a, w = random_tensor((30, 24), HALF, device), random_tensor((3, 24, 16), HALF, device)
    b = random_tensor((24, 30), HALF, device)
    offs = offsets([10, 20, 30], device)
    bias = random_tensor((3, 16), HALF, device)
    mm: Callable[..., Callable[[Any], object]] = lambda *x, **y: lambda c: c.grouped_mm(*x, **y)  # noqa: E731
    return {
        "no_offs": (ValueError, "offs", mm(a, w)),
        "offs_of_batches": (ValueError, "offs", mm(w.mT, w, offs=offs)),
        "number_of_offs": (ValueError, "offs", mm(a, w, offs=offs[:2])),
        "rank_of_offs": (ValueError, "offs", mm(a, w, offs=offs[None])),
        "no_groups": (ValueError, "offs", mm(b, a, offs=offs[:0])),
        "too_many_groups": (ValueError, "offs", mm(b, a, offs=offs.new_zeros(1025))),
        "dtype_of_offs": (TypeError, "offs", mm(a, w, offs=offs.float())),
        "narrow_offs": (TypeError, "offs", mm(a, w, offs=offs.short())),
        "list_of_offs": (TypeError, "offs", mm(a, w, offs=[10, 20, 30])),
        "rank_of_a": (ValueError, "mat_a", mm(a[0], w, offs=offs)),
        "rank_of_b": (ValueError, "mat_b", mm(a, w[None], offs=offs)),
        "inner_extent": (ValueError, "mat_b", mm(a, w[:, :-1], offs=offs)),
        "inner_extent_of_k": (ValueError, "mat_b", mm(b, a[:-1], offs=offs)),
        "number_of_batches": (ValueError, "mat_b", mm(w.mT, w[:2])),
        "dtype_of_b": (TypeError, "mat_b", mm(a, w.bfloat16(), offs=offs)),
        "double": (TypeError, "mat_a", mm(a.double(), w.double(), offs=offs)),
        "out_dtype": (TypeError, "out_dtype", mm(a, w, offs=offs, out_dtype=BRAIN)),
        "bias_extent": (ValueError, "bias", mm(a, w, offs=offs, bias=bias[:, :5])),
        "bias_groups": (ValueError, "bias", mm(a, w, offs=offs, bias=bias[:2])),
        "bias_of_k": (ValueError, "bias", mm(b, a, offs=offs, bias=bias)),
        "not_a_tensor": (TypeError, "mat_b", mm(a, [[1.0]], offs=offs)),
        "lists": (ValueError, r"\b[bB]", lambda c: c.grouped_mm_list([a], [])),
        "cpu_offs": (ValueError, "offs", mm(a, w, offs=offs.cpu())),
    }


def _conv(device: str) -> Bad:
    x, w = values((2, 16, 8, 8), HALF, device), values((24, 16, 3, 3), HALF, device)
    bias, residual = values((24,), HALF, device), values((2, 24, 6, 6), HALF, device)

    def conv(*given: Any, **more: Any) -> Callable[[Any], object]:
        return lambda cutwheel: cutwheel.conv2d(*given, **more)

    calls: Bad = {
        "rank_of_input": (ValueError, "input", conv(x[0, 0], w)),
        "rank_of_weight": (ValueError, "weight", conv(x, w[0])),
        "channels": (ValueError, "weight", conv(x, w[:, :5])),
        "empty_image": (ValueError, "input", conv(x[:, :, :0], w, padding=3)),
        "filter_does_not_fit": (ValueError, "filter", conv(x[:, :, :2], w)),
        "dilated_filter_does_not_fit": (ValueError, "filter", conv(x, w, dilation=(1, 4))),
        "bias_extent": (ValueError, "bias", conv(x, w, bias[:5])),
        "bias_rank": (ValueError, "bias", conv(x, w, bias[None])),
        "dtype_of_weight": (TypeError, "weight", conv(x, w.bfloat16())),
        "dtype_of_bias": (TypeError, "bias", conv(x, w, bias.float())),
        "dtype_of_residual": (TypeError, "residual", conv(x, w, residual=residual.float())),
        "shape_of_residual": (ValueError, "residual", conv(x, w, residual=residual[:1])),
        "no_stride": (ValueError, "stride", conv(x, w, stride=0)),
        "number_of_strides": (ValueError, "stride", conv(x, w, stride=(1, 2, 1))),
        "negative_padding": (ValueError, "padding", conv(x, w, padding=-1)),
        "name_of_padding": (ValueError, "padding", conv(x, w, padding="full")),
        "same_with_a_stride": (ValueError, "padding", conv(x, w, None, 2, "same")),
        "no_dilation": (ValueError, "dilation", conv(x, w, dilation=0)),
        "activation": (ValueError, "activation", conv(x, w, activation="rely")),
        "not_a_tensor": (TypeError, "weight", conv(x, [[1.0]])),
    }
    calls |= {
        "cpu_tensors": (NotImplementedError, "CPU", conv(x.cpu(), w.cpu())),
        "cpu_weight": (ValueError, "weight", conv(x, w.cpu())),
        "cpu_bias": (ValueError, "bias", conv(x, w, bias.cpu())),
        "cpu_residual": (ValueError, "residual", conv(x, w, residual=residual.cpu())),
    }
    return calls


def _scaled_conv(device: str) -> Bad:
    x = torch.ones(2, 16, 6, 6, dtype=INT8, device=device)
    w = torch.ones(8, 16, 3, 3, dtype=INT8, device=device)
    one, many = torch.ones(1, device=device), torch.ones(8, device=device)
    bias = torch.ones(8, dtype=BRAIN, device=device)
    eight: dict[str, Any] = {"out_dtype": INT8, "scale_result": one}

    def conv(*given: Any, **more: Any) -> Callable[[Any], object]:
        return lambda cutwheel: cutwheel.scaled_conv2d(*given, **more)

    return {
        "float_input": (TypeError, "input", conv(x.half(), w.half(), one, one)),
        "dtype_of_weight": (TypeError, "weight", conv(x, w.view(torch.uint8).half(), one, one)),
        "scales_of_input": (ValueError, "scale_input", conv(x, w, many, one)),
        "scales_of_weight": (ValueError, "scale_weight", conv(x, w, one, many[:5])),
        "dtype_of_scales": (TypeError, "scale_weight", conv(x, w, one, many.half())),
        "bias_extent": (ValueError, "bias", conv(x, w, one, many, bias[:5])),
        "dtype_of_bias": (TypeError, "bias", conv(x, w, one, many, bias.half())),
        "out_dtype": (TypeError, "out_dtype", conv(x, w, one, one, out_dtype=torch.int32)),
        "no_scale": (ValueError, "scale_result", conv(x, w, one, one, out_dtype=INT8)),
        "extent_of_residual": (
            ValueError,
            "residual",
            conv(x, w, one, one, **eight, residual=x[:, :8, :4, :3], scale_residual=one),
        ),
        "cpu_residual": (
            ValueError,
            "residual",
            conv(x, w, one, one, **eight, residual=x[:, :8, :4, :4].cpu(), scale_residual=one),
        ),
        "cpu_scale": (
            ValueError,
            "scale_result",
            conv(x, w, one, one, out_dtype=INT8, scale_result=one.cpu()),
        ),
        "channels": (ValueError, "weight", conv(x, w[:, :5], one, one)),
        "stride": (ValueError, "stride", conv(x, w, one, one, stride=0)),
        "needs_grad": (RuntimeError, "bias", conv(x, w, one, one, bias.clone().requires_grad_())),
    }


# The op of op_calls.py that has to work after the error: what it refuses.
REFUSED: dict[str, Callable[[str], Bad]] = {
    "gemm": _gemm,
    "grouped_mm-rows": _grouped,
    "conv2d-channels_last": _conv,
    "scaled_conv2d-int8": _scaled_conv,
}


@pytest.mark.parametrize(
    ("op", "name"),
    [
        pytest.param(op, name, id=f"{op.split('-')[0]}-{name}")
        for op, bad in REFUSED.items()
        for name in bad("cpu")
    ],
)
def test_bad_input(
    cutwheel: ModuleType, device: str, op: str, name: str, check_class: Callable[..., None]
) -> None:
    if device == "cpu" and name.startswith("cpu_"):
        pytest.skip("needs CUDA tensors")
    error, argument, call = REFUSED[op](device)[name]
    with pytest.raises(error, match=argument) as raised:
        call(cutwheel)
    check_class(raised.value, error)
    assert "Error: " not in str(raised.value), "the class prefix is not for people"
    # The context is alive, and nothing of the failed call is left.
    for good in itertools.islice(OPS[op].calls(cutwheel, device, (HALF,), 0), 2):
        good.judge(good())
