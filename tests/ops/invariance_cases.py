"""Calls whose results have rows that depend on one row of the operands each, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
FP8 = torch.float8_e4m3fn
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}

ROWS = (
    *(1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 80, 96, 127, 128),
    *(129, 160, 192, 200, 255, 256, 257, 384, 511, 512, 640, 768, 1000, 1024, 1536, 2048, 3000),
    *(4096, 6144, 8192, 12000, 16384),
)
IMAGES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64)


def different(a: Tensor, b: Tensor) -> Tensor:
    """How many elements have other bits, as a tensor: nothing waits for it."""
    bits = _BITS[a.element_size()]
    return (a.view(bits) != b.view(bits)).sum()


@dataclass
class Case:
    text: str
    rows: list[Tensor]
    """operands, row by row in the first dimension"""
    run: Callable[..., tuple[Tensor, ...]]
    """of as many rows of each, results row by row"""
    counts: tuple[int, ...] = ROWS
    may_pitch: bool = True
    """whether rows of the first operand may lie anywhere"""

    @property
    def largest(self) -> int:
        return len(self.rows[0])


class Draw:
    """Random calls; `seed` decides which."""

    def __init__(self, cutwheel: ModuleType, device: str, seed: int) -> None:
        self.cutwheel, self.device = cutwheel, device
        self.rng = random.Random(seed)
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = BRAIN, scale: float = 1.0) -> Tensor:
        options: Any = {"device": self.device, "generator": self.generator}
        return (torch.randn(shape, **options) * scale).to(dtype)

    def log_uniform(self, least: int, most: int) -> int:
        return round(least * (most / least) ** self.rng.random())

    def extents(self, unit: int = 1) -> tuple[int, int, int]:
        """Most rows, N and K."""
        n, k = self.log_uniform(8, 12000), self.log_uniform(8, 12000)
        step = self.rng.choice((128, 64, 64, 8, unit))
        n, k = (max(step, unit, x // max(step, unit) * max(step, unit)) for x in (n, k))
        most = min(2**27 // (n + k), 2**36 // (n * k), self.rng.choice((300, 1100, 4200, 16384)))
        return max(most, 160), n, k

    def dtype(self) -> torch.dtype:
        return self.rng.choice((BRAIN, BRAIN, BRAIN, HALF, SINGLE))

    def case(self, kind: str | None = None) -> Case:
        return getattr(self, kind or self.rng.choice(KINDS))()  # type: ignore[no-any-return]

    # ---- dense ----

    def mm(self) -> Case:
        (m, n, k), dtype = self.extents(), self.dtype()
        out = self.rng.choice((None, SINGLE))
        is_transposed = self.rng.random() < 0.5
        w = self.normal(n, k, dtype=dtype).t() if is_transposed else self.normal(k, n, dtype=dtype)

        def run(x: Tensor) -> tuple[Tensor, ...]:
            return (self.cutwheel.mm(x, w, out),)

        text = f"mm {dtype} out {out} {'tnt' if is_transposed else 'ttt'} N={n} K={k}"
        return Case(text, [self.normal(m, k, dtype=dtype)], run)

    def addmm(self) -> Case:
        (m, n, k), dtype = self.extents(), self.dtype()
        beta, alpha = self.rng.choice(((1, 1), (1, 0.3), (0.7, 1), (0.7, -0.3), (0, -0.3)))
        w = self.normal(n, k, dtype=dtype).t()
        is_row = self.rng.random() < 0.5
        bias = self.normal(n, dtype=dtype)

        def run(x: Tensor, c: Tensor) -> tuple[Tensor, ...]:
            return (self.cutwheel.addmm(bias if is_row else c, x, w, beta=beta, alpha=alpha),)

        text = f"addmm {dtype} beta {beta} alpha {alpha} row {is_row} N={n} K={k}"
        rows = [self.normal(m, k, dtype=dtype), self.normal(m, n, dtype=dtype)]
        return Case(text, rows, run)

    def linear(self) -> Case:
        (m, n, k), dtype = self.extents(), self.dtype()
        activation = self.rng.choice((None, None, "relu", "gelu", "gelu_tanh", "silu", "tanh"))
        has_bias, has_residual, is_last = (self.rng.random() < 0.5 for _ in range(3))
        w, bias = self.normal(n, k, dtype=dtype, scale=k**-0.5), self.normal(n, dtype=dtype)

        def run(x: Tensor, *residual: Tensor) -> tuple[Tensor, ...]:
            how: dict[str, Any] = {"activation": activation}
            if residual:
                how |= {"residual": residual[0], "residual_after_activation": is_last}
            return (self.cutwheel.linear(x, w, bias if has_bias else None, **how),)

        rows = [self.normal(m, k, dtype=dtype)]
        if has_residual:
            rows.append(self.normal(m, n, dtype=dtype))
        what = f"bias {has_bias} residual {has_residual} last {is_last}"
        return Case(f"linear {dtype} {activation} {what} N={n} K={k}", rows, run)

    def gated(self) -> Case:
        (m, n, k), dtype = self.extents(8), self.rng.choice((BRAIN, HALF))
        activation = self.rng.choice(("silu", "gelu", "gelu_tanh", "relu"))
        w = self.normal(n, k, dtype=dtype, scale=k**-0.5)

        def run(x: Tensor) -> tuple[Tensor, ...]:
            return (self.cutwheel.gated_linear(x, w, activation, interleaved=True),)

        text = f"gated {dtype} {activation} N={n} K={k}"
        return Case(text, [self.normal(m, k, dtype=dtype)], run)

    def training(self) -> Case:
        """Result and gradient of the input."""
        (m, n, k), dtype = self.extents(), self.rng.choice((BRAIN, HALF))
        activation = self.rng.choice((None, "relu", "gelu", "silu"))
        w, bias = self.normal(n, k, dtype=dtype, scale=k**-0.5), self.normal(n, dtype=dtype)
        w.requires_grad_(self.rng.random() < 0.5)

        def run(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
            leaf = x.detach().requires_grad_()
            y = self.cutwheel.linear(leaf, w, bias, activation=activation)
            wanted = (leaf, w) if w.requires_grad else (leaf,)
            return y.detach(), torch.autograd.grad(y, wanted, grad)[0]

        rows = [self.normal(m, k, dtype=dtype), self.normal(m, n, dtype=dtype)]
        text = f"training {dtype} {activation} weight {w.requires_grad} N={n} K={k}"
        return Case(text, rows, run)

    def bmm(self) -> Case:
        (_, n, k), dtype = self.extents(), self.dtype()
        m, batch = self.log_uniform(1, 300), 40
        while batch * (m * n + m * k + n * k) > 2**27:
            batch, n, k = max(8, batch // 2), max(8, n // 2), max(8, k // 2)

        def run(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
            return (self.cutwheel.bmm(a, b.mT),)

        rows = [self.normal(batch, m, k, dtype=dtype), self.normal(batch, n, k, dtype=dtype)]
        counts = tuple(count for count in IMAGES if count <= batch)
        return Case(f"bmm {dtype} M={m} N={n} K={k}", rows, run, counts, may_pitch=False)

    # ---- scaled ----

    def scaled(self) -> Case:
        """Quantised row by row, then multiplied."""
        m, n, k = self.extents(16)
        kind = self.rng.choice(("rowwise", "rowwise", "blockwise_1x128", "int8", "tensorwise"))
        dtype = torch.int8 if kind == "int8" else FP8
        fast = self.rng.random() < 0.4
        out = self.rng.choice((BRAIN, BRAIN, HALF, SINGLE))
        bias = self.normal(n, dtype=out) if self.rng.random() < 0.5 else None
        by_block = self.rng.random() < 0.5
        recipe = {"int8": "rowwise"}.get(kind, kind)
        of_weight = {"blockwise_1x128": "blockwise_128x128" if by_block else kind}.get(kind, recipe)
        values, scales = self.cutwheel.quantize(self.normal(n, k), of_weight, dtype)
        w, of_w = values.t(), scales if of_weight == "tensorwise" else scales.t()
        one = torch.full((1,), 0.01, device=self.device)

        def run(x: Tensor) -> tuple[Tensor, ...]:
            if recipe == "tensorwise":
                a, of_a = (x / 0.01).clamp(-448, 448).to(FP8), one
            else:
                a, of_a = self.cutwheel.quantize(x, recipe, dtype)
            how = {"bias": bias, "output_dtype": out, "use_fast_accum": fast}
            how |= {"scale_b": of_w, "scale_recipe_b": of_weight}
            return a.view(torch.int8), self.cutwheel.scaled_mm(a, w, of_a, recipe, **how)

        text = f"scaled {kind} {of_weight} fast {fast} {out} bias {bias is not None} N={n} K={k}"
        return Case(text, [self.normal(m, k)], run)

    # ---- grouped ----

    def grouped(self) -> Case:
        return self._grouped(self.rng.choice(("mm", None, "gelu", "silu", "gated")))

    def scaled_grouped(self) -> Case:
        return self._grouped(self.rng.choice(("rowwise", "blockwise")))

    def _grouped(self, what: str | None) -> Case:
        """The rows are one of several groups, whose others have sizes of their own in each call."""
        (m, n, k), dtype = self.extents(16), self.rng.choice((BRAIN, BRAIN, HALF))
        groups, is_scaled = self.rng.choice((2, 4, 8)), what in ("rowwise", "blockwise")
        while groups * n * k > 2**26:
            n, k = max(16, n // 32 * 16), max(16, k // 32 * 16)
        own, fast = self.rng.randrange(groups), self.rng.random() < 0.5
        w = self.normal(groups, n, k, dtype=dtype, scale=k**-0.5)
        filler = self.normal(4096, k, dtype=dtype)
        of_rows, of_weight = "rowwise", "rowwise"
        if what == "blockwise":
            of_rows, of_weight = "blockwise_1x128", "blockwise_128x128"
        values = [self.cutwheel.quantize(each, of_weight) for each in w] if is_scaled else []

        def product(rows: Tensor, ends: Tensor) -> Tensor:
            if what == "mm":
                return self.cutwheel.grouped_mm(rows, w.mT, offs=ends)
            if what == "gated":
                return self.cutwheel.grouped_gated_linear(rows, w, offs=ends, interleaved=True)
            if not is_scaled:
                return self.cutwheel.grouped_linear(rows, w, offs=ends, activation=what)
            a, of_a = self.cutwheel.quantize(rows, of_rows)
            b = torch.stack([x[0].view(torch.int8) for x in values]).view(FP8).mT
            of_b = torch.stack([x[1].t() for x in values])
            how: dict[str, Any] = {"scale_b": of_b, "offs": ends, "use_fast_accum": fast}
            return self.cutwheel.scaled_grouped_mm(a, b, of_a, **how)

        def run(x: Tensor) -> tuple[Tensor, ...]:
            sizes = [self.rng.choice((0, 1, 5, 64, 130, 500)) for _ in range(groups)]
            sizes[own] = len(x)
            before, after = sum(sizes[:own]), sum(sizes[own + 1 :])
            rows = torch.cat([filler[:before], x, filler[:after]])
            ends = torch.tensor(sizes, device=self.device).cumsum(0).to(torch.int32)
            return (product(rows, ends)[before : before + len(x)].contiguous(),)

        text = f"grouped {dtype} {what} fast {fast} G={groups} N={n} K={k}"
        return Case(text, [self.normal(min(m, 2200), k, dtype=dtype)], run, may_pitch=False)

    # ---- modules ----

    def module(self) -> Case:
        """Rows of tokens through a layer of cutwheel.nn."""
        nn, dtype = self.cutwheel.nn, self.rng.choice((BRAIN, HALF))
        n, k = (self.rng.choice((256, 768, 2048)) for _ in range(2))
        with torch.device(self.device):
            layer = self.rng.choice(
                (
                    lambda: nn.Linear(k, n, activation="gelu", dtype=dtype),
                    lambda: nn.GatedMLP(k, n, dtype=dtype),
                    lambda: nn.ScaledLinear.from_linear(torch.nn.Linear(k, n, dtype=dtype)),
                    lambda: nn.GroupedExperts(4, k, n, dtype=dtype),
                )
            )()
        is_mixture = isinstance(layer, nn.GroupedExperts)
        with torch.no_grad():
            for parameter in layer.parameters():
                if parameter.dtype == dtype:
                    values = self.normal(*parameter.shape, dtype=dtype, scale=k**-0.5)
                    parameter.copy_(values)
        rows = [self.normal(3000, k, dtype=dtype)]
        if is_mixture:
            weights, ids = self.normal(3000, 4, dtype=SINGLE).softmax(-1).topk(2)
            rows += [ids, weights]

        def run(*part: Tensor) -> tuple[Tensor, ...]:
            with torch.no_grad():
                return (layer(*part),)

        text = f"{type(layer).__name__} {dtype} {n} {k}"
        return Case(text, rows, run, may_pitch=not is_mixture)

    # ---- convolutions: rows are images ----

    def conv(self) -> Case:
        dtype = self.rng.choice((BRAIN, HALF, SINGLE))
        c = self.rng.choice((3, 4, 8, 16, 32, 64, 96, 128, 256))
        filters = self.rng.choice((8, 16, 32, 64, 96, 160, 256))
        size = self.rng.choice((1, 3, 3, 3, 5, 7))
        stride = self.rng.choice((1, 1, 2, size))
        padding, h = self.rng.choice((0, size // 2)), self.rng.choice((7, 14, 28, 32, 56))
        wide = self.rng.choice((h, h + 3))
        images = max(4, min(64, 2**25 // (h * wide * max(c, filters))))
        activation = self.rng.choice((None, "relu"))
        lay = {"memory_format": torch.channels_last}
        weight = self.normal(filters, c, size, size, dtype=dtype, scale=c**-0.5 / size).to(**lay)
        bias = self.normal(filters, dtype=dtype) if self.rng.random() < 0.5 else None
        where = {"stride": stride, "padding": padding, "activation": activation}

        x = self.normal(images, c, h, wide, dtype=dtype).to(**lay)
        text = f"conv {dtype} {images}x{c}x{h}x{wide} {filters}x{size} {where}"
        text += f" bias {bias is not None}"
        return self._with_gradient(
            text, x, lambda x: self.cutwheel.conv2d(x, weight, bias, **where)
        )

    def grouped_conv(self) -> Case:
        dtype = self.rng.choice((BRAIN, HALF))
        of_group = self.rng.choice((1, 1, 4, 8, 16, 32))
        c = of_group * self.rng.choice((8, 16, 32))
        size, stride = self.rng.choice((3, 3, 5, 7)), self.rng.choice((1, 2))
        h = self.rng.choice((7, 14, 28))
        weight = self.normal(c, of_group, size, size, dtype=dtype, scale=0.2)
        where: dict[str, Any] = {"stride": stride, "padding": size // 2, "groups": c // of_group}
        return self._with_gradient(
            f"grouped conv {dtype} C={c}/{of_group} {size} stride {stride} {h}",
            self.normal(48, c, h, h, dtype=dtype).to(memory_format=torch.channels_last),
            lambda x: self.cutwheel.conv2d(x, weight, **where),
        )

    def scaled_conv(self) -> Case:
        dtype = self.rng.choice((FP8, torch.int8))
        c, filters = self.rng.choice((16, 32, 64, 128)), self.rng.choice((16, 32, 64, 128, 192))
        size, stride = self.rng.choice((1, 3, 3)), self.rng.choice((1, 1, 2))
        h = self.rng.choice((7, 14, 28, 31))
        activation = self.rng.choice((None, "relu", "silu"))
        how: dict[str, Any] = {"stride": stride, "padding": size // 2, "activation": activation}
        one = torch.full((), 0.03, device=self.device)
        if self.rng.random() < 0.5:
            how |= {"out_dtype": dtype, "scale_result": one}
        weight = self._eight_bits(dtype, filters, c, size, size)
        scales = self.normal(filters, dtype=SINGLE).abs()

        def run(x: Tensor) -> tuple[Tensor, ...]:
            y = self.cutwheel.scaled_conv2d(x, weight, one, scales, **how)
            return (y.permute(0, 2, 3, 1),)

        x = self._eight_bits(dtype, 48, c, h, h)
        text = f"scaled conv {dtype} 48x{c}x{h}x{h} {filters}x{size} {how}"
        return Case(text, [x], run, tuple(n for n in IMAGES if n <= 48), may_pitch=False)

    def _eight_bits(self, dtype: torch.dtype, *size: int) -> Tensor:
        values = self.normal(*size, dtype=SINGLE, scale=3.0)
        values = values.round() if dtype == torch.int8 else values
        return values.to(dtype).contiguous(memory_format=torch.channels_last)

    def volume(self) -> Case:
        dtype = self.rng.choice((BRAIN, HALF))
        c, filters = self.rng.choice((16, 64, 96, 128)), self.rng.choice((16, 64, 96, 128))
        d, h = self.rng.choice((2, 5, 9)), self.rng.choice((7, 14, 20))
        where = {"padding": ((2, 0), 1, 1), "activation": self.rng.choice((None, "relu"))}
        weight = self.normal(filters, c, 3, 3, 3, dtype=dtype, scale=(27 * c) ** -0.5)
        return self._with_gradient(
            f"volume {dtype} {c}x{d}x{h}x{h} {filters} {where}",
            self.normal(24, c, d, h, h, dtype=dtype).to(memory_format=torch.channels_last_3d),
            lambda x: self.cutwheel.conv3d(x, weight, **where),
        )

    def transposed(self) -> Case:
        dtype = self.rng.choice((BRAIN, HALF, SINGLE))
        c, filters = self.rng.choice((16, 64, 96, 256)), self.rng.choice((8, 16, 64, 128))
        size, h = self.rng.choice((2, 3, 4)), self.rng.choice((7, 16, 20))
        where = {"stride": 2, "padding": int(size > 2)}
        weight = self.normal(c, filters, size, size, dtype=dtype, scale=c**-0.5)
        bias = self.normal(filters, dtype=dtype) if self.rng.random() < 0.5 else None
        return self._with_gradient(
            f"transposed {dtype} {c}x{h}x{h} {filters}x{size} bias {bias is not None}",
            self.normal(48, c, h, h, dtype=dtype).to(memory_format=torch.channels_last),
            lambda x: self.cutwheel.conv_transpose2d(x, weight, bias, **where),
        )

    def _with_gradient(self, text: str, x: Tensor, function: Callable[[Tensor], Tensor]) -> Case:
        """An image's result, and in half of the cases its gradient."""
        has_grad = self.rng.random() < 0.5

        def run(x: Tensor) -> tuple[Tensor, ...]:
            leaf = x.detach().requires_grad_(has_grad)
            y = function(leaf)
            if not has_grad:
                return (y.movedim(1, -1),)
            (grad,) = torch.autograd.grad(y, leaf, torch.sin(3 * y.detach()))
            return y.detach().movedim(1, -1), grad.movedim(1, -1).contiguous()

        counts = tuple(n for n in IMAGES if n <= len(x))
        return Case(f"{text} grad {has_grad}", [x], run, counts, may_pitch=False)


DENSE = ("mm", "addmm", "linear", "gated", "training", "bmm")
CONVOLUTIONS = ("conv", "grouped_conv", "scaled_conv", "volume", "transposed")
OTHERS = ("scaled", "scaled", "grouped", "scaled_grouped", "module", *CONVOLUTIONS)
KINDS = (*DENSE, "mm", "linear", *OTHERS)


def placed(rng: random.Random, x: Tensor) -> Tensor:
    """The matrix at an offset and a pitch of its own."""
    pad, offset = rng.choice(((0, 0), (8, 8), (1, 0), (0, 1), (3, 5), (64, 0)))
    rows, columns = x.shape
    pitch = columns + pad
    buffer = torch.full((rows * pitch + offset + 64,), float("nan"), dtype=x.dtype, device=x.device)
    target = buffer[offset:].as_strided((rows, columns), (pitch, 1))
    return target.copy_(x)


def differences(case: Case, rng: random.Random) -> tuple[Tensor, list[int]]:
    """Elements of rows that have other bits in another batch, of every number of rows in turn."""
    whole = case.run(*case.rows)
    found: list[Any] = []
    counts = []
    for count in case.counts:
        if count > case.largest:
            break
        first = rng.randrange(case.largest - count + 1)
        part = [rows[first : first + count] for rows in case.rows]
        if case.may_pitch and rng.random() < 0.5:
            part[0] = placed(rng, part[0])
        pairs = zip(case.run(*part), whole, strict=True)
        found.append(
            sum(
                different(part.contiguous(), all_rows[first : first + count].contiguous())
                for part, all_rows in pairs
            )
        )
        counts.append(count)
    return torch.stack(found), counts
