"""Products and convolutions on torch's own autograd node: which have it, and what comes of it.

The other files of gradients look at every result through a dispatch mode, in which no call has it.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
import torch
from autograd_cases import GRADIENTS, Case, compare_any_gradients, random_leaves
from conv_cases import drawn
from conv_gradients import STRIDED, both
from conv_gradients import leaves as conv_leaves
from conv_reference import Geometry
from fused_cases import assert_near, compare_gradients, present, subsets
from gemm_cases import BRAIN, HALF, SINGLE, dtype_id, random_tensor

pytestmark = [pytest.mark.gpu, pytest.mark.no_dispatch_mode]

NODE = "ConvolutionOverrideableBackward0"
DEPTHWISE = ((2, 16, 8, 7), (16, 1, 3, 3), Geometry((1, 1), (1, 1, 1, 1), (1, 1), 16))
HAVE_IT = {
    name: case
    for name, case in GRADIENTS.items()
    if name.startswith(("mm-", "addmm-", "linear-2", "linear-4", "matmul-", "linear-None-no_res"))
    or (name.startswith("conv2d-") and "-None-no_residual" in name)
}
cases = pytest.mark.parametrize("case", HAVE_IT.values(), ids=HAVE_IT)
dtypes = pytest.mark.parametrize("dtype", [HALF, BRAIN], ids=dtype_id)


def node_of(result: torch.Tensor) -> str:
    return type(result.grad_fn).__name__


def calls(cutwheel: ModuleType, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Results that have the node, by the function, with their operands."""
    x, weight, bias = random_leaves(((24, 40), (56, 40), (56,)), dtype, device)
    image, filters, of_image = present(conv_leaves(STRIDED, dtype, device))
    channels, taps, _ = present(conv_leaves(DEPTHWISE, dtype, device))
    return {
        "mm": (cutwheel.mm(x, weight.t()), (x, weight)),
        "addmm": (cutwheel.addmm(bias, x, weight.t()), (bias, x, weight)),
        "linear": (cutwheel.linear(x, weight, bias), (x, weight, bias)),
        "conv2d": (
            cutwheel.conv2d(image, filters, of_image, stride=2, padding=1),
            (image, filters, of_image),
        ),
        "depthwise": (cutwheel.conv2d(channels, taps, padding=1, groups=16), (channels, taps)),
    }


@dtypes
def test_training_has_it(cutwheel: ModuleType, cuda: str, dtype: torch.dtype) -> None:
    for name, (result, _) in calls(cutwheel, dtype, cuda).items():
        assert node_of(result) == NODE, name


def test_what_would_lose_by_it_has_not(cutwheel: ModuleType, cuda: str) -> None:
    x, weight = random_leaves(((24, 40), (56, 40)), BRAIN, cuda)
    frozen = weight.detach()  # the node would keep x for it
    single, single_weight = random_leaves(((24, 40), (56, 40)), SINGLE, cuda)
    image, filters, _ = present(conv_leaves(STRIDED, BRAIN, cuda))

    class Subclass(torch.Tensor):
        pass

    results = {
        "frozen": cutwheel.linear(x, frozen),
        "float32": cutwheel.linear(single, single_weight),
        "float32 result": cutwheel.mm(x, weight.t(), torch.float32),
        "scaled": cutwheel.addmm(x.new_zeros(56), x, weight.t(), alpha=2),
        "broadcast": cutwheel.addmm(x.new_zeros(1), x, weight.t()),
        "column-major": cutwheel.mm(weight.t(), x.detach()[:56].new_ones(56, 8)),
        "subclass": cutwheel.linear(x, weight.detach().as_subclass(Subclass).requires_grad_()),
        "epilogue": cutwheel.linear(x, weight, activation="relu"),
        "uneven": cutwheel.conv2d(image, filters[..., :2, :2], padding="same"),
        "volume": cutwheel.conv3d(image[:, :, None], filters[:, :, None], padding=1),
    }
    assert NODE not in {name: node_of(result) for name, result in results.items()}.values()


@dtypes
@cases
def test_gradients(cutwheel: ModuleType, cuda: str, case: Case, dtype: torch.dtype) -> None:
    compare_any_gradients(case, cutwheel, cuda, dtype)


@pytest.mark.parametrize(
    ("case", "layout"),
    [(case, layout) for case in HAVE_IT.values() for layout in case.lays],
    ids=[f"{name}-{layout}" for name, case in HAVE_IT.items() for layout in case.lays],
)
def test_tensors_and_gradients_may_lie_anyhow(
    cutwheel: ModuleType, cuda: str, case: Case, layout: str
) -> None:
    ours, theirs = case.both(cutwheel, cuda)
    for plain in map(present, case.variants(BRAIN, cuda)):
        given = [case.lay(layout, x.detach()).requires_grad_() for x in plain]
        exact = [x.detach().double().requires_grad_() for x in given]
        result, expected = ours(*given), theirs(*exact)
        seed = case.lay(layout, random_tensor(tuple(result.shape), BRAIN, cuda))
        for upstream in (seed, seed.flatten()[0].expand_as(result)):
            grads = torch.autograd.grad(result, given, upstream, retain_graph=True)
            wanted = torch.autograd.grad(expected, exact, upstream.double(), retain_graph=True)
            for got, want in zip(grads, wanted, strict=True):
                assert_near(got, want, BRAIN)


@dtypes
def test_gradients_of_random_convolutions(
    cutwheel: ModuleType, cuda: str, dtype: torch.dtype
) -> None:
    needs = itertools.cycle(subsets(3))
    problems = (DEPTHWISE, *drawn(17, 5, even=True), *drawn(5, 6, groups=True, even=True))
    for problem in problems:
        ours, theirs = both(cutwheel, problem[2])
        compare_gradients(ours, theirs, conv_leaves(problem, dtype, cuda, next(needs)), dtype)


@pytest.mark.parametrize("name", ["mm", "addmm", "linear", "conv2d", "depthwise"])
def test_second_gradients(cutwheel: ModuleType, cuda: str, name: str) -> None:
    """Of a penalty on the first ones, as torch's functions of the same tensors have them."""
    torchs = {
        "mm": lambda x, w: x @ w.t(),
        "addmm": lambda c, x, w: c + x @ w.t(),
        "linear": torch.nn.functional.linear,
        "conv2d": lambda x, w, b: torch.nn.functional.conv2d(x, w, b, 2, 1),
        "depthwise": lambda x, w: torch.nn.functional.conv2d(x, w, padding=1, groups=16),
    }
    result, given = calls(cutwheel, HALF, cuda)[name]
    assert node_of(result) == NODE
    exact = [x.detach().double().requires_grad_() for x in given]

    def penalty(result: torch.Tensor, inputs: Any, seed: torch.Tensor) -> Any:
        first = torch.autograd.grad(result, inputs, seed, create_graph=True)
        sums = sum((g * g.detach().sign()).sum() for g in first)
        return first, torch.autograd.grad(sums, inputs, allow_unused=True)

    seed = random_tensor(tuple(result.shape), HALF, cuda).contiguous()
    ours = penalty(result, given, seed)
    theirs = penalty(torchs[name](*exact), exact, seed.double())
    for got, want in zip(ours[0], theirs[0], strict=True):
        assert_near(got.detach(), want.detach(), HALF)
    for got, want in zip(ours[1], theirs[1], strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            assert got.shape == want.shape
            assert got.isfinite().all()


def test_it_looks_for_changes_in_place(cutwheel: ModuleType, cuda: str) -> None:
    x, weight = random_leaves(((24, 40), (56, 40)), BRAIN, cuda)
    result = cutwheel.linear(x, weight)
    with torch.no_grad():
        weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_errors_are_those_of_the_function(cutwheel: ModuleType, cuda: str) -> None:
    x, weight, bias = random_leaves(((24, 40), (56, 40), (55,)), BRAIN, cuda)
    with pytest.raises(ValueError, match=r"linear: bias has shape \[55\]"):
        cutwheel.linear(x, weight, bias)
    with pytest.raises(ValueError, match="mm: "):
        cutwheel.mm(x, weight)
    with pytest.raises(TypeError, match="linear: weight has dtype float16; expected bfloat16"):
        cutwheel.linear(x, weight.detach().half().requires_grad_())
    image, filters, _ = present(conv_leaves(STRIDED, BRAIN, cuda))
    with pytest.raises(ValueError, match="conv2d: "):
        cutwheel.conv2d(image[:, :8], filters)


def test_it_is_for_our_calls_alone(cutwheel: ModuleType, cuda: str) -> None:
    x, weight = random_leaves(((2, 8, 6), (8, 8, 3)), BRAIN, cuda)
    cutwheel.linear(*random_leaves(((24, 40), (56, 40)), BRAIN, cuda))
    op = torch.ops.aten.convolution_overrideable
    with pytest.raises(RuntimeError, match=r"call torch\.convolution"):
        op(x, weight, None, [1], [1], [1], False, [0], 1)


def test_compiled_autograd(cutwheel: ModuleType, cuda: str) -> None:
    """Backward as torch.compile traces it from the nodes of an eager forward pass."""
    from torch._dynamo import compiled_autograd

    for name, (result, given) in calls(cutwheel, BRAIN, cuda).items():
        seed = random_tensor(tuple(result.shape), BRAIN, cuda)
        eager = torch.autograd.grad(result, given, seed, retain_graph=True)
        for x in given:
            x.grad = None
        with compiled_autograd._enable(torch.compile(backend="eager")):
            result.backward(seed)
        for x, want in zip(given, eager, strict=True):
            assert torch.equal(x.grad, want), name
