"""Which class of Transformers and diffusers is computed as what.

A class of Transformers is known by its name and the package `transformers.models`; one that is
derived from it elsewhere may do other things, and is not. Gated linear units are written down in
many places, as diffusers has them and otherwise: they are known by the name of the class, and by
what their forward makes of a few numbers.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..ops._common.activations import ACTIVATIONS

PACKAGE = "transformers.models."


class Gated(NamedTuple):
    """An MLP: down(act(gate(x)) * up(x))."""

    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    """two layers, or one whose rows are gate, then up"""
    down: str = "down_proj"
    activation: str = "act_fn"


class Attention(NamedTuple):
    """Linear layers that a block's forward calls with its first argument."""

    alternatives: tuple[tuple[str, ...], ...] = (("q_proj", "k_proj", "v_proj"),)
    """names of the layers to be merged; the first ones that are there"""


class Activated(NamedTuple):
    """A linear layer, and the attribute with the activation of its result."""

    linear: str
    activation: str


_LATENT = Attention((("q_a_proj", "kv_a_proj_with_mqa"), ("q_proj", "kv_a_proj_with_mqa")))
_SEPARATE = Attention((("query", "key", "value"),))

KNOWN: dict[str, Gated | Attention | Activated] = {
    **dict.fromkeys(
        (
            *("LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "GemmaMLP", "Gemma2MLP"),
            *("Gemma3MLP", "Qwen2MoeMLP", "Qwen3MoeMLP", "DeepseekV2MLP", "DeepseekV3MLP"),
        ),
        Gated(),
    ),
    "Phi3MLP": Gated(("gate_up_proj",), "down_proj", "activation_fn"),
    **dict.fromkeys(
        (
            *("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"),
            *("GemmaAttention", "Gemma2Attention", "Gemma3Attention", "PhiAttention"),
            *("MixtralAttention", "Qwen2MoeAttention", "Qwen3MoeAttention", "GptOssAttention"),
            *("ViTAttention", "WhisperAttention"),
        ),
        Attention(),
    ),
    "DeepseekV3Attention": _LATENT,
    "BertSelfAttention": _SEPARATE,
    "ViTSelfAttention": _SEPARATE,
    "BertIntermediate": Activated("dense", "intermediate_act_fn"),
    "ViTIntermediate": Activated("dense", "intermediate_act_fn"),
    **dict.fromkeys(
        ("ViTMLP", "PhiMLP", "WhisperEncoderLayer", "WhisperDecoderLayer"),
        Activated("fc1", "activation_fn"),
    ),
}

CROSS = ("encoder_attn", "crossattention")
"""names of attention blocks whose keys and values are of another sequence than their queries"""

_ACTIVATIONS = {
    **dict.fromkeys(("SiLU", "SiLUActivation"), "silu"),
    **dict.fromkeys(("GELUTanh", "PytorchGELUTanh", "NewGELUActivation"), "gelu_tanh"),
    **dict.fromkeys(("FastGELUActivation", "AccurateGELUActivation"), "gelu_tanh"),
    "GELUActivation": "gelu",
    "ReLU": "relu",
}
_FUNCTIONS = {
    torch.nn.functional.silu: "silu",
    torch.nn.functional.gelu: "gelu",
    torch.nn.functional.relu: "relu",
    torch.relu: "relu",
}


def kind_of(module: torch.nn.Module) -> Gated | Attention | Activated | None:
    """None: it is no class that is known."""
    kind = type(module)
    return KNOWN.get(kind.__name__) if kind.__module__.startswith(PACKAGE) else None


# --- gated linear units

UNITS = ("GEGLU", "SwiGLU")
"""names of classes: act of one half of a layer's results, times the other half"""
UNIT_LAYER = "proj"


class Gate(NamedTuple):
    activation: str
    is_last: bool
    """whether the activation is applied to the second half"""


def is_unit(module: torch.nn.Module) -> bool:
    """Whether it is a gated linear unit by its class and what it has."""
    layer = module._modules.get(UNIT_LAYER)
    return type(module).__name__ in UNITS and isinstance(layer, torch.nn.Linear)


def gate_of(module: torch.nn.Module) -> Gate | str:
    """The activation of a gated linear unit and its half, or why no kernel computes the unit."""
    others = [child for name, child in module._modules.items() if name != UNIT_LAYER]
    has_more = any(activation_of(child) is None for child in others)
    if has_more or module._buffers or any(p is not None for p in module._parameters.values()):
        return f"it has more than {UNIT_LAYER} and an activation"
    layer: Any = module._modules[UNIT_LAYER]
    if layer.out_features % 2:
        return f"{UNIT_LAYER} makes an odd number of columns"
    forward: Any = type(module).forward
    first, *rest = [*inspect.signature(forward).parameters.values()][1:]
    if any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in rest):
        return f"its forward takes more than {first.name}"
    one, other = torch.tensor(_PROBES, device="cpu").unsqueeze(1)  # [1, 8] each
    given = torch.ones(1, 1, device="cpu")
    try:
        with torch.no_grad():
            found = forward(_Probed(module, given, torch.cat((one, other), dim=-1)), given)
            for name, function in ACTIVATIONS.items():
                if _is_same(found, one * function(other)):
                    return Gate(name, is_last=True)
                if _is_same(found, function(one) * other):
                    return Gate(name, is_last=False)
    except Exception as error:  # whatever the model's code raises
        return f"its forward is not understood ({type(error).__name__}: {error})"
    return "its forward is not the activation of a half, times the other half"


_PROBES = (
    (-1.5, 300.0, -300.0, 0.75, 2.0, -9.0, -0.5, 1.25),
    (-300.0, -9.0, -2.0, -0.5, 0.25, 1.5, 8.0, 300.0),
)
"""of either sign, small and large: activations differ, and clamping shows"""


def _is_same(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, 1e-5, 1e-6)


class _Probed:
    """A unit whose layer has given numbers for its results: `self` for the forward of its class."""

    def __init__(self, module: torch.nn.Module, given: Tensor, results: Tensor) -> None:
        self._module, self._given, self._results = module, given, results

    def __getattr__(self, name: str) -> Any:
        return self._layer if name == UNIT_LAYER else getattr(self._module, name)

    def _layer(self, input: Tensor) -> Tensor:
        if input is not self._given:
            raise ValueError(f"{UNIT_LAYER} is called with another input than forward")
        return self._results


def is_experts(module: torch.nn.Module) -> bool:
    """Whether its class is one that Transformers calls experts' implementations for."""
    kind = type(module)
    return (
        kind.__module__.startswith(PACKAGE)
        and hasattr(kind, "_apply_gate")
        and hasattr(module, "is_transposed")
        and hasattr(module, "has_bias")
    )


def activation_of(function: object) -> str | None:
    """cutwheel's name of an activation; None: no kernel has it."""
    if not isinstance(function, torch.nn.Module):
        try:
            return _FUNCTIONS.get(function)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            return None
    kind = type(function)
    if isinstance(function, torch.nn.GELU) and kind is torch.nn.GELU:
        return "gelu_tanh" if function.approximate == "tanh" else "gelu"
    known = kind.__module__.startswith(("transformers.activations", "torch.nn.modules."))
    return _ACTIVATIONS.get(kind.__name__) if known else None
