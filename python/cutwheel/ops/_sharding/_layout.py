"""What a mesh dimension may split in a call, told by names for the dimensions of its tensors.

For mm the tensors are (m, k), (k, n) and (m, n). Splitting a name splits every tensor that has it:

- a result without it is a partial sum, which is right only if the call is linear in what has it (k
  of mm, the rows of a weight's gradient);
- an operand without it is whole on each device, unless it is added to such a partial sum (a bias
  with k split): then it is split into a sum, too.

A dimension that no two devices may share has no name. One whose elements go in groups, such as the
rows of gate and up or the 128 columns of a block, has (name, size of a group).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

Dim = str | tuple[str, int] | None


@dataclass(frozen=True)
class Operand:
    """A tensor argument: a DTensor, or its spec."""

    tensor: Any
    dims: tuple[Dim, ...]
    is_added: bool = False
    """to what is a partial sum where a summed name is split"""


@dataclass(frozen=True)
class Layout:
    """Operands and results of one call."""

    operands: tuple[Operand, ...]
    """those that are given, in the order of the op's arguments"""
    results: tuple[tuple[Dim, ...], ...]
    summed: frozenset[str] = frozenset()
    """names that a result may lack where they are split"""
    groups: tuple[tuple[int, str, int], ...] = field(default=())
    """(size, name, size of a group) of further dimensions, which results have"""

    def names(self, mesh: DeviceMesh) -> list[str]:
        """The names that the mesh may split, in the order of their first appearance."""
        found: dict[str, None] = {}
        for operand in self.operands:
            found.update(dict.fromkeys(_names(operand.dims)))
        return [name for name in found if self._is_split(name, mesh)]

    def _is_split(self, name: str, mesh: DeviceMesh) -> bool:
        is_result = all(place(dims, name) is not None for dims in self.results if dims)
        return (is_result or name in self.summed) and all(
            splits_into_groups(size, group, mesh)
            for size, other, group in self._all_groups()
            if other == name
        )

    def _all_groups(self) -> Iterator[tuple[int, str, int]]:
        yield from self.groups
        for operand in self.operands:
            for size, dim in zip(operand.tensor.shape, operand.dims, strict=True):
                if isinstance(dim, tuple):
                    yield size, *dim

    def of_operand(self, operand: Operand, name: str | None) -> Placement:
        """The placement of an operand on a mesh dimension that splits `name`; None: nothing."""
        return self._placed(operand, name, Partial(), Replicate())

    def of_result(self, dims: tuple[Dim, ...], name: str | None) -> Placement:
        where = None if name is None or not dims else place(dims, name)
        if where is not None:
            return Shard(where)
        return Replicate() if name is None or not dims else Partial()

    def of_gradient(self, operand: Operand, name: str | None) -> Placement:
        """The placement of an operand's gradient that each device computes from its own part."""
        # Each term of a sum has the gradient of the sum.
        return self._placed(operand, name, Replicate(), Partial())

    def _placed(
        self, operand: Operand, name: str | None, of_term: Placement, of_factor: Placement
    ) -> Placement:
        """of_term, of_factor: where the operand has no dimension `name`, by its part in the sum"""
        if name is None:
            return Replicate()
        where = place(operand.dims, name)
        if where is not None:
            return Shard(where)
        is_term = operand.is_added and place(self.results[0], name) is None
        return of_term if is_term else of_factor


def _names(dims: Iterable[Dim]) -> list[str]:
    return [dim if isinstance(dim, str) else dim[0] for dim in dims if dim is not None]


def place(dims: tuple[Dim, ...], name: str) -> int | None:
    """Where a tensor has the dimension of that name."""
    for where, dim in enumerate(dims):
        if dim == name or (isinstance(dim, tuple) and dim[0] == name):
            return where
    return None


def splits_into_groups(size: int, group: int, mesh: DeviceMesh) -> bool:
    """Whether shards of `size` elements are those of ceil(size / group) groups: DTensor gives each
    device ceil(size / devices) of what there is, and the last ones the rest."""
    if group == 1:
        return True
    if mesh.ndim > 1:
        return size % (group * mesh.size()) == 0
    devices, groups = mesh.size(), -(-size // group)
    return -(-size // devices) == group * -(-groups // devices)


def own_part(size: int, dim: int, mesh: DeviceMesh, placements: Iterable[Placement]) -> range:
    """The part of a dimension's `size` elements that this device has."""
    first, count = 0, size
    for mesh_dim, placement in enumerate(placements):
        if isinstance(placement, Shard) and placement.dim == dim:
            chunk = -(-count // mesh.size(mesh_dim))
            start = min(chunk * mesh.get_local_rank(mesh_dim), count)
            first, count = first + start, min(chunk, count - start)
    return range(first, first + count)
