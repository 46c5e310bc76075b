"""torch.compile with cutwheel's kernels: what is fused behind matrix products, and what is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from inductor_on_cpu import Compiled

Tensor = torch.Tensor
Graphs = Callable[..., "Compiled"]


@pytest.fixture(autouse=True)
def inference() -> Any:
    with torch.no_grad():
        yield


def make(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def weight(n: int, k: int) -> Tensor:
    return (torch.randn(n, k) * k**-0.5).bfloat16()


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)


def new_gelu(z: Tensor) -> Tensor:
    return 0.5 * z * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z.pow(3.0))))


ACTIVATIONS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("relu", F.relu),
    ("relu", lambda z: z.clamp(min=0)),
    ("gelu", F.gelu),
    ("gelu_tanh", lambda z: F.gelu(z, approximate="tanh")),
    ("gelu_tanh", new_gelu),
    ("silu", F.silu),
    ("silu", lambda z: z * torch.sigmoid(z)),
    ("sigmoid", torch.sigmoid),
    ("tanh", torch.tanh),
    ("hardswish", F.hardswish),
    ("softplus", F.softplus),
]


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("name", "function"), ACTIVATIONS)
def test_activation_is_in_the_kernel(
    inductor_graphs: Graphs, name: str, function: Callable[[Tensor], Tensor], with_bias: bool
) -> None:
    x, w, b = make(2, 8, 32), weight(16, 32), make(16) if with_bias else None

    def layer(x: Tensor) -> Tensor:
        return function(F.linear(x, w, b))

    compiled = inductor_graphs(layer)
    close(compiled(x), layer(x))
    assert compiled.ops.names("linear_fused") == [f"bias_{name}"]
    assert not [each for each in compiled.targets() if "exp" in each or "mm" in each]


@pytest.mark.parametrize(
    "function",
    [
        lambda z: F.leaky_relu(z, 0.2),
        F.elu,
        lambda z: F.softplus(z, beta=2),
        lambda z: z * torch.sigmoid(1.702 * z),
        lambda z: z * torch.tanh(z),
    ],
)
def test_other_activations_stay(
    inductor_graphs: Graphs, function: Callable[[Tensor], Tensor]
) -> None:
    x, w = make(8, 32), weight(16, 32)
    compiled = inductor_graphs(lambda x: function(F.linear(x, w)))
    close(compiled(x), function(F.linear(x, w)))
    assert compiled.ops.calls == [("mm", "plain")]


def test_residual_is_in_the_kernel(inductor_graphs: Graphs) -> None:
    x, w, b = make(2, 8, 32), weight(32, 32), make(32)

    def block(x: Tensor) -> Tensor:
        h = x + F.linear(x, w, b)
        return h + F.rms_norm(h, (32,))

    compiled = inductor_graphs(block)
    close(compiled(x), block(x))
    assert compiled.ops.calls == [("linear_fused", "bias_residual")]


def test_residual_before_and_after_an_activation(inductor_graphs: Graphs) -> None:
    x, w, b, r = make(8, 32), weight(16, 32), make(16), make(8, 16)

    def before(x: Tensor) -> Tensor:
        return F.relu(F.linear(x, w, b) + r)

    def after(x: Tensor) -> Tensor:
        return r + F.relu(F.linear(x, w, b))

    for function, epilogue in ((before, "bias_residual_relu"), (after, "bias_relu_residual")):
        compiled = inductor_graphs(function)
        close(compiled(x), function(x))
        assert compiled.ops.names("linear_fused") == [epilogue]


def test_residual_that_was_transposed_stays(inductor_graphs: Graphs) -> None:
    x, w, r = make(16, 32), weight(16, 32), make(16, 16)
    compiled = inductor_graphs(lambda x, r: F.linear(x, w) + r.t())
    close(compiled(x, r), F.linear(x, w) + r.t())
    assert not [call for call in compiled.ops.calls if call[0] == "linear_fused"]


def test_broadcast_matrix_is_no_residual(inductor_graphs: Graphs) -> None:
    x, w, r = make(2, 8, 32), weight(16, 32), make(8, 16)
    compiled = inductor_graphs(lambda x: F.linear(x, w) + r)
    close(compiled(x), F.linear(x, w) + r)
    assert compiled.ops.calls == [("mm", "plain")]


def test_sum_in_float32_stays(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    x, w, r = make(8, 32), weight(16, 32), torch.randn(8, 16)
    compiled = inductor_graphs(lambda x: F.linear(x, w).float() + r)
    close(compiled(x), F.linear(x, w).float() + r)
    assert compiled.ops.calls == [("mm", "plain")]


def test_value_that_is_used_elsewhere_is_stored(inductor_graphs: Graphs) -> None:
    x, w, b = make(2, 8, 32), weight(16, 32), make(16)

    def layer(x: Tensor) -> tuple[Tensor, Tensor]:
        z = F.linear(x, w, b)
        return F.gelu(z), z * 2

    compiled = inductor_graphs(layer)
    close(compiled(x), layer(x))
    assert compiled.ops.names("linear_fused_aux") == ["bias_gelu_aux"]


def test_value_that_is_returned_too_is_stored(inductor_graphs: Graphs) -> None:
    x, w = make(8, 32), weight(16, 32)

    def layer(x: Tensor) -> tuple[Tensor, Tensor]:
        z = x @ w.t()
        return z, F.silu(z)

    compiled = inductor_graphs(layer)
    close(compiled(x), layer(x))
    assert compiled.ops.names("linear_fused_aux") == ["bias_silu_aux"]


def test_sum_that_is_used_elsewhere_ends_the_kernel(inductor_graphs: Graphs) -> None:
    """Two residuals, and the first sum is needed: the second is no part of the kernel."""
    x, w, r = make(8, 32), weight(16, 32), make(8, 16)

    def layer(x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.linear(x, w) + r
        return h, h + 2 * r

    compiled = inductor_graphs(layer)
    close(compiled(x), layer(x))
    assert compiled.ops.names("linear_fused") == ["bias_residual"]


def test_part_of_an_activation_that_is_used_elsewhere(inductor_graphs: Graphs) -> None:
    x, w = make(8, 32), weight(16, 32)

    def layer(x: Tensor) -> tuple[Tensor, Tensor]:
        z = F.linear(x, w)
        s = torch.sigmoid(z)
        return z * s, s

    compiled = inductor_graphs(layer)
    close(compiled(x), layer(x))
    assert ("linear_fused", "bias_silu") not in compiled.ops.calls
    assert ("linear_fused_aux", "bias_silu_aux") not in compiled.ops.calls


def test_sum_of_a_value_and_its_activation(inductor_graphs: Graphs) -> None:
    """The residual is made of the product itself: a kernel that waits for it waits for itself."""
    x, w = make(8, 32), weight(16, 32)

    def layer(x: Tensor) -> Tensor:
        z = F.linear(x, w)
        return F.silu(z) + z.flip(0)

    compiled = inductor_graphs(layer)
    close(compiled(x), layer(x))


def test_plain_products(inductor_graphs: Graphs) -> None:
    a, b, c = make(8, 32), make(32, 16), make(8, 16)
    stack, other = make(3, 8, 32), make(3, 32, 16)

    def products(a: Tensor, b: Tensor, c: Tensor, stack: Tensor, other: Tensor) -> Any:
        return (
            a @ b,
            stack @ other,
            torch.addmm(c, a, b, beta=0.5, alpha=2),
            torch.baddbmm(c.expand(3, 8, 16).clone(), stack, other),
        )

    given = a, b, c, stack, other
    compiled = inductor_graphs(products)
    close(compiled(*given), products(*given))
    assert sorted(call[0] for call in compiled.ops.calls) == ["addmm", "baddbmm", "bmm", "mm"]


def test_operands_that_kernels_would_copy_stay(
    inductor_graphs: Graphs, cutwheel: ModuleType
) -> None:
    cases: dict[str, tuple[Tensor, Tensor]] = {
        "16 bytes": (make(8, 12), make(12, 16)),
        "no multiple of 8": (make(8, 32), make(12, 32).t()),
        "float32": (torch.randn(8, 32), torch.randn(32, 16)),
        "an empty operand": (make(8, 0), make(0, 16)),
    }
    for reason, given in cases.items():
        compiled = inductor_graphs(lambda a, b: a @ b)
        close(compiled(*given), given[0] @ given[1])
        assert not compiled.ops.calls, reason
        (graph,) = cutwheel.inductor.report(clear=True).graphs
        assert graph.replaced == 0
        assert reason in graph.entries[0].reason


def test_graph_without_a_match_is_unchanged(inductor_graphs: Graphs) -> None:
    compiled = inductor_graphs(lambda x: F.layer_norm(x, (32,)).softmax(-1))
    x = make(8, 32)
    close(compiled(x), F.layer_norm(x, (32,)).softmax(-1))
    assert not compiled.ops.calls
    assert not [target for target in compiled.targets() if "cutwheel" in target]


def test_no_read_moves_over_a_write(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    """Functionalised graphs write at their end only; a pass of somebody else's may write before."""
    from inductor_on_cpu import faked

    from cutwheel.inductor.graph_pass import CutwheelPass

    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x, w, new = (graph.placeholder(name) for name in ("x", "w", "new"))
    turned = graph.call_function(aten.permute.default, (w, [1, 0]))
    z = graph.call_function(aten.mm.default, (x, turned))
    graph.call_function(aten.copy_.default, (w, new))
    y = graph.call_function(aten.relu.default, (z,))
    graph.output((y,))
    given = make(8, 32), weight(16, 32), weight(16, 32)
    module = faked(torch.fx.GraphModule({}, graph), given)
    expected = F.relu(given[0] @ given[1].t())
    ops = inductor_graphs(lambda x: x).ops
    CutwheelPass(only_faster=False)(module.graph)
    module.recompile()
    ops.calls.clear()
    close(module(*(each.clone() for each in given))[0], expected)
    assert ops.calls == [("mm", "plain")]
    assert "writes to its operands" in str(cutwheel.inductor.report())


def test_mutated_inputs(inductor_graphs: Graphs) -> None:
    w = weight(32, 32)

    def step(cache: Tensor, x: Tensor) -> Tensor:
        h = F.silu(F.linear(x, w))
        cache.add_(h)
        return cache + F.linear(cache, w)

    one, other = make(8, 32), make(8, 32)
    mine, torchs = one.clone(), one.clone()
    compiled = inductor_graphs(step)
    close(compiled(mine, other), step(torchs, other))
    close(mine, torchs)
    assert compiled.ops.names("linear_fused") == ["bias_silu_residual", "bias_residual"]


def test_autocast(inductor_graphs: Graphs) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    x = torch.randn(8, 32)
    compiled = inductor_graphs(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(compiled(x), model(x))
    assert ("linear_fused", "bias_gelu") in compiled.ops.calls


def test_any_number_of_rows_is_one_graph(inductor_graphs: Graphs) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)
    ).bfloat16()

    def block(x: Tensor) -> Tensor:
        return x + model(x)

    compiled = inductor_graphs(block, dynamic=True)
    for rows in (4, 9, 33, 130):
        x = make(2, rows, 32)
        close(compiled(x), block(x))
        assert compiled.ops.names("linear_fused") == ["bias_gelu", "bias_residual"]
    assert len(compiled.graphs) == 1


def test_where_a_result_goes(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    """By what was measured: 4096 rows are enough for a gain, if Inductor would have to write what
    follows the product."""
    x, w, v = make(4096, 64), weight(64, 64), weight(64, 64)

    def into_a_product(x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, w)), v)

    def into_a_gate(x: Tensor) -> Tensor:
        return F.linear(F.silu(F.linear(x, w)) * x, v)

    def into_a_norm(x: Tensor) -> Tensor:
        return F.linear(F.rms_norm(x + F.linear(x, w), (64,)), v)

    def into_a_norm_and_a_later_sum(x: Tensor) -> Tensor:
        h = x + F.linear(x, w)
        return h + F.linear(F.rms_norm(h, (64,)), v)

    for function, epilogues in (
        (into_a_product, ["bias_silu"]),
        (into_a_gate, []),
        (into_a_norm, []),
        (into_a_norm_and_a_later_sum, ["bias_residual", "bias_residual"]),
    ):
        compiled = inductor_graphs(function, only_faster=True)
        close(compiled(x), function(x))
        assert compiled.ops.names("linear_fused") == epilogues, function.__name__
    assert "residual, goes on" in str(cutwheel.inductor.report())
