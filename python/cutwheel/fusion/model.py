"""The public function, and how it takes a model apart."""

from __future__ import annotations

import copy

import torch

from .formats import weight_formats
from .layers import LAYERS, is_layer, why_not
from .opaque import is_leaf, why_opaque
from .questions import UntraceableError
from .report import FusionReport, Kept, Replacement
from .rewriting import Rewriter
from .tracing import trace


def fuse(model: torch.nn.Module) -> torch.nn.Module:
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

    Returns:
        The fused model. Its attribute `fusion_report` is a FusionReport: what was replaced, what
        not, and why. A traced module has become a torch.fx.GraphModule, which has the forward of
        the original and its parameters under their names, but none of its other methods

    Raises:
        TypeError: model is no module, or one that was compiled or scripted
        ValueError: model is in training mode
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
    copied = copy.deepcopy(model)
    fusion = _Fusion(copied)
    fused = fusion.fuse(copied, "")
    fused.fusion_report = FusionReport(  # type: ignore[assignment]
        type(model).__name__, tuple(fusion.replaced), tuple(fusion.kept), tuple(fusion.untraced)
    )
    return fused


class _Fusion:
    """Fuses one model, whose modules may be changed."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._weight_formats = weight_formats(model)
        self.replaced: list[Replacement] = []
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
        rewriter = Rewriter(module, graph, path, self._weight_formats)
        made = rewriter.run()
        self.replaced += rewriter.replaced
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
