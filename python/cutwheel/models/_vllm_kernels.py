"""Kernels of cutwheel as classes of vLLM, which this module imports.

Each is one of vLLM's own kernels whose product is scaled_mm: vLLM loads the weights, quantises the
input, alone or in a kernel of its own with what comes before, and captures graphs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm import _custom_ops as vllm_ops
from vllm import envs
from vllm.model_executor.kernels.linear import (
    CutlassInt8ScaledMMLinearKernel,
    DeepGemmFp8BlockScaledMMKernel,
    Fp8BlockScaledMMLinearKernel,
    FP8ScaledMMLinearKernel,
)
from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    GroupShape,
    kFp8StaticTensorSym,
)
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from ..ops.scaled import scaled_mm
from .vllm import CAPABILITIES

Answer = tuple[bool, str | None]
_YES: Answer = True, None
_RESULTS = (torch.bfloat16, torch.float16, torch.float32)
_ALIGNMENT = 16  # elements of one byte: where a row begins elsewhere, each call copies the weight


def _supported(first: int, capability: int | None) -> Answer:
    if not current_platform.is_cuda():
        return False, "requires CUDA"
    if envs.VLLM_BATCH_INVARIANT:
        return False, "has results that depend on the batch, and VLLM_BATCH_INVARIANT is set"
    if capability is None:
        found = current_platform.get_device_capability()
        capability = 0 if found is None else found.to_int()
    last = CAPABILITIES[1]
    if not first <= capability <= last:
        wanted = f"{first / 10:.1f} to {last / 10:.1f}"
        return False, f"requires a compute capability of {wanted}, not {capability / 10:.1f}"
    return _YES


def _fp8(config: Any) -> Answer:
    """What all layers in fp8 have in common."""
    for key, what in (
        (config.weight_quant_key, "weights"),
        (config.activation_quant_key, "inputs"),
    ):
        if key.dtype != torch.float8_e4m3fn:
            return False, f"takes {what} in float8_e4m3fn, not {key.dtype}"
        if key.scale.dtype != torch.float32:
            return False, f"takes scales of {what} in float32, not {key.scale.dtype}"
    if config.out_dtype not in (*_RESULTS, None):
        return False, f"has no results in {config.out_dtype}"
    k = config.weight_shape[-1]
    if k % _ALIGNMENT:
        return False, f"takes inputs of a multiple of {_ALIGNMENT} features, not {k}"
    return _YES


def _of_weight(scales: Tensor) -> tuple[Tensor, str]:
    """[N], [N, 1] or one for all, which is how checkpoints and vLLM have them."""
    return scales.reshape(-1), "tensorwise" if scales.numel() == 1 else "rowwise"


class CutwheelFp8LinearKernel(FP8ScaledMMLinearKernel):  # type: ignore[misc]
    """fp8: scales for the tensor or for each token, and for the weight or each output channel."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        return _supported(89, compute_capability)

    @classmethod
    def can_implement(cls, c: Any) -> Answer:
        of_input = c.activation_quant_key.scale.group_shape
        of_weight = c.weight_quant_key.scale.group_shape
        if not (of_input.is_per_tensor() or of_input.is_per_token()):
            return False, "takes one scale for the input or one for each token"
        # Those of a weight [N, K] are called by its channels, or by its rows.
        is_rowwise = of_weight.is_per_channel() or of_weight.is_per_token()
        if not (of_weight.is_per_tensor() or is_rowwise):
            return False, "takes one scale for the weight or one for each output channel"
        return _fp8(c)

    def input_quant_key(self) -> Any:
        key = self.config.activation_quant_key
        return key if key == kFp8StaticTensorSym else None

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
    ) -> Tensor:
        """A [M, K], B [K, N] (the transpose of a contiguous matrix) -> output_shape"""
        # By what the layer says: with one token the shape of its scale could be either.
        is_tensorwise = self.config.activation_quant_key.scale.group_shape.is_per_tensor()
        scale_b, recipe_b = _of_weight(Bs)
        result = scaled_mm(
            A,
            B,
            As,
            "tensorwise" if is_tensorwise else "rowwise",
            scale_b,
            recipe_b,
            bias=bias,
            output_dtype=out_dtype,
            use_fast_accum=True,  # as vLLM's kernels of CUTLASS
        )
        return result.view(*output_shape)


class CutwheelFp8BlockLinearKernel(Fp8BlockScaledMMLinearKernel):  # type: ignore[misc]
    """fp8: a scale for 128 elements of a token and for 128 x 128 of the weight, as DeepSeek V3."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        of_input = config.activation_quant_key.scale
        self.quant_fp8 = QuantFP8(
            static=of_input.static,
            group_shape=of_input.group_shape,
            num_token_padding=self.get_output_padding(),
            use_ue8m0=False,
            column_major_scales=True,  # a tile's rows share a load
        )

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        return _supported(89, compute_capability)

    @classmethod
    def can_implement(cls, config: Any) -> Answer:
        can, reason = super().can_implement(config)
        if not can:
            return can, reason
        if config.activation_quant_key.scale.group_shape != GroupShape(1, 128):
            return False, "takes a scale for 128 elements of a token"
        if config.weight_quant_key.scale.group_shape != GroupShape(128, 128):
            return False, "takes a scale for 128 x 128 elements of the weight"
        return _fp8(config)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        if getattr(layer, "is_bmm", False):
            # Such a layer is never called: vLLM gives its weight to fp8_einsum of DeepGEMM.
            DeepGemmFp8BlockScaledMMKernel(self.config).process_weights_after_loading(layer)
            return
        super().process_weights_after_loading(layer)
        params = self._get_layer_params(layer)
        if params.block_scale.dtype != torch.float32:  # exponents alone, float8_e8m0fnu
            replace_parameter(layer, params.block_scale_attr, params.block_scale.float())

    def apply_block_scaled_mm(
        self,
        A: Tensor,
        B: Tensor,
        As: Tensor,
        Bs: Tensor,
    ) -> Tensor:
        """A [M, K], B [N, K], As [M, ceil(K / 128)], Bs [ceil(N / 128), ceil(K / 128)] -> [M, N]"""
        return scaled_mm(
            A,
            B.t(),
            As,
            "blockwise_1x128",
            Bs.t(),
            "blockwise_128x128",
            output_dtype=self.config.out_dtype,
        )


class CutwheelInt8LinearKernel(CutlassInt8ScaledMMLinearKernel):  # type: ignore[misc]
    """int8: weights as vLLM lays them out for CUTLASS, inputs with or without a zero point."""

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        return _supported(CAPABILITIES[0], compute_capability)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        super().process_weights_after_loading(layer)
        if self.config.is_static_input_scheme and not self.config.input_symmetric:
            # vLLM has multiplied the sums by the zero point, which scaled_mm does.
            weight, *_, azp_adj = self.layer_param_names
            sums = getattr(layer, weight).sum(0, dtype=torch.int32)
            setattr(layer, azp_adj, torch.nn.Parameter(sums, requires_grad=False))

    def apply_weights(
        self, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        """x [..., K] -> [..., N], in the dtype of x"""
        weight, scale_b, input_scale, zero_point, azp_adj = self._get_layer_params(layer)
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        values, scale_a, azp = vllm_ops.scaled_int8_quant(
            rows, input_scale, zero_point, symmetric=azp_adj is None
        )
        scale_b, recipe_b = _of_weight(scale_b)
        result = scaled_mm(
            values,
            weight,
            scale_a,
            "tensorwise" if self.config.is_static_input_scheme else "rowwise",
            scale_b,
            recipe_b,
            bias=bias,
            output_dtype=x.dtype,
            azp=azp,
            azp_adj=None if azp is None else azp_adj.reshape(-1),
        )
        return result.view(*x.shape[:-1], weight.shape[1])


KERNELS = (CutwheelFp8LinearKernel, CutwheelFp8BlockLinearKernel, CutwheelInt8LinearKernel)
"""in the order of the kinds that they are registered as"""
