"""Dense matrix products against float64, over shapes, layouts, dtypes, strides and kernels."""

from __future__ import annotations

import itertools
import random
from types import ModuleType
from typing import Any

import pytest
import torch
from elementwise_cases import check_elementwise
from epilogue_cases import CLASSIC, check_kernel, check_splitk_epilogue
from gemm_cases import (
    ARCHS,
    BRAIN,
    COMMON_LAYOUTS,
    DTYPE_PAIRS,
    DTYPES,
    HALF,
    LAYOUTS,
    SINGLE,
    TORCH_DTYPE,
    dtype_id,
    manifest_kernels,
    operands,
    random_tensor,
    require_arch,
    shapes,
    torch_product,
)
from reference import Problem, assert_as_good_as

pytestmark = pytest.mark.gpu


def check_mm(
    cutwheel: ModuleType, a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    expected = torch_product(a, b, out_dtype)
    # The allocator gives the result this memory: an element that is not written is NaN.
    torch.full_like(expected, float("nan"))
    result = cutwheel.mm(a, b, None if out_dtype == a.dtype else out_dtype)
    assert result.is_contiguous()
    assert_as_good_as(result, expected, Problem.of(a, b))
    return result


@pytest.mark.parametrize("dtypes", DTYPE_PAIRS, ids=dtype_id)
@pytest.mark.parametrize("arch", ARCHS)
def test_mm_random_shapes(
    cutwheel: ModuleType, device: str, environment: Any, arch: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    rng = random.Random(7)
    for m, n, k in shapes(24, seed=DTYPE_PAIRS.index(dtypes)):  # type: ignore[arg-type]
        layout_a, layout_b = rng.choice(COMMON_LAYOUTS), rng.choice(COMMON_LAYOUTS)
        a, b = operands(m, n, k, dtypes[0], device, layout_a, layout_b)
        try:
            check_mm(cutwheel, a, b, dtypes[1])
        except AssertionError as error:
            raise AssertionError(f"M={m} N={n} K={k} {layout_a} {layout_b}: {error}") from error


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize(
    ("layout_a", "layout_b"), list(itertools.product(LAYOUTS, LAYOUTS)), ids="-".join
)
def test_mm_layouts(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, layout_a: str, layout_b: str
) -> None:
    for m, n, k in ((72, 136, 200), (67, 131, 77), (1, 40, 24)):
        a, b = operands(m, n, k, dtype, device, layout_a, layout_b)
        check_mm(cutwheel, a, b, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_mm_of_expanded_and_sliced_operands(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    base = random_tensor((130, 140), dtype, device)
    row, column = base[:1].expand(64, 140), base[:, :1].expand(130, 48)
    check_mm(cutwheel, row, base[:64].t(), dtype)  # [64, 140] @ [140, 64]
    check_mm(cutwheel, base[:, :130], column, dtype)
    check_mm(cutwheel, base[1:65, 3:100], base[7:104, 5:50], dtype)
    check_mm(cutwheel, base[::2, ::3], base[:47, ::4], dtype)
    one = base[:1, :1].expand(16, 16)
    check_mm(cutwheel, one, one, dtype)


@pytest.mark.parametrize("kernel", manifest_kernels(), ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    require_arch(kernel["arch"])
    if kernel["family"] == "splitk_reduce":
        check_splitk(cutwheel, device, environment, kernel)
        return
    if kernel["family"] == "splitk_epilogue":
        check_splitk_epilogue(cutwheel, device, environment, kernel)
        return
    if kernel["family"] == "pad_rows":
        check_copies(cutwheel, device, environment, kernel)
        return
    if kernel["epilogue"] not in CLASSIC:
        check = check_elementwise if kernel["family"] == "elementwise" else check_kernel
        check(cutwheel, device, environment, kernel)
        return
    environment(CUTWHEEL_KERNEL=kernel["name"])
    layouts = {"t": "row", "n": "column"}
    if kernel["family"] == "sm90_unaligned":
        layouts = {"t": "row_offset", "n": "column_offset"}
    layout_a, layout_b = (layouts[letter] for letter in kernel["layout"][:2])
    dtype, out_dtype = TORCH_DTYPE[kernel["a"]], TORCH_DTYPE[kernel["d"]]
    requested = None if dtype == out_dtype else out_dtype
    # Where a cluster shares K, it has a tile for each threadblock.
    short_k = 72 if kernel["cluster"][2] == 1 else kernel["cluster"][2] * kernel["tile"][2] + 8
    # Two problems: more than a tile and less than one, with no extent a multiple of a tile.
    # A thin one has the whole weight in shared memory.
    large = (264, 168, 72) if kernel["family"] == "thin" else (264, 328, max(296, short_k))
    for m, n, k in (large, (24, 40, short_k)):
        a, b = operands(m, n, k, dtype, device, layout_a, layout_b)
        if kernel["epilogue"] == "plain":
            assert cutwheel.explain("mm", a, b, requested).row == kernel["name"]
            check_mm(cutwheel, a, b, out_dtype)
            continue
        # A row is added as it is; a matrix is scaled.
        shape, beta = ((n,), 1) if kernel["epilogue"] == "bias" else ((m, n), 0.5)
        c = random_tensor(shape, out_dtype, device)
        assert cutwheel.explain("addmm", c, a, b, requested).row == kernel["name"]
        result = cutwheel.addmm(c, a, b, requested, beta=beta, alpha=2)
        expected = (2 * torch_product(a, b, SINGLE) + beta * c.float()).to(out_dtype)
        assert_as_good_as(result, expected, Problem.of(a, b, c, alpha=2, beta=beta))
    if kernel["epilogue"] == "bias" and kernel["family"] != "thin":
        # A row for each of a batch, and an N that ends within a vector of it.
        a, b = operands(136, 336, short_k, dtype, device, layout_a, layout_b, (3,))
        b = b[:, :, :333]
        c = random_tensor((3, 1, 333), out_dtype, device)
        expected = (torch_product(a, b, SINGLE) + c.float()).to(out_dtype)
        assert_as_good_as(cutwheel.baddbmm(c, a, b), expected, Problem.of(a, b, c))


def test_operands_that_begin_anywhere_are_copied_where_that_is_faster(
    cutwheel: ModuleType, device: str
) -> None:
    require_arch("sm90a")  # Hopper alone has kernels that read them as they lie
    # Probabilities by values, which memory bounds; and a product that arithmetic does.
    for batch, m, n, k, copies in ((8, 1500, 64, 1500, 0), (1, 4096, 4096, 4097, 2)):
        layout_b = "row" if copies == 0 else "column"
        a, b = operands(m, n, k, BRAIN, device, "row_offset", layout_b, (batch,))
        plan = cutwheel.explain("bmm", a, b)
        assert plan.parameters["operand_copies"] == copies
        assert ("_unaligned_" in plan.row) == (copies == 0)
        assert_as_good_as(cutwheel.bmm(a, b), torch.bmm(a, b), Problem.of(a, b))
    # D is stored as it lies.
    a, b = operands(300, 301, 64, BRAIN, device, "row", "column")
    assert not cutwheel.explain("mm", a, b).parameters["output_copy"]


def check_copies(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    """Operands that no kernel of another architecture, dtype or shape takes as they lie."""
    environment(CUTWHEEL_ARCH=kernel["arch"])
    for dtype in (BRAIN, SINGLE):
        for k in (1, 3, 9, 67, 515, 4099):
            for batch, m, n in ((1, 5, 3), (3, 130, 41)):
                a, b = operands(m, n, k, dtype, device, "row_padded_3", "column_padded_1", (batch,))
                if dtype == SINGLE and k == 515:  # TF32 kernels take nothing as it lies
                    assert cutwheel.explain("bmm", a, b).parameters["operand_copies"] > 0
                result = cutwheel.bmm(a, b)
                assert_as_good_as(result, torch_product(a, b, dtype), Problem.of(a, b))


def check_splitk(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    """The second half of a split-K product: found by a shape that only splitting makes fast."""
    environment(CUTWHEEL_ARCH=kernel["arch"])
    out_dtype = TORCH_DTYPE[kernel["d"]]
    dtype = BRAIN if out_dtype == SINGLE else out_dtype
    requested = None if dtype == out_dtype else out_dtype
    for m, n, k in ((64, 128, 16384), (128, 128, 32768), (256, 256, 65536)):
        a, b = operands(m, n, k, dtype, device, "row", "column")
        if cutwheel.explain("mm", a, b, requested).parameters.get("reduce") == kernel["name"]:
            check_mm(cutwheel, a, b, out_dtype)
            return
    pytest.skip("the cost model splits none of the shapes tried on this GPU")


@pytest.mark.parametrize("dtypes", DTYPE_PAIRS, ids=dtype_id)
@pytest.mark.parametrize("op", ["addmm", "baddbmm"])
@pytest.mark.parametrize("beta", [-0.75, 1])  # a row with beta = 1 has kernels of its own
def test_addend_broadcasts(
    cutwheel: ModuleType, device: str, beta: float, op: str, dtypes: tuple[torch.dtype, ...]
) -> None:
    dtype, out_dtype = dtypes
    requested = None if dtype == out_dtype else out_dtype
    for m, n, k in ((96, 136, 64), (33, 65, 129)):
        batch = (3,) if op == "baddbmm" else ()
        a, b = operands(m, n, k, dtype, device, "row", "column", batch)
        wanted: list[tuple[int, ...]] = [(), (1,), (n,), (1, n), (m, 1), (1, 1), (m, n)]
        if batch:
            wanted += [(3, m, n), (1, m, n), (3, 1, n), (3, m, 1), (3, 1, 1)]
        for shape in wanted:
            for c_dtype in {dtype, out_dtype}:
                c = random_tensor(shape, c_dtype, device)
                result = getattr(cutwheel, op)(c, a, b, requested, beta=beta, alpha=1.5)
                assert result.is_contiguous()
                product = torch_product(a, b, SINGLE)
                expected = (1.5 * product + beta * c.float()).to(out_dtype)
                problem = Problem.of(a, b, c, alpha=1.5, beta=beta)
                assert_as_good_as(result, expected, problem)


@pytest.mark.parametrize("layout", ["row", "column", "row_padded_3", "row_offset", "every_second"])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_addend_layouts(cutwheel: ModuleType, device: str, dtype: torch.dtype, layout: str) -> None:
    a, b = operands(67, 72, 40, dtype, device)
    c = LAYOUTS[layout](random_tensor((67, 72), dtype, device))
    assert_as_good_as(cutwheel.addmm(c, a, b), torch.addmm(c, a, b), Problem.of(a, b, c))


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0, 1), (1, 0), (0, 0), (-2.5, 0.1), (1, -1)])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_alpha_and_beta(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, alpha: float, beta: float
) -> None:
    a, b = operands(72, 88, 104, dtype, device)
    c = random_tensor((72, 88), dtype, device)
    result = cutwheel.addmm(c, a, b, beta=beta, alpha=alpha)
    expected = torch.addmm(c, a, b, beta=beta, alpha=alpha)
    assert_as_good_as(result, expected, Problem.of(a, b, c, alpha=alpha, beta=beta))


@pytest.mark.parametrize("op", ["addmm", "baddbmm"])
def test_beta_zero_does_not_read_the_addend(
    cutwheel: ModuleType, device: str, op: str, poison: Any
) -> None:
    batch = (2,) if op == "baddbmm" else ()
    a, b = operands(40, 56, 64, BRAIN, device, batch=batch)
    c = poison(torch.empty((*batch, 40, 56), dtype=BRAIN, device=device))
    assert_as_good_as(getattr(cutwheel, op)(c, a, b, beta=0), a @ b, Problem.of(a, b))


@pytest.mark.parametrize("dtypes", DTYPE_PAIRS, ids=dtype_id)
def test_bmm(cutwheel: ModuleType, device: str, dtypes: tuple[torch.dtype, ...]) -> None:
    dtype, out_dtype = dtypes
    requested = None if dtype == out_dtype else out_dtype
    rng = random.Random(11)
    for index, (m, n, k) in enumerate(shapes(10, seed=3, largest=300)):
        layouts = rng.choice(list(LAYOUTS)), rng.choice(list(LAYOUTS))
        a, b = operands(m, n, k, dtype, device, *layouts, batch=(index + 1,))
        result = cutwheel.bmm(a, b, requested)
        assert result.is_contiguous()
        assert_as_good_as(result, torch_product(a, b, out_dtype), Problem.of(a, b))


def test_bmm_of_expanded_and_permuted_batches(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(48, 72, 40, HALF, device, batch=(5,))
    heads = random_tensor((48, 5, 40), HALF, device)  # [M, B, K]: attention's layout
    for left, right in (
        (a[:1].expand(5, 48, 40), b),
        (a, b[:1].expand(5, 40, 72)),
        (a[:1].expand(5, 48, 40), b[:1].expand(5, 40, 72)),
        (heads.permute(1, 0, 2), b),
        (a[::2], b[1:4]),
    ):
        result = cutwheel.bmm(left, right)
        assert_as_good_as(result, torch.bmm(left, right), Problem.of(left, right))


def test_bmm_of_many_batches(cutwheel: ModuleType, device: str) -> None:
    a, b = operands(8, 8, 16, BRAIN, device, batch=(70_000,))  # beyond a grid's 65,535
    assert_as_good_as(cutwheel.bmm(a, b), torch.bmm(a, b), Problem.of(a, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no_bias"])
def test_linear(cutwheel: ModuleType, device: str, dtype: torch.dtype, with_bias: bool) -> None:
    for leading in ((), (1,), (37,), (3, 5), (2, 3, 4), (0,), (2, 0)):
        for n, k in ((72, 64), (65, 33)):
            x = random_tensor((*leading, k), dtype, device)
            weight = random_tensor((n, k), dtype, device)
            bias = random_tensor((n,), dtype, device) if with_bias else None
            result = cutwheel.linear(x, weight, bias)
            expected = torch.nn.functional.linear(x, weight, bias)
            assert result.shape == expected.shape
            assert result.is_contiguous()
            if x.numel():
                x2 = x.unsqueeze(0) if x.dim() == 1 else x
                problem = Problem.of(x2, weight.t(), bias)
                assert_as_good_as(
                    result.view(problem.value.shape), expected.view_as(problem.value), problem
                )
    x = random_tensor((4, 6, 64), dtype, device).transpose(0, 1)
    weight = random_tensor((40, 64), dtype, device)
    assert_as_good_as(
        cutwheel.linear(x, weight),
        torch.nn.functional.linear(x, weight),
        Problem.of(x, weight.t()),
    )


MATMUL_SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 7)),
    ((6, 5), (5,)),
    ((6, 5), (5, 7)),
    ((2, 6, 5), (5,)),
    ((5,), (3, 5, 7)),
    ((2, 6, 5), (5, 7)),
    ((6, 5), (3, 5, 7)),
    ((3, 6, 5), (3, 5, 7)),
    ((3, 1, 6, 5), (4, 5, 7)),
    ((2, 1, 6, 5), (1, 4, 5, 7)),
    ((1, 6, 5), (4, 3, 5, 7)),
    ((0, 6, 5), (5, 7)),
    ((3, 6, 0), (0, 7)),
]


@pytest.mark.parametrize(("left", "right"), MATMUL_SHAPES, ids=str)
def test_matmul(
    cutwheel: ModuleType, device: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = random_tensor(left, HALF, device), random_tensor(right, HALF, device)
    result, expected = cutwheel.matmul(a, b), torch.matmul(a, b)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_empty_extents(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    for m, n, k in itertools.product((0, 5), (0, 8), (0, 16)):
        a, b = operands(m, n, k, dtype, device)
        c = random_tensor((n,), dtype, device)
        torch.testing.assert_close(cutwheel.mm(a, b), torch.mm(a, b), rtol=0.02, atol=0.02)
        torch.testing.assert_close(
            cutwheel.addmm(c, a, b, beta=2), torch.addmm(c, a, b, beta=2), rtol=0.02, atol=0.02
        )
        for batch in (0, 2):
            left, right = operands(m, n, k, dtype, device, batch=(batch,))
            torch.testing.assert_close(
                cutwheel.bmm(left, right), torch.bmm(left, right), rtol=0.02, atol=0.02
            )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_nan_and_inf_stay_where_they_belong(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, value: float
) -> None:
    a, b = operands(70, 90, 48, dtype, device)
    a, b = a.abs() + 0.5, b.abs() + 0.5
    a[3, 7] = value
    b[5, 11] = value
    for result, expected in (
        (cutwheel.mm(a, b), torch.mm(a, b)),
        (cutwheel.addmm(b[:1, :90], a, b), torch.addmm(b[:1, :90], a, b)),
    ):
        assert torch.equal(result.isnan(), expected.isnan())
        assert torch.equal(result.isinf(), expected.isinf())
        finite = expected.isfinite()
        torch.testing.assert_close(result[finite], expected[finite], rtol=0.02, atol=0.02)


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu" or torch.cuda.mem_get_info()[1] < 40e9:
        pytest.skip("needs a GPU with 40 GB of memory")
    m, n, k = 2**17 + 8, 2**14 + 8, 64
    a, b = operands(m, n, k, HALF, device)
    result = cutwheel.mm(a, b)  # [M, N], 2.1e9 elements
    for rows in (slice(0, 64), slice(m - 64, m)):
        problem = Problem.of(a[rows], b)
        assert_as_good_as(result[rows], torch.mm(a[rows], b), problem)
    # And an operand of that size: its last columns lie beyond 2^31 elements.
    tall = result
    small = random_tensor((n, 8), HALF, device) / 64
    product = cutwheel.mm(tall, small)
    last = slice(m - 64, m)
    assert_as_good_as(product[last], torch.mm(tall[last], small), Problem.of(tall[last], small))
