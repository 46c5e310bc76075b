"""Experts of Transformers' models: a function for its interface, and modules that have it.

Transformers holds experts' weights as gate_up_proj, [G, 2F, H] with the rows of gate, then those of
up (GPT-OSS: [G, H, 2F], columns in turn), and down_proj, [G, H, F]. The grouped kernels read these
by strides, the one with a gate in it, too.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from ..nn.experts import by_expert
from ..ops.grouped import grouped_mm
from ..ops.grouped._linear import gathered_gated_linear, gathered_linear
from ..ops.grouped._permutation import Routing, permute
from .families import activation_of
from .joined import Joined, become

NAME = "cutwheel"


def experts_forward(
    self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The weighted sum of the chosen experts' results: an implementation for Transformers' experts.

    Args:
        self: a module of a class with transformers' use_experts_implementation
        hidden_states: [T, H]
        top_k_index: [T, k], int32 or int64; ids from the number of experts on are no experts
        top_k_weights: [T, k]

    Returns:
        [T, H], in the dtype of hidden_states
    """
    first = "gate_up_proj" if getattr(self, "has_gate", True) else "up_proj"
    has_bias = getattr(self, "has_bias", False)

    def product(rows: Tensor, name: str, routing: Routing, are_tokens: bool = False) -> Tensor:
        weight = getattr(self, name)
        bias = getattr(self, f"{name}_bias") if has_bias else None
        if not torch.is_autocast_enabled():
            rows = rows.to(weight.dtype)
        if are_tokens and bias is None and not self.is_transposed:
            return gathered_linear(rows, weight, routing)
        if are_tokens:
            rows = permute(rows, routing.places)
        right = weight if self.is_transposed else weight.mT
        return grouped_mm(rows, right, offs=routing.offs, bias=bias)

    activation = None if why_not_gated(self) else activation_of(self.act_fn)

    def mlp(tokens: Tensor, routing: Routing) -> Tensor:
        if activation is not None:
            weight = self.gate_up_proj
            rows = tokens if torch.is_autocast_enabled() else tokens.to(weight.dtype)
            hidden = gathered_gated_linear(rows, weight, routing, activation, interleaved=False)
        else:
            z = product(tokens, first, routing, are_tokens=True)
            hidden = self._apply_gate(z) if first == "gate_up_proj" else self.act_fn(z)
        results = product(hidden, "down_proj", routing)
        if getattr(self, "has_post_expert_norm", False):
            results = self.post_expert_norm(results)
        return results

    count = getattr(self, first).shape[0]
    result = by_expert(mlp, hidden_states, top_k_index, top_k_weights, count)
    return result.to(hidden_states.dtype)


def register_transformers() -> None:
    """Makes "cutwheel" an implementation of experts in Transformers, for the whole process.

    Then `from_pretrained(..., experts_implementation="cutwheel")` or
    `model.set_experts_implementation("cutwheel")` chooses it. Calling it again changes nothing.

    Raises:
        ImportError: transformers is not installed, or has no interface for experts (before 5.0)
    """
    try:
        moe = importlib.import_module("transformers.integrations.moe")
        interface = moe.ALL_EXPERTS_FUNCTIONS
    except (ImportError, AttributeError) as error:
        raise ImportError(
            "register_transformers: transformers.integrations.moe.ALL_EXPERTS_FUNCTIONS cannot be "
            f"imported ({error}); expected transformers 5.0 or newer: pip install 'transformers>=5'"
        ) from error
    interface.register(NAME, experts_forward)


class GroupedExpertsAsTheyLie(Joined):
    """Experts by grouped products of the original's weights; the gate is in one where it can be."""

    forward = experts_forward


def why_not_gated(module: Any) -> str | None:
    """Why the gate is no part of the kernel; None: it can be."""
    # The name of Transformers' own gate; a class with another formula has a method of its own.
    gate = getattr(getattr(type(module), "_apply_gate", None), "__name__", "")
    if getattr(module, "has_bias", False):
        return "experts with biases have no kernel with a gate"
    if module.is_transposed or not getattr(module, "is_concatenated", True):
        return "the weight is not [G, 2F, H] with the rows of gate, then those of up"
    if not getattr(module, "has_gate", True) or gate != "_default_apply_gate":
        return "the class has a gate of its own"
    if getattr(module, "has_post_expert_norm", False):
        return "a norm follows each expert"
    if activation_of(module.act_fn) is None:
        return f"no kernel has the activation {type(module.act_fn).__name__}"
    return None


def replace_experts(module: Any) -> tuple[str, tuple[str, ...], str]:
    """Puts cutwheel's experts in place; returns what computes them, the parts, and a note."""
    reason = why_not_gated(module)
    become(module, GroupedExpertsAsTheyLie)
    if reason is not None:
        return "grouped_mm, and the gate by torch", (), reason
    return "grouped_gated_linear and grouped_mm", (), ""
