"""The plugin for vLLM: linear layers in fp8 and int8 by kernels of cutwheel. Experimental.

vLLM finds `register` by the entry point `cutwheel` of the group `vllm.general_plugins`, and calls
it in each of its processes, unless VLLM_PLUGINS is set and does not name it. The kernels are in
_vllm_kernels.py, which is imported where vLLM is.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import os
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["register"]

WRITTEN_FOR = "0.33"
"""the version of vLLM whose interface this is; others count as long as theirs is the same"""
CAPABILITIES = (80, 90)
"""GPUs with native kernels, first and last; newer ones would run PTX where vLLM has native code"""

# What vLLM calls kinds of kernels, and where it keeps them, in the order in which it asks them.
_LISTS = {
    "fp8": "_POSSIBLE_FP8_KERNELS",
    "fp8_block": "_POSSIBLE_FP8_BLOCK_KERNELS",
    "int8": "_POSSIBLE_INT8_KERNELS",
}
_PARAMETERS = ("kernel_class", "platform", "kernel_type")
_FIELDS = {
    "FP8ScaledMMLinearLayerConfig": (
        *("weight_quant_key", "activation_quant_key"),
        *("weight_shape", "input_dtype", "out_dtype"),
    ),
    "Int8ScaledMMLinearLayerConfig": ("is_static_input_scheme", "input_symmetric"),
}

_logger = logging.getLogger("cutwheel")


def register() -> None:
    """Puts cutwheel's kernels in front of vLLM's own, for linear layers in fp8 and int8.

    vLLM asks kernels in turn which of them takes a layer, so layers that cutwheel does not take go
    to vLLM's. Without effect on GPUs other than those of compute capability 8.0 to 9.0, and where
    vLLM's interface is another; the logger "cutwheel" tells. May be called again.

    It raises nothing: an exception of a plugin would stop vLLM.
    """
    try:
        _register()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _logger.warning("vLLM: no kernels are registered: %s", reason, exc_info=error)


def _register() -> None:
    from vllm.platforms import current_platform

    reason = _unsupported(current_platform)
    if reason is not None:
        _logger.info("vLLM: no kernels are registered: %s", reason)
        return
    from vllm.model_executor.kernels import linear

    from . import _vllm_kernels

    kernels = dict(zip(_LISTS, _vllm_kernels.KERNELS, strict=True))
    reason = _difference(linear, current_platform, list(kernels.values()))
    if reason is not None:
        _logger.warning(
            "vLLM: no kernels are registered: %s; expected the interface of vLLM %s",
            reason,
            WRITTEN_FOR,
        )
        return
    cuda = current_platform._enum
    for kind, kernel in kernels.items():
        found = getattr(linear, _LISTS[kind])[cuda]
        if kernel not in found:
            linear.register_linear_kernel(kernel, cuda, kind)  # behind vLLM's own
            found.insert(0, found.pop(found.index(kernel)))
    _change_cache_key()
    _logger.info("vLLM: registered %s", ", ".join(k.__name__ for k in kernels.values()))


def _unsupported(platform: Any) -> str | None:
    """Why this GPU is left to vLLM; None: it is not. Asks vLLM, which does not initialise CUDA."""
    if not platform.is_cuda():
        return "the platform is not CUDA"
    capability = platform.get_device_capability()
    first, last = CAPABILITIES
    if capability is None:
        return "there is no GPU"
    found = capability.to_int()
    if not first <= found <= last:
        wanted = f"{first / 10:.1f} to {last / 10:.1f}"
        return f"the GPU has compute capability {found / 10:.1f}; expected {wanted}"
    return None


def _difference(linear: ModuleType, platform: Any, kernels: list[type]) -> str | None:
    """How vLLM's interface differs from what the kernels are written for; None: it does not."""
    parameters = tuple(inspect.signature(linear.register_linear_kernel).parameters)
    if parameters != _PARAMETERS:
        return f"register_linear_kernel has the parameters {', '.join(parameters)}"
    for name in _LISTS.values():
        kinds = getattr(linear, name, None)
        if not isinstance(kinds, dict) or not isinstance(kinds.get(platform._enum), list):
            return f"{name} holds no list of kernels for CUDA"
    for name, wanted in _FIELDS.items():
        fields = {field.name for field in dataclasses.fields(getattr(linear, name))}
        if missing := [field for field in wanted if field not in fields]:
            return f"{name} has no {', '.join(missing)}"
    for kernel in kernels:
        if missing := sorted(getattr(kernel, "__abstractmethods__", ())):
            return f"{kernel.__bases__[0].__name__} asks for {', '.join(missing)}"
        for name, method in vars(kernel).items():
            if name.startswith("__") or not isinstance(method, (FunctionType, classmethod)):
                continue
            theirs = getattr(super(kernel, kernel), name, None)
            if theirs is None or _names(theirs) != _names(getattr(kernel, name)):
                where = f"{kernel.__bases__[0].__name__}.{name}"
                return f"{where} is not there" if theirs is None else f"{where} takes other things"
    return None


def _names(method: Any) -> set[str]:
    """Parameters, without the object: super() finds functions, and methods of classes."""
    return set(inspect.signature(method).parameters) - {"self"}


def _change_cache_key() -> None:
    """Keeps vLLM from loading what it compiled without these kernels.

    Its cache of compiled models does not know which kernels there were, and those that it would
    call then want weights laid out in another way. Its key has the names of disabled kernels: one
    that there is not disables nothing.
    """
    from .. import __version__

    mark = f"without-cutwheel-{__version__}"
    disabled = [name for name in os.environ.get("VLLM_DISABLED_KERNELS", "").split(",") if name]
    if mark not in disabled:
        os.environ["VLLM_DISABLED_KERNELS"] = ",".join([*disabled, mark])
