"""cutwheel.fuse: order and memory, names, models that cannot be traced, batch norms, ResNet-50."""

from __future__ import annotations

import copy
import importlib.util
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cpu_reference import CpuOps
from fusion_models import C, Net, Tensor, conv, fused, images, norm, parts, same

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet50.py"


# --- order and memory


def test_writes_elsewhere_do_not_matter(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """A branch that is written to in place is not the input of the other one."""

    def forward(m: Any, x: Tensor, r: Tensor) -> Tensor:
        main = m.conv(m.relu(x))
        side = m.relu_(m.norm(m.other(r)))
        return m.relu_(main + side)

    made = fused(cutwheel, Net(forward), *images())
    assert parts(made) == ["conv + bias + residual + relu", "conv + bias + batch norm + relu"]


def test_of_two_layers_one_takes_the_sum(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    made = fused(cutwheel, Net(lambda m, x, r: m.relu(m.norm(m.conv(x)) + m.other(r))), *images())
    assert parts(made) == ["conv + bias + batch norm + residual + relu", "conv + bias"]
    assert not any(each.note for each in made.fusion_report.replaced)

    def to_the_second(m: Any, x: Tensor, r: Tensor) -> Tensor:
        one, two = m.conv(x), m.other(r)
        two += one
        return m.relu(two)

    made = fused(cutwheel, Net(to_the_second), *images())
    assert parts(made) == ["conv + bias", "conv + bias + residual + relu"]
    assert not any(each.note for each in made.fusion_report.replaced)


def test_augmented_sums_write_where_they_did(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    def forward(m: Any, x: Tensor, r: Tensor) -> Tensor:
        before = x
        x += m.conv(x)
        return m.relu(m.other(x)) + before

    made = fused(cutwheel, Net(forward), *images())
    assert parts(made) == ["conv + bias", "conv + bias + relu + residual"]


@pytest.mark.parametrize("residual", [(2, C, 1, 1), (C, 5, 5), (1,), (3, 2, C, 5, 5), ()], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_residuals_of_another_shape(
    cutwheel: ModuleType, cpu_ops: CpuOps, residual: tuple[int, ...], last: bool
) -> None:
    first = Net(lambda m, x, r: F.silu(m.norm(m.conv(x)) + r))
    model = Net(lambda m, x, r: F.silu(m.norm(m.conv(x))) + r) if last else first
    made = fused(cutwheel, model, images()[0], torch.randn(residual))
    assert "residual" in parts(made)[0]
    assert cpu_ops.names("conv2d_fused") == []
    linear = Net(lambda m, x, r: F.silu(m.linear(x)) + r if last else F.silu(m.linear(x) + r))
    fused(cutwheel, linear, torch.randn(2, 5, C), torch.randn(2, 1, C))
    assert cpu_ops.names("linear_fused") == []
    fused(cutwheel, linear, torch.randn(2, 5, C), torch.randn(2, 5, C).double())
    assert cpu_ops.names("linear_fused") == []


@pytest.mark.parametrize("is_reversed", [False, True])
def test_numbers_of_channels_are_added_to_the_kernels_result(
    cutwheel: ModuleType, cpu_ops: CpuOps, is_reversed: bool
) -> None:
    """As the embedding of a step is in the blocks of diffusion models."""
    model = Net(lambda m, x, r: r + m.conv(x) if is_reversed else m.conv(x) + r)
    residual = torch.randn(2, C, 1, 1)
    made = fused(cutwheel, model, images()[0], residual)
    assert parts(made) == ["conv + bias + residual"]
    assert cpu_ops.names("conv2d") == ["bias"]
    fused(cutwheel, model, images()[0], residual.double())
    assert cpu_ops.names("conv2d") == []


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1},
        {"stride": (1, 2), "padding": (0, 2), "dilation": (2, 1)},
        {"padding": "same", "kernel_size": 4, "dilation": (1, 2)},
        {"padding": "valid"},
        {"padding_mode": "reflect", "padding": (1, 2)},
    ],
    ids=str,
)
def test_shapes_of_results_are_known(
    cutwheel: ModuleType, cpu_ops: CpuOps, options: dict[str, Any]
) -> None:
    layer = torch.nn.Conv2d(C, C, **({"kernel_size": 3} | options))
    x = torch.randn(2, C, 11, 12)
    for given in (x, x[0]):
        residual = torch.randn_like(layer(given))
        made = fused(cutwheel, Net(lambda m, x, r: m.a(x) + r, a=layer), given, residual)
        assert cpu_ops.names("conv2d_fused") == ["bias_residual"]
    assert "ResidualConv2d(8, 8" in repr(made)


def test_views_of_results(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """A fused convolution's result is channels last, which not every view fits."""
    model = Net(lambda m, x, r: m.relu(m.conv(x)).view(x.shape[0], -1))
    fused(cutwheel, model, *images())
    model = Net(lambda m, x, r: m.relu(m.conv(x)).view(torch.int32))
    fused(cutwheel, model, *images())


# --- modules and their names


def test_names_of_the_state_dict(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    first = torch.nn.Sequential(conv(bias=False), norm(), torch.nn.ReLU())
    model = torch.nn.Sequential(first, torch.nn.Flatten(), torch.nn.Linear(C * 25, 3)).eval()
    made = fused(cutwheel, model, images()[0])
    assert list(made.state_dict()) == ["0.0.weight", "0.0.bias", "2.weight", "2.bias"]
    assert not any(module.training for module in made.modules())
    again = fused(cutwheel, made, images()[0])
    assert list(again.state_dict()) == list(made.state_dict())
    assert again.fusion_report.replaced == ()
    assert [each.name for each in again.fusion_report.kept] == ["2"]


def test_buffers_keep_their_persistence(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = Net(lambda m, x, r: m.relu(m.conv(x)) * (m.kept * 2) + m.left)
    model.register_buffer("kept", torch.randn(1))
    model.register_buffer("left", torch.randn(1), persistent=False)
    made = fused(cutwheel, model, *images())
    assert list(made.state_dict()) == ["kept", "conv.weight", "conv.bias"]


def test_layers_that_are_used_twice(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = Net(lambda m, x, r: m.norm(m.conv(m.relu(m.conv(x)))))
    made = fused(cutwheel, model, *images())
    assert parts(made) == ["conv + bias + relu", "conv + bias + batch norm"]
    assert [each.module for each in made.fusion_report.replaced] == ["conv_fused0", "conv"]
    tied = Net(lambda m, x, r: F.conv2d(m.norm(m.conv(x)), m.conv.weight))
    made = fused(cutwheel, tied, *images())
    assert made.fusion_report.replaced[0].module == "conv_fused0"
    assert "as conv_fused0" in str(made.fusion_report)


def test_layers_with_two_names(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = Net(lambda m, x, r: m.alias[1](m.alias[0](x)))
    model.alias = torch.nn.ModuleList([model.conv, model.relu])
    assert len(parts(fused(cutwheel, model, *images()))) == 1


class Branching(torch.nn.Module):
    """Which way it goes depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(conv(), norm(), torch.nn.ReLU())
        self.blocks = torch.nn.ModuleList([Net(lambda m, x, r: m.relu(m.conv(x) + r))])
        self.head = torch.nn.Linear(C, C)
        self.eval()

    def forward(self, x: Tensor, r: Tensor) -> Tensor:
        if x.sum() > 1e6:
            return x
        for block in self.blocks:
            x = block(x, r)
        result: Tensor = self.head(self.body(x).mean((2, 3)))
        return result


def test_what_is_not_traced_is_fused_child_by_child(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    made = fused(cutwheel, Branching(), *images())
    report = made.fusion_report
    assert type(made) is Branching
    assert [str(each) for each in report.replaced] == [
        "body.0: conv + bias + batch norm + relu",
        "blocks.0.conv: conv + bias + residual + relu",
    ]
    assert [each.name for each in report.kept] == ["head"]
    assert "what follows it is not known" in report.kept[0].reason
    ((name, kind, reason),) = report.untraced
    assert (name, kind) == ("", "Branching")
    assert "TraceError" in reason
    assert "the model (Branching): TraceError" in str(report)


def watched(model: Any) -> Any:
    model.seen = []
    model.register_forward_hook(lambda module, args, result: module.seen.append(1))
    return model


class Counting(Net):
    def forward(self, x: Tensor, r: Tensor) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x, r)


def with_autocast(m: Any, x: Tensor, r: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return m.a(x)


class Optional(Net):
    def forward(self, x: Tensor, r: Tensor, mask: Tensor | None = None) -> Any:
        return super().forward(x, r) if mask is None else x * mask


class Variadic(Net):
    def forward(self, *args: Tensor) -> Any:
        return super().forward(*args)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: Optional(lambda m, x, r: m.a(x)), "forward has an optional argument, mask"),
        (lambda: Variadic(lambda m, x, r: m.a(x)), r"forward takes any arguments, *args"),
        (lambda: Net(with_autocast), "forward enters torch.autocast"),
        (
            lambda: Net(lambda m, x, r: m.a(x) if isinstance(x, Tensor) else x),
            "fuse_models asks for the type of a value",
        ),
        (lambda: watched(Net(lambda m, x, r: m.a(x))), "it has hooks"),
        (lambda: Net(lambda m, x, r: m.a(x) + 0 * torch.rand(1)), "draws random numbers"),
        (lambda: Counting(lambda m, x, r: m.a(x)), "forward sets Counting.calls"),
        (lambda: Net(lambda m, x, r: m.a(x) if len(x) else x), "RuntimeError: 'len' is not"),
    ],
)
def test_why_there_is_no_graph(
    cutwheel: ModuleType, cpu_ops: CpuOps, model: Callable[[], Any], reason: str
) -> None:
    given = model()
    given.a = torch.nn.Sequential(conv(), torch.nn.ReLU()).eval()
    made = cutwheel.fuse(given)
    assert [str(each) for each in made.fusion_report.replaced] == ["a.0: conv + bias + relu"]
    assert reason in made.fusion_report.untraced[0].reason
    assert type(made) is type(given)
    same(made, given, *images())


def test_hooked_modules_in_a_graph(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = Net(lambda m, x, r: m.relu(m.conv(m.a(x))))
    model.a = watched(torch.nn.Sequential(torch.nn.Sequential(conv(), torch.nn.ReLU())).eval())
    made = cutwheel.fuse(model)
    assert [each.name for each in made.fusion_report.replaced] == ["conv", "a.0.0"]
    assert [each.name for each in made.fusion_report.untraced] == ["a"]
    same(made, model, *images())
    assert len(made.a.seen) == 1


def test_modules_of_torch_are_not_looked_into(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    layer = torch.nn.TransformerEncoderLayer(C, 2, 16, batch_first=True)
    made = cutwheel.fuse(Net(lambda m, x, r: m.a(x), a=layer))
    names = [each.name for each in made.fusion_report.kept]
    assert names == ["a.self_attn.out_proj", "a.linear1", "a.linear2"]
    assert "it is in a TransformerEncoderLayer" in made.fusion_report.kept[1].reason


# --- batch norm


def test_folding_rounds_once(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = torch.nn.Sequential(conv(), norm(eps=1e-3)).eval().bfloat16()
    made = cutwheel.fuse(model)
    layer, after = (copy.deepcopy(each).double() for each in model)
    scale = after.weight / (after.running_var + after.eps).sqrt()
    weight = layer.weight * scale.view(-1, 1, 1, 1)
    bias = (layer.bias - after.running_mean) * scale + after.bias
    found = getattr(made, "0")
    assert torch.equal(found.weight, weight.bfloat16())
    assert torch.equal(found.bias, bias.bfloat16())
    assert found.weight.is_contiguous(memory_format=torch.channels_last)
    assert found.weight.requires_grad


def test_norms_without_weights(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = torch.nn.Sequential(conv(bias=False), norm(affine=False)).eval()
    assert parts(fused(cutwheel, model, images()[0])) == ["conv + batch norm"]


def test_folding_that_is_not_possible(cutwheel: ModuleType) -> None:
    model = torch.nn.Sequential(conv(), norm()).eval().half()
    with torch.no_grad():
        model[0].weight.fill_(1e3)
        model[1].weight.fill_(1e3)
    (kept,) = cutwheel.fuse(model).fusion_report.kept
    assert "the folded weight exceeds the range of float16" in kept.reason
    with torch.device("meta"):
        model = torch.nn.Sequential(conv(), torch.nn.BatchNorm2d(C)).eval()
    (kept,) = cutwheel.fuse(model).fusion_report.kept
    assert "on the device meta: load them first" in kept.reason


# --- the whole


def test_errors(cutwheel: ModuleType) -> None:
    model = torch.nn.Sequential(conv())
    with pytest.raises(ValueError, match=r"fuse: model is in training mode.*call model\.eval\(\)"):
        cutwheel.fuse(model)
    with pytest.raises(TypeError, match="fuse: model is of type function; expected a module"):
        cutwheel.fuse(conv)
    with pytest.raises(TypeError, match=r"OptimizedModule, which is compiled.*fuse first"):
        cutwheel.fuse(torch.compile(model.eval()))


def test_fused_models_are_copied_and_saved(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = torch.nn.Sequential(conv(), norm(), torch.nn.ReLU()).eval()
    made = fused(cutwheel, model, images()[0])
    same(copy.deepcopy(made), model, images()[0])
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    same(loaded, model, images()[0])
    assert str(loaded.fusion_report) == str(made.fusion_report)


@pytest.fixture
def example(cutwheel: ModuleType) -> ModuleType:
    spec = importlib.util.spec_from_file_location("resnet50", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["resnet50"] = found
    spec.loader.exec_module(found)
    return found


def test_resnet(cutwheel: ModuleType, traced_on_cpu: CpuOps, example: ModuleType) -> None:
    """The example, narrower and with smaller images."""
    model = example.make("cpu", torch.float32, 64, 8)
    x = example.images(2, 64, "cpu", torch.float32)
    made = cutwheel.fuse(model)
    report = made.fusion_report
    assert str(report).startswith("ResNet50: 53 of 54 layers replaced\n")
    assert [each.name for each in report.kept] == ["fc"]
    found = parts(made)
    assert found.count("conv + batch norm + relu") == 33
    assert found.count("conv + batch norm + residual + relu") == 16
    assert found.count("conv + batch norm") == 4
    traced_on_cpu.calls.clear()
    errors = example.errors(model, {"eager": model, "fused": made}, x)
    assert max(errors.values()) < 1e-4
    epilogues = traced_on_cpu.names("conv2d_fused")
    assert epilogues.count("bias_relu") == 33
    assert epilogues.count("bias_residual_relu") == 16


def test_compile(cutwheel: ModuleType, traced_on_cpu: CpuOps) -> None:
    model = Net(lambda m, x, r: m.relu(m.norm(m.conv(x)) + r))
    made = cutwheel.fuse(model)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    same(compiled, model, *images())
    same(compiled, model, *images(6))
