"""cutwheel.nn.ScaledLinear: a linear layer of quantised weights, forward and backward."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from gemm_cases import BRAIN, HALF, SINGLE, dtype_id
from runtime import capture
from scaled_reference import BY_128, BY_128_128, E4M3, INT8, ROW, TENSOR, Quantised

pytestmark = pytest.mark.gpu

# (recipe of the layer, dtype): how far its result may be from that of the layer it stands for.
# A value of e4m3 is off by up to 1/16 of itself, by 1/38 in the mean square, one of int8 by 1/254
# of the largest; and both operands are.
LAYERS = {
    ("tensorwise", E4M3): 0.06,
    ("rowwise", E4M3): 0.06,
    ("blockwise", E4M3): 0.06,
    ("tensorwise", INT8): 0.05,
    ("rowwise", INT8): 0.03,
}
RECIPES = {"tensorwise": (TENSOR, TENSOR), "rowwise": (ROW, ROW), "blockwise": (BY_128, BY_128_128)}


def layer_id(layer: tuple[str, torch.dtype]) -> str:
    return f"{layer[0]}-{str(layer[1]).removeprefix('torch.')}"


def random_linear(
    k: int, n: int, dtype: torch.dtype, device: str, bias: bool = True
) -> torch.nn.Linear:
    return torch.nn.Linear(k, n, bias=bias, device=device, dtype=dtype)


def random_layer(
    cutwheel: ModuleType, linear: torch.nn.Linear, layer: tuple[str, torch.dtype], **options: Any
) -> Any:
    return cutwheel.nn.ScaledLinear.from_linear(linear, layer[0], dtype=layer[1], **options)


def assert_near(result: torch.Tensor, wanted: torch.Tensor, limit: float) -> None:
    assert result.shape == wanted.shape
    off = (result.double() - wanted.double()).norm() / wanted.double().norm()
    assert off <= limit, f"relative error {off:.3g}; the limit is {limit:.3g}"


@pytest.mark.parametrize("dtype", [BRAIN, HALF, SINGLE], ids=dtype_id)
@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_forward(
    cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype], dtype: torch.dtype
) -> None:
    for leading, n, k in (
        ((72,), 136, 272),
        ((2, 3, 5), 65, 333),
        ((1,), 264, 512),
        ((300,), 1, 80),
    ):
        for bias in (True, False):
            linear = random_linear(k, n, dtype, device, bias)
            scaled = random_layer(cutwheel, linear, layer)
            x = torch.randn(*leading, k, device=device).to(dtype)
            with torch.no_grad():
                result, wanted = scaled(x), linear(x)
            assert (result.dtype, result.shape) == (dtype, wanted.shape)
            assert result.is_contiguous()
            assert_near(result, wanted, LAYERS[layer])


@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_is_the_product_of_quantised_operands(
    cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype]
) -> None:
    linear = random_linear(272, 136, BRAIN, device)
    for fast in (True, False):
        scaled = random_layer(cutwheel, linear, layer, use_fast_accum=fast)
        recipe_x, recipe_w = RECIPES[layer[0]]
        x = torch.randn(72, 272, device=device).to(BRAIN)
        values, scales = cutwheel.quantize(x, recipe_x, layer[1])
        weight = scaled.weight
        assert (weight.shape, weight.dtype) == ((136, 272), layer[1])
        scale_w = scaled.weight_scale
        wanted = cutwheel.scaled_mm(
            values,
            weight.t(),
            scales,
            scale_b=scale_w.reshape(1) if recipe_w == TENSOR else scale_w.t(),
            bias=scaled.bias.detach(),
            output_dtype=BRAIN,
            use_fast_accum=fast,
            scale_recipe_a=recipe_x,
            scale_recipe_b=recipe_w,
        )
        with torch.no_grad():
            assert_near(scaled(x), wanted, 2.0**-8)


def test_asymmetric_activations(cutwheel: ModuleType, device: str) -> None:
    """Where activations are all positive, half of the values of int8 would stand idle."""
    for recipe in ("tensorwise", "rowwise"):
        linear = random_linear(333, 136, BRAIN, device)
        x = torch.rand(72, 333, device=device).to(BRAIN)
        scaled = random_layer(cutwheel, linear, (recipe, INT8), symmetric=False)
        with torch.no_grad():
            assert_near(scaled(x), linear(x), 0.03)


@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_empty_input(cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype]) -> None:
    scaled = random_layer(cutwheel, random_linear(80, 40, BRAIN, device), layer)
    for leading in ((0,), (2, 0)):
        with torch.no_grad():
            assert scaled(torch.empty(*leading, 80, dtype=BRAIN, device=device)).shape == (
                *leading,
                40,
            )


@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_gradients_are_refused(
    cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype]
) -> None:
    scaled = random_layer(cutwheel, random_linear(80, 40, BRAIN, device), layer)
    x = torch.randn(24, 80, device=device, dtype=BRAIN, requires_grad=True)
    with pytest.raises(RuntimeError, match="straight_through"):
        scaled(x).sum().backward()
    with torch.no_grad():
        assert not scaled(x).requires_grad


def dequantised_weight(scaled: Any, recipe: str) -> torch.Tensor:
    scales = scaled.weight_scale.detach()
    scales = scales.reshape(1) if recipe == TENSOR else scales
    return Quantised(scaled.weight.detach(), scales, recipe).exact()


@pytest.mark.parametrize("dtype", [BRAIN, HALF], ids=dtype_id)
@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_straight_through_gradients(
    cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype], dtype: torch.dtype
) -> None:
    for leading in ((72,), (2, 3, 5)):
        linear = random_linear(272, 136, dtype, device)
        scaled = random_layer(cutwheel, linear, layer, straight_through=True)
        x = torch.randn(*leading, 272, device=device).to(dtype).requires_grad_()
        y = scaled(x)
        with torch.no_grad():
            assert_near(y.detach(), linear(x), LAYERS[layer])
        grad = torch.randn_like(y)
        y.backward(grad)
        assert x.grad is not None
        assert (x.grad.dtype, x.grad.shape) == (dtype, x.shape)
        weight = dequantised_weight(scaled, RECIPES[layer[0]][1])
        wanted = grad.double().reshape(-1, 136) @ weight
        assert_near(x.grad.reshape(-1, 272), wanted, 2e-2)
        if isinstance(scaled.bias, torch.nn.Parameter) and scaled.bias.requires_grad:
            assert scaled.bias.grad is not None
            assert_near(scaled.bias.grad, grad.double().reshape(-1, 136).sum(0), 2e-2)
        assert scaled.weight.grad is None


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_compile(cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype]) -> None:
    backend = "inductor" if device != "cpu" and layer[0] == "blockwise" else "aot_eager"
    scaled = random_layer(cutwheel, random_linear(272, 136, BRAIN, device), layer)
    x = torch.randn(24, 272, device=device).to(BRAIN)
    with torch.no_grad():
        result = torch.compile(scaled, fullgraph=True, backend=backend)(x)
        assert_near(result, scaled(x), 2.0**-8)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_compile_of_straight_through_gradients(
    cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype]
) -> None:
    scaled = random_layer(
        cutwheel, random_linear(272, 136, BRAIN, device), layer, straight_through=True
    )
    x = torch.randn(24, 272, device=device).to(BRAIN).requires_grad_()
    (wanted,) = torch.autograd.grad(scaled(x).float().square().sum(), x)
    compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(compiled(x).float().square().sum(), x)
    assert_near(found, wanted, 1e-2)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_cuda_graph(cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype]) -> None:
    if torch.device(device).type != "cuda":
        pytest.skip("needs CUDA graphs")
    linear = random_linear(1040, 264, BRAIN, device)
    scaled = random_layer(cutwheel, linear, layer)
    x = torch.randn(33, 1040, device=device).to(BRAIN)
    with torch.no_grad():
        graph, result = capture(lambda: scaled(x))
        for _ in range(3):
            x.copy_(torch.randn(33, 1040, device=device))
            result.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert_near(result, linear(x), LAYERS[layer])
            assert_near(result, scaled(x), 2.0**-8)


@pytest.mark.parametrize("layer", LAYERS, ids=layer_id)
def test_state_dict(cutwheel: ModuleType, device: str, layer: tuple[str, torch.dtype]) -> None:
    first, second = (
        random_layer(cutwheel, random_linear(272, 136, BRAIN, device), layer) for _ in range(2)
    )
    x = torch.randn(24, 272, device=device).to(BRAIN)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    assert {"weight", "weight_scale", "bias"} <= set(state)
    second.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(second(x), first(x))
