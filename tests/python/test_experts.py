"""GroupedExperts: against a loop over tokens and experts, and the example that trains it."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps

G, H, INNER, K = 5, 6, 10, 3
EXAMPLE = Path(__file__).parents[2] / "examples" / "moe_overfit.py"


def module(cutwheel: ModuleType, **options: Any) -> Any:
    return cutwheel.nn.GroupedExperts(G, H, INNER, **options)


def loop(experts: Any, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Token by token, expert by expert."""
    gate, up = experts.gate_up_weight[:, 0::2], experts.gate_up_weight[:, 1::2]
    rows = []
    tokens = zip(x.reshape(-1, H), ids.reshape(-1, K), weights.reshape(-1, K), strict=True)
    for token, chosen, factors in tokens:
        row = torch.zeros_like(token)
        for expert, factor in zip(chosen.tolist(), factors, strict=True):
            if 0 <= expert < G:
                h = F.silu(gate[expert] @ token) * (up[expert] @ token)
                row = row + factor * (experts.down_weight[expert] @ h)
        rows.append(row)
    return torch.stack(rows).view(x.shape) if rows else torch.zeros_like(x)


def routed(*rows: int, low: int = 0, high: int = G) -> list[torch.Tensor]:
    """x, ids and weights."""
    ids = torch.randint(low, high, (*rows, K))
    weights = torch.rand(*rows, K, dtype=torch.float64).requires_grad_()
    return [torch.randn(*rows, H, dtype=torch.float64).requires_grad_(), ids, weights]


@pytest.mark.parametrize("rows", [(7,), (2, 5), (), (1,)], ids=str)
@pytest.mark.parametrize("span", [(0, G), (3, 4), (-2, G + 2), (-3, 0)], ids=str)
def test_against_a_loop(
    cutwheel: ModuleType, cpu_ops: CpuOps, rows: tuple[int, ...], span: tuple[int, int]
) -> None:
    """Experts without tokens, all tokens at one expert, ids of no expert; one expert twice."""
    experts = module(cutwheel, dtype=torch.float64)
    x, ids, weights = routed(*rows, low=span[0], high=span[1])
    leaves = [x, weights, *experts.parameters()]
    seconds = []
    for function in (experts, lambda *given: loop(experts, *given)):
        for dtype in (torch.int32, torch.int64):
            y = function(x, ids.to(dtype), weights)
            assert y.shape == x.shape
            some = y.requires_grad
            grads = (
                torch.autograd.grad(
                    y.square().sum(), leaves, create_graph=True, materialize_grads=True
                )
                if some
                else [torch.zeros_like(leaf) for leaf in leaves]
            )
            total = sum(grad.square().sum() for grad in grads)
            second = (
                torch.autograd.grad(
                    total,
                    leaves,
                    allow_unused=True,
                    materialize_grads=True,  # type: ignore[arg-type]
                )
                if total.requires_grad
                else grads
            )
        seconds.append((y, *grads, *second))
    for got, want in zip(*seconds, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("weight", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("none", [-1, G])
def test_no_expert_adds_zeros_whatever_its_weight(
    cutwheel: ModuleType, cpu_ops: CpuOps, none: int, weight: float
) -> None:
    experts = module(cutwheel, dtype=torch.float64)
    x, ids, weights = routed(7)
    plain = weights.detach().clone()
    with torch.no_grad():
        ids[::2, 1] = none
        weights[::2, 1], plain[::2, 1] = weight, 0
    plain.requires_grad_()
    results = []
    for given in (weights, plain):
        y = experts(x, ids, given)
        leaves = [x, given, *experts.parameters()]
        results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
    assert not results[0][2][::2, 1].any()
    assert not experts(x, torch.full_like(ids, none), torch.full_like(weights, weight)).any()


def test_no_tokens(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    experts = module(cutwheel, dtype=torch.float64)
    x, ids, weights = routed(0)
    y = experts(x, ids, weights)
    assert y.shape == (0, H)
    y.sum().backward()
    assert not experts.down_weight.grad.any()


def test_what_runs(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Two products forward; backward one for each operand, and the derivative of the gate. Rows are
    moved by one kernel there and back, and their weights' gradients are one more."""
    experts = module(cutwheel, dtype=torch.float64)
    y = experts(*routed(7))
    moved = "moe_route", "moe_permute"
    names = [call[0] for call in cpu_ops.calls]
    assert names == [*moved, "grouped_linear_fused_aux", "grouped_mm", "moe_unpermute"]
    cpu_ops.calls.clear()
    y.sum().backward()
    names = sorted(str(call[0]) for call in cpu_ops.calls)
    back = "moe_permute", "moe_permute_dots", "moe_unpermute"
    assert names == ["elementwise", *["grouped_mm"] * 4, *back]
    with torch.no_grad():
        cpu_ops.calls.clear()
        experts(*routed(7))
    names = [call[0] for call in cpu_ops.calls]
    assert names == [*moved, "grouped_linear_fused", "grouped_mm", "moe_unpermute"]


def test_dtypes(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """float32 weights of the router do not make the result one of float32."""
    experts = module(cutwheel, dtype=torch.bfloat16)
    x, ids, weights = routed(7)
    assert experts(x.bfloat16(), ids, weights.float()).dtype == torch.bfloat16


def test_state_dict_and_packing(cutwheel: ModuleType) -> None:
    experts = module(cutwheel)
    shapes = {name: tuple(value.shape) for name, value in experts.state_dict().items()}
    assert shapes == {"gate_up_weight": (G, 2 * INNER, H), "down_weight": (G, H, INNER)}
    assert repr(experts) == (
        "GroupedExperts(num_experts=5, hidden_size=6, intermediate_size=10, activation='silu')"
    )
    for weight, bound in ((experts.gate_up_weight, H**-0.5), (experts.down_weight, INNER**-0.5)):
        assert bound / 2 < weight.abs().max() <= bound
    gate, up = torch.randn(G, INNER, H), torch.randn(G, INNER, H)
    packed = cutwheel.pack_gated_weight(gate, up)
    for index in range(G):
        one = cutwheel.pack_gated_weight(gate[index], up[index])
        torch.testing.assert_close(packed[index], one, rtol=0, atol=0)
    for part, whole in zip(cutwheel.unpack_gated_weight(packed), (gate, up), strict=True):
        assert part.data_ptr() in (packed.data_ptr(), packed[:, 1:].data_ptr())
        torch.testing.assert_close(part, whole, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"expected \[F, K\], \[G, F, K\] or \[F\]"):
        cutwheel.pack_gated_weight(gate[None], up[None])
    with pytest.raises(ValueError, match=r"expected \[2F, K\], \[G, 2F, K\] or \[2F\]"):
        cutwheel.unpack_gated_weight(packed[:, 1:])


def test_bad_input(cutwheel: ModuleType) -> None:
    experts = module(cutwheel)
    x, ids, weights = (tensor.detach() for tensor in routed(7))
    for given, error, message in (
        ((x[:, 1:], ids, weights), ValueError, r"input has shape \[7, 5\]; expected \[..., 6\]"),
        ((x, ids.float(), weights), TypeError, "expert_ids has dtype float32"),
        ((x, ids, ids), TypeError, "expert_weights has dtype int64"),
        ((x, ids[1:], weights), ValueError, r"expert_ids has shape \[6, 3\]; expected \[7, k\]"),
        ((x, ids, weights[:, 1:]), ValueError, r"expert_weights has shape \[7, 2\]"),
        ((x, None, weights), TypeError, "expert_ids is None"),
    ):
        with pytest.raises(error, match=f"GroupedExperts: {message}"):
            experts(*given)
    with pytest.raises(ValueError, match="GroupedExperts: activation is 'tanh'"):
        module(cutwheel, activation="tanh")


def test_on_the_cpu(cutwheel: ModuleType) -> None:
    """Without kernels, in the name of what was called."""
    x, ids, weights = (tensor.detach() for tensor in routed(7))
    with pytest.raises(NotImplementedError, match=r"^experts: the tensors are on the CPU; "):
        module(cutwheel)(x.float(), ids, weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compile(cutwheel: ModuleType, traced_on_cpu: CpuOps, dtype: torch.dtype) -> None:
    """In 16 bits the first GEMM finds its rows among the tokens."""
    experts = module(cutwheel, dtype=dtype)
    compiled = torch.compile(experts, backend="aot_eager", fullgraph=True)
    for rows in (7, 9, 12):
        x, ids, weights = routed(rows)
        given = x.detach().to(dtype).requires_grad_(), ids, weights.detach().float()
        leaves = [given[0], given[2].requires_grad_(), *experts.parameters()]
        traced_on_cpu.calls.clear()
        results = [torch.autograd.grad(f(*given).sum(), leaves) for f in (compiled, experts)]
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want)
        names = {call[0] for call in traced_on_cpu.calls}
        assert ("grouped_linear_gathered_aux" in names) == (dtype == torch.bfloat16)


@pytest.fixture
def example(cutwheel: ModuleType) -> ModuleType:
    spec = importlib.util.spec_from_file_location("moe_overfit", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["moe_overfit"] = found  # dataclasses look themselves up there
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("is_torch", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_example_learns(
    example: ModuleType,
    traced_on_cpu: CpuOps,
    compiled: bool,
    is_torch: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A smaller one, for a few steps: the whole of it needs a GPU."""
    sizes = {"hidden": 32, "intermediate": 32, "layers": 1, "embedding": 8}
    config = replace(example.Config(), steps=12, learning_rate=1e-2, **sizes)
    options = {"fullgraph": True, "backend": "aot_eager"}
    found = example.train(config, "cpu", compiled, is_torch, **options)
    assert found.loss < 2.7
    assert found.milliseconds > 0
    assert any(call[0] == "grouped_mm" for call in traced_on_cpu.calls) == (not is_torch)
    assert "step    1" in capsys.readouterr().out


def test_experts_of_the_example_are_the_same(example: ModuleType, cpu_ops: CpuOps) -> None:
    """What is timed beside cutwheel computes what it computes."""
    by_torch = example.TorchExperts(4, 32, 16)
    ours = sys.modules["cutwheel"].nn.GroupedExperts(4, 32, 16)
    with torch.no_grad():
        ours.gate_up_weight[:, 0::2], ours.gate_up_weight[:, 1::2] = by_torch.gate_up.chunk(2, 1)
        ours.down_weight.copy_(by_torch.down)
    x, ids, weights = torch.randn(9, 32), torch.randint(4, (9, 2)), torch.rand(9, 2)
    found, want = by_torch(x, ids, weights), ours(x, ids, weights)
    assert (found - want).norm() < 1e-2 * want.norm()  # torch's are in bfloat16
