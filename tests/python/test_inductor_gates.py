"""torch.compile with cutwheel's kernels: gated linear units and fp8 products."""

from __future__ import annotations

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


@pytest.mark.parametrize("how", ["none", "addmm", "added", "residual"])
def test_alternating_gate(inductor_graphs: Graphs, cutwheel: ModuleType, how: str) -> None:
    """With a bias of the product, or added to it as Inductor does it on GPUs."""
    x, w = make(2, 8, 32), weight(64, 32)
    b = make(2, 8, 64) if how == "residual" else make(64)

    def layer(x: Tensor) -> Tensor:
        z = F.linear(x, w, b if how == "addmm" else None)
        if how in ("added", "residual"):
            z = z + b
        return F.silu(z[..., ::2]) * z[..., 1::2]

    compiled = inductor_graphs(layer)
    close(compiled(x), layer(x))
    if how == "residual":  # for which no gated epilogue has an operand
        assert not any("gated" in epilogue for _, epilogue in compiled.ops.calls)
        return
    epilogue = "gated_silu" if how == "none" else "gated_bias_silu"
    assert compiled.ops.calls == [("linear_fused", epilogue)]
    assert "add" not in " ".join(compiled.targets())
    (graph,) = cutwheel.inductor.report().graphs
    assert graph.replaced == 1


VIEWS = ("aten.slice", "aten.permute", "aten.reshape", "aten.view")


@pytest.mark.parametrize("biases", ["none", "addmm", "of gate"])
@pytest.mark.parametrize("layout", ["apart", "halves", "swapped"])
def test_gates_of_parameters_are_read_where_they_lie(
    inductor_graphs: Graphs, layout: str, biases: str
) -> None:
    if biases == "of gate" and layout != "apart":
        pytest.skip("halves have one bias")
    # Each product has a view of x for itself.
    x, both, bias = make(2, 8, 32), weight(64, 32), make(64)
    weights = [w.clone() for w in both.chunk(2)] if layout == "apart" else [both]
    rows = [b.clone() for b in bias.chunk(2)] if layout == "apart" else [bias]
    count = {"none": 0, "of gate": 1}.get(biases, len(rows))
    given = (x, *weights, *rows[:count])

    def apart(x: Tensor, gate: Tensor, up: Tensor, b: Any = None, c: Any = None) -> Tensor:
        return F.silu(F.linear(x, gate, b)) * F.linear(x, up, c)

    def halves(x: Tensor, both: Tensor, bias: Any = None) -> Tensor:
        first, second = F.linear(x, both, bias).chunk(2, -1)
        return F.silu(first) * second if layout == "halves" else first * F.silu(second)

    function = apart if layout == "apart" else halves
    compiled = inductor_graphs(function)
    close(compiled(*given), function(*given))
    assert compiled.ops.calls == [
        ("linear_fused", "gated_silu" if biases == "none" else "gated_bias_silu")
    ]
    if biases == "none":
        assert all(
            name.startswith(("cutwheel.linear_fused", *VIEWS)) for name in compiled.targets()
        )


def test_rows_that_would_be_copied_are_left(inductor_graphs: Graphs) -> None:
    """K = 36 begins rows within 16 bytes: a copy of the weights at each call."""
    x, gate, up = make(8, 36), weight(32, 36), weight(32, 36)

    def apart(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    compiled = inductor_graphs(apart)
    close(compiled(x, gate, up), apart(x, gate, up))
    assert ("linear_fused", "gated_silu") not in compiled.ops.calls


@pytest.mark.parametrize("biases", ["none", "addmm", "added", "of gate"])
@pytest.mark.parametrize("layout", ["apart", "halves", "joined", "swapped"])
def test_gates_of_constants(inductor_graphs: Graphs, layout: str, biases: str) -> None:
    """As Inductor's freezing leaves them: weights and biases are attributes of the graph."""
    from inductor_on_cpu import constant_graph

    if biases == "of gate" and layout != "apart":
        pytest.skip("halves have one bias")
    x, gate, up = make(8, 32), weight(32, 32), weight(32, 32)
    b, c = make(32), make(32)
    both, bias = torch.cat((gate, up)).t(), torch.cat((b, c))
    if layout == "joined":  # by freezing, on GPUs
        both = both.contiguous()

    def multiply(x: Tensor, w: Tensor, row: Tensor) -> Tensor:
        if biases == "none" or (biases == "of gate" and row is c):
            return torch.mm(x, w)
        return torch.mm(x, w) + row if biases == "added" else torch.addmm(row, x, w)

    def apart(x: Tensor) -> Tensor:
        return F.silu(multiply(x, gate.t(), b)) * multiply(x, up.t(), c)

    def halves(x: Tensor) -> Tensor:
        first, second = multiply(x, both, bias).split(32, -1)
        return F.silu(first) * second

    def swapped(x: Tensor) -> Tensor:
        z = multiply(x, both, bias)
        return z[:, :32] * F.silu(z[:, 32:])

    function = {"apart": apart, "swapped": swapped}.get(layout, halves)
    graph = constant_graph(function, x)
    ops = inductor_graphs(function).ops
    ops.calls.clear()
    close(graph(x), function(x))
    epilogue = "gated_silu" if biases == "none" else "gated_bias_silu"
    assert ops.calls == [("linear_fused", epilogue)]
    # No weight is packed, or joined, when the graph runs, and no bias.
    called = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert all(str(node.target).startswith(("cutwheel.linear_fused", *VIEWS)) for node in called)
    # Constants that are not frozen may be exchanged: what has to be packed is left as it is.
    ops.calls.clear()
    close(constant_graph(function, x, freezing=False)(x), function(x))
    assert (("linear_fused", epilogue) in ops.calls) == (layout != "joined")


def fp8(*shape: int) -> Tensor:
    return torch.randn(shape).to(torch.float8_e4m3fn)


def scaled(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None
) -> Tensor:
    product: Tensor = torch._scaled_mm(
        a, b.t(), scale_a, scale_b, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True
    )
    return product


def promoted(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
    product: Tensor = torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)
    return product


@pytest.mark.parametrize("rows", [32, 1])
def test_scaled_products(inductor_graphs: Graphs, cutwheel: ModuleType, rows: int) -> None:
    a, b = fp8(rows, 64), fp8(48, 64)
    one = torch.full((), 0.25), torch.full((), 0.5)
    each = torch.rand(rows, 1) + 0.5, torch.rand(1, 48) + 0.5
    for scales in (one, each):
        compiled = inductor_graphs(scaled)
        wanted = (a.float() * scales[0]) @ (b.float().t() * scales[1])
        close(compiled(a, b, *scales), wanted.bfloat16())
        assert compiled.ops.calls == [("scaled_mm", (None, None), True)]
    cutwheel.inductor.report(clear=True)


def test_scaled_products_that_stay(inductor_graphs: Graphs, cutwheel: ModuleType) -> None:
    one = torch.full((), 0.25), torch.full((), 0.5)
    compiled = inductor_graphs(scaled)
    compiled(fp8(32, 64), fp8(48, 64), *one, make(48))
    assert not compiled.ops.calls
    assert "a bias" in str(cutwheel.inductor.report(clear=True))
    compiled = inductor_graphs(promoted, only_faster=True)
    compiled(fp8(4096, 64), fp8(48, 64), *one)
    assert not compiled.ops.calls
    assert "(tensorwise, more than 2048 rows)" in str(cutwheel.inductor.report())
