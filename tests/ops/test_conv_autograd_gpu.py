"""Gradients of convolutions: random problems, groups, epilogues, signals and volumes."""

from __future__ import annotations

import functools
import itertools
from types import ModuleType
from typing import Any

import pytest
import torch
from conv_cases import PLACES, PLAIN, Conv, drawn
from conv_gradients import ODD, ONE_TAP, STRIDED, Tensors, both, leaves
from conv_reference import Geometry
from fused_cases import (
    TRAINED,
    assert_near,
    compare_gradients,
    in_double,
    subsets,
    values,
)
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id
from torch.nn import functional

pytestmark = pytest.mark.gpu


# ---- first and second gradients
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_random_problems(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    needs = itertools.cycle(subsets(3))
    for problem in drawn(11, 5, even=True):
        for _ in range(2):
            ours, theirs = both(cutwheel, problem[2])
            compare_gradients(ours, theirs, leaves(problem, dtype, device, next(needs)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_with_groups(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    depthwise = ((2, 16, 8, 7), (16, 1, 3, 3), Geometry((1, 1), (1, 1, 1, 1), (1, 1), 16))
    for problem in (depthwise, *drawn(3, 6, groups=True, even=True)):
        ours, theirs = both(cutwheel, problem[2], "silu")  # of relu sums near 0 may flip
        compare_gradients(ours, theirs, leaves(problem, dtype, device), dtype)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("activation", [None, *TRAINED, "sigmoid", "leaky_relu"], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_epilogues(
    cutwheel: ModuleType, device: str, dtype: torch.dtype, activation: str | None, place: str
) -> None:
    for problem in (STRIDED, ONE_TAP):
        ours, theirs = both(cutwheel, problem[2], activation, place)
        for needed in ((True,) * 4, (False, False, True, False), (True, False, False, True)):
            given = leaves(problem, dtype, device, needed, place)
            compare_gradients(ours, theirs, given, dtype)
            with torch.no_grad():
                exact = theirs(*in_double(given))
                assert_near(ours(*given), exact, dtype)
    given = leaves(STRIDED, dtype, device, (False, False, False, True), place)
    if place != "no_residual":
        compare_gradients(*both(cutwheel, STRIDED[2], activation, place), given, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_an_empty_batch(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    for (_, *image), *rest in (STRIDED, ODD, ONE_TAP):
        for activation in (None, "relu", "gelu"):
            given = leaves(((0, *image), *rest), dtype, device)
            result = both(cutwheel, rest[1], activation)[0](*given)
            grads = torch.autograd.grad(result.sum(), [x for x in given if x is not None])
            assert grads[0].shape == (0, *image)
            for x, grad in zip(given[1:], grads[1:], strict=True):
                assert x is not None
                assert grad.shape == x.shape
                assert not grad.any()


# ---- what is computed
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("needed", [0, 1, 2], ids=["input", "weight", "bias"])
def test_only_needed_gradients_are_computed(cutwheel: ModuleType, device: str, needed: int) -> None:
    given = leaves(STRIDED, HALF, device, [i == needed for i in range(3)])
    result = both(cutwheel, STRIDED[2])[0](*given)
    with torch.profiler.profile() as profile:
        result.backward(torch.ones_like(result))
    called = {event.key for event in profile.key_averages()}

    def computes(operand: str, direction: str) -> bool:
        """By an op, or within torch's node, where only the kernel has a name."""
        return any(f"conv2d_{operand}_grad" in x or f"_{direction}_" in x for x in called)

    assert computes("input", "dgrad") == (needed == 0)
    assert computes("weight", "wgrad") == (needed == 1)
    assert [x is not None and x.grad is not None for x in given] == [i == needed for i in range(3)]


def test_gradients_add_up(cutwheel: ModuleType, device: str) -> None:
    """Two micro-batches, and one filter used twice in a graph."""
    x, weight, bias = (t for t in leaves(STRIDED, SINGLE, device))
    same = Geometry((1, 1), (1, 1, 1, 1))
    square = values((16, 16, 3, 3), SINGLE, device) / 8
    exact = in_double([x, weight, bias, square])
    for twice in (square, exact[3]):
        assert twice is not None
        twice.requires_grad_()
    ours, theirs = both(cutwheel, STRIDED[2], "relu")
    inner, outer = both(cutwheel, same)
    for part in range(2):
        for last, first, (image, filters, row, twice) in (
            (ours, inner, (x, weight, bias, square)),
            (theirs, outer, exact),
        ):
            h = first(first(image[part : part + 1], twice), twice)  # type: ignore[index]
            last(h, filters, row).square().sum().backward()
    for got, want in zip((x, weight, bias, square), exact, strict=True):
        assert got is not None
        assert want is not None
        assert_near(got.grad, want.grad, BRAIN)  # chained TF32 products


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_filter_gradients_are_the_same_every_time(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    """K of tens of thousands for few tiles, in many parts; with torch's setting and without."""
    sizes = ((8, 24, 70, 66), (40, 24, 3, 3))
    conv = Conv.random("wgrad", *sizes, Geometry((1, 1), (1, 1, 1, 1)), dtype, device, PLAIN)
    dy, x = conv.positional
    for deterministic in (True, False):
        torch.use_deterministic_algorithms(deterministic)
        try:
            results = [conv.run() for _ in range(5)]
            weight = torch.zeros(sizes[1], dtype=dtype, device=device, requires_grad=True)
            result = cutwheel.conv2d(x, weight, padding=1)
            for _ in range(3):
                results += torch.autograd.grad(result, weight, dy, retain_graph=True)
        finally:
            torch.use_deterministic_algorithms(False)
        conv.judge(results[0])
        assert all(torch.equal(result, results[0]) for result in results)


# ---- signals and volumes
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_gradients_of_signals_and_volumes(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    for ours, theirs, x, weight, where in (
        (
            cutwheel.conv1d,
            functional.conv1d,
            (3, 24, 40),
            (16, 24, 4),
            {"stride": 2, "padding": 3, "dilation": 2},
        ),
        (
            cutwheel.conv3d,
            functional.conv3d,
            (2, 24, 3, 8, 7),
            (16, 24, 1, 3, 3),
            {"stride": (1, 2, 1), "padding": (0, 1, 1)},
        ),
    ):
        shapes = (x, weight, (16,))
        scales = (1.0, 1 / 8, 1.0)
        given: Tensors = [
            (values(shape, dtype, device) * scale).requires_grad_()
            for shape, scale in zip(shapes, scales, strict=True)
        ]

        def activated(*tensors: Any, of: Any = theirs, by: Any = where) -> torch.Tensor:
            return torch.relu(of(*tensors, **by))

        fused = functools.partial(ours, **where, activation="relu")
        compare_gradients(fused, activated, given, dtype)
