"""Rows of a mixture of experts: sorted by expert, moved there and back, and found by a GEMM."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, SINGLE, dtype_id, require_arch

pytestmark = pytest.mark.gpu

Tensor = torch.Tensor
NAN = float("nan")
# Relative to the largest: sums of few terms, rounded once.
ROUNDING = {BRAIN: 2.0**-8, HALF: 2.0**-11, SINGLE: 2.0**-22}


def ids_of(tokens: int, k: int, experts: int, device: str, kind: str = "any") -> Tensor:
    """[T, k]; some are of no expert."""
    if kind == "one":
        return torch.full((tokens, k), experts - 1, device=device)
    if kind == "none":
        return torch.full((tokens, k), -1, device=device)
    return torch.randint(-1, experts + 1, (tokens, k), device=device)


def by_torch(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    flat = ids.flatten().long()
    flat = torch.where((flat < 0) | (flat >= experts), experts, flat)
    order = torch.sort(flat, stable=True).indices
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=ids.device))
    ends = torch.bincount(flat, minlength=experts + 1)[:experts].cumsum(0)
    return places.view(ids.shape), order // max(ids.shape[-1], 1), ends


def poison(rows: int, columns: int, dtype: torch.dtype, device: str) -> None:
    """The allocator gives the next result this memory."""
    torch.full((rows, columns), NAN, dtype=dtype, device=device)


def rows_of(count: int, columns: int, dtype: torch.dtype, device: str) -> Tensor:
    return torch.randn(count, columns, device=device).to(dtype)


def assert_rounded(got: Tensor, wanted: Tensor, dtype: torch.dtype, terms: int = 1) -> None:
    assert not torch.isnan(got).any()
    if not wanted.numel():
        return
    allowed = (ROUNDING[dtype] + terms * 2.0**-23) * wanted.abs().max().clamp_min(1e-6)
    assert (got.double() - wanted).abs().max() <= allowed


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=dtype_id)
@pytest.mark.parametrize("kind", ["any", "one", "none"])
@pytest.mark.parametrize(
    ("tokens", "k", "experts"),
    [
        *((0, 2, 3), (1, 1, 1), (5, 0, 3), (7, 3, 5), (64, 8, 128), (513, 1, 60)),
        *((4096, 8, 128), (3001, 7, 1024), (130_000, 6, 257)),
    ],
    ids=str,
)
def test_route(
    cutwheel: ModuleType, device: str, tokens: int, k: int, experts: int, kind: str, dtype: object
) -> None:
    """The places of a stable sort, one threadblock or several."""
    ids = ids_of(tokens, k, experts, device, kind).to(dtype)  # type: ignore[call-overload]
    found = torch.ops.cutwheel.moe_route(ids, experts)
    for got, want in zip(found, by_torch(ids, experts), strict=True):
        assert got.dtype == torch.int32
        assert torch.equal(got.long(), want)


@pytest.mark.parametrize("dtype", [BRAIN, HALF, SINGLE], ids=dtype_id)
@pytest.mark.parametrize("weight", [None, BRAIN, HALF, SINGLE], ids=str)
@pytest.mark.parametrize("columns", [1, 8, 40, 77, 2048, 7168])
@pytest.mark.parametrize(("tokens", "k"), [(33, 1), (33, 2), (50, 8), (21, 11)], ids=str)
def test_permute_and_back(
    cutwheel: ModuleType,
    device: str,
    tokens: int,
    k: int,
    columns: int,
    weight: torch.dtype | None,
    dtype: torch.dtype,
) -> None:
    experts = 6
    places, _, offs = torch.ops.cutwheel.moe_route(ids_of(tokens, k, experts, device), experts)
    weights = None if weight is None else torch.rand(tokens, k, device=device).to(weight)
    factors = torch.ones(tokens, k, device=device) if weights is None else weights
    counts = (places < offs[-1]).unsqueeze(-1)
    x = rows_of(tokens, columns, dtype, device)

    each = x.double().unsqueeze(1) * factors.double().unsqueeze(-1)
    if weights is not None:
        each = torch.where(counts, each, 0)
    poison(tokens * k, columns, dtype, device)
    rows = torch.ops.cutwheel.moe_permute(x, places, weights, offs)
    assert_rounded(rows[places.flatten().long()], each.flatten(0, 1), dtype)

    # Whatever lies in rows of no expert.
    y = rows_of(tokens * k, columns, dtype, device)
    y[int(offs[-1]) :] = NAN
    each = torch.where(counts, y[places.long()].double() * factors.double().unsqueeze(-1), 0)
    poison(tokens, columns, dtype, device)
    assert_rounded(
        torch.ops.cutwheel.moe_unpermute(y, places, weights, offs), each.sum(1), dtype, k
    )

    dots = (torch.where(counts, y[places.long()].double(), 0) * x.double().unsqueeze(1)).sum(-1)
    poison(tokens, k, SINGLE, device)
    got = torch.ops.cutwheel.moe_permute_dots(y, x, places, offs)
    assert got.dtype == SINGLE
    assert_rounded(got, dots, SINGLE, columns)


@pytest.mark.parametrize("arch", ["sm80", "sm90a"])
def test_every_architecture(cutwheel: ModuleType, device: str, environment: Any, arch: str) -> None:
    require_arch(arch)
    environment(CUTWHEEL_ARCH=arch)
    ids = ids_of(700, 4, 9, device)
    places, sources, offs = found = torch.ops.cutwheel.moe_route(ids, 9)
    for got, want in zip(found, by_torch(ids, 9), strict=True):
        assert torch.equal(got.long(), want)
    for dtype in (BRAIN, HALF, SINGLE):
        x = rows_of(700, 72, dtype, device)
        rows = torch.ops.cutwheel.moe_permute(x, places)
        assert torch.equal(rows, x[sources.long()])
        assert_rounded(torch.ops.cutwheel.moe_unpermute(rows, places), 4 * x.double(), dtype, 4)
        squares = x.double().square().sum(1, keepdim=True) * (places < offs[-1])
        dots = torch.ops.cutwheel.moe_permute_dots(rows, x, places, offs)
        assert_rounded(dots, squares, SINGLE, 72)


def test_rows_may_begin_anywhere(cutwheel: ModuleType, device: str) -> None:
    places, _, offs = torch.ops.cutwheel.moe_route(ids_of(40, 3, 4, device), 4)
    whole = rows_of(41, 200, BRAIN, device)
    others = whole[:1, :64].expand(40, 64), whole[:40, :1].expand(40, 72), whole[:40, ::2]
    for x in (whole[1:, 3:131], whole[:40, 8:136], whole[:40, :77], whole[:40, :40].t(), *others):
        rows = torch.ops.cutwheel.moe_permute(x, places)
        assert torch.equal(rows[places.flatten().long()].view(40, 3, -1)[:, 1], x)
        squares = x.double().square().sum(1, keepdim=True) * (places < offs[-1])
        dots = torch.ops.cutwheel.moe_permute_dots(rows, x, places, offs)
        assert_rounded(dots, squares, SINGLE, x.shape[1])


def test_without_ends_every_row_counts(cutwheel: ModuleType, device: str) -> None:
    places, _, offs = torch.ops.cutwheel.moe_route(ids_of(64, 4, 3, device), 3)
    assert offs[-1] < 256
    x = rows_of(64, 128, SINGLE, device)
    y = torch.ops.cutwheel.moe_unpermute(torch.ops.cutwheel.moe_permute(x, places), places)
    assert_rounded(y, 4 * x.double(), SINGLE, 4)


def test_places_outside_of_the_rows_are_nowhere(cutwheel: ModuleType, device: str) -> None:
    places = torch.tensor([[0, -1], [2**31 - 1, 3], [-(2**31), 4]], dtype=torch.int32).to(device)
    x = rows_of(3, 64, BRAIN, device)
    assert torch.equal(torch.ops.cutwheel.moe_permute(x, places)[3], x[1])
    y = torch.ops.cutwheel.moe_unpermute(rows_of(6, 64, BRAIN, device).abs() + 1, places)
    assert (y.abs().sum(1) > 0).all()
    dots = torch.ops.cutwheel.moe_permute_dots(x.repeat(2, 1), x, places)
    assert torch.equal(dots != 0, torch.tensor([[1, 0], [0, 1], [0, 1]]).bool().to(device))
    ends = torch.tensor([-5], dtype=torch.int32, device=device)
    assert not torch.ops.cutwheel.moe_unpermute(x.repeat(2, 1), places, None, ends).any()


def test_no_bit_depends_on_the_run(cutwheel: ModuleType, device: str) -> None:
    ids = ids_of(5000, 8, 128, device)
    x, weights = rows_of(40_000, 512, BRAIN, device), torch.rand(5000, 8, device=device)
    first: list[Tensor] = []
    for _ in range(5):
        found = torch.ops.cutwheel.moe_route(ids, 128)
        again = [*found, torch.ops.cutwheel.moe_unpermute(x, found[0], weights, found[2])]
        first = first or again
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_bad_input(cutwheel: ModuleType, device: str) -> None:
    places, _, offs = torch.ops.cutwheel.moe_route(ids_of(8, 2, 3, device), 3)
    x, rows = rows_of(8, 64, BRAIN, device), rows_of(16, 64, BRAIN, device)
    ops = torch.ops.cutwheel
    for call, text in (
        (lambda: ops.moe_route(x, 3), "moe_route: expert_ids has dtype bfloat16"),
        (lambda: ops.moe_route(places, 0), "moe_route: num_experts is 0; expected 1 to 1024"),
        (lambda: ops.moe_route(places.t(), 3), "moe_route: expert_ids is not contiguous"),
        (lambda: ops.moe_permute(x[0], places), "tokens has 1 dimensions"),
        (lambda: ops.moe_permute(x[1:], places), r"tokens has shape \[7, 64\]; expected \[8, H\]"),
        (lambda: ops.moe_permute(x.double(), places), "tokens has dtype float64"),
        (lambda: ops.moe_permute(x, places.long()), "places has dtype int64; expected int32"),
        (lambda: ops.moe_permute(x, places, x), r"weights has shape \[8, 64\]; expected \[8, 2\]"),
        (lambda: ops.moe_permute(x, places, None, offs.long()), "offs has dtype int64"),
        (lambda: ops.moe_unpermute(x, places), r"rows has shape \[8, 64\]; expected \[16, H\]"),
        (lambda: ops.moe_permute_dots(rows, x.half(), places), "tokens has dtype float16"),
        (lambda: ops.moe_permute_dots(rows, x[:, :8], places), r"tokens has shape \[8, 8\]"),
        (lambda: ops.moe_permute(x, places.cpu()), "places is not on a CUDA device"),
    ):
        with pytest.raises(RuntimeError, match=text):
            call()


GATES = [f"gated_{name}" for name in ("relu", "gelu", "gelu_tanh", "silu")]


@pytest.mark.parametrize("epilogue", ["plain", *GATES, *(f"{gate}_aux" for gate in GATES)])
@pytest.mark.parametrize(
    ("tokens", "k", "experts", "columns", "n"),
    [(300, 2, 5, 264, 136), (1000, 3, 7, 64, 512), (64, 1, 1, 8, 16), (513, 8, 60, 1000, 320)],
    ids=str,
)
def test_rows_that_the_kernel_finds(
    cutwheel: ModuleType,
    device: str,
    tokens: int,
    k: int,
    experts: int,
    columns: int,
    n: int,
    epilogue: str,
) -> None:
    """The bits of the GEMM of copied rows: sums have one order."""
    ops = torch.ops.cutwheel
    places, sources, offs = ops.moe_route(ids_of(tokens, k, experts, device), experts)
    x = rows_of(tokens, columns, BRAIN, device)
    weight = rows_of(experts * n, columns, BRAIN, device).view(experts, n, columns)
    rows = ops.moe_permute(x, places)
    poison(tokens * k, n, BRAIN, device)
    if epilogue.endswith("_aux"):
        got = ops.grouped_linear_gathered_aux(x, places, sources, weight, offs, epilogue)
        wanted = ops.grouped_linear_fused_aux(rows, weight, offs, None, epilogue)
    else:
        got = (ops.grouped_linear_gathered(x, places, sources, weight, offs, epilogue),)
        if epilogue == "plain":
            wanted = (ops.grouped_mm(rows, weight.mT, offs),)
        else:
            wanted = (ops.grouped_linear_fused(rows, weight, offs, None, epilogue),)
    end = int(offs[-1])
    for one, other in zip(got, wanted, strict=True):
        assert torch.equal(one[:end], other[:end])
    assert not got[0][end:].any()


@pytest.mark.parametrize("dtype", [BRAIN, HALF], ids=dtype_id)
@pytest.mark.parametrize("columns", [40, 77, 520])
@pytest.mark.parametrize("tokens", [1, 3, 400])
def test_rows_are_copied_where_no_kernel_finds_them(
    cutwheel: ModuleType, device: str, tokens: int, columns: int, dtype: torch.dtype
) -> None:
    """Few rows, float16, rows that begin anywhere."""
    ops = torch.ops.cutwheel
    places, sources, offs = ops.moe_route(ids_of(tokens, 2, 4, device), 4)
    whole = rows_of(tokens, columns + 3, dtype, device)
    weight = rows_of(4 * 24, columns, dtype, device).view(4, 24, columns)
    for x in (whole[:, :columns], whole[:, 3:], whole[:, :columns].t().contiguous().t()):
        rows = ops.moe_permute(x.contiguous(), places)
        wanted = ops.grouped_linear_fused(rows, weight, offs, None, "gated_silu")
        poison(tokens * 2, 12, dtype, device)
        got = ops.grouped_linear_gathered(x, places, sources, weight, offs, "gated_silu")
        assert torch.equal(got, wanted)


def test_sources_outside_of_the_tokens_are_zeros(cutwheel: ModuleType, device: str) -> None:
    ops = torch.ops.cutwheel
    x, weight = rows_of(128, 64, BRAIN, device), rows_of(2 * 64, 64, BRAIN, device).view(2, 64, 64)
    places, sources, offs = ops.moe_route(ids_of(128, 1, 2, device, "one"), 2)
    sources[3], sources[70], sources[127] = -1, 128, 2**31 - 1
    got = ops.grouped_linear_gathered(x, places, sources, weight, offs, "plain")
    assert not got[[3, 70, 127]].any()
    assert torch.equal(got[4], ops.grouped_mm(x, weight.mT, offs)[4])


def test_layer_and_its_gradients(cutwheel: ModuleType, device: str) -> None:
    """Against the same layer in float64, token by token: within twice the error of torch's ops."""
    experts, k, hidden, between, tokens = 6, 2, 136, 72, 500
    layer = cutwheel.nn.GroupedExperts(experts, hidden, between, device=device, dtype=BRAIN)
    x = rows_of(tokens, hidden, BRAIN, device).requires_grad_()
    ids = ids_of(tokens, k, experts, device)
    weights = torch.rand(tokens, k, device=device).requires_grad_()
    grad = rows_of(tokens, hidden, BRAIN, device)
    leaves = [x, weights, *layer.parameters()]

    def composed(dtype: torch.dtype) -> list[Tensor]:
        wide = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
        a, factors, gate_up, down = wide
        y = torch.zeros(tokens, hidden, dtype=dtype, device=device)
        for expert in range(experts):
            h = torch.nn.functional.silu(a @ gate_up[expert, 0::2].T) * (
                a @ gate_up[expert, 1::2].T
            )
            factor = (factors * (ids == expert)).sum(-1, keepdim=True)
            y = y + factor * (h @ down[expert].T)
        return [y, *torch.autograd.grad(y, wide, grad.to(dtype))]

    y = layer(x, ids, weights)
    got = [y, *torch.autograd.grad(y, leaves, grad)]
    for mine, torchs, exact in zip(got, composed(BRAIN), composed(torch.float64), strict=True):
        allowed = 2 * (torchs.double() - exact).norm() + 2e-3 * exact.norm()
        assert (mine.double() - exact).norm() <= allowed


@pytest.mark.no_dispatch_mode
def test_layer_in_a_graph_and_compiled(cutwheel: ModuleType, device: str) -> None:
    layer = cutwheel.nn.GroupedExperts(8, 128, 64, device=device, dtype=BRAIN).requires_grad_(False)
    x, weights = rows_of(700, 128, BRAIN, device), torch.rand(700, 2, device=device)
    ids = ids_of(700, 2, 8, device)
    wanted = layer(x, ids, weights)
    assert torch.equal(torch.compile(layer, fullgraph=True)(x, ids, weights), wanted)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layer(x, ids, weights)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = layer(x, ids, weights)
    for _ in range(2):
        ids.copy_(ids_of(700, 2, 8, device))
        result.fill_(NAN)
        graph.replay()
        assert torch.equal(result, layer(x, ids, weights))
