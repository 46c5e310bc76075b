"""Linear layers of each group, with an activation or a gate: values, gradients, compilers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from epilogue_reference import ACTIVATIONS
from fused_cases import TRAINED, assert_near, compare_gradients, compare_second_gradients, subsets
from gemm_cases import BRAIN, DTYPES, HALF, LAYOUTS, SINGLE, dtype_id, random_tensor
from grouped_cases import draw_ends, offsets, serves, torch_gated
from grouped_reference import loop

pytestmark = pytest.mark.gpu

GROUPS = 5


def gated(
    cutwheel: Any, activation: str, device: str, how: str = "random"
) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    ends = draw_ends(60, GROUPS, how)
    offs = offsets(ends, device)
    options: Any = {"activation": activation, "offs": offs, "interleaved": True}
    ours = functools.partial(cutwheel.grouped_gated_linear, **options)
    return ours, lambda x, w: torch_gated(x, w, ends, ACTIVATIONS[activation])


def require(dtype: torch.dtype, *epilogues: str) -> None:
    if not all(serves("rows", dtype, dtype, epilogue) for epilogue in epilogues):
        pytest.skip(f"no kernel with {' or '.join(epilogues)} for these dtypes")


def gated_leaves(dtype: torch.dtype, device: str, needed: Sequence[bool] = (True, True)) -> Any:
    """x [60, 40], packed weights [5, 2 x 24, 40]; the product has a standard deviation near 1."""
    x, w = random_tensor((60, 40), BRAIN, device), random_tensor((5, 48, 40), BRAIN, device) / 8
    return [t.to(dtype).requires_grad_(need) for t, need in zip((x, w), needed, strict=True)]


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("activation", TRAINED)
def test_gated_gradients(
    cutwheel: ModuleType, device: str, activation: str, dtype: torch.dtype
) -> None:
    require(dtype, f"gated_{activation}", f"gated_{activation}_aux")
    for how in ("random", "short", "all_empty"):
        ours, theirs = gated(cutwheel, activation, device, how)
        for needed in subsets(2):
            given = gated_leaves(dtype, device, needed)
            assert_near(ours(*given).detach(), theirs(*(x.double() for x in given)), dtype)
            compare_gradients(ours, theirs, given, dtype)


@pytest.mark.parametrize("activation", TRAINED)
def test_gated_second_gradients(cutwheel: ModuleType, device: str, activation: str) -> None:
    dtype = SINGLE if serves("rows", SINGLE, SINGLE, f"gated_{activation}_aux") else HALF
    require(dtype, f"gated_{activation}_aux")
    ours, theirs = gated(cutwheel, activation, device, "short")
    compare_second_gradients(ours, theirs, gated_leaves(dtype, device))


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("activation", [None, *TRAINED], ids=str)
def test_linear_gradients(
    cutwheel: ModuleType, device: str, activation: str | None, dtype: torch.dtype
) -> None:
    """With and without a bias, for each group."""
    x, w = gated_leaves(dtype, device)
    bias = (random_tensor((5, 48), BRAIN, device) / 8).to(dtype).requires_grad_()
    act = ACTIVATIONS[activation or "identity"]
    if activation is None:
        require(dtype, "plain", "bias")
    else:
        require(dtype, f"bias_{activation}", *[f"bias_{activation}_aux"] * (activation != "relu"))
    for how in ("random", "short"):
        ends = draw_ends(60, GROUPS, how)
        offs = offsets(ends, device)

        def ours(x: Any, w: Any, bias: Any = None) -> torch.Tensor:
            result: torch.Tensor = cutwheel.grouped_linear(
                x,
                w,
                offs=offs,  # noqa: B023
                bias=bias,
                activation=activation,
            )
            return result

        def theirs(x: Any, w: Any, bias: Any = None) -> torch.Tensor:
            parts = loop(x, w.mT, ends, bias)  # noqa: B023
            # An activation of 0 is 0, so rows of no group stay zeros.
            return act(parts)

        for given in ([x, w, bias], [x, w]):
            result = ours(*(t.detach() for t in given))
            assert_near(result, theirs(*(t.detach().double() for t in given)), dtype)
            compare_gradients(ours, theirs, given, dtype)
        if dtype == SINGLE:
            compare_second_gradients(ours, theirs, [x, w, bias])


def without_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU whose kernels have none in float32."""
    from cutwheel.ops.grouped import _linear as layers

    require(SINGLE, "plain", "bias")
    monkeypatch.setattr(layers, "is_served", lambda *_: False)


@pytest.mark.parametrize("activation", TRAINED)
def test_what_has_a_kernel(cutwheel: ModuleType, device: str, activation: str) -> None:
    from cutwheel.ops.grouped import _linear as layers

    if device == "cpu":
        pytest.skip("kernels")
    for dtype in DTYPES:
        x = torch.empty(1, dtype=dtype, device=device)
        for name in (f"gated_{activation}", f"bias_{activation}"):
            assert layers.is_served(x, name) == serves("rows", dtype, dtype, name)


@pytest.mark.parametrize("activation", TRAINED)
def test_float32_without_a_kernel(
    cutwheel: ModuleType, device: str, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_activations(monkeypatch)
    act, bias = ACTIVATIONS[activation], random_tensor((5, 48), BRAIN, device).to(SINGLE) / 8
    for how in ("random", "short", "all_empty"):
        ours, theirs = gated(cutwheel, activation, device, how)
        given = gated_leaves(SINGLE, device)
        assert_near(ours(*given).detach(), theirs(*(x.double() for x in given)).detach(), SINGLE)
        compare_gradients(ours, theirs, given, SINGLE)
        ends = draw_ends(60, GROUPS, how)
        layer = functools.partial(
            cutwheel.grouped_linear, offs=offsets(ends, device), activation=activation
        )
        leaves = [*given, bias.clone().requires_grad_()]
        compare_gradients(
            lambda x, w, b: layer(x, w, bias=b),  # noqa: B023
            lambda x, w, b: act(loop(x, w.mT, ends, b)),  # noqa: B023
            leaves,
            SINGLE,
        )


@pytest.mark.parametrize("dtype", [BRAIN, SINGLE], ids=dtype_id)
@pytest.mark.parametrize("composed", [False, True])
def test_experts_and_tokens_without_one(
    cutwheel: ModuleType,
    device: str,
    dtype: torch.dtype,
    composed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An id of no expert adds zeros, with an infinite weight, too."""
    if composed:
        without_activations(monkeypatch)
    experts = cutwheel.nn.GroupedExperts(3, 40, 24, device=device, dtype=dtype)
    x = random_tensor((50, 40), BRAIN, device).to(dtype)
    ids = torch.randint(-1, 4, (50, 2), device=device)
    weights = torch.rand(50, 2, device=device)
    with torch.no_grad():
        got = experts(x, ids, weights.masked_fill((ids < 0) | (ids > 2), float("inf")))
        wanted = torch.zeros(50, 40, dtype=torch.float64, device=device)
        for expert in range(3):
            gate, up = (w.double() for w in cutwheel.unpack_gated_weight(experts.gate_up_weight))
            hidden = ACTIVATIONS["silu"](x.double() @ gate[expert].T) * (x.double() @ up[expert].T)
            factor = (weights.double() * (ids == expert)).sum(-1, keepdim=True)
            wanted += factor * (hidden @ experts.down_weight[expert].double().T)
    assert_near(got, wanted, dtype)


@pytest.mark.parametrize("lay", ["column", "row_padded_3", "row_offset", "every_second"])
def test_inputs_may_lie_anyhow(cutwheel: ModuleType, device: str, lay: str) -> None:
    ours, theirs = gated(cutwheel, "silu", device)
    x, w = gated_leaves(BRAIN, device)
    given = [LAYOUTS[lay](t.detach()).requires_grad_() for t in (x, w)]
    assert_near(ours(*given).detach(), theirs(x.double(), w.double()).detach(), BRAIN)
    compare_gradients(ours, theirs, given, BRAIN)


def test_autocast(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    ours, theirs = gated(cutwheel, "silu", device)
    given = gated_leaves(SINGLE, device)
    exact = [x.detach().double().requires_grad_() for x in given]
    with torch.autocast("cuda", dtype=BRAIN):
        result = ours(*given)
    assert result.dtype == BRAIN
    result.sum().backward()
    theirs(*exact).sum().backward()
    for got, want in zip(given, exact, strict=True):
        assert got.grad.dtype == SINGLE
        assert_near(got.grad, want.grad, BRAIN)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("dtype", [BRAIN, SINGLE], ids=dtype_id)
def test_compile_fullgraph_forward_and_backward(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    """An expert layer with everything around it, for other offsets without a new compilation."""

    def model(
        x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, bias: torch.Tensor, offs: Any
    ) -> torch.Tensor:
        h = cutwheel.grouped_gated_linear(
            x, up, activation="silu", offs=offs, interleaved=True
        )  # [60, 24]
        y = cutwheel.grouped_mm(h, down.mT, offs=offs, bias=bias)  # [60, 40]
        z = cutwheel.grouped_mm(y.t(), h, offs=offs)  # [5, 40, 24]
        return y.square().mean() + z.square().mean()

    def exact_model(x: Any, up: Any, down: Any, bias: Any, ends: Any) -> torch.Tensor:
        h = torch_gated(x, up, ends, ACTIVATIONS["silu"])
        y = loop(h, down.mT, ends, bias)
        return y.square().mean() + loop(y.t(), h, ends).square().mean()

    require(dtype, "gated_silu_aux", "bias")
    x, up = gated_leaves(dtype, device)
    down = (random_tensor((5, 40, 24), BRAIN, device) / 8).to(dtype).requires_grad_()
    given = [x, up, down, random_tensor((5, 40), dtype, device).requires_grad_()]
    exact = [t.detach().double().requires_grad_() for t in given]
    backend = "inductor" if device != "cpu" else "aot_eager"
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for how in ("random", "short"):
        ends = draw_ends(60, GROUPS, how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grads = torch.autograd.grad(compiled(*given, offsets(ends, device)), given)
        wanted = torch.autograd.grad(exact_model(*exact, ends), exact)
        for got, want in zip(grads, wanted, strict=True):
            assert_near(got, want, BRAIN)


@pytest.mark.no_dispatch_mode
def test_opcheck(cutwheel: ModuleType, device: str) -> None:
    ops = torch.ops.cutwheel
    offs = offsets(draw_ends(60, GROUPS, "short"), device)
    x, w = random_tensor((60, 40), HALF, device), random_tensor((5, 56, 40), HALF, device)
    bias = random_tensor((5, 56), HALF, device)
    check = torch.library.opcheck
    for activation in TRAINED:
        if not serves("rows", HALF, HALF, f"bias_{activation}"):
            continue
        name, gate = f"bias_{activation}", f"gated_{activation}"
        check(ops.grouped_linear_fused.default, (x, w, offs, bias, name))
        check(ops.grouped_linear_fused.default, (x, w, offs, None, name))
        check(ops.grouped_linear_fused.default, (x, w, offs, None, gate))
        check(ops.grouped_linear_fused_aux.default, (x, w, offs, None, f"{gate}_aux"))
        if activation != "relu":
            check(ops.grouped_linear_fused_aux.default, (x, w, offs, bias, f"{name}_aux"))


def test_bad_input(cutwheel: ModuleType, device: str) -> None:
    x, w = (t.detach() for t in gated_leaves(BRAIN, device))
    offs = offsets([10, 20, 30, 40, 60], device)
    bias = random_tensor((5, 48), BRAIN, device)
    one, other = cutwheel.grouped_gated_linear, cutwheel.grouped_linear
    for error, words, call in (
        (ValueError, "activation", lambda: one(x, w, offs=offs, activation="gelo")),
        (ValueError, "weight", lambda: one(x, w[:, :47], offs=offs)),  # no pairs of rows
        (ValueError, "weight", lambda: one(x, w[..., :5], offs=offs)),
        (ValueError, "offs", lambda: one(x, w, offs=offs[:3])),
        (TypeError, "offs", lambda: one(x, w, offs=offs.float())),
        (TypeError, "weight", lambda: one(x, w.half(), offs=offs)),
        (ValueError, "bias", lambda: other(x, w, offs=offs, bias=bias[0], activation="relu")),
        (ValueError, "bias", lambda: other(x, w, offs=offs, bias=bias[:, :5])),
        (ValueError, "weight", lambda: other(x, w[0], offs=offs)),
        (ValueError, "input", lambda: other(x[0], w, offs=offs, activation="silu")),
    ):
        with pytest.raises(error, match=words):
            call()
    ours, theirs = gated(cutwheel, "silu", device)
    assert_near(ours(x, w), theirs(x.double(), w.double()), BRAIN)  # the context is alive
