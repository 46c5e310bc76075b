"""ScaledLinear: results, gradients, state dict, and what conversions leave alone."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps
from torch._subclasses.fake_tensor import FakeTensorMode

E4M3, E5M2, INT8, INT32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32
N, K = 200, 300
OPTIONS: list[dict[str, Any]] = [
    {"recipe": "tensorwise"},
    {"recipe": "rowwise"},
    {"recipe": "blockwise"},
    {"recipe": "tensorwise", "dtype": INT8},
    {"recipe": "rowwise", "dtype": INT8},
    {"recipe": "tensorwise", "dtype": INT8, "symmetric": False},
    {"recipe": "rowwise", "dtype": INT8, "symmetric": False},
]
SCALES = {"tensorwise": (1,), "rowwise": (N, 1), "blockwise": (2, 3)}
each_option = pytest.mark.parametrize("options", OPTIONS, ids=str)


def linear(**options: Any) -> torch.nn.Linear:
    return torch.nn.Linear(K, N, **options)


def quantised(w: ModuleType, source: torch.nn.Linear | None = None, **options: Any) -> Any:
    return w.nn.ScaledLinear.from_linear(linear() if source is None else source, **options)


def assert_near(result: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.05) -> None:
    """The deviation, by that of what is expected."""
    difference = (result.double() - expected.double()).square().mean().sqrt()
    assert difference < tolerance * expected.double().square().mean().sqrt()


@each_option
@pytest.mark.parametrize("bias", [True, False])
def test_computes(
    cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any], bias: bool
) -> None:
    source = linear(bias=bias)
    layer = quantised(cutwheel, source, **options)
    assert (layer.weight.shape, layer.weight.dtype) == ((N, K), options.get("dtype", E4M3))
    assert layer.weight_scale.shape == SCALES[options["recipe"]]
    assert_near(layer.dequantize(), source.weight)
    assert layer.dequantize(torch.half).dtype == torch.half
    for shape in ((7, K), (2, 3, K), (K,), (0, K), (2, 0, K)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = (torch.rand(shape) - 0.2).to(dtype)
            y = layer(x)
            assert (y.shape, y.dtype, y.requires_grad) == ((*shape[:-1], N), dtype, False)
            if x.numel():
                assert_near(y, F.linear(x.float(), source.weight, source.bias))
    x = torch.randn(K, 7).t()
    torch.testing.assert_close(layer(x), layer(x.contiguous()))


def test_no_features(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    for recipe in SCALES:
        empty = cutwheel.nn.ScaledLinear(0, 4, recipe=recipe)
        assert empty(torch.ones(3, 0)).tolist() == [[0.0] * 4] * 3
        assert cutwheel.nn.ScaledLinear(4, 0, recipe=recipe)(torch.ones(3, 4)).shape == (3, 0)


def test_hands_over_what_it_was_told(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x = torch.randn(3, K)
    for recipe, codes in (("tensorwise", (0, 0)), ("rowwise", (1, 1)), ("blockwise", (2, 3))):
        for fast in (True, False):
            layer = quantised(cutwheel, recipe=recipe, use_fast_accum=fast)
            cpu_ops.calls.clear()
            layer(x)
            assert cpu_ops.calls == [
                ("quantize", codes[0], E4M3, True),
                ("scaled_mm", codes, fast),
            ]


def test_new_layers_are_zero(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    for options in OPTIONS:
        layer = cutwheel.nn.ScaledLinear(K, N, **options, bias_dtype=torch.half)
        assert layer.bias.dtype == torch.half
        assert layer(torch.randn(3, K)).eq(0).all()
    assert cutwheel.nn.ScaledLinear(4, 3, bias=False).bias is None
    assert cutwheel.nn.ScaledLinear(4, 3, device="meta").weight.is_meta


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_16_bits(cutwheel: ModuleType, cpu_ops: CpuOps, dtype: torch.dtype) -> None:
    source = linear(dtype=dtype)
    layer = quantised(cutwheel, source)
    assert layer.bias.dtype == dtype
    x = torch.randn(3, K)
    for inner in (torch.float16, torch.bfloat16, torch.float32):
        y = layer(x.to(inner))
        assert y.dtype == inner
        assert_near(y, F.linear(x, source.weight.float(), source.bias.float()))


# ---- gradients
def test_gradients_are_refused(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    layer, x = quantised(cutwheel), torch.randn(3, K)
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    message = "ScaledLinear: input requires grad, .*straight_through=True"
    with pytest.raises(RuntimeError, match=message):
        layer(x.requires_grad_())
    with torch.no_grad():
        assert layer(x).shape == (3, N)
    layer.requires_grad_()
    with pytest.raises(RuntimeError, match="ScaledLinear: bias requires grad"):
        layer(x.detach())


@each_option
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_straight_through(
    cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any], dtype: torch.dtype
) -> None:
    layer = quantised(cutwheel, **options, straight_through=True)
    exact = torch.nn.Linear(K, N, dtype=torch.float64)
    with torch.no_grad():
        exact.weight.copy_(layer.dequantize())
        exact.bias.copy_(layer.bias)
    for shape in ((7, K), (2, 3, K), (K,), (0, K)):
        x = torch.randn(shape).to(dtype).requires_grad_()
        wide = x.detach().double().requires_grad_()
        y, expected = layer(x), exact(wide)
        grad = torch.randn_like(y)
        y.backward(grad)
        expected.backward(grad.double())
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        close = {"rtol": tolerance, "atol": tolerance, "check_dtype": False}
        torch.testing.assert_close(x.grad, wide.grad, **close)
        assert x.grad is not None
        assert x.grad.dtype == dtype
        torch.testing.assert_close(layer.bias.grad, exact.bias.grad, **close)
        assert layer.bias.grad.dtype == torch.float32
        layer.bias.grad = exact.bias.grad = None


def test_straight_through_of_a_part(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x = torch.randn(3, K, requires_grad=True)
    frozen = linear()
    frozen.requires_grad_(False)
    layer = quantised(cutwheel, frozen, straight_through=True)
    assert not layer.bias.requires_grad
    layer(x).sum().backward()
    assert x.grad is not None
    assert layer.bias.grad is None
    layer = quantised(cutwheel, straight_through=True)
    layer(x.detach()).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((N,), 3.0))
    assert not layer(x).detach().requires_grad
    without = quantised(cutwheel, linear(bias=False), straight_through=True)
    assert not without(x.detach()).requires_grad
    (grad,) = torch.autograd.grad(without(x).sum(), x)
    torch.testing.assert_close(grad, without.dequantize().sum(0).expand(3, K))


def test_straight_through_twice(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """The gradient is linear in that of the result, and differentiable as such."""
    layer = quantised(cutwheel, straight_through=True)
    x, v = torch.randn(3, K, requires_grad=True), torch.randn(3, N, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x), x, v, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), v)
    torch.testing.assert_close(second, layer.dequantize().sum(1).expand(3, N))


# ---- torch.compile
@each_option
def test_compiled(cutwheel: ModuleType, traced_on_cpu: CpuOps, options: dict[str, Any]) -> None:
    layer = quantised(cutwheel, **options)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for shape in ((5, K), (2, 3, K), (9, K), (0, K), (130, K)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), layer(x))


@each_option
def test_compiled_straight_through(
    cutwheel: ModuleType, traced_on_cpu: CpuOps, options: dict[str, Any]
) -> None:
    layer = quantised(cutwheel, **options, straight_through=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for shape in ((5, K), (7, K)):
        grads = []
        for call in (layer, compiled):
            x = torch.ones(shape, requires_grad=True)
            call(x).square().sum().backward()
            grads.append((x.grad, layer.bias.grad))
            layer.bias.grad = None
        torch.testing.assert_close(*grads)


# ---- autocast
@pytest.fixture
def cuda_layers(cutwheel: ModuleType) -> Iterator[Any]:
    with FakeTensorMode():
        yield lambda **options: cutwheel.nn.ScaledLinear(K, N, device="cuda", **options)
    torch.set_autocast_enabled("cuda", False)


def test_autocast_says_the_dtype_of_the_result(cuda_layers: Any) -> None:
    for options in OPTIONS:
        layer = cuda_layers(**options)
        for given in (torch.float32, torch.float16):
            x = torch.empty(3, K, dtype=given, device="cuda")
            assert layer(x).dtype == given
            # The context manager is off where there is no GPU.
            torch.set_autocast_enabled("cuda", True)
            for dtype in (torch.bfloat16, torch.float16):
                torch.set_autocast_dtype("cuda", dtype)
                assert layer(x).dtype == dtype
            torch.set_autocast_enabled("cuda", False)


# ---- conversions and state dicts
def frozen_state(layer: Any) -> dict[str, Any]:
    state: dict[str, Any] = layer.state_dict()
    return {key: value for key, value in state.items() if key != "bias"}


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for key, value in left.items():
        assert value.dtype == right[key].dtype, key
        assert torch.equal(value.float(), right[key].float()), key


@each_option
def test_conversions_change_the_bias_alone(
    cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any]
) -> None:
    layer = quantised(cutwheel, **options)
    before = copy.deepcopy(layer)
    x = torch.randn(3, K)
    for convert, dtype in (
        (lambda m: m.half(), torch.half),
        (lambda m: m.bfloat16(), torch.bfloat16),
        (lambda m: m.to(torch.float16), torch.half),
        (lambda m: m.to("cpu", torch.float32), torch.float32),
        (lambda m: m.type(torch.float64), torch.float64),
        (lambda m: m.float(), torch.float32),
    ):
        model = convert(torch.nn.Sequential(layer))
        assert model[0] is layer
        assert layer.bias.dtype == dtype
        assert_same(frozen_state(layer), frozen_state(before))
    assert_near(layer(x), before(x), 0.01)


@each_option
def test_moves(cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any]) -> None:
    layer = quantised(cutwheel, **options)
    dtypes = {key: value.dtype for key, value in layer.state_dict().items()}
    moved = copy.deepcopy(layer).to("meta", torch.half)
    state = moved.state_dict()
    assert all(value.is_meta for value in state.values())
    assert {key: v.dtype for key, v in state.items()} == {**dtypes, "bias": torch.half}
    moved = moved.to_empty(device="cpu")
    moved.load_state_dict(layer.float().state_dict(), assign=True)
    assert_same(moved.state_dict(), layer.state_dict())


@each_option
@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts(
    cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any], assign: bool
) -> None:
    layer = quantised(cutwheel, **options)
    keys = ["bias", "weight", "weight_scale"]
    assert list(layer.state_dict()) == keys + ["weight_sum"] * ("symmetric" in options)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    fresh = cutwheel.nn.ScaledLinear(K, N, **options)
    done = fresh.load_state_dict(torch.load(file), assign=assign)
    assert (done.missing_keys, done.unexpected_keys) == ([], [])
    assert_same(fresh.state_dict(), layer.state_dict())
    x = torch.randn(3, K)
    torch.testing.assert_close(fresh(x), layer(x))
    torch.testing.assert_close(copy.deepcopy(layer)(x), layer(x))
    with torch.device("meta"):
        empty = cutwheel.nn.ScaledLinear(K, N, **options)
    empty.load_state_dict(layer.state_dict(), assign=True)
    torch.testing.assert_close(empty(x), layer(x))


def test_scales_of_16_bits_are_widened(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    layer = quantised(cutwheel)
    state = {**layer.state_dict(), "weight_scale": layer.weight_scale.bfloat16()}
    for assign in (False, True):
        fresh = cutwheel.nn.ScaledLinear(K, N)
        fresh.load_state_dict(state, assign=assign)
        assert fresh.weight_scale.dtype == torch.float32
        assert state["weight_scale"].dtype == torch.bfloat16, "what was given is left as it was"


@pytest.mark.parametrize("assign", [False, True])
def test_scales_of_checkpoints(cutwheel: ModuleType, cpu_ops: CpuOps, assign: bool) -> None:
    """Without the dimensions of size 1, for every recipe of which the shape tells what is meant."""
    x = torch.randn(3, K)
    for recipe, shapes in (
        ("tensorwise", [(), (1,), (1, 1)]),
        ("rowwise", [(N,), (N, 1)]),
        ("blockwise", [(2, 3)]),
    ):
        layer = quantised(cutwheel, recipe=recipe)
        for shape in shapes:
            state = {**layer.state_dict(), "weight_scale": layer.weight_scale.reshape(shape)}
            fresh = cutwheel.nn.ScaledLinear(K, N, recipe=recipe)
            fresh.load_state_dict(state, assign=assign)
            assert fresh.weight_scale.shape == SCALES[recipe]
            assert state["weight_scale"].shape == shape, "what was given is left as it was"
            torch.testing.assert_close(fresh(x), layer(x), rtol=0, atol=0)
    for recipe, wrong in (("tensorwise", (N,)), ("rowwise", (1, N)), ("blockwise", (6,))):
        fresh = cutwheel.nn.ScaledLinear(K, N, recipe=recipe)
        state = {**fresh.state_dict(), "weight_scale": torch.ones(wrong)}
        with pytest.raises(RuntimeError, match="size mismatch for weight_scale"):
            fresh.load_state_dict(state, assign=assign)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_sums_that_a_checkpoint_lacks(
    cutwheel: ModuleType, cpu_ops: CpuOps, recipe: str, assign: bool, strict: bool
) -> None:
    source = linear()
    symmetric = quantised(cutwheel, source, recipe=recipe, dtype=INT8)
    wanted = quantised(cutwheel, source, recipe=recipe, dtype=INT8, symmetric=False)
    x = torch.rand(5, K)
    for begin in ("new", "used"):
        layer = cutwheel.nn.ScaledLinear(K, N, recipe=recipe, dtype=INT8, symmetric=False)
        if begin == "used":
            layer.load_state_dict(
                quantised(cutwheel, dtype=INT8, symmetric=False, recipe=recipe).state_dict()
            )
        model = torch.nn.Sequential(layer)
        state = torch.nn.Sequential(symmetric).state_dict()
        done = model.load_state_dict(state, strict=strict, assign=assign)
        assert (done.missing_keys, done.unexpected_keys) == ([], [])
        assert list(state) == ["0.bias", "0.weight", "0.weight_scale"], "left as it was"
        assert torch.equal(layer.weight_sum, wanted.weight_sum)
        torch.testing.assert_close(layer(x), wanted(x), rtol=0, atol=0)
    # Sums in a state dict are taken, and none are made without a weight.
    layer.load_state_dict({**wanted.state_dict(), "weight_sum": torch.ones_like(layer.weight_sum)})
    assert layer.weight_sum.eq(1).all()
    done = layer.load_state_dict({"bias": layer.bias}, strict=False)
    assert "weight_sum" in done.missing_keys


def test_wrong_state_dicts_are_refused(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    layer = cutwheel.nn.ScaledLinear(K, N)
    before = copy.deepcopy(layer.state_dict())
    wide = linear().state_dict()
    message = "weight has dtype float32; expected float8_e4m3fn: .*ScaledLinear.from_linear"
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=message) as raised:
            layer.load_state_dict(wide, strict=strict)
        assert "Missing key" not in str(raised.value) or "weight_scale" in str(raised.value)
    assert_same(frozen_state(layer), {k: v for k, v in before.items() if k != "bias"})
    with pytest.raises(RuntimeError, match=r"0\.weight has dtype int8"):
        torch.nn.Sequential(layer).load_state_dict(
            torch.nn.Sequential(quantised(cutwheel, dtype=INT8)).state_dict()
        )
    with pytest.raises(RuntimeError, match="size mismatch for weight_scale"):
        layer.load_state_dict(quantised(cutwheel, recipe="blockwise").state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*weight_scale"):
        layer.load_state_dict({"weight": layer.weight, "bias": layer.bias})


# ---- options and errors
def test_readable(cutwheel: ModuleType) -> None:
    layer = cutwheel.nn.ScaledLinear
    assert repr(layer(4, 3)) == (
        "ScaledLinear(in_features=4, out_features=3, bias=True, recipe='rowwise', "
        "dtype=float8_e4m3fn)"
    )
    options = {"symmetric": False, "use_fast_accum": False, "straight_through": True}
    assert repr(layer(4, 3, False, "tensorwise", INT8, **options)) == (
        "ScaledLinear(in_features=4, out_features=3, bias=False, recipe='tensorwise', dtype=int8, "
        "symmetric=False, use_fast_accum=False, straight_through=True)"
    )


BAD_OPTIONS = [
    ({"recipe": "blockwise_1x128"}, ValueError, "recipe is 'blockwise_1x128'; expected one of"),
    ({"dtype": torch.float16}, TypeError, "dtype is torch.float16; expected float8_e4m3fn or int8"),
    ({"dtype": E5M2}, TypeError, "dtype is torch.float8_e5m2; expected"),
    ({"recipe": "blockwise", "dtype": INT8}, ValueError, "'blockwise' with dtype int8"),
    ({"symmetric": False}, ValueError, "symmetric is False with dtype float8_e4m3fn"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS, ids=str)
def test_options_are_checked(
    cutwheel: ModuleType, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"ScaledLinear: .*{message}"):
        cutwheel.nn.ScaledLinear(4, 3, **options)
    with pytest.raises(error, match=f"ScaledLinear: .*{message}"):
        quantised(cutwheel, **options)


def test_sources_are_checked(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    with pytest.raises(TypeError, match=r"linear is of type Conv1d; expected a torch\.nn\.Linear"):
        quantised(cutwheel, torch.nn.Conv1d(3, 3, 1))
    with pytest.raises(ValueError, match="linear has the activation 'gelu'"):
        quantised(cutwheel, cutwheel.nn.Linear(4, 3, activation="gelu"))
    layer = quantised(cutwheel, cutwheel.nn.Linear(4, 3).eval())
    assert not layer.training


@pytest.mark.gpu
def test_a_source_in_float64_is_refused(cutwheel: ModuleType, device: str) -> None:
    with pytest.raises(TypeError, match="x has dtype float64"):
        quantised(cutwheel, torch.nn.Linear(4, 3, device=device, dtype=torch.float64))


class Adapted(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


class Named(torch.nn.Linear):
    """Does what torch's does."""


def test_sources_lose_nothing(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    with pytest.raises(TypeError, match="linear is a Adapted, whose forward is not that of torch"):
        quantised(cutwheel, Adapted(K, N))
    for kind in ("forward", "forward_pre", "full_backward", "full_backward_pre"):
        hooked = linear()
        handle = getattr(hooked, f"register_{kind}_hook")(lambda *given: None)
        with pytest.raises(ValueError, match="ScaledLinear: linear has hooks, which would be lost"):
            quantised(cutwheel, hooked)
        handle.remove()
        quantised(cutwheel, hooked)
    replaced = linear()
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="linear has a forward set on the object"):
        quantised(cutwheel, replaced)
    x = torch.randn(3, K)
    for source in (
        Named(K, N),
        torch.nn.utils.parametrizations.weight_norm(linear()),  # as it is now
        cutwheel.nn.Linear(K, N),
    ):
        assert_near(quantised(cutwheel, source)(x), F.linear(x, source.weight, source.bias))


def test_the_bias_is_a_copy(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    source = linear()
    layer = quantised(cutwheel, source)
    with torch.no_grad():
        source.bias.zero_()
    assert layer.bias.abs().sum() > 0


def test_inputs_are_checked(cutwheel: ModuleType) -> None:
    layer = cutwheel.nn.ScaledLinear(4, 3)
    for shape in ((2, 3), ()):
        with pytest.raises(ValueError, match=r"input has shape .*; expected \[\.\.\., 4\]"):
            layer(torch.ones(shape))
    with pytest.raises(TypeError, match="ScaledLinear: input has dtype float64"):
        layer(torch.ones(2, 4).double())
    with pytest.raises(TypeError, match="ScaledLinear: input is None; expected a Tensor"):
        layer(None)
    with pytest.raises(ValueError, match="input is on meta and weight is on cpu"):
        layer(torch.ones(2, 4, device="meta"))
