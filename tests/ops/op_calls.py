"""The table of ops: for each, calls on given tensors, and whether their results are right.

Behaviour of every op at run time (streams, graphs, threads, devices, memory) is tested over OPS, in
test_runtime_gpu.py. A new op is one entry there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from conv_cases import BIAS, OF_GROUPS, Conv, archs_of, arguments, epilogue_of
from conv_cases import rows as conv_rows
from conv_cases import serves as conv_serves
from conv_gradients import STRIDED, both, leaves
from conv_reference import DIRECTIONS, Geometry
from conv_scaled_cases import ScaledConv
from depthwise_cases import PROBLEMS as DEPTHWISE_PROBLEMS
from elementwise_cases import random_operands, weighed
from elementwise_cases import run as run_elementwise
from epilogue_cases import Call as EpilogueCall
from epilogue_cases import elementwise, representatives, served
from fused_cases import values
from gemm_cases import BRAIN, LAYOUTS, SINGLE, manifest_kernels, operands, random_tensor
from grouped_cases import DRAWN, offsets
from grouped_cases import Call as GroupedCall
from grouped_cases import archs as grouped_archs
from grouped_conv_cases import PROBLEMS as GROUPED_PROBLEMS
from grouped_conv_cases import GroupedConv
from reference import Problem, assert_as_good_as
from scaled_cases import BLOCKWISE, SPREAD
from scaled_cases import Call as ScaledCall
from scaled_grouped_cases import RECIPES, Grouped, is_served
from scaled_reference import BY_128, BY_128_128, E4M3, INT8, ROW, TENSOR
from volume_cases import PROBLEMS as VOLUMES
from volume_cases import TRANSPOSED, Volume

Tensor = torch.Tensor
Explained = tuple[str, Sequence[Any], Mapping[str, Any], str]
"""a function, its arguments, and the op of the kernel that serves them"""


@dataclass(frozen=True, eq=False)
class OpCall:
    """A call that reads `tensors`, or others in their place."""

    tensors: Sequence[Tensor]
    run: Callable[..., Sequence[Tensor]]
    judge: Callable[[Sequence[Tensor]], None]  # results of these tensors' values

    def __call__(self) -> Sequence[Tensor]:
        return self.run(*self.tensors)


@dataclass(frozen=True)
class Op:
    """calls(cutwheel, device, dtypes, seed) have the same sizes with every seed.

    step(cutwheel, device) makes a forward and backward pass. refused(cutwheel, device) is the
    argument that an error names, and the call that raises it.
    """

    calls: Callable[[Any, str, Sequence[torch.dtype], int], Iterator[OpCall]]
    refused: Callable[[Any, str], tuple[str, Callable[[], object]]]
    step: Callable[[Any, str], Callable[[], object]] | None = None
    explained: Callable[[str], Iterator[Explained]] | None = None
    archs: tuple[str | None, ...] = (None,)


# ---- matrix products
def _gemm_calls(
    cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    mm, linear = cutwheel.mm, torch.nn.functional.linear

    def product(call: Callable[..., Tensor], a: Tensor, b: Tensor, bias: bool = False) -> OpCall:
        def judge(results: Sequence[Tensor]) -> None:
            expected = linear(a, b.t(), b[0]) if bias else torch.mm(a, b)
            assert_as_good_as(results[0], expected, Problem.of(a, b, b[0] if bias else None))

        return OpCall((a, b), lambda a, b: [call(a, b)], judge)

    for dtype in dtypes:
        a, b = operands(136, 200, 264, dtype, device)
        out = torch.full((200, 136), float("nan"), dtype=dtype, device=device).t()
        yield product(mm, a, b)
        yield product(functools.partial(mm, out=out), a, b)
        yield product(lambda a, b: cutwheel.bmm(a[None], b[None])[0], a, b)
        yield product(lambda a, b: cutwheel.linear(a, b.t(), b[0]), a, b, bias=True)
        square = operands(512, 512, 512, dtype, device)
        yield product(lambda a, b: cutwheel.addmm(a[:1], a, b, beta=0), *square)
        yield product(mm, *operands(33, 65, 77, dtype, device, "row_offset", "every_second"))
        yield product(mm, *operands(256, 384, 512, dtype, device))
        yield product(mm, *operands(33, 4096, 1000, dtype, device))
        # With a workspace, where K is split.
        yield product(mm, *operands(256, 256, 65536, dtype, device))


def _gemm_step(cutwheel: Any, device: str) -> Callable[[], object]:
    a, b = operands(129, 257, 1025, BRAIN, device, "row_offset", "every_second")
    a.requires_grad_()
    return lambda: torch.autograd.grad(cutwheel.mm(a, b).sum(), a)


def _gemm_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    a, b = operands(72, 88, 104, BRAIN, device)
    return "mat2", lambda: cutwheel.mm(a, b[:-1])


def _gemm_explained(device: str) -> Iterator[Explained]:
    a, b = operands(256, 512, 1024, BRAIN, device)
    yield "mm", (a, b), {}, "gemm"
    yield "linear", (a, b.t(), b[0]), {}, "gemm"


# ---- products with a named epilogue, and epilogues alone
FORMS = [case.epilogue for case in served(representatives(), BRAIN) if case.arch == "sm80"]
BACKWARD = [case.epilogue for case in served(elementwise(), BRAIN) if case.arch == "sm80"]


def _epilogue_calls(
    cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    for epilogue in FORMS:
        for extents, lay in (((136, 200, 264), "row"), ((33, 65, 77), "row_offset")):
            call = EpilogueCall.random(epilogue, *extents, BRAIN, device, lay_a=LAYOUTS[lay])
            names = list(call.operands)

            def run(
                a: Tensor,
                b: Tensor,
                *rest: Tensor,
                call: EpilogueCall = call,
                names: Sequence[str] = names,
            ) -> list[Tensor]:
                given = call.with_operands(**dict(zip(names, rest, strict=True)))
                return replace(given, a=a, b=b).run(cutwheel)

            rest = [x for x in call.operands.values() if x is not None]
            yield OpCall((call.a, call.b, *rest), run, call.judge)


def _epilogue_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    a, b = operands(8, 16, 24, BRAIN, device)
    return "bias", lambda: cutwheel.gemm(a, b, "bias_gelu", bias=b[0, :5])


def _elementwise_calls(
    cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    for epilogue in BACKWARD:
        given = random_operands(epilogue, (1000, 130), BRAIN, device)

        def run(*given: Tensor, epilogue: Any = epilogue) -> Sequence[Tensor]:
            return run_elementwise(epilogue, given, with_sums=True)

        def judge(results: Sequence[Tensor], epilogue: Any = epilogue, given: Any = given) -> None:
            for result, exact in zip(results, weighed(epilogue, given), strict=True):
                exact.assert_as_good(result, exact.value.to(BRAIN), epilogue.name)

        yield OpCall(given, run, judge)


def _elementwise_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    grad = random_tensor((24, 40), BRAIN, device)
    op = torch.ops.cutwheel.elementwise
    return "operands", lambda: op([grad, grad, grad], "gelu_backward")


# ---- groups
GROUPED = {"rows": (300, 136, 72), "k": (72, 136, 300), "columns": (72, 304, 136)}
GROUPS = 6
MANY = {"rows": (3000, 264, 520), "k": (264, 520, 3000), "columns": (264, 3000, 520)}


def _grouped_calls(
    kind: str, cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    how = DRAWN[seed % len(DRAWN)]
    for dtype in dtypes:
        few = GroupedCall.random(kind, *GROUPED[kind], GROUPS, dtype, device, how=how, seed=seed)
        many = GroupedCall.random(kind, *MANY[kind], 20, dtype, device, how=how, seed=seed)
        wide = replace(few, d=SINGLE, offs_dtype=torch.int64)
        for one in (few, replace(few, lay_a="every_second"), wide, many):
            if not one.is_served:
                continue

            def run(a: Tensor, b: Tensor, offs: Tensor, d: torch.dtype = one.d) -> list[Tensor]:
                return [cutwheel.grouped_mm(a, b, offs=offs, out_dtype=d)]

            assert one.offs is not None
            yield OpCall(
                (*one.positional, one.offs), run, lambda results, one=one: one.judge(results[0])
            )


def _grouped_step(cutwheel: Any, device: str) -> Callable[[], object]:
    x = random_tensor((300, 64), BRAIN, device).requires_grad_()
    w = random_tensor((GROUPS, 96, 64), BRAIN, device).requires_grad_()
    offs = offsets([50, 50, 120, 180, 290, 300], device)
    main = torch.zeros(GROUPS, 64, 96, device=device)
    lists = [[random_tensor((m, 40), BRAIN, device) for m in (24, 0, 33)] for _ in range(2)]

    def step() -> None:
        h = cutwheel.grouped_gated_linear(x, w, activation="silu", offs=offs, interleaved=True)
        torch.autograd.grad(h, (x, w), torch.ones_like(h))
        y = cutwheel.grouped_mm(x, w.mT, offs=offs)
        torch.autograd.grad(y.sum(), (x, w))
        cutwheel.grouped_mm(x.detach().t(), y.detach(), offs=offs, accumulate_into=main)
        cutwheel.grouped_mm_list(lists[0], [b.t() for b in lists[1]])

    return step


def _grouped_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    x = random_tensor((300, 64), BRAIN, device)
    w = random_tensor((GROUPS, 96, 64), BRAIN, device)
    offs = offsets([50, 50, 120, 180, 290, 300], device)
    return "mat_b", lambda: cutwheel.grouped_mm(x, w, offs=offs)


def _grouped_explained(kind: str, device: str) -> Iterator[Explained]:
    if kind != "columns":
        call = GroupedCall.random(kind, *GROUPED[kind], GROUPS, BRAIN, device)
        yield "grouped_mm", call.positional, call.keywords, "grouped_mm"


# ---- convolutions
SAME_3X3 = Geometry((1, 1), (1, 1, 1, 1))
EVEN = ((2, 24, 9, 14), (40, 24, 3, 3), Geometry((1, 2), (1, 1, 2, 2)))
ODD = ((2, 5, 8, 7), (7, 5, 3, 2), Geometry((2, 1), (1, 1, 0, 0)))
ONE_TAP = ((3, 24, 5, 6), (40, 24, 1, 1), Geometry())
LONG = ((16, 16, 40, 40), (24, 16, 3, 3), SAME_3X3)  # K of wgrad is split


def convs(device: str, dtypes: Sequence[torch.dtype], **options: Any) -> list[Conv]:
    """Each direction, in one kernel, in several and as a matrix product."""
    found = [
        Conv.random(direction, *problem, dtype, device, **options)
        for direction in DIRECTIONS
        for problem in (EVEN, ODD, ONE_TAP, LONG)
        for dtype in dtypes
    ]
    return [conv for conv in found if conv_serves(conv.direction, conv.a.dtype)]


def _conv_calls(
    lays: tuple[str, str], cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    for conv in convs(device, dtypes, lay_a=lays[0], lay_b=lays[1]):

        def run(a: Tensor, b: Tensor, conv: Conv = conv) -> list[Tensor]:
            return [replace(conv, a=a, b=b).run(as_they_are=True)]

        yield OpCall(conv.positional, run, lambda results, conv=conv: conv.judge(results[0]))


def _conv_step(cutwheel: Any, device: str) -> Callable[[], object]:
    pairs = []
    for activation, place in (("silu", "after"), ("relu", "before")):
        given = [x for x in leaves(STRIDED, BRAIN, device, place=place) if x is not None]
        pairs.append((both(cutwheel, STRIDED[2], activation, place)[0], given))
    return lambda: [torch.autograd.grad(ours(*given).sum(), given) for ours, given in pairs]


def _conv_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    x, weight = (values(size, BRAIN, device) for size in STRIDED[:2])
    return "weight", lambda: cutwheel.conv2d(x, weight[:, :5])


def _conv_explained(device: str) -> Iterator[Explained]:
    for activation, place in ((None, "no_residual"), ("relu", "before"), ("silu", "after")):
        conv = Conv.random("fprop", *EVEN, BRAIN, device, epilogue_of(activation, place))
        yield "conv2d", (), arguments(conv, activation, place), "conv2d"
    conv = Conv.random("fprop", *ONE_TAP, BRAIN, device, BIAS)
    yield "conv2d", (), arguments(conv, None, "no_residual"), "gemm"  # matrix products


_GROUPED = "4_stride1", "8_stride2", "24_stride1", "64_stride2", "more_filters"


def _grouped_conv_calls(
    cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    for name, dtype, direction in itertools.product(
        ("3x3_stride1", "5x5_stride2", "7x7_stride1", "one_tap_a_row", *_GROUPED),
        dtypes,
        DIRECTIONS,
    ):
        if dtype == SINGLE:
            continue
        problem = (GROUPED_PROBLEMS if name in _GROUPED else DEPTHWISE_PROBLEMS)[name]
        conv = GroupedConv.random(direction, *problem, dtype, device)

        def run(a: Tensor, b: Tensor, conv: Conv = conv) -> list[Tensor]:
            return [replace(conv, a=a, b=b).run(as_they_are=True)]

        yield OpCall(conv.positional, run, lambda results, conv=conv: conv.judge(results[0]))


def _grouped_conv_step(cutwheel: Any, device: str) -> Callable[[], object]:
    sizes = (2, 24, 9, 14), (24, 1, 3, 3), (24, 8, 3, 3)
    given = [values(size, BRAIN, device).requires_grad_() for size in sizes]

    def loss() -> Tensor:
        y = cutwheel.conv2d(*given[:2], padding=1, groups=24, activation="relu")
        result: Tensor = cutwheel.conv2d(y, given[2], padding=1, groups=3).sum()
        return result

    return lambda: torch.autograd.grad(loss(), given)


def _grouped_conv_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    x, weight = (values(size, BRAIN, device) for size in ((2, 24, 9, 14), (25, 1, 3, 3)))
    geometry = 1, 1, 1, 1, 1, 1, 1, 1
    op = torch.ops.cutwheel.conv2d_grouped
    return "weight", lambda: op(x, weight, None, None, *geometry, "plain")


# ---- volumes, and transposed convolutions
def _volume_calls(
    is_transposed: bool, cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    problems = TRANSPOSED if is_transposed else VOLUMES
    for (name, problem), dtype in itertools.product(problems.items(), dtypes):
        directions = ("dgrad",) if is_transposed else DIRECTIONS
        if dtype == SINGLE or name == "split":
            continue
        for direction in directions:
            epilogue = "bias_relu" if is_transposed else "plain"
            given = (direction, *problem, dtype, device, epilogue, is_transposed)
            conv = Volume.random(*given)

            def run(a: Tensor, b: Tensor, *more: Tensor, conv: Volume = conv) -> list[Tensor]:
                operands = dict(zip(conv.operands, more, strict=True))
                return [replace(conv, a=a, b=b, operands=operands).run(as_they_are=True)]

            tensors = (*conv.positional, *conv.operands.values())
            yield OpCall(tensors, run, lambda results, conv=conv: conv.judge(results[0]))


def _volume_step(is_transposed: bool, cutwheel: Any, device: str) -> Callable[[], object]:
    given = [
        values(size, BRAIN, device).requires_grad_()
        for size in ((2, 24, 3, 9, 8), (24, 24, 3, 3, 3))
    ]
    op = cutwheel.conv_transpose3d if is_transposed else cutwheel.conv3d
    return lambda: torch.autograd.grad(op(*given, padding=1, activation="relu").sum(), given)


def _volume_refused(
    is_transposed: bool, cutwheel: Any, device: str
) -> tuple[str, Callable[[], object]]:
    x, weight = (values(size, BRAIN, device) for size in ((2, 24, 3, 9, 8), (24, 24, 3, 3, 3)))
    if is_transposed:
        return "weight", lambda: cutwheel.conv_transpose3d(x, weight[:5])
    return "weight", lambda: cutwheel.conv3d(x, weight[:, :5])


# ---- 8-bit operands
def _scaled_calls(
    cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    for recipes, (extents, options) in itertools.product(
        (*SPREAD, *BLOCKWISE),
        (
            ((129, 257, 1025), {"lay_a": "row_offset"}),
            ((264, 328, 1096), {"d": SINGLE}),
        ),
    ):
        call = ScaledCall.random(*extents, device, recipes=recipes, bias="f32", **options)

        def run(*given: Tensor, call: ScaledCall = call) -> list[Tensor]:
            a, b, scale_a, scale_b, bias = given
            keywords = {**call.keywords, "bias": bias, "scale_b": scale_b}
            return [cutwheel.scaled_mm(a, b, scale_a, **keywords)]

        assert call.bias is not None
        yield OpCall(
            (*call.positional, call.bias), run, lambda results, call=call: call.judge(results[0])
        )


def _scaled_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    a, b, scale_a, scale_b = ScaledCall.random(129, 257, 1025, device).positional
    return "scale", lambda: cutwheel.scaled_mm(a, b, scale_a[:5], scale_b=scale_b)


def _scaled_explained(device: str) -> Iterator[Explained]:
    for recipes in (*SPREAD, *BLOCKWISE):
        call = ScaledCall.random(64, 512, 1024, device, recipes=recipes)
        a, b, scale_a, scale_b = call.positional
        yield "scaled_mm", (a, b, scale_a), {**call.keywords, "scale_b": scale_b}, "scaled_mm"


def _scaled_grouped_calls(
    cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    how = DRAWN[seed % len(DRAWN)]
    for recipes in RECIPES:
        if not is_served(recipes):
            continue
        call = Grouped.random(
            300, 264, 272, 6, device, recipes=recipes, how=how, seed=seed, bias="d"
        )
        keywords = {**call.given, **call.keywords}
        names = (*call.given, "offs", "bias")

        def run(*given: Tensor, keywords: Any = keywords, names: Any = names) -> list[Tensor]:
            named = dict(zip(names, given, strict=True))
            return [cutwheel.scaled_grouped_mm(**{**keywords, **named})]

        tensors = [keywords[name] for name in names]
        yield OpCall(tensors, run, lambda results, call=call: call.judge(results[0]))


def _scaled_grouped_refused(cutwheel: Any, device: str) -> tuple[str, Callable[[], object]]:
    call = Grouped.random(30, 40, 272, 3, device)
    return "offs", lambda: call.run(cutwheel, offs=call.keywords["offs"][:2])


SCALED_CONV = ((2, 48, 9, 14), (40, 48, 3, 3), Geometry((1, 2), (1, 1, 2, 2)))


def _scaled_conv_calls(
    dtype: torch.dtype, cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    def call_of(conv: ScaledConv) -> OpCall:
        given = conv.arguments
        names = [name for name, value in given.items() if isinstance(value, Tensor)]

        def run(*tensors: Tensor) -> list[Tensor]:
            return [cutwheel.scaled_conv2d(**{**given, **dict(zip(names, tensors, strict=True))})]

        return OpCall([given[name] for name in names], run, lambda out: conv.judge(out[0]))

    yield call_of(ScaledConv.random(*SCALED_CONV, dtype, device, bias="d"))
    given = (*SCALED_CONV, dtype, device, dtype, "f32", True, True)
    yield call_of(ScaledConv.random(*given, activation="relu"))


def _scaled_conv_refused(
    dtype: torch.dtype, cutwheel: Any, device: str
) -> tuple[str, Callable[[], object]]:
    given = ScaledConv.random(*SCALED_CONV, dtype, device, bias="d").arguments
    wrong = {**given, "bias": given["bias"][:5]}
    return "bias", lambda: cutwheel.scaled_conv2d(**wrong)


# ---- layers that quantise what they are given: each kernel reads what the last one wrote
# (quantised dtype, recipe of activations, recipe of weights)
LAYERS = [
    (E4M3, TENSOR, TENSOR),
    (E4M3, ROW, ROW),
    (E4M3, BY_128, BY_128_128),
    (E4M3, BY_128, BY_128),
    (INT8, TENSOR, ROW),
    (INT8, ROW, ROW),
]


def layer_id(layer: tuple[Any, ...]) -> str:
    return "-".join(str(part).removeprefix("torch.") for part in layer)


@dataclass(frozen=True)
class Layer:
    """Quantises both operands and multiplies them."""

    cutwheel: Any
    dtype: torch.dtype
    recipe_x: str
    recipe_w: str
    fast: bool = False

    def __call__(
        self, x: Tensor, w: Tensor, bias: Tensor | None = None, first: str = "x"
    ) -> Tensor:
        """first: the operand that is quantised first; the other's kernel runs just before."""
        made = {}
        for name in ("x", "w") if first == "x" else ("w", "x"):
            operand, recipe = (x, self.recipe_x) if name == "x" else (w, self.recipe_w)
            made[name] = self.cutwheel.quantize(operand, recipe, self.dtype)
        return self.of_quantised(*made["x"], *made["w"], bias)

    def of_quantised(
        self, q: Tensor, s: Tensor, wq: Tensor, ws: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        result: Tensor = self.cutwheel.scaled_mm(
            q,
            wq.t(),
            s,
            scale_b=ws if self.recipe_w == TENSOR else ws.t(),
            bias=bias,
            use_fast_accum=self.fast,
            scale_recipe_a=self.recipe_x,
            scale_recipe_b=self.recipe_w,
        )
        return result

    def one_at_a_time(self, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same with nothing else on the device while a kernel runs."""
        parts: list[Tensor] = []
        for operand, recipe in ((x, self.recipe_x), (w, self.recipe_w)):
            torch.cuda.synchronize(x.device)
            parts += self.cutwheel.quantize(operand, recipe, self.dtype)
        torch.cuda.synchronize(x.device)
        result = self.of_quantised(*parts, bias)  # type: ignore[misc]
        torch.cuda.synchronize(x.device)
        return result


def assert_same(result: Tensor, wanted: Tensor, what: object) -> None:
    """The same kernels on the same values; a read of stale ones is far off."""
    norm = wanted.float().norm().item()
    difference = (result.float() - wanted.float()).norm().item()
    assert difference <= 2.0**-8 * norm, f"{what}: off by {difference:.3g} of {norm:.3g}"


def _layer_calls(
    layer: tuple[Any, ...], cutwheel: Any, device: str, dtypes: Sequence[torch.dtype], seed: int
) -> Iterator[OpCall]:
    run = Layer(cutwheel, *layer)
    for m, n, k in ((129, 264, 1040), (33, 65, 77)):
        given = [random_tensor(shape, BRAIN, device) for shape in ((m, k), (n, k), (n,))]

        def judge(results: Sequence[Tensor], given: Sequence[Tensor] = given) -> None:
            assert_same(results[0], run.one_at_a_time(*given), layer)

        yield OpCall(given, lambda *given: [run(*given)], judge)


# ---- all of them
_quantised = {
    f"quantized-{layer_id(layer)}": Op(functools.partial(_layer_calls, layer), _scaled_refused)
    for layer in LAYERS
}
_by_kind = {
    f"grouped_mm-{kind}": Op(
        functools.partial(_grouped_calls, kind),
        _grouped_refused,
        _grouped_step if kind == "rows" else None,
        functools.partial(_grouped_explained, kind),
        grouped_archs(),
    )
    for kind in GROUPED
}
_by_layout = {
    f"conv2d-{name}": Op(
        functools.partial(_conv_calls, lays),
        _conv_refused,
        _conv_step if name == "channels_last" else None,
        _conv_explained if name == "channels_last" else None,
        archs_of(conv_rows()[0]),
    )
    for name, lays in {
        "channels_last": ("channels_last", "channels_last"),
        "nchw": ("nchw", "nchw"),
        "odd_channels": ("nchw", "of_odd_channels"),
    }.items()
}
_grouped_conv = Op(
    _grouped_conv_calls,
    _grouped_conv_refused,
    _grouped_conv_step,
    archs=archs_of([row for row in manifest_kernels("conv2d") if row["family"] in OF_GROUPS]),
)
_volumes = {
    name: Op(
        functools.partial(_volume_calls, is_transposed),
        functools.partial(_volume_refused, is_transposed),
        functools.partial(_volume_step, is_transposed),
        archs=("sm90a",),
    )
    for name, is_transposed in (("conv3d", False), ("conv_transpose", True))
}
_scaled_conv = {
    f"scaled_conv2d-{name}": Op(
        functools.partial(_scaled_conv_calls, dtype), functools.partial(_scaled_conv_refused, dtype)
    )
    for name, dtype in (("fp8", E4M3), ("int8", INT8))
}
OPS: dict[str, Op] = {
    "gemm": Op(_gemm_calls, _gemm_refused, _gemm_step, _gemm_explained),
    "epilogue": Op(_epilogue_calls, _epilogue_refused),
    "elementwise": Op(_elementwise_calls, _elementwise_refused),
    **_by_kind,
    **_by_layout,
    "grouped_conv": _grouped_conv,
    **_volumes,
    "scaled_mm": Op(_scaled_calls, _scaled_refused, explained=_scaled_explained),
    "scaled_grouped_mm": Op(_scaled_grouped_calls, _scaled_grouped_refused),
    **_scaled_conv,
    **_quantised,
}
