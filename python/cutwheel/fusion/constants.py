"""Tensors that forward makes while it is traced. They become constants of the graph.

Each call of the model makes them anew. To the graph they are the same tensors in each call, so what
is written to one would be there in the next call.
"""

from __future__ import annotations

from collections.abc import Set

import torch
from torch.fx import Graph, Node

from .aliases import Aliases, written_by

WRITES = "forward may write to a tensor that it makes: a graph would have one for all calls"


def make_anew(graph: Graph, module: torch.nn.Module, constants: Set[str]) -> str:
    """Lets the graph return copies of constants: the caller may write to them.

    Args:
        constants: names of attributes of the module

    Returns:
        Why the graph must not be used: it writes to a constant itself; or nothing
    """
    if not constants:
        return ""
    modules = dict(module.named_modules(remove_duplicate=False))
    aliases = Aliases(graph, modules)
    returned: frozenset[object] = frozenset()
    for node in graph.nodes:
        if not constants.isdisjoint(aliases.origins(written_by(node, modules))):
            return WRITES
        if node.op == "output":
            returned = aliases.origins(node.all_input_nodes)
    copies: dict[str, Node] = {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        name = str(node.target)
        if name not in constants or name not in returned:
            continue
        if name in copies:
            node.replace_all_uses_with(copies[name])
            graph.erase_node(node)
            continue
        with graph.inserting_after(node):
            copies[name] = copy = graph.call_method("clone", (node,))
        node.replace_all_uses_with(copy)
        copy.args = (node,)
    return ""
