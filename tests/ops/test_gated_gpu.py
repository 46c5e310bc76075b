"""cutwheel.gated_linear and the modules of cutwheel.nn, against torch in float64."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_cases import (
    TRAINED,
    activate,
    assert_near,
    check_gated,
    compare_gradients,
    gated_of,
    inputs,
    leaves,
    torch_gated,
    values,
)
from gemm_cases import BRAIN, DTYPES, HALF, LAYOUTS, SINGLE, dtype_id
from runtime import capture

pytestmark = pytest.mark.gpu


def operands(leading: tuple[int, ...], f: int, k: int, dtype: torch.dtype, device: str) -> Any:
    """x [*leading, K] and a packed weight [2F, K]"""
    return inputs(leading, 2 * f, k, dtype, device)[:2]


def biased(leading: tuple[int, ...], f: int, k: int, dtype: torch.dtype, device: str) -> Any:
    """x, a packed weight and a packed bias [2F]"""
    return inputs(leading, 2 * f, k, dtype, device)[:3]


@pytest.mark.parametrize("shape", [(7, 16), (7,)])
def test_packed_weights(cutwheel: ModuleType, device: str, shape: tuple[int, ...]) -> None:
    gate, up = values(shape, BRAIN, device), values(shape, BRAIN, device)
    packed = cutwheel.pack_gated_weight(gate, up)
    assert packed.shape == (14, *shape[1:])
    assert torch.equal(packed[0::2], gate)
    assert torch.equal(packed[1::2], up)
    for one, other in zip(cutwheel.unpack_gated_weight(packed), (gate, up), strict=True):
        assert torch.equal(one, other)
    wanting = [gate.requires_grad_(), up.requires_grad_()]
    grads = torch.autograd.grad(cutwheel.pack_gated_weight(*wanting), wanting, packed)
    assert torch.equal(grads[0], gate)
    with pytest.raises(ValueError, match="up"):
        cutwheel.pack_gated_weight(gate, up[:5])
    with pytest.raises(ValueError, match="weight"):
        cutwheel.unpack_gated_weight(packed[:5])


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("activation", TRAINED)
def test_forward(cutwheel: ModuleType, device: str, activation: str, dtype: torch.dtype) -> None:
    for m, f, k in ((72, 136, 200), (67, 131, 77), (1, 1, 24), (300, 500, 512), (24, 64, 4096)):
        x, weight, packed = biased((m,), f, k, dtype, device)
        wanting = weight.detach().clone().requires_grad_()  # stores z besides
        for bias in (None, packed):
            for given in (weight, wanting):
                result = cutwheel.gated_linear(x, given, activation, bias, interleaved=True)
                check_gated(result, x, weight, activation, bias)


def interleaved(cutwheel: ModuleType) -> Callable[..., torch.Tensor]:
    """gated_linear of weights whose rows are those of gate and up in turn."""
    return functools.partial(cutwheel.gated_linear, interleaved=True)


def test_it_is_the_two_products(cutwheel: ModuleType, device: str) -> None:
    x, gate = operands((40,), 28, 64, BRAIN, device)
    up = values(gate.shape, BRAIN, device)
    packed = cutwheel.pack_gated_weight(gate, up)
    result = cutwheel.gated_linear(x, packed, interleaved=True)
    wide, silu = x.double(), torch.nn.functional.silu
    assert_near(result, silu(wide @ gate.double().t()) * (wide @ up.double().t()), BRAIN)


@pytest.mark.parametrize("lay", ["every_second", "offset", "expanded"])
def test_biases_may_lie_anyhow(cutwheel: ModuleType, device: str, lay: str) -> None:
    for f in (36, 33):
        x, weight, bias = biased((40,), f, 64, BRAIN, device)
        variant = {
            "every_second": lambda b: torch.stack((b, b), 1).flatten()[::2],
            "offset": lambda b: torch.cat((b[:1], b))[1:],
            "expanded": lambda b: b[:1].expand(len(b)),
        }[lay](bias)
        check_gated(
            cutwheel.gated_linear(x, weight, "gelu", variant, interleaved=True),
            x,
            weight,
            "gelu",
            variant,
        )


@pytest.mark.parametrize("leading", [(), (37,), (3, 5), (2, 3, 4), (2, 1, 3, 2), (0,), (2, 0)])
def test_leading_extents(cutwheel: ModuleType, device: str, leading: tuple[int, ...]) -> None:
    x, weight, bias = biased(leading, 36, 64, BRAIN, device)
    ours, theirs = gated_of(interleaved(cutwheel)), gated_of(torch_gated)
    for given in ([x, weight], [x, weight, bias]):
        check_gated(ours(*given), x, weight, "silu", *given[2:])
        compare_gradients(ours, theirs, leaves(given), BRAIN)


@pytest.mark.parametrize("lay", ["column", "row_padded_3", "row_offset", "every_second"])
def test_inputs_may_lie_anyhow(cutwheel: ModuleType, device: str, lay: str) -> None:
    for f, k in ((36, 64), (33, 77)):
        given = operands((40,), f, k, BRAIN, device)
        for index in range(2):
            variant = list(given)
            variant[index] = LAYOUTS[lay](given[index])
            check_gated(cutwheel.gated_linear(*variant, interleaved=True), *given, "silu")
            wanting = [x.detach().requires_grad_() for x in variant]
            compare_gradients(interleaved(cutwheel), torch_gated, wanting, BRAIN)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("dtype", [BRAIN, SINGLE], ids=dtype_id)
def test_compile_fullgraph(cutwheel: ModuleType, device: str, dtype: torch.dtype) -> None:
    given = leaves(biased((6, 4), 28, 40, dtype, device))
    backend = "inductor" if device != "cpu" else "aot_eager"
    ours = gated_of(interleaved(cutwheel))
    compiled = torch.compile(ours, fullgraph=True, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare_gradients(compiled, gated_of(torch_gated), given, dtype)
    with torch.no_grad():
        assert_near(compiled(*given), ours(*given), dtype)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("activation", TRAINED)
def test_opcheck(cutwheel: ModuleType, device: str, activation: str) -> None:
    ops = torch.ops.cutwheel
    for leading in ((24,), (2, 3)):
        x, weight, packed = biased(leading, 28, 40, HALF, device)
        for name, bias in ((f"gated_{activation}", None), (f"gated_bias_{activation}", packed)):
            given = x, weight, bias, None
            torch.library.opcheck(ops.linear_fused.default, (*given, name))
            torch.library.opcheck(ops.linear_fused_aux.default, (*given, f"{name}_aux"))


def test_bad_input(cutwheel: ModuleType, device: str) -> None:
    x, weight, bias = biased((8,), 8, 24, BRAIN, device)
    gated = interleaved(cutwheel)
    for error, words, call in (
        (ValueError, "activation", lambda: gated(x, weight, "gelo")),
        (ValueError, "weight", lambda: gated(x, weight[:15])),  # no pairs of rows
        (ValueError, "weight", lambda: gated(x, weight[:, :5])),
        (TypeError, "weight", lambda: gated(x, weight.half())),
        (
            ValueError,
            r"gated_linear: bias has shape \[8\]",
            lambda: gated(x, weight, "silu", bias[:8]),
        ),
        (TypeError, "gated_linear: bias has dtype", lambda: gated(x, weight, bias=bias.half())),
        (TypeError, "gated_linear: bias is of type", lambda: gated(x, weight, bias=1.0)),
        (ValueError, "bias", lambda: gated(x, weight, bias=bias.to("meta"))),
    ):
        with pytest.raises(error, match=words):
            call()
        check_gated(gated(x, weight), x, weight, "silu")


# ---- modules -------------------------------------------------------------------------------------
class TorchGatedMLP(torch.nn.Module):
    """torch's equivalent of cutwheel.nn.GatedMLP, with the names of its weights."""

    def __init__(self, hidden: int, intermediate: int, activation: str) -> None:
        super().__init__()
        self.gate_proj = torch.nn.Linear(hidden, intermediate, bias=False)
        self.up_proj = torch.nn.Linear(hidden, intermediate, bias=False)
        self.down_proj = torch.nn.Linear(intermediate, hidden, bias=False)
        self.activation = activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = activate(self.activation, self.gate_proj(x))
        result: torch.Tensor = self.down_proj(gate * self.up_proj(x))
        return result


def train(model: torch.nn.Module, x: torch.Tensor, target: torch.Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def check_training(ours: torch.nn.Module, theirs: torch.nn.Module, n: int, device: str) -> None:
    """The same weights, the same steps, in float64: the same losses and weights."""
    exact = copy.deepcopy(theirs).double()
    x, target = values((48, 40), SINGLE, device), values((48, n), SINGLE, device)
    losses = train(ours, x, target)
    expected = train(exact, x.double(), target.double())
    assert losses == pytest.approx(expected, rel=5e-3)
    assert losses[-1] < losses[0]
    if hasattr(ours, "unpack_parameters"):
        ours.unpack_parameters()  # type: ignore[operator]
    state = ours.state_dict()
    assert list(state) == list(exact.state_dict())
    for name, wanted in exact.state_dict().items():
        assert_near(state[name], wanted, BRAIN, name)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", [None, *TRAINED], ids=str)
def test_linear_module_trains_as_torchs(
    cutwheel: ModuleType, device: str, activation: str | None, bias: bool
) -> None:
    class TorchLinear(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return activate(activation, super().forward(x))

    theirs = TorchLinear(40, 56, bias=bias).to(device)
    ours = cutwheel.nn.Linear(40, 56, bias=bias, activation=activation, device=device)
    assert isinstance(ours, torch.nn.Module)
    ours.load_state_dict(theirs.state_dict())
    check_training(ours, theirs, 56, device)
    torch.nn.Linear(40, 56, bias=bias, device=device).load_state_dict(ours.state_dict())


@pytest.mark.parametrize("after", [False, True])
def test_linear_module_takes_a_residual(cutwheel: ModuleType, device: str, after: bool) -> None:
    module = cutwheel.nn.Linear(
        40, 56, activation="gelu", residual_after_activation=after, device=device, dtype=BRAIN
    )
    assert module.weight.dtype == BRAIN
    x, residual = values((24, 40), BRAIN, device), values((24, 56), BRAIN, device)
    z = torch.nn.functional.linear(x.double(), module.weight.double(), module.bias.double())
    gelu = torch.nn.functional.gelu
    expected = gelu(z) + residual.double() if after else gelu(z + residual.double())
    assert_near(module(x, residual).detach(), expected.detach(), BRAIN)
    assert_near(module(x).detach(), gelu(z).detach(), BRAIN)
    assert "gelu" in repr(module)


each_form = pytest.mark.parametrize("packed", [False, True], ids=["separate", "packed"])


@each_form
@pytest.mark.parametrize("activation", TRAINED)
def test_gated_mlp_trains_as_torchs(
    cutwheel: ModuleType, device: str, activation: str, packed: bool
) -> None:
    theirs = TorchGatedMLP(40, 28, activation).to(device)
    ours = cutwheel.nn.GatedMLP(40, 28, activation=activation, device=device)
    if packed:
        ours.pack_parameters()
    ours.load_state_dict(theirs.state_dict())
    check_training(ours, theirs, 40, device)
    theirs.load_state_dict(ours.state_dict())
    if packed:
        ours.pack_parameters()
    x = values((24, 40), SINGLE, device)
    with torch.no_grad():
        assert_near(ours(x), theirs.double()(x.double()), BRAIN)


@each_form
def test_gated_mlp_in_half_precision(cutwheel: ModuleType, device: str, packed: bool) -> None:
    theirs = TorchGatedMLP(64, 72, "silu").to(device, BRAIN)
    ours = cutwheel.nn.GatedMLP(64, 72, device=device, dtype=BRAIN)
    if packed:
        ours.pack_parameters()
    ours.load_state_dict(theirs.state_dict())
    x = values((2, 5, 64), BRAIN, device)
    wanted = copy.deepcopy(theirs).double()(x.double())
    assert_near(ours(x).detach(), wanted.detach(), BRAIN)
    moved = copy.deepcopy(ours).half()
    assert_near(moved(x.half()).detach(), wanted.detach(), BRAIN)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert not ours(x).any()


def test_mlp_with_a_float32_residual_under_autocast(cutwheel: ModuleType, device: str) -> None:
    if device == "cpu":
        pytest.skip("autocast of CUDA tensors")
    theirs = TorchGatedMLP(64, 72, "silu").to(device)
    ours = cutwheel.nn.GatedMLP(64, 72, device=device)
    ours.load_state_dict(theirs.state_dict())
    x, residual = (torch.randn(40, 64, device=device).requires_grad_() for _ in range(2))
    with torch.autocast("cuda", dtype=BRAIN):
        result, eager = ours(x, residual), theirs(x) + residual
    assert result.dtype == eager.dtype == torch.float32
    exact = copy.deepcopy(theirs).double()(x.double()) + residual.double()
    assert_near(result.detach(), exact.detach(), BRAIN)
    # The residual is not rounded to 16 bits.
    error, of_torch = ((y - exact).detach().norm() for y in (result, eager))
    assert error <= 2 * of_torch
    for got in torch.autograd.grad(result.sum(), (x, residual)):
        assert got.dtype == torch.float32


@pytest.mark.no_dispatch_mode
@each_form
def test_gated_mlp_in_a_graph_follows_its_parameters(
    cutwheel: ModuleType, device: str, packed: bool
) -> None:
    """Whatever changes them between replays, behind autograd's back, too."""
    if device == "cpu":
        pytest.skip("CUDA graphs")
    theirs = TorchGatedMLP(64, 72, "silu").to(device, BRAIN)
    ours = cutwheel.nn.GatedMLP(64, 72, device=device, dtype=BRAIN)
    if packed:
        ours.pack_parameters()
    x = values((24, 64), BRAIN, device)
    with torch.no_grad():
        graph, result = capture(lambda: ours(x))
        for _ in range(2):
            for parameter in theirs.parameters():
                parameter.copy_(values(parameter.shape, BRAIN, device) / 8)
            news = [parameter.data for parameter in theirs.parameters()]
            if packed:
                news = [cutwheel.pack_gated_weight(*news[:2]), news[2]]
            for parameter, new in zip(ours.parameters(), news, strict=True):
                parameter.data.copy_(new)
            result.fill_(float("nan"))
            graph.replay()
            wanted = copy.deepcopy(theirs).double()(x.double())
            assert_near(result, wanted, BRAIN)
            assert_near(ours(x), wanted, BRAIN)


@each_form
@pytest.mark.parametrize("name", ["fused", "foreach"])
def test_gated_mlp_is_optimised(cutwheel: ModuleType, device: str, packed: bool, name: str) -> None:
    """By optimizers that want dense, contiguous parameters and gradients."""
    ours = cutwheel.nn.GatedMLP(40, 28, device=device)
    if packed:
        ours.pack_parameters()
    optimizer = torch.optim.AdamW(ours.parameters(), 0.01, **{name: True})
    x, losses = values((48, 40), SINGLE, device), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (ours(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        for parameter in ours.parameters():
            assert parameter.grad.stride() == parameter.stride()
    assert losses[-1] < losses[0]
