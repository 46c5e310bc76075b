"""Scaled products among other work: graphs, streams, what ran just before, compilers, devices."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, SINGLE, random_tensor
from scaled_cases import BLOCKWISE, SPREAD, Call
from scaled_reference import BY_128, BY_128_128, E4M3, E5M2, INT8, ROW, TENSOR

pytestmark = pytest.mark.gpu

# (quantised dtype, recipe of activations, recipe of weights)
LAYERS = [
    (E4M3, TENSOR, TENSOR),
    (E4M3, ROW, ROW),
    (E4M3, BY_128, BY_128_128),
    (E4M3, BY_128, BY_128),
    (INT8, TENSOR, ROW),
    (INT8, ROW, ROW),
]
layer_ids = ["-".join(str(part).removeprefix("torch.") for part in layer) for layer in LAYERS]


@pytest.fixture
def cuda(device: str) -> str:
    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA streams")
    return device


@dataclass(frozen=True)
class Layer:
    """Quantises what it is given and multiplies: each kernel reads what the last one wrote."""

    cutwheel: Any
    dtype: torch.dtype
    recipe_x: str
    recipe_w: str
    fast: bool = False

    def __call__(
        self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, first: str = "x"
    ) -> torch.Tensor:
        """first: the operand that is quantised first; the other's kernel runs just before."""
        made = {}
        for name in ("x", "w") if first == "x" else ("w", "x"):
            operand, recipe = (x, self.recipe_x) if name == "x" else (w, self.recipe_w)
            made[name] = self.cutwheel.quantize(operand, recipe, self.dtype)
        return self.of_quantised(*made["x"], *made["w"], bias)

    def of_quantised(
        self,
        q: torch.Tensor,
        s: torch.Tensor,
        wq: torch.Tensor,
        ws: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        scale_w = ws if self.recipe_w == TENSOR else ws.t()
        result: torch.Tensor = self.cutwheel.scaled_mm(
            q,
            wq.t(),
            s,
            scale_b=scale_w,
            bias=bias,
            use_fast_accum=self.fast,
            scale_recipe_a=self.recipe_x,
            scale_recipe_b=self.recipe_w,
        )
        return result


def one_at_a_time(layer: Layer, x: torch.Tensor, w: torch.Tensor, bias: Any) -> torch.Tensor:
    """The same with nothing else on the device while a kernel runs."""
    parts = []
    for operand, recipe in ((x, layer.recipe_x), (w, layer.recipe_w)):
        torch.cuda.synchronize()
        parts += layer.cutwheel.quantize(operand, recipe, layer.dtype)
    torch.cuda.synchronize()
    result = layer.of_quantised(*parts, bias)
    torch.cuda.synchronize()
    return result


def captured(work: Callable[[], list[torch.Tensor]]) -> tuple[Any, list[torch.Tensor]]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    return graph, results


def assert_same(result: torch.Tensor, wanted: torch.Tensor, what: object) -> None:
    """The same kernels on the same values; a read of stale ones is far off."""
    norm = wanted.float().norm().item()
    difference = (result.float() - wanted.float()).norm().item()
    assert difference <= 2.0**-8 * norm, f"{what}: off by {difference:.3g} of {norm:.3g}"


SIZES = [(1, 4096, 4096), (16, 2112, 1024), (65, 520, 7168), (300, 1040, 2048), (1000, 4096, 512)]
SIZES += [(33, 65, 77)]  # with copies of operands between the kernels


# ---- kernels that start while the one before them still runs
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("layer", LAYERS, ids=layer_ids)
def test_what_was_written_just_before_is_read(
    cutwheel: ModuleType, cuda: str, layer: tuple[Any, ...]
) -> None:
    """Values, scales and weights come from the kernel just before, over and over in one graph.

    The graph's memory is used again: a kernel that starts early must not write what is still read.
    """
    for (m, n, k), fast in zip(SIZES, itertools.cycle((False, True))):
        run = Layer(cutwheel, *layer, fast=fast)
        count = 6
        xs = [random_tensor((m, k), BRAIN, cuda) for _ in range(count)]
        ws = [random_tensor((n, k), BRAIN, cuda) for _ in range(2)]
        bias = random_tensor((n,), BRAIN, cuda)

        def work() -> list[torch.Tensor]:
            return [
                run(xs[i], ws[i % 2], bias, first="xw"[i % 2])  # noqa: B023
                for i in range(count)  # noqa: B023
            ]

        graph, results = captured(work)
        for _ in range(3):
            for i, x in enumerate(xs):
                # Another size of values each time: stale scales are off by its factor.
                x.copy_(random_tensor((m, k), BRAIN, cuda) * 2.0 ** (i % 3 - 1))
            for w in ws:
                w.copy_(random_tensor((n, k), BRAIN, cuda))
            for result in results:
                result.fill_(float("nan"))
            graph.replay()
            graph.replay()
            torch.cuda.synchronize()
            for i, result in enumerate(results):
                wanted = one_at_a_time(run, xs[i], ws[i % 2], bias)
                assert_same(result, wanted, f"number {i} of {m} x {n} x {k}, {layer}")


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("layer", LAYERS, ids=layer_ids)
def test_chain_of_layers(cutwheel: ModuleType, cuda: str, layer: tuple[Any, ...]) -> None:
    """Each product is quantised for the next one, in a graph and eagerly."""
    run = Layer(cutwheel, *layer)
    for m, width in ((1, 2048), (33, 1040), (300, 2048)):
        x = random_tensor((m, width), BRAIN, cuda)
        weights = [random_tensor((width, width), BRAIN, cuda) * width**-0.5 for _ in range(4)]
        made = [cutwheel.quantize(w, layer[2], layer[0]) for w in weights]

        def work() -> list[torch.Tensor]:
            y, found = x, []  # noqa: B023
            for quantised in made:  # noqa: B023
                y = run.of_quantised(*cutwheel.quantize(y, layer[1], layer[0]), *quantised)
                found.append(y)
            return found

        graph, results = captured(work)
        for _ in range(3):
            x.copy_(random_tensor((m, width), BRAIN, cuda))
            graph.replay()
            torch.cuda.synchronize()
            y = x
            for index, w in enumerate(weights):
                y = one_at_a_time(run, y, w, None)
                assert_same(results[index], y, f"layer {index} of {m} x {width}")
            assert_same(work()[-1], y, "without a graph")


# ---- streams, threads, devices
@pytest.mark.parametrize("layer", LAYERS, ids=layer_ids)
def test_stream_of_the_caller(cutwheel: ModuleType, cuda: str, layer: tuple[Any, ...]) -> None:
    run = Layer(cutwheel, *layer)
    x, w = random_tensor((129, 1040), BRAIN, cuda), random_tensor((264, 1040), BRAIN, cuda)
    wanted = one_at_a_time(run, x, w, None)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # work elsewhere would run before the operands are filled
        result = run(x.clone(), w.clone())
    stream.synchronize()
    assert_same(result, wanted, layer)


@pytest.mark.no_dispatch_mode
def test_two_threads_on_two_streams(cutwheel: ModuleType, cuda: str) -> None:
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                call = Call.random(*((300, 520, 1024), (17, 2112, 640))[index], cuda)
                for _ in range(30):
                    result = call.run(cutwheel)
                torch.cuda.current_stream().synchronize()
                call.judge(result)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_device_that_is_not_current(cutwheel: ModuleType, cuda: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for layer in LAYERS:
        run = Layer(cutwheel, *layer)
        x, w = (random_tensor((rows, 272), BRAIN, "cuda:1") for rows in (40, 72))
        with torch.cuda.device(0):
            result = run(x, w)
            assert torch.cuda.current_device() == 0
        assert result.device == torch.device("cuda:1")
        with torch.cuda.device(1):
            assert_same(result, one_at_a_time(run, x, w, None), layer)
    call = Call.random(40, 72, 272, "cuda:1")
    a, b, scale_a, scale_b = call.positional
    for bad, name in (
        ((a, b.to("cuda:0"), scale_a, scale_b), "mat_b"),
        ((a, b, scale_a.to("cuda:0"), scale_b), "scale_a"),
    ):
        with pytest.raises(ValueError, match=name):
            cutwheel.scaled_mm(*bad[:3], scale_b=bad[3])


@pytest.mark.no_dispatch_mode
def test_no_memory_is_kept(cutwheel: ModuleType, cuda: str) -> None:
    calls = [
        Call.random(129, 257, 1025, cuda, recipes=recipes, bias="f32", lay_a="row_offset")
        for recipes in (*SPREAD, *BLOCKWISE)
    ]
    x = random_tensor((129, 1025), BRAIN, cuda)

    def work() -> None:
        for call in calls:
            call.run(cutwheel)
        for dtype, recipe, _ in LAYERS:
            cutwheel.quantize(x, recipe, dtype)
        a, b, scale_a, scale_b = calls[1].positional
        with pytest.raises(ValueError, match="scale"):
            cutwheel.scaled_mm(a, b, scale_a[:5], scale_b=scale_b)

    work()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        work()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_two_runs_give_the_same_bits(cutwheel: ModuleType, device: str) -> None:
    for recipes in (*SPREAD, *BLOCKWISE):
        call = Call.random(264, 328, 1096, device, recipes=recipes, d=SINGLE)
        assert torch.equal(call.run(cutwheel), call.run(cutwheel))


# ---- compilers and checkers
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("layer", LAYERS, ids=layer_ids)
def test_compile(cutwheel: ModuleType, device: str, layer: tuple[Any, ...]) -> None:
    run = Layer(cutwheel, *layer)
    x, w = random_tensor((72, 272), BRAIN, device), random_tensor((136, 272), BRAIN, device)
    bias = random_tensor((136,), BRAIN, device)
    # Inductor takes a second for each; what differs is the recipe, which it does not look at.
    backend = "inductor" if device != "cpu" and layer[1] == ROW else "aot_eager"
    torch._dynamo.reset()
    compiled = torch.compile(run.__call__, fullgraph=True, backend=backend)
    wanted = run(x, w, bias)
    result = compiled(x, w, bias)
    assert result.stride() == wanted.stride()
    assert_same(result, wanted, layer)


@pytest.mark.no_dispatch_mode
def test_compile_with_other_arguments(cutwheel: ModuleType, device: str) -> None:
    call = Call.random(40, 72, 80, device, (INT8, INT8), (ROW, ROW), SINGLE, "f32", "row")
    options = call.keywords

    def run(
        a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = cutwheel.scaled_mm(a, b, output_dtype=torch.int32)
        return cutwheel.scaled_mm(a, b, scale_a, scale_b=scale_b, **options), whole

    torch._dynamo.reset()
    scaled, whole = torch.compile(run, fullgraph=True, backend="aot_eager")(*call.positional)
    call.judge(scaled)
    assert torch.equal(whole, run(*call.positional)[1])


@pytest.mark.no_dispatch_mode
def test_compile_of_asymmetric_quantisation(cutwheel: ModuleType, device: str) -> None:
    x = random_tensor((40, 72), BRAIN, device)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(cutwheel.quantize(x, "rowwise", torch.int8, symmetric=False))

    torch._dynamo.reset()
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(x)
    assert all(torch.equal(a, b) for a, b in zip(found, run(x), strict=True))


# Of fp8 tensors, torch's own comparisons in the other two checks are missing.
CHECKS = ("test_faketensor", "test_autograd_registration")
CODES = {TENSOR: 0, ROW: 1, BY_128: 2, BY_128_128: 3}


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("recipes", [*SPREAD, *BLOCKWISE], ids="-".join)
def test_opcheck(cutwheel: ModuleType, device: str, recipes: tuple[str, str]) -> None:
    op = torch.ops.cutwheel.scaled_mm
    for dtypes in ((E4M3, E4M3), (E5M2, E4M3), (INT8, INT8)):
        if dtypes[0] == INT8 and recipes in BLOCKWISE:
            continue
        checks: dict[str, Any] = {"test_utils": CHECKS} if dtypes[0] != INT8 else {}
        for bias in (None, "f32"):
            call = Call.random(24, 56, 48, device, dtypes, recipes, SINGLE, bias)
            codes = {"scale_recipe_a": CODES[recipes[0]], "scale_recipe_b": CODES[recipes[1]]}
            given = (*call.positional, call.bias)
            keywords = {**codes, "use_fast_accum": True}
            torch.library.opcheck(op.default, given, {**keywords, "output_dtype": BRAIN}, **checks)
            out = torch.zeros(24, 56, device=device)
            torch.library.opcheck(
                op.out, given, {**keywords, "out": out}, test_utils=("test_faketensor",)
            )


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("recipe", CODES)
def test_opcheck_of_quantize(cutwheel: ModuleType, device: str, recipe: str) -> None:
    op = torch.ops.cutwheel.quantize.default
    x = random_tensor((24, 300), BRAIN, device)
    torch.library.opcheck(op, (x, CODES[recipe], E4M3), test_utils=CHECKS)
    if recipe in (TENSOR, ROW):
        torch.library.opcheck(op, (x, CODES[recipe], INT8, True))
        torch.library.opcheck(op, (x, CODES[recipe], INT8, False))


def test_explain(cutwheel: ModuleType, cuda: str) -> None:
    names = {kernel.name for kernel in cutwheel.kernels()}
    for recipes in (*SPREAD, *BLOCKWISE):
        call = Call.random(64, 512, 1024, cuda, recipes=recipes)
        a, b, scale_a, scale_b = call.positional
        keywords = {**call.keywords, "scale_b": scale_b}
        explanation = cutwheel.explain(cutwheel.scaled_mm, a, b, scale_a, **keywords)
        assert explanation.row in names
        assert explanation.row in str(explanation)
