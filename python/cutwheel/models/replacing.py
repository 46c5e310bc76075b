"""The public function, and how it walks through a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..nn._source import is_bare
from ..nn.dense import Linear
from ..nn.scaled import ScaledLinear
from ..ops._common.errors import dtype_name
from ..ops._common.precision import DTYPES
from . import experts
from .families import (
    CROSS,
    UNIT_LAYER,
    Activated,
    Attention,
    Gated,
    activation_of,
    gate_of,
    is_experts,
    is_unit,
    kind_of,
)
from .joined import GateAsItLies, Joined, merge_gate, merge_projections, pack_unit
from .report import Left, Replaced, ReplacementReport

QUANTIZATIONS: dict[str, tuple[str, torch.dtype]] = {
    "fp8": ("rowwise", torch.float8_e4m3fn),
    "fp8_blockwise": ("blockwise", torch.float8_e4m3fn),
    "int8": ("rowwise", torch.int8),
}
"""recipe and dtype of ScaledLinear"""


def replace_layers(
    model: torch.nn.Module,
    quantize: str | None = None,
    *,
    keep: Iterable[str] = ("lm_head", "classifier", "score", "proj_out"),
) -> ReplacementReport:
    """Lets cutwheel compute the linear layers, MLPs, attention projections and experts of a model.

    The model is changed in place. In models of Transformers (Llama, Mistral, Qwen2 and 3, Gemma 1
    to 3, Phi, Mixtral, Qwen3-MoE, DeepSeek V3, GPT-OSS, BERT, ViT, Whisper) these become, by class:

    - a gated MLP: gate, up and the activation in one kernel, which reads the weights where they
      lie; with biases, they and the weights are repacked once, into one parameter each
    - the query, key and value projections of an attention block: one product, and one parameter
    - a linear layer and the activation behind it (BERT, ViT, Whisper, Phi): one kernel
    - experts: grouped products, with the gate in the first where the weights allow it
    - a gated linear unit, of any model (the classes GEGLU and SwiGLU, as diffusers has them): one
      kernel, and the weight and the bias of its layer are repacked once
    - every other torch.nn.Linear, of any model: cutwheel.nn.Linear, which shares the parameters

    With `quantize` the weights of linear layers are quantised once, and inputs at each call:
    cutwheel.nn.ScaledLinear, for inference. Experts keep their dtype.

    Do it before an optimizer is built, before torch.compile and before sharding.

    Args:
        model: loaded and in its dtype (float16, bfloat16 or float32), on any device; to quantise,
            on a GPU
        quantize: None, "fp8" (float8_e4m3fn with a scale for each row of the input and of the
            weight), "fp8_blockwise" (1x128 and 128x128) or "int8" (rowwise)
        keep: last names of linear layers that are not quantised

    Returns:
        what was replaced, what was left, and why. Unless quantised, the state dict has the names
        and shapes that it had, in both directions

    Raises:
        TypeError: model is no module, or was compiled or scripted
        ValueError: quantize is not known
        NotImplementedError: to quantise on the CPU, or fp8 on a GPU before compute capability 8.9
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"replace_layers: model is of type {type(model).__name__}; expected a module"
        )
    if hasattr(model, "_orig_mod") or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"replace_layers: model is of type {type(model).__name__}, which is compiled; expected "
            "a module in eager mode: replace first, then compile"
        )
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise ValueError(
            f"replace_layers: quantize is {quantize!r}; expected None or one of "
            f"{', '.join(map(repr, QUANTIZATIONS))}"
        )
    replacement = _Replacement(model, quantize, frozenset(keep))
    replacement.run()
    return ReplacementReport(
        type(model).__name__,
        quantize,
        tuple(replacement.replaced),
        tuple(replacement.left),
        _CHECKPOINTS[quantize is not None],
    )


_CHECKPOINTS = {
    False: "names and shapes of the original's, loaded and saved; parameters() has merged ones",
    True: "that of the quantised model; load the original's checkpoint before",
}


class _Replacement:
    def __init__(self, model: torch.nn.Module, quantize: str | None, keep: frozenset[str]) -> None:
        self.model, self.quantize, self.keep = model, quantize, keep
        self.replaced: list[Replaced] = []
        self.left: list[Left] = []
        self._uses = _uses_of_parameters(model)
        self._done: set[int] = set()
        self._recipe = None if quantize is None else QUANTIZATIONS[quantize]

    def run(self) -> None:
        modules = list(self.model.named_modules())
        linears = [m for _, m in modules if type(m) is torch.nn.Linear]
        if self.quantize is not None and linears:
            _check_device(self.quantize, linears[0].weight)
        for name, module in modules:
            if isinstance(module, Joined):
                continue
            if is_experts(module):
                self._experts(name, module)
            kind = kind_of(module)
            if isinstance(kind, Gated):
                self._gated(name, module, kind)
            elif isinstance(kind, Attention):
                self._attention(name, module, kind)
            elif isinstance(kind, Activated):
                self._activated(name, module, kind)
            elif is_unit(module):
                self._unit(name, module)
        for name, module in modules:
            for child_name, child in list(module.named_children()):
                if isinstance(module, GateAsItLies) and child_name in module._names:
                    continue  # its weight is read by the kernel for both
                if isinstance(child, torch.nn.Linear) and not isinstance(child, Linear):
                    self._linear(module, child_name, f"{name}.{child_name}" if name else child_name)
        if isinstance(self.model, torch.nn.Linear):
            self._leave("", self.model, "it is the model itself, and nothing holds it")

    # --- kinds

    def _gated(self, name: str, module: Any, kind: Gated) -> None:
        layers = [getattr(module, part, None) for part in kind.gate_up]
        activation = activation_of(getattr(module, kind.activation, None))
        reason = _why_not_bare(module) or self._why_not_merged(module, kind.gate_up, layers)
        if reason is None and activation is None:
            function = getattr(module, kind.activation, None)
            reason = f"no kernel has the activation {type(function).__name__}"
        if reason is None and len({layer.bias is None for layer in layers}) > 1:  # type: ignore[union-attr]
            reason = "only one of gate and up has a bias"
        if reason is not None:
            self._leave(name, module, f"gate and up are products of their own: {reason}")
            return
        before = type(module).__name__
        has_bias = layers[0].bias is not None  # type: ignore[union-attr]
        merge_gate(module, kind.gate_up, kind.down, str(activation), self._scaled())
        by = "gated_linear" if self._recipe is None else "one ScaledLinear"
        note = "repacked once" if has_bias and not self._recipe else ""
        self.replaced.append(Replaced(name, before, by, kind.gate_up, note))

    def _attention(self, name: str, module: Any, kind: Attention) -> None:
        names = next(
            (
                each
                for each in kind.alternatives
                if all(isinstance(getattr(module, n, None), torch.nn.Module) for n in each)
            ),
            kind.alternatives[0],
        )
        layers = [getattr(module, part, None) for part in names]
        reason = _why_not_forwarded(module) or self._why_not_merged(module, names, layers)
        if reason is None and name.rpartition(".")[2] in CROSS:
            reason = "keys and values are of another sequence than queries"
        if reason is not None:
            self._leave(name, module, f"projections are products of their own: {reason}")
            return
        before = type(module).__name__
        merge_projections(module, names, self._scaled())
        by = "one linear" if self._recipe is None else "one ScaledLinear"
        self.replaced.append(Replaced(name, before, by, names))

    def _activated(self, name: str, module: Any, kind: Activated) -> None:
        if self._recipe is not None:
            return  # the linear layer alone
        layer: Any = getattr(module, kind.linear, None)
        function = getattr(module, kind.activation, None)
        activation = activation_of(function)
        if activation is None:
            reason = f"no kernel has the activation {type(function).__name__}"
        else:
            reason = self._why_not(layer) or _why_not_bare(function) or ""
        full = f"{name}.{kind.linear}" if name else kind.linear
        if reason:
            self._leave(full, layer, f"the activation is a kernel of its own: {reason}")
            return
        setattr(module, kind.linear, _ours(layer, activation))
        setattr(module, kind.activation, torch.nn.Identity())
        by = f"cutwheel.nn.Linear with {activation}"
        self.replaced.append(Replaced(full, "Linear", by))

    def _unit(self, name: str, module: Any) -> None:
        if self._recipe is not None:
            return  # the linear layer alone
        layers = [getattr(module, UNIT_LAYER)]
        reason = _why_not_bare(module) or self._why_not_merged(module, (UNIT_LAYER,), layers)
        gate = gate_of(module) if reason is None else reason
        if isinstance(gate, str):
            self._leave(name, module, f"the gate is a kernel of its own: {gate}")
            return
        before = type(module).__name__
        pack_unit(module, UNIT_LAYER, gate.activation, gate.is_last)
        self.replaced.append(Replaced(name, before, "gated_linear", (UNIT_LAYER,), "repacked once"))

    def _experts(self, name: str, module: Any) -> None:
        reason = _why_not_forwarded(module)
        for parameter in module.parameters(recurse=False):
            reason = reason or _why_not_parameter(parameter)
        if reason is not None:
            self._leave(name, module, reason)
            return
        before = type(module).__name__
        by, parts, note = experts.replace_experts(module)
        if self.quantize is not None:
            note += f"{'; ' if note else ''}not quantised"
        self.replaced.append(Replaced(name, before, by, parts, note))

    def _linear(self, parent: torch.nn.Module, child_name: str, name: str) -> None:
        layer: Any = getattr(parent, child_name)
        reason = self._why_not(layer)
        if reason is None and self._recipe is not None:
            if child_name in self.keep:
                reason = f"{child_name} is in keep"
            elif self._uses.get(id(layer.weight), 0) > 1:
                reason = "its weight is another module's, too"
        if reason is not None:
            if id(layer) not in self._done:
                self._leave(name, layer, reason)
            return
        made: torch.nn.Module
        if self._recipe is None:
            made, by = _ours(layer, None), "cutwheel.nn.Linear"
        else:
            recipe, dtype = self._recipe
            made = ScaledLinear.from_linear(layer, recipe, dtype=dtype).train(layer.training)
            by = f"cutwheel.nn.ScaledLinear, {recipe} {dtype_name(dtype)}"
        setattr(parent, child_name, made)
        self.replaced.append(Replaced(name, "Linear", by))

    # --- reasons

    def _scaled(self) -> Any:
        if self._recipe is None:
            return None
        recipe, dtype = self._recipe
        return lambda layer: ScaledLinear.from_linear(layer, recipe, dtype=dtype)

    def _leave(self, name: str, module: Any, reason: str) -> None:
        self._done.add(id(module))
        self.left.append(Left(name, type(module).__name__, reason))

    def _why_not(self, layer: Any) -> str | None:
        """Why the library does not compute the layer; None: it does."""
        if type(layer) is not torch.nn.Linear:
            return (
                f"it is a {type(layer).__name__}, whose class may do other things than "
                "torch.nn.Linear"
            )
        return _why_not_bare(layer) or _why_not_parameter(layer.weight)

    def _why_not_merged(self, module: Any, names: tuple[str, ...], layers: list[Any]) -> str | None:
        for name, layer in zip(names, layers, strict=True):
            if layer is None:
                return f"it has no {name}"
            reason = self._why_not(layer)
            if reason is not None:
                return f"{name}: {reason}"
            if self._uses[id(layer.weight)] > 1:
                return f"{name}: its weight is another module's, too"
        first = layers[0].weight
        for layer in layers[1:]:
            weight = layer.weight
            for what in ("dtype", "device", "requires_grad"):
                if getattr(weight, what) != getattr(first, what):
                    return f"{names[0]} and the others differ in {what}"
            if weight.shape[1] != first.shape[1]:
                return f"{names[0]} and the others take inputs of different widths"
        biases = [layer.bias for layer in layers if layer.bias is not None]
        if any(bias.requires_grad != first.requires_grad for bias in biases):
            return "only some of weights and biases require grad"
        return None


def _ours(layer: torch.nn.Linear, activation: str | None) -> Linear:
    """The layer of cutwheel with the parameters of this one."""
    has_bias = layer.bias is not None
    made = Linear(
        layer.in_features, layer.out_features, has_bias, device="meta", activation=activation
    )
    made.weight, made.bias = layer.weight, layer.bias
    return made.train(layer.training)


def _uses_of_parameters(model: torch.nn.Module) -> dict[int, int]:
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return uses


def _why_not_bare(module: Any) -> str | None:
    if isinstance(module, torch.nn.Module) and not is_bare(module):
        what = "a forward set on the object" if "forward" in vars(module) else "hooks"
        return f"it has {what}, which would be lost"
    return None


def _why_not_forwarded(module: Any) -> str | None:
    """Of a module that keeps its hooks."""
    return "it has a forward set on the object" if "forward" in vars(module) else None


def _why_not_parameter(weight: Any) -> str | None:
    if type(weight) is not torch.nn.Parameter or type(weight.data) is not torch.Tensor:
        return (
            f"its weight is a {type(weight.data).__name__}; expected a plain parameter: replace "
            "before sharding and quantising"
        )
    if weight.dtype not in DTYPES:
        dtype = dtype_name(weight.dtype)
        return f"its weight has dtype {dtype}; expected float16, bfloat16 or float32"
    return None


def _check_device(quantize: str, weight: torch.Tensor) -> None:
    """That weights can be quantised, before anything is changed."""
    if weight.is_cuda and "fp8" in quantize:
        major, minor = torch.cuda.get_device_capability(weight.device)
        if (major, minor) < (8, 9):
            raise NotImplementedError(
                f"replace_layers: quantize is {quantize!r}, and {weight.device} has compute "
                f'capability {major}.{minor}; expected 8.9 or higher: take "int8" there'
            )
    tiny = torch.nn.Linear(16, 16, False, device=weight.device, dtype=weight.dtype)
    try:
        ScaledLinear.from_linear(tiny)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"replace_layers: quantize is {quantize!r}, and the model is on {weight.device}; "
            "expected a GPU: call model.cuda() before"
        ) from error
