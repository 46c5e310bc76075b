"""Sizes that depend on data, which torch.compile and torch.export do not know while they trace.

Reference kernels run the results; each call is compared with the same one that nothing traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from cpu_reference import CpuOps

Tensor = torch.Tensor
E4M3, INT8, INT32 = torch.float8_e4m3fn, torch.int8, torch.int32
M, K, N, B, G, T = 5, 16, 24, 3, 2, 11
WIDE = 200  # K of what is quantised


class Operand(NamedTuple):
    make: Callable[[], Tensor]
    unknown: tuple[int, ...]
    """dimensions"""


def normal(*shape: int, unknown: tuple[int, ...] = (), dtype: torch.dtype | None = None) -> Operand:
    return Operand(lambda: torch.randn(shape).to(dtype or torch.float32), unknown)


def integers(*shape: int, unknown: tuple[int, ...] = (), dtype: torch.dtype = INT8) -> Operand:
    return Operand(lambda: torch.randint(-50, 50, shape, dtype=dtype), unknown)


def of(function: str, **arguments: Any) -> Callable[[ModuleType], Callable[..., Any]]:
    """cutwheel.<function> with these arguments besides the tensors."""
    return lambda cutwheel: functools.partial(getattr(cutwheel, function), **arguments)


def named(function: str, *names: str, **arguments: Any) -> Callable[..., Any]:
    """cutwheel.<function>, whose last tensors go by name."""

    def bind(cutwheel: ModuleType) -> Callable[..., Any]:
        def call(*tensors: Tensor) -> Any:
            first = len(tensors) - len(names)
            by_name = dict(zip(names, tensors[first:], strict=True))
            return getattr(cutwheel, function)(*tensors[:first], **by_name, **arguments)

        return call

    return bind


ROWS = normal(M, K, unknown=(0,))
BATCH = normal(B, M, K, unknown=(0, 1))
RESULT, RESULTS = normal(M, N, unknown=(0,)), normal(B, M, N, unknown=(0, 1))
RIGHT, RIGHTS = normal(K, N), normal(B, K, N, unknown=(0,))
WEIGHT, BIAS = normal(N, K), normal(N)
ENDS = Operand(lambda: torch.tensor([4, 9], dtype=INT32), ())
TOKENS, EXPERTS = normal(T, K, unknown=(0,)), normal(G, N, K)
IMAGES, PICTURES = normal(B, 8, 9, 10, unknown=(0,)), normal(B, 8, 9, 10, unknown=(0, 2, 3))
FILTERS, CHANNELS = normal(12, 8, 3, 3), normal(12)
CONVOLVED = normal(B, 12, 9, 10, unknown=(0, 2, 3))

Bind = Callable[[ModuleType], Callable[..., Any]]
# Calls with a gradient.
FLOATS: dict[str, tuple[Bind, tuple[Operand, ...]]] = {
    "mm": (of("mm"), (ROWS, RIGHT)),
    "mm, K": (lambda cw: lambda a, b: cw.mm(a.t(), b), (ROWS, RESULT)),
    "bmm": (of("bmm"), (BATCH, RIGHTS)),
    "addmm, row": (of("addmm", beta=2), (BIAS, ROWS, RIGHT)),
    "addmm, column": (of("addmm", alpha=2), (normal(M, 1, unknown=(0,)), ROWS, RIGHT)),
    "addmm, matrix": (of("addmm"), (RESULT, ROWS, RIGHT)),
    "addmm, itself": (lambda cw: lambda y, w: cw.addmm(y, y, w), (ROWS, normal(K, K))),
    "baddbmm, row": (of("baddbmm"), (BIAS, BATCH, RIGHTS)),
    "baddbmm, matrix": (of("baddbmm"), (RESULT, BATCH, RIGHTS)),
    "baddbmm, batch": (of("baddbmm"), (RESULTS, BATCH, RIGHTS)),
    "linear": (of("linear"), (BATCH, WEIGHT, BIAS)),
    "linear, gelu": (of("linear", activation="gelu"), (ROWS, WEIGHT, BIAS)),
    "linear, long K": (
        of("linear", activation="silu"),
        (normal(B, M, 300, unknown=(0, 1)), normal(N, 300), BIAS),
    ),
    "linear, residual": (named("linear", "residual"), (BATCH, WEIGHT, BIAS, RESULTS)),
    "linear, residual last": (
        named("linear", "residual", activation="relu", residual_after_activation=True),
        (ROWS, WEIGHT, BIAS, RESULT),
    ),
    "linear, composed": (
        named("linear", "residual", activation="tanh", residual_after_activation=True),
        (BATCH, WEIGHT, BIAS, RESULTS),
    ),
    "gated_linear": (of("gated_linear"), (BATCH, WEIGHT)),
    "gated_linear, bias": (named("gated_linear", "bias"), (BATCH, WEIGHT, BIAS)),
    "gated_linear, pair": (
        lambda cw: lambda x, gate, up: cw.gated_linear(x, (gate, up)),
        (BATCH, WEIGHT, WEIGHT),
    ),
    "gated_linear, interleaved": (of("gated_linear", interleaved=True), (BATCH, WEIGHT)),
    "matmul, 3 and 2": (of("matmul"), (BATCH, RIGHT)),
    "matmul, transposed": (lambda cw: lambda a, b: cw.matmul(a.transpose(0, 1), b), (BATCH, RIGHT)),
    "matmul, 2 and 3": (lambda cw: lambda a, b: cw.matmul(a, b.mT), (WEIGHT, BATCH)),
    "matmul, 3 and 1": (of("matmul"), (BATCH, normal(K))),
    "matmul, 4": (
        lambda cw: lambda a, b: cw.matmul(a, b.mT),
        (normal(B, 2, M, K, unknown=(0, 2)), normal(B, 2, M, K, unknown=(0, 2))),
    ),
    "matmul, broadcast": (of("matmul"), (normal(B, 1, M, K, unknown=(0, 2)), normal(2, K, N))),
    "grouped_mm, rows": (
        named("grouped_mm", "offs", "bias"),
        (TOKENS, normal(G, K, N), ENDS, normal(G, N)),
    ),
    "grouped_mm, columns": (
        lambda cw: lambda w, x, ends, c: cw.grouped_mm(w, x.t(), offs=ends, bias=c),
        (EXPERTS, TOKENS, ENDS, normal(G, N)),
    ),
    "grouped_mm, K": (
        lambda cw: lambda a, b, ends: cw.grouped_mm(a.t(), b, offs=ends),
        (TOKENS, normal(T, N, unknown=(0,)), ENDS),
    ),
    "grouped_mm, batch": (named("grouped_mm", "bias"), (BATCH, RIGHTS, normal(B, N, unknown=(0,)))),
    "grouped_linear": (
        named("grouped_linear", "offs", "bias", activation="gelu"),
        (TOKENS, EXPERTS, ENDS, normal(G, N)),
    ),
    "grouped_gated_linear": (named("grouped_gated_linear", "offs"), (TOKENS, EXPERTS, ENDS)),
    "grouped_gated_linear, interleaved": (
        named("grouped_gated_linear", "offs", interleaved=True),
        (TOKENS, EXPERTS, ENDS),
    ),
    "conv2d": (of("conv2d", padding=1), (PICTURES, FILTERS, CHANNELS)),
    "conv2d, strided": (of("conv2d", stride=2, activation="relu"), (PICTURES, FILTERS, CHANNELS)),
    "conv2d, residual": (
        named("conv2d", "residual", padding="same", activation="relu"),
        (PICTURES, FILTERS, CHANNELS, CONVOLVED),
    ),
    "conv2d, residual by torch": (
        named("conv2d", "residual", padding=1, activation="tanh", residual_after_activation=True),
        (PICTURES, FILTERS, CHANNELS, CONVOLVED),
    ),
    "conv2d, groups": (of("conv2d", groups=2), (IMAGES, normal(12, 4, 3, 3))),
    "conv1d": (
        named("conv1d", "residual", padding=1),
        (
            normal(B, 8, 9, unknown=(0, 2)),
            normal(12, 8, 3),
            CHANNELS,
            normal(B, 12, 9, unknown=(0, 2)),
        ),
    ),
    "conv3d": (
        named("conv3d", "residual", padding=(0, 1, 1)),
        (
            normal(B, 8, 4, 9, 10, unknown=(0, 2)),
            normal(12, 8, 1, 3, 3),
            CHANNELS,
            normal(B, 12, 4, 9, 10, unknown=(0, 2)),
        ),
    ),
    "pack_gated_weight": (of("pack_gated_weight"), (ROWS, ROWS)),
    "unpack_gated_weight": (of("unpack_gated_weight"), (normal(6, K, unknown=(0,)),)),
    "pack_gated_weight, biases": (
        of("pack_gated_weight"),
        (normal(6, unknown=(0,)), normal(6, unknown=(0,))),
    ),
    "Linear": (
        lambda cw: cw.nn.Linear(K, N, activation="gelu"),
        (BATCH, RESULTS),
    ),
    "GatedMLP": (lambda cw: cw.nn.GatedMLP(K, N), (BATCH,)),
    "Conv2d": (lambda cw: cw.nn.Conv2d(8, 12, 3, activation="relu"), (PICTURES,)),
    "GroupedExperts": (
        lambda cw: cw.nn.GroupedExperts(4, K, N),
        (
            BATCH,
            Operand(lambda: torch.randint(0, 4, (B, M, 2)), (0, 1)),
            Operand(lambda: torch.rand(B, M, 2), (0, 1)),
        ),
    ),
}


def scaled(of_x: str, of_weight: str, dtype: torch.dtype, is_named: bool = False) -> Bind:
    """quantize twice, and scaled_mm with recipes or without."""

    def bind(cutwheel: ModuleType) -> Callable[..., Any]:
        def call(x: Tensor, weight: Tensor) -> Any:
            a, scale_a = cutwheel.quantize(x, of_x, dtype)
            b, scale_b = cutwheel.quantize(weight, of_weight, dtype)
            recipes = (of_x, of_weight) if is_named else (None, None)
            scale_b = scale_b if of_weight == "tensorwise" else scale_b.t()
            return cutwheel.scaled_mm(a, b.t(), scale_a, recipes[0], scale_b, recipes[1])

        return call

    return bind


def scales_and(name: str) -> Bind:
    """scaled_mm of operands and scales, and another argument."""
    return lambda cw: (
        lambda a, b, scale_a, scale_b, other: cw.scaled_mm(
            a, b, scale_a, scale_b=scale_b, **{name: other}
        )
    )


def scaled_layer(recipe: str, dtype: torch.dtype, **options: Any) -> Bind:
    def bind(cutwheel: ModuleType) -> Any:
        source = torch.nn.Linear(WIDE, N)
        layer = cutwheel.nn.ScaledLinear.from_linear(source, recipe, dtype=dtype, **options)
        return layer.requires_grad_(False)

    return bind


QUANTISED_ROWS, QUANTISED_WEIGHT = normal(M, WIDE, unknown=(0,)), normal(N, WIDE)
SCALE, SCALES = Operand(lambda: torch.rand(1), ()), Operand(lambda: torch.rand(M, 1), (0,))
RECIPES = ("tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128")
# Calls without one.
OTHERS: dict[str, tuple[Bind, tuple[Operand, ...]]] = {
    "gemm": (named("gemm", "c", epilogue="linear_combination"), (ROWS, RIGHT, RESULT)),
    "gemm, batch": (named("gemm", "c", epilogue="linear_combination"), (BATCH, RIGHTS, RESULTS)),
    "accumulate_into": (
        lambda cw: (
            lambda a, b, ends, sums: cw.grouped_mm(a.t(), b, offs=ends, accumulate_into=sums)
        ),
        (TOKENS, normal(T, N, unknown=(0,)), ENDS, normal(G, K, N)),
    ),
    **{
        f"scaled_mm, {x}, {weight}, {how}": (
            scaled(x, weight, INT8 if how == "int8" else E4M3, how == "named"),
            (QUANTISED_ROWS, QUANTISED_WEIGHT),
        )
        for x, weight, how in (
            ("rowwise", "rowwise", "told"),
            ("rowwise", "tensorwise", "named"),
            ("tensorwise", "rowwise", "int8"),
            ("rowwise", "tensorwise", "int8"),
            ("blockwise_1x128", "blockwise_128x128", "told"),
            ("blockwise_1x128", "blockwise_1x128", "named"),
        )
    },
    "scaled_mm, azp": (
        scales_and("azp"),
        (
            integers(M, WIDE, unknown=(0,)),
            integers(WIDE, N),
            SCALES,
            SCALE,
            integers(M, unknown=(0,), dtype=INT32),
        ),
    ),
    "scaled_mm, out": (
        scales_and("out"),
        (integers(M, WIDE, unknown=(0,)), integers(WIDE, N), SCALES, SCALE, RESULT),
    ),
    "scaled_mm, int32": (
        lambda cw: lambda a, b: cw.scaled_mm(a, b, None, output_dtype=INT32),
        (integers(M, WIDE, unknown=(0,)), integers(WIDE, N)),
    ),
    "quantize": (lambda cw: lambda x: [cw.quantize(x, r)[1] for r in RECIPES], (QUANTISED_ROWS,)),
    "quantize, azp": (
        lambda cw: lambda x: cw.quantize(x, "rowwise", INT8, symmetric=False)[1:],
        (normal(B, M, WIDE, unknown=(0, 1)),),
    ),
    "scaled_grouped_mm": (
        lambda cw: (
            lambda a, b, scale_a, scale_b, ends: cw.scaled_grouped_mm(
                a, b.mT, scale_a, scale_b=scale_b, offs=ends
            )
        ),
        (
            normal(T, WIDE, unknown=(0,), dtype=E4M3),
            normal(G, N, WIDE, dtype=E4M3),
            Operand(lambda: torch.rand(T), (0,)),
            Operand(lambda: torch.rand(G, N), ()),
            ENDS,
        ),
    ),
    "scaled_conv2d": (
        of("scaled_conv2d", padding=1),
        (
            integers(B, 8, 9, 10, unknown=(0, 2, 3)),
            integers(12, 8, 3, 3),
            SCALE,
            Operand(lambda: torch.rand(12), ()),
        ),
    ),
    **{
        f"ScaledLinear, {recipe}, {dtype}, {options}": (
            scaled_layer(recipe, dtype, **options),
            (normal(B, M, WIDE, unknown=(0, 1)),),
        )
        for recipe, dtype, options in (
            ("rowwise", E4M3, {}),
            ("blockwise", E4M3, {}),
            ("rowwise", INT8, {"symmetric": False}),
            ("tensorwise", INT8, {"symmetric": False}),
        )
    },
}
CASES = {**FLOATS, **OTHERS}


@pytest.fixture(autouse=True)
def traced(traced_on_cpu: CpuOps) -> None:
    """CPU tensors are traced."""


def marked(operands: tuple[Operand, ...], tensors: list[Tensor]) -> list[Tensor]:
    for operand, tensor in zip(operands, tensors, strict=True):
        for dim in operand.unknown:
            torch._dynamo.decorators.mark_unbacked(tensor, dim)
    return tensors


def copies(tensors: list[Tensor], with_grad: bool = False) -> list[Tensor]:
    return [
        tensor.clone().requires_grad_(with_grad and tensor.dtype == torch.float32)
        for tensor in tensors
    ]


def assert_close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_compile(cutwheel: ModuleType, name: str) -> None:
    bind, operands = CASES[name]
    function, tensors = bind(cutwheel), [operand.make() for operand in operands]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(*marked(operands, copies(tensors))), function(*copies(tensors)))


@pytest.mark.parametrize("name", FLOATS)
def test_gradients(cutwheel: ModuleType, name: str) -> None:
    bind, operands = FLOATS[name]
    function, tensors = bind(cutwheel), [operand.make() for operand in operands]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    given = marked(operands, copies(tensors, True)), copies(tensors, True)
    for call, leaves in zip((compiled, function), given, strict=True):
        results = call(*leaves)
        first = results[0] if isinstance(results, tuple) else results
        first.square().sum().backward()
    for got, want in zip(*given, strict=True):
        assert_close(got.grad, want.grad)


class Selected(torch.nn.Module):
    """The function of what is left of its operands, of which nothing knows how much that is."""

    def __init__(self, function: Callable[..., Any], operands: tuple[Operand, ...]) -> None:
        super().__init__()
        # A module's parameters belong to the program.
        if isinstance(function, torch.nn.Module):
            self.module = function
        self.__dict__["function"] = function
        self.unknown = [operand.unknown for operand in operands]

    def forward(self, tensors: list[Tensor], kept: list[list[Tensor]]) -> Any:
        left = []
        for tensor, dims, masks in zip(tensors, self.unknown, kept, strict=True):
            for dim, mask in zip(dims, masks, strict=True):
                tensor = tensor.index_select(dim, mask.nonzero().squeeze(1))
            left.append(tensor)
        return self.function(*left)


@pytest.mark.parametrize("name", CASES)
def test_export(cutwheel: ModuleType, name: str) -> None:
    """Also where all that is left is one, which is no size to broadcast, or none."""
    bind, operands = CASES[name]
    tensors = [operand.make() for operand in operands]
    net = Selected(bind(cutwheel), operands)

    def kept(rest: int | None) -> list[list[Tensor]]:
        return [
            [
                torch.arange(tensor.shape[dim]) < (tensor.shape[dim] - 1 if rest is None else rest)
                for dim in unknown
            ]
            for tensor, unknown in zip(tensors, net.unknown, strict=True)
        ]

    program = torch.export.export(net, (copies(tensors), kept(None)), strict=False).module()
    for rest in (None, 1, 0):
        with torch.no_grad():
            try:
                want = net(copies(tensors), kept(rest))
            except (ValueError, RuntimeError):  # such as images without pixels
                continue
            assert_close(program(copies(tensors), kept(rest)), want)
