"""Numbers to torch are numbers here: numpy's scalars, and tensors of no dimension."""

from __future__ import annotations

from fractions import Fraction
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from cpu_reference import CpuOps

np = pytest.importorskip("numpy")
TWOS = [np.float32(2), np.float64(2), np.float16(2), np.int64(2), np.uint8(2), torch.tensor(2.0)]
TWOS += [torch.tensor(2)]
WHOLE = [np.int64(2), np.int32(2), torch.tensor(2), np.array(2)]


def ids(value: Any) -> str:
    return f"{type(value).__name__}-{getattr(value, 'dtype', '')}"


@pytest.mark.parametrize("two", TWOS, ids=ids)
def test_factors_of_sums(cutwheel: ModuleType, cpu_ops: CpuOps, two: Any) -> None:
    c, a, b = (torch.randn(s, requires_grad=True) for s in ((5, 6), (5, 4), (4, 6)))
    for op, given in (("addmm", (c, a, b)), ("baddbmm", (c[None], a[None], b[None]))):
        theirs = getattr(torch, op)(*given, beta=two, alpha=two)
        ours = getattr(cutwheel, op)(*given, beta=two, alpha=two)
        torch.testing.assert_close(ours, theirs)
        for got, want in zip(
            torch.autograd.grad(ours.sum(), (c, a, b)),
            torch.autograd.grad(theirs.sum(), (c, a, b)),
            strict=True,
        ):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("two", [*TWOS, 2, 2.0, np.bool_(True), True], ids=ids)
def test_scalars_of_epilogues(cutwheel: ModuleType, cpu_ops: CpuOps, two: Any) -> None:
    c, a, b = torch.randn(5, 6), torch.randn(5, 4), torch.randn(4, 6)
    given = {"alpha": two, "beta": two, "c": c}
    wanted = float(two) * (a @ b) + float(two) * c
    torch.testing.assert_close(cutwheel.gemm(a, b, "linear_combination", **given), wanted)


@pytest.mark.parametrize(
    "value",
    [
        *(None, "2", [2], Fraction(1, 2), np.array([2.0]), np.complex64(2), np.str_("2")),
        *(torch.ones(1), torch.tensor(2.0, requires_grad=True), torch.tensor(2j), 2j),
    ],
    ids=ids,
)
def test_others_are_no_numbers(cutwheel: ModuleType, cpu_ops: CpuOps, value: Any) -> None:
    a, b = torch.randn(5, 4), torch.randn(4, 6)
    with pytest.raises(TypeError, match=r"^gemm: alpha is .*; expected a number$") as raised:
        cutwheel.gemm(a, b, "plain", alpha=value)
    is_complex = isinstance(value, complex) or getattr(value, "dtype", None) == torch.complex64
    assert isinstance(raised.value, RuntimeError) == (is_complex or isinstance(value, np.complex64))


@pytest.mark.parametrize("two", WHOLE, ids=ids)
def test_geometry_of_convolutions(cutwheel: ModuleType, cpu_ops: CpuOps, two: Any) -> None:
    x, weight = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3)
    # torch itself has no place for an array of no dimension.
    plain = F.conv2d(x, weight, None, 2, 2, 2)
    for given in (two, (two, 2), [two, two], (two,)):
        how = {"stride": given, "padding": given, "dilation": given}
        torch.testing.assert_close(cutwheel.conv2d(x, weight, **how), plain)
    mixed = F.conv2d(x, weight, None, 1, 2, 2)
    torch.testing.assert_close(cutwheel.conv2d(x, weight, None, 1, two, two), mixed)
    signal, taps = x[..., 0], weight[..., 0]
    wanted = F.conv1d(signal, taps, None, 2, 2, 2)
    torch.testing.assert_close(cutwheel.conv1d(signal, taps, None, two, two, two), wanted)
    volume = F.conv3d(x[:, :, None], weight[:, :, None], None, (1, 2, 2), (0, 2, 2))
    how = {"stride": (1, two, two), "padding": [0, two, two]}
    torch.testing.assert_close(cutwheel.conv3d(x[:, :, None], weight[:, :, None], **how), volume)
    if not isinstance(two, np.ndarray):
        grouped = F.conv2d(x, weight[:, :2], None, two, two, two, two)
        ours = cutwheel.conv2d(x, weight[:, :2], None, two, two, two, two)
        torch.testing.assert_close(ours, grouped)


def test_modules_and_sizes(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    three, four, six = np.int64(3), np.int64(4), np.int64(6)
    conv = cutwheel.nn.Conv2d(four, six, three, stride=np.int64(2), padding=np.int64(1))
    x = torch.randn(2, 4, 9, 9)
    torch.testing.assert_close(conv(x), torch.nn.Conv2d.forward(conv, x))
    assert cutwheel.nn.Linear(four, six)(torch.randn(5, 4)).shape == (5, 6)
    assert cutwheel.nn.GatedMLP(four, six)(torch.randn(5, 4)).shape == (5, 4)


@pytest.mark.parametrize(
    "value",
    ["1", 1.0, np.float32(1), torch.tensor(1.0), None, torch.ones(2).int(), {1: 1}],
    ids=ids,
)
def test_strides_are_whole_numbers(cutwheel: ModuleType, cpu_ops: CpuOps, value: Any) -> None:
    x, weight = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3)
    for given in (value, [value, 1]):
        with pytest.raises(TypeError, match=r"conv2d: stride is .*; expected a number, or one"):
            cutwheel.conv2d(x, weight, stride=given)
