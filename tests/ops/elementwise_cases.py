"""Calls of the op cutwheel::elementwise, and what they should give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from epilogue_cases import declared
from epilogue_reference import BOUND_FUNCTIONS, Bound, Epilogue, evaluate
from gemm_cases import TORCH_DTYPE, random_tensor
from reference import Weighed


def random_operands(
    epilogue: Epilogue, shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> list[torch.Tensor]:
    """By position: [..., N], wide ones [..., 2N]; a standard deviation of 2."""
    *leading, n = shape
    return [
        2 * random_tensor((*leading, 2 * n if "2N" in kind else n), dtype, device)
        for kind in epilogue.tensors.values()
    ]


def torchs(epilogue: Epilogue, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    values = dict(zip(epilogue.tensors, operands, strict=True))
    result: torch.Tensor = evaluate(epilogue, values)[0]
    return result


def weighed(epilogue: Epilogue, operands: Sequence[torch.Tensor]) -> tuple[Weighed, Weighed]:
    """(the result [..., N], its sums over all but the last extent)"""
    values = {
        name: Bound.of(x.double()) for name, x in zip(epilogue.tensors, operands, strict=True)
    }
    (found,) = evaluate(epilogue, values, BOUND_FUNCTIONS)
    like = found.value
    approx = like.new_zeros(like.shape) + found.approx
    wide = like.new_zeros(like.shape) + found.wide

    def over_rows(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, x.shape[-1]).sum(0)

    sums = Weighed(over_rows(like), over_rows(approx), over_rows(wide))
    return Weighed(like, approx, wide), sums


def run(
    epilogue: Epilogue, operands: Sequence[torch.Tensor], **asked: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor] = torch.ops.cutwheel.elementwise(
        list(operands), epilogue.name, **asked
    )
    return result


def check(epilogue: Epilogue, operands: Sequence[torch.Tensor]) -> None:
    """Result and sums, together and each alone, against float64."""
    of_torch = torchs(epilogue, operands)
    torch_sums = of_torch.reshape(-1, of_torch.shape[-1]).sum(0)
    exact, exact_sums = weighed(epilogue, operands)
    for asked in ((True, True), (True, False), (False, True)):
        poisoned = torch.full_like(of_torch, float("nan"))
        del poisoned  # the allocator gives the result this memory
        result, sums = run(epilogue, operands, with_result=asked[0], with_sums=asked[1])
        if asked[0]:
            assert result.is_contiguous()
            exact.assert_as_good(result, of_torch, f"{epilogue.name} {tuple(of_torch.shape)}")
        else:
            assert result.shape == (0,)
        if asked[1]:
            exact_sums.assert_as_good(sums, torch_sums, f"sums of {tuple(of_torch.shape)}")
        else:
            assert sums.shape == (0,)


def check_elementwise(
    cutwheel: Any, device: str, environment: Callable[..., None], row: Mapping[str, Any]
) -> None:
    """One row of the kernel table of the family elementwise."""
    # One row of an architecture serves a dtype and an epilogue: there is nothing else to choose.
    environment(CUTWHEEL_ARCH=row["arch"])
    epilogue = declared()[row["epilogue"]]
    for shape in ((264, 328), (33, 65), (1, 2)):
        check(epilogue, random_operands(epilogue, shape, TORCH_DTYPE[row["d"]], device))
