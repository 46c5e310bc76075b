"""Calls of cutwheel.scaled_conv2d, and which of them a row of the kernel table serves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from conv_cases import PROBLEMS
from conv_layouts import Sizes, assert_channels_last, laid
from conv_reference import Geometry, fprop, longest_sum
from gemm_cases import BRAIN, TORCH_DTYPE, manifest
from reference import APPROXIMATION, assert_as_good_as, poison, told
from scaled_cases import DEVIATION, random_bias, random_scales, random_values
from scaled_reference import E4M3, FP8_STEP_ALONE, INT8, LARGEST, ScaledProblem, wide

ACTIVATIONS: dict[str | None, Callable[[torch.Tensor], torch.Tensor]] = {
    None: lambda z: z,
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
}


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
    activation: str | None = None
    residual: torch.Tensor | None = None  # of the result's shape and dtype, which has 8 bits
    scale_residual: torch.Tensor | None = None  # one element
    scale_result: torch.Tensor | None = None  # one element, of a result of 8 bits
    lay_residual: str = "channels_last"

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
        has_residual: bool = False,
        **options: Any,
    ) -> ScaledConv:
        """Products have a standard deviation near 1; results of 8 bits saturate from 4 on.

        Args:
            bias: "d" for the dtype of the result, "f32", or None
            has_residual: of a result of 8 bits
        """

        def operand(sizes: Sizes) -> torch.Tensor:
            n, c, h, w = sizes
            return random_values(n * h * w, c, dtype, device).view(n, h, w, c).permute(0, 3, 1, 2)

        k_out = weight_size[0]
        unit = 1 / (DEVIATION[dtype] * math.prod(weight_size[1:]) ** 0.25)
        scale_x = random_scales((1,), unit, device)
        scale_w = random_scales((k_out if by_filter else 1,), unit, device)
        x, weight = operand(input_size), operand(weight_size)
        row = random_bias(k_out, bias, BRAIN if d in LARGEST else d, device)
        if d in LARGEST:
            options["scale_result"] = torch.full((1,), 4 / LARGEST[d], device=device)
        if has_residual:
            sizes = (input_size[0], k_out, *g.extents(input_size[2:], weight_size[2:]))
            options["residual"] = operand(sizes)
            options["scale_residual"] = random_scales((1,), 0.5 / DEVIATION[d], device)
        return cls(g, x, weight, scale_x, scale_w, d, row, **options)

    @property
    def added(self) -> dict[str, Any]:
        """What a result of 8 bits may have."""
        residual = self.residual
        return {
            "residual": residual if residual is None else laid(residual, self.lay_residual),
            "scale_residual": self.scale_residual,
            "scale_result": self.scale_result,
        }

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
            "activation": self.activation,
            **self.added,
        }

    def run(self, cutwheel: Any, **changed: Any) -> torch.Tensor:
        result: torch.Tensor = cutwheel.scaled_conv2d(**{**self.arguments, **changed})
        return result

    def run_op(self) -> torch.Tensor:
        """The library's op, with padding of any kind."""
        given = *self.arguments_of_op, *self.g.numbers
        result: torch.Tensor = torch.ops.cutwheel.scaled_conv2d(*given, *self.rest_of_op)
        return result

    @property
    def rest_of_op(self) -> tuple[Any, ...]:
        """Behind the geometry."""
        return self.d, *self.added.values(), self.activation or ""

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
        if self.residual is not None:
            assert self.scale_residual is not None
            term = wide(self.scale_residual) * wide(self.residual)
            value, magnitude = value + term, magnitude + term.abs()
        value = ACTIVATIONS[self.activation](value)
        k = longest_sum("fprop", self.x.shape, self.weight.shape, self.g)
        slack = 0.0 if self.x.dtype == INT8 else FP8_STEP_ALONE
        return ScaledProblem(value, magnitude, k, self.x.dtype, slack)

    def judge(self, result: torch.Tensor) -> None:
        """torch has no such convolution: float64, rounded once, takes its place."""
        problem = self.problem()
        assert_channels_last(result, self)
        with told(self):
            if self.d in LARGEST:
                self._judge_quantized(result, problem)
            else:
                assert_as_good_as(result, problem.value.to(self.d), problem)

    def _judge_quantized(self, result: torch.Tensor, problem: ScaledProblem) -> None:
        """Each value is the nearest to the quotient, or to one that float32 may have in its place.

        A tie that falls to the other side is no error.
        """
        assert self.scale_result is not None
        assert (result.dtype, result.shape) == (self.d, problem.value.shape)
        scale, largest = wide(self.scale_result), LARGEST[self.d]
        # The multiplications of the epilogue, and those of the reciprocal: a few roundings.
        step = max(problem.k / 16, 8) * 2.0**-24 + problem.slack
        if self.activation == "silu":
            step += APPROXIMATION[BRAIN]
        slack = step * problem.magnitude / scale
        wanted = (problem.value / scale).clamp(-128.0 if self.d == INT8 else -largest, largest)
        half = torch.full_like(wanted, 0.5)
        if self.d == E4M3:  # 3 bits behind the leading one, 2^-9 at least
            half = torch.exp2(torch.log2(wanted.abs() + slack).floor().clamp_min(-6) - 4)
        if result.numel() == 0:
            return
        off = (wide(result) - wanted).abs() - half - slack
        assert off.max() <= 0, f"{int((off > 0).sum())} values are off, one by {off.max():.3g}"

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
        residual = "no" if self.residual is None else self.lay_residual
        return (
            f"{tuple(self.x.shape)}, {tuple(self.weight.shape)} {types}, {self.g}, {bias} bias,"
            f" {self.activation}, {residual} residual,"
            f" {self.scale_w.numel()} scales, layouts {self.lay_x}, {self.lay_weight}"
        )


def scaled_of_row(row: Mapping[str, Any], device: str) -> Iterator[ScaledConv]:
    """Convolutions that this row of the table serves; no extent is a multiple of a tile."""
    operands = manifest()["epilogues"][row["epilogue"]]["operands"]
    bias = "f32" if operands.get("bias", "").endswith(" f32") else "d"
    for number, problem in enumerate(PROBLEMS):
        dtype, d = TORCH_DTYPE[row["a"]], TORCH_DTYPE[row["d"]]
        activation = "silu" if row["epilogue"].endswith("silu") else (None, "relu")[number % 2]
        yield ScaledConv.random(
            *(*problem, dtype, device, d, bias),
            by_filter=number != 1,
            has_residual="residual" in operands,
            activation=activation,
        )
