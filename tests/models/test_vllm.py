"""The plugin for vLLM: on vLLM's own Python files where they can be imported, and on a double.

No GPU: the platform is made up, products run on reference kernels.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_double
from cpu_reference import CpuOps
from vllm_double import LINEAR, QUANT

Tensor = torch.Tensor
FP8 = torch.float8_e4m3fn
N, K = 384, 256
FP8_NAMES = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
INT8_NAMES = ["weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj"]


class Capability(SimpleNamespace):
    def to_int(self) -> int:
        number: int = self.number
        return number

    def __getitem__(self, index: int) -> int:
        return (self.number // 10, self.number % 10)[index]


class Platform(SimpleNamespace):
    """vLLM's current_platform, of a GPU that is not there."""

    def is_cuda(self) -> bool:
        return bool(self._enum.name == "CUDA")

    def get_device_capability(self, device_id: int = 0) -> Any:
        return None if self.number is None else Capability(number=self.number)

    def fp8_dtype(self) -> torch.dtype:
        return FP8


class Interface:
    """vLLM, or its double, with a GPU of compute capability 9.0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.linear: Any = importlib.import_module(LINEAR)
        self.quant: Any = importlib.import_module(f"{QUANT}.utils.quant_utils")
        self.envs: Any = importlib.import_module("vllm.envs")
        self.platforms: Any = importlib.import_module("vllm.platforms")
        self.cuda = self.platforms.PlatformEnum.CUDA
        self.platform = Platform(_enum=self.cuda, number=90)
        for module in (self.platforms, self.linear):
            monkeypatch.setattr(module, "current_platform", self.platform, raising=False)
        for name in ("FP8", "FP8_BLOCK", "INT8"):
            own = self.lists(name)
            monkeypatch.setitem(getattr(self.linear, f"_POSSIBLE_{name}_KERNELS"), self.cuda, own)
        self.plugin: Any = importlib.import_module("cutwheel.models.vllm")

    @property
    def kernels(self) -> Any:
        return importlib.import_module("cutwheel.models._vllm_kernels")

    def lists(self, name: str) -> list[type]:
        return list(getattr(self.linear, f"_POSSIBLE_{name}_KERNELS")[self.cuda])

    def key(self, row: int, col: int, static: bool, dtype: torch.dtype = FP8, **more: Any) -> Any:
        scale = self.quant.ScaleDesc(
            more.get("scale", torch.float32), static, self.quant.GroupShape(row, col)
        )
        return self.quant.QuantKey(dtype, scale)

    def config(self, of_input: Any, of_weight: Any, **more: Any) -> Any:
        """For layers with inputs of K features."""
        given = {
            "weight_shape": (N, K),
            "input_dtype": torch.bfloat16,
            "out_dtype": torch.bfloat16,
        }
        return self.linear.FP8ScaledMMLinearLayerConfig(
            weight_quant_key=of_weight, activation_quant_key=of_input, **given | more
        )


def forget() -> None:
    """The classes, which derive from those of the one vLLM that there was."""
    sys.modules.pop("cutwheel.models._vllm_kernels", None)
    vars(importlib.import_module("cutwheel.models")).pop("_vllm_kernels", None)


@pytest.fixture(params=["double", "vllm"])
def interface(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, cutwheel: ModuleType
) -> Iterator[Interface]:
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "")
    forget()
    if request.param == "double":
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            monkeypatch.delitem(sys.modules, name)
        for name, module in vllm_double.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        yield Interface(monkeypatch)
    else:
        pytest.importorskip("vllm", reason="vLLM is not installed", exc_type=ImportError)
        try:
            importlib.import_module(LINEAR)
        except ImportError as error:
            pytest.skip(f"vLLM's kernels do not import: {error}")
        from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config

        with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
            yield Interface(monkeypatch)
    forget()


# --- registering


def test_the_entry_point_names_the_function(cutwheel: ModuleType) -> None:
    try:
        found = importlib.metadata.distribution("cutwheel").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("cutwheel is not installed, only importable")
    (entry,) = found.select(group="vllm.general_plugins")
    assert entry.name == "cutwheel"
    assert entry.load() is importlib.import_module("cutwheel.models.vllm").register


def test_kernels_come_first_and_once(
    interface: Interface, caplog: pytest.LogCaptureFixture
) -> None:
    before = {name: interface.lists(name) for name in ("FP8", "FP8_BLOCK", "INT8")}
    with caplog.at_level(logging.INFO, "cutwheel"):
        interface.plugin.register()
        interface.plugin.register()
    kernels = interface.kernels
    firsts = {
        "FP8": kernels.CutwheelFp8LinearKernel,
        "FP8_BLOCK": kernels.CutwheelFp8BlockLinearKernel,
        "INT8": kernels.CutwheelInt8LinearKernel,
    }
    for name, own in before.items():
        assert interface.lists(name) == [firsts[name], *own]
    assert (
        caplog.messages
        == [
            "vLLM: registered CutwheelFp8LinearKernel, CutwheelFp8BlockLinearKernel, "
            "CutwheelInt8LinearKernel"
        ]
        * 2
    )


def test_what_vllm_compiled_without_is_not_loaded(
    interface: Interface, monkeypatch: pytest.MonkeyPatch, cutwheel: ModuleType
) -> None:
    monkeypatch.setenv("VLLM_DISABLED_KERNELS", "MarlinLinearKernel")
    before = interface.envs.compile_factors()
    interface.plugin.register()
    interface.plugin.register()
    found = os.environ["VLLM_DISABLED_KERNELS"].split(",")
    assert found == ["MarlinLinearKernel", f"without-cutwheel-{cutwheel.__version__}"]
    if before:
        assert interface.envs.compile_factors() != before


@pytest.mark.parametrize(
    ("number", "reason"),
    [(75, "capability 7.5"), (100, "capability 10.0"), (None, "no GPU"), ("CPU", "not CUDA")],
)
def test_other_gpus_are_left_to_vllm(
    interface: Interface, number: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    interface.platform.number = number
    if number == "CPU":
        interface.platform._enum = interface.platforms.PlatformEnum.CPU
    before = interface.lists("FP8")
    with caplog.at_level(logging.INFO, "cutwheel"):
        interface.plugin.register()
    assert interface.lists("FP8") == before
    (message,) = caplog.messages
    assert message.startswith("vLLM: no kernels are registered: ")
    assert reason in message
    assert os.environ["VLLM_DISABLED_KERNELS"] == ""


def _another_parameter(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(kernel_class: type, platform: Any, kernel_type: str, priority: int) -> None: ...

    monkeypatch.setattr(linear, "register_linear_kernel", other)


def _another_list(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_POSSIBLE_FP8_KERNELS", {})


def _another_name(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(linear, "Fp8BlockScaledMMLinearKernel")


def _another_method(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Base(linear.FP8ScaledMMLinearKernel):
        def apply_scaled_mm(self, *, A: Any, B: Any, out: Any) -> None: ...

    monkeypatch.setattr(linear, "FP8ScaledMMLinearKernel", Base)


def _one_more_method(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from abc import abstractmethod

    class Base(linear.FP8ScaledMMLinearKernel):
        @abstractmethod
        def warm_up(self) -> None: ...

    monkeypatch.setattr(linear, "FP8ScaledMMLinearKernel", Base)


def _another_field(linear: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = linear.Int8ScaledMMLinearLayerConfig
    monkeypatch.setattr(linear, "FP8ScaledMMLinearLayerConfig", config)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_another_parameter, "register_linear_kernel has the parameters"),
        (_another_list, "_POSSIBLE_FP8_KERNELS holds no list"),
        (_another_name, "ImportError"),
        (_another_method, "apply_scaled_mm takes other things"),
        (_one_more_method, "asks for warm_up"),
        (_another_field, "FP8ScaledMMLinearLayerConfig has no weight_quant_key"),
    ],
)
def test_another_interface_is_left_alone(
    interface: Interface,
    change: Any,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = interface.lists("INT8")
    change(interface.linear, monkeypatch)
    interface.plugin.register()
    assert interface.lists("INT8") == before
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert reason in record.message


def test_without_vllm_nothing_is_raised(
    cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.platforms", None)
    importlib.import_module("cutwheel.models.vllm").register()
    (record,) = caplog.records
    assert "ImportError" in record.message or "ModuleNotFoundError" in record.message


# --- what is taken


def test_is_supported(interface: Interface) -> None:
    kernels = interface.kernels
    for number, of_fp8, of_int8 in ((80, False, True), (89, True, True), (90, True, True)):
        assert kernels.CutwheelFp8LinearKernel.is_supported(number)[0] is of_fp8
        assert kernels.CutwheelFp8BlockLinearKernel.is_supported(number)[0] is of_fp8
        assert kernels.CutwheelInt8LinearKernel.is_supported(number)[0] is of_int8
    assert kernels.CutwheelFp8LinearKernel.is_supported() == (True, None)
    supported, reason = kernels.CutwheelFp8LinearKernel.is_supported(120)
    assert not supported
    assert "8.9 to 9.0, not 12.0" in reason


def test_batch_invariant_is_left_to_vllm(
    interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interface.kernels.envs, "VLLM_BATCH_INVARIANT", True, raising=False)
    for kernel in interface.kernels.KERNELS:
        supported, reason = kernel.is_supported(90)
        assert not supported
        assert "VLLM_BATCH_INVARIANT" in reason


def test_can_implement(interface: Interface) -> None:
    kernel, of_blocks = interface.kernels.KERNELS[:2]
    key = interface.key
    tensor, token, channel = key(-1, -1, True), key(1, -1, False), key(-1, 1, True)
    inputs, weights = key(1, 128, False), key(128, 128, True)
    for of_input in (tensor, key(-1, -1, False), token):
        for of_weight in (tensor, channel, key(1, -1, True)):
            assert kernel.can_implement(interface.config(of_input, of_weight)) == (True, None)
    assert of_blocks.can_implement(interface.config(inputs, weights)) == (True, None)
    for which, of_input, of_weight, more, reason in (
        (kernel, inputs, tensor, {}, "for each token"),
        (kernel, token, weights, {}, "output channel"),
        (kernel, token, channel, {"out_dtype": torch.float64}, "float64"),
        (kernel, token, channel, {"weight_shape": (N, 40)}, "multiple of 16 features, not 40"),
        (kernel, key(-1, -1, True, torch.float8_e5m2), tensor, {}, "float8_e5m2"),
        (of_blocks, key(1, 128, True), weights, {}, "Only dynamic"),
        (of_blocks, key(1, 64, False), weights, {}, "128 elements of a token"),
        (of_blocks, inputs, key(64, 128, True), {}, "128 x 128"),
        (of_blocks, inputs, key(128, 128, True, scale=torch.float8_e8m0fnu), {}, "in float32"),
    ):
        can, found = which.can_implement(interface.config(of_input, of_weight, **more))
        assert not can
        assert reason in found


def test_vllm_chooses_them(interface: Interface) -> None:
    choose = getattr(interface.linear, "choose_scaled_mm_linear_kernel", None)
    if choose is None:
        pytest.skip("the double chooses nothing")
    interface.plugin.register()
    config = interface.config(interface.key(1, -1, False), interface.key(-1, 1, True))
    lists = interface.linear._POSSIBLE_FP8_KERNELS
    chosen = choose(config, lists, 90, quantization="fp8_w8a8")
    assert chosen is interface.kernels.CutwheelFp8LinearKernel
    os.environ["VLLM_DISABLED_KERNELS"] += ",CutwheelFp8LinearKernel"
    asked = interface.linear.is_supported_and_can_implement_kernel(chosen, config, 90)
    assert asked[0] is False
    assert "disabled" in asked[1]


# --- results


def layer_of(**tensors: Any) -> torch.nn.Module:
    """As vLLM's layers hold them."""
    layer = torch.nn.Module()
    for name, tensor in tensors.items():
        setattr(layer, name, None if tensor is None else vllm_double.frozen(tensor))
    return layer


def quantise_by_torch(kernel: Any) -> None:
    """vLLM's own formula, in place of its kernels for GPUs."""
    if hasattr(kernel.quant_fp8, "forward_native"):
        kernel.quant_fp8._forward_method = kernel.quant_fp8.forward_native


def wanted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(x.float(), weight, None if bias is None else bias.float())


def close(found: Tensor, want: Tensor, most: float) -> None:
    assert found.shape == want.shape
    error = float((found.double() - want.double()).norm() / want.double().norm())
    assert 0 < error < most


@pytest.mark.parametrize("shape", [(9, K), (1, K), (2, 5, K)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("of_input", ["token", "tensor", "static"])
@pytest.mark.parametrize("of_weight", ["channel", "channel 1d", "tensor"])
def test_fp8(
    interface: Interface,
    cpu_ops: CpuOps,
    of_weight: str,
    of_input: str,
    with_bias: bool,
    shape: tuple[int, ...],
) -> None:
    weight, x = torch.randn(N, K), torch.randn(*shape).bfloat16()
    bias = torch.randn(N).bfloat16() if with_bias else None
    scale = weight.abs().amax(1, keepdim=True) / 448
    if of_weight == "tensor":
        scale = scale.amax()
    values = (weight / scale).to(FP8)
    input_scale = (x.float().abs().amax() / 448) if of_input == "static" else None
    layer = layer_of(
        weight=values.t(),
        weight_scale=scale.squeeze(1) if of_weight == "channel 1d" else scale,
        input_scale=input_scale,
    )
    key_of_input = interface.key(1 if of_input == "token" else -1, -1, of_input == "static")
    key_of_weight = interface.key(-1, -1 if of_weight == "tensor" else 1, True)
    kernel = interface.kernels.CutwheelFp8LinearKernel(
        interface.config(key_of_input, key_of_weight), FP8_NAMES
    )
    quantise_by_torch(kernel)
    kernel.process_weights_after_loading(layer)
    found = kernel.apply_weights(layer, x, bias)
    assert found.dtype == torch.bfloat16
    assert [call[0] for call in cpu_ops.calls] == ["scaled_mm"]
    assert cpu_ops.calls[0][2] is True  # fast accumulation
    close(found, wanted(x, weight, bias), 0.06)
    takes_fp8 = kernel.input_quant_key()
    assert (takes_fp8 == interface.quant.kFp8StaticTensorSym) == (of_input == "static")
    assert of_input == "static" or takes_fp8 is None


@pytest.mark.parametrize("e8m0", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_fp8_in_blocks(interface: Interface, cpu_ops: CpuOps, with_bias: bool, e8m0: bool) -> None:
    weight, x = torch.randn(N, K), torch.randn(2, 5, K).bfloat16()
    bias = torch.randn(N).bfloat16() if with_bias else None
    blocks = weight.view(N // 128, 128, K // 128, 128)
    scale = blocks.abs().amax((1, 3)) / 448
    if e8m0:
        scale = torch.exp2(scale.log2().ceil())
    values = (blocks / scale[:, None, :, None]).view(N, K).to(FP8)
    stored = scale.to(torch.float8_e8m0fnu) if e8m0 else scale
    layer = layer_of(weight=values, weight_scale_inv=stored, input_scale=None)
    config = interface.config(interface.key(1, 128, False), interface.key(128, 128, True))
    kernel = interface.kernels.CutwheelFp8BlockLinearKernel(config)
    quantise_by_torch(kernel)
    kernel.process_weights_after_loading(layer)
    assert layer.weight_scale_inv.dtype == torch.float32
    found = kernel.apply_weights(layer, x, bias)
    close(found, wanted(x, weight, bias), 0.06)
    assert [call[:2] for call in cpu_ops.calls] == [("scaled_mm", (2, 3))]


def test_weights_of_einsums_are_laid_out_for_deep_gemm(
    interface: Interface, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.nn.Module] = []

    class DeepGemm:
        def __init__(self, config: Any) -> None: ...

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            seen.append(layer)

    monkeypatch.setattr(interface.kernels, "DeepGemmFp8BlockScaledMMKernel", DeepGemm)
    config = interface.config(interface.key(1, 128, False), interface.key(128, 128, True))
    layer = layer_of(weight=torch.zeros(N, K).to(FP8), weight_scale_inv=torch.ones(3, 2))
    layer.is_bmm = True  # type: ignore[assignment]
    interface.kernels.CutwheelFp8BlockLinearKernel(config).process_weights_after_loading(layer)
    assert seen == [layer]


def int8_quant(x: Tensor, scale: Any, azp: Any, symmetric: bool = True) -> tuple[Any, ...]:
    """vLLM's op, by its description: static for the tensor, dynamic for each row."""
    if scale is None and symmetric:
        scale = x.float().abs().amax(1, keepdim=True) / 127
    elif scale is None:
        low, high = x.float().amin(1, keepdim=True), x.float().amax(1, keepdim=True)
        scale = (high - low) / 255
        azp = (-128 - low / scale).round().int()
    values = (x.float() / scale).round() + (0 if azp is None else azp)
    return values.clamp(-128, 127).to(torch.int8), scale, azp


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("is_channelwise", [True, False])
def test_int8(
    interface: Interface,
    cpu_ops: CpuOps,
    monkeypatch: pytest.MonkeyPatch,
    is_channelwise: bool,
    is_static: bool,
    is_symmetric: bool,
    with_bias: bool,
) -> None:
    monkeypatch.setattr(interface.kernels.vllm_ops, "scaled_int8_quant", int8_quant)
    weight, x = torch.randn(N, K), torch.randn(2, 5, K).bfloat16()
    x = x if is_symmetric else (x * 0.5 + 0.5).bfloat16()
    bias = torch.randn(N).bfloat16() if with_bias else None
    scale = weight.abs().amax(1, keepdim=True) / 127
    scale = scale if is_channelwise else scale.amax().reshape(1)
    low, high = x.float().amin(), x.float().amax()
    zero_point, input_scale = None, None
    if is_static:
        input_scale = (high - low) / 255
        zero_point = None if is_symmetric else (-128 - low / input_scale).round().to(torch.int8)
        if is_symmetric:
            input_scale = torch.maximum(-low, high) / 127
        input_scale = input_scale.reshape(1)
    layer = layer_of(
        weight=(weight / scale).round().to(torch.int8),
        weight_scale=scale,
        input_scale=input_scale,
        input_zero_point=None if zero_point is None else zero_point.reshape(1),
        azp_adj=None,
    )
    layer.logical_widths = [N]  # type: ignore[assignment]
    config = interface.linear.Int8ScaledMMLinearLayerConfig(
        is_static_input_scheme=is_static,
        is_channelwise=is_channelwise,
        input_symmetric=is_symmetric,
    )
    kernel = interface.kernels.CutwheelInt8LinearKernel(config, INT8_NAMES)
    kernel.process_weights_after_loading(layer)
    found = kernel.apply_weights(layer, x, bias)
    assert found.dtype == torch.bfloat16
    close(found, wanted(x, weight, bias), 0.03)
    assert [call[0] for call in cpu_ops.calls] == ["scaled_mm"]
