"""Convolutions of volumes, and transposed ones: problems, and how far results may be away."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from conv_layouts import laid
from fused_cases import activate, values
from reference import Problem, assert_as_good_as, poison, told
from torch.nn import functional

SEED = 41
Ints = tuple[int, ...]
Pairs = tuple[tuple[int, int], ...]
Tensor = torch.Tensor
_LARGEST = 4e6  # elements of all windows


@dataclass(frozen=True)
class Where:
    """Stride, padding (in front and behind) and dilation of each dimension."""

    stride: Ints
    padding: Pairs
    dilation: Ints

    @classmethod
    def of(cls, dims: int, padding: Pairs | None = None) -> Where:
        return cls((1,) * dims, padding or ((0, 0),) * dims, (1,) * dims)

    @property
    def numbers(self) -> Ints:
        """As the ops take them."""
        return *self.stride, *itertools.chain(*self.padding), *self.dilation

    def extents(self, size: Sequence[int], taps: Sequence[int]) -> Ints:
        each = zip(size, taps, self.stride, self.padding, self.dilation, strict=True)
        return tuple((x + sum(p) - d * (t - 1) - 1) // s + 1 for x, t, s, p, d in each)

    def padded(self, x: Tensor) -> Tensor:
        return functional.pad(x, list(itertools.chain(*reversed(self.padding))))

    def cropped(self, x: Tensor) -> Tensor:
        for dim, (before, after) in enumerate(self.padding, 2):
            x = x.narrow(dim, before, x.shape[dim] - before - after)
        return x


def fprop(x: Tensor, weight: Tensor, where: Where) -> Tensor:
    conv = {2: functional.conv2d, 3: functional.conv3d}[len(where.stride)]
    return conv(where.padded(x), weight, None, where.stride, 0, where.dilation)


def _backward(grad: Tensor, x: Tensor, weight: Tensor, where: Where, which: int) -> Tensor:
    wanted, none = [i == which for i in range(3)], [0] * len(where.stride)
    rest = (list(where.stride), none, list(where.dilation), False, none, 1, wanted)
    found: Tensor = torch.ops.aten.convolution_backward(grad, x, weight, None, *rest)[which]
    return found


def dgrad(grad: Tensor, weight: Tensor, size: Sequence[int], where: Where) -> Tensor:
    extents = [x + sum(p) for x, p in zip(size, where.padding, strict=True)]
    x = grad.new_zeros(grad.shape[0], weight.shape[1], *extents)
    return where.cropped(_backward(grad, x, weight, where, 0))


def wgrad(grad: Tensor, x: Tensor, taps: Sequence[int], where: Where) -> Tensor:
    weight = grad.new_zeros(grad.shape[1], x.shape[1], *taps)
    return _backward(grad, where.padded(x), weight, where, 1)


@dataclass(frozen=True, eq=False)
class Volume:
    """One direction of a convolution of volumes, or of a transposed one of any dimensions.

    a and b: as in conv_cases.Conv. epilogue: of fprop and of transposed convolutions.
    """

    direction: str
    where: Where
    input_size: Ints
    weight_size: Ints
    a: Tensor
    b: Tensor
    epilogue: str = "plain"
    operands: Mapping[str, Tensor] = field(default_factory=dict)
    is_transposed: bool = False
    lay_a: str = "as_it_is"
    lay_b: str = "as_it_is"

    @classmethod
    def random(
        cls,
        direction: str,
        input_size: Ints,
        weight_size: Ints,
        where: Where,
        dtype: torch.dtype,
        device: str,
        epilogue: str = "plain",
        is_transposed: bool = False,
    ) -> Volume:
        (images, c, *size), (k_out, _, *taps) = input_size, weight_size
        output_size = (images, k_out, *where.extents(size, taps))
        summed = math.prod(taps) * (c if direction == "fprop" else k_out)
        weight = 2.0 ** round(math.log2(2 * summed**-0.5)) * values(weight_size, dtype, device)
        x, dy = (values(shape, dtype, device) for shape in (input_size, output_size))
        a, b = {"fprop": (x, weight), "dgrad": (dy, weight), "wgrad": (dy, x)}[direction]
        operands = {}
        if "bias" in epilogue:
            operands["bias"] = values((c if is_transposed else k_out,), dtype, device)
        if "residual" in epilogue:
            operands["residual"] = values(output_size, dtype, device)
        given = (direction, where, input_size, weight_size, a, b, epilogue, operands)
        return cls(*given, is_transposed)

    def laid_out(self, number: int) -> Volume:
        """The operands in one of the orders that callers have them in."""
        ways = ("as_it_is", "last", "slices")
        return replace(self, lay_a=ways[number % 3], lay_b=ways[number // 3 % 2])

    @property
    def positional(self) -> tuple[Tensor, Tensor]:
        return _laid(self.a, self.lay_a), _laid(self.b, self.lay_b)

    @property
    def result_size(self) -> Ints:
        if self.direction == "fprop":
            taps, size = self.weight_size[2:], self.input_size[2:]
            return self.input_size[0], self.weight_size[0], *self.where.extents(size, taps)
        return self.input_size if self.direction == "dgrad" else self.weight_size

    def run(self, as_they_are: bool = False) -> Tensor:
        """The library's op. as_they_are: on a and b themselves."""
        a, b = (self.a, self.b) if as_they_are else self.positional
        ops, geometry = torch.ops.cutwheel, self.where.numbers
        bias, residual = self.operands.get("bias"), self.operands.get("residual")
        if self.is_transposed:
            op = {4: ops.conv_transpose2d, 5: ops.conv_transpose3d}[a.dim()]
            return op(a, b, bias, *self.input_size[2:], *geometry, self.epilogue)
        if self.direction == "dgrad":
            return ops.conv3d_input_grad(a, b, *self.input_size[2:], *geometry)
        if self.direction == "wgrad":
            return ops.conv3d_weight_grad(a, b, *self.weight_size[2:], *geometry)
        if self.epilogue in ("plain", "bias"):
            return ops.conv3d(a, b, bias, *geometry)
        return ops.conv3d_fused(a, b, bias, residual, *geometry, self.epilogue)

    def row(self) -> str | None:
        """The kernel that the library takes without an epilogue."""
        operands: list[Tensor | None] = [*self.positional]
        op, size = "conv3d", self.result_size[2:]
        if self.direction == "fprop":
            operands, size = [*operands, None], ()
        else:
            op += "_input_grad" if self.direction == "dgrad" else "_weight_grad"
        geometry = [*self.where.numbers, *size]
        given = op, operands, None, 1, False, ""
        found = json.loads(torch.ops.cutwheel._explain(*given, geometry=geometry))
        row: str | None = found["plans"][0]["row"] if found.get("plans") else None
        return row

    def _accum(self, a: Tensor, b: Tensor) -> Tensor:
        if self.direction == "fprop":
            return fprop(a, b, self.where)
        if self.direction == "dgrad":
            return dgrad(a, b, self.input_size[2:], self.where)
        return wgrad(a, b, self.weight_size[2:], self.where)

    def _followed(self, z: Tensor) -> Tensor:
        if "bias" in self.operands:
            z = z + self.operands["bias"].to(z.dtype).view(-1, *(1,) * (z.dim() - 2))
        if "residual" in self.operands:
            z = z + self.operands["residual"].to(z.dtype)
        return activate("relu", z) if self.epilogue.endswith("relu") else z

    def judge(self, result: Tensor) -> None:
        a, b = self.a.detach(), self.b.detach()
        value = self._followed(self._accum(a.double(), b.double()))
        magnitude = self._accum(a.double().abs(), b.double().abs())
        for name in self.operands:
            added = self.operands[name].double().abs()
            magnitude = magnitude + (
                added.view(-1, *(1,) * (value.dim() - 2)) if name == "bias" else added
            )
        (images, c, *_), (k_out, _, *taps) = self.input_size, self.weight_size
        positions = images * math.prod(self.where.extents(self.input_size[2:], taps))
        of_taps = math.prod(taps)
        k = {"fprop": c * of_taps, "dgrad": k_out * of_taps, "wgrad": positions}[self.direction]
        theirs = self._followed(self._accum(a, b)).to(a.dtype)
        assert_as_good_as(result, theirs, Problem(value, magnitude, k, a.dtype))
        assert_channels_are_last(result)

    def check(self, run: Callable[[], Tensor] | None = None) -> Tensor:
        poison(self.result_size, self.a.dtype, self.a.device)
        with told(self):
            result = (run or self.run)()
            self.judge(result)
        return result

    def __str__(self) -> str:
        kind = "transposed" if self.is_transposed else self.direction
        return (
            f"{kind} {self.epilogue} of {self.input_size}, {self.weight_size} {self.a.dtype}, "
            f"{self.where}, layouts {self.lay_a}, {self.lay_b}, seed {SEED}"
        )


def assert_channels_are_last(result: Tensor) -> None:
    """Exactly, also where a size is 1 and other strides would do."""
    step, strides = result.shape[1], []
    for size in reversed(result.shape[2:]):
        strides.insert(0, step)
        step *= size
    assert result.stride() == (step, 1, *strides)


def _laid(x: Tensor, how: str) -> Tensor:
    """ "slices": every second slice of a larger volume, which are not evenly spaced in a batch."""
    if how == "last" and x.dim() == 5:
        return x.contiguous(memory_format=torch.channels_last_3d)
    if how == "slices" and x.dim() == 5:
        whole = x.repeat_interleave(2, 2).contiguous(memory_format=torch.channels_last_3d)
        return torch.cat((whole, whole[:, :, :1]), 2)[:, :, 0:-1:2]
    return laid(x, "channels_last") if x.dim() == 4 and how == "last" else x


CHANNELS = (1, 3, 8, 16, 24, 64, 72, 96, 130, 200)


def drawn(count: int, seed: int = SEED) -> Iterator[tuple[Ints, Ints, Where]]:
    """(input size, weight size, where) of volumes with any padding, strides and dilations."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    while count:
        taps = tuple(rng.choice((1, 2, 3, 3)) for _ in range(3))
        where = Where(
            tuple(rng.choice((1, 1, 2, 3)[: 4 if axis == 0 else 3]) for axis in range(3)),
            tuple(rng.choice(((0, 0), (1, 1), (2, 0), (0, 2), (1, 2))) for _ in range(3)),
            tuple(rng.choice((1, 1, 2)) for _ in range(3)),
        )
        size = rng.choice((1, 3, 5, 7)), rng.choice((1, 4, 9, 14)), rng.choice((2, 7, 13, 16))
        n, c, k_out = rng.choice((1, 1, 2, 3)), rng.choice(CHANNELS), rng.choice(CHANNELS)
        extents = where.extents(size, taps)
        if min(extents) < 1 or n * math.prod(extents) * math.prod(taps) * c > _LARGEST:
            continue
        count -= 1
        yield (n, c, *size), (k_out, c, *taps), where


# What video models have, and what their corners are: causal, strides along the depth, a class of
# dgrad without a tap, one slice that lies in padding, more padding than the filter reaches.
PROBLEMS: dict[str, tuple[Ints, Ints, Where]] = {
    "same": ((2, 72, 5, 9, 11), (136, 72, 3, 3, 3), Where.of(3, ((1, 1),) * 3)),
    # Pixels of one line of L2 and a half, and many of them: a layer whose filter may be padded.
    "lines": ((1, 96, 4, 96, 96), (96, 96, 3, 3, 3), Where.of(3, ((1, 1),) * 3)),
    "causal": ((1, 96, 4, 10, 13), (96, 96, 3, 3, 3), Where.of(3, ((2, 0), (1, 1), (1, 1)))),
    "strided": (
        (2, 40, 6, 9, 8),
        (24, 40, 3, 3, 2),
        Where((2, 2, 1), ((1, 0), (1, 1), (0, 1)), (1, 1, 2)),
    ),
    "no_tap": ((1, 16, 7, 8, 8), (24, 16, 2, 1, 2), Where((3, 2, 2), ((0, 0),) * 3, (1, 1, 1))),
    "in_padding": ((2, 16, 1, 9, 7), (64, 16, 1, 3, 3), Where((3, 1, 1), ((1, 1),) * 3, (1, 1, 1))),
    "wide_padding": ((1, 16, 4, 6, 6), (24, 16, 2, 2, 2), Where.of(3, ((3, 2), (2, 3), (2, 2)))),
    "few_channels": ((1, 3, 6, 12, 13), (64, 3, 3, 3, 3), Where.of(3, ((2, 0), (1, 1), (1, 1)))),
    "split": ((1, 16, 17, 40, 40), (24, 16, 3, 3, 3), Where.of(3, ((1, 1),) * 3)),
}

# Transposed: sizes are those of the convolution whose dgrad it is, input_size that of the result.
TRANSPOSED: dict[str, tuple[Ints, Ints, Where]] = {
    "patches": ((2, 64, 12, 14), (130, 64, 2, 2), Where((2, 2), ((0, 0),) * 2, (1, 1))),
    "of_few": ((1, 3, 12, 14), (64, 3, 4, 4), Where((2, 2), ((1, 1),) * 2, (1, 1))),
    "overlapping": ((2, 72, 13, 15), (40, 72, 3, 3), Where((2, 2), ((1, 1),) * 2, (1, 1))),
    "no_tap": ((2, 24, 11, 10), (40, 24, 2, 1), Where((3, 2), ((0, 0),) * 2, (1, 1))),
    "stride_1": ((2, 200, 9, 8), (72, 200, 3, 3), Where.of(2, ((1, 1),) * 2)),
    "pointwise": ((2, 24, 9, 8), (72, 24, 1, 1), Where.of(2)),
    "volume": (
        (1, 40, 6, 8, 10),
        (72, 40, 2, 4, 4),
        Where((2, 2, 2), ((0, 0), *((1, 1),) * 2), (1,) * 3),
    ),
    "volume_no_tap": (
        (2, 24, 7, 5, 6),
        (16, 24, 2, 1, 2),
        Where((3, 2, 2), ((0, 0),) * 3, (1,) * 3),
    ),
}
EPILOGUES = ("plain", "bias", "bias_relu")
