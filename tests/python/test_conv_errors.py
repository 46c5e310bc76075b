"""Calls that the convolutions refuse, and in which words; and what explain asks and says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from refusals import places
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, SINGLE, E4M3 = torch.float16, torch.float32, torch.float8_e4m3fn
Call = Callable[[Any], object]


def on_meta(*shape: int, dtype: torch.dtype = HALF, device: str = "meta") -> torch.Tensor:
    grad = dtype.is_floating_point and dtype.itemsize > 1
    return torch.empty(shape, dtype=dtype, device=device, requires_grad=grad)


def bad_calls(device: str = "meta") -> dict[str, tuple[type[Exception], str, Call]]:
    meta = functools.partial(on_meta, device=device)
    x, w, b, r = meta(2, 6, 8, 9), meta(4, 6, 3, 3), meta(4), meta(2, 4, 6, 7)
    q, v = meta(2, 6, 8, 9, dtype=E4M3), meta(4, 6, 3, 3, dtype=E4M3)
    one, few = meta(1, dtype=SINGLE).detach(), meta(3, dtype=SINGLE).detach()
    r8 = meta(2, 4, 6, 7, dtype=E4M3)
    eight = {"out_dtype": E4M3, "scale_result": one, "residual": r8, "scale_residual": one}
    conv, scaled = "conv2d: ", "scaled_conv2d: "
    grads = torch.ops.cutwheel
    where = 1, 1, 0, 0, 0, 0, 1, 1
    calls: dict[str, tuple[type[Exception], str, Call]] = {
        "rank": (
            ValueError,
            conv + r"input has 2 dimensions \(shape \[8, 9\]\); expected \[N, C, H, W\] or \[C, H",
            lambda m: m.conv2d(x[0, 0], w),
        ),
        "weight_rank": (
            ValueError,
            conv + r"weight has 3 dimensions \(shape \[6, 3, 3\]\); expected 4",
            lambda m: m.conv2d(x, w[0], padding="same"),
        ),
        "channels": (
            ValueError,
            conv + r"weight has shape \[4, 5, 3, 3\] and input has 6 channels; expected a weight "
            r"\[Ko, 6, R, S\]$",
            lambda m: m.conv2d(x, w[:, :5]),
        ),
        "groups_left_out": (
            ValueError,
            conv + r"weight has shape .* for 2 groups say so: groups=2",
            lambda m: m.conv2d(x, w[:, :3]),
        ),
        "dtype": (
            TypeError,
            conv + "weight has dtype float32; expected float16 as input has",
            lambda m: m.conv2d(x, w.float()),
        ),
        "bool": (
            TypeError,
            conv + "input has dtype bool; expected float16, bfloat16, float32, float64 or a "
            "complex dtype$",
            lambda m: m.conv2d(x.detach().bool(), w.detach().bool()),
        ),
        "bool_in_groups": (
            TypeError,
            conv + "input has dtype bool",
            lambda m: m.conv2d(x.detach().bool(), w[:, :3].detach().bool(), groups=2),
        ),
        "bool_signal": (
            TypeError,
            "conv1d: input has dtype bool",
            lambda m: m.conv1d(x[:, :, 0].detach().bool(), w[..., 0].detach().bool()),
        ),
        "bool_volume": (
            TypeError,
            "conv3d: input has dtype bool",
            lambda m: m.conv3d(meta(2, 6, 5, 8, 9).bool(), meta(4, 6, 2, 3, 3).bool()),
        ),
        "fp8": (
            TypeError,
            conv + "input has dtype float8_e4m3fn; .*scaled_conv2d",
            lambda m: m.conv2d(q, v),
        ),
        "bias_dtype": (
            TypeError,
            conv + "bias has dtype float32; expected float16",
            lambda m: m.conv2d(x, w, b.float()),
        ),
        "bias_shape": (
            ValueError,
            conv + r"bias has shape \[6\]; expected \[4\]",
            lambda m: m.conv2d(x, w, meta(6)),
        ),
        "does_not_fit": (
            ValueError,
            conv + r"along W the filter spans 11 pixels \(3 taps, dilation 5\) and the input has 9 "
            r"with its padding \(0 \+ 9 \+ 0\); expected a filter that fits",
            lambda m: m.conv2d(x, w, dilation=(1, 5)),
        ),
        "empty": (
            ValueError,
            conv + r"input has shape \[2, 0, 8, 9\]; expected no 0 but that of an empty batch",
            lambda m: m.conv2d(x[:, :0], w[:, :0]),
        ),
        "stride": (
            ValueError,
            conv + r"stride is \[0, 1\]; expected 2 integers from 1 on: along H and W",
            lambda m: m.conv2d(x, w, stride=(0, 1)),
        ),
        "padding": (
            ValueError,
            conv + r"padding is \[-1, -1, 0, 0\]; expected 4 integers from 0 on: top, bottom",
            lambda m: m.conv2d(x, w, padding=(-1, 0)),
        ),
        "three_numbers": (
            ValueError,
            conv + r"dilation is \(1, 1, 1\); expected a number, or 2 of them",
            lambda m: m.conv2d(x, w, dilation=(1, 1, 1)),
        ),
        "no_number": (
            TypeError,
            conv + r"stride is 1.5; expected a number, or one for each dimension",
            lambda m: m.conv2d(x, w, stride=1.5),
        ),
        "padding_name": (
            ValueError,
            conv + "padding is 'full'; expected 'same', 'valid', a number, or a number or two",
            lambda m: m.conv2d(x, w, padding="full"),
        ),
        "same_strided": (
            ValueError,
            conv + r"padding is 'same' and stride is \(2, 2\); expected a stride of 1",
            lambda m: m.conv2d(x, w, stride=2, padding="same"),
        ),
        "activation": (
            ValueError,
            conv + "activation is 'swish'; expected one of relu, gelu, gelu_tanh, silu, sigmoid",
            lambda m: m.conv2d(x, w, activation="swish"),
        ),
        "no_tensor": (TypeError, conv + "weight is None", lambda m: m.conv2d(x, None)),
        "signal_rank": (
            ValueError,
            r"conv1d: input has 4 dimensions .* expected \[N, C, L\] or \[C, L\]",
            lambda m: m.conv1d(x, w),
        ),
        "signal_name": (
            TypeError,
            "conv1d: weight has dtype float32; expected float16",
            lambda m: m.conv1d(x[0], w[0].float()),
        ),
        "volume_rank": (
            ValueError,
            r"conv3d: weight has 4 dimensions .* expected \[Ko, C, T, R, S\]",
            lambda m: m.conv3d(x.unsqueeze(2), w),
        ),
        "volume_residual": (
            ValueError,
            r"conv3d: residual has shape \[2, 4, 2, 6, 7\]; expected \[2, 4, 1, P, Q\]",
            lambda m: m.conv3d(x.unsqueeze(2), w.unsqueeze(2), residual=meta(2, 4, 2, 6, 7)),
        ),
        "scaled_dtype": (
            TypeError,
            scaled + r"input has dtype float16; expected float8_e4m3fn or int8 \(cutwheel.quantize",
            lambda m: m.scaled_conv2d(x.detach(), w.detach(), one, one),
        ),
        "scaled_mixed": (
            TypeError,
            scaled + "weight has dtype int8; expected float8_e4m3fn as input has",
            lambda m: m.scaled_conv2d(q, v.to(torch.int8), one, one),
        ),
        "scale": (
            ValueError,
            scaled + r"scale_input has shape \[3\]; expected one element$",
            lambda m: m.scaled_conv2d(q, v, few, one),
        ),
        "scale_weight": (
            ValueError,
            scaled + r"scale_weight has shape \[3\]; expected one element or \[4\], one for each",
            lambda m: m.scaled_conv2d(q, v, one, few),
        ),
        "scaled_bias": (
            TypeError,
            scaled + "bias has dtype float16; expected bfloat16, the dtype of the result, or float",
            lambda m: m.scaled_conv2d(q, v, one, one, b.detach()),
        ),
        "scaled_out_dtype": (
            TypeError,
            scaled + "out_dtype is int32; expected float16, bfloat16, float32 or float8",
            lambda m: m.scaled_conv2d(q, v, one, one, out_dtype=torch.int32),
        ),
        "scaled_out_dtype_of_8_bits": (
            TypeError,
            scaled + "out_dtype is int8; expected float16, bfloat16, float32 or float8",
            lambda m: m.scaled_conv2d(q, v, one, one, out_dtype=torch.int8, scale_result=one),
        ),
        "scale_result_is_missing": (
            ValueError,
            scaled + "out_dtype is float8_e4m3fn and scale_result is None; expected .*448",
            lambda m: m.scaled_conv2d(q, v, one, one, out_dtype=E4M3),
        ),
        "scale_result_of_16_bits": (
            ValueError,
            scaled + "scale_result is given and out_dtype is bfloat16; expected None, or ",
            lambda m: m.scaled_conv2d(q, v, one, one, scale_result=one),
        ),
        "scale_result": (
            ValueError,
            scaled + r"scale_result has shape \[3\]; expected one element$",
            lambda m: m.scaled_conv2d(q, v, one, one, out_dtype=E4M3, scale_result=few),
        ),
        "scaled_residual_of_16_bits": (
            ValueError,
            scaled + "residual is given and out_dtype is bfloat16; expected out_dtype float8",
            lambda m: m.scaled_conv2d(q, v, one, one, residual=r8, scale_residual=one),
        ),
        "scaled_residual_shape": (
            ValueError,
            scaled + r"residual has shape \[2, 4, 6, 6\]; expected \[2, 4, 6, 7\], the shape",
            lambda m: m.scaled_conv2d(q, v, one, one, **{**eight, "residual": r8[..., :6]}),
        ),
        "scaled_residual_dtype": (
            TypeError,
            scaled + "residual has dtype float16; expected float8_e4m3fn",
            lambda m: m.scaled_conv2d(q, v, one, one, **{**eight, "residual": r8.half()}),
        ),
        "scale_residual_is_missing": (
            ValueError,
            scaled + "scale_residual is None and residual is given; expected both or neither",
            lambda m: m.scaled_conv2d(q, v, one, one, **{**eight, "scale_residual": None}),
        ),
        "scaled_silu_and_residual": (
            ValueError,
            scaled + 'activation is "silu" and residual is given; expected relu or no activation',
            lambda m: m.scaled_conv2d(q, v, one, one, **eight, activation="silu"),
        ),
        "scaled_activation": (
            ValueError,
            scaled + "activation is 'gelu'; expected one of relu, silu",
            lambda m: m.scaled_conv2d(q, v, one, one, activation="gelu"),
        ),
        "grad_output": (
            RuntimeError,
            r"conv2d_input_grad: grad_output has shape \[2, 4, 6, 7\]; expected \[2, 4, 6, 8\], "
            r"the shape of the result for an input \[2, 6, 8, 10\] and a weight",
            lambda m: grads.conv2d_input_grad(r, w, 8, 10, *where),
        ),
        "epilogue": (
            RuntimeError,
            'conv2d: epilogue "gated_silu" changes the number of columns; expected one that',
            lambda m: grads.conv2d_fused(x, w, b, None, *where, "gated_silu"),
        ),
        "stores": (
            RuntimeError,
            'conv2d: epilogue "bias_gelu_aux" stores 1 tensors besides the result; conv2d_fused '
            "takes one that stores none, conv2d_fused_aux one that stores one",
            lambda m: grads.conv2d_fused(x, w, b, None, *where, "bias_gelu_aux"),
        ),
        "no_stores": (
            RuntimeError,
            'conv2d: epilogue "bias_gelu" stores 0 tensors besides the result',
            lambda m: grads.conv2d_fused_aux(x, w, b, None, *where, "bias_gelu"),
        ),
    }
    # Whether the kernel adds the residual or torch does.
    for activation in (None, "relu", "gelu", "tanh"):
        for is_last in (False, True):
            how = {"activation": activation, "residual_after_activation": is_last}
            name = f"{activation}_{'last' if is_last else 'first'}"
            for kind, residual in (("wide", meta(2, 4, 6, 8)), ("broadcast", meta(2, 4, 1, 1))):
                calls[f"residual_{kind}_{name}"] = (
                    ValueError,
                    conv + r"residual has shape .*; expected \[2, 4, 6, 7\], the shape of the res",
                    lambda m, how=how, residual=residual: m.conv2d(x, w, residual=residual, **how),
                )
            calls[f"residual_dtype_{name}"] = (
                TypeError,
                conv + "residual has dtype float32; expected float16",
                lambda m, how=how: m.conv2d(x, w, residual=r.float(), **how),
            )
    return calls


ONLY_LIBRARY = (
    *("dtype", "bias_dtype", "bias_shape", "empty", "padding", "signal_name", "scaled_dtype"),
    *("scaled_mixed", "scale", "scale_weight", "scaled_bias", "scaled_out_dtype", "grad_output"),
    *("epilogue", "stores", "no_stores", "groups_left_out"),
    *("scaled_out_dtype_of_8_bits", "scale_result_is_missing", "scale_result_of_16_bits"),
    *("scale_result", "scaled_residual_of_16_bits", "scaled_residual_dtype"),
    *("scale_residual_is_missing", "scaled_silu_and_residual"),
    # Residuals that the kernel adds; the others torch adds, and Python checks.
    *(
        f"residual_dtype_{how}"
        for how in (
            "None_first",
            "None_last",
            "relu_first",
            "relu_last",
            "gelu_first",
            "gelu_last",
            "tanh_first",
        )
    ),
)


@pytest.mark.parametrize(("name", "where"), places(bad_calls(), ONLY_LIBRARY))
@pytest.mark.parametrize("with_grad", [False, True])
def test_bad_input(cutwheel: ModuleType, name: str, where: str, with_grad: bool) -> None:
    error, message, call = bad_calls(where)[name]
    with torch.set_grad_enabled(with_grad), pytest.raises(error, match=message):
        call(cutwheel)


@pytest.mark.parametrize("op", ["conv1d", "conv2d", "conv3d", "scaled_conv2d"])
def test_cpu_tensors_are_refused(cutwheel: ModuleType, op: str) -> None:
    """In the name of the op, with what torch has in its place."""
    dims = 2 if op == "scaled_conv2d" else int(op[4])
    dtype = torch.int8 if op == "scaled_conv2d" else HALF
    x, w = torch.ones(1, 3, *(4,) * dims).to(dtype), torch.ones(2, 3, *(1,) * dims).to(dtype)
    rest = (torch.ones(1), torch.ones(1)) if dtype == torch.int8 else ()
    with pytest.raises(NotImplementedError, match=f"^{op}: the tensors are on the CPU") as raised:
        getattr(cutwheel, op)(x, w, *rest)
    assert rest or str(raised.value).endswith(f"or use torch.nn.functional.{op}")


def test_dtypes_that_torch_serves(cutwheel: ModuleType) -> None:
    """Integers on the CPU alone."""
    x, w = torch.arange(200).reshape(2, 4, 5, 5), torch.arange(32).reshape(8, 4, 1, 1)
    for dtype in (torch.int8, torch.uint8, torch.int64, torch.float64, torch.complex64):
        given = x.to(dtype), w.to(dtype)
        result = cutwheel.conv2d(*given)
        assert result.dtype == dtype
        torch.testing.assert_close(result, torch.nn.functional.conv2d(*given), check_stride=False)
        with FakeTensorMode(allow_non_fake_inputs=True):
            on_gpu = [torch.empty_like(t, device="cuda") for t in given]
        if dtype.is_floating_point or dtype.is_complex:
            assert cutwheel.conv2d(*on_gpu).dtype == dtype
            continue
        for call in (cutwheel.conv2d, functools.partial(cutwheel.explain, "conv2d")):
            with pytest.raises(TypeError, match=r"conv2d: input has dtype u?int"):
                call(*on_gpu)


def test_other_devices(cutwheel: ModuleType) -> None:
    with FakeTensorMode():
        x, w = torch.empty(2, 3, 4, 4, device="cuda"), torch.empty(5, 3, 1, 1, device="cuda")
        here = torch.empty(5), torch.empty(2, 5, 4, 4)
    with pytest.raises(ValueError, match="conv2d: bias is on cpu and input is on cuda"):
        cutwheel.conv2d(x, w, here[0])
    for activation in ("relu", "tanh"):
        with pytest.raises(ValueError, match="conv2d: residual is on cpu and input is on cuda"):
            cutwheel.conv2d(x, w, residual=here[1], activation=activation)


Asked = Callable[..., tuple[str, list[Any], str]]


@pytest.fixture
def asked(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """Questions of explain to the library: name, shapes, and the epilogue."""
    calls: list[tuple[Any, ...]] = []

    def answer(*args: Any) -> str:
        calls.append(args)
        return '{"plans": [{"row": "conv2d_x"}], "request": {"m": 5}, "route": "GEMM"}'

    monkeypatch.setattr(torch.ops.cutwheel, "_explain", answer)

    def ask(op: Any, *args: Any, **kwargs: Any) -> tuple[str, list[Any], str]:
        found = cutwheel.explain(op, *args, **kwargs)
        assert (found.row, found.parameters["route"]) == ("conv2d_x", "GEMM")
        name, operands, _, _, _, epilogue, *rest = calls.pop()
        numbers = 4 * (operands[0].dim() - 2)
        assert len(rest[-1]) == numbers + name.startswith("conv_transpose") * 2, "the geometry"
        return name, [t if t is None else tuple(t.shape) for t in operands], epilogue

    yield ask
    assert not calls


def test_explain_asks_the_library(cutwheel: ModuleType, asked: Asked) -> None:
    x, w, b, r = (on_meta(*s).detach() for s in ((2, 6, 8, 9), (4, 6, 3, 3), (4,), (2, 4, 6, 7)))
    plain = [(2, 6, 8, 9), (4, 6, 3, 3)]
    assert asked("conv2d", x, w) == ("conv2d", [*plain, None], "")
    assert asked(cutwheel.conv2d, x, w, b, 1, 0, 1) == ("conv2d", [*plain, (4,)], "")
    assert asked("conv2d", x[0], w, b)[1] == [(1, 6, 8, 9), (4, 6, 3, 3), (4,)]
    fused = asked("conv2d", x, w, b, residual=r, activation="relu")
    assert fused == ("conv2d_fused", [*plain, (4,), (2, 4, 6, 7)], "bias_residual_relu")
    after = {"residual": r, "residual_after_activation": True}
    assert asked("conv2d", x, w, activation="silu", **after)[2] == "bias_silu_residual"
    whole = [*plain, None, (2, 4, 6, 7)]
    assert asked("conv2d", x, w, activation="gelu", **after)[1:] == (whole, "bias_gelu_residual")
    parts = [*plain, None, None]
    assert asked("conv2d", x, w, activation="tanh", **after)[1:] == (parts, "bias_tanh")
    assert asked("conv2d", x, w, activation="leaky_relu", residual=r)[1:] == (
        whole,
        "bias_residual",
    )
    trained = w.detach().requires_grad_()
    assert asked("conv2d", x, trained, activation="gelu")[2] == "bias_gelu_aux"
    assert asked("conv2d", x, trained, activation="tanh")[2] == ""
    assert asked("conv2d", x, trained, activation="relu")[2] == "bias_relu"
    signal = asked("conv1d", on_meta(2, 6, 9).detach(), on_meta(4, 6, 3).detach())
    assert signal[1] == [(2, 6, 1, 9), (4, 6, 1, 3), None]
    volume = on_meta(2, 6, 5, 8, 9).detach(), on_meta(4, 6, 1, 3, 3).detach()
    assert asked("conv3d", *volume)[1] == [(10, 6, 8, 9), (4, 6, 3, 3), None]
    rows = on_meta(2, 6, 5, 8, 9).detach(), on_meta(4, 6, 3, 1, 1).detach()
    assert asked("conv3d", *rows)[1] == [(2, 6, 5, 72), (4, 6, 3, 1), None]
    deep = on_meta(2, 6, 5, 8, 9).detach(), on_meta(4, 6, 3, 3, 3).detach()
    assert asked("conv3d", *deep) == ("conv3d", [*(tuple(t.shape) for t in deep), None], "")
    assert asked("conv3d", *deep, b, activation="relu")[::2] == ("conv3d_fused", "bias_relu")
    up = on_meta(6, 4, 2, 2).detach()
    operands = [(2, 6, 8, 9), (6, 4, 2, 2), (4,)]
    turned = asked("conv_transpose2d", x, up, b, 2, activation="relu")
    assert turned == ("conv_transpose2d", operands, "bias_relu")
    assert asked("conv_transpose2d", x, up, b, 2, activation="gelu")[2] == "bias"
    q, v, one = x.to(torch.int8), w.to(torch.int8), on_meta(1, dtype=SINGLE).detach()
    assert asked("scaled_conv2d", q, v, one, one, padding=1) == (
        "scaled_conv2d",
        [*plain, (1,), (1,), *[None] * 4],
        "",
    )
    added = {"residual": on_meta(2, 4, 6, 7, dtype=torch.int8).detach(), "scale_residual": one}
    eight = {"out_dtype": torch.int8, "scale_result": one, "activation": "relu", **added}
    assert asked("scaled_conv2d", q, v, one, one, None, **eight) == (
        "scaled_conv2d",
        [*plain, (1,), (1,), None, (2, 4, 6, 7), (1,), (1,)],
        "relu",
    )
    assert asked("scaled_conv2d", q, v, one, one, activation="silu")[2] == ""


def test_explain_says_what_torch_does(cutwheel: ModuleType, asked: Asked) -> None:
    """All of it, or what follows the kernel."""
    x, w, r = (on_meta(*s).detach() for s in ((2, 6, 8, 9), (4, 6, 3, 3), (2, 4, 6, 7)))

    def of_torch(op: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        found = cutwheel.explain(op, *args, **kwargs)
        assert (found.row, found.candidates) == (None, ())
        assert f"served_by: {found.parameters['served_by']}" in str(found)
        return found.parameters  # type: ignore[no-any-return]

    grouped = of_torch("conv2d", x, w[:, :3], groups=2, activation="relu", residual=r)
    assert grouped["served_by"] == "torch.nn.functional.conv2d"
    assert grouped["because"].startswith("groups is 2, of 3 channels and 2 filters; cutwheel's ")
    assert grouped["afterwards"] == "torch: relu, residual"
    assert grouped["request"]["weight"] == "float16 [4, 3, 3, 3]"
    assert "float64" in of_torch("conv2d", x.double(), w.double())["because"]
    volume, filters = on_meta(2, 6, 5, 8, 9), on_meta(4, 6, 2, 3, 3)
    deep = of_torch("conv3d", volume.float(), filters.float())
    assert deep["served_by"] == "torch.nn.functional.conv3d"
    assert deep["because"].endswith("convolutions of volumes take float16 and bfloat16")
    turned = of_torch("conv_transpose2d", x, w.transpose(0, 1)[:, :2], groups=2, activation="relu")
    assert turned["served_by"] == "torch.nn.functional.conv_transpose2d"
    assert (turned["because"][:11], turned["afterwards"]) == ("groups is 2", "torch: relu")
    assert "groups" in of_torch("conv1d", on_meta(2, 6, 9), on_meta(4, 2, 3), groups=3)["because"]
    before = torch.backends.cudnn.conv.fp32_precision
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        assert "forbids TF32" in of_torch("conv2d", x.float(), w.float())["because"]
    finally:
        torch.backends.cudnn.conv.fp32_precision = before
    assert asked("conv2d", x.float(), w.float())[0] == "conv2d"


def test_explain_refuses_what_the_op_refuses(cutwheel: ModuleType) -> None:
    x, w = on_meta(2, 6, 8, 9).detach(), on_meta(4, 6, 3, 3).detach()
    with pytest.raises(TypeError, match="conv2d: weight is None"):
        cutwheel.explain("conv2d", x)
    with pytest.raises(TypeError, match="explain: beta is no argument of conv2d"):
        cutwheel.explain("conv2d", x, w, beta=1)
    with pytest.raises(ValueError, match="conv2d: activation is 'swish'"):
        cutwheel.explain("conv2d", x, w, activation="swish")
    with pytest.raises(ValueError, match="conv2d: padding is 'full'"):
        cutwheel.explain("conv2d", x, w, padding="full")
