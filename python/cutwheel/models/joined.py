"""Modules of a model that hold several of its parameters as one.

A module keeps its class: it becomes an instance of one derived from it, with the forward of a mixin
of this file in front. Its hooks, its name and isinstance() stay. The state dict has the
original's names and layouts, in both directions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..nn._source import is_weight_alone
from ..nn.scaled import ScaledLinear
from ..ops._common.activations import ACTIVATIONS
from ..ops.linear import gated_linear, linear, pack_gated_weight, unpack_gated_weight


class Packing(NamedTuple):
    """How one parameter holds several of the original's."""

    name: str
    parts: tuple[str, ...]
    """the original's names of them, from the module on"""
    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor], Sequence[Tensor]]


class Joined(torch.nn.Module):
    """What the mixins have in common: state dicts with the original's entries, and copies.

    The parameters are parameters of the module itself, as a submodule's share of a state dict has
    its name in front, and the original's names do not.
    """

    _base: type[torch.nn.Module]
    """the class of the original; set where the class is made"""
    _mixin: type[Joined]
    _packings: tuple[Packing, ...]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The class has no name in a module to be found by.
        return _empty, (type(self)._mixin, type(self)._base), self.__dict__

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for packing in self._packings:
            packed = destination.pop(prefix + packing.name)
            parts = packing.split(packed)
            destination.update(
                {prefix + name: part for name, part in zip(packing.parts, parts, strict=True)}
            )

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
        for packing in self._packings:
            names = [prefix + part for part in packing.parts]
            given = [state_dict.pop(name, None) for name in names]
            packed_name, packed = prefix + packing.name, getattr(self, packing.name)
            own = packing.split(packed.detach())
            missing_keys += [n for n, x in zip(names, given, strict=True) if x is None]
            state_dict[packed_name] = packed
            parts = []
            for name, part, old in zip(names, given, own, strict=True):
                if part is not None and part.shape != old.shape:
                    error_msgs.append(
                        f"size mismatch for {name}: copying a param with shape {part.shape} from "
                        f"checkpoint, the shape in current model is {old.shape}."
                    )
                    break
                parts.append(old if part is None else part.detach())
            else:
                if any(part is not None for part in given):
                    state_dict[packed_name] = packing.join(parts)
        super()._load_from_state_dict(
            *(state_dict, prefix, local_metadata, strict),
            *(missing_keys, unexpected_keys, error_msgs),
        )


_classes: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def _derived(mixin: type[Any], base: type[Any]) -> type[Any]:
    """One class for each pair, so that equal modules are of equal classes."""
    found = _classes.get((mixin, base))
    if found is None:
        given = {"_base": base, "_mixin": mixin, "__module__": base.__module__}
        found = type(f"Cutwheel{base.__name__}", (mixin, base), given)
        _classes[mixin, base] = found
    return found


def _empty(mixin: type[Joined], base: type[torch.nn.Module]) -> Any:
    kind: Any = _derived(mixin, base)
    return kind.__new__(kind)


def become(module: torch.nn.Module, mixin: type[Joined], packings: Sequence[Packing] = ()) -> None:
    """Makes the module an instance of the class that has the mixin in front of its own."""
    module._packings = tuple(packings)  # type: ignore[assignment]
    module.__class__ = _derived(mixin, type(module))


# --- attention


class MergedProjections(Joined):
    """An attention block whose projections of one input are one product.

    The block's own forward runs, with an object in place of `self` that has the results in place of
    the layers, and all else of the module. Nothing is kept between calls, so that calls may
    overlap, be compiled and be captured.
    """

    _names: tuple[str, ...]
    _ends: tuple[int, ...]
    """where each layer's rows end in the merged weight"""
    merged_weight: torch.nn.Parameter
    merged_bias: torch.nn.Parameter | None
    merged_bias_mask: Tensor | None
    merged_proj: ScaledLinear | None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        input: Tensor | None = args[0] if args else kwargs.get("hidden_states")
        if kwargs.get("key_value_states") is not None:
            input = None  # queries and keys are of different sequences
        results: Sequence[Any] = [None] * len(self._names)
        if input is not None:
            results = self._products(input)
        return type(self)._base.forward(_Called(self, input, results), *args, **kwargs)

    def _products(self, input: Tensor) -> Sequence[Tensor]:
        scaled = self._modules.get("merged_proj")
        if scaled is not None:
            result = scaled(input)
        else:
            result = linear(input, self.merged_weight, self._bias())
        return _split(result, self._ends, -1)

    def _bias(self) -> Tensor | None:
        bias, mask = self.merged_bias, self.merged_bias_mask
        # A layer without a bias has zeros there, which a mask keeps from being trained.
        if bias is None or mask is None or not torch.is_grad_enabled():
            return bias
        return bias * mask

    def _product_alone(self, index: int, input: Tensor) -> Tensor:
        """One layer's result for an input of its own."""
        if self._modules.get("merged_proj") is not None:
            return self._products(input)[index]
        bias = self._bias()
        weight = _split(self.merged_weight, self._ends, 0)[index]
        return linear(input, weight, None if bias is None else _split(bias, self._ends, 0)[index])


def _split(tensor: Tensor, ends: Sequence[int], dim: int) -> list[Tensor]:
    firsts = (0, *ends[:-1])
    return [tensor.narrow(dim, a, b - a) for a, b in zip(firsts, ends, strict=True)]


def _cat(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts))


class _Called:
    """An attention block during one call: `self` for the forward of its class."""

    def __init__(self, block: MergedProjections, input: Any, results: Sequence[Any]) -> None:
        self._block = block
        for index, name in enumerate(block._names):
            setattr(self, name, _Projection(block, index, input, results[index]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)


class _Projection:
    """A layer whose result for one input is there already."""

    def __init__(self, block: MergedProjections, index: int, input: Any, result: Any) -> None:
        self.block, self.index, self.input, self.result = block, index, input, result

    def __call__(self, input: Tensor) -> Tensor:
        if input is self.input:
            found: Tensor = self.result
            return found
        return self.block._product_alone(self.index, input)


def merge_projections(
    module: Any, names: tuple[str, ...], scaled: Callable[[torch.nn.Linear], ScaledLinear] | None
) -> None:
    """Makes one product of the layers `names`, which have one input."""
    layers = [getattr(module, name) for name in names]
    ends, end = [], 0
    for layer in layers:
        end += layer.out_features
        ends.append(end)
    weight = torch.cat([layer.weight.detach() for layer in layers])
    bias, mask = _joined_biases(layers)
    packings: list[Packing] = []
    if scaled is not None:
        merged = scaled(_layer_of(weight, bias))
    for name in names:
        delattr(module, name)
    module._names, module._ends = names, tuple(ends)
    module.register_buffer("merged_bias_mask", None if scaled else mask, persistent=False)
    if scaled is not None:
        module.merged_proj = merged
    else:
        requires_grad = layers[0].weight.requires_grad
        module.merged_weight = torch.nn.Parameter(weight, requires_grad)
        of_weights = tuple(f"{name}.weight" for name in names)
        split = functools.partial(_split, ends=module._ends, dim=0)
        packings.append(Packing("merged_weight", of_weights, _cat, split))
        bias_parameter = None if bias is None else torch.nn.Parameter(bias, requires_grad)
        module.register_parameter("merged_bias", bias_parameter)
        if bias is not None:
            kept = tuple(i for i, layer in enumerate(layers) if layer.bias is not None)
            of_biases = tuple(f"{names[i]}.bias" for i in kept)
            sizes = tuple(layer.out_features for layer in layers)
            how = _Biases(sizes, kept)
            packings.append(Packing("merged_bias", of_biases, how.join, how.split))
    become(module, MergedProjections, packings)


class _Biases(NamedTuple):
    """Biases of merged layers, of which some have none."""

    sizes: tuple[int, ...]
    kept: tuple[int, ...]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        given = dict(zip(self.kept, parts, strict=True))
        like = parts[0]
        return torch.cat([given.get(i, like.new_zeros(size)) for i, size in enumerate(self.sizes)])

    def split(self, bias: Tensor) -> list[Tensor]:
        parts = torch.split(bias, list(self.sizes))
        return [parts[i] for i in self.kept]


def _joined_biases(layers: Sequence[Any]) -> tuple[Tensor | None, Tensor | None]:
    """The merged bias, and 1 where a layer has one; None: all have, or none."""
    biases = [layer.bias for layer in layers]
    if all(bias is None for bias in biases):
        return None, None
    weights = [layer.weight for layer in layers]
    pairs = list(zip(weights, biases, strict=True))
    bias = torch.cat([w.new_zeros(len(w)) if b is None else b.detach() for w, b in pairs])
    if all(b is not None for b in biases):
        return bias, None
    return bias, torch.cat([w.new_full((len(w),), float(b is not None)) for w, b in pairs])


def _layer_of(weight: Tensor, bias: Tensor | None) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias, requires_grad=False)
    return layer


# --- gated MLPs and gated linear units


def _rows_of(tensor: Tensor) -> int:
    """The dimension of rows: that of a weight [..., N, K], or of a bias [N]."""
    return max(tensor.dim() - 2, 0)


def _pack_two(parts: Sequence[Tensor]) -> Tensor:
    return pack_gated_weight(*parts)


def _unpack_two(packed: Tensor) -> list[Tensor]:
    # Copies: who saves them wants tensors without gaps, as Transformers and safetensors do.
    return [part.contiguous() for part in unpack_gated_weight(packed)]


def pack_halves(parts: Sequence[Tensor], gate_is_last: bool = False) -> Tensor:
    """The rows of gate and up in turn, as gated_linear takes them, of one tensor with gate's rows,
    then up's; or up's, then gate's.

    [..., 2F, K] -> [..., 2F, K], or [2F] -> [2F], a copy.
    """
    (halves,) = parts
    first, second = halves.chunk(2, dim=_rows_of(halves))
    return pack_gated_weight(second, first) if gate_is_last else pack_gated_weight(first, second)


def unpack_halves(packed: Tensor, gate_is_last: bool = False) -> list[Tensor]:
    """The reverse of pack_halves."""
    gate, up = unpack_gated_weight(packed)
    return [torch.cat((up, gate) if gate_is_last else (gate, up), dim=_rows_of(packed))]


class PackedUnit(Joined):
    """A gated linear unit: gate, up and the activation in one kernel."""

    _activation: str
    gate_up_weight: torch.nn.Parameter
    gate_up_bias: torch.nn.Parameter | None

    def forward(self, input: Tensor, *_: Any, **__: Any) -> Tensor:
        """diffusers' GEGLU takes more arguments, which it ignores."""
        weight, bias = self.gate_up_weight, self.gate_up_bias
        return gated_linear(input, weight, self._activation, bias, interleaved=True)


class PackedGate(Joined):
    """A gated MLP: a gated linear unit, and the layer behind it."""

    _activation: str
    _down: str
    gate_up_weight: torch.nn.Parameter
    gate_up_bias: torch.nn.Parameter | None

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.gate_up_weight, self.gate_up_bias
        hidden = gated_linear(input, weight, self._activation, bias, interleaved=True)
        result: Tensor = getattr(self, self._down)(hidden)
        return result


class GateAsItLies(Joined):
    """A gated MLP whose layers of gate and up stay: one kernel reads the weights of both.

    The original's forward runs where a layer does more by now than its weight says.
    """

    _activation: str
    _down: str
    _names: tuple[str, ...]
    """the layers of gate and up, or the one that has both, one behind the other"""

    def forward(self, input: Tensor) -> Tensor:
        layers: list[Any] = [getattr(self, name) for name in self._names]
        if not all(is_weight_alone(layer, torch.nn.Linear) for layer in layers):
            base: Any = type(self)._base
            return base.forward(self, input)  # type: ignore[no-any-return]
        if len(layers) == 1:
            whole: Tensor = layers[0].weight
            hidden = gated_linear(input, whole, self._activation)
        else:
            gate, up = layers
            hidden = gated_linear(input, (gate.weight, up.weight), self._activation)
        result: Tensor = getattr(self, self._down)(hidden)
        return result


class ScaledGate(Joined):
    """A gated MLP in 8 bits: gate and up in one product, and then the activation, by torch."""

    _activation: str
    _down: str
    gate_up: ScaledLinear

    def forward(self, input: Tensor) -> Tensor:
        gate, up = self.gate_up(input).chunk(2, dim=-1)
        result: Tensor = getattr(self, self._down)(ACTIVATIONS[self._activation](gate) * up)
        return result


def merge_gate(
    module: Any,
    names: tuple[str, ...],
    down: str,
    activation: str,
    scaled: Callable[[torch.nn.Linear], ScaledLinear] | None,
) -> None:
    """Makes one product of gate and up, which are the layers `names`, or one layer's halves.

    Without biases it reads the weights where they lie; else they are packed, biases in turn.
    """
    module._down = down
    if scaled is None and all(getattr(module, name).bias is None for name in names):
        module._activation, module._names = activation, names
        become(module, GateAsItLies)
        return
    if scaled is None:
        pack, unpack = (_pack_two, _unpack_two) if len(names) == 2 else (pack_halves, unpack_halves)
        become(module, PackedGate, _pack_gate(module, names, activation, pack, unpack))
        return
    layers = [getattr(module, name) for name in names]
    weight = torch.cat([layer.weight.detach() for layer in layers])
    module._activation = activation
    merged = scaled(_layer_of(weight, _joined_biases(layers)[0]))
    for name in names:
        delattr(module, name)
    module.gate_up = merged
    become(module, ScaledGate)


def pack_unit(module: Any, name: str, activation: str, gate_is_last: bool) -> None:
    """Lets one kernel compute a gated linear unit of the halves of a layer's results."""
    pack = functools.partial(pack_halves, gate_is_last=gate_is_last)
    unpack = functools.partial(unpack_halves, gate_is_last=gate_is_last)
    become(module, PackedUnit, _pack_gate(module, (name,), activation, pack, unpack))


def _pack_gate(
    module: Any,
    names: tuple[str, ...],
    activation: str,
    pack: Callable[[Sequence[Tensor]], Tensor],
    unpack: Callable[[Tensor], Sequence[Tensor]],
) -> list[Packing]:
    """Puts the weights of the layers `names`, and the biases if they have some, into a parameter
    each."""
    layers = [getattr(module, name) for name in names]
    requires_grad = layers[0].weight.requires_grad
    module._activation = activation
    for name in names:
        delattr(module, name)
    packings = []
    for what in ("weight", "bias"):
        packed, parts = f"gate_up_{what}", [getattr(layer, what) for layer in layers]
        if parts[0] is None:
            module.register_parameter(packed, None)
            continue
        joined = pack([part.detach() for part in parts])
        setattr(module, packed, torch.nn.Parameter(joined, requires_grad))
        of_parts = tuple(f"{name}.{what}" for name in names)
        packings.append(Packing(packed, of_parts, pack, unpack))
    return packings
