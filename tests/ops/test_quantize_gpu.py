"""cutwheel.quantize against the same in torch: values, scales and their strides, zero points."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, LAYOUTS, SINGLE, dtype_id, random_tensor, require_arch
from quantize_cases import INPUTS, KINDS, check, check_row, kind_id, random_input, run
from scaled_cases import rows
from scaled_reference import (
    BLOCK,
    BY_128,
    BY_128_128,
    E4M3,
    E5M2,
    INT8,
    ROW,
    TENSOR,
    ScaledProblem,
    per_element,
    torch_quantize,
)

pytestmark = pytest.mark.gpu

_, KERNELS = rows()
Kind = tuple[str, torch.dtype, bool]
SHAPES = ((1, 1), (1, 4096), (3, 127), (16, 128), (17, 129), (127, 1000), (300, 264), (129, 7168))
SHAPES += ((1031, 65), (4097, 1040))


@pytest.mark.parametrize("dtype", INPUTS, ids=dtype_id)
@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_random_values(cutwheel: ModuleType, device: str, kind: Kind, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        check(cutwheel, random_input(*shape, dtype, device), kind)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel["name"])
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Any, kernel: dict[str, Any]
) -> None:
    require_arch(kernel["arch"])
    check_row(cutwheel, device, environment, kernel)


@pytest.mark.parametrize("arch", ["sm80", "sm89", "sm90a"])
def test_every_architecture(cutwheel: ModuleType, device: str, environment: Any, arch: str) -> None:
    """Whichever has kernels; sm80 has none of fp8 where the GPU lacks it."""
    require_arch(arch)
    served = {(row["recipe"], row["d"]) for row in KERNELS if row["arch"] == arch}
    names = {"e4m3": E4M3, "e5m2": E5M2, "s8": INT8}
    environment(CUTWHEEL_ARCH=arch)
    for recipe, d in sorted(served):
        kind = (recipe.removesuffix("_asymmetric"), names[d], not recipe.endswith("_asymmetric"))
        check(cutwheel, random_input(130, 272, BRAIN, device), kind, arch)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_inputs_may_lie_anyhow(cutwheel: ModuleType, device: str, kind: Kind, layout: str) -> None:
    for shape, dtype in (((72, 272), BRAIN), ((33, 77), SINGLE)):
        check(cutwheel, LAYOUTS[layout](random_input(*shape, dtype, device)), kind, layout)


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_inputs_may_be_slices_and_expanded(cutwheel: ModuleType, device: str, kind: Kind) -> None:
    whole = random_input(200, 400, BRAIN, device)
    for x in (
        whole[3:130, 5:277],
        whole[:128, 16:400:2],
        whole[::3, :264],
        whole[:1].expand(40, 400),
        whole[:, :1].expand(200, 129),
    ):
        check(cutwheel, x, kind)


@pytest.mark.parametrize("kind", [k for k in KINDS if k[0] != BY_128_128], ids=kind_id)
def test_leading_extents(cutwheel: ModuleType, device: str, kind: Kind) -> None:
    x = random_input(30, 136, HALF, device)
    for shape in ((2, 15, 136), (2, 3, 5, 136), (30, 1, 136)):
        check(cutwheel, x.view(shape), kind)
    check(cutwheel, x.view(5, 6, 136).transpose(0, 1), kind, "permuted")


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_empty_extents(cutwheel: ModuleType, device: str, kind: Kind) -> None:
    for shape in ((0, 64), (5, 0), (0, 0)):
        found = run(cutwheel, torch.empty(shape, dtype=BRAIN, device=device), kind)
        assert (found.scales == 1).all()  # what a group of zeros has
        assert found.azp is None or not found.azp.any()


# ---- groups of zeros, of NaN, and far from 1
def groups(recipe: str, rows: int, k: int) -> torch.Tensor:
    """Another number for each group, [rows, K]"""
    row, column = torch.arange(rows)[:, None], torch.arange(k)[None]
    return {
        TENSOR: 0 * row + 0 * column,
        ROW: row + 0 * column,
        BY_128: row * 1000 + column // BLOCK,
        BY_128_128: row // BLOCK * 1000 + column // BLOCK,
    }[recipe]


@pytest.mark.parametrize("dtype", INPUTS, ids=dtype_id)
@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_groups_of_zeros(cutwheel: ModuleType, device: str, kind: Kind, dtype: torch.dtype) -> None:
    number = groups(kind[0], 140, 300).to(device)
    x = random_input(140, 300, dtype, device)
    x[(number == number[0, 0]) | (number == number[-1, -1])] = 0
    x[0, 0] = -0.0
    found = check(cutwheel, x, kind)
    zero = found.values.float() if found.azp is None else found.values.float() - found.azp
    assert not zero[x == 0].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_nan_and_infinities_show_in_the_scale(
    cutwheel: ModuleType, device: str, kind: Kind, value: float
) -> None:
    for dtype, at in itertools.product(INPUTS, ((5, 7), (139, 299), (130, 128))):
        x = random_input(140, 300, dtype, device)
        x[at] = value
        found = check(cutwheel, x, kind, at)  # which compares the other groups as always
        number = groups(kind[0], 140, 300).to(device)
        spoilt = per_element(found.scales.isnan(), kind[0], 140, 300)
        assert torch.equal(spoilt, number == number[at])
        if kind[1] != INT8:
            assert found.values.float()[~spoilt].isfinite().all()


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_sizes_far_from_one(cutwheel: ModuleType, device: str, kind: Kind) -> None:
    """Their products with the scale lie in the range of float32, however small the scale is."""
    for size, dtype in ((1e30, SINGLE), (1e30, BRAIN), (1e-30, BRAIN), (3e4, HALF), (1e-5, HALF)):
        x = random_tensor((33, 272), SINGLE, device).clamp(-2, 2) * size
        check(cutwheel, x.to(dtype), kind, size)
    # 448 / amax is beyond float32 here: no zero may become NaN.
    x = random_tensor((33, 272), SINGLE, device).clamp(-2, 2) * 1e-37
    x[:, ::3] = 0
    found = run(cutwheel, x, kind)
    assert found.scales.isfinite().all()
    assert found.values.float().isfinite().all()
    assert (found.exact() - x.double()).abs().max() <= 0.13 * x.abs().max()


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_largest_element_becomes_the_largest_value(
    cutwheel: ModuleType, device: str, kind: Kind
) -> None:
    """Rounding of the scale must not push it over the end, to NaN or to the other sign."""
    for dtype in INPUTS:
        x = (1 + torch.arange(64 * 256, device=device).view(64, 256) / 7).to(dtype)
        for signed in (x, -x):
            found = check(cutwheel, signed, kind)
            assert found.values.float().isfinite().all()
            relative = (found.exact() - signed.double()).abs() / x.double().amax()
            assert relative.max() <= 0.126  # half a step of e5m2


@pytest.mark.parametrize("kind", KINDS, ids=kind_id)
def test_strides_are_what_scaled_mm_takes(cutwheel: ModuleType, device: str, kind: Kind) -> None:
    """The product of what quantize gives, as it gives it."""
    recipe, dtype, symmetric = kind
    if recipe == BY_128_128:
        return  # of weights: below
    x = random_input(130, 333, BRAIN, device)
    w = random_tensor((264, 333), BRAIN, device)
    other = E4M3 if dtype == E5M2 else dtype
    for recipe_w in (BY_128, BY_128_128) if recipe == BY_128 else (TENSOR, ROW):
        given = cutwheel.quantize(x, recipe, dtype, symmetric=symmetric)
        weight, scale_w = cutwheel.quantize(w, recipe_w, other)
        zero = {} if symmetric else {"azp": given[2]}
        scale_w = scale_w if recipe_w == TENSOR else scale_w.t()
        result = cutwheel.scaled_mm(
            given[0], weight.t(), given[1], scale_b=scale_w, output_dtype=SINGLE, **zero
        )
        exact = ScaledProblem.of_operands(
            torch_quantize(x, recipe, dtype, symmetric), torch_quantize(w, recipe_w, other)
        ).value
        # Values next to ties may differ by one step.
        assert (result.double() - exact).norm() <= 5e-3 * exact.norm()


# ---- what is refused
REFUSED = (TypeError, ValueError, NotImplementedError)
BAD: dict[str, tuple[str, Callable[[Any, torch.Tensor], object]]] = {
    "rank": ("x", lambda f, x: f(x[0], "rowwise")),
    "recipe": ("recipe", lambda f, x: f(x, "by_row")),
    "recipe_is_a_number": ("recipe", lambda f, x: f(x, 1.5)),
    "dtype": ("dtype", lambda f, x: f(x, "rowwise", HALF)),
    "dtype_is_no_dtype": ("dtype", lambda f, x: f(x, "rowwise", "e4m3")),
    "integers": ("x", lambda f, x: f(x.int(), "rowwise")),
    "double": ("x", lambda f, x: f(x.double(), "rowwise")),
    "no_tensor": ("x", lambda f, x: f([[1.0]], "rowwise")),
    "block_of_int8": ("int8", lambda f, x: f(x, "blockwise_1x128", INT8)),
    "batch_of_blocks": ("blockwise_128x128", lambda f, x: f(x[None], "blockwise_128x128")),
    "asymmetric_fp8": ("symmetric", lambda f, x: f(x, "rowwise", E4M3, symmetric=False)),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(
    cutwheel: ModuleType, device: str, name: str, check_class: Callable[..., None]
) -> None:
    words, call = BAD[name]
    x = random_input(40, 72, BRAIN, device)
    with pytest.raises(REFUSED, match=words) as raised:
        call(cutwheel.quantize, x)
    check_class(raised.value, REFUSED)
    assert "Error: " not in str(raised.value), "the class prefix is not for people"
    check(cutwheel, x, KINDS[0])


def test_cpu_tensors_are_refused(cutwheel: ModuleType, device: str) -> None:
    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA tensors")
    with pytest.raises(NotImplementedError, match="CPU"):
        cutwheel.quantize(torch.randn(4, 8), "rowwise")


def test_results_do_not_require_grad(cutwheel: ModuleType, device: str) -> None:
    x = random_input(40, 72, BRAIN, device).requires_grad_()
    for kind in KINDS:
        with torch.no_grad():
            run(cutwheel, x, kind)
        with pytest.raises(RuntimeError, match=r"quantize: x requires grad.*pass x\.detach\(\)"):
            run(cutwheel, x, kind)


@pytest.mark.slow
def test_more_than_2_to_the_31_elements(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu" or torch.cuda.mem_get_info()[1] < 40e9:
        pytest.skip("needs a GPU with 40 GB of memory")
    rows, k = 2**18 + 8, 2**13 + 16
    x = torch.empty(rows, k, dtype=BRAIN, device=device).normal_()
    last = slice(rows - 136, rows)
    for recipe in (ROW, BY_128, TENSOR):
        values, scales = cutwheel.quantize(x, recipe, E4M3)
        part = scales if recipe == TENSOR else scales[last]
        spread = per_element(part, recipe, 136, k)
        difference = (values[last].float() * spread - x[last].float()).norm()
        assert difference <= 0.05 * x[last].float().norm(), recipe
