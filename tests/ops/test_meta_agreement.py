"""The check that meta functions agree with kernels, with an op of its own on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from meta_agreement import MetaAgreement

Tensor = torch.Tensor
NAMESPACE = "cutwheel_meta_agreement"
META: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "right": lambda x: (x.new_empty(x.shape[::-1]), x.new_empty(3, dtype=torch.int32)),
    "shape": lambda x: (x.new_empty(x.shape), x.new_empty(3, dtype=torch.int32)),
    "dtype": lambda x: (x.new_empty(x.shape[::-1]), x.new_empty(3)),
    "strides": lambda x: (x.new_empty(x.shape).t(), x.new_empty(3, dtype=torch.int32)),
}


def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.t().contiguous(), torch.zeros(3, dtype=torch.int32)


@pytest.fixture
def ops() -> Iterator[torch.library.Library]:
    library = torch.library.Library(NAMESPACE, "DEF")
    for name, meta in META.items():
        library.define(f"{name}(Tensor x) -> (Tensor, Tensor)")
        library.impl(name, kernel, "CPU")
        library.impl(name, meta, "Meta")
    library.define("nothing(Tensor x) -> ()")
    library.impl("nothing", lambda x: None, "CPU")
    yield library
    library._destroy()


def test_a_right_meta_function_passes(ops: torch.library.Library) -> None:
    with MetaAgreement(NAMESPACE) as mode:
        result, _ = getattr(torch.ops, NAMESPACE).right(torch.ones(2, 5))
        torch.ops.cutwheel_meta_agreement.nothing(result)
    assert result.shape == (5, 2)
    assert mode.compared == 1


@pytest.mark.parametrize("wrong", ["shape", "dtype", "strides"])
def test_a_wrong_one_is_caught(ops: torch.library.Library, wrong: str) -> None:
    op = getattr(getattr(torch.ops, NAMESPACE), wrong)
    with MetaAgreement(NAMESPACE), pytest.raises(AssertionError, match=f"{wrong}.*meta function"):
        op(torch.ones(2, 5))
    with MetaAgreement("another"):
        op(torch.ones(2, 5))


def test_fake_tensors_are_left_alone(ops: torch.library.Library) -> None:
    with MetaAgreement(NAMESPACE) as mode:
        getattr(torch.ops, NAMESPACE).shape(torch.empty(2, 5, device="meta"))
    assert mode.compared == 0
