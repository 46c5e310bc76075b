"""Convolutions in three directions, what they should give, and which of them to run."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from conv_layouts import Sizes, assert_channels_last, laid
from conv_reference import Geometry, dgrad, fprop, longest_sum, wgrad
from direct_conv_cases import direct_conv_problems
from epilogue_reference import BOUND_FUNCTIONS, Bound, Epilogue, evaluate
from fused_cases import values
from gemm_cases import SINGLE, TORCH_DTYPE, manifest, manifest_kernels, random_tensor
from reference import Weighed, poison, told
from torch.nn import functional

# ---- one convolution
PLAIN = Epilogue("plain", "accum", {}, {}, "same")
BIAS = Epilogue("bias", "accum + bias", {}, {"bias": "row[N]"}, "same")


@dataclass(frozen=True, eq=False)
class Conv:
    """One direction as an op of the library takes it, and how far its result may be away.

    a and b: of fprop input and weight, of dgrad the output's gradient and the weight, of wgrad the
    output's gradient and the input.
    """

    direction: str
    g: Geometry
    input_size: Sizes
    weight_size: Sizes
    a: torch.Tensor
    b: torch.Tensor
    epilogue: Epilogue = PLAIN
    operands: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    lay_a: str = "channels_last"
    lay_b: str = "channels_last"
    lay_residual: str = "channels_last"
    exact: bool = True  # TF32 has all bits of the operands

    @classmethod
    def random(
        cls,
        direction: str,
        input_size: Sizes,
        weight_size: Sizes,
        g: Geometry,
        dtype: torch.dtype,
        device: str,
        epilogue: Epilogue = PLAIN,
        exact: bool = True,
        **options: Any,
    ) -> Conv:
        """Mixed signs; results of fprop and dgrad have a standard deviation near 2."""
        made = values if exact else random_tensor
        (images, _, *image), (k_out, channels, *kernel) = input_size, weight_size
        output_size = (images, k_out, *g.extents(image, kernel))
        summed = math.prod(kernel) * (channels if direction == "fprop" else k_out // g.groups)
        scale = 2.0 ** round(math.log2(2 * max(summed, 1) ** -0.5))
        weight = scale * made(weight_size, dtype, device)
        x, dy = (made(size, dtype, device) for size in (input_size, output_size))
        a, b = {"fprop": (x, weight), "dgrad": (dy, weight), "wgrad": (dy, x)}[direction]
        operands: dict[str, torch.Tensor | None] = {}
        for name, kind in epilogue.tensors.items():
            columns = channels if direction == "dgrad" else k_out
            operands[name] = made((columns,) if kind == "row[N]" else output_size, dtype, device)
        sizes = (tuple(input_size), tuple(weight_size))
        return cls(direction, g, *sizes, a, b, epilogue, operands, exact=exact, **options)

    @property
    def output_size(self) -> Sizes:
        """Sizes of the result."""
        if self.direction != "fprop":
            return self.input_size if self.direction == "dgrad" else self.weight_size
        p, q = self.g.extents(self.input_size[2:], self.weight_size[2:])
        return self.input_size[0], self.weight_size[0], p, q

    @property
    def positional(self) -> tuple[torch.Tensor, torch.Tensor]:
        return laid(self.a, self.lay_a), laid(self.b, self.lay_b)

    def operand(self, name: str) -> torch.Tensor | None:
        x = self.operands.get(name)
        return laid(x, self.lay_residual) if x is not None and x.dim() == 4 else x

    def run(self, as_they_are: bool = False) -> torch.Tensor:
        """The result of the library's op. as_they_are: on a and b themselves, which are views of
        less."""
        return self.run_all(as_they_are)[0]

    def run_all(self, as_they_are: bool = False) -> tuple[torch.Tensor, ...]:
        """The result, and what the epilogue stores besides."""
        if not self.epilogue.aux:
            return (self._run(as_they_are),)
        a, b = (self.a, self.b) if as_they_are else self.positional
        given = *self.g.numbers, self.epilogue.name, a.dtype == SINGLE
        tensors = a, b, self.operand("bias"), self.operand("residual")
        found: tuple[torch.Tensor, ...] = torch.ops.cutwheel.conv2d_fused_aux(*tensors, *given)
        return found

    def _run(self, as_they_are: bool) -> torch.Tensor:
        ops, geometry = torch.ops.cutwheel, self.g.numbers
        a, b = (self.a, self.b) if as_they_are else self.positional
        tf32 = a.dtype == SINGLE
        if self.is_transposed:
            given = (*self.input_size[2:], *geometry, self.epilogue.name, tf32)
            return ops.conv_transpose2d(a, b, self.operand("bias"), *given)
        if self.direction == "dgrad":
            return ops.conv2d_input_grad(a, b, *self.input_size[2:], *geometry, tf32)
        if self.direction == "wgrad":
            taps = self.weight_size[2:]
            return ops.conv2d_weight_grad(a, b, *taps, *geometry, tf32)
        bias, residual, name = self.operand("bias"), self.operand("residual"), self.epilogue.name
        if name in ("plain", "bias"):
            return ops.conv2d(a, b, bias, *geometry, tf32)
        return ops.conv2d_fused(a, b, bias, residual, *geometry, name, tf32)

    @property
    def is_transposed(self) -> bool:
        """dgrad with an epilogue, which only transposed convolutions have."""
        return self.direction == "dgrad" and self.epilogue.name != "plain"

    def row(self) -> str | None:
        """The kernel that it runs."""
        plans = self.explained().get("plans")
        return plans[0]["row"] if plans else None

    def explained(self) -> dict[str, Any]:
        """What the library says of it."""
        op = {"dgrad": "conv2d_input_grad", "wgrad": "conv2d_weight_grad"}.get(
            self.direction, "conv2d"
        )
        operands: list[torch.Tensor | None] = [*self.positional]
        name, size = "", () if self.direction == "fprop" else self.output_size[2:]
        if self.direction == "fprop":
            operands.append(self.operand("bias"))
            if self.epilogue.name not in ("plain", "bias"):
                op, name = "conv2d_fused", self.epilogue.name
                op += "_aux" * bool(self.epilogue.aux)
                operands.append(self.operand("residual"))
        if self.is_transposed:
            op, name = "conv_transpose2d", self.epilogue.name
            operands.append(self.operand("bias"))
        given = op, operands, None, 1, self.a.dtype == SINGLE, name
        geometry = [*self.g.numbers, *size]
        found: dict[str, Any] = json.loads(torch.ops.cutwheel._explain(*given, geometry=geometry))
        return found

    # -- what it should give
    def _accum(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if self.direction == "fprop":
            return fprop(a, b, self.g)
        if self.direction == "dgrad":
            return dgrad(a, b, self.input_size, self.g)
        return wgrad(a, b, self.weight_size, self.g)

    def _values(self, kind: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
        given = {name: self.operands.get(name) for name in self.epilogue.tensors}
        return {
            name: 0.0 if x is None else kind(x.view(-1, 1, 1) if x.dim() == 1 else x)
            for name, x in given.items()
        }

    def weighed(self, part: int = 0) -> Weighed:
        """Of the result; or what the epilogue stores besides, from 1 on."""
        a, b = self.a.detach().double(), self.b.detach().double()
        accum = Bound.of(self._accum(a, b), self._accum(a.abs(), b.abs()))
        known = self._values(lambda x: Bound.of(x.detach().double()))
        d = evaluate(self.epilogue, {"accum": accum, **known}, BOUND_FUNCTIONS)[part]
        tf32 = self.a.dtype == SINGLE and not self.exact
        approx, wide = (
            torch.as_tensor(x, device=a.device, dtype=torch.float64).expand_as(d.value)
            # TF32: products come in steps of 8, and hardware may cut both operands, not round them.
            for x in (d.approx, d.wide * (2 if self.a.dtype == SINGLE else 1))
        )
        k = longest_sum(self.direction, self.input_size, self.weight_size, self.g)
        return Weighed(d.value, approx, wide, k, tf32)

    def torchs(self, part: int = 0) -> torch.Tensor:
        """torch's own op, and the epilogue's ops one by one."""
        (a, b), g = (self.a.detach(), self.b.detach()), self.g
        top, bottom, left, right = g.padding
        pads = (left, right, top, bottom)
        rest = (g.stride, (0, 0), g.dilation)
        if self.direction == "fprop":
            accum = functional.conv2d(functional.pad(a, pads), b, None, *rest, g.groups)
            given = {"accum": accum, **self._values(lambda x: x.detach())}
            result: torch.Tensor = evaluate(self.epilogue, given)[part]
            return result.to(a.dtype)
        backward = torch.ops.aten.convolution_backward
        more = (None, *rest, False, (0, 0), g.groups)
        if self.direction == "wgrad":
            x, weight = functional.pad(b, pads), b.new_empty(self.weight_size)
            wanted: torch.Tensor = backward(a, x, weight, *more, (False, True, False))[1]
            return wanted
        n, c, h, w = self.input_size
        x = a.new_empty(n, c, h + top + bottom, w + left + right)
        whole: torch.Tensor = backward(a, x, b, *more, (True, False, False))[0]
        accum = whole[:, :, top : top + h, left : left + w]
        (d,) = evaluate(self.epilogue, {"accum": accum, **self._values(lambda x: x.detach())})
        return torch.as_tensor(d).to(a.dtype)

    def judge(self, result: torch.Tensor, fused: bool = True, part: int = 0) -> None:
        """The rule of reference.py; torch's op is asked where a result is beyond the floor."""
        weighed = self.weighed(part)
        rounded = weighed.value.to(self.a.dtype)
        assert result.shape == rounded.shape, f"{self}: shape {tuple(result.shape)}"
        assert result.dtype == rounded.dtype, f"{self}: dtype {result.dtype}"
        if self.g.groups == 1:  # with groups it is torch's result
            assert_channels_last(result, self)
        try:
            weighed.assert_as_good(result, rounded, fused=fused)
        except AssertionError as alone:
            try:
                weighed.assert_as_good(result, self.torchs(part), fused=fused)
            except RuntimeError:
                raise AssertionError(f"{self}: {alone}; torch's op refuses it") from alone
            except AssertionError as error:
                raise AssertionError(f"{self}: {error}") from error

    def check(
        self, run: Callable[[], torch.Tensor] | None = None, fused: bool = True
    ) -> torch.Tensor:
        """Runs it (or `run`) and compares the result with float64."""
        poison(self.output_size, self.a.dtype, self.a.device)
        with told(self):
            results = (run(),) if run else self.run_all()
        for part, result in enumerate(results):
            self.judge(result, fused, part)
        return results[0]

    def __str__(self) -> str:
        left_out = [name for name, x in self.operands.items() if x is None]
        missing = f" without {', '.join(left_out)}" if left_out else ""
        types = str(self.a.dtype).removeprefix("torch.")
        return (
            f"{self.direction} {self.epilogue.name}{missing} of {self.input_size},"
            f" {self.weight_size} {types}, {self.g}, layouts {self.lay_a}, {self.lay_b},"
            f" residual {self.lay_residual}, exact={self.exact}"
        )


# ---- which problems
CHANNELS = (1, 2, 3, 4, 7, 8, 16, 24, 31, 33, 64, 72, 96, 130, 200, 257, 320, 513)
EXTENTS = (1, 1, 2, 3, 5, 7, 8, 11, 14, 19, 28, 33, 40)
LARGEST = 8e6  # elements of all windows


def drawn(
    count: int, seed: int, groups: bool = False, even: bool = False
) -> Iterator[tuple[Sizes, Sizes, Geometry]]:
    """(input size, weight size, geometry): any padding, strides 1 to 3, images from 1x1.

    even: the same padding on opposite sides, as F.conv2d has it
    """
    rng = random.Random(seed)
    while count:
        g = Geometry(
            rng.choice(((1, 1), (1, 1), (2, 2), (3, 3), (1, 2), (3, 1))),
            tuple(rng.choice((0, 0, 1, 1, 2, 3)) for _ in range(4)),  # type: ignore[arg-type]
            rng.choice(((1, 1), (1, 1), (2, 2), (3, 1), (1, 2))),
            rng.choice((2, 3, 4, 8)) if groups else 1,
        )
        if even or rng.random() < 0.4:  # what networks have
            top, left = g.padding[0], g.padding[2]
            g = replace(g, padding=(top, top, left, left))
        c, k_out = rng.choice(CHANNELS), rng.choice(CHANNELS)
        if groups:
            c, k_out = g.groups * min(c, 64), g.groups * min(k_out, 64)
        r = rng.choice((1, 2, 3, 3, 3, 4, 5, 7))
        s = r if rng.random() < 0.6 else rng.choice((1, 2, 3, 4, 5))
        image = rng.choice(EXTENTS), rng.choice(EXTENTS)
        n = rng.choice((1, 1, 2, 3, 5))
        p, q = g.extents(image, (r, s))
        if min(p, q) < 1 or n * p * q * r * s * c > LARGEST or n * p * q * k_out > LARGEST:
            continue
        count -= 1
        yield (n, c, *image), (k_out, c // g.groups, r, s), g


# ---- through cutwheel.conv2d
PLACES = ("no_residual", "before", "after")


def epilogue_of(activation: str | None, place: str = "no_residual", bias: bool = True) -> Epilogue:
    """The epilogue with the meaning of these arguments of conv2d."""
    z = "accum" + " + bias" * bias + " + residual" * (place == "before")
    slope = ", 0.01" if activation == "leaky_relu" else ""
    expr = (f"{activation}({z}{slope})" if activation else z) + " + residual" * (place == "after")
    operands = {"bias": "row[N]"} if bias else {}
    if place != "no_residual":
        operands["residual"] = "matrix[M,N]"
    return Epilogue("conv2d", expr, {}, operands, "same")


def arguments(conv: Conv, activation: str | None, place: str) -> dict[str, Any]:
    """Arguments of conv2d, by name."""
    x, weight = conv.positional
    (top, bottom, left, right), g = conv.g.padding, conv.g
    assert (top, left) == (bottom, right), "F.conv2d has no such padding"
    given: dict[str, Any] = {"input": x, "weight": weight, "bias": conv.operand("bias")}
    given |= {"stride": g.stride, "padding": (top, left), "dilation": g.dilation}
    given |= {"groups": g.groups, "activation": activation}
    if place != "no_residual":
        given |= {"residual": conv.operand("residual")}
        given |= {"residual_after_activation": place == "after"}
    return given


def check_public(
    cutwheel: Any,
    conv: Conv,
    activation: str | None = None,
    place: str = "no_residual",
    **changed: Any,
) -> torch.Tensor:
    """conv2d itself; `conv` has epilogue_of(activation, place)."""
    given = {**arguments(conv, activation, place), **changed}
    return conv.check(lambda: cutwheel.conv2d(**given), is_fused(activation, place))


def is_fused(activation: str | None, place: str) -> bool:
    """Whether all of it is rounded once; others take a second kernel."""
    parts = {"no_residual": (activation,), "before": ("residual", activation)}
    parts["after"] = (activation, "residual")
    name = "_".join(("bias", *(part for part in parts[place] if part)))
    return activation != "leaky_relu" and serves("fprop", torch.bfloat16, name)


# ---- rows of the kernel table
OF_GROUPS = ("depthwise", "grouped_conv")  # families
# Tested elsewhere: with grouped_conv_cases.py, and as a part of dgrad.
OTHERS = (*OF_GROUPS, "col2im")


def rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(of float operands, of 8-bit ones)"""
    found = [row for row in manifest_kernels("conv2d") if row["family"] not in OTHERS]
    scaled = [row for row in found if TORCH_DTYPE[row["a"]].itemsize == 1]
    return [row for row in found if row not in scaled], scaled


def archs_of(found: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["arch"] for row in found))


def _archs_here() -> set[str]:
    """Whose kernels run on this GPU, natively or as PTX, and are candidates."""
    if os.environ.get("CUTWHEEL_ARCH"):
        return {os.environ["CUTWHEEL_ARCH"]}
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    found = {"sm80"} | ({"sm89"} if capability >= (8, 9) else set())
    return found | ({"sm90a"} if capability == (9, 0) else set())


def serves(
    direction: str, dtype: torch.dtype, epilogue: str = "plain", d: torch.dtype | None = None
) -> bool:
    """Whether a row of the table does: not every direction and epilogue is there for every dtype.

    d: of the result; None where rows of any will do, as of wgrad, whose partial sums are float32
    """
    found, here = manifest_kernels("conv2d"), _archs_here()
    return not found or any(
        row["arch"] in here
        and row["family"] not in OTHERS
        and row["direction"] == direction
        and TORCH_DTYPE[row["a"]] == dtype
        and row["epilogue"] == epilogue
        and (d is None or TORCH_DTYPE[row["d"]] == d)
        for row in found
    )


# No extent is a multiple of a tile: many tiles; narrow, with different sides; wide, with phases of
# a stride that have no taps; channels that are padded to 16 bytes, in long windows; such phases of
# more pixels than the highest tile has.
PROBLEMS: tuple[tuple[Sizes, Sizes, Geometry], ...] = (
    ((3, 72, 19, 23), (136, 72, 3, 3), Geometry((1, 1), (1, 1, 1, 1))),
    ((2, 16, 9, 11), (24, 16, 3, 2), Geometry((2, 1), (1, 0, 0, 1), (1, 2))),
    ((1, 40, 33, 17), (328, 40, 2, 1), Geometry((3, 2), (0, 2, 0, 0))),
    ((5, 3, 30, 29), (20, 3, 7, 7), Geometry((2, 2), (3, 3, 3, 3))),
    ((5, 72, 23, 29), (136, 72, 1, 1), Geometry((2, 2))),
)


# For a cluster whose threadblocks share K: a tile or more for each of them. Of dgrad they take
# stride 1.
SHARED: dict[str, tuple[tuple[Sizes, Sizes, Geometry], ...]] = {
    "fprop": (
        PROBLEMS[0],
        ((2, 136, 9, 11), (24, 136, 3, 2), PROBLEMS[1][2]),
        ((1, 200, 33, 17), (328, 200, 2, 1), PROBLEMS[2][2]),
        PROBLEMS[3],
        ((5, 520, 23, 29), (136, 520, 1, 1), PROBLEMS[4][2]),
    ),
    "dgrad": (
        PROBLEMS[0],
        ((2, 24, 9, 11), (136, 24, 3, 2), Geometry((1, 1), (1, 0, 0, 1), (1, 2))),
        ((1, 328, 33, 17), (200, 328, 2, 1), Geometry((1, 1), (0, 2, 0, 0))),
        ((5, 3, 30, 29), (72, 3, 7, 7), Geometry((1, 1), (3, 3, 3, 3))),
    ),
}


# For kernels whose taps of a row share pixels: stride 1, three taps or more of a row. Ends of rows
# within a block of sixteen; taps that reach as far as they may; one row of taps; rows shorter than
# such a block, with other padding on each side; a filter as wide as the image.
SHARED_PIXELS: tuple[tuple[Sizes, Sizes, Geometry], ...] = (
    PROBLEMS[0],
    ((2, 40, 9, 60), (72, 40, 3, 5), Geometry((1, 1), (1, 1, 2, 2), (1, 2))),
    ((1, 64, 5, 300), (64, 64, 1, 7), Geometry((1, 1), (0, 0, 3, 3))),
    ((9, 24, 6, 5), (136, 24, 3, 3), Geometry((1, 1), (0, 2, 2, 0))),
    ((2, 72, 33, 31), (328, 72, 3, 3), Geometry((1, 1), (4, 4, 4, 4), (4, 4))),
    ((4, 136, 7, 9), (40, 136, 2, 9), Geometry((1, 1), (1, 0, 0, 0))),
)


def epilogue_of_row(row: Mapping[str, Any]) -> Epilogue:
    epilogue = {"plain": PLAIN, "bias": BIAS}.get(row["epilogue"])
    return epilogue or Epilogue.of(row["epilogue"], manifest()["epilogues"][row["epilogue"]])


def convs_of_row(row: Mapping[str, Any], device: str) -> Iterator[Conv]:
    """Convolutions that this row of the table serves."""
    epilogue = epilogue_of_row(row)
    usual = SHARED[row["direction"]] if row["cluster"][2] > 1 else PROBLEMS
    if row["family"] == "sm90_row_conv":
        usual = SHARED_PIXELS
    for input_size, weight_size, g in direct_conv_problems(row) or usual:
        yield Conv.random(
            row["direction"], input_size, weight_size, g, TORCH_DTYPE[row["a"]], device, epilogue
        )
