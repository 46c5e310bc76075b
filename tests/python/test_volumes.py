"""Convolutions with taps along the depth, and transposed ones: arguments, gradients, tracing."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_conv import channels_last_strides
from cpu_reference import CpuOps
from torch._subclasses.fake_tensor import FakeTensorMode

SEED = 31
Tensor = torch.Tensor


@pytest.fixture
def kernels(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    """Volumes on the CPU go to the reference kernels."""
    from cutwheel.ops.conv import _volume

    why = _volume.why_not_encodable
    monkeypatch.setattr(_volume, "why_torch", lambda x, weight, groups, where: why(weight, where))
    return cpu_ops


def leaf(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(size, dtype=dtype).requires_grad_()


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    """In the norm: both are rounded to bfloat16, some in between."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    difference, norm = (ours.double() - theirs.double()).norm(), theirs.double().norm()
    assert difference <= 2e-2 * norm, f"{difference} of {norm}"


def drawn(count: int) -> list[tuple[Any, ...]]:
    """(input, weight, stride, padding as pairs, dilation)"""
    rng, found = random.Random(SEED), []
    print(f"seed {SEED}")
    while len(found) < count:
        taps = [rng.choice((1, 2, 3)) for _ in range(3)]
        steps = [rng.choice((1, 1, 2)) for _ in range(3)]
        spacing = [rng.choice((1, 1, 2)) for _ in range(3)]
        sides = [rng.choice(((0, 0), (1, 1), (2, 0), (0, 1))) for _ in range(3)]
        size = [rng.choice((1, 3, 4, 5)) for _ in range(3)]
        spans = [d * (t - 1) + 1 for d, t in zip(spacing, taps, strict=True)]
        if any(e + sum(p) < s for e, p, s in zip(size, sides, spans, strict=True)):
            continue
        n, c, ko = rng.choice((0, 1, 2)), rng.choice((1, 3, 8)), rng.choice((1, 4, 5))
        found.append(((n, c, *size), (ko, c, *taps), steps, sides, spacing))
    return found


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, where: tuple[Any, ...]) -> Tensor:
    steps, sides, spacing = where
    pads = [side for both in reversed(sides) for side in both]
    return F.conv3d(F.pad(x, pads), weight, bias, steps, 0, spacing)


def test_volumes_with_gradients(cutwheel: ModuleType, kernels: CpuOps) -> None:
    torch.manual_seed(SEED)
    for number, (x_size, w_size, *where) in enumerate(drawn(30)):
        given = [leaf(*x_size), leaf(*w_size), leaf(w_size[0])]
        theirs = by_torch(*given, tuple(where))
        activation = ("relu", None, "silu")[number % 3]
        residual = leaf(*theirs.shape)
        kernels.calls.clear()
        ours = cutwheel.conv3d(*given, *where, activation=activation, residual=residual)
        ((name, epilogue),) = kernels.calls
        assert name.endswith("_aux") == (activation == "silu")
        assert epilogue == "bias_residual" + {"silu": "_silu_aux", "relu": "_relu"}.get(
            str(activation), ""
        )
        z = theirs + residual
        theirs = z if activation is None else getattr(F, activation)(z)
        assert_near(ours, theirs)
        assert ours.stride() == channels_last_strides(ours.shape)
        if activation == "relu":
            continue  # its mask is that of the rounded result
        grad = torch.randn_like(theirs)
        every = [*given, residual]
        for one, other in zip(
            *(torch.autograd.grad(y, every, grad) for y in (ours, theirs)), strict=True
        ):
            assert_near(one, other)


def test_which_op_it_is(cutwheel: ModuleType, kernels: CpuOps) -> None:
    """Taps along the depth alone, and none there, are convolutions of images."""
    x = leaf(1, 4, 5, 6, 7).detach()
    for taps, padding, op in (
        ((3, 3, 3), 1, "conv3d"),
        ((3, 3, 3), ((2, 0), 1, 1), "conv3d"),
        ((3, 3, 3), "same", "conv3d"),
        ((3, 1, 1), ((2, 0), 0, 0), "conv2d"),
        ((1, 3, 3), (0, 1, 1), "conv2d"),
        ((1, 3, 3), ((0, 0), (1, 0), 1), "conv2d"),
        ((1, 1, 1), 0, "conv2d"),
        ((1, 1, 1), (1, 0, 0), "conv2d"),
        ((1, 3, 3), (1, 1, 1), "conv3d"),
    ):
        kernels.calls.clear()
        weight = leaf(3, 4, *taps).detach()
        ours = cutwheel.conv3d(x, weight, padding=padding)
        assert kernels.calls[0][0] == op, (taps, padding)
        pads = (1, 1, 1) if padding in (1, "same") else (0, 0, 0) if padding == 0 else padding
        both = [(pad, pad) if isinstance(pad, int) else pad for pad in pads]
        assert_near(ours, by_torch(x, weight, None, ((1, 1, 1), both, (1, 1, 1))))


def test_pairs_of_padding(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x, weight = leaf(2, 3, 9).detach(), leaf(4, 3, 3).detach()
    causal = cutwheel.conv1d(x, weight, padding=((2, 0),))
    assert_near(causal, F.conv1d(F.pad(x, (2, 0)), weight))
    image, filters = leaf(2, 3, 5, 6).detach(), leaf(4, 3, 3, 3).detach()
    mixed = cutwheel.conv2d(image, filters, padding=((2, 0), 1))
    assert_near(mixed, F.conv2d(F.pad(image, (1, 1, 2, 0)), filters))
    grouped = cutwheel.conv2d(leaf(2, 6, 5, 6).detach(), filters, padding=((2, 0), 1), groups=2)
    assert grouped.shape == (2, 4, 5, 6)
    for wrong in (((1, 2, 3), 1), ((1, 1), 1, 1), (1, (2,))):
        with pytest.raises(cutwheel.errors.ArgumentError, match="for each of 2 dimensions"):
            cutwheel.conv2d(image, filters, padding=wrong)


def test_second_gradients(cutwheel: ModuleType, kernels: CpuOps) -> None:
    torch.manual_seed(SEED)
    where = {"stride": (1, 2, 1), "padding": ((2, 0), 1, 1)}
    x, weight = leaf(1, 2, 3, 4, 4, dtype=torch.float32), leaf(3, 2, 3, 3, 3, dtype=torch.float32)

    def double(run: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(run(x, weight).square().sum(), (x, weight), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), (x, weight))

    ours = double(lambda x, weight: cutwheel.conv3d(x, weight, **where))
    sides = ((2, 0), (1, 1), (1, 1))
    theirs = double(lambda x, w: by_torch(x, w, None, (where["stride"], sides, (1, 1, 1))))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)


TRANSPOSED: tuple[tuple[Any, ...], ...] = (
    # dims, taps, stride, padding, output_padding, dilation
    (2, 2, 2, 0, 0, 1),
    (2, 3, 2, 1, 1, 1),
    (2, 4, 2, 1, 0, 1),
    (2, (3, 2), (1, 3), (0, 1), (0, 2), (2, 1)),
    (2, 2, 3, 0, 1, 1),
    (2, 1, 1, 0, 0, 1),
    (1, 4, 2, 1, 1, 1),
    (3, 3, 2, 1, 1, 1),
    (3, (1, 2, 2), (1, 2, 2), 0, 0, 1),
    (3, (3, 1, 2), (2, 1, 1), (1, 0, 0), (1, 0, 0), 1),
)


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_transposed(cutwheel: ModuleType, kernels: CpuOps, case: tuple[Any, ...]) -> None:
    torch.manual_seed(SEED)
    dims, taps, *where = case
    stride, padding, more, dilation = where
    name = f"conv_transpose{dims}d"
    size = (3, 4, 5)[-dims:]
    filters = (taps,) * dims if isinstance(taps, int) else taps
    for images, has_bias in ((2, True), (1, False)):
        x, weight = leaf(images, 6, *size), leaf(6, 4, *filters)
        bias = leaf(4) if has_bias else None
        positional = (x, weight, bias, stride, padding, more, 1, dilation)
        z = getattr(F, name)(*positional)
        residual = leaf(*z.shape)
        for activation, added, is_last in (
            (None, None, False),
            ("relu", None, False),
            ("relu", residual, True),
            ("silu", residual, False),
            (None, residual, False),
        ):
            how = {"activation": activation, "residual_after_activation": is_last}
            ours = getattr(cutwheel, name)(*positional, residual=added, **how)
            act = getattr(F, activation) if activation else lambda value: value
            theirs = (
                act(z) + added
                if added is not None and is_last
                else act(z if added is None else z + added)
            )
            assert_near(ours, theirs)
            assert ours.stride() == channels_last_strides(ours.shape)
            if activation == "relu":
                continue
            every = [tensor for tensor in (x, weight, bias, added) if tensor is not None]
            grad = torch.randn_like(theirs)
            for one, other in zip(
                torch.autograd.grad(ours, every, grad),
                torch.autograd.grad(theirs, every, grad, retain_graph=True),
                strict=True,
            ):
                assert_near(one, other)
        assert_near(
            getattr(cutwheel, name)(x[0], *positional[1:]), getattr(F, name)(*positional)[0]
        )


def test_what_is_in_the_kernel(cutwheel: ModuleType, kernels: CpuOps) -> None:
    x, weight, bias = (leaf(*s).detach() for s in ((1, 6, 4, 5), (6, 4, 2, 2), (4,)))
    residual = leaf(1, 4, 8, 10).detach()
    for given, options, epilogue in (
        ((x, weight), {}, "plain"),
        ((x, weight, bias), {}, "bias"),
        ((x, weight, bias), {"activation": "relu"}, "bias_relu"),
        ((x, weight), {"activation": "relu"}, "bias_relu"),
        ((x, weight, bias), {"activation": "gelu"}, "bias"),
        ((x, weight, bias), {"activation": "relu", "residual": residual}, "bias"),
        (
            (x, weight, bias),
            {"activation": "relu", "residual": residual, "residual_after_activation": True},
            "bias_relu",
        ),
    ):
        kernels.calls.clear()
        cutwheel.conv_transpose2d(*given, stride=2, **options)
        assert kernels.calls == [("conv_transpose2d", epilogue)]


def test_what_torch_computes(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    x, weight = leaf(1, 4, 4, 5, 6).detach(), leaf(6, 4, 3, 3, 3).detach()
    ours = cutwheel.conv3d(x, weight, padding=((2, 0), 1, 1), activation="relu")
    assert not cpu_ops.calls, "volumes on the CPU are torch's"
    assert_near(ours, torch.relu(F.conv3d(F.pad(x, (0, 0, 0, 0, 2, 0)), weight, padding=(0, 1, 1))))
    found = cutwheel.explain("conv3d", x, weight)
    assert found.parameters["served_by"] == "torch.nn.functional.conv3d"
    assert found.parameters["because"] == "the tensors are on the CPU"
    volume, filters = x.to("meta"), weight.to("meta")
    for change, because in (
        ({"groups": 2}, "groups is 2"),
        ({"stride": (4, 4, 2)}, "product is at most 16"),
        ({"padding": 16}, "padding up to 15"),
        ({"dilation": (9, 1, 1), "padding": (9, 1, 1)}, "pixels apart"),
    ):
        given = filters[:, :2] if "groups" in change else filters
        found = cutwheel.explain("conv3d", volume, given, **change)
        assert because in found.parameters["because"]
    y, grouped = leaf(1, 6, 4, 5).detach(), leaf(6, 2, 2, 2).detach()
    theirs = F.conv_transpose2d(y, grouped, None, 2, 0, 0, 2)
    assert_near(cutwheel.conv_transpose2d(y, grouped, None, 2, 0, 0, 2), theirs)
    wide = (y, leaf(6, 2, 3, 3).detach(), None, 1, 1, 1, 1, 2)  # output_padding of the stride
    assert_near(cutwheel.conv_transpose2d(*wide), F.conv_transpose2d(*wide))


def test_errors(cutwheel: ModuleType, kernels: CpuOps) -> None:
    errors = cutwheel.errors
    x, weight = leaf(1, 6, 4, 5).detach(), leaf(6, 2, 2, 2).detach()
    transposed = cutwheel.conv_transpose2d
    for call, kind, text in (
        (
            lambda: transposed(x[:, :5], weight),
            errors.ShapeError,
            r"expected a weight \[5, Ko, R, S\]",
        ),
        (lambda: transposed(x, weight[0]), errors.ShapeError, "weight has 3 dimensions"),
        (lambda: transposed(x[0, 0], weight), errors.ShapeError, "input has 2 dimensions"),
        (lambda: transposed(x, weight, stride=0), errors.ArgumentError, "integers from 1 on"),
        (lambda: transposed(x, weight, padding=-1), errors.ArgumentError, "integers from 0 on"),
        (
            lambda: transposed(x, weight, stride=2, output_padding=2),
            errors.ArgumentError,
            "expected less than the stride",
        ),
        (lambda: transposed(x, weight, activation="no"), ValueError, "activation"),
        (lambda: cutwheel.conv3d(x, weight), errors.ShapeError, "weight has 4 dimensions"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_fake_tensors(cutwheel: ModuleType) -> None:
    def make(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.bfloat16, device="cuda")

    with FakeTensorMode():
        y = cutwheel.conv3d(make(2, 8, 5, 6, 7), make(4, 8, 3, 3, 3), make(4), (2, 1, 2), 1)
        assert y.shape == (2, 4, 3, 6, 4)
        assert y.stride() == channels_last_strides(y.shape)
        z = cutwheel.conv_transpose3d(make(2, 8, 5, 6, 7), make(8, 4, 4, 4, 4), None, 2, 1)
        assert z.shape == (2, 4, 10, 12, 14)
        assert z.stride() == channels_last_strides(z.shape)
    x, weight = (
        torch.empty(s, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for s in ((2, 8, 5, 6, 7), (4, 8, 3, 3, 3))
    )
    for grad, tensor in zip(
        torch.autograd.grad(cutwheel.conv3d(x, weight, padding=1).sum(), (x, weight)),
        (x, weight),
        strict=True,
    ):
        assert grad.shape == tensor.shape
        assert grad.stride() == channels_last_strides(tensor.shape)


def test_opcheck(cutwheel: ModuleType, kernels: CpuOps, traced_on_cpu: CpuOps) -> None:
    ops = torch.ops.cutwheel
    x, weight, bias = (torch.randn(s) for s in ((2, 3, 4, 5, 4), (6, 3, 2, 3, 3), (6,)))
    image = [torch.randn(s) for s in ((2, 6, 4, 5), (6, 3, 2, 2), (3,))]
    where = (1, 2, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1)
    y = ops.conv3d(x, weight, bias, *where, True)
    checks = ("test_schema", "test_faketensor")
    for op, given in (
        (ops.conv3d, (x, weight, bias, *where, True)),
        (ops.conv3d_fused, (x, weight, bias, y, *where, "bias_residual_relu", True)),
        (ops.conv3d_fused_aux, (x, weight, bias, y, *where, "bias_residual_silu_aux", True)),
        (ops.conv3d_input_grad, (y, weight, *x.shape[2:], *where, True)),
        (ops.conv3d_weight_grad, (y, x, *weight.shape[2:], *where, True)),
        (ops.conv_transpose3d, (y, weight, None, *x.shape[2:], *where, "bias_relu", True)),
        (
            ops.conv_transpose2d,
            (*image, 8, 10, 2, 2, 0, 0, 0, 0, 1, 1, "bias", True),
        ),
    ):
        torch.library.opcheck(op.default, given, test_utils=checks)


def test_modules(cutwheel: ModuleType, kernels: CpuOps) -> None:
    torch.manual_seed(SEED)
    volume, image = leaf(1, 4, 3, 4, 5).detach(), leaf(1, 4, 5, 6).detach()
    causal = cutwheel.nn.Conv3d(4, 6, 3, padding=((2, 0), 1, 1), dtype=torch.bfloat16)
    where = ((1, 1, 1), ((2, 0), (1, 1), (1, 1)), (1, 1, 1))
    assert_near(causal(volume), by_torch(volume, causal.weight, causal.bias, where))
    plain = torch.nn.ConvTranspose2d(4, 6, 4, 2, 1, dtype=torch.bfloat16)
    layer = cutwheel.nn.ConvTranspose2d.from_conv(plain, "relu")
    assert layer.weight is plain.weight
    assert "activation='relu'" in repr(layer)
    assert_near(layer(image), torch.relu(plain(image)))
    odd = cutwheel.nn.ConvTranspose2d(4, 6, 3, 2, 1, dtype=torch.bfloat16)
    assert odd(image, output_size=[10, 12]).shape == (1, 6, 10, 12)
    deep = torch.nn.Conv3d(4, 6, 3, padding=1, dtype=torch.bfloat16, padding_mode="replicate")
    assert_near(cutwheel.nn.Conv3d.from_conv(deep)(volume), deep(volume))
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.ConvTranspose2d"):
        cutwheel.nn.ConvTranspose2d.from_conv(deep)
    with pytest.raises(ValueError, match="activation"):
        cutwheel.nn.Conv3d(4, 6, 3, activation="no")
