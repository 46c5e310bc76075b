"""Products of many rows by a weight that stays in shared memory, each kernel forced: tails of all
extents, strips that warps go around for, pitches, epilogues, and pointwise convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from epilogue_cases import CLASSIC, Call, declared
from gemm_cases import BRAIN, TORCH_DTYPE, manifest_kernels, random_tensor, require_arch
from persistent_cases import Extents, Product, Row, inside

pytestmark = pytest.mark.gpu

ROWS = [row for row in manifest_kernels() if row["family"] == "thin"]
FUSED = [row for row in ROWS if row["epilogue"] not in CLASSIC]


def of(rows: list[Row]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=lambda row: row["name"])


@pytest.fixture
def force(environment: Callable[..., None]) -> Callable[[Row], None]:
    """No call takes another kernel."""

    def force_row(row: Row) -> None:
        require_arch(row["arch"])
        environment(CUTWHEEL_KERNEL=row["name"])

    return force_row


def extents_of(row: Row) -> Iterator[Extents]:
    _, tile_n, line = row["tile"]
    # Strips that warpgroups go around for more than twice; N and K end within groups and blocks.
    yield Extents(80077, 24, 16)
    yield Extents(40003, 144, 24)
    yield Extents(1, 8, 8)
    yield Extents(63, tile_n, line)
    yield Extents(130, 24, line + 24)
    # More columns than are multiplied at once; fewer warpgroups than there could be.
    yield Extents(333, tile_n + 8, line + 8)
    yield Extents(20027, 40, 4 * line - 16)


def as_it_is(x: torch.Tensor, is_column: bool = False) -> torch.Tensor:
    """Rows, or columns, that follow each other: a strip of them is one copy."""
    return x.mT.contiguous().mT if is_column else x.contiguous()


LAYING = pytest.mark.parametrize("lay", [inside, as_it_is], ids=["within", "in_one"])


@of([row for row in ROWS if row["epilogue"] in CLASSIC])
@LAYING
def test_every_thin_kernel(
    cutwheel: ModuleType,
    device: str,
    force: Callable[[Row], None],
    row: Row,
    lay: Callable[[torch.Tensor, bool], torch.Tensor],
) -> None:
    force(row)
    for extents in extents_of(row):
        product = Product.random(row, extents, device, lay)
        assert product.chosen(cutwheel) == row["name"]
        shape = (extents.m, extents.n)
        out = inside(torch.full(shape, float("nan"), dtype=product.a.dtype, device=device))
        around = out.untyped_storage().nbytes() // out.element_size() - out.numel()
        assert product.run(cutwheel, out) is out
        # Nothing is written around it, and every element of it is.
        whole = torch.empty(0, dtype=out.dtype, device=device).set_(out.untyped_storage())
        assert int(whole.isnan().sum()) == around, f"{product}: written beyond the result"
        product.judge(out)
        # The same bits wherever D lies; behind its last row is nothing of it.
        beyond = torch.full(
            (extents.m + 16, extents.n), float("nan"), dtype=out.dtype, device=device
        )
        assert torch.equal(product.run(cutwheel, beyond[: extents.m]), out)
        assert bool(beyond[extents.m :].isnan().all())


@of(FUSED)
@LAYING
def test_every_thin_kernel_with_a_fused_epilogue(
    cutwheel: ModuleType,
    device: str,
    force: Callable[[Row], None],
    row: Row,
    lay: Callable[[torch.Tensor, bool], torch.Tensor],
) -> None:
    force(row)
    epilogue, dtype = declared()[row["epilogue"]], TORCH_DTYPE[row["a"]]
    for x in extents_of(row):
        call = Call.random(
            *(epilogue, x.m, x.n, x.k, dtype, device),
            lay_a=lambda a: lay(a, False),
            lay_b=lambda b: lay(b, row["layout"][1] == "n"),
        )
        matrices = {
            name: lay(operand, False)
            for name, operand in call.operands.items()
            if operand is not None and operand.dim() == 2
        }
        call = call.with_operands(**matrices)
        assert call.explain(cutwheel).row == row["name"]
        call.check(cutwheel)
        call.with_operands(**dict.fromkeys(call.operands)).check(cutwheel)


def test_what_does_not_fit_is_left_to_others(
    cutwheel: ModuleType, device: str, environment: Callable[..., None]
) -> None:
    require_arch("sm90a")
    for m, n, k in ((264, 36, 40), (264, 40, 36), (264, 640, 128)):
        a, b = random_tensor((m, k), BRAIN, device), random_tensor((n, k), BRAIN, device).t()
        assert "_thin_" not in str(cutwheel.explain("mm", a, b).row)


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("with_residual", [False, True], ids=["", "residual"])
def test_pointwise_convolutions(
    cutwheel: ModuleType, device: str, with_residual: bool, activation: str | None
) -> None:
    """Alone, by whichever kernel is chosen."""
    x = random_tensor((8, 40, 57, 61), BRAIN, device).to(memory_format=torch.channels_last)
    weight, bias = (
        random_tensor((144, 40, 1, 1), BRAIN, device),
        random_tensor((144,), BRAIN, device),
    )
    shape = (8, 144, 57, 61)
    residual = random_tensor(shape, BRAIN, device).to(memory_format=torch.channels_last)
    given = residual if with_residual else None
    result = cutwheel.conv2d(x, weight, bias, activation=activation, residual=given)
    expected = F.conv2d(x.double(), weight.double(), bias.double())
    if with_residual:
        expected = expected + residual.double()
    if activation is not None:
        expected = getattr(F, activation)(expected)
    assert torch.allclose(result.double(), expected, rtol=2**-7, atol=2**-5)


def test_gradients_of_pointwise_convolutions(cutwheel: ModuleType, device: str) -> None:
    x = random_tensor((8, 40, 57, 61), BRAIN, device).to(memory_format=torch.channels_last)
    weight = random_tensor((144, 40, 1, 1), BRAIN, device)
    x.requires_grad_()
    result = cutwheel.conv2d(x, weight)
    dy = random_tensor(tuple(result.shape), BRAIN, device).to(memory_format=torch.channels_last)
    (dx,) = torch.autograd.grad(result, x, dy)
    expected = torch.einsum("nohw,oc->nchw", dy.double(), weight[:, :, 0, 0].double())
    assert torch.allclose(dx.double(), expected, rtol=2**-7, atol=2**-4)
