"""The classes of errors: those that the reference names, and those of torch's own functions."""

from __future__ import annotations

import builtins
import functools
import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from refusals import places

BRAIN, SINGLE, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
Make = Callable[..., torch.Tensor]


def on_meta(*shape: int, dtype: torch.dtype = BRAIN, device: str = "meta") -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def on_cpu(*shape: int, dtype: torch.dtype = BRAIN) -> torch.Tensor:
    return torch.ones(shape).to(dtype)


def torchs(name: str) -> Callable[..., Any]:
    found = getattr(F, name, None) or getattr(torch, name, None)
    if found is None:
        pytest.skip(f"this torch has no {name}")
    return found  # type: ignore[no-any-return]


def misuses(make: Make) -> dict[str, tuple[str, str, tuple[Any, ...], dict[str, Any]]]:
    """name -> (documented class, function, arguments): what torch's namesake refuses, too."""
    a, b, c = make(4, 8), make(8, 6), make(6)
    double = make(8, 6, dtype=torch.float64)
    x, w = make(2, 3, 8, 8), make(4, 3, 3, 3)
    offs, groups = make(2, dtype=torch.int32), make(2, 8, 6)
    grad = make(4, 6).requires_grad_()
    calls: dict[str, tuple[str, str, tuple[Any, ...], dict[str, Any]]] = {
        "mm_shape": ("ShapeError", "mm", (a, a), {}),
        "mm_rank": ("ShapeError", "mm", (a[0], b), {}),
        "mm_dtype": ("DtypeError", "mm", (a, double), {}),
        "mm_number": ("TypeError", "mm", (a, 3), {}),
        "mm_none": ("TypeError", "mm", (a, None), {}),
        "mm_out_dtype": ("DtypeError", "mm", (a, b), {"out": make(4, 6, dtype=torch.float64)}),
        "mm_out_overlaps": ("ArgumentError", "mm", (a, b), {"out": make(4, 1).expand(4, 6)}),
        "mm_out_grad": ("RuntimeError", "mm", (a, b), {"out": grad}),
        "bmm_shape": ("ShapeError", "bmm", (a[None], a[None]), {}),
        "bmm_batch": ("ShapeError", "bmm", (a[None], b.expand(2, 8, 6)), {}),
        "bmm_dtype": ("DtypeError", "bmm", (a[None], double[None]), {}),
        "bmm_number": ("TypeError", "bmm", (a[None], 1), {}),
        "addmm_shape": ("ShapeError", "addmm", (c, a, a), {}),
        "addmm_addend": ("ShapeError", "addmm", (c[:5], a, b), {}),
        "addmm_dtype": ("DtypeError", "addmm", (c.double(), a, b), {}),
        "addmm_alpha": ("TypeError", "addmm", (c, a, b), {"alpha": "2"}),
        "addmm_complex": ("DtypeError", "addmm", (c, a, b), {"alpha": 1j}),
        "matmul_shape": ("ShapeError", "matmul", (a, a), {}),
        "matmul_rank": ("ShapeError", "matmul", (a, a[0, 0]), {}),
        "matmul_batch": ("ShapeError", "matmul", (make(2, 3, 4, 5), make(3, 3, 5, 4)), {}),
        "linear_shape": ("ShapeError", "linear", (a, b), {}),
        "linear_dtype": ("DtypeError", "linear", (a, a.double()), {}),
        "linear_bias": ("ShapeError", "linear", (a, a, c[:3]), {}),
        "linear_bias_dtype": ("DtypeError", "linear", (a, a, make(4).double()), {}),
        "linear_text": ("TypeError", "linear", (a, "x"), {}),
        "linear_0d": ("ShapeError", "linear", (a[0, 0], a), {}),
        "conv_channels": ("ShapeError", "conv2d", (x, make(4, 2, 3, 3)), {}),
        "conv_rank": ("ShapeError", "conv2d", (x[0, 0], w), {}),
        "conv_dtype": ("DtypeError", "conv2d", (x, w.double()), {}),
        "conv_bias": ("ShapeError", "conv2d", (x, w, make(5)), {}),
        "conv_does_not_fit": ("ShapeError", "conv2d", (x, make(4, 3, 9, 9)), {}),
        "conv_stride": ("ArgumentError", "conv2d", (x, w), {"stride": 0}),
        "conv_strides": ("ArgumentError", "conv2d", (x, w), {"stride": (1, 1, 1)}),
        "conv_stride_text": ("TypeError", "conv2d", (x, w), {"stride": "a"}),
        "conv_stride_float": ("TypeError", "conv2d", (x, w), {"stride": 1.0}),
        "conv_padding": ("ArgumentError", "conv2d", (x, w), {"padding": "most"}),
        "conv_same": ("ArgumentError", "conv2d", (x, w), {"padding": "same", "stride": 2}),
        "conv_number": ("TypeError", "conv2d", (x, 1), {}),
        "grouped_shape": ("ShapeError", "grouped_mm", (a, groups.mT), {"offs": offs}),
        "grouped_rank": ("ShapeError", "grouped_mm", (a[0], groups), {"offs": offs}),
        "grouped_dtype": ("DtypeError", "grouped_mm", (a, groups.double()), {"offs": offs}),
        "grouped_no_offs": ("ArgumentError", "grouped_mm", (a, groups), {}),
        "grouped_list": ("TypeError", "grouped_mm", (a, groups), {"offs": [2, 4]}),
    }
    if hasattr(F, "scaled_mm"):
        p, q = make(16, 32, dtype=E4M3), make(16, 32, dtype=E4M3).t()
        one = make(1, dtype=SINGLE)
        kind, row = F.ScalingType.TensorWise, F.ScalingType.RowWise
        few = make(3, 1, dtype=SINGLE)
        calls |= {
            "scaled_shape": ("ShapeError", "scaled_mm", (p, p, one, kind, one, kind), {}),
            "scaled_dtype": ("ScaledDtypeError", "scaled_mm", (a, b, one, kind, one, kind), {}),
            "scaled_scale": ("ShapeError", "scaled_mm", (p, q, few, row, one, kind), {}),
            "scaled_scale_dtype": (
                *("ScaledDtypeError", "scaled_mm"),
                *((p, q, one.double(), kind, one, kind), {}),
            ),
            "scaled_none": ("ArgumentError", "scaled_mm", (p, q, None, kind, one, kind), {}),
        }
    return calls


ONLY_LIBRARY = (
    *("mm_dtype", "mm_out_dtype", "mm_out_overlaps", "bmm_dtype", "addmm_dtype", "linear_dtype"),
    *("linear_bias", "linear_bias_dtype", "conv_dtype", "conv_bias", "grouped_dtype"),
    *(
        ("scaled_dtype", "scaled_scale", "scaled_scale_dtype", "scaled_none")
        if hasattr(F, "scaled_mm")
        else ()
    ),
)


@pytest.mark.parametrize(("name", "where"), places(misuses(on_cpu), ONLY_LIBRARY))
def test_torchs_class_is_among_the_bases(cutwheel: ModuleType, name: str, where: str) -> None:
    make = functools.partial(on_meta, device=where)
    documented, function, given, options = misuses(make)[name]
    wanted = getattr(cutwheel.errors, documented, None) or getattr(builtins, documented)
    with pytest.raises(wanted) as ours:
        getattr(cutwheel, function)(*given, **options)
    assert type(ours.value) is wanted
    if name == "scaled_none":
        return  # torch's own ends the process (torch 2.11)
    if function == "scaled_mm" and cutwheel._library.release_of(torch.__version__) < (2, 11):
        return  # torch's own refuses all CPU tensors
    # torch's scaled_mm is one of GPUs: with CPU tensors it says that and nothing else.
    theirs_on = on_cpu if where == "meta" or function != "scaled_mm" else make
    _, _, given, options = misuses(theirs_on)[name]
    with pytest.raises((RuntimeError, TypeError, ValueError)) as theirs:
        torchs(function)(*given, **options)
    assert not isinstance(theirs.value, NotImplementedError), "of the CPU, not of the misuse"
    assert isinstance(ours.value, type(theirs.value)), f"torch: {theirs.value}"


def test_classes(cutwheel: ModuleType) -> None:
    errors = cutwheel.errors
    documented = {
        "ArgumentError": (ValueError, RuntimeError),
        "ShapeError": (ValueError, RuntimeError, errors.ArgumentError),
        "DeviceError": (ValueError, RuntimeError, errors.ArgumentError),
        "DtypeError": (TypeError, RuntimeError),
        "ScaledDtypeError": (TypeError, RuntimeError, ValueError, errors.DtypeError),
    }
    assert sorted(documented) == sorted(errors.__all__)
    for name, bases in documented.items():
        kind = getattr(errors, name)
        assert kind.__doc__
        assert all(issubclass(kind, base) for base in bases)
        assert not issubclass(errors.ShapeError, TypeError)
        again = pickle.loads(pickle.dumps(kind("mm: text")))
        assert type(again) is kind
        assert str(again) == "mm: text"


@pytest.mark.parametrize("thrown", ["Shape", "Device", "Value", "Type", "Runtime"])
def test_the_library_names_the_class(cutwheel: ModuleType, thrown: str) -> None:
    from cutwheel.ops._common.errors import reraise

    errors = cutwheel.errors
    kinds: dict[str, type[Exception]] = {
        "Shape": errors.ShapeError,
        "Device": errors.DeviceError,
        "Value": errors.ArgumentError,
        "Type": errors.DtypeError,
        "Runtime": RuntimeError,
    }
    text = f"cutwheel.{thrown}Error: mm: mat2 is not as it should be\nException raised from mm at"
    with pytest.raises(kinds[thrown]) as raised:
        reraise("mm", RuntimeError(text))
    assert type(raised.value) is kinds[thrown]
    assert str(raised.value) == "mm: mat2 is not as it should be"
    of_scaled = errors.ScaledDtypeError if thrown == "Type" else kinds[thrown]
    with pytest.raises(of_scaled) as raised:
        reraise("scaled_mm", RuntimeError(text))
    assert type(raised.value) is of_scaled


def test_errors_of_what_is_made_of_other_ops(cutwheel: ModuleType) -> None:
    """Renamed, they keep their class."""
    errors = cutwheel.errors
    with pytest.raises(errors.ShapeError, match="grouped_mm_list: Bs"):
        cutwheel.grouped_mm_list([on_meta(4, 8)], [on_meta(4, 8)])
    with pytest.raises(errors.ShapeError, match="conv1d: weight"):
        cutwheel.conv1d(on_meta(2, 3, 8), on_meta(4, 2, 3))
    with pytest.raises(errors.DtypeError, match="grouped_linear: weight has dtype"):
        cutwheel.grouped_linear(
            on_meta(4, 8), on_meta(2, 6, 8).half(), offs=on_meta(2, dtype=torch.int32)
        )
    with pytest.raises(errors.DeviceError, match="up is on cpu and gate is on meta"):
        cutwheel.pack_gated_weight(on_meta(4, 8), on_cpu(4, 8))


def test_compiled_calls_raise_torchs_class(cutwheel: ModuleType) -> None:
    """As torch's own functions do there: RuntimeError, whose text has the class."""
    a = torch.empty(4, 8, device="meta", dtype=BRAIN)
    for call in (lambda: cutwheel.mm(a, a), lambda: cutwheel.linear(a, a.t())):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=r"ShapeError\('(mm|linear): "):
            torch.compile(call, backend="eager", fullgraph=True)()


def test_no_tensor_is_a_type_error(cutwheel: ModuleType) -> None:
    """The dispatcher takes None for a tensor, and the library says so: in torch's class."""
    from cutwheel.ops._common.errors import reraise

    said = RuntimeError("cutwheel.TypeError: conv2d: weight is None; expected a Tensor")
    with pytest.raises(TypeError, match="conv2d: weight is None; expected a") as raised:
        reraise("conv2d", said)
    assert type(raised.value) is TypeError
