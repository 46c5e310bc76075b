"""torch.nn.Linear with what follows it in the same kernel, and the gated MLP.

State dicts are those of the torch.nn modules they stand for, in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ..ops.gated import (
    GATED_ACTIVATIONS,
    gated_linear,
    pack_gated_weight,
    unpack_gated_weight,
)
from ..ops.linear import LINEAR_ACTIVATIONS, check_activation, linear


class Linear(torch.nn.Linear):
    """torch.nn.Linear with the activation, and the residual, that follow it, in one kernel.

    Parameters, their initialisation and the state dict are those of torch.nn.Linear.

    Args:
        in_features, out_features, bias, device, dtype: as in torch.nn.Linear
        activation: as in cutwheel.linear
        residual_after_activation: as in cutwheel.linear

    Raises:
        ValueError: an activation that is not known
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        activation: str | None = None,
        residual_after_activation: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activation is not None:
            check_activation(activation, LINEAR_ACTIVATIONS, "Linear")
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.activation = activation
        self.residual_after_activation = residual_after_activation

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """cutwheel.linear of this module's weight and bias.

        Args:
            input: [..., in_features]
            residual: [..., out_features], dtype of input

        Returns:
            [..., out_features]
        """
        if self.activation is None and residual is None:
            return linear(input, self.weight, self.bias)
        return linear(
            input,
            self.weight,
            self.bias,
            activation=self.activation,
            residual=residual,
            residual_after_activation=self.residual_after_activation,
        )

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self.activation is not None:
            text += f", activation={self.activation!r}"
        if self.residual_after_activation:
            text += ", residual_after_activation=True"
        return text


class GatedMLP(torch.nn.Module):
    """down_proj(act(gate_proj(x)) * up_proj(x)): the MLP of Llama and its kin, without biases.

    gate_proj and up_proj are one parameter, `gate_up_weight`, [2 * intermediate_size, hidden_size],
    packed as pack_gated_weight does it. The state dict has them as gate_proj.weight and
    up_proj.weight, each [intermediate_size, hidden_size], beside down_proj.weight, so checkpoints
    go both ways. What it returns for the two are views of the parameter, every second row: they
    follow it, as entries of a state dict do, and are not contiguous. What is loaded is copied, with
    assign=True, too, into a parameter of the dtype and device of what is loaded.

    Args:
        hidden_size: features of input and output
        intermediate_size: features between
        activation: as in cutwheel.gated_linear
        device, dtype: of the parameters

    Raises:
        ValueError: an activation that is not known
    """

    gate_up_weight: torch.nn.Parameter

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: str = "silu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_activation(activation, GATED_ACTIVATIONS, "GatedMLP")
        super().__init__()
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.gate_up_weight = torch.nn.Parameter(
            torch.empty(2 * intermediate_size, hidden_size, device=device, dtype=dtype)
        )
        self._reset_gate_and_up()
        self.down_proj = Linear(
            intermediate_size, hidden_size, bias=False, device=device, dtype=dtype
        )

    def reset_parameters(self) -> None:
        """Initialises each of gate, up and down as torch.nn.Linear does."""
        self._reset_gate_and_up()
        self.down_proj.reset_parameters()

    def _reset_gate_and_up(self) -> None:
        with torch.no_grad():
            for weight in unpack_gated_weight(self.gate_up_weight):
                torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    def forward(self, input: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """The MLP, and `residual` added to it.

        Args:
            input: [..., hidden_size]
            residual: [..., hidden_size], dtype of input

        Returns:
            [..., hidden_size]
        """
        hidden = gated_linear(input, self.gate_up_weight, self.activation)
        result: torch.Tensor = self.down_proj(hidden, residual)
        return result

    def extra_repr(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}, "
            f"activation={self.activation!r}"
        )

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        packed = destination.pop(f"{prefix}gate_up_weight")
        for name, weight in zip(_names(prefix), unpack_gated_weight(packed), strict=True):
            destination[name] = weight

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        packed = f"{prefix}gate_up_weight"
        # A dictionary of its own: others may read what they have given.
        given = dict(state_dict)
        found = [given.pop(name, None) for name in _names(prefix)]
        problems: list[str] = []
        weights: list[torch.Tensor] = []
        current = unpack_gated_weight(self.gate_up_weight.detach())
        for name, weight, old in zip(_names(prefix), found, current, strict=True):
            if weight is None and strict:
                missing_keys.append(name)
            elif weight is not None and not isinstance(weight, torch.Tensor):
                problems.append(f'expected a Tensor for "{name}", got {type(weight)}.')
            elif weight is not None and weight.shape != old.shape:
                problems.append(
                    f"size mismatch for {name}: copying a param with shape {weight.shape} from "
                    f"checkpoint, the shape in current model is {old.shape}."
                )
            weights.append(old if weight is None else weight)
        if not problems and any(weight is not None for weight in found):
            try:
                with torch.no_grad():
                    given[packed] = pack_gated_weight(*weights)
            except (TypeError, ValueError) as error:
                problems.append(f"{' and '.join(_names(prefix))}: {error}")
        error_msgs += problems
        super()._load_from_state_dict(
            given, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if packed in missing_keys:
            missing_keys.remove(packed)


def _names(prefix: str) -> tuple[str, str]:
    return f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"
