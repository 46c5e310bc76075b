"""cutwheel.fuse: results have the strides and dtypes that the model's have without it."""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps
from fusion_models import C, Net, Tensor, conv, fused, images, norm, parts, rows, same
from torch.utils._pytree import tree_leaves

Forward = Callable[[Any, Tensor, Tensor], Any]
LAST = torch.channels_last


def in_all_formats(
    model: torch.nn.Module, x: Tensor, r: Tensor
) -> Iterator[tuple[torch.nn.Module, Tensor, Tensor]]:
    kinds = (torch.contiguous_format, LAST)
    for of_weights, of_x, of_r in itertools.product(kinds, repeat=3):
        formatted = copy.deepcopy(model).to(memory_format=of_weights)
        yield formatted, x.to(memory_format=of_x), r.to(memory_format=of_r)


class Untraced(torch.nn.Module):
    """Which way it goes depends on the values, so its code is called as it is."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.body = torch.nn.Sequential(conv(), norm(), torch.nn.ReLU(), conv(), torch.nn.SiLU())
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.function(self.body(x), x) if x.sum() < 1e6 else x


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y.view(y.size(0), -1),
        lambda y, x: y.view(-1).view(x.shape).add_(1),
        lambda y, x: y.as_strided((3, 7), (C, 2), 5),
        lambda y, x: torch.as_strided(y, (4, 4), (16, 1)),
        lambda y, x: y.view(torch.int16).view(torch.float32),
        lambda y, x: y.view_as(x).permute(0, 2, 3, 1),
        lambda y, x: (y, y[:, ::2], y.stride()),
        lambda y, x: torch.empty(y.numel()).set_(y.untyped_storage()),
    ],
)
def test_parents_that_are_not_traced(
    cutwheel: ModuleType, cpu_ops: CpuOps, function: Callable[[Tensor, Tensor], Any]
) -> None:
    model, x = Untraced(function), images()[0]
    made = fused(cutwheel, model, x)
    assert type(made) is Untraced
    assert parts(made) == ["conv + bias + batch norm + relu", "conv + bias + silu"]
    for given in (x[:, :, 1:, 1:], x.permute(0, 1, 3, 2), x.expand(3, *x.shape)[1]):
        same(made, model, given)


def recorded(m: Any, x: Tensor) -> Tensor:
    """Strides, shape and mean of the input of a module that is not looked into."""
    result: Tensor = m.recorder(x)
    return result


class Recorder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, args, result: None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([*x.stride(), *x.shape], dtype=x.dtype) + x.mean()


def squeeze_and_excite(m: Any, x: Tensor, r: Tensor) -> Any:
    y = m.relu(m.conv(x))
    s = y.mean((2, 3), keepdim=True)
    return y * torch.sigmoid(m.point(m.relu(m.point(s))))


def excite_first(m: Any, x: Tensor, r: Tensor) -> Any:
    y = m.relu(m.conv(x))
    return torch.sigmoid(m.point(F.adaptive_avg_pool2d(y, 1))) * y


def parts_of(m: Any, x: Tensor, r: Tensor) -> Any:
    """As in YOLO: halves that go their own ways, and together again."""
    y = F.silu(m.conv(x))
    one, two = y.chunk(2, 1)
    two = F.silu(m.narrow(two))
    return torch.cat((one, two, two[:, :2]), 1), one, two[:, 1:3]


def tokens(m: Any, x: Tensor, r: Tensor) -> Any:
    """As in ViT."""
    y = m.relu(m.conv(x)).flatten(2).transpose(1, 2)
    return m.linear(m.layer_norm(y)), y[:, 0]


def channels_behind(m: Any, x: Tensor, r: Tensor) -> Any:
    """As in ConvNeXt."""
    y = m.relu(m.conv(x))
    z = F.gelu(m.linear(m.layer_norm(m.depthwise(y).permute(0, 2, 3, 1))))
    return y + z.permute(0, 3, 1, 2)


def pyramid(m: Any, x: Tensor, r: Tensor) -> Any:
    """As in an FPN or a U-Net."""
    fine = m.relu(m.norm(m.conv(x)))
    coarse = F.relu(m.other(F.max_pool2d(fine, 2)))
    up = F.interpolate(coarse, size=(6, 6), mode="nearest")
    return {"fine": fine, "coarse": [coarse], "both": torch.cat((up, fine), dim=1)}


def in_place(m: Any, x: Tensor, r: Tensor) -> Any:
    y = F.relu6(m.norm(m.conv(x)), inplace=True)
    z = m.other(y)
    z *= 2
    return F.hardtanh_(z), y.clamp_(0, 1)


def written_later(m: Any, x: Tensor, r: Tensor) -> Any:
    """A copy of y would miss what is written to it."""
    y = m.relu(m.conv(x))
    flat = y.view(-1)
    y += 1
    flat[3:5].fill_(2.0)
    return m.relu(m.other(y)), flat * 2, y


def unknown(m: Any, x: Tensor, r: Tensor) -> Any:
    y = m.relu(m.conv(x))
    z = m.relu(m.other(torch.flip(y, (3,))))
    return torch.as_strided(z, (3, 4), (7, 2)), z.roll(1, 2), y.stride(1), z.stride(1)


def tied(m: Any, x: Tensor, r: Tensor) -> Any:
    return F.conv2d(m.norm(m.conv(x)), m.conv.weight), m.relu(m.conv(r)), m.conv(x).exp()


def reordered(m: Any, x: Tensor, r: Tensor) -> Any:
    return m.relu(m.conv(m.relu(m.other(x)).transpose(2, 3)))


def with_kept_layers(m: Any, x: Tensor, r: Tensor) -> Any:
    return m.relu(m.other(m.depthwise(m.relu(m.conv(x))))), m.depthwise(input=m.relu(m.conv(x)))


def with_keywords(m: Any, x: Tensor, r: Tensor) -> Any:
    y = F.relu(input=m.conv(x))
    return F.interpolate(input=y, scale_factor=2), F.conv2d(input=y, weight=m.other.weight)


FORWARDS: dict[str, Forward] = {
    "relu": lambda m, x, r: m.relu(m.conv(x)),
    "bias": lambda m, x, r: m.conv(x),
    "three": lambda m, x, r: m.relu(m.other(m.relu(m.norm(m.conv(x))))) + m.conv(r),
    "sum": lambda m, x, r: m.relu(m.conv(x) + r),
    "sum, reversed": lambda m, x, r: m.relu(r + m.conv(x)),
    "sum in place": lambda m, x, r: m.relu(operator.iadd(m.conv(x), r)),
    "sum of two": lambda m, x, r: m.norm(m.conv(x)) + m.relu(m.other(r)),
    "sum, then sum": lambda m, x, r: m.relu(m.other(r + m.conv(x))) * r,
    "sum with a part": lambda m, x, r: r[:, :, :1, :1] + m.conv(x),
    "sum with a channel": lambda m, x, r: r[:, :1] + m.conv(x),
    "sum with a number": lambda m, x, r: x.shape[1] + m.conv(x),
    "product": lambda m, x, r: (r * m.conv(x), m.conv(x) * r, 2 * m.conv(r) - x),
    "recorder": lambda m, x, r: (recorded(m, m.relu(m.conv(x))), recorded(m, m.conv(x) + r)),
    "view": lambda m, x, r: m.relu(m.conv(x)).view(x.shape[0], -1),
    "pool": lambda m, x, r: (m.pool(m.relu(m.conv(x))), F.avg_pool2d(m.conv(x), 2)),
    "indices": lambda m, x, r: F.max_pool2d(m.relu(m.conv(x)), 2, return_indices=True),
    "means": lambda m, x, r: (m.conv(x).mean((2, 3)), m.conv(x).sum(1), m.conv(x).amax()),
    "together": lambda m, x, r: torch.cat((m.relu(m.conv(x)), m.relu(m.other(r))), 1),
    "together with the input": lambda m, x, r: torch.cat((x, m.relu(m.conv(x))), 1) * 2,
    "item": lambda m, x, r: (m.conv(x)[0], m.conv(x)[..., 1], m.conv(x)[:, None] * 2),
    "index": lambda m, x, r: m.conv(x)[:, torch.arange(2)],
    "item of a product": lambda m, x, r: (m.conv(x)[:, 1:3] * 2, m.conv(x)[0] * 2),
    "one": lambda m, x, r: m.relu(m.conv(m.single(x[:, :1]))),
    "line": lambda m, x, r: m.relu(m.point(m.relu(m.conv(x))[:, :, :1, :1])),
    "cast": lambda m, x, r: (m.relu(m.conv(x)).double(), m.conv(x).to(torch.float64)),
    "contiguous": lambda m, x, r: m.other(m.relu(m.conv(x)).contiguous()),
    "channels last": lambda m, x, r: m.relu(m.conv(x.to(memory_format=LAST))),
    **{
        function.__name__: function
        for function in (
            *(squeeze_and_excite, excite_first, parts_of, tokens, channels_behind, pyramid),
            *(in_place, written_later, unknown, tied, reordered, with_kept_layers, with_keywords),
        )
    },
}
NEED_CONTIGUOUS = ("view", "written_later")
"""not possible with channels last without cutwheel either"""


@pytest.mark.parametrize("name", FORWARDS)
def test_memory_formats(cutwheel: ModuleType, cpu_ops: CpuOps, name: str) -> None:
    layers = {
        "recorder": Recorder(),
        "point": torch.nn.Conv2d(C, C, 1),
        "single": torch.nn.Conv2d(1, C, 3, padding=1),
        "narrow": torch.nn.Conv2d(C // 2, C // 2, 3, padding=1),
        "depthwise": conv(groups=C),
        "layer_norm": torch.nn.LayerNorm(C),
        "pool": torch.nn.MaxPool2d(2),
    }
    model = Net(FORWARDS[name], **layers)
    for given, *args in in_all_formats(model, *images(6)):
        if name in NEED_CONTIGUOUS and not given.conv(args[0]).is_contiguous():
            continue
        made = fused(cutwheel, given, *args)
        assert made.fusion_report.replaced
        assert {each.name for each in made.fusion_report.untraced} <= {"recorder"}


def copies(made: Any) -> int:
    """How many results are brought into another format."""
    return sum(node.target == "in_format" for node in made.graph.nodes)


def test_formats_cost_nothing_inside(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Only what leaves the graph is copied, and only where weights are not channels last."""

    def backbone(m: Any, x: Tensor, r: Tensor) -> Any:
        y = F.max_pool2d(m.relu(m.norm(m.conv(x))), 2)
        y = m.relu(m.norm(m.other(F.hardtanh_(m.conv(y)))) + y)
        y = y * torch.sigmoid(m.other(y.mean((2, 3), keepdim=True)))
        return torch.cat((y, m.relu(m.other(F.interpolate(y, scale_factor=2)))[..., ::2, ::2]), 1)

    def classifier(m: Any, x: Tensor, r: Tensor) -> Any:
        return m.a(torch.flatten(F.adaptive_avg_pool2d(backbone(m, x, r), 1), 1))

    layer = torch.nn.Linear(2 * C, C)
    assert copies(fused(cutwheel, Net(classifier, a=layer), *images(6))) == 0
    made = fused(cutwheel, Net(backbone), *images(6))
    assert copies(made) == 1
    x, r = images(6)
    inside = made.in_format
    seen: list[Tensor] = []
    inside.register_forward_hook(lambda module, args, result: seen.extend((args[0], result)))
    made(x, r)
    assert seen[0].is_contiguous(memory_format=LAST)
    assert seen[1].is_contiguous()
    seen.clear()
    made(x.to(memory_format=LAST), r)
    assert seen[0] is seen[1], "no copy of what is channels last without cutwheel"
    made = fused(cutwheel, Net(backbone).to(memory_format=LAST), *images(6))
    assert copies(made) == 0


def test_what_torch_says_of_memory_formats() -> None:
    from cutwheel.fusion.formats import is_channels_last

    shapes = [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1), (2, 3, 1, 5)]
    shapes += [(0, 3, 4, 5), (2, 0, 4, 5), (1, 1, 4, 5), (2, 1, 1, 5)]
    for shape in shapes:
        x = torch.randn(shape)
        for each in (x, x.to(memory_format=LAST), x.contiguous(memory_format=LAST)):
            for image in (each, each[..., ::2], each[:, :1], each.mT, each.expand(2, *shape)[1]):
                said = torch._prims_common.suggest_memory_format(image)
                assert is_channels_last(image) == (said == LAST), (shape, image.stride())
        assert not is_channels_last(x[:, :, :1, :1].expand(shape))


# --- dtypes, and operands that are no tensors


SUMS: dict[str, Callable[[Tensor, Any], Any]] = {
    "add_": lambda z, r: z.add_(r),
    "iadd": lambda z, r: operator.iadd(z, r),
    "__iadd__": lambda z, r: z.__iadd__(r),
    "relu of iadd": lambda z, r: torch.relu(operator.iadd(z, r)),
    "iadd of relu": lambda z, r: operator.iadd(torch.relu(z), r),
    "add": lambda z, r: z + r,
    "reversed": lambda z, r: r + z,
    "relu of add": lambda z, r: torch.relu(z + r),
    "add of relu": lambda z, r: torch.relu(z) + r,
    "torch.add": lambda z, r: torch.add(z, r),
    "sub_": lambda z, r: z.sub_(r),
    "isub": lambda z, r: operator.isub(z, r),
    "mul_": lambda z, r: z.mul_(r),
    "imul": lambda z, r: torch.relu(operator.imul(z, r)),
    "itruediv": lambda z, r: operator.itruediv(z, r),
    "add_ of a product": lambda z, r: z.add_(r, alpha=2),
    "sub": lambda z, r: r - z,
}
CASTS: dict[str, Callable[[Any], Any]] = {
    "float": lambda r: r.float(),
    "double": lambda r: r.double(),
    "half": lambda r: r.half(),
    "same": lambda r: r,
    "to": lambda r: r.to(torch.float32),
    "broadcast": lambda r: r.float()[:1, ..., :1],
    "number": lambda r: r.shape[0],
    "scalar": lambda r: r.float().abs().amax(),
}


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("name", SUMS)
def test_dtypes_of_sums(cutwheel: ModuleType, cpu_ops: CpuOps, name: str, cast: str) -> None:
    """An operation in place keeps the dtype, another one promotes it."""
    add, convert = SUMS[name], CASTS[cast]

    def of_images(m: Any, x: Tensor, r: Tensor) -> Any:
        return add(m.conv(x), convert(r)), add(m.norm(m.other(x)), convert(r))

    def of_rows(m: Any, x: Tensor, r: Tensor) -> Any:
        return add(m.linear(x), convert(r))

    for forward, given in ((of_images, images()), (of_rows, rows())):
        model = Net(forward).bfloat16()
        args = [x.bfloat16() for x in given]
        made = cutwheel.fuse(model)
        with torch.no_grad():
            found, expected = made(*args), model(*args)
        assert_alike(found, expected)
        assert made.fusion_report.untraced == ()


def assert_alike(found: Any, expected: Any) -> None:
    """Up to the roundings of bfloat16."""
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=5e-2, atol=1e-1)


def test_sums_in_place_do_not_broadcast(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    made = cutwheel.fuse(Net(lambda m, x, r: m.relu(m.conv(x).add_(r))))
    x, r = images()
    assert parts(made) == ["conv + bias + residual + relu"]
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        made(x, torch.stack((r, r)))
    with pytest.raises(TypeError):
        made(x, None)


NUMBERS: dict[str, Forward] = {
    "size": lambda m, x, r: m.conv(x) + x.shape[1],
    "size, reversed": lambda m, x, r: m.relu(x.size(0) + m.conv(x)),
    "argument": lambda m, x, r: m.relu(m.conv(x) + r),
    "argument in place": lambda m, x, r: m.relu(m.conv(x).add_(r)),
    "argument behind": lambda m, x, r: r + m.relu(m.norm(m.conv(x))),
    "linear": lambda m, x, r: m.relu(m.linear(x) + x.shape[2]),
    "linear, argument": lambda m, x, r: r + F.silu(m.linear(x)),
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [3, 0.5, True, torch.tensor(2.0), torch.tensor([3])], ids=str)
def test_numbers_are_added(cutwheel: ModuleType, cpu_ops: CpuOps, name: str, value: Any) -> None:
    x = torch.randn(2, C, 5, C)
    for given in (x, x.to(memory_format=LAST)):
        made = fused(cutwheel, Net(NUMBERS[name]), given, value)
        assert "residual" in parts(made)[0]


def test_strides_of_sums_with_linear_layers(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Torch takes them from the first operand."""
    for add in (lambda z, r: r + z, lambda z, r: z + r, operator.iadd):
        model = Net(lambda m, x, r, add=add: add(m.linear(x), r))
        made = fused(cutwheel, model, torch.randn(3, 5, C), torch.randn(5, 3, C).transpose(0, 1))
        assert parts(made) == ["linear + bias + residual"]


def test_softplus_under_autocast(
    cutwheel: ModuleType, cpu_ops: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch computes it in float32 then; in the kernel it would have the dtype of the product."""
    from cutwheel.fusion import modules

    made = cutwheel.fuse(Net(lambda m, x, r: F.softplus(m.linear(x))))
    x, r = rows()
    with torch.no_grad():
        made(x, r)
    assert cpu_ops.names("linear_fused") == ["bias_softplus"]
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda: True)
    monkeypatch.setitem(modules.ALL_ACTIVATIONS, "softplus", lambda z: F.softplus(z.double()))
    result = made(x, r)
    assert result.dtype == torch.float64, "what torch's function returns, whatever it is"
    assert cpu_ops.names("linear") == ["bias"]
