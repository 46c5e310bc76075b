"""A graph with fused modules in place of what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from .aliases import Aliases
from .chains import Chain, Matcher
from .excitation import excite
from .formats import Formats, Fused
from .layers import CONVS, FUNCTIONS
from .measuring import layers_of
from .opaque import why_opaque
from .report import Kept, Replacement

_PASSING = (
    *(torch.nn.Identity, torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d),
    *(torch.nn.Dropout3d, torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout),
)
"""modules that return their argument, unless they are in training mode"""


class Rewriter:
    """Rewrites the graph of one module, which is `path` in the model."""

    def __init__(
        self,
        root: torch.nn.Module,
        graph: Graph,
        path: str,
        weight_formats: Mapping[Tensor, bool],
        left_out: Mapping[str, str],
    ) -> None:
        self.replaced: list[Replacement] = []
        self.by_torch: list[torch.nn.Module] = []
        """the layers of each replacement"""
        self.fused: list[torch.nn.Module] = []
        self.kept: list[Kept] = []
        self._path = path
        self._weight_formats = weight_formats
        self._left_out = left_out
        _drop_passing(root, graph)
        self._module = GraphModule(root, graph, class_name=type(root).__name__)
        self._modules = dict(self._module.named_modules(remove_duplicate=False))
        _keep_persistence(root, self._modules)

    def run(self) -> GraphModule:
        """The rewritten module; not to be used where nothing was replaced."""
        graph = self._module.graph
        matcher = Matcher(graph, self._modules)
        aliases = Aliases(graph, self._modules)
        views = [node for node in graph.nodes if _is_view(node)]
        reshaped = [node for node in views if not aliases.is_written_behind(node)]
        chains = []
        for node in matcher.layers():
            found = self._left_out.get(self._full(str(node.target))) or matcher.chain(node)
            if isinstance(found, str):
                self._keep(node, found)
            else:
                chains.append(found)
        for node in graph.nodes:
            if node.op == "call_function" and node.target in FUNCTIONS:
                reason = "it is called as a function; expected a module"
                self.kept.append(Kept(self._full(node.name), node.target.__name__, reason))
        put = [(self._put(chain, matcher.note(chain)), chain) for chain in chains]
        if chains:
            for node in reshaped:
                node.target = "reshape"  # a fused convolution's result is channels last
            fused = [
                Fused(node, chain.layer.weight, chain.sum_is_reversed)
                for node, chain in put
                if isinstance(chain.layer, CONVS)
            ]
            Formats(self._module, fused, self._weight_formats).restore()
            excite(self._module, {node for node, _ in put})
            self._module.delete_all_unused_submodules()
            graph.lint()
            self._module.recompile()
            _set_eval(self._module)
        return self._module

    def _put(self, chain: Chain, note: str) -> Node:
        graph, first = self._module.graph, chain.nodes[0]
        name = str(first.target)
        target = self._name(name)
        self.by_torch.append(layers_of(chain, self._module))
        self.fused.append(chain.module)
        self._module.add_submodule(target, chain.module)
        # At the place of the layer: what it reads may be written to later. A residual is there at
        # the place of the sum only.
        place, args = first, [chain.input()]
        if chain.sum is not None:
            place, args = chain.sum, [chain.input(), chain.operand()]
        with graph.inserting_before(place):
            made = graph.call_module(target, tuple(args))
        chain.nodes[-1].replace_all_uses_with(made)
        for node in reversed(chain.nodes):
            graph.erase_node(node)
        if chain.pad is not None and not chain.pad.users:
            graph.erase_node(chain.pad)
        if chain.factor is not None:
            self._drop(chain.factor)
        replacement = Replacement(self._full(name), self._full(target), chain.parts, note)
        self.replaced.append(replacement)
        return made

    def _drop(self, factor: Node) -> None:
        """A parameter that is a part of weights now, unless it serves elsewhere."""
        graph, node = self._module.graph, factor
        while not node.users:
            before = node.all_input_nodes
            graph.erase_node(node)
            if not before:
                name = str(node.target)
                owner, _, attribute = name.rpartition(".")
                if not any(self._serves(other, name) for other in graph.nodes):
                    delattr(self._modules[owner], attribute)
                return
            (node,) = before

    def _serves(self, node: Node, parameter: str) -> bool:
        """Whether the node may read a parameter."""
        if node.op == "get_attr":
            return str(node.target) == parameter
        return node.op == "call_module" and parameter.startswith(f"{node.target}.")

    def _name(self, layer: str) -> str:
        """That of the layer, if it is used nowhere else."""
        uses = [
            node
            for node in self._module.graph.nodes
            if node.op in ("call_module", "get_attr")
            and (node.target == layer or str(node.target).startswith(f"{layer}."))
        ]
        if len(uses) == 1:
            return layer
        taken = {name for name, _ in self._module.named_modules()}
        names = (f"{layer}_fused{number}" for number in range(len(taken) + 1))
        return next(name for name in names if name not in taken)

    def _keep(self, node: Node, reason: str) -> None:
        name = str(node.target)
        self.kept.append(Kept(self._full(name), type(self._modules[name]).__name__, reason))

    def _full(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def _drop_passing(root: torch.nn.Module, graph: Graph) -> None:
    modules = dict(root.named_modules(remove_duplicate=False))
    for node in list(graph.nodes):
        if node.op == "call_module":
            is_passing = len(node.args) == 1 and not node.kwargs and _passes(modules[node.target])
        else:
            is_passing = _is_stochastic_depth_off(node)
        if is_passing:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _passes(module: torch.nn.Module) -> bool:
    is_off = type(module) is torch.nn.Identity or not module.training
    is_passing = type(module) in _PASSING and is_off
    return bool(is_passing) and why_opaque(module) is None


def _is_stochastic_depth_off(node: Node) -> bool:
    """torchvision's function, which torch.fx does not look into."""
    module, name = (getattr(node.target, each, "") for each in ("__module__", "__name__"))
    if node.op != "call_function" or not node.args:
        return False
    if (module, name) != ("torchvision.ops.stochastic_depth", "stochastic_depth"):
        return False
    given: dict[str, Any] = dict(zip(("input", "p", "mode", "training"), node.args, strict=False))
    given |= node.kwargs
    return given.get("training", True) is False or given.get("p") in (0, 0.0)


def _is_view(node: Node) -> bool:
    """view(sizes), not view(dtype)"""
    return (
        node.op == "call_method"
        and node.target == "view"
        and not node.kwargs
        and not any(isinstance(arg, torch.dtype) for arg in node.args)
    )


def _keep_persistence(root: torch.nn.Module, modules: dict[str, torch.nn.Module]) -> None:
    """Restores which buffers the state dict has: torch.fx makes every tensor a persistent one."""
    for path, owner in root.named_modules(remove_duplicate=False):
        holder = modules.get(path)
        if holder is not None and holder is not owner:
            kept = owner._buffers.keys() - owner._non_persistent_buffers_set
            holder._non_persistent_buffers_set |= holder._buffers.keys() - kept


def _set_eval(module: GraphModule) -> None:
    """The modules that torch.fx made to hold others are in training mode."""
    for each in module.modules():
        if type(each) is torch.nn.Module:
            each.training = False
