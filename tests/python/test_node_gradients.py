"""Gradients behind torch's own autograd node, as they are where they are differentiated again: on
CPU kernels in float64. The node itself is CUDA's (tests/ops/test_autograd_node_gpu.py)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps

Tensor = torch.Tensor
# Stride, padding, dilation, transposed, output_padding and groups, as the node has them.
LAYER = ([], [], [], False, [], 1)
PRODUCT = ([], [], [], True, [], 1)
IMAGE = ([2, 1], [1, 0], [1, 2], False, [0, 0], 1)
# Shapes of the input and the weight, and torch's function of these and a bias.
CASES: dict[str, tuple[Any, Any, Any, Callable[..., Tensor]]] = {
    "linear": (LAYER, (24, 40), (56, 40), F.linear),
    "linear of batches": (LAYER, (2, 3, 40), (56, 40), F.linear),
    "linear of a vector": (LAYER, (40,), (56, 40), F.linear),
    "mm": (PRODUCT, (24, 40), (40, 56), lambda x, w, b: torch.addmm(b, x, w)),
    "conv2d": (
        IMAGE,
        (2, 4, 9, 8),
        (6, 4, 3, 3),
        lambda x, w, b: F.conv2d(x, w, b, *IMAGE[:3]),
    ),
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradients_once_and_twice(cpu_ops: CpuOps, name: str, turned: bool) -> None:
    form, x_shape, w_shape, torchs = CASES[name]
    x, w = (torch.randn(shape, dtype=torch.float64) for shape in (x_shape, w_shape))
    if turned:
        w = w.mT.contiguous().mT
    b = torch.randn(w_shape[1 if form is PRODUCT else 0], dtype=torch.float64)
    leaves = [tensor.requires_grad_() for tensor in (x, w, b)]
    result = torchs(*leaves)
    seed = torch.randn_like(result).requires_grad_()
    for wanted in itertools.product((False, True), repeat=3):
        if not any(wanted):
            continue
        chosen = [leaf for leaf, is_wanted in zip(leaves, wanted, strict=True) if is_wanted]
        want = torch.autograd.grad(result, chosen, seed, create_graph=True)
        got = torch.ops.cutwheel._node_gradients(seed, x, w, *form, [*wanted])
        assert [tensor is not None for tensor in got] == [*wanted]
        found = [tensor for tensor in got if tensor is not None]
        for ours, theirs in zip(found, want, strict=True):
            torch.testing.assert_close(ours, theirs)
        if wanted == (False, False, True):
            continue  # a sum: it depends on the seed alone
        others = [seed, x, w]
        twice = [
            torch.autograd.grad(
                sum((grad**2).sum() for grad in grads), others, allow_unused=True, retain_graph=True
            )
            for grads in (found, want)
        ]
        for ours, theirs in zip(*twice, strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs)


def test_a_weights_gradient_lies_as_the_weight(cpu_ops: CpuOps) -> None:
    x, w, grad = (torch.randn(s, dtype=torch.float64) for s in ((24, 40), (56, 40), (24, 56)))
    for weight, form in ((w, LAYER), (w.mT.contiguous().mT, LAYER), (w.t(), PRODUCT)):
        of_weight = torch.ops.cutwheel._node_gradients(
            grad, x, weight, *form, [False, True, False]
        )[1]
        assert (of_weight.shape, of_weight.stride()) == (weight.shape, weight.stride())
