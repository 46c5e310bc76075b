"""Under autocast a residual keeps its dtype, and results have that of torch's own functions.

torch.autocast("cuda") casts CUDA tensors only, so its casts are made for CPU tensors here.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from cpu_reference import CpuOps

HALF, BRAIN, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
Tensor = torch.Tensor
PLACES = [(None, False), ("gelu", False), ("gelu", True), ("softplus", False), ("tanh", True)]
ACTIVATIONS: dict[str, Any] = {"gelu": F.gelu, "softplus": F.softplus, "tanh": torch.tanh}
RESIDUALS = [BRAIN, SINGLE, HALF, DOUBLE]


@pytest.fixture
def autocast(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """autocast of CUDA tensors to bfloat16, and those of the CPU for CUDA's."""
    from cutwheel.ops import linear
    from cutwheel.ops._common import precision
    from cutwheel.ops.conv import _convolve, _transposed, _volume

    def operands(*tensors: Any) -> tuple[Any, ...]:
        return tuple(
            t.to(BRAIN) if isinstance(t, Tensor) and t.dtype in (HALF, BRAIN, SINGLE) else t
            for t in tensors
        )

    for module in (precision, _convolve, _transposed, _volume, linear):
        monkeypatch.setattr(module, "autocast_operands", operands)
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", BRAIN)
    yield
    torch.set_autocast_enabled("cuda", False)


def followed(z: Tensor, residual: Tensor, activation: str | None, is_last: bool) -> Tensor:
    """Activation and residual by torch's functions, in the dtypes that they promote to."""
    if activation is None:
        return z + residual
    if is_last:
        return ACTIVATIONS[activation](z) + residual  # type: ignore[no-any-return]
    return ACTIVATIONS[activation](z + residual)  # type: ignore[no-any-return]


def leaves(*shapes: tuple[int, ...], residual: torch.dtype) -> list[Tensor]:
    *made, last = (torch.randn(shape) for shape in shapes)
    return [x.requires_grad_() for x in (*made, last.to(residual))]


def compare(ours: Tensor, theirs: Tensor, given: list[Tensor], dtype: torch.dtype) -> None:
    assert ours.dtype == theirs.dtype == torch.promote_types(BRAIN, dtype)
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    grad = torch.randn(ours.shape).to(ours.dtype)
    found, wanted = (torch.autograd.grad(y, given, grad) for y in (ours, theirs))
    for tensor, got, want in zip(given, found, wanted, strict=True):
        assert got.dtype == want.dtype == tensor.dtype
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", RESIDUALS, ids=str)
@pytest.mark.parametrize(("activation", "is_last"), PLACES)
def test_linear(
    cutwheel: ModuleType, autocast: None, activation: str | None, is_last: bool, dtype: torch.dtype
) -> None:
    given = leaves((2, 5, 24), (8, 24), (8,), (2, 5, 8), residual=dtype)
    x, weight, bias, residual = given
    how = {"activation": activation, "residual_after_activation": is_last}
    ours = cutwheel.linear(x, weight, bias, residual=residual, **how)
    z = F.linear(x.to(BRAIN), weight.to(BRAIN), bias.to(BRAIN))
    compare(ours, followed(z, residual, activation, is_last), given, dtype)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", RESIDUALS, ids=str)
@pytest.mark.parametrize(("activation", "is_last"), PLACES)
def test_conv2d(
    cutwheel: ModuleType,
    autocast: None,
    activation: str | None,
    is_last: bool,
    dtype: torch.dtype,
    groups: int,
) -> None:
    given = leaves((2, 8, 6, 7), (4, 8 // groups, 3, 3), (4,), (2, 4, 4, 5), residual=dtype)
    x, weight, bias, residual = given
    how = {"activation": activation, "residual_after_activation": is_last, "groups": groups}
    ours = cutwheel.conv2d(x, weight, bias, residual=residual, **how)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    z = F.conv2d(x.to(BRAIN), weight.to(BRAIN), bias.to(BRAIN), groups=groups)
    compare(ours, followed(z, residual, activation, is_last), given, dtype)
    one = cutwheel.conv2d(x[0], weight, bias, residual=residual[0], **how)
    torch.testing.assert_close(one, ours[0])


@pytest.mark.parametrize("taps", [1, 3])
def test_volumes_and_signals(cutwheel: ModuleType, autocast: None, taps: int) -> None:
    shapes = ((2, 8, 5, 6, 7), (4, 8, taps, 3, 3), (4,), (2, 4, 6 - taps, 4, 5))
    given = leaves(*shapes, residual=SINGLE)
    x, weight, bias, residual = given
    how = {"activation": "gelu", "residual": residual}
    z = F.conv3d(x.to(BRAIN), weight.to(BRAIN), bias.to(BRAIN))
    theirs = F.gelu(z + residual)
    compare(cutwheel.conv3d(x, weight, bias, **how), theirs, given, SINGLE)
    x, weight, residual = x[..., 0, 0], weight[..., 0, 0], residual[..., 0, 0].detach()
    theirs = F.conv1d(x.to(BRAIN), weight.to(BRAIN), bias.to(BRAIN)) + residual
    ours = cutwheel.conv1d(x, weight, bias, residual=residual)
    assert ours.dtype == SINGLE
    torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def test_gated_mlp(cutwheel: ModuleType, autocast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutwheel.ops import linear

    monkeypatch.setattr(linear._gated, "autocast_operands", linear.autocast_operands)
    mlp = cutwheel.nn.GatedMLP(16, 24)
    x, residual = torch.randn(5, 16), torch.randn(5, 16, requires_grad=True)
    y = mlp(x, residual)
    assert y.dtype == SINGLE
    torch.testing.assert_close(y, mlp(x).float() + residual)
    (grad,) = torch.autograd.grad(y.sum(), residual)
    assert grad.dtype == SINGLE


def test_what_does_not_fit_is_refused(cutwheel: ModuleType, autocast: None) -> None:
    x, weight = torch.randn(5, 24), torch.randn(8, 24)
    errors = cutwheel.errors
    with pytest.raises(errors.ShapeError, match=r"linear: residual has shape \[8\]; expected"):
        cutwheel.linear(x, weight, residual=torch.randn(8))
    with pytest.raises(ValueError, match="linear: activation is 'step'"):
        cutwheel.linear(x, weight, activation="step", residual=torch.randn(5, 8))
    with pytest.raises(errors.DeviceError, match="linear: residual is on meta"):
        cutwheel.linear(x, weight, residual=torch.empty(5, 8, device="meta"))
    with pytest.raises(errors.ShapeError, match="conv2d: residual has shape"):
        cutwheel.conv2d(
            torch.randn(1, 8, 4, 4), torch.randn(4, 8, 3, 3), residual=torch.randn(1, 4, 2, 1)
        )
    torch.set_autocast_enabled("cuda", False)
    with pytest.raises(errors.DtypeError, match="conv2d: residual has dtype float32; expected bfl"):
        cutwheel.conv2d(
            torch.randn(1, 8, 4, 4).bfloat16(),
            torch.randn(4, 4, 3, 3).bfloat16(),
            groups=2,
            residual=torch.randn(1, 4, 2, 2),
        )


def test_explain_says_that_torch_adds_it(
    cutwheel: ModuleType, autocast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cutwheel.inspect import explain

    asked: list[tuple[Any, ...]] = []

    def answer(*args: Any) -> str:
        asked.append(args)
        return '{"plans": [{"row": "x"}], "request": {}}'

    monkeypatch.setattr(explain, "autocast_operands", cutwheel.ops.linear.autocast_operands)
    monkeypatch.setattr(torch.ops.cutwheel, "_explain", answer)
    x, weight, residual = torch.randn(5, 24), torch.randn(8, 24), torch.randn(5, 8)
    how: dict[str, Any] = {"residual": residual, "activation": "gelu"}
    found = cutwheel.explain("linear", x, weight, **how)
    assert found.parameters["afterwards"] == "torch: gelu, residual"
    assert asked.pop()[5] == ""
    found = cutwheel.explain("linear", x, weight, **how, residual_after_activation=True)
    assert found.parameters["afterwards"] == "torch: residual"
    assert asked.pop()[5] == "bias_gelu"
    found = cutwheel.explain("linear", x, weight, **{**how, "residual": residual.bfloat16()})
    assert "afterwards" not in found.parameters
    assert asked.pop()[5] == "bias_residual_gelu"
    image, filters = torch.randn(1, 8, 4, 4), torch.randn(4, 8, 3, 3)
    how = {"residual": torch.randn(1, 4, 2, 2), "activation": "relu"}
    found = cutwheel.explain("conv2d", image, filters, **how)
    assert found.parameters["afterwards"] == "torch: relu, residual"
    found = cutwheel.explain("conv2d", image, filters, **how, residual_after_activation=True)
    assert found.parameters["afterwards"] == "torch: residual"
    assert asked.pop()[5] == "bias_relu"
