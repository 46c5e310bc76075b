"""torch's TF32 settings and autocast, and the errors that come as text."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    yield
    torch.backends.fp32_precision = "none"
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    torch.set_autocast_enabled("cuda", False)


def set_by_property(value: bool) -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32" if value else "ieee"


def set_by_flag(value: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = value


def set_by_precision(value: bool) -> None:
    torch.set_float32_matmul_precision("high" if value else "highest")


def set_generically(value: bool) -> None:
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.fp32_precision = "tf32" if value else "ieee"


SETTERS = [set_by_property, set_by_flag, set_by_precision, set_generically]


@pytest.mark.parametrize("setter", SETTERS)
@pytest.mark.parametrize("before", SETTERS)
def test_tf32_follows_every_setting(
    cutwheel: ModuleType, setter: Callable[[bool], None], before: Callable[[bool], None]
) -> None:
    allowed = cutwheel.ops._common.precision.tf32_allowed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (True, False, True):
            before(not value)
            setter(value)
            # A specific setting stands above the generic one: torch's own rule.
            assert allowed() is value


def test_tf32_is_looked_up_for_float32_only(
    cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cutwheel.ops._common import by_torch

    calls: list[None] = []
    monkeypatch.setattr(by_torch, "tf32_allowed", lambda: calls.append(None) or True)
    a = torch.empty(4, 4, device="meta")
    cutwheel.mm(a.half(), a.half())
    assert not calls
    cutwheel.mm(a, a)
    assert len(calls) == 1


def test_autocast_casts_as_torch_does(cutwheel: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        single = torch.empty(4, 4, device="cuda")
        half, brain = single.half(), single.bfloat16()
        row = torch.empty(4, device="cuda")
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        for result in (
            cutwheel.mm(single, half),
            cutwheel.bmm(single.unsqueeze(0), half.unsqueeze(0)),
            cutwheel.addmm(single, half, single),
            cutwheel.baddbmm(single, half.unsqueeze(0), single.unsqueeze(0)),
            cutwheel.linear(single, half, torch.empty(4, device="cuda")),
            cutwheel.matmul(single.unsqueeze(0), half),
            cutwheel.linear(single, half, residual=brain),
            cutwheel.linear(single, half, row, activation="gelu", residual=brain),
            cutwheel.linear(single, half, row, activation="softplus"),
            cutwheel.linear(single, half, activation="leaky_relu"),
            cutwheel.linear(single, half, activation="softplus", residual=brain),
            cutwheel.gated_linear(single, half, interleaved=True),
        ):
            assert result.dtype == torch.bfloat16
        # A residual is not cast.
        for residual in (single, half):
            for how in ({}, {"activation": "gelu"}, {"activation": "softplus"}):
                result = cutwheel.linear(single, half, row, residual=residual, **how)
                assert result.dtype == torch.float32
        torch.set_autocast_enabled("cuda", False)
        assert cutwheel.mm(half, half).dtype == torch.float16


@pytest.mark.parametrize(
    "op", ["mm", "bmm", "addmm", "baddbmm", "linear", "matmul", "gated_linear", "gemm"]
)
def test_cpu_tensors_are_refused(cutwheel: ModuleType, op: str) -> None:
    a = torch.ones(1, 4, 4) if op in ("bmm", "baddbmm") else torch.ones(4, 4)
    count = 3 if op in ("addmm", "baddbmm") else 2
    for requires_grad in (False, op != "gemm"):
        tensors = [a.half().requires_grad_(requires_grad)] * count
        with pytest.raises(NotImplementedError, match="CPU") as raised:
            getattr(cutwheel, op)(*tensors)
        text = str(raised.value)
        assert "cutwheel." not in text
        # gated_linear works for nobody in torch.
        theirs = {"linear": "nn.functional.linear", "gemm": "matmul"}.get(op, op)
        assert text.startswith(f"{op}: the tensors are on the CPU")
        assert text.endswith(f"or use torch.{theirs}") or op == "gated_linear"


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "tanh", "leaky_relu"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_fused_linear_refuses_cpu_tensors(
    cutwheel: ModuleType, activation: str | None, requires_grad: bool
) -> None:
    a = torch.ones(4, 4).half().requires_grad_(requires_grad)
    for residual in (None, a):
        with pytest.raises(NotImplementedError, match=r"^linear: .*CPU") as raised:
            cutwheel.linear(a, a, activation=activation, residual=residual)
        assert str(raised.value).endswith("or use torch.nn.functional.linear")


MATMULS = [
    ((4, 4), (4, 4)),
    ((4,), (4, 4)),
    ((4, 4), (4,)),
    ((2, 4, 4), (4, 4)),
    ((2, 4, 4), (2, 4, 4)),
]


@pytest.mark.parametrize("shapes", MATMULS, ids=str)
def test_matmul_speaks_for_itself(
    cutwheel: ModuleType, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    left, right = (torch.empty(shape, dtype=torch.float16) for shape in shapes)
    cpu = r"^matmul: the tensors are on the CPU; .* or use torch\.matmul$"
    with pytest.raises(NotImplementedError, match=cpu):
        cutwheel.matmul(left, right)


@pytest.mark.gpu
@pytest.mark.parametrize("shapes", MATMULS, ids=str)
def test_matmul_names_its_arguments(
    cutwheel: ModuleType, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    left, right = (torch.empty(shape, dtype=torch.float16, device="cuda") for shape in shapes)
    dtype = "^matmul: other has dtype bfloat16; expected float16 as input has$"
    with pytest.raises(TypeError, match=dtype):
        cutwheel.matmul(left, right.bfloat16())


@pytest.mark.gpu
def test_autocast_leaves_float64_alone(cutwheel: ModuleType) -> None:
    double = torch.empty(4, 4, device="cuda", dtype=torch.float64)
    with torch.autocast("cuda", torch.bfloat16), pytest.raises(TypeError, match="float64"):
        cutwheel.mm(double, double)


ERRORS = [
    ("cutwheel.TypeError: mm: mat2 is odd", TypeError, "mm: mat2 is odd"),
    ("cutwheel.ValueError: mm: first\n  second", ValueError, "mm: first\n  second"),
    ("cutwheel.RuntimeError: no driver", RuntimeError, "no driver"),
    ("cutwheel.NotImplementedError: x", NotImplementedError, "x"),
    (
        "cutwheel.ValueError: mm: x\nException raised from mm at a.cpp:3 (most recent call first):",
        ValueError,
        "mm: x",
    ),
    ("CUDA error: an illegal address", RuntimeError, "CUDA error: an illegal address"),
    ("cutwheel.TypeError: gemm: b is odd", TypeError, "mm: b is odd"),
    (
        "cutwheel::addmm() Expected a value of type 'float' for argument 'alpha' but instead "
        "found type 'str'.\nPosition: 5",
        TypeError,
        "addmm: expected a value of type 'float' for argument 'alpha' but instead found type "
        "'str'.",
    ),
]


@pytest.mark.parametrize(("text", "error", "message"), ERRORS, ids=[e[0][:30] for e in ERRORS])
def test_errors_are_raised_as_the_class_they_name(
    cutwheel: ModuleType,
    text: str,
    error: type[Exception],
    message: str,
    check_class: Callable[..., None],
) -> None:
    op = "addmm" if "addmm" in text else "mm"
    with pytest.raises(error) as raised:
        cutwheel.ops._common.errors.reraise(op, RuntimeError(text))
    check_class(raised.value, error)
    assert str(raised.value) == message


def test_foreign_errors_pass_unchanged(cutwheel: ModuleType) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        cutwheel.ops._common.errors.reraise("mm", error)
    assert raised.value is error


def test_explain_checks_its_arguments(cutwheel: ModuleType) -> None:
    a = torch.ones(4, 4).half()
    with pytest.raises(ValueError, match="expected one of mm, bmm"):
        cutwheel.explain("einsum", a, a)
    with pytest.raises(TypeError, match="mm: mat2 is None"):
        cutwheel.explain("mm", a)
    with pytest.raises(TypeError, match="at most 3"):
        cutwheel.explain("mm", a, a, None, None)
    with pytest.raises(TypeError, match="mat2 is given twice"):
        cutwheel.explain("mm", a, a, mat2=a)
    with pytest.raises(TypeError, match="bias is no argument of mm"):
        cutwheel.explain(cutwheel.mm, a, a, bias=a)
    with pytest.raises(ValueError, match="activation is 'swish'"):
        cutwheel.explain("linear", a, a, activation="swish")
    with pytest.raises(TypeError, match="residual is of type int"):
        cutwheel.explain("linear", a, a, residual=1)
    with pytest.raises(TypeError, match="gated_linear: weight is None"):
        cutwheel.explain("gated_linear", a)
    with pytest.raises(TypeError, match="residual is no argument of gated_linear"):
        cutwheel.explain("gated_linear", a, a, residual=a)
    with pytest.raises(TypeError, match="gemm: b is None"):
        cutwheel.explain("gemm", a)
    with pytest.raises(ValueError, match="'x' is not declared"):
        cutwheel.explain("gemm", a, a, "x")
    with pytest.raises(TypeError, match="c is no operand of epilogue 'plain'"):
        cutwheel.explain(cutwheel.gemm, a, a, c=a)


def test_explain_asks_for_the_epilogue_that_runs(
    cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[bool], str]] = []

    def explain(
        op: str,
        operands: list[object],
        dtype: object,
        beta: float,
        tf32: bool,
        epilogue: str,
        *rest: object,
    ) -> str:
        asked.append((op, [operand is not None for operand in operands], epilogue))
        return "{}"

    # An op is an attribute of its namespace once it has been asked for.
    monkeypatch.setattr(torch.ops.cutwheel, "_explain", explain, raising=False)
    a = torch.ones(4, 4).half()
    bias = a[0]
    needs = torch.ones(4, 512).half().requires_grad_()
    for call, expected in (
        (lambda e: e("mm", a, a), ("mm", [True, True], "")),
        (lambda e: e("addmm", a, a, a, beta=0), ("addmm", [True] * 3, "")),
        (lambda e: e("linear", a, a), ("linear", [True, True], "")),
        (lambda e: e("linear", a, a, bias), ("linear", [True] * 3, "")),
        (
            lambda e: e("linear", a, a, bias, activation="gelu"),
            ("linear_fused", [True, True, True, False], "bias_gelu"),
        ),
        (
            lambda e: e("linear", needs, needs, activation="gelu"),
            ("linear_fused", [True, True, False, False], "bias_gelu_aux"),
        ),
        (
            lambda e: e("linear", a, a, residual=a),
            ("linear_fused", [True, True, False, True], "bias_residual"),
        ),
        (
            lambda e: e("linear", a, a, activation="tanh", residual=a),
            ("linear_fused", [True, True, False, True], "bias_residual"),
        ),
        (
            lambda e: e(
                "linear", a, a, activation="tanh", residual=a, residual_after_activation=True
            ),
            ("linear", [True, True], ""),
        ),
        (
            lambda e: e("linear", a, a, activation="leaky_relu"),
            ("gemm", [True, True, False], "bias_leaky_relu"),
        ),
        (
            lambda e: e(cutwheel.gated_linear, a, a, "relu", interleaved=True),
            ("linear_fused", [True, True, False, False], "gated_relu"),
        ),
        (
            lambda e: e("gated_linear", needs, needs, interleaved=True),
            ("linear_fused", [True, True, False, False], "gated_silu_aux"),
        ),
        (
            lambda e: e("gated_linear", a, (a, a), bias=(None, a[0])),
            ("linear_fused", [True, True, True, False, True], "gated_bias_silu"),
        ),
        (
            lambda e: e("gated_linear", needs, needs),
            ("linear_fused", [True, True, False, False, True], "gated_silu_aux"),
        ),
        (lambda e: e("gemm", a, a), ("gemm", [True, True], "plain")),
        (
            lambda e: e("gemm", a, a, "bias_residual", residual=a, alpha=2),
            ("gemm", [True, True, False, True], "bias_residual"),
        ),
    ):
        assert cutwheel.explain is not None
        call(cutwheel.explain)
        assert asked.pop() == expected


def test_explanation_is_readable(cutwheel: ModuleType) -> None:
    data = {
        "device": "NVIDIA H200",
        "request": {"m": 64, "n": 32, "k": 16, "batch": 1, "dtype": "bf16", "addend": "none"},
        "operand_copies": 1,
        "output_copy": False,
        "plans": [
            {
                "row": "gemm_x",
                "raster": "along_n",
                "splits": 2,
                "reduce": "gemm_r",
                "predicted_us": 3.14159,
            },
            {
                "row": "gemm_y",
                "raster": "along_m",
                "splits": 1,
                "reduce": None,
                "predicted_us": 4.0,
            },
        ],
        "rejected": [
            {"row": "gemm_z", "reason": "operands are bf16"},
            {"row": "gemm_w", "reason": "operands are bf16"},
        ],
    }
    explanation = cutwheel.inspect.explain._explanation("mm", data)
    assert explanation.row == "gemm_x"
    assert explanation.parameters["splits"] == 2
    assert [plan["row"] for plan in explanation.candidates] == [
        "gemm_x",
        "gemm_y",
        "gemm_z",
        "gemm_w",
    ]
    text = str(explanation)
    assert "kernel: gemm_x" in text
    assert "gemm_y" in text
    assert "2 rows: operands are bf16 (such as gemm_z)" in text
    empty = cutwheel.inspect.explain._explanation("mm", {"device": "GPU"})
    assert empty.row is None
    assert "kernel: none" in str(empty)


def test_the_library_refuses_to_explain_what_it_does_not_know(cutwheel: ModuleType) -> None:
    a, ops = torch.ones(4, 4).half(), torch.ops.cutwheel
    gpu = 9, 0, 132, 227 << 10, 3352.0, 1.98
    request = "gemm bf16 bf16 bf16 tn none - 0 none 1 8 8 8 1 none 0 none 1 1 1 none x"
    for call, text in (
        (lambda: ops._explain("mm.out", [a, a]), "explain: op mm.out is not known"),
        (lambda: ops._explain("linear", [a]), "explain: linear takes 2 to 3 tensors, got 1"),
        (lambda: ops._explain("mm", [a, None]), "explain: tensor 1 of mm is None"),
        (lambda: ops._explain("conv2d", [a, a]), "explain: geometry has 0 numbers; expected 8"),
        (lambda: ops._explain_for_gpu(*gpu, "gemm bf16"), "explain: b is missing"),
        (lambda: ops._explain_for_gpu(*gpu, "gemm bf17"), 'explain: a is "bf17"'),
        (lambda: ops._explain_for_gpu(*gpu, request), 'explain: unaligned is "x"; expected let'),
    ):
        with pytest.raises(RuntimeError, match=f"cutwheel.ValueError: {text}"):
            call()
