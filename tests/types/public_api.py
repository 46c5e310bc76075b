"""Every public name as a typed program uses it: `make lint` checks it with mypy in strict mode.

assert_type fails where a result would be Any, or another type than the one it is documented with.
tests/python/test_types.py sees to it that no public name is missing, and runs `main`.
"""

from __future__ import annotations

import copy
from typing import Any, assert_type

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

import cutwheel
from cutwheel import distributed, inductor, nn

DEVICE = "meta"
BF16 = torch.bfloat16


def dense(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor) -> None:
    out = torch.empty(16, 32, device=DEVICE, dtype=BF16)
    assert_type(cutwheel.mm(a, b), Tensor)
    assert_type(cutwheel.mm(a, b, out_dtype=torch.float32), Tensor)
    assert_type(cutwheel.bmm(a[None], b[None]), Tensor)
    assert_type(cutwheel.addmm(bias, a, b, beta=0.5, alpha=2.0), Tensor)
    assert_type(cutwheel.baddbmm(bias, a[None], b[None]), Tensor)
    assert_type(cutwheel.matmul(a, b), Tensor)
    assert_type(cutwheel.gemm(a, b, "bias", out=out, bias=bias), Tensor | tuple[Tensor, ...])
    assert_type(cutwheel.linear(a, weight, bias, activation="gelu", residual=out), Tensor)
    packed = cutwheel.pack_gated_weight(weight, weight)
    assert_type(packed, Tensor)
    assert_type(cutwheel.unpack_gated_weight(packed), tuple[Tensor, Tensor])
    assert_type(cutwheel.gated_linear(a, packed, activation="silu", interleaved=True), Tensor)
    both = cutwheel.pack_gated_weight(bias, bias)
    assert_type(cutwheel.gated_linear(a, packed, "gelu", both, interleaved=True), Tensor)
    assert_type(cutwheel.gated_linear(a, packed), Tensor)
    assert_type(cutwheel.gated_linear(a, (weight, weight), bias=(bias, None)), Tensor)


def scaled(a: Tensor, weight: Tensor, ends: Tensor) -> None:
    x, scale_x = cutwheel.quantize(a, "rowwise")
    w, scale_w = cutwheel.quantize(weight, "rowwise", symmetric=True)
    values, scale, azp = cutwheel.quantize(a, "rowwise", torch.int8, symmetric=False)
    for tensor in (values, scale, azp):
        assert_type(tensor, Tensor)
    assert_type(cutwheel.scaled_mm(x, w.t(), scale_x, scale_b=scale_w.t()), Tensor)
    several, scales = w.expand(3, -1, -1), scale_w.mT.expand(3, -1, -1).flatten(0, 1)
    given = cutwheel.scaled_grouped_mm(
        x, several.mT, scale_x[:, 0], "rowwise", scales, "rowwise", offs=ends
    )
    assert_type(given, Tensor)


def grouped(a: Tensor, weights: Tensor, ends: Tensor) -> None:
    assert_type(cutwheel.grouped_mm(a, weights.mT, offs=ends), Tensor)
    assert_type(cutwheel.grouped_linear(a, weights, offs=ends, activation="relu"), Tensor)
    packed = cutwheel.pack_gated_weight(weights, weights)
    assert_type(cutwheel.grouped_gated_linear(a, packed, offs=ends, interleaved=True), Tensor)
    assert_type(cutwheel.grouped_gated_linear(a, packed.chunk(2, 1), offs=ends), Tensor)
    assert_type(cutwheel.grouped_mm_list([a, a], [weights[0].t()] * 2, [None, None]), list[Tensor])


def convolutions(volume: Tensor) -> None:
    image, signal = volume[:, :, 0], volume[:, :, 0, 0]
    filters = volume.new_empty(8, 8, 3, 3, 3)
    how = {"activation": "relu"}["activation"]
    assert_type(cutwheel.conv1d(signal, filters[..., 0, 0], padding=1, activation=how), Tensor)
    assert_type(cutwheel.conv2d(image, filters[..., 0], padding=((2, 0), 1)), Tensor)
    assert_type(cutwheel.conv3d(volume, filters, stride=(1, 2, 2), padding="valid"), Tensor)
    assert_type(cutwheel.conv_transpose1d(signal, filters[..., 0, 0], stride=2), Tensor)
    assert_type(cutwheel.conv_transpose2d(image, filters[..., 0], residual=None), Tensor)
    assert_type(cutwheel.conv_transpose3d(volume, filters), Tensor)
    values = torch.empty(2, 16, 8, 8, device=DEVICE, dtype=torch.int8)
    scale = torch.empty(1, device=DEVICE)
    weight = values.new_empty(16, 16, 3, 3)
    assert_type(cutwheel.scaled_conv2d(values, weight, scale, scale, padding=1), Tensor)


def modules(a: Tensor, image: Tensor) -> None:
    mlp = nn.GatedMLP(64, 128, device=DEVICE, dtype=BF16)
    assert_type(mlp.pack_parameters(), nn.GatedMLP)
    assert_type(mlp.unpack_parameters(), nn.GatedMLP)
    assert_type(mlp.forward(a, a), Tensor)
    layer = nn.Linear(64, 64, activation="gelu", device=DEVICE, dtype=BF16)
    assert_type(layer.forward(a), Tensor)
    quantised = nn.ScaledLinear.from_linear(
        torch.nn.Linear(64, 64, device=DEVICE, dtype=BF16), "blockwise", straight_through=True
    )
    assert_type(quantised, nn.ScaledLinear)
    assert_type(quantised.dequantize(), Tensor)
    experts = nn.GroupedExperts(4, 64, 128, device=DEVICE, dtype=BF16)
    ids = torch.zeros(16, 2, device=DEVICE, dtype=torch.int64)
    assert_type(experts.forward(a, ids, torch.empty(16, 2, device=DEVICE)), Tensor)
    conv = nn.Conv2d(8, 8, 3, activation="silu", device=DEVICE, dtype=BF16)
    assert_type(conv.forward(image), Tensor)
    assert_type(nn.ScaledConv2d.from_conv(conv, dtype=torch.int8), nn.ScaledConv2d)
    for other in (nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d):
        assert isinstance(other(8, 8, 3, device=DEVICE, dtype=BF16), torch.nn.Module)


def whole_models(model: torch.nn.Module, image: Tensor) -> None:
    fused = cutwheel.fuse(model)
    assert_type(fused, torch.nn.Module)
    assert_type(cutwheel.fuse(copy.deepcopy(model).to(DEVICE), (image,)), torch.nn.Module)
    report = fused.fusion_report
    assert isinstance(report, cutwheel.FusionReport)
    assert_type([kept.reason for kept in report.kept], list[str])
    layers = torch.nn.Sequential(torch.nn.Linear(16, 16, device=DEVICE, dtype=BF16))
    done = cutwheel.replace_layers(layers, None, keep=("head",))
    assert_type(done, cutwheel.ReplacementReport)
    assert_type(done.replaced, tuple[cutwheel.models.Replaced, ...])
    assert_type([each.reason for each in done.left], list[str])
    assert callable(cutwheel.models.register_transformers)
    found = nn.activation_scales(model, [image], ["0"], torch.int8)
    assert_type(found, dict[str, Tensor])


def inspection() -> None:
    assert_type(cutwheel.__version__, str)
    assert_type([kernel.name for kernel in cutwheel.kernels()], list[str])
    assert_type([epilogue.expr for epilogue in cutwheel.epilogues()], list[str])
    assert cutwheel.build_info()["version"] == cutwheel.__version__
    kinds: tuple[type[cutwheel.Kernel], type[cutwheel.Epilogue]] = (
        cutwheel.Kernel,
        cutwheel.Epilogue,
    )
    assert all(isinstance(kind, type) for kind in kinds)


def explained(a: Tensor, b: Tensor) -> str | None:
    """Needs a GPU."""
    explanation = cutwheel.explain(cutwheel.mm, a, b)
    assert_type(explanation, cutwheel.Explanation)
    return explanation.row


def several_gpus(x: Tensor, weight: Tensor, group: ProcessGroup) -> None:
    """Needs several GPUs."""
    rows = distributed.all_gather_linear(x, weight, group=group, sizes=[3, 5])
    assert_type(rows, Tensor)
    assert_type(distributed.linear_reduce_scatter(rows, weight.t(), weight[:, 0]), Tensor)
    layer = nn.GroupedExperts(8, 64, 128, process_group=group)
    assert_type(layer.process_group, ProcessGroup | None)
    distributed.ExpertParallel(dispatch="all_to_all")


@cutwheel.batch_invariant()
def decorated() -> bool:
    return cutwheel.is_batch_invariant()


def settings(a: Tensor, b: Tensor) -> None:
    with cutwheel.batch_invariant() as mode:
        assert_type(mode, cutwheel.batch_invariant)
        assert_type(cutwheel.mm(a, b), Tensor)
    assert_type(decorated(), bool)
    cutwheel.set_batch_invariant(False)
    with cutwheel.sm_limit(116) as limit:
        assert_type(limit, cutwheel.sm_limit)
        assert_type(cutwheel.get_sm_limit(), int | None)
    cutwheel.set_sm_limit(None)
    try:
        cutwheel.load_tuning({"schema": 0})
    except ValueError:
        cutwheel.clear_tuning()


@cutwheel.enabled(ops=["mm"])
def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def interception(a: Tensor, b: Tensor) -> None:
    cutwheel.enable(ops=["mm", "bmm"], dtypes=[BF16])
    cutwheel.disable()
    with cutwheel.enabled() as block:
        assert_type(block, cutwheel.enabled)
    assert_type(product(a, b), Tensor)
    found = cutwheel.report(clear=True)
    assert_type(found, cutwheel.CallReport)
    assert_type(found.calls, tuple[cutwheel.Calls, ...])
    assert_type(found.taken + found.passed_on, int)


def compiled_graphs() -> None:
    options = cutwheel.inductor_options("default", options={}, only_faster=True)
    assert_type(options, dict[str, Any])
    function = torch.compile(torch.nn.Linear(8, 8), options=options)
    assert callable(function)
    assert callable(inductor.backend)
    found = inductor.report(clear=True)
    assert_type(found, inductor.CompileReport)
    assert_type(found.graphs, tuple[inductor.CompiledGraph, ...])
    for graph in found.graphs:
        assert_type(graph.entries, tuple[inductor.Replacement, ...])


def errors(a: Tensor) -> None:
    kinds = cutwheel.errors.ArgumentError, cutwheel.errors.DeviceError, cutwheel.errors.DtypeError
    try:
        cutwheel.mm(a, a)
    except cutwheel.errors.ShapeError as error:
        assert_type(str(error), str)
    except (*kinds, cutwheel.errors.ScaledDtypeError):
        raise


def main() -> None:
    a = torch.empty(16, 64, device=DEVICE, dtype=BF16)
    weight = torch.empty(32, 64, device=DEVICE, dtype=BF16)
    bias = torch.empty(32, device=DEVICE, dtype=BF16)
    ends = torch.empty(3, device=DEVICE, dtype=torch.int32)
    volume = torch.empty(2, 8, 4, 8, 8, device=DEVICE, dtype=BF16)
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 1), torch.nn.ReLU()).eval()
    dense(a, weight.t(), weight, bias)
    scaled(a, weight, ends)
    grouped(a, weight.expand(3, 32, 64).contiguous(), ends)
    convolutions(volume)
    modules(a, volume[:, :, 0])
    whole_models(model, torch.zeros(1, 8, 4, 4))
    inspection()
    settings(a, weight.t())
    interception(a, weight.t())
    compiled_graphs()
    errors(a)
