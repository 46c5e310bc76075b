"""torch.nn.Linear with activation and residual in the same kernel, and the gated MLP.

State dicts are those of the torch.nn modules they stand for, in both directions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops._common.activations import ACTIVATIONS, check_activation
from ..ops.linear import LINEAR_ACTIVATIONS, linear
from ..ops.linear._gated import (
    GATED_ACTIVATIONS,
    gated_linear,
    pack_gated_weight,
    unpack_gated_weight,
)
from ._source import check_source, fused_options, is_bare, is_weight_alone


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
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str | None = None,
        residual_after_activation: bool = False,
    ) -> None:
        if activation is not None:
            check_activation(activation, LINEAR_ACTIVATIONS, "Linear")
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        self.activation = activation
        self.residual_after_activation = residual_after_activation

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
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
        return super().extra_repr() + fused_options(self)


class GatedMLP(torch.nn.Module):
    """down_proj(act(gate_proj(x)) * up_proj(x)): the MLP of Llama and its kin, without biases.

    gate_proj, up_proj and down_proj are linear layers, so parameters and entries of the state dict
    are gate_proj.weight and up_proj.weight, [intermediate_size, hidden_size] each, and
    down_proj.weight. All that works on the modules of torch works on these: sharding, pruning,
    parametrizations, layers put in their place. One kernel computes gate, up, the activation and
    the product of both, and reads the two weights where they lie. Where a layer does more than its
    weight says (an adapter, a hook), each is a kernel of its own.

    `pack_parameters` puts gate and up into one parameter, `gate_up_weight`, [2 * intermediate_size,
    hidden_size], which takes the place of the two in parameters and state dict: sharded by tensor
    parallelism, one kernel computes it in training, too. `unpack_parameters` goes back.

    load_state_dict takes the two weights or the packed one, whichever the module has.

    Args:
        hidden_size: features of input and output
        intermediate_size: features between
        activation: as in cutwheel.gated_linear
        device, dtype: of the parameters

    Raises:
        ValueError: an activation that is not known
    """

    gate_proj: torch.nn.Module | None
    up_proj: torch.nn.Module | None
    down_proj: torch.nn.Module
    gate_up_weight: torch.nn.Parameter | None

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
        self.register_parameter("gate_up_weight", None)
        options: Any = {"bias": False, "device": device, "dtype": dtype}
        self.gate_proj = Linear(hidden_size, intermediate_size, **options)
        self.up_proj = Linear(hidden_size, intermediate_size, **options)
        self.down_proj = Linear(intermediate_size, hidden_size, **options)

    def reset_parameters(self) -> None:
        """Initialises each of gate, up and down as torch.nn.Linear does."""
        packed = self.gate_up_weight
        if packed is None:
            layers = [self.gate_proj, self.up_proj, self.down_proj]
        else:
            layers = [self.down_proj]
            if packed.numel():
                # In place and as a whole, which sharded tensors can do, too.
                bound = self.hidden_size**-0.5
                torch.nn.init.uniform_(packed, -bound, bound)
        for layer in layers:
            layer.reset_parameters()  # type: ignore[operator, union-attr]

    def pack_parameters(self) -> GatedMLP:
        """Puts the weights of gate_proj and up_proj into one parameter, which one kernel reads.

        That is `gate_up_weight`, packed as pack_gated_weight does it. gate_proj and up_proj are
        None from then on. Do it before an optimizer is built, and before sharding; it takes the
        memory of the two weights for a moment, and nothing where they are packed already.

        Returns:
            the module itself

        Raises:
            TypeError: gate_proj or up_proj is another module than a linear layer of torch or
                cutwheel, or its weight is another tensor than a parameter (a DTensor, or computed)
            ValueError: one of them has a bias, hooks or an activation; only one requires grad;
                shapes, dtypes or devices differ
        """
        if self.gate_up_weight is not None:
            return self
        gate, up = self._weight_to_pack("gate_proj"), self._weight_to_pack("up_proj")
        if gate.requires_grad != up.requires_grad:
            raise ValueError(
                f"GatedMLP: gate_proj.weight.requires_grad is {gate.requires_grad} and that of "
                f"up_proj.weight is {up.requires_grad}; expected one value for both, as they "
                "become one parameter"
            )
        packed = pack_gated_weight(gate.detach(), up.detach())
        self.gate_proj = self.up_proj = None
        self.gate_up_weight = torch.nn.Parameter(packed, gate.requires_grad)
        return self

    def unpack_parameters(self) -> GatedMLP:
        """The reverse of pack_parameters: gate_proj and up_proj are linear layers again.

        Raises:
            TypeError: gate_up_weight is no parameter any more (a DTensor, or computed)
        """
        if self.gate_up_weight is None:
            return self
        packed = _own_parameter("gate_up_weight", self.gate_up_weight)
        layers = []
        for half in unpack_gated_weight(packed.detach()):
            layer = Linear(self.hidden_size, self.intermediate_size, bias=False, device="meta")
            layer.weight = torch.nn.Parameter(half.contiguous(), packed.requires_grad)
            layers.append(layer.train(self.training))
        self.gate_up_weight = None
        self.gate_proj, self.up_proj = layers
        return self

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """The MLP, and `residual` added to it.

        Args:
            input: [..., hidden_size]
            residual: [..., hidden_size], dtype of input

        Returns:
            [..., hidden_size]
        """
        packed = self.gate_up_weight
        if packed is not None:
            hidden = gated_linear(input, packed, self.activation, interleaved=True)
        elif is_weight_alone(self.gate_proj, Linear) and is_weight_alone(self.up_proj, Linear):
            weights: Any = self.gate_proj.weight, self.up_proj.weight  # type: ignore[union-attr]
            hidden = gated_linear(input, weights, self.activation)
        else:
            hidden = self._activated_gate(input) * self.up_proj(input)  # type: ignore[misc]
        result: Tensor = (
            self.down_proj(hidden) if residual is None else self.down_proj(hidden, residual)
        )
        return result

    def extra_repr(self) -> str:
        return (
            f"hidden_size={self.hidden_size}, intermediate_size={self.intermediate_size}, "
            f"activation={self.activation!r}"
        )

    def _activated_gate(self, input: Tensor) -> Tensor:
        gate: Any = self.gate_proj
        # A module that does more than its weight says (an adapter, pruning, a sharded one) is
        # called; else the activation is in the kernel.
        if type(gate) is Linear and is_bare(gate):
            return linear(input, gate.weight, gate.bias, activation=self.activation)
        return ACTIVATIONS[self.activation](gate(input))

    def _weight_to_pack(self, name: str) -> torch.nn.Parameter:
        layer: Any = getattr(self, name)
        forwards = (torch.nn.Linear.forward, Linear.forward)
        check_source("GatedMLP", name, layer, torch.nn.Linear, forwards)
        for option in ("bias", "activation"):
            if getattr(layer, option, None) is not None:
                raise ValueError(
                    f"GatedMLP: {name} has {option} {getattr(layer, option)!r}; expected none, "
                    "which the packed weight has no place for"
                )
        return _own_parameter(f"{name}.weight", layer.weight)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # load_state_dict hands over a dictionary of its own, of which submodules get their parts.
        packed_name, names = f"{prefix}gate_up_weight", _names(prefix)
        given = [state_dict.get(name) for name in names]
        is_packed, has_parts = packed_name in state_dict, any(x is not None for x in given)
        try:
            if self.gate_up_weight is None and is_packed and not has_parts:
                parts = unpack_gated_weight(state_dict[packed_name])
                state_dict.update(zip(names, (part.contiguous() for part in parts), strict=True))
                del state_dict[packed_name]
            elif self.gate_up_weight is not None and has_parts and is_packed:
                unexpected_keys += [name for name in names if name in state_dict]
            elif self.gate_up_weight is not None and has_parts:
                for name in names:
                    state_dict.pop(name, None)
                state_dict[packed_name] = self.gate_up_weight  # unless the parts fit
                state_dict[packed_name] = self._joined(prefix, given, missing_keys)
        except (TypeError, ValueError) as error:
            error_msgs.append(str(error))
        super()._load_from_state_dict(
            *(state_dict, prefix, local_metadata, strict),
            *(missing_keys, unexpected_keys, error_msgs),
        )

    def _joined(self, prefix: str, given: list[Any], missing_keys: list[str]) -> Tensor:
        """The packed weight of what was given, and of the module's own for what was not."""
        assert self.gate_up_weight is not None
        parts = []
        own = unpack_gated_weight(self.gate_up_weight.detach())
        for name, weight, old in zip(_names(prefix), given, own, strict=True):
            if weight is None:
                missing_keys.append(name)
            elif not isinstance(weight, Tensor):
                raise TypeError(f'expected a Tensor for "{name}", got {type(weight)}.')
            elif weight.shape != old.shape:
                raise ValueError(
                    f"size mismatch for {name}: copying a param with shape {weight.shape} from "
                    f"checkpoint, the shape in current model is {old.shape}."
                )
            parts.append(old if weight is None else weight.detach())
        return pack_gated_weight(*parts)


def _own_parameter(name: str, weight: Tensor) -> torch.nn.Parameter:
    if type(weight) is not torch.nn.Parameter:
        raise TypeError(
            f"GatedMLP: {name} is of type {type(weight).__name__}; expected a torch.nn.Parameter: "
            "pack or unpack before sharding, pruning and parametrizations"
        )
    return weight


def _names(prefix: str) -> tuple[str, str]:
    return f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"
