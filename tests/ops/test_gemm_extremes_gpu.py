"""Products at the ends of what extents allow: rows of D of more than 2 GiB, and sums over a K that
one accumulator of a tensor core, which truncates, does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from gemm_cases import require_arch
from persistent_cases import persistent_rows

pytestmark = pytest.mark.gpu

GIB = 1 << 30
STEP = 1 << 21
"""elements of K that the reference takes at a time, in float64"""
LONG = 1 << 18
"""the longest sum of one accumulator"""


def require_memory(device: str, needed: int) -> None:
    free = torch.cuda.mem_get_info(device)[0]
    if free < needed:
        pytest.skip(f"needs {needed / GIB:.0f} GiB of GPU memory; {free / GIB:.0f} GiB are free")


@pytest.fixture(autouse=True)
def _give_back() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def forms() -> list[str | None]:
    """The choice of dispatch (None), and a persistent kernel of each kind of epilogue."""
    rows = [
        row
        for row in persistent_rows()
        if (row["a"], row["d"], row["layout"]) == ("bf16", "bf16", "tnt")
        and (row["epilogue"], row["cluster"][2]) == ("plain", 1)
    ]
    plain = next(row["name"] for row in rows if not row["swap_ab"])
    swapped = next(row["name"] for row in rows if row["swap_ab"])
    return [None, plain, swapped]


@pytest.mark.slow
@pytest.mark.parametrize("form", range(3), ids=["chosen", "persistent", "swapped"])
@pytest.mark.parametrize(("m", "n"), [(1, 1_500_000_008), (16, 1_080_000_000)])
def test_rows_of_d_of_more_than_2_gib(
    cutwheel: ModuleType, device: str, environment: Callable[..., None], form: int, m: int, n: int
) -> None:
    k, chunk = 8, 5_000_000
    require_memory(device, 2 * (n * k + m * n) + 8 * chunk * (2 * k + 4 * m))
    if form:
        require_arch("sm90a")
        environment(CUTWHEEL_KERNEL=str(forms()[form]))
    q = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    db = torch.empty(n, k, device=device, dtype=torch.bfloat16).normal_()
    out = torch.full((m, n), float("nan"), device=device, dtype=torch.bfloat16)
    cutwheel.mm(q, db.t(), out=out)
    for first in range(0, n, chunk):
        part = db[first : first + chunk].double()
        expected = q.double() @ part.t()
        magnitude = q.double().abs() @ part.t().abs()
        error = (out[:, first : first + chunk].double() - expected).abs()
        # One rounding to bfloat16, and a short sum in float32.
        assert (error <= 2.0**-8 * expected.abs() + 2.0**-20 * magnitude).all(), f"from {first} on"


def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b in float64, a part of K at a time."""
    steps = range(0, a.shape[-1], STEP)
    parts = (a[..., i : i + STEP].double() @ b[..., i : i + STEP, :].double() for i in steps)
    return sum(parts, torch.zeros((), dtype=torch.float64, device=a.device))


def error_of(result: torch.Tensor, expected: torch.Tensor) -> float:
    return ((result.double() - expected).norm() / expected.norm()).item()


def check(result: torch.Tensor, of_torch: torch.Tensor, expected: torch.Tensor) -> None:
    """The rule of the other tests without the part of its floor that grows with K."""
    assert result.dtype == of_torch.dtype
    error, limit = error_of(result, expected), 2 * error_of(of_torch, expected)
    # Cost of truncation at the longest sum: one rounding to bfloat16.
    assert error <= limit + 2.0**-9, f"error {error:.3g}; torch's is {limit / 2:.3g}"


def filled(device: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Values of one sign, so that truncation losses add up; float16 holds sums of products."""
    scale = 2.0 / shape[-1] ** 0.5 if dtype == torch.float16 else 1.0
    return torch.empty(shape, device=device, dtype=dtype).uniform_().mul_(scale)


@pytest.mark.parametrize("k", [LONG + 24, 37 * LONG + 8, (1 << 27) + 24])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_long_k_loses_no_more_than_torch_does(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, k: int
) -> None:
    require_memory(device, 2 * k * (17 + 24) + 8 * STEP * 64)
    a, w = filled(device, dtype, 17, k), filled(device, dtype, 24, k)
    expected = exact(a, w.t())
    out = torch.full((17, 24), float("nan"), device=device, dtype=dtype)
    cutwheel.mm(a, w.t(), out=out)
    check(out, torch.mm(a, w.t()), expected)
    # The parts are added in one order.
    assert torch.equal(cutwheel.mm(a, w.t()), out)
    wide = cutwheel.mm(a, w.t(), out_dtype=torch.float32)
    check(wide, torch.mm(a, w.t(), out_dtype=torch.float32), expected)


@pytest.mark.parametrize("arch", ["sm80", "sm89", "sm90a"])
@pytest.mark.parametrize("layouts", ["tn", "tt", "nn", "nt"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_long_k_in_every_layout(
    cutwheel: ModuleType,
    device: str,
    environment: Callable[..., None],
    arch: str,
    layouts: str,
    dtype: torch.dtype,
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    k = 17 * LONG + 40
    a = filled(device, dtype, 24, k) if layouts[0] == "t" else filled(device, dtype, k, 24).t()
    b = filled(device, dtype, k, 40) if layouts[1] == "t" else filled(device, dtype, 40, k).t()
    c = torch.randn(24, 40, device=device, dtype=dtype) * k
    expected = exact(a, b)
    check(cutwheel.mm(a, b), torch.mm(a, b), expected)
    sums = 0.5 * c.double() + 2 * expected
    check(cutwheel.addmm(c, a, b, beta=0.5, alpha=2), c.addmm(a, b, beta=0.5, alpha=2), sums)


def test_a_batch_with_a_long_k(cutwheel: ModuleType, device: str) -> None:
    k = (1 << 23) + 16
    a, w = filled(device, torch.bfloat16, 3, 20, k), filled(device, torch.bfloat16, 3, 16, k)
    c = torch.randn(3, 20, 16, device=device, dtype=torch.bfloat16) * k
    expected = exact(a, w.mT)
    check(cutwheel.bmm(a, w.mT), torch.bmm(a, w.mT), expected)
    check(cutwheel.baddbmm(c, a, w.mT), c.baddbmm(a, w.mT), c.double() + expected)


def test_the_gradient_of_a_weight_over_many_rows(cutwheel: ModuleType, device: str) -> None:
    rows = 17 * LONG + 8
    x = filled(device, torch.bfloat16, rows, 24)
    weight = torch.randn(32, 24, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad = filled(device, torch.bfloat16, rows, 32)
    (ours,) = torch.autograd.grad(cutwheel.linear(x, weight), weight, grad)
    (of_torch,) = torch.autograd.grad(torch.nn.functional.linear(x, weight), weight, grad)
    check(ours, of_torch, exact(grad.t(), x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_groups_along_a_long_k(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    """One group has nearly everything; others lie on both sides of where K is cut, one across."""
    total = 18 * LONG + 72
    ends = [5, 5, 16 * LONG - 3, 16 * LONG + 9, 18 * LONG + 40]
    offs = torch.tensor(ends, device=device, dtype=torch.int32)
    a, b = filled(device, dtype, total, 40), filled(device, dtype, total, 24)
    begins = [0, *ends[:-1]]
    expected = torch.stack(
        [exact(a[i:j].t(), b[i:j]).expand(40, 24) for i, j in zip(begins, ends, strict=True)]
    )
    result = cutwheel.grouped_mm(a.t(), b, offs=offs)
    of_torch = torch.stack([a[i:j].t() @ b[i:j] for i, j in zip(begins, ends, strict=True)])
    for ours, torchs, value in zip(result, of_torch, expected, strict=True):
        if value.any():
            check(ours, torchs, value)
        else:
            assert not ours.any()
    sums = torch.randn(5, 40, 24, device=device)
    before = sums.clone()
    cutwheel.grouped_mm(a.t(), b, offs=offs, accumulate_into=sums)
    assert error_of(sums - before, expected) < 2.0**-9


def test_the_gradient_of_a_filter_over_many_pixels(cutwheel: ModuleType, device: str) -> None:
    """So many filters that their tiles fill the GPU without a split."""
    x = filled(device, torch.bfloat16, 144, 128, 64, 64)
    weight = torch.randn(1024, 128, 3, 3, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad = filled(device, torch.bfloat16, 144, 1024, 64, 64)
    (ours,) = torch.autograd.grad(cutwheel.conv2d(x, weight, padding=1), weight, grad)
    conv = torch.nn.functional.conv2d
    (of_torch,) = torch.autograd.grad(conv(x, weight, padding=1), weight, grad)
    few = slice(1000, 1008)
    wide = weight.detach()[few].double().requires_grad_()
    expected = torch.zeros_like(wide)
    for image, gradient in zip(x.split(8), grad[:, few].split(8), strict=True):
        y = conv(image.double(), wide, padding=1)
        expected += torch.autograd.grad(y, wide, gradient.double())[0]
    check(ours[few], of_torch[few], expected)
