"""Which class of Transformers is computed as what.

A class is known by its name and the package `transformers.models`; one that is derived from it
elsewhere may do other things, and is not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

PACKAGE = "transformers.models."


class Gated(NamedTuple):
    """An MLP: down(act(gate(x)) * up(x)), without biases."""

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
