"""The public function, and how it takes a model apart."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .formats import weight_formats
from .layers import LAYERS, is_layer, why_not
from .measuring import Compare, Times, compare, times_of
from .opaque import is_leaf, why_opaque
from .questions import UntraceableError
from .report import FusionReport, Kept, Replacement
from .rewriting import Rewriter
from .tracing import trace


def fuse(model: torch.nn.Module, example_inputs: Any = None) -> torch.nn.Module:
    """A copy of a model for inference, with fused modules where layers follow each other.

    Convolutions of images and volumes take in zeros that are put around their input, the batch norm
    that follows them (folded into the weights), a residual that is added, and ReLU, SiLU or GELU;
    transposed ones a batch norm and ReLU; linear layers a residual and an activation of
    cutwheel.linear. They become cutwheel.nn.Conv2d, Conv3d, ConvTranspose1d to 3d and Linear,
    found in a graph of the model by torch.fx. A module that cannot be traced stays, and its
    children are traced on their own. Results have the dtypes and strides of the model's.

    The model is not changed, and shares no tensor with the copy, which does not follow it: load
    weights and convert dtypes before.

    Args:
        model: in eval mode; float16, bfloat16, or float32 where torch allows TF32; on any device
        example_inputs: arguments of a call, a tuple, or a tensor if it is the only one. With them
            the fused model is called, each new module is measured beside the layers that it stands
            for, on the GPU, and layers that are faster by torch stay. The model must be on a GPU,
            or on the device meta, where nothing is measured

    Returns:
        The fused model. Its attribute `fusion_report` is a FusionReport: what was replaced, what
        not, and why. A traced module has become a torch.fx.GraphModule, which has the forward of
        the original and its parameters under their names, but none of its other methods

    Raises:
        TypeError: model is no module, or one that was compiled or scripted; example_inputs are
            neither a tuple nor a tensor
        ValueError: model is in training mode; there are example_inputs, and model is on the
            CPU
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"fuse: model is of type {type(model).__name__}; expected a module")
    if hasattr(model, "_orig_mod") or isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"fuse: model is of type {type(model).__name__}, which is compiled; expected a module "
            "in eager mode: fuse first, then compile"
        )
    if model.training:
        raise ValueError(
            "fuse: model is in training mode; expected one in eval mode, as batch norms are folded "
            "with their running statistics: call model.eval() before"
        )
    if example_inputs is None:
        return _fused(model, {})[0]
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    if not isinstance(given, (tuple, list)):
        raise TypeError(
            f"fuse: example_inputs are of type {type(given).__name__}; expected a tuple of the "
            "arguments of a call, or a tensor"
        )
    where = {tensor.device.type for tensor in (*model.parameters(), *model.buffers())}
    if where == {"meta"}:
        return _fused(model, {})[0]
    if where != {"cuda"}:
        raise ValueError(
            "fuse: example_inputs are for measuring, which takes a GPU, and model is on "
            f"{', '.join(sorted(where)) or 'none'}: call model.cuda() before, or leave them out"
        )
    return keep_faster(model, given, compare)


def keep_faster(
    model: torch.nn.Module, example_inputs: Sequence[Any], compare: Compare
) -> torch.nn.Module:
    """The model with those chains fused that `compare` finds no slower than their layers."""
    slower: dict[str, str] = {}
    known: dict[tuple[str, tuple[str, ...]], Times] = {}
    while True:
        fused, fusion = _fused(model, slower)
        # A chain that stays torch's may leave a sum to another one, which is longer then.
        new = [
            (replacement, pair)
            for replacement, pair in zip(fusion.replaced, fusion.pairs, strict=True)
            if (replacement.name, replacement.parts) not in known
        ]
        chains = {replacement.module: pair for replacement, pair in new}
        times = times_of(fused, chains, example_inputs, compare) if chains else {}
        more = {}
        for replacement, _ in new:
            if replacement.module in times:
                found = times[replacement.module]
                known[replacement.name, replacement.parts] = found
                if found.fused > found.by_torch:
                    more[replacement.name] = (
                        f"{' + '.join(replacement.parts)} took {found.fused:.1f} us fused, "
                        f"{found.by_torch:.1f} by torch"
                    )
        if not more:
            break
        slower |= more
    replaced = []
    for replacement in fusion.replaced:
        of_it = known.get((replacement.name, replacement.parts))
        if of_it is not None:
            replacement = replacement._replace(us=of_it.fused, torch_us=of_it.by_torch)
        replaced.append(replacement)
    report: Any = fused.fusion_report
    fused.fusion_report = dataclasses.replace(report, replaced=tuple(replaced))
    return fused


def _fused(model: torch.nn.Module, left_out: Mapping[str, str]) -> tuple[torch.nn.Module, _Fusion]:
    """left_out: layers that stay, and why."""
    copied = copy.deepcopy(model)
    fusion = _Fusion(copied, left_out)
    fused = fusion.fuse(copied, "")
    fused.fusion_report = FusionReport(  # type: ignore[assignment]
        type(model).__name__, tuple(fusion.replaced), tuple(fusion.kept), tuple(fusion.untraced)
    )
    return fused, fusion


class _Fusion:
    """Fuses one model, whose modules may be changed."""

    def __init__(self, model: torch.nn.Module, left_out: Mapping[str, str]) -> None:
        self._weight_formats = weight_formats(model)
        self._left_out = left_out
        self.replaced: list[Replacement] = []
        self.pairs: list[tuple[torch.nn.Module, torch.nn.Module]] = []
        """of each replacement the fused module, and its layers by torch"""
        self.kept: list[Kept] = []
        self.untraced: list[Kept] = []
        self._done: dict[torch.nn.Module, torch.nn.Module] = {}

    def fuse(self, module: torch.nn.Module, path: str) -> torch.nn.Module:
        """The module to put in place of this one."""
        if module not in self._done:
            self._done[module] = self._fused(module, path)
        return self._done[module]

    def _fused(self, module: torch.nn.Module, path: str) -> torch.nn.Module:
        reason = why_opaque(module)
        if reason is None and not _has_forward(module):
            return self._with_children(module, path)
        if is_leaf(module):
            self._keep(module, path)
            return module
        if reason is None:
            try:
                graph = trace(module)
            except UntraceableError as error:
                reason = str(error)
        if reason is not None:
            self.untraced.append(Kept(path, type(module).__name__, reason))
            return self._with_children(module, path)
        rewriter = Rewriter(module, graph, path, self._weight_formats, self._left_out)
        made = rewriter.run()
        self.replaced += rewriter.replaced
        self.pairs += zip(rewriter.fused, rewriter.by_torch, strict=True)
        self.kept += rewriter.kept
        called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        for name, inner in module.named_modules(remove_duplicate=False):
            if name in called and not isinstance(inner, LAYERS) and [*inner.children()]:
                self.fuse(inner, f"{path}.{name}" if path else name)  # changes it, if anything
        return made if rewriter.replaced else module

    def _with_children(self, module: torch.nn.Module, path: str) -> torch.nn.Module:
        if isinstance(module, torch.jit.ScriptModule):
            return module
        for name, child in module.named_children():
            module._modules[name] = self.fuse(child, f"{path}.{name}" if path else name)
        return module

    def _keep(self, module: torch.nn.Module, path: str) -> None:
        """Layers in a module whose forward is not looked into."""
        for name, inner in module.named_modules(prefix=path):
            if is_layer(inner):
                inside = f"it is in a {type(module).__name__}, which is not looked into"
                alone = "its caller is not traced, so what follows it is not known"
                reason = alone if inner is module else inside
                self.kept.append(Kept(name, type(inner).__name__, why_not(inner) or reason))


def _has_forward(module: torch.nn.Module) -> bool:
    """Not ModuleList and its like."""
    return getattr(type(module).forward, "__name__", "") != "_forward_unimplemented"
