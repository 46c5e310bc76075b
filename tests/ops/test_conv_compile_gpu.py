"""Convolutions in torch.compile, and as modules."""

from __future__ import annotations

import copy
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch
from conv_gradients import STRIDED, leaves
from conv_layouts import assert_channels_last, laid
from conv_reference import Geometry, fprop
from fused_cases import activate, assert_near, values
from gemm_cases import BRAIN, HALF, SINGLE, dtype_id
from runtime import capture
from torch.nn import functional

pytestmark = pytest.mark.gpu


# ---- compilers
@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("dtype", [BRAIN, SINGLE], ids=dtype_id)
def test_compile_fullgraph_forward_and_backward(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    def model(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any) -> torch.Tensor:
        y = cutwheel.conv2d(x, w1, b1, 2, 1, activation="relu")  # [2, 24, 5, 5]
        how = {"activation": "silu", "residual": y, "residual_after_activation": True}
        z = cutwheel.conv2d(y, w2, b2, padding="same", **how)
        z = cutwheel.conv2d(z, w2, b2, padding="same", activation="relu", residual=y) + z
        return cutwheel.conv2d(z, w3)

    def exact_model(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any) -> torch.Tensor:
        conv = functional.conv2d
        y = torch.relu(conv(x, w1, b1, 2, 1))
        z = functional.silu(conv(y, w2, b2, padding=1)) + y
        z = torch.relu(conv(z, w2, b2, padding=1) + y) + z
        return conv(z, w3)

    shapes = ((2, 16, 9, 10), (24, 16, 3, 3), (24,), (24, 24, 3, 3), (24,), (8, 24, 1, 1))
    scales = (1.0, 1 / 8, 1.0, 1 / 16, 1.0, 1 / 4)
    given = [
        (scale * values(shape, dtype, device)).requires_grad_()
        for shape, scale in zip(shapes, scales, strict=True)
    ]
    exact = [x.detach().double().requires_grad_() for x in given]
    backend = "inductor" if device != "cpu" and dtype == BRAIN else "aot_eager"
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = compiled(*given)
        grads = torch.autograd.grad(result.square().mean(), given)
    assert_channels_last(result)
    expected = exact_model(*exact)
    assert_near(result, expected, BRAIN)
    wanted = torch.autograd.grad(expected.square().mean(), exact)
    for got, want in zip(grads, wanted, strict=True):
        assert_near(got, want, BRAIN)
    with torch.no_grad():
        detached = [x.detach() for x in given]
        assert_near(compiled(*detached), expected, BRAIN)


@pytest.mark.no_dispatch_mode
def test_compile_of_other_sizes(cutwheel: ModuleType, device: str) -> None:
    """Images of any size in one graph."""

    def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return cutwheel.conv2d(x, weight, stride=2, padding=1, activation="relu")

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    weight = (values((24, 16, 3, 3), BRAIN, device) / 8).requires_grad_()
    for n, h, w in ((2, 9, 10), (3, 12, 7), (5, 33, 20)):
        x = values((n, 16, h, w), BRAIN, device).requires_grad_()
        grads = torch.autograd.grad(compiled(x, weight).sum(), (x, weight))
        exact = [t.detach().double().requires_grad_() for t in (x, weight)]
        expected = torch.relu(functional.conv2d(*exact, None, 2, 1)).sum()
        for got, want in zip(grads, torch.autograd.grad(expected, exact), strict=True):
            assert_near(got, want, BRAIN)


@pytest.mark.no_dispatch_mode
def test_opcheck(cutwheel: ModuleType, device: str) -> None:
    ops, check = torch.ops.cutwheel, torch.library.opcheck
    x, weight, bias, residual = (
        None if t is None else t.detach() for t in leaves(STRIDED, HALF, device, place="before")
    )
    assert x is not None
    assert weight is not None
    where = STRIDED[2].numbers
    check(ops.conv2d.default, (x, weight, None, *where))
    check(ops.conv2d.default, (laid(x, "channels_last"), weight, bias, *where))
    check(ops.conv2d_fused.default, (x, weight, bias, None, *where, "bias_relu"))
    check(ops.conv2d_fused.default, (x, weight, bias, residual, *where, "bias_residual_relu"))
    dy = residual
    check(ops.conv2d_input_grad.default, (dy, weight, *x.shape[2:], *where))
    check(ops.conv2d_weight_grad.default, (dy, x, *weight.shape[2:], *where))
    single = (x.float(), weight.float(), None, *where, True)
    check(ops.conv2d.default, single)
    one = values((8, 16, 1, 1), HALF, device)
    check(ops.conv2d.default, (x, one, None, *Geometry().numbers))


# ---- modules
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False, "stride": 2, "padding": 1},
        {"padding": "same", "dilation": 2},
        {"groups": 4, "padding": 1},
        {"padding": 1, "padding_mode": "reflect"},
    ],
    ids=str,
)
def test_module_has_torchs_state(
    cutwheel: ModuleType, device: str, options: dict[str, Any]
) -> None:
    """A state dict goes both ways, and the two train alike."""
    theirs = torch.nn.Conv2d(16, 24, 3, **options).to(device, torch.float64)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(values(parameter.shape, SINGLE, device) / 8)
    ours = cutwheel.nn.Conv2d(16, 24, 3, **options, device=device)
    state = ours.state_dict()
    assert {k: v.shape for k, v in state.items()} == {
        k: v.shape for k, v in theirs.state_dict().items()
    }
    ours.load_state_dict(theirs.state_dict())
    back = copy.deepcopy(theirs)
    back.load_state_dict(ours.state_dict())
    assert torch.equal(back.weight, theirs.weight)
    optimizers = [torch.optim.SGD(module.parameters(), 0.01) for module in (ours, theirs)]
    for _ in range(3):
        x = values((2, 16, 9, 8), SINGLE, device)
        for module, optimizer, images in zip(
            (ours, theirs), optimizers, (x, x.double()), strict=True
        ):
            optimizer.zero_grad()
            module(images).square().mean().backward()
            optimizer.step()
    for got, want in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert_near(got.detach(), want.detach(), SINGLE)


def test_module_with_an_activation_and_a_residual(cutwheel: ModuleType, device: str) -> None:
    for activation, is_last in (("relu", False), ("silu", True)):
        module = cutwheel.nn.Conv2d(
            16,
            16,
            3,
            padding=1,
            activation=activation,
            residual_after_activation=is_last,
            device=device,
            dtype=BRAIN,
        )
        x = values((2, 16, 9, 8), BRAIN, device)
        exact = fprop(x.double(), module.weight.double(), Geometry((1, 1), (1, 1, 1, 1)))
        z = exact + module.bias.double().view(-1, 1, 1)
        y = activate(activation, z) + x if is_last else activate(activation, z + x)
        assert_near(module(x, x).detach(), y.detach(), BRAIN)
        assert_near(module(x).detach(), activate(activation, z).detach(), BRAIN)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("dtype", [BRAIN, SINGLE], ids=dtype_id)
def test_module_reads_its_weight_however_it_lies(
    cutwheel: ModuleType, device: str, dtype: torch.dtype
) -> None:
    """Contiguous or channels last: one result, forward and backward, also in a CUDA graph."""
    module = cutwheel.nn.Conv2d(16, 24, 3, padding=1, activation="relu", device=device, dtype=dtype)
    last = copy.deepcopy(module).to(memory_format=torch.channels_last)
    assert module.weight.is_contiguous()
    assert last.weight.is_contiguous(memory_format=torch.channels_last)
    x = values((2, 16, 9, 8), dtype, device)
    found = []
    for each in (module, last):
        y = each(x)
        y.square().sum().backward()
        assert each.weight.grad.stride() == each.weight.stride()
        found.append((y.detach(), each.weight.grad, each.bias.grad))
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)
    if device == "cpu":
        return
    with torch.no_grad():
        for each in (module, last):
            graph, result = capture(lambda: each(x))  # noqa: B023
            each.weight.data.copy_(values(each.weight.shape, dtype, device) / 8)
            result.fill_(float("nan"))
            graph.replay()
            exact = fprop(x.double(), each.weight.double(), Geometry((1, 1), (1, 1, 1, 1)))
            wanted = (exact + each.bias.double().view(-1, 1, 1)).relu()
            assert_near(result, wanted, dtype)


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("has_own_layers", [False, True])
def test_nothing_copies_images_between_layers(
    cutwheel: ModuleType, device: str, has_own_layers: bool
) -> None:
    """Inductor writes what a group norm computes as the next convolution reads it."""
    layer = cutwheel.nn.Conv2d if has_own_layers else torch.nn.Conv2d
    model = torch.nn.Sequential(
        layer(64, 128, 3, padding=1),
        torch.nn.GroupNorm(32, 128),
        torch.nn.SiLU(),
        layer(128, 64, 3, padding=1),
    )
    model = model.to(device, BRAIN, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    x = values((2, 64, 32, 32), BRAIN, device).contiguous(memory_format=torch.channels_last)
    options = None if has_own_layers else cutwheel.inductor_options(only_faster=False)
    compiled = torch.compile(model, options=options)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(x.double())
        assert_near(compiled(x), expected, BRAIN)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            compiled(x)
            torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    assert sum(name.startswith("conv2d_") for name in names) == 2, names
    assert not [name for name in names if "elementwise_kernel" in name], names
