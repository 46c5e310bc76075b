"""Calls that the grouped products refuse, and in which words."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from refusals import places
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, SINGLE, E4M3, E5M2 = torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
Make = Callable[..., torch.Tensor]


def on_meta(*shape: int, dtype: torch.dtype = HALF, device: str = "meta") -> torch.Tensor:
    grad = dtype.is_floating_point and dtype.itemsize > 1
    return torch.empty(shape, dtype=dtype, device=device, requires_grad=grad)


def bad_calls(make: Make) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    a, b, w, x = make(10, 6), make(3, 6, 8), make(3, 8, 6), make(6, 10)
    g, offs = make(10, 8), make(3, dtype=torch.int32)
    q, r = make(10, 6, dtype=E4M3), make(3, 6, 8, dtype=E4M3)
    ones = make(10, 1, dtype=SINGLE).detach(), make(3, 1, 8, dtype=SINGLE).detach()
    named = {"scale_a": ones[0], "scale_b": ones[1]}
    total = make(3, 6, 8, dtype=SINGLE).detach()
    mm, scaled = "grouped_mm: ", "scaled_grouped_mm: "
    calls: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
        "rank": (ValueError, mm + "mat_a has 1 dim", lambda w: w.grouped_mm(a[0], b, offs=offs)),
        "no_offs": (
            ValueError,
            mm + "offs is None, and mat_a has 2 dimensions; expected the end of each group",
            lambda w: w.grouped_mm(a, b),
        ),
        "offs_of_a_batch": (
            ValueError,
            mm + "offs is given, and mat_a and mat_b have 3 dimensions",
            lambda w: w.grouped_mm(make(3, 4, 6), b, offs=offs),
        ),
        "inner_rows": (
            ValueError,
            mm + r"mat_b has shape \[3, 8, 6\]; expected \[G, 6, N\] as mat_a has shape \[10, 6\]",
            lambda m: m.grouped_mm(a, w, offs=offs),
        ),
        "inner_k": (
            ValueError,
            mm + r"mat_b has shape \[10, 8\]; expected \[6, N\] as mat_a has shape \[10, 6\]",
            lambda w: w.grouped_mm(a, g, offs=offs),
        ),
        "inner_columns": (
            ValueError,
            mm + r"mat_b has shape \[10, 8\]; expected \[6, T\] as mat_a has shape \[3, 8, 6\]",
            lambda m: m.grouped_mm(w, g, offs=offs),
        ),
        "inner_batched": (
            ValueError,
            mm
            + r"mat_b has shape \[3, 6, 8\]; expected \[3, 8, N\] as mat_a has shape \[3, 6, 8\]",
            lambda w: w.grouped_mm(b, b),
        ),
        "dtype": (
            TypeError,
            mm + "mat_b has dtype float32; expected float16 as mat_a has",
            lambda w: w.grouped_mm(a, b.float(), offs=offs),
        ),
        "dtype_columns": (
            TypeError,
            mm + "mat_b has dtype float32; expected float16 as mat_a has",
            lambda m: m.grouped_mm(w, x.float(), offs=offs),
        ),
        "offs_dtype": (
            TypeError,
            mm + "offs has dtype float32; expected int32 or int64",
            lambda w: w.grouped_mm(a, b, offs=offs.float()),
        ),
        "offs_rank": (
            ValueError,
            mm + r"offs has 2 dimensions \(shape \[1, 3\]\)",
            lambda w: w.grouped_mm(a, b, offs=offs[None]),
        ),
        "offs_count": (
            ValueError,
            mm + r"offs has 2 elements; expected 3, one for each matrix of mat_b \(shape \[3, 6",
            lambda w: w.grouped_mm(a, b, offs=offs[:2]),
        ),
        "offs_count_columns": (
            ValueError,
            mm + r"offs has 2 elements; expected 3, one for each matrix of mat_a \(shape \[3, 8",
            lambda m: m.grouped_mm(w, x, offs=offs[:2]),
        ),
        "no_groups": (
            ValueError,
            mm + "offs has 0 elements, one for each group; expected 1 to 1024 groups",
            lambda w: w.grouped_mm(a.t(), g, offs=offs[:0]),
        ),
        "many_groups": (
            ValueError,
            mm + "offs has 1025 elements.*split the call",
            lambda w: w.grouped_mm(a.t(), g, offs=make(1025, dtype=torch.int32)),
        ),
        "offs_no_tensor": (
            TypeError,
            mm + "offs is of type list; expected a Tensor",
            lambda w: w.grouped_mm(a, b, offs=[1, 2, 3]),
        ),
        "a_none": (TypeError, mm + "mat_a is None", lambda w: w.grouped_mm(None, b, offs=offs)),
        "bias_k": (
            ValueError,
            mm + "bias is given, and the groups are along K",
            lambda w: w.grouped_mm(a.t(), g, offs=offs, bias=make(3, 8)),
        ),
        "out_dtype": (
            TypeError,
            mm + "out_dtype is bfloat16; expected float16 or float32",
            lambda w: w.grouped_mm(a, b, offs=offs, out_dtype=torch.bfloat16),
        ),
        "tf32": (
            RuntimeError,
            mm + "float32 operands are multiplied on TF32",
            lambda w: w.grouped_mm(a.float(), b.float(), offs=offs),
        ),
        "total_columns": (
            ValueError,
            mm + "accumulate_into is given, and mat_a has 3 dimensions",
            lambda m: m.grouped_mm(w, x, offs=offs, accumulate_into=total),
        ),
        "total_dtype": (
            TypeError,
            mm + "accumulate_into has dtype float16; expected float32",
            lambda w: w.grouped_mm(a, b, offs=offs, accumulate_into=total.half()),
        ),
        "total_shape": (
            ValueError,
            mm + r"accumulate_into has shape \[2, 6, 8\]; expected \[3, 6, 8\]",
            lambda w: w.grouped_mm(a, b, offs=offs, accumulate_into=total[:2]),
        ),
        "total_strides": (
            ValueError,
            mm + "accumulate_into has strides",
            lambda w: w.grouped_mm(a, b, offs=offs, accumulate_into=total[:1].expand(3, 6, 8)),
        ),
        "list": (
            ValueError,
            r"grouped_mm_list: Bs has 1 elements; expected 2 as As has",
            lambda w: w.grouped_mm_list([a, a], [x]),
        ),
        "list_shape": (
            ValueError,
            r"grouped_mm_list: Bs\[1\] has shape \[10, 8\]; expected \[6, N\] as As\[1\] has",
            lambda w: w.grouped_mm_list([a, a], [x, g]),
        ),
        "gated_activation": (
            ValueError,
            "grouped_gated_linear: activation is 'tanh'; expected one of relu, gelu,",
            lambda m: m.grouped_gated_linear(a, w, offs=offs, activation="tanh"),
        ),
        "gated_odd": (
            ValueError,
            "grouped_gated_linear: .*even",
            lambda m: m.grouped_gated_linear(a, w[:, :7], offs=offs),
        ),
        "linear_weight": (
            ValueError,
            r"grouped_linear: weight has shape \[3, 6, 8\]; expected \[G, N, 6\]",
            lambda w: w.grouped_linear(a, b, offs=offs),
        ),
        "linear_bias": (
            ValueError,
            r"grouped_linear: bias has shape \[3, 6\]; expected \[3, 8\], a row for each group",
            lambda m: m.grouped_linear(a, w, offs=offs, bias=make(3, 6)),
        ),
        "linear_none": (
            TypeError,
            "grouped_linear: weight is None",
            lambda w: w.grouped_linear(a, None, offs=offs, activation="gelu"),
        ),
        "scaled_dtype": (
            TypeError,
            scaled + "mat_a has dtype float16; expected float8_e4m3fn or float8_e5m2",
            lambda w: w.scaled_grouped_mm(a.detach(), r, **named, offs=offs),
        ),
        "scaled_e5m2": (
            TypeError,
            scaled + "mat_a and mat_b have dtype float8_e5m2",
            lambda w: w.scaled_grouped_mm(q.to(E5M2), r.to(E5M2), **named, offs=offs),
        ),
        "scaled_scales": (
            ValueError,
            scaled + r"scale_a has shape \[1\] and scale_b has shape \[3, 1, 8\] where T=10",
            lambda w: w.scaled_grouped_mm(q, r, ones[0][0], scale_b=ones[1], offs=offs),
        ),
        "scaled_out_dtype": (
            TypeError,
            scaled + "output_dtype is float64; expected float16, bfloat16 or float32",
            lambda w: w.scaled_grouped_mm(q, r, **named, offs=offs, output_dtype=torch.float64),
        ),
    }
    few, wide = make(2, 8), make(3, 8, dtype=SINGLE)
    for name, call in {
        "rows": lambda w, bias: w.grouped_mm(a, b, offs=offs, bias=bias),
        "columns": lambda m, bias: m.grouped_mm(w, x, offs=offs, bias=bias),
        "batched": lambda w, bias: w.grouped_mm(make(3, 4, 6), b, bias=bias),
    }.items():
        calls[f"bias_shape_{name}"] = (
            ValueError,
            mm + r"bias has shape \[2, 8\]; expected \[3, 8\], a row for each group",
            lambda w, call=call: call(w, few),
        )
        calls[f"bias_dtype_{name}"] = (
            TypeError,
            mm + "bias has dtype float32; expected float16",
            lambda w, call=call: call(w, wide),
        )
    return calls


ONLY_LIBRARY = (
    *("dtype", "offs_dtype", "offs_rank", "offs_count", "no_groups", "many_groups", "bias_k"),
    *("out_dtype", "tf32", "gated_odd", "linear_bias", "scaled_dtype", "scaled_e5m2"),
    *("scaled_scales", "scaled_out_dtype", "bias_shape_rows", "bias_dtype_rows"),
    *("bias_dtype_columns", "bias_dtype_batched"),
)


@pytest.mark.parametrize(("name", "where"), places(bad_calls(on_meta), ONLY_LIBRARY))
@pytest.mark.parametrize("with_grad", [False, True])
def test_bad_input(
    cutwheel: ModuleType, name: str, where: str, with_grad: bool, check_class: Callable[..., None]
) -> None:
    error, message, call = bad_calls(functools.partial(on_meta, device=where))[name]
    with torch.set_grad_enabled(with_grad), pytest.raises(error, match=message) as raised:
        call(cutwheel)
    check_class(raised.value, error)


def test_other_devices(cutwheel: ModuleType) -> None:
    with FakeTensorMode():
        a, b = torch.empty(10, 6, device="cuda"), torch.empty(3, 6, 8, device="cuda")
        here = [torch.empty(tensor.shape, device="cpu") for tensor in (a, b)]
        offs = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(ValueError, match="grouped_mm: offs is on cpu and mat_a is on cuda"):
        cutwheel.grouped_mm(a, b, offs=offs)
    with pytest.raises(NotImplementedError, match="grouped_mm: the tensors are on the CPU"):
        cutwheel.grouped_mm(*here, offs=offs)


def test_accumulation_refuses_gradients(cutwheel: ModuleType) -> None:
    a, g, offs = on_meta(6, 10), on_meta(10, 8), on_meta(3, dtype=torch.int32)
    total = on_meta(3, 6, 8, dtype=SINGLE)
    with pytest.raises(RuntimeError, match="grouped_mm: mat_a requires grad, and accumulate_into="):
        cutwheel.grouped_mm(a, g, offs=offs, accumulate_into=total)
    with pytest.raises(RuntimeError, match="grouped_mm: accumulate_into requires grad"):
        cutwheel.grouped_mm(a.detach(), g.detach(), offs=offs, accumulate_into=total)
    with torch.no_grad():
        cutwheel.grouped_mm(a, g, offs=offs, accumulate_into=total)


def test_explain_says_what_torch_computes(
    cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cutwheel.ops.grouped import _linear as layers

    asked: list[tuple[Any, ...]] = []

    def answer(*args: Any) -> str:
        asked.append(args)
        return '{"plans": [{"row": "grouped_mm_x"}]}'

    monkeypatch.setattr(torch.ops.cutwheel, "_explain", answer)
    a, w, offs = on_meta(10, 6).detach(), on_meta(3, 8, 6), on_meta(3, dtype=torch.int32)
    for is_served in (True, False):
        monkeypatch.setattr(layers, "is_served", lambda *_: is_served)  # noqa: B023
        for op, options, after in (
            ("grouped_linear", {}, None),
            ("grouped_linear", {"activation": "gelu"}, "torch: gelu"),
            ("grouped_gated_linear", {}, "torch: gated_silu"),
        ):
            told = cutwheel.explain(op, a, w, offs=offs, **options)
            assert told.parameters.get("afterwards") == (None if is_served else after)
            product = after is None or not is_served
            assert (asked.pop()[0] == "grouped_mm") == product


def test_explain_asks_the_library(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def answer(*args: Any) -> str:
        asked.append(args)
        return '{"plans": [{"row": "grouped_mm_x"}], "request": {"m": 5}}'

    monkeypatch.setattr(torch.ops.cutwheel, "_explain", answer)
    a, b, x, g = (on_meta(*s).detach() for s in ((10, 6), (3, 6, 8), (6, 10), (10, 8)))
    offs, bias = on_meta(3, dtype=torch.int32), on_meta(3, 8).detach()
    w, total = b.mT.contiguous(), on_meta(3, 6, 8, dtype=SINGLE).detach()
    named = {"scale_a": on_meta(10, dtype=SINGLE), "scale_b": on_meta(3, 8, dtype=SINGLE)}

    def shapes(op: Any, *args: Any, **kwargs: Any) -> tuple[str, list[Any], str]:
        assert cutwheel.explain(op, *args, **kwargs).row == "grouped_mm_x"
        name, operands, *rest = asked.pop()
        return name, [t if t is None else tuple(t.shape) for t in operands], rest[3]

    ends, rows = {"offs": offs}, [(10, 6), (3, 6, 8), (3,)]
    assert shapes("grouped_mm", a, b, **ends) == ("grouped_mm", [*rows, None], "")
    assert shapes(cutwheel.grouped_mm, a, b, **ends, bias=bias)[1] == [*rows, (3, 8)]
    assert shapes("grouped_mm", w, x, **ends)[1] == [*rows, None]
    assert shapes("grouped_mm", x, g, **ends)[1] == [(6, 10), (10, 8), (3,), None]
    assert shapes("grouped_mm", on_meta(3, 4, 6), b)[0] == "bmm"
    assert shapes("grouped_mm", on_meta(3, 4, 6), b, bias=bias)[0] == "baddbmm"
    added = [(6, 10), (10, 8), (3,), (3, 6, 8)]
    assert shapes("grouped_mm", x, g, **ends, accumulate_into=total) == (
        "grouped_mm_accumulate",
        added,
        "",
    )
    swapped = total.mT.contiguous().mT
    assert shapes("grouped_mm", x, g, **ends, accumulate_into=swapped)[1][3] == (3, 8, 6)
    layer = [(10, 6), (3, 8, 6), (3,), None]
    assert shapes("grouped_linear", a, w, **ends) == ("grouped_mm", [*rows, None], "")
    assert shapes("grouped_linear", a, w, **ends, activation="gelu") == (
        "grouped_linear_fused",
        layer,
        "bias_gelu",
    )
    assert shapes("grouped_gated_linear", a, w, **ends, interleaved=True) == (
        "grouped_linear_fused",
        layer,
        "gated_silu",
    )
    pair = [(10, 6), (3, 4, 6), (3,), None, (3, 4, 6)]
    for given in (w.chunk(2, 1), w):
        found = shapes("grouped_gated_linear", a, given, **ends)
        assert found == ("grouped_linear_fused", pair, "gated_silu")
    with pytest.raises(TypeError, match="up is no argument of grouped_gated_linear"):
        cutwheel.explain("grouped_gated_linear", a, w, **ends, up=w)
    trained = w.detach().requires_grad_()
    assert shapes("grouped_gated_linear", a, trained, **ends)[2] == "gated_silu_aux"
    assert shapes("grouped_linear", a, trained, **ends, activation="relu")[2] == "bias_relu"
    name, given, _ = shapes("scaled_grouped_mm", a, b, **named, **ends, use_fast_accum=True)
    assert (name, given) == ("scaled_grouped_mm", [(10, 6), (3, 6, 8), (10,), (3, 8), (3,), None])
    with pytest.raises(ValueError, match="grouped_mm: offs is None"):
        cutwheel.explain("grouped_mm", a, b)
    with pytest.raises(TypeError, match="grouped_linear: offs is None"):
        cutwheel.explain("grouped_linear", a, w)
    with pytest.raises(TypeError, match="explain: beta is no argument of grouped_mm"):
        cutwheel.explain("grouped_mm", a, b, offs=offs, beta=1)
