"""As much of vLLM as cutwheel's plugin touches: modules of its names, with its signatures.

What a layer does with a kernel is written down here as vLLM does it; test_vllm.py runs on vLLM's
own files, too, where they can be imported.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch

Tensor = torch.Tensor
QUANT = "vllm.model_executor.layers.quantization"
LINEAR = "vllm.model_executor.kernels.linear"


class PlatformEnum(enum.Enum):
    CUDA = enum.auto()
    CPU = enum.auto()


class GroupShape(NamedTuple):
    row: int
    col: int

    def is_per_tensor(self) -> bool:
        return self == (-1, -1)

    def is_per_token(self) -> bool:
        return self == (1, -1)

    def is_per_channel(self) -> bool:
        return self == (-1, 1)


@dataclass(frozen=True)
class ScaleDesc:
    dtype: torch.dtype
    static: bool
    group_shape: GroupShape


@dataclass(frozen=True)
class QuantKey:
    dtype: torch.dtype
    scale: ScaleDesc


@dataclass
class FP8ScaledMMLinearLayerConfig:
    weight_quant_key: QuantKey
    activation_quant_key: QuantKey
    weight_shape: tuple[int, int]
    input_dtype: torch.dtype
    out_dtype: torch.dtype


@dataclass
class Int8ScaledMMLinearLayerConfig:
    is_static_input_scheme: bool
    is_channelwise: bool
    input_symmetric: bool
    is_fused_module: bool = False


class QuantFP8:
    def __init__(
        self,
        static: bool,
        group_shape: GroupShape,
        num_token_padding: int | None = None,
        column_major_scales: bool = False,
        use_ue8m0: bool | None = None,
    ) -> None:
        self.group_shape, self.column_major_scales = group_shape, column_major_scales

    def __call__(self, x: Tensor, scale: Any = None, *rest: Any, **more: Any) -> Any:
        parts = x.float().unflatten(-1, (-1, 128)) if self.group_shape.col > 0 else x.float()
        if scale is None:
            dims = None if self.group_shape.is_per_tensor() else (-1,)
            largest = parts.abs().amax(dims, keepdim=dims is not None)
            scale = (largest / 448).reshape(1) if dims is None else largest / 448
        values = (parts / scale).clamp(-448, 448).view(x.shape).to(torch.float8_e4m3fn)
        if self.group_shape.col > 0:
            scale = scale.squeeze(-1)
        return values, scale.t().contiguous().t() if self.column_major_scales else scale


class _Kernel(ABC):
    @classmethod
    @abstractmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]: ...

    @classmethod
    @abstractmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]: ...

    def __init__(self, c: Any, layer_param_names: Any) -> None:
        assert self.can_implement(c)[0]
        assert self.is_supported()[0]
        self.config, self.layer_param_names = c, layer_param_names

    def input_quant_key(self) -> Any:
        return None

    @abstractmethod
    def process_weights_after_loading(self, layer: torch.nn.Module) -> None: ...

    @abstractmethod
    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor: ...

    def _get_layer_params(self, layer: Any) -> Any:
        return tuple(getattr(layer, name, None) for name in self.layer_param_names)


class FP8ScaledMMLinearKernel(_Kernel, ABC):
    def __init__(self, c: Any, layer_param_names: Any) -> None:
        of_input = c.activation_quant_key.scale
        self.quant_fp8 = QuantFP8(of_input.static, of_input.group_shape)
        super().__init__(c, layer_param_names)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        pass

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        weight, weight_scale, input_scale, _ = self._get_layer_params(layer)
        rows, input_scale = self.quant_fp8(x.view(-1, x.shape[-1]), input_scale)
        return self.apply_scaled_mm(
            A=rows,
            B=weight,
            out_dtype=self.config.out_dtype,
            As=input_scale,
            Bs=weight_scale,
            bias=bias,
            output_shape=[*x.shape[:-1], weight.shape[1]],
        )

    @abstractmethod
    def apply_scaled_mm(
        self,
        *,
        A: Tensor,
        B: Tensor,
        out_dtype: torch.dtype,
        As: Tensor,
        Bs: Tensor,
        bias: Tensor | None,
        output_shape: list[int],
    ) -> Tensor: ...

    def get_output_padding(self) -> int | None:
        return None


class CutlassInt8ScaledMMLinearKernel(_Kernel):
    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        replace_parameter(layer, "weight", layer.weight.t())
        if not self.config.is_static_input_scheme:
            if not self.config.input_symmetric:
                layer.azp_adj = frozen(layer.weight.sum(0, keepdim=True, dtype=torch.int32))
            return
        if self.config.input_symmetric:
            replace_parameter(layer, "input_scale", layer.input_scale.max())
            layer.input_zero_point = None
            return
        zero_points = layer.input_zero_point.int()
        high = (layer.input_scale * (127 - zero_points)).max()
        low = (layer.input_scale * (-128 - zero_points)).min()
        scale = (high - low) / 255
        replace_parameter(layer, "input_scale", scale)
        replace_parameter(layer, "input_zero_point", (-128 - low / scale).int())
        sums = layer.weight.sum(0, keepdim=True, dtype=torch.int32)
        layer.azp_adj = frozen(layer.input_zero_point * sums)

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        raise NotImplementedError("CUTLASS's")


@dataclass
class _BlockParams:
    weight: Tensor
    block_scale: Tensor
    block_scale_attr: str = "weight_scale_inv"


class Fp8BlockScaledMMLinearKernel(ABC):
    def __init__(self, config: Any) -> None:
        self.config = config

    @classmethod
    @abstractmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]: ...

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        is_static = config.activation_quant_key.scale.static
        return (False, "Only dynamic") if is_static else (True, None)

    def get_output_padding(self) -> int | None:
        return None

    def _get_layer_params(self, layer: Any, **kwargs: Any) -> _BlockParams:
        return _BlockParams(layer.weight, layer.weight_scale_inv)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        return None

    def apply_weights(self, layer: Any, x: Tensor, bias: Any = None, **kwargs: Any) -> Tensor:
        params = self._get_layer_params(layer)
        rows, scale = self.quant_fp8(x.view(-1, x.shape[-1]))  # type: ignore[attr-defined]
        made = self.apply_block_scaled_mm(A=rows, B=params.weight, As=scale, Bs=params.block_scale)
        return (made if bias is None else made + bias).view(*x.shape[:-1], params.weight.shape[0])

    @abstractmethod
    def apply_block_scaled_mm(self, A: Tensor, B: Tensor, As: Tensor, Bs: Tensor) -> Tensor: ...


class DeepGemmFp8BlockScaledMMKernel(Fp8BlockScaledMMLinearKernel):
    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.is_laid_out_for_deep_gemm = True

    def apply_block_scaled_mm(self, A: Tensor, B: Tensor, As: Tensor, Bs: Tensor) -> Tensor:
        raise NotImplementedError("DeepGEMM's")


def frozen(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, requires_grad=False)


def replace_parameter(layer: torch.nn.Module, name: str, tensor: Tensor) -> None:
    setattr(layer, name, frozen(tensor))


def modules() -> dict[str, ModuleType]:
    """By name, for sys.modules."""
    found: dict[str, ModuleType] = {}

    def module(name: str, **members: Any) -> ModuleType:
        made = found[name] = ModuleType(name)
        made.__path__ = []  # type: ignore[attr-defined]
        vars(made).update(members)
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(found.get(parent) or module(parent), last, made)
        return made

    module("vllm", __version__="double")
    envs = module("vllm.envs", VLLM_BATCH_INVARIANT=False)
    envs.compile_factors = dict  # type: ignore[attr-defined]
    module("vllm._custom_ops", scaled_int8_quant=None)
    module("vllm.platforms", PlatformEnum=PlatformEnum, current_platform=SimpleNamespace())
    module("vllm.model_executor.utils", replace_parameter=replace_parameter)
    module(f"{QUANT}.input_quant_fp8", QuantFP8=QuantFP8)
    tensor = QuantKey(torch.float8_e4m3fn, ScaleDesc(torch.float32, True, GroupShape(-1, -1)))
    module(
        f"{QUANT}.utils.quant_utils",
        GroupShape=GroupShape,
        QuantKey=QuantKey,
        ScaleDesc=ScaleDesc,
        kFp8StaticTensorSym=tensor,
    )
    lists: dict[str, dict[PlatformEnum, list[type]]] = {
        "fp8": {PlatformEnum.CUDA: [FP8ScaledMMLinearKernel]},
        "fp8_block": {PlatformEnum.CUDA: [DeepGemmFp8BlockScaledMMKernel]},
        "int8": {PlatformEnum.CUDA: [CutlassInt8ScaledMMLinearKernel]},
    }

    def register_linear_kernel(
        kernel_class: type, platform: PlatformEnum, kernel_type: str = "mp"
    ) -> None:
        lists[kernel_type][platform].append(kernel_class)

    module(
        LINEAR,
        register_linear_kernel=register_linear_kernel,
        _POSSIBLE_FP8_KERNELS=lists["fp8"],
        _POSSIBLE_FP8_BLOCK_KERNELS=lists["fp8_block"],
        _POSSIBLE_INT8_KERNELS=lists["int8"],
        FP8ScaledMMLinearLayerConfig=FP8ScaledMMLinearLayerConfig,
        Int8ScaledMMLinearLayerConfig=Int8ScaledMMLinearLayerConfig,
        CutlassInt8ScaledMMLinearKernel=CutlassInt8ScaledMMLinearKernel,
        DeepGemmFp8BlockScaledMMKernel=DeepGemmFp8BlockScaledMMKernel,
        Fp8BlockScaledMMLinearKernel=Fp8BlockScaledMMLinearKernel,
        FP8ScaledMMLinearKernel=FP8ScaledMMLinearKernel,
    )
    return found
