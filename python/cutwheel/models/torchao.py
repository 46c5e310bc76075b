"""A configuration for torchao's quantize_: linear layers by cutwheel.nn.ScaledLinear. Experimental.

    from torchao.quantization import quantize_
    from cutwheel.models.torchao import Float8Config
    quantize_(model, Float8Config())

Importing this module imports torchao and registers the handler there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from ..nn.scaled import ScaledLinear

if TYPE_CHECKING:
    AOBaseConfig: Any = object
    register_quantize_module_handler: Any
else:
    try:
        from torchao.core.config import AOBaseConfig
        from torchao.quantization.transform_module import register_quantize_module_handler
    except ImportError as error:
        raise ImportError(
            f"cutwheel.models.torchao: torchao cannot be imported ({error}); expected torchao 0.10 "
            "or newer: pip install torchao"
        ) from error

__all__ = ["Float8Config", "Int8Config"]


@dataclasses.dataclass
class Float8Config(AOBaseConfig):  # type: ignore[misc]
    """Weights and inputs in float8_e4m3fn; inputs are quantised at each call.

    quantize_ puts a ScaledLinear in place of each linear layer that it chooses, rather than a
    tensor subclass in place of its weight: the state dict is that of ScaledLinear.

    Args:
        recipe: "rowwise", "tensorwise" or "blockwise", as in ScaledLinear
        use_fast_accum: as in scaled_mm
    """

    recipe: str = "rowwise"
    use_fast_accum: bool = True


@dataclasses.dataclass
class Int8Config(AOBaseConfig):  # type: ignore[misc]
    """Weights and inputs in int8, as Float8Config.

    Args:
        recipe: "rowwise" or "tensorwise"
        symmetric: False: inputs are quantised with a zero point
    """

    recipe: str = "rowwise"
    symmetric: bool = True


@register_quantize_module_handler(Float8Config)  # type: ignore[untyped-decorator]
def _float8(module: torch.nn.Module, config: Float8Config) -> torch.nn.Module:
    return _scaled(module, config, torch.float8_e4m3fn, use_fast_accum=config.use_fast_accum)


@register_quantize_module_handler(Int8Config)  # type: ignore[untyped-decorator]
def _int8(module: torch.nn.Module, config: Int8Config) -> torch.nn.Module:
    return _scaled(module, config, torch.int8, symmetric=config.symmetric)


def _scaled(module: Any, config: Any, dtype: torch.dtype, **options: Any) -> torch.nn.Module:
    layer = ScaledLinear.from_linear(module, config.recipe, dtype=dtype, **options)
    return layer.train(module.training)
