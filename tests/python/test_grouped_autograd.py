"""Results, stored tensors and gradients of the grouped products, on CPU kernels in float64."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from cpu_reference import ACTIVATIONS, CpuOps, spans
from torch._subclasses.fake_tensor import FakeTensorMode

Tensor = torch.Tensor
FUSED = ("relu", "gelu", "gelu_tanh", "silu")
GROUPS, T, K, N = 4, 11, 6, 8
# Ends of four groups of eleven: some groups are empty, some rows are in none.
ENDS = ([3, 3, 7, 11], [0, 5, 5, 9], [0, 0, 0, 0], [11, 11, 11, 11])
SHAPES = {
    "rows": ((T, K), (GROUPS, K, N), (GROUPS, N)),
    "columns": ((GROUPS, N, K), (K, T), (GROUPS, N)),
    "k": ((N, T), (T, K), None),
    "batched": ((GROUPS, 5, K), (GROUPS, K, N), (GROUPS, N)),
}


def loop(a: Tensor, b: Tensor, ends: list[int], bias: Tensor | None = None) -> Tensor:
    """The product group by group, by torch's functions, of which autograd knows everything."""
    kind = (a.dim(), b.dim())
    if kind == (3, 3):
        return a @ b + (0 if bias is None else bias.unsqueeze(1))
    if kind == (3, 2):
        return loop(b.mT, a.mT, ends, bias).mT
    found = spans(torch.tensor(ends), T)
    if kind == (2, 2):
        return torch.stack([a[:, i:j] @ b[i:j] for i, j in found])
    rows = bias if bias is not None else a.new_zeros(len(ends), b.shape[2])
    parts = [a[i:j] @ b[g] + rows[g] for g, (i, j) in enumerate(found)]
    return torch.cat([*parts, a.new_zeros(T - found[-1][1], b.shape[2])])


def tensors(kind: str, with_bias: bool = False, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """a, b and the bias, all of which require grad."""
    shapes = SHAPES[kind] if with_bias else SHAPES[kind][:2]
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes if shape]


def both(
    cutwheel: ModuleType, kind: str, ends: list[int], dtype: torch.dtype = torch.int32
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    offs = None if kind == "batched" else torch.tensor(ends, dtype=dtype)

    def ours(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        result: Tensor = cutwheel.grouped_mm(a, b, offs=offs, bias=bias)
        return result

    return ours, lambda a, b, bias=None: loop(a, b, ends, bias)


def first_and_second(function: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    y = function(*given)
    seed = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y).requires_grad_()
    grads = torch.autograd.grad(y, given, seed, create_graph=True)
    loss = sum((g.square() * torch.linspace(-1, 2, g.numel()).view_as(g)).sum() for g in grads)
    assert isinstance(loss, Tensor)
    leaves = [*given, seed]
    second = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [y, *grads, *second]


@pytest.mark.parametrize("ends", ENDS, ids=str)
@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_once_and_twice(
    cutwheel: ModuleType, cpu_ops: CpuOps, kind: str, ends: list[int]
) -> None:
    for with_bias, dtype in itertools.product((False, True), (torch.int32, torch.int64)):
        functions = both(cutwheel, kind, ends, dtype)
        given = tensors(kind, with_bias)
        results = [first_and_second(function, given) for function in functions]
        for got, want in zip(*results, strict=True):
            # Sums of a bias are as exact as float32 has it.
            tolerance = 1e-5 if with_bias else 1e-9
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", SHAPES)
def test_gradgradcheck(cutwheel: ModuleType, cpu_ops: CpuOps, kind: str) -> None:
    ours, _ = both(cutwheel, kind, ENDS[1])
    assert torch.autograd.gradcheck(ours, tensors(kind))
    assert torch.autograd.gradgradcheck(ours, tensors(kind))


@pytest.mark.parametrize("kind", SHAPES)
def test_only_what_is_needed(cutwheel: ModuleType, cpu_ops: CpuOps, kind: str) -> None:
    ours, theirs = both(cutwheel, kind, ENDS[1])
    for needed in itertools.product((False, True), repeat=2):
        if not any(needed):
            continue
        given = tensors(kind)
        for tensor, needs in zip(given, needed, strict=True):
            tensor.requires_grad_(needs)
        leaves = [tensor for tensor in given if tensor.requires_grad]
        result = ours(*given)
        assert len(cpu_ops.calls) == 1
        grads = torch.autograd.grad(result.sum(), leaves)  # a gradient of stride 0
        assert len(cpu_ops.calls) == 1 + len(leaves)
        cpu_ops.calls.clear()
        wanted = torch.autograd.grad(theirs(*given).sum(), leaves)
        for got, want in zip(grads, wanted, strict=True):
            torch.testing.assert_close(got, want)


def test_kinds_of_products(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """dA has grouped rows and dB grouped K; of grouped K, both have grouped rows."""
    for kind, names in (("rows", ["rows", "rows", "k"]), ("k", ["k", "rows", "rows"])):
        ours, _ = both(cutwheel, kind, ENDS[0])
        ours(*tensors(kind)).sum().backward()
        assert cpu_ops.names("grouped_mm") == names


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_sums_of_a_bias_are_exact(
    cutwheel: ModuleType, cpu_ops: CpuOps, dtype: torch.dtype
) -> None:
    """Rounded once, behind a sum in float32, in which TF32 has no part."""
    a, b, bias = tensors("rows", True, dtype)
    offs = torch.tensor(ENDS[1])
    grad = torch.randn(T, N).to(dtype)
    grad[9:] = float("nan")  # behind the last group
    got = torch.autograd.grad(cutwheel.grouped_mm(a, b, offs=offs, bias=bias), bias, grad)[0]
    wanted = [grad[i:j].double().sum(0) for i, j in spans(offs, T)]
    torch.testing.assert_close(got, torch.stack(wanted).to(dtype), rtol=1e-6, atol=1e-6)
    grad[0, 0], grad[6, 1] = float("inf"), float("nan")
    got = torch.autograd.grad(cutwheel.grouped_mm(a, b, offs=offs, bias=bias), bias, grad)[0]
    assert got[1, 0] == float("inf")
    assert got[3, 1].isnan()
    assert got.isfinite().sum() == got.numel() - 2


def test_a_transposed_weight_gets_a_transposed_gradient(
    cutwheel: ModuleType, cpu_ops: CpuOps
) -> None:
    ours, theirs = both(cutwheel, "rows", ENDS[1])
    a, _ = tensors("rows")
    b = torch.randn(GROUPS, N, K, dtype=torch.float64).mT.requires_grad_()
    grad, want = (torch.autograd.grad(f(a, b).sum(), b)[0] for f in (ours, theirs))
    assert grad.stride() == b.stride()
    torch.testing.assert_close(grad, want)


def test_out_dtype(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    a, b = tensors("rows", dtype=torch.float16)
    result = cutwheel.grouped_mm(a, b, offs=torch.tensor(ENDS[1]), out_dtype=torch.float32)
    assert result.dtype == torch.float32
    result.sum().backward()
    assert a.grad is not None
    assert a.grad.dtype == torch.float16
    assert not a.grad[9:].any()


@pytest.mark.parametrize("transposed", [False, True])
def test_accumulation_where_k_is_grouped(
    cutwheel: ModuleType, cpu_ops: CpuOps, transposed: bool
) -> None:
    x, grad = torch.randn(T, K), torch.randn(T, N)
    offs = torch.tensor(ENDS[1])
    total = torch.randn(GROUPS, N, K).mT if transposed else torch.randn(GROUPS, K, N)
    before, version = total.clone(), total._version
    result = cutwheel.grouped_mm(x.t(), grad, offs=offs, accumulate_into=total)
    assert result is total
    assert total._version > version
    torch.testing.assert_close(total, before + loop(x.t(), grad, ENDS[1]))
    assert cpu_ops.names("grouped_mm_accumulate") == ["k"]


@pytest.mark.parametrize("transposed", [False, True])
def test_accumulation_of_the_gradient(
    cutwheel: ModuleType, cpu_ops: CpuOps, transposed: bool
) -> None:
    a, b = tensors("rows", dtype=torch.float32)
    if transposed:
        b = b.detach().mT.contiguous().mT.requires_grad_()
    offs, total = torch.tensor(ENDS[1]), torch.zeros_like(b)
    assert total.stride() == b.stride()
    want = torch.autograd.grad(loop(a, b, ENDS[1]).square().sum(), (a, b))
    for count in (1, 2):
        a.grad = None
        cutwheel.grouped_mm(a, b, offs=offs, accumulate_into=total).square().sum().backward()
        assert b.grad is None
        torch.testing.assert_close(a.grad, want[0])
        torch.testing.assert_close(total, count * want[1])
    y = cutwheel.grouped_mm(a, b, offs=offs, accumulate_into=total)
    with pytest.raises(RuntimeError, match="accumulate_into has no second derivative"):
        torch.autograd.grad(y.sum(), a, create_graph=True)
    before = total.clone()
    cutwheel.grouped_mm(a, b.detach(), offs=offs, accumulate_into=total).sum().backward()
    torch.testing.assert_close(total, before)


def activated(x: Tensor, w: Tensor, ends: list[int], name: str, bias: Tensor | None) -> Tensor:
    """Rows behind the last end are zeros, whatever the activation makes of them."""
    z = loop(x, w.mT, ends, bias)
    if name.startswith("gated_"):
        d = ACTIVATIONS[name.removeprefix("gated_")](z[:, 0::2]) * z[:, 1::2]
    else:
        d = ACTIVATIONS[name](z)
    return torch.cat((d[: ends[-1]], d.new_zeros(T - ends[-1], d.shape[1])))


@pytest.mark.parametrize("ends", ENDS[:3], ids=str)
@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("is_gated", [False, True])
def test_activations(
    cutwheel: ModuleType, cpu_ops: CpuOps, is_gated: bool, activation: str, ends: list[int]
) -> None:
    offs = torch.tensor(ends)
    x = torch.randn(T, K, dtype=torch.float64).requires_grad_()
    w = (torch.randn(GROUPS, N, K, dtype=torch.float64) / 4).requires_grad_()
    bias = torch.randn(GROUPS, N, dtype=torch.float64).requires_grad_()
    if is_gated:
        name, epilogue = f"gated_{activation}", f"gated_{activation}"

        def ours(x: Tensor, w: Tensor, bias: Any = None) -> Tensor:
            result: Tensor = cutwheel.grouped_gated_linear(
                x, w, offs=offs, activation=activation, interleaved=True
            )
            return result
    else:
        name, epilogue = activation, f"bias_{activation}"

        def ours(x: Tensor, w: Tensor, bias: Any = None) -> Tensor:
            result: Tensor = cutwheel.grouped_linear(
                x, w, offs=offs, bias=bias, activation=activation
            )
            return result

    for added in (None,) if is_gated else (None, bias):
        given = [x, w] if added is None else [x, w, added]
        with torch.no_grad():
            want = activated(x, w, ends, name, added)
            torch.testing.assert_close(ours(*given), want)
        assert cpu_ops.calls == [("grouped_linear_fused", epilogue)]
        results = [
            first_and_second(f, given)
            for f in (ours, lambda x, w, b=None: activated(x, w, ends, name, b))
        ]
        stores = activation != "relu" or is_gated
        assert cpu_ops.calls[1][0] == (
            "grouped_linear_fused_aux" if stores else "grouped_linear_fused"
        )
        tolerance = 1e-5 if added is not None else 1e-7
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        cpu_ops.calls.clear()


@pytest.mark.parametrize("activation", FUSED)
@pytest.mark.parametrize("is_gated", [False, True])
def test_activations_without_a_kernel(
    cutwheel: ModuleType,
    traced_on_cpu: CpuOps,
    monkeypatch: pytest.MonkeyPatch,
    is_gated: bool,
    activation: str,
) -> None:
    """The product is a kernel, what follows it is torch's: the same function, compiled, too."""
    from cutwheel.ops.grouped import _linear as layers

    ends = ENDS[1]
    offs = torch.tensor(ends)
    x = torch.randn(T, K).requires_grad_()
    w = (torch.randn(GROUPS, N, K) / 4).requires_grad_()
    bias = torch.randn(GROUPS, N).requires_grad_()
    name = f"gated_{activation}" if is_gated else activation

    def ours(x: Tensor, w: Tensor, bias: Any = None) -> Tensor:
        function = cutwheel.grouped_gated_linear if is_gated else cutwheel.grouped_linear
        options = {"interleaved": True} if is_gated else {"bias": bias}
        result: Tensor = function(x, w, offs=offs, activation=activation, **options)
        return result

    monkeypatch.setattr(layers, "is_served", lambda *_: False)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    close = {"rtol": 1e-4, "atol": 1e-5}
    for given in ([x, w],) if is_gated else ([x, w], [x, w, bias]):
        want = activated(*given[:2], ends, name, given[2] if given[2:] else None)
        grads = torch.autograd.grad(want.square().sum(), given)
        for function in (ours, compiled):
            traced_on_cpu.calls.clear()
            got = function(*given)
            assert {call[0] for call in traced_on_cpu.calls} == {"grouped_mm"}
            torch.testing.assert_close(got, want, **close)
            assert not got[ends[-1] :].any()
            found = torch.autograd.grad(got.square().sum(), given)
            for mine, theirs in zip(found, grads, strict=True):
                torch.testing.assert_close(mine, theirs, **close)


def test_errors_without_a_kernel(
    cutwheel: ModuleType, cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the op that was called."""
    from cutwheel.ops.grouped import _linear as layers

    monkeypatch.setattr(layers, "is_served", lambda *_: False)
    x, w, offs = torch.randn(T, K), torch.randn(GROUPS, N, K), torch.tensor(ENDS[0])
    for message, call in (
        (r"grouped_gated_linear: .*\[4, 7, 6\]; expected an even", (x, w[:, :7])),
        (r"grouped_gated_linear: weight has shape .*; expected \[G, N, 6\]", (x, w.mT)),
        (r"grouped_gated_linear: input has 1 dimensions", (x[0], w)),
    ):
        with pytest.raises(ValueError, match=message):
            cutwheel.grouped_gated_linear(*call, offs=offs, interleaved=True)
    with pytest.raises(TypeError, match="grouped_linear: weight has dtype float16"):
        cutwheel.grouped_linear(x, w.half(), offs=offs, activation="relu")
    with pytest.raises(TypeError, match="grouped_gated_linear: weight is None"):
        cutwheel.grouped_gated_linear(x, None, offs=offs, interleaved=True)


ROWS = [
    {"op": op, "grouping": grouping, "a": a, "arch": arch, "ptx": ptx, "epilogue": epilogue}
    for op, grouping, a, arch, ptx, epilogue in (
        ("grouped_mm", "rows", "tf32", "sm80", True, "plain"),
        ("grouped_mm", "rows", "tf32", "sm90a", False, "gated_silu"),
        ("grouped_mm", "rows", "bf16", "sm80", True, "gated_silu"),
        ("grouped_mm", "k", "tf32", "sm80", True, "linear_combination"),
        ("mm", None, "tf32", "sm80", True, "bias_gelu"),
        ("grouped_mm", "rows", "tf32", "sm80", False, "bias"),
    )
]


@pytest.mark.parametrize(
    ("archs", "wanted"),
    [
        (["sm80"], {"plain", "bias"}),
        (["sm90a", "sm80 (PTX)"], {"plain", "gated_silu"}),
        (["sm89 (PTX)", "sm80 (PTX)"], {"plain"}),
    ],
    ids=["A100", "H100", "B200"],
)
def test_which_epilogues_have_a_float32_kernel(
    cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch, archs: list[str], wanted: set[str]
) -> None:
    from cutwheel.ops.grouped import _linear as layers

    ops = torch.ops.cutwheel
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ops, "_kernels", lambda: json.dumps(ROWS))
    monkeypatch.setattr(ops, "_device_info", lambda index: json.dumps({"archs_served": archs}))
    layers._float32_epilogues.cache_clear()
    try:
        assert layers._float32_epilogues(0) == wanted
        for name in ("plain", "bias", "gated_silu", "bias_gelu"):
            assert layers._has_float32_kernel(0, name) == (name in wanted)
    finally:
        layers._float32_epilogues.cache_clear()
    assert layers.is_served(torch.ones(1), "gated_silu"), "of another device, the op says so"
    with FakeTensorMode():
        fake = torch.empty(1, device="cuda")
    monkeypatch.undo()
    assert layers.is_served(fake, "gated_silu") or torch.cuda.is_available()


def test_linear_without_an_activation(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x, w, bias = torch.randn(T, K), torch.randn(GROUPS, N, K), torch.randn(GROUPS, N)
    result = cutwheel.grouped_linear(x, w, offs=torch.tensor(ENDS[1]), bias=bias)
    torch.testing.assert_close(result, loop(x, w.mT, ENDS[1], bias))


def test_lists(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Every tensor of a list has its gradient."""
    sizes = ((3, 4, 5), (0, 2, 3), (7, 1, 2))
    left = [torch.randn(m, k, requires_grad=True) for m, _, k in sizes]
    right = [torch.randn(k, n, requires_grad=True) for _, n, k in sizes]
    bias = [torch.randn(4, requires_grad=True), None, torch.randn(1, requires_grad=True)]
    for biases in (None, bias):
        results = cutwheel.grouped_mm_list(left, right, biases)
        added = biases or [None] * 3
        wanted = [
            a @ b + (0 if c is None else c) for a, b, c in zip(left, right, added, strict=True)
        ]
        leaves = [t for t in (*left, *right, *added) if t is not None]
        for got, want in zip(results, wanted, strict=True):
            torch.testing.assert_close(got, want)
        sums = [sum(d.square().sum() for d in ds) for ds in (results, wanted)]
        grads = [torch.autograd.grad(total, leaves) for total in sums]  # type: ignore[arg-type]
        for got, want in zip(*grads, strict=True):
            torch.testing.assert_close(got, want)
    assert cutwheel.grouped_mm_list([], []) == []
    left[1].requires_grad_(False)
    only = cutwheel.grouped_mm_list(left, [b.detach() for b in right])
    assert [d.requires_grad for d in only] == [True, False, True]


def test_scaled(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    t, n, k = 20, 140, 200
    x, w = torch.randn(t, k), torch.randn(GROUPS, n, k)
    offs = torch.tensor([3, 3, 12, 17], dtype=torch.int32)
    bias = torch.randn(GROUPS, n)
    want = CpuOps._rows(x, w.mT, offs, bias)
    for of_x, of_w in (("rowwise", "rowwise"), ("blockwise_1x128", "blockwise_128x128")):
        a, scale_a = cutwheel.quantize(x, of_x)
        parts = [cutwheel.quantize(weight, of_w) for weight in w]
        b = torch.stack([values for values, _ in parts])
        scale_b = torch.stack([scales.t() for _, scales in parts])
        result = cutwheel.scaled_grouped_mm(
            *(a, b.mT, scale_a), scale_b=scale_b, offs=offs, bias=bias, output_dtype=torch.float32
        )
        difference = (result - want).square().mean() / want.square().mean()
        assert difference < 0.0025
        given = {"mat_a": a, "scale_b": scale_b, "bias": bias}
        for name in given:
            named = {**given, name: given[name].detach().requires_grad_()}
            others = {"mat_b": b.mT, "scale_a": scale_a, "offs": offs}
            with pytest.raises(RuntimeError, match=f"scaled_grouped_mm: {name} requires grad"):
                cutwheel.scaled_grouped_mm(**named, **others)
