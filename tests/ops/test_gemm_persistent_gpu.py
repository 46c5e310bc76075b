"""Dense products by the persistent kernels of Hopper, each forced: tails, tiles and clusters that
go around, batches, operands inside larger tensors, dependent launches and graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch
from epilogue_cases import Call, declared
from gemm_cases import TORCH_DTYPE, operands, random_tensor, require_arch
from persistent_cases import (
    Extents,
    Product,
    Row,
    anywhere,
    extents_of,
    inside,
    layer_of,
    persistent_rows,
    shortest_k,
    splits_of,
)
from runtime import capture

pytestmark = pytest.mark.gpu

every_row = pytest.mark.parametrize("row", persistent_rows(), ids=lambda row: row["name"])


def sms_of(device: str) -> int:
    if torch.device(device).type != "cuda":
        return 8
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@pytest.fixture
def force(environment: Callable[..., None]) -> Callable[[Row], None]:
    """No call takes another kernel."""

    def force_row(row: Row) -> None:
        require_arch(row["arch"])
        environment(CUTWHEEL_KERNEL=row["name"])

    return force_row


@every_row
def test_every_persistent_kernel(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    force(row)
    for extents in extents_of(row, sms_of(device)):
        product = Product.random(row, extents, device)
        assert product.chosen(cutwheel) == row["name"]
        shape = (*extents.batch, extents.m, extents.n)
        results = []
        for lay in (inside, anywhere):
            out = lay(torch.full(shape, float("nan"), dtype=product.d, device=device))
            around = out.untyped_storage().nbytes() // out.element_size() - out.numel()
            assert product.run(cutwheel, out) is out
            # Nothing is written around it, and every element of it is.
            whole = torch.empty(0, dtype=out.dtype, device=device).set_(out.untyped_storage())
            assert int(whole.isnan().sum()) == around, f"{product}: written beyond the result"
            results.append(out)
        try:
            product.judge(results[0])
        except AssertionError as error:
            raise AssertionError(f"{product}: {error}") from error
        # Sums are added in one order: the same bits wherever D lies, also without out=.
        assert torch.equal(results[1], results[0])
        assert torch.equal(product.run(cutwheel), results[0])


ALTERNATING = [
    row
    for is_fused in (False, True)
    for row in persistent_rows(is_fused)
    if row["schedule"] == "pingpong"
    and row["epilogue"] in ("plain", "linear_combination", "bias_residual")
]


@pytest.mark.parametrize("row", ALTERNATING, ids=lambda row: row["name"])
def test_many_tiles_of_one_step(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    """Turns of two warpgroups are short, and stores keep single warps from theirs for long."""
    force(row)
    m, n, k = 200_000, 256, row["tile"][2]
    if torch.device(device).type != "cuda":
        m = 2000
    dtype = TORCH_DTYPE[row["a"]]
    is_column_a, is_column_b = (letter == "n" for letter in row["layout"][:2])
    a = inside(random_tensor((m, k), dtype, device), is_column_a)
    b = inside(random_tensor((k, n), dtype, device), is_column_b)
    c = random_tensor((m, n), TORCH_DTYPE[row["d"]], device)
    out_dtype = None if TORCH_DTYPE[row["d"]] == dtype else TORCH_DTYPE[row["d"]]

    def run() -> torch.Tensor:
        if row["epilogue"] == "plain":
            return cutwheel.mm(a, b, out_dtype)
        if row["epilogue"] == "bias_residual":
            return cutwheel.linear(a, b.t(), residual=c)
        return cutwheel.addmm(c, a, b, out_dtype, beta=0.5)

    first = run()
    for _ in range(10):
        assert torch.equal(run(), first)
    addend = {"plain": 0, "bias_residual": 1, "linear_combination": 0.5}[row["epilogue"]]
    exact = a.float() @ b.float() + addend * c.float()
    assert (first.float() - exact).norm() <= 4e-3 * exact.norm()


SHORT = [
    row
    for row in persistent_rows()
    if row["family"] == "sm90_persistent"
    and row["layout"][:2] == "nt"
    and row["epilogue"] in ("plain", "linear_combination")
    and splits_of(row) == 1
]


@pytest.mark.parametrize("row", SHORT, ids=lambda row: row["name"])
def test_a_k_shorter_than_the_tile(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    """Stages keep their zeros behind it, tile after tile and in batches; NaN lies beyond K."""
    force(row)
    dtype, d = TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]]
    m, n = (3000, 4096) if torch.device(device).type == "cuda" else (264, 136)
    for k, batch in ((1, ()), (3, ()), (16, ()), (row["tile"][2] - 1, ()), (8, (3,))):
        whole = [random_tensor((*batch, k + 64, x), dtype, device) for x in (m, n)]
        for operand in whole:
            operand[..., k:, :] = float("nan")
        a, b = whole[0][..., :k, :].mT, whole[1][..., :k, :]
        out = torch.full((*batch, m, n), float("nan"), dtype=d, device=device)
        product = cutwheel.bmm if batch else cutwheel.mm
        product(a, b, None if d == dtype else d, out=out)
        exact = a.float() @ b.float()
        assert (out.float() - exact).norm() <= 4e-3 * exact.norm(), (k, batch)


@pytest.mark.parametrize("row", persistent_rows(is_fused=True), ids=lambda row: row["name"])
def test_every_persistent_kernel_with_a_fused_epilogue(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    force(row)
    epilogue = declared()[row["epilogue"]]
    dtype, d = TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]]
    lay_a, lay_b = (partial(inside, is_column=letter == "n") for letter in row["layout"][:2])
    for extents in extents_of(row, sms_of(device)):
        call = Call.random(
            epilogue,
            extents.m,
            extents.n,
            extents.k,
            dtype,
            device,
            d,
            batch=extents.batch,
            row_batch=extents.batch,
            lay_a=lay_a,
            lay_b=lay_b,
        )
        assert call.explain(cutwheel).row == row["name"]
        first, again = call.check(cutwheel), call.run(cutwheel)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))


@every_row
def test_operands_that_share_memory_along_the_batch(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    force(row)
    k = shortest_k(row) + 40
    one = Product.random(row, Extents(72, 136, k, (1,)), device)
    many = Product.random(row, Extents(72, 136, k, (3,)), device)
    for a, b in ((one.a.expand(3, -1, -1), many.b), (many.a, one.b.expand(3, -1, -1))):
        product = Product(a, b, many.c, many.beta, many.d)
        assert product.chosen(cutwheel) == row["name"]
        product.judge(product.run(cutwheel))


@every_row
def test_what_is_left_in_shared_memory_does_not_count(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    """Rows beyond the ends of operands are not loaded: NaN of the tile before may be there."""
    force(row)
    # As many problems as keep every threadblock going, every second one all NaN.
    count, k = 4 * sms_of(device), shortest_k(row) + 8
    for m, n in ((33, 24), (200, 328)):
        some = Product.random(row, Extents(m, n, k, (count,)), device)
        assert some.chosen(cutwheel) == row["name"]
        good = some.run(cutwheel)
        some.a[::2].fill_(float("nan"))
        some.b[::2].fill_(float("nan"))
        result = some.run(cutwheel)
        assert torch.equal(result[1::2], good[1::2])
        assert result[::2].isnan().all()


@every_row
def test_operands_that_have_to_be_copied(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    if row["layout"] != "tnt":
        pytest.skip("copies have layout tnt")
    force(row)
    k, dtype = shortest_k(row) + 13, TORCH_DTYPE[row["a"]]
    for lay_a, lay_b in (("row_offset", "every_second"), ("every_second", "column_offset")):
        a, b = operands(67, 131, k, dtype, device, lay_a, lay_b)
        product = Product(a, b, *Product.addend(row, 131, device))
        product.judge(product.run(cutwheel))


@pytest.mark.parametrize(
    "row",
    [row for row in persistent_rows() if splits_of(row) > 1 and row["layout"] == "tnt"],
    ids=lambda row: row["name"],
)
def test_a_k_that_is_too_short_to_be_shared(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    force(row)
    product = Product.random(row, Extents(40, 56, shortest_k(row) - 8), device)
    with pytest.raises(NotImplementedError, match=f"a cluster shares {shortest_k(row)} or more"):
        product.run(cutwheel)


EXTENT, STEPS = 1064, 10  # 17 tiles of K less a part; steps are even: the last is in buffers[1]


class Chain:
    """x @ b @ b ..., from one buffer into the other: each product reads what the one before has
    just written, and writes over what that one read."""

    def __init__(self, row: Row, device: str) -> None:
        self.row = row
        dtype = TORCH_DTYPE[row["a"]]
        is_column = row["layout"][1] == "n"
        square = (EXTENT, EXTENT)
        b = (torch.randn(square, device=device) * EXTENT**-0.5).to(dtype)
        self.b = layer_of(row)(b, is_column)
        self.addend = Product.addend(row, EXTENT, device)
        self.first = random_tensor(square, dtype, device)
        self.buffers = [torch.empty(square, dtype=dtype, device=device) for _ in range(2)]

    def product(self, x: torch.Tensor) -> Product:
        # Results are row-major. Where the kernel wants a column-major A, it is given them turned.
        return Product(x if self.row["layout"][0] == "t" else x.mT, self.b, *self.addend)

    def run(self, cutwheel: ModuleType, is_patient: bool = False) -> torch.Tensor:
        for buffer in self.buffers:
            buffer.fill_(float("nan"))
        x = self.first
        for step in range(STEPS):
            x = self.product(x).run(cutwheel, self.buffers[step % 2])
            if is_patient:
                torch.cuda.synchronize()
        return x


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize(
    "row",
    [row for row in persistent_rows() if TORCH_DTYPE[row["a"]] == TORCH_DTYPE[row["d"]]],
    ids=lambda row: row["name"],
)
def test_dependent_launches(
    cutwheel: ModuleType, device: str, force: Callable[[Row], None], row: Row
) -> None:
    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA streams")
    force(row)
    chain = Chain(row, device)
    product = chain.product(chain.first)
    assert product.chosen(cutwheel) == row["name"]
    product.judge(product.run(cutwheel))
    expected = chain.run(cutwheel, is_patient=True).clone()
    assert expected.isfinite().all()
    for _ in range(3):
        torch.cuda._sleep(2_000_000)  # until all are enqueued: one starts as soon as it may
        assert torch.equal(chain.run(cutwheel), expected)

    graph, captured = capture(lambda: chain.run(cutwheel))
    for scale in (1, 0.5):
        chain.first.mul_(scale)
        expected = chain.run(cutwheel, is_patient=True).clone()
        captured.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(captured, expected)
