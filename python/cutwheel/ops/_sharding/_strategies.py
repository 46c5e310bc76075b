"""Registers a strategy for every op: all ways of splitting it, of which DTensor takes the one that
moves the least.

torch.distributed.tensor.experimental.register_sharding, which is public, keys its cache by integer
arguments alone; epilogues and dtypes are of other types and change the result. So the function
below it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement
from torch.distributed.tensor._op_schema import (
    OpSchema,
    OpStrategy,
    RuntimeSchemaInfo,
    TupleStrategy,
)
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

from ._layout import Layout
from ._layouts import LAYOUTS, RAGGED


def _spec(value: Any) -> Any:
    """The spec of a DTensor, or those of a list; other arguments as they are."""
    if isinstance(value, OpStrategy):
        return value.strategies[0].output_spec
    if isinstance(value, TupleStrategy):
        return [_spec(each) for each in value.children]
    return [_spec(each) for each in value] if isinstance(value, (list, tuple)) else value


def _strategy(op: Any, layout_of: Callable[[dict[str, Any]], Layout]) -> Callable[..., OpStrategy]:
    defaults = {argument.name: argument.default_value for argument in op._schema.arguments}
    returns_list = str(op._schema.returns[0].type).startswith("List")

    def strategy(schema: OpSchema) -> OpStrategy:
        given = map(_spec, schema.args_schema)
        mesh = schema.get_mesh_from_args()
        layout = layout_of({**defaults, **dict(zip(defaults, given, strict=False))})
        ways: list[list[Placement | None]] = []
        for name in (None, *layout.names(mesh)):
            if name not in RAGGED:
                results = [layout.of_result(dims, name) for dims in layout.results]
                operands = [layout.of_operand(operand, name) for operand in layout.operands]
                ways.append([*results, *operands])
        count = len(layout.results)
        found = expand_to_full_mesh_op_strategy(mesh, schema, ways, input_index=count)
        if returns_list and count == 1:
            for way in found.strategies:
                way.output_specs = (way.output_spec,)
        return found

    return strategy


def register() -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    for name, layout_of in LAYOUTS.items():
        op = getattr(torch.ops.cutwheel, name).default
        has_lists = any("List" in str(argument.type) for argument in op._schema.arguments)
        # Every argument is part of the key.
        info = RuntimeSchemaInfo(static_argnum=0, needs_pytree=has_lists)
        propagator.register_op_strategy(op, _strategy(op, layout_of), info)
