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
    allowed = cutwheel.ops._precision.tf32_allowed
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
    from cutwheel.ops import gemm

    calls: list[None] = []
    monkeypatch.setattr(gemm, "tf32_allowed", lambda: calls.append(None) or True)
    a = torch.empty(4, 4, device="meta")
    cutwheel.mm(a.half(), a.half())
    assert not calls
    cutwheel.mm(a, a)
    assert len(calls) == 1


def test_autocast_casts_as_torch_does(cutwheel: ModuleType) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        single = torch.empty(4, 4, device="cuda")
        half, double = single.half(), single.double()
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        for result in (
            cutwheel.mm(single, half),
            cutwheel.bmm(single.unsqueeze(0), half.unsqueeze(0)),
            cutwheel.addmm(single, half, single),
            cutwheel.baddbmm(single, half.unsqueeze(0), single.unsqueeze(0)),
            cutwheel.linear(single, half, torch.empty(4, device="cuda")),
            cutwheel.matmul(single.unsqueeze(0), half),
        ):
            assert result.dtype == torch.bfloat16
        with pytest.raises(TypeError, match="float64"):
            cutwheel.mm(double, double)
        torch.set_autocast_enabled("cuda", False)
        assert cutwheel.mm(half, half).dtype == torch.float16


@pytest.mark.parametrize("op", ["mm", "bmm", "addmm", "baddbmm", "linear", "matmul"])
def test_cpu_tensors_are_refused(cutwheel: ModuleType, op: str) -> None:
    a = torch.ones(1, 4, 4) if op in ("bmm", "baddbmm") else torch.ones(4, 4)
    count = 3 if op in ("addmm", "baddbmm") else 2
    for tensors in ([a.half()] * count, [a.half().requires_grad_()] * count):
        with pytest.raises(NotImplementedError, match="CPU") as raised:
            getattr(cutwheel, op)(*tensors)
        assert "cutwheel." not in str(raised.value)


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
    cutwheel: ModuleType, text: str, error: type[Exception], message: str
) -> None:
    op = "addmm" if "addmm" in text else "mm"
    with pytest.raises(error) as raised:
        cutwheel.ops._errors.reraise(op, RuntimeError(text))
    assert type(raised.value) is error
    assert str(raised.value) == message


def test_foreign_errors_pass_unchanged(cutwheel: ModuleType) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        cutwheel.ops._errors.reraise("mm", error)
    assert raised.value is error


def test_explain_checks_its_arguments(cutwheel: ModuleType) -> None:
    a = torch.ones(4, 4).half()
    with pytest.raises(ValueError, match="expected one of mm, bmm"):
        cutwheel.explain("conv2d", a, a)
    with pytest.raises(TypeError, match="mm: mat2 is None"):
        cutwheel.explain("mm", a)
    with pytest.raises(TypeError, match="at most 3"):
        cutwheel.explain("mm", a, a, None, None)
    with pytest.raises(TypeError, match="mat2 is given twice"):
        cutwheel.explain("mm", a, a, mat2=a)
    with pytest.raises(TypeError, match="bias is no argument of mm"):
        cutwheel.explain(cutwheel.mm, a, a, bias=a)


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
    explanation = cutwheel._explain._explanation("mm", data)
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
    empty = cutwheel._explain._explanation("mm", {"device": "GPU"})
    assert empty.row is None
    assert "kernel: none" in str(empty)
