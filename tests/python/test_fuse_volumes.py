"""cutwheel.fuse: convolutions of volumes, transposed ones, and zeros around the input."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps
from fusion_models import C, Net, conv, fused, images, norm, parts, same

Tensor = torch.Tensor
CONTIGUOUS = torch.contiguous_format
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""by the number of dimensions"""


@pytest.fixture
def kernels(cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch) -> CpuOps:
    """Volumes of float32 on the CPU go to the reference kernels: results can be compared closely,
    and there are no others without a GPU."""
    from cutwheel.fusion import layers
    from cutwheel.ops.conv import _volume

    why, of_layer = _volume.why_not_encodable, layers._why_not_convolved
    monkeypatch.setattr(_volume, "why_torch", lambda x, weight, groups, where: why(weight, where))
    monkeypatch.setattr(layers, "_why_not_convolved", lambda layer, *_: of_layer(layer, None, True))
    return cpu_ops


def layer(kind: str, *given: Any, **options: Any) -> torch.nn.Module:
    made: torch.nn.Module = getattr(torch.nn, kind)(C, C, *given, **options)
    return made


def norm_of(dims: int) -> torch.nn.Module:
    made: Any = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)[dims - 1](C)
    for tensor in (made.running_mean, made.weight, made.bias):
        torch.nn.init.normal_(tensor)
    torch.nn.init.uniform_(made.running_var, 0.5, 2.0)
    return made.eval()  # type: ignore[no-any-return]


def inputs(dims: int, size: int = 5) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(2, C, *(size + i for i in range(dims))) for _ in range(2))  # type: ignore[return-value]


def in_format(x: Tensor, is_last: bool) -> Tensor:
    return x.contiguous(memory_format=LAST.get(x.dim(), CONTIGUOUS) if is_last else CONTIGUOUS)


def in_all_formats(model: torch.nn.Module, *given: Tensor) -> Any:
    """Weights and arguments, each contiguous and channels last."""
    for of_weights, *of_args in itertools.product((False, True), repeat=1 + len(given)):
        formatted = copy.deepcopy(model)
        for parameter in formatted.parameters():
            parameter.data = in_format(parameter.data, of_weights)
        yield formatted, [in_format(x, last) for x, last in zip(given, of_args, strict=True)]


TRANSPOSED: dict[str, tuple[Callable[..., Any], str, str]] = {
    "bias": (lambda m, x, r: m.a(x).exp(), "bias", "bias"),
    "relu": (lambda m, x, r: F.relu(m.a(x)), "bias + relu", "bias_relu"),
    "norm": (lambda m, x, r: m.b(m.a(x)), "bias + batch norm", "bias"),
    "both": (lambda m, x, r: m.relu_(m.b(m.a(x))), "bias + batch norm + relu", "bias_relu"),
    "silu": (lambda m, x, r: F.silu(m.b(m.a(x))), "bias + batch norm", "bias"),
    "sum": (lambda m, x, r: F.relu(m.b(m.a(x)) + 1), "bias + batch norm", "bias"),
}


@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed(cutwheel: ModuleType, kernels: CpuOps, dims: int, name: str) -> None:
    function, expected, _ = TRANSPOSED[name]
    kind = f"ConvTranspose{dims}d"
    options: dict[str, Any] = {"stride": 2, "padding": 1, "output_padding": 1}
    for bias in (True, False):
        a = layer(kind, 3, bias=bias, **options)
        model = Net(function, a=a, b=norm_of(dims))
        if not bias and name == "bias":
            continue
        for given, args in in_all_formats(model, *inputs(dims)):
            made = fused(cutwheel, given, *args)
            text = expected if bias else expected.removeprefix("bias + ")
            assert parts(made) == [f"transposed conv + {text}"]
            assert type(made.a) is getattr(cutwheel.nn, kind)
            assert made.a.weight.movedim(1, -1).is_contiguous(), "no copy in each call"
        x = inputs(dims)[0][0]  # without a batch; batch norms refuse that
        if name in ("bias", "relu"):
            fused(cutwheel, model, x, x)


def test_transposed_epilogues(cutwheel: ModuleType, kernels: CpuOps) -> None:
    """In 16 bits, of which there are kernels with a bias."""
    for name, (function, _, epilogue) in TRANSPOSED.items():
        model = Net(function, a=layer("ConvTranspose2d", 2, stride=2), b=norm_of(2)).bfloat16()
        made = cutwheel.fuse(model)
        kernels.calls.clear()
        with torch.no_grad():
            made(*(x.bfloat16() for x in images()))
        assert kernels.names("conv_transpose2d") == [epilogue], name


def test_transposed_with_an_output_size(cutwheel: ModuleType, kernels: CpuOps) -> None:
    a = layer("ConvTranspose2d", 3, stride=2)
    made = cutwheel.fuse(Net(lambda m, x, r: m.relu(m.a(x, output_size=[12, 12])), a=a))
    (kept,) = made.fusion_report.kept
    assert kept.reason == "it is not called with one argument"


VOLUMES: dict[str, tuple[Callable[..., Any], str]] = {
    "bias": (lambda m, x, r: m.a(x).exp(), "conv + bias"),
    "norm": (lambda m, x, r: F.silu(m.b(m.a(x))), "conv + bias + batch norm + silu"),
    "sum": (lambda m, x, r: r + m.a(x), "conv + bias + residual"),
    "sum in place": (
        lambda m, x, r: F.relu(operator.iadd(m.b(m.a(x)), r)),
        "conv + bias + batch norm + residual + relu",
    ),
    "sum last": (lambda m, x, r: F.relu(m.a(x)) + r, "conv + bias + relu + residual"),
    "pool": (lambda m, x, r: F.max_pool3d(F.relu(m.a(x)), 2), "conv + bias + relu"),
    "gate": (
        lambda m, x, r: (y := F.relu(m.a(x))) * torch.sigmoid(y.mean((2, 3, 4), keepdim=True)),
        "conv + bias + relu",
    ),
    "part": (lambda m, x, r: F.relu(m.a(x))[:, 1:3] * 2, "conv + bias + relu"),
    "larger": (lambda m, x, r: F.interpolate(F.relu(m.a(x)), scale_factor=2), "conv + bias + relu"),
    "slice": (lambda m, x, r: F.relu(m.a(x))[:, :, 0].as_strided((2, 2), (3, 1)), ""),
}
FILTERS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (1, 3, 3), "padding": (0, 1, 1)},
    {"kernel_size": (3, 1, 1), "padding": (1, 0, 0)},
    {"kernel_size": 2, "padding": "same", "dilation": 2},
    {"kernel_size": (3, 2, 3), "padding": "same", "padding_mode": "replicate"},
)


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(cutwheel: ModuleType, kernels: CpuOps, name: str) -> None:
    function, expected = VOLUMES[name]
    for options in FILTERS:
        model = Net(function, a=layer("Conv3d", **options), b=norm_of(3))
        for given, args in in_all_formats(model, *inputs(3)):
            made = fused(cutwheel, given, *args)
            assert not expected or parts(made) == [expected]
            assert isinstance(made.a, cutwheel.nn.Conv3d)
    fused(cutwheel, Net(lambda m, x, r: m.a(x) + r, a=model.a), *(x[0] for x in inputs(3)))


def test_residuals_of_another_shape(cutwheel: ModuleType, kernels: CpuOps) -> None:
    model = Net(lambda m, x, r: F.relu(m.a(x) + r), a=layer("Conv3d", 3, padding=1))
    for size in ((2, C, 1, 1, 1), (C, 5, 6, 7), ()):
        made = fused(cutwheel, model, inputs(3)[0], torch.randn(size))
        assert "residual" in parts(made)[0]
    assert kernels.names("conv3d_fused") == []


def test_images_and_volumes_in_one_graph(cutwheel: ModuleType, kernels: CpuOps) -> None:
    """Which format a value would have depends on how many dimensions its convolution has."""

    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        volume = F.relu(m.a(x))
        image = F.relu(m.conv(volume[:, :, 0]))
        signal = F.relu(m.c(image[:, :, 0]))
        return volume, image, signal

    a, c = layer("Conv3d", 3, padding=1), layer("ConvTranspose1d", 2, stride=2)
    for given, args in in_all_formats(Net(forward, a=a, c=c), *inputs(3)):
        made = fused(cutwheel, given, *args)
        assert len(made.fusion_report.replaced) == 3


# --- zeros around the input


PADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "two": lambda m, x: F.pad(x, (2, 0)),
    "four": lambda m, x: F.pad(x, (2, 1, 0, 3)),
    "more": lambda m, x: F.pad(x, (1, 0, 0, 1, 0, 0), "constant", 0.0),
    "keywords": lambda m, x: F.pad(input=x, pad=[1, 2, 3, 0], value=0),
    "module": lambda m, x: m.zeros(x),
    "constant": lambda m, x: m.constant(x),
}
OTHER_PADS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "value": lambda m, x: F.pad(x, (1, 1), value=1.0),
    "mode": lambda m, x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "negative": lambda m, x: F.pad(x, (-1, 1)),
    "channels": lambda m, x: F.pad(x, (0, 0, 0, 0, 1, -1)),
    "shape": lambda m, x: F.pad(x, (x.shape[0], 0)),
    "ones": lambda m, x: m.ones(x),
}
PADDINGS = {
    "zeros": torch.nn.ZeroPad2d((1, 0, 2, 1)),
    "constant": torch.nn.ConstantPad2d(1, 0.0),
    "ones": torch.nn.ConstantPad2d(1, 1.0),
}


@pytest.mark.parametrize("name", PADS)
@pytest.mark.parametrize("padding", [0, (1, 0), "same", "valid"], ids=str)
def test_zeros_are_padding(cutwheel: ModuleType, kernels: CpuOps, name: str, padding: Any) -> None:
    pad = PADS[name]
    for options in ({}, {"bias": False}):
        a = conv(padding=padding, **options)
        model = Net(lambda m, x, r: m.a(pad(m, x)), a=a, **PADDINGS)
        for given, args in in_all_formats(model, *images()):
            made = fused(cutwheel, given, *args)
            assert parts(made) == ["padding + conv" + " + bias" * (not options)]
            assert [node.op for node in made.graph.nodes].count("call_function") == 0
            assert "zeros" not in dict(made.named_modules())
    residual = F.conv2d(pad(model, images()[0]), a.weight, None, 1, padding)
    model = Net(lambda m, x, r: F.relu(m.a(pad(m, x)) + r), a=a, **PADDINGS)
    made = fused(cutwheel, model, images()[0], residual)
    assert parts(made) == ["padding + conv + residual + relu"]
    fused(cutwheel, model, images()[0], residual[:, :1])
    fused(cutwheel, model, images()[0], residual.double())


@pytest.mark.parametrize("name", OTHER_PADS)
def test_other_padding_is_left(cutwheel: ModuleType, kernels: CpuOps, name: str) -> None:
    model = Net(lambda m, x, r: m.conv(OTHER_PADS[name](m, x)), **PADDINGS)
    assert parts(fused(cutwheel, model, *images())) == ["conv + bias"]


def test_causal_volumes(cutwheel: ModuleType, kernels: CpuOps) -> None:
    sides = (1, 1, 1, 1, 2, 0)
    a = layer("Conv3d", 3)
    for given, args in in_all_formats(
        Net(lambda m, x, r: F.silu(m.a(F.pad(x, sides))) + r, a=a), *inputs(3)
    ):
        made = fused(cutwheel, given, *args)
        assert parts(made) == ["padding + conv + bias + silu + residual"]
        assert made.a.padding == ((2, 0), 1, 1)
        kernels.calls.clear()
        fused(cutwheel, given, args[0], args[1][:, :, :1])
        assert kernels.calls == [], "of a residual of another shape, by torch"


def test_padding_that_others_use(cutwheel: ModuleType, kernels: CpuOps) -> None:
    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        wide = F.pad(x, (1, 1))
        return m.conv(wide), m.other(wide), wide

    made = fused(cutwheel, Net(forward), *images())
    assert parts(made) == ["padding + conv + bias"] * 2

    def both(m: Any, x: Tensor, r: Tensor) -> Any:
        wide = F.pad(x, (1, 1))
        return m.conv(wide), m.other(wide)

    made = fused(cutwheel, Net(both), *images())
    assert not any(node.target is F.pad for node in made.graph.nodes)


def test_an_input_that_is_written_after_its_padding(cutwheel: ModuleType, kernels: CpuOps) -> None:
    """The copy of it has what was there before."""

    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        wide = F.pad(x, (1, 1))
        x += 1
        return m.conv(wide)

    model = Net(forward)
    made = cutwheel.fuse(model)
    same(made, model, *images())
    assert parts(made) == ["conv + bias"]


def test_hooked_padding_is_left(cutwheel: ModuleType, kernels: CpuOps) -> None:
    pad = torch.nn.ZeroPad2d(1)
    pad.register_forward_hook(lambda module, args, result: result + 1)
    model = Net(lambda m, x, r: m.norm(m.conv(m.pad(x))), pad=pad)
    assert parts(fused(cutwheel, model, *images())) == ["conv + bias + batch norm"]
    assert norm().training
