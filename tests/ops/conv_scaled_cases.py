"""Calls of cutwheel.scaled_conv2d, and which of them a row of the kernel table serves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from conv_cases import PROBLEMS
from conv_layouts import Sizes, assert_channels_last, laid
from conv_reference import Geometry, fprop, longest_sum
from gemm_cases import BRAIN, TORCH_DTYPE, manifest
from reference import assert_as_good_as, poison, told
from scaled_cases import DEVIATION, random_bias, random_scales, random_values
from scaled_reference import FP8_STEP_ALONE, INT8, ScaledProblem, wide


@dataclass(frozen=True, eq=False)
class ScaledConv:
    """x [N, C, H, W], weight [Ko, C, R, S], and how they are handed over."""

    g: Geometry
    x: torch.Tensor
    weight: torch.Tensor
    scale_x: torch.Tensor  # one element
    scale_w: torch.Tensor  # one element, or [Ko]
    d: torch.dtype = BRAIN
    bias: torch.Tensor | None = None
    lay_x: str = "channels_last"
    lay_weight: str = "channels_last"

    @classmethod
    def random(
        cls,
        input_size: Sizes,
        weight_size: Sizes,
        g: Geometry,
        dtype: torch.dtype,
        device: str,
        d: torch.dtype = BRAIN,
        bias: str | None = None,
        by_filter: bool = True,
        **options: Any,
    ) -> ScaledConv:
        """Products have a standard deviation near 1.

        Args:
            bias: "d" for the dtype of the result, "f32", or None
        """

        def operand(sizes: Sizes) -> torch.Tensor:
            n, c, h, w = sizes
            return random_values(n * h * w, c, dtype, device).view(n, h, w, c).permute(0, 3, 1, 2)

        k_out = weight_size[0]
        unit = 1 / (DEVIATION[dtype] * math.prod(weight_size[1:]) ** 0.25)
        scale_x = random_scales((1,), unit, device)
        scale_w = random_scales((k_out if by_filter else 1,), unit, device)
        x, weight = operand(input_size), operand(weight_size)
        row = random_bias(k_out, bias, d, device)
        return cls(g, x, weight, scale_x, scale_w, d, row, **options)

    @property
    def arguments(self) -> dict[str, Any]:
        (top, bottom, left, right), g = self.g.padding, self.g
        assert (top, left) == (bottom, right), "scaled_conv2d has no such padding"
        return {
            "input": laid(self.x, self.lay_x),
            "weight": laid(self.weight, self.lay_weight),
            "scale_input": self.scale_x,
            "scale_weight": self.scale_w,
            "bias": self.bias,
            "stride": g.stride,
            "padding": (top, left),
            "dilation": g.dilation,
            "out_dtype": self.d,
        }

    def run(self, cutwheel: Any, **changed: Any) -> torch.Tensor:
        result: torch.Tensor = cutwheel.scaled_conv2d(**{**self.arguments, **changed})
        return result

    def run_op(self) -> torch.Tensor:
        """The library's op, with padding of any kind."""
        given = *self.arguments_of_op, *self.g.numbers
        result: torch.Tensor = torch.ops.cutwheel.scaled_conv2d(*given, self.d)
        return result

    @property
    def arguments_of_op(self) -> tuple[torch.Tensor | None, ...]:
        x, weight = laid(self.x, self.lay_x), laid(self.weight, self.lay_weight)
        return x, weight, self.scale_x, self.scale_w, self.bias

    def problem(self) -> ScaledProblem:
        x, weight = wide(self.x), wide(self.weight)
        scale = wide(self.scale_x) * wide(self.scale_w).view(-1, 1, 1)
        value, magnitude = (
            scale * fprop(*operands, self.g) for operands in ((x, weight), (x.abs(), weight.abs()))
        )
        if self.bias is not None:
            row = self.bias.double().view(-1, 1, 1)
            value, magnitude = value + row, magnitude + row.abs()
        k = longest_sum("fprop", self.x.shape, self.weight.shape, self.g)
        slack = 0.0 if self.x.dtype == INT8 else FP8_STEP_ALONE
        return ScaledProblem(value, magnitude, k, self.x.dtype, slack)

    def judge(self, result: torch.Tensor) -> None:
        """torch has no such convolution: float64, rounded once, takes its place."""
        problem = self.problem()
        assert_channels_last(result, self)
        with told(self):
            assert_as_good_as(result, problem.value.to(self.d), problem)

    def check(self, cutwheel: Any = None) -> torch.Tensor:
        """Runs scaled_conv2d (without `cutwheel` the op) and compares it with float64."""
        n, (k_out, _, *kernel) = self.x.shape[0], self.weight.shape
        sizes = (n, k_out, *self.g.extents(self.x.shape[2:], kernel))
        poison(sizes, self.d, self.x.device)
        with told(self):
            result = self.run_op() if cutwheel is None else self.run(cutwheel)
        self.judge(result)
        return result

    def __str__(self) -> str:
        types = f"{self.x.dtype} -> {self.d}".replace("torch.", "")
        bias = "no" if self.bias is None else str(self.bias.dtype).removeprefix("torch.")
        return (
            f"{tuple(self.x.shape)}, {tuple(self.weight.shape)} {types}, {self.g}, {bias} bias,"
            f" {self.scale_w.numel()} scales, layouts {self.lay_x}, {self.lay_weight}"
        )


def scaled_of_row(row: Mapping[str, Any], device: str) -> Iterator[ScaledConv]:
    """Convolutions that this row of the table serves; no extent is a multiple of a tile."""
    operands = manifest()["epilogues"][row["epilogue"]]["operands"]
    bias = "f32" if operands.get("bias", "").endswith(" f32") else "d"
    for number, problem in enumerate(PROBLEMS):
        dtype, d = TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]]
        yield ScaledConv.random(*problem, dtype, device, d, bias, by_filter=number != 1)
