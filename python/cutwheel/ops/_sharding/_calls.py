"""Calls with DTensors that need more than a layout of their operands.

- An activation behind a product whose K is split: the partial sums are reduced first.
- Grouped rows or experts that are split: each device needs ends of its own.
- Quantisation across elements that share a scale: devices exchange their largest values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from ..._library import release_of
from ...errors import ArgumentError
from .._common.activations import ALL_ACTIVATIONS
from ..scaled._recipes import BLOCKWISE_1X128, BLOCKWISE_128X128, ROWWISE, TENSORWISE
from ._layout import Layout, Operand, own_part, place
from ._layouts import LAYOUTS, is_linear, of_gated_pair

Call = Callable[..., Any]


def is_sharded(*tensors: Any) -> bool:
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def computes_z_first(*tensors: Any) -> bool:
    """Whether the derivative of an activation is to be a call of its own, behind that for z.

    torch 2.11 neither flattens a DTensor's leading dimensions if one is split, nor takes a list of
    operands in which one is missing; 2.13 does both.
    """
    return is_sharded(*tensors) and release_of(torch.__version__) < (2, 13)


def has_split_k(weight: Any) -> bool:
    """Whether the last dimension of a weight, K, is split."""
    return isinstance(weight, DTensor) and any(
        isinstance(placement, Shard) and placement.dim == weight.dim() - 1
        for placement in weight.placements
    )


def _is_split(tensor: Any) -> bool:
    return isinstance(tensor, DTensor) and any(isinstance(p, Shard) for p in tensor.placements)


def reduced(z: Any, like: Any = None) -> Any:
    """z without partial sums: split as `like` where that is, else whole."""
    if not isinstance(z, DTensor):
        return z
    others = like.placements if isinstance(like, DTensor) else [Replicate()] * z.device_mesh.ndim
    placements = [
        (other if isinstance(other, Shard) else Replicate())
        if placement.is_partial()
        else placement
        for placement, other in zip(z.placements, others, strict=True)
    ]
    return z.redistribute(placements=placements)


# ---- dense
def linear_reduces(weight: Tensor, activation: str | None, residual: Tensor | None) -> bool:
    """Whether `linear` is for this module: a residual that is split is no part of partial sums."""
    return has_split_k(weight) and (activation is not None or _is_split(residual))


def linear(
    multiply: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    residual_after_activation: bool,
) -> Any:
    z = reduced(multiply(input, weight, bias), residual)
    dtype = z.dtype
    if residual is not None and not (residual_after_activation and activation):
        z, residual = z + residual, None
    if activation is not None:
        z = ALL_ACTIVATIONS[activation](z).to(dtype)
    return z if residual is None else z + residual


def gemm_reduces(b: Tensor, epilogue: str) -> bool:
    """Whether `gemm` is for this module: K of b [..., K, N] is split, behind which D is no sum."""
    return isinstance(b, DTensor) and has_split_k(b.mT) and not is_linear(epilogue)


def reduced_product(multiply: Call) -> Call:
    return lambda a, b: reduced(multiply(a, b, torch.float32))


def gated(
    multiply: Call, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str
) -> Any:
    z = reduced(multiply(input, weight, bias))
    return ALL_ACTIVATIONS[activation](z[..., 0::2]) * z[..., 1::2]


# ---- on each device's own tensors
def redistributed(
    tensor: DTensor, mesh: DeviceMesh, placements: Sequence[Placement], async_op: bool = False
) -> DTensor:
    """As DTensor.redistribute, and the tensor itself where it lies so already.

    torch's node for that would bring the gradient into the same placement: each of the layers that
    share an input would reduce its own partial sums, in place of one reduction of all.
    """
    if tensor.placements == tuple(placements):
        return tensor
    return tensor.redistribute(mesh, placements, async_op=async_op)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of the tensor; of a contiguous one if it is expanded and elements share memory."""
    is_expanded = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    like = torch.empty(tensor.shape, device="meta") if is_expanded else tensor
    found: tuple[int, ...] = like.stride()
    return found


class _Local(torch.autograd.Function):
    """DTensor.to_local, whose gradient has the strides of the operand on every device.

    torch derives them from those of the local gradient, so they differ where parts are uneven or
    empty. Autograd copies a gradient with strides other than its leaf's, up to torch 2.11 by way of
    a whole one: some devices gather, and wait for those that do not.

    Args:
        of_gradient: the placements of what each device computes
        reduced: those of the gradient that comes out, where they are others
    """

    @staticmethod
    def forward(
        ctx: Any, tensor: DTensor, of_gradient: Sequence[Placement], reduced: Sequence[Placement]
    ) -> Tensor:
        local = tensor._local_tensor
        ctx.mesh, ctx.of_gradient, ctx.reduced = tensor.device_mesh, of_gradient, reduced
        ctx.shape, ctx.stride, ctx.local_stride = tensor.shape, _strides(tensor), _strides(local)
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if grad.stride() != ctx.local_stride:
            laid_out = grad.new_empty_strided(grad.shape, ctx.local_stride)
            grad = laid_out.copy_(grad)
        shape, stride = ctx.shape, ctx.stride
        whole = DTensor.from_local(
            grad, ctx.mesh, ctx.of_gradient, run_check=False, shape=shape, stride=stride
        )
        return redistributed(whole, ctx.mesh, ctx.reduced), None, None


_local: Callable[[DTensor, Sequence[Placement], Sequence[Placement]], Tensor] = _Local.apply


def _own(
    mesh: DeviceMesh, layout: Layout, names: Sequence[str | None], by_tensor: dict[int, Any]
) -> None:
    """Enters each operand's own part, laid out for `names`, one for each dimension of the mesh."""
    for operand in layout.operands:
        tensor = operand.tensor
        if not isinstance(tensor, DTensor):
            raise ArgumentError(
                "a Tensor and a DTensor are mixed; expected DTensors: distribute_tensor makes one, "
                f"or DTensor.from_local (the Tensor has shape {list(tensor.shape)})"
            )
        placements, of_gradient, reduced, counts = [], [], [], True
        for dim, name in enumerate(names):
            wanted = layout.of_operand(operand, name)
            gradient = layout.of_gradient(operand, name)
            if wanted.is_partial() and not tensor.placements[dim].is_partial():
                # One device adds it.
                wanted, gradient = Replicate(), Partial()
                counts = counts and mesh.get_local_rank(dim) == 0
            placements.append(wanted)
            of_gradient.append(gradient)
            # Up to torch 2.10 a sum has a gradient of one device's terms where they are not added.
            is_sum = tensor.placements[dim].is_partial() and gradient.is_partial()
            reduced.append(Replicate() if is_sum else gradient)
        local = _local(redistributed(tensor, mesh, placements), of_gradient, reduced)
        if not counts:
            local = torch.where(torch.zeros((), dtype=torch.bool, device=local.device), local, 0)
        by_tensor[id(tensor)] = local


def _is_along(placement: Placement, operand: Operand, name: str) -> bool:
    where = place(operand.dims, name)
    return isinstance(placement, Shard) and placement.dim == where


def _choose(names: Sequence[str], operands: Sequence[Operand]) -> list[str | None]:
    """For each dimension of the mesh the first of `names` that splits an operand there, or None."""
    chosen: list[str | None] = []
    for placements in zip(*(operand.tensor.placements for operand in operands), strict=True):
        for name in names:
            pairs = zip(placements, operands, strict=True)
            if any(_is_along(placement, operand, name) for placement, operand in pairs):
                chosen.append(name)
                break
        else:
            chosen.append(None)
    return chosen


def _check_sharded(op: str, operands: dict[str, Any]) -> None:
    for name, tensor in operands.items():
        if not isinstance(tensor, DTensor):
            raise ArgumentError(
                f"{op}: {name} is a Tensor, and other operands are DTensors; expected DTensors "
                "alone: distribute_tensor makes one"
            )


def _whole(
    local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]
) -> DTensor:
    """The DTensor of parts, which may be of different sizes."""
    strides: dict[int, int] = {}
    step = 1
    for dim in sorted(range(local.dim()), key=lambda dim: (local.stride(dim), -dim)):
        strides[dim] = step
        step *= max(shape[dim], 1)
    stride = tuple(strides[dim] for dim in range(local.dim()))
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
    )


# ---- gated units of two matrices
def gated_of_two(
    call: Call, given: dict[str, Any], weights: Sequence[Any], biases: Sequence[Any]
) -> DTensor:
    """gated_linear on each device's own features or rows, by one product forward and backward.

    A strategy cannot say so: dz has the columns of gate, then those of up, so a device's are not
    next to each other in the whole one.

    Args:
        call: call(input, (gate, up), (b, c) or None) of plain tensors, differentiable
        given: what errors name; `input`, [..., K], among it
        weights: [F, K] each, whose K is not split
        biases: [F] each, or None
    """
    _check_sharded(
        "gated_linear", {name: tensor for name, tensor in given.items() if tensor is not None}
    )
    input = given["input"]
    mesh, layout = input.device_mesh, of_gated_pair(input, weights, biases)
    operands = layout.operands[: 1 + len(weights)]
    rows = [name for name in layout.names(mesh) if name != "n"]
    # The weights are the larger ones, as a rule, and gradients of split ones need no reduction.
    chosen = _choose(["n", *rows], operands)
    own: dict[int, Any] = {}
    _own(mesh, layout, chosen, own)
    gate, up = (own[id(weight)] for weight in weights)
    local = None
    if any(bias is not None for bias in biases):
        local = [None if bias is None else own[id(bias)] for bias in biases]
    result = call(own[id(input)], (gate, up), local)
    placements = [layout.of_result(layout.results[0], name) for name in chosen]
    return _whole(result, mesh, placements, (*input.shape[:-1], weights[0].shape[0]))


# ---- grouped
def grouped(
    op: str,
    call: Call,
    a: Any,
    b: Any,
    offs: Tensor,
    others: dict[str, Any],
    names: tuple[str, str] = ("mat_a", "mat_b"),
) -> DTensor:
    """A grouped call on each device's own rows or experts.

    Args:
        op: of the library, of which LAYOUTS has the layout
        call: call(a, b, offs, others) of plain tensors, differentiable
        a, b: DTensors, [T, K] and [G, ...], or [M, T] and [T, N]
        offs: ends, of all devices' rows
        others: further arguments of the op by name
        names: those of a and b among the arguments
    """
    _check_sharded(op, dict(zip(names, (a, b), strict=True)))
    mesh = a.device_mesh
    ends = offs.full_tensor() if isinstance(offs, DTensor) else offs
    arguments = {**others, names[0]: a, names[1]: b, "offs": ends}
    layout = LAYOUTS[op](arguments)
    of_a, of_b = layout.operands[:2]
    # Where rows and experts are both split, those of the larger operand stay so.
    first = ("g", "t") if a.numel() <= b.numel() else ("t", "g")
    allowed = (*layout.names(mesh), "t")
    order = [name for name in (*first, "n", "m", "k") if name in allowed]
    chosen = _choose(order, (of_a, of_b))
    own: dict[int, Any] = {}
    _own(mesh, layout, chosen, own)
    local_others = {name: own.get(id(value), value) for name, value in others.items()}
    left, right = own[id(a)], own[id(b)]

    along_a = place(of_a.dims, "t")
    assert along_a is not None
    total = a.shape[along_a]
    rows = _own_part_of(total, mesh, chosen, "t")
    if len(rows) != total:
        ends = (ends - rows.start).clamp(0, len(rows))
    if place(of_b.dims, "g") is None:
        result = call(left, right, ends, local_others)
    else:
        experts = _own_part_of(b.shape[0], mesh, chosen, "g")
        scale = others.get("scale_a")
        of_rows = None if scale is None else "scale_a"
        result = _of_experts(call, left, right, ends, local_others, experts, len(ends), of_rows)
    placements = [layout.of_result(layout.results[0], name) for name in chosen]
    return _whole(result, mesh, placements, _shape(layout, result, mesh, chosen, ends))


def _own_part_of(size: int, mesh: DeviceMesh, chosen: Iterable[str | None], name: str) -> range:
    return own_part(size, 0, mesh, [Shard(0) if c == name else Replicate() for c in chosen])


def _shape(
    layout: Layout, local: Tensor, mesh: DeviceMesh, chosen: Sequence[str | None], ends: Tensor
) -> list[int]:
    """The sizes of the whole result: those of the operands."""
    sizes: dict[str, int] = {}
    for operand in layout.operands:
        for size, dim in zip(operand.tensor.shape, operand.dims, strict=True):
            if dim is not None:
                name, group = dim if isinstance(dim, tuple) else (dim, 1)
                sizes[name] = size // group if group == 2 else size
    shape = []
    for size, dim in zip(local.shape, layout.results[0], strict=True):
        if dim is None:
            shape.append(size)
        else:
            shape.append(sizes[dim if isinstance(dim, str) else dim[0]])
    return shape


def _of_experts(
    call: Call,
    a: Tensor,
    b: Tensor,
    ends: Tensor,
    others: dict[str, Any],
    experts: range,
    count: int,
    of_rows: str | None,
) -> Tensor:
    """Rows of the experts that this device has, among zeros.

    Groups begin at row 0, so the rows of the first expert are moved there, and the results back.
    """
    total = a.shape[0]
    if not experts:
        # One of zeros without rows: a device that took no part in backward would be waited for.
        none = {
            name: value.new_zeros((1, *value.shape[1:]))
            if isinstance(value, Tensor) and value.shape[0] == 0
            else value
            for name, value in others.items()
        }
        result: Tensor = call(a, b.new_zeros((1, *b.shape[1:])), torch.zeros_like(ends[:1]), none)
        return result + b.sum().to(result.dtype) if b.requires_grad else result
    if len(experts) == count or total == 0:
        return call(a, b, ends[experts.start : experts.stop], others)  # type: ignore[no-any-return]
    indices = torch.arange(total, device=ends.device)
    start = ends[experts.start - 1] if experts.start else torch.zeros_like(ends[0])
    there, back = (indices + start) % total, (indices - start) % total
    if of_rows is not None and others[of_rows].shape[0] == total:
        others = {**others, of_rows: others[of_rows].index_select(0, there)}
    own_ends = (ends[experts.start : experts.stop] - start).to(ends.dtype)
    result = call(take(a, there, back), b, own_ends, others)
    return take(result, back, there)


def take(rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
    """Row there[i] as row i; `back` undoes it. Without the atomics of torch's gradient."""
    if rows.requires_grad and torch.is_grad_enabled():
        return _permute(rows, there, back)
    return rows.index_select(0, there)


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(there, back)
        return rows.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        there, back = ctx.saved_tensors
        return take(grad, back, there), None, None


def own_experts(gate_up: Any, down: Any) -> tuple[Tensor, Tensor, int]:
    """This device's parts of two weights [G, ...], and the number of its first expert."""
    both = gate_up, down
    if not all(isinstance(weight, DTensor) for weight in both):
        raise ArgumentError(
            "GroupedExperts: one of gate_up_weight and down_weight is a DTensor; expected both or "
            "none"
        )
    allowed = ((Shard(0), Shard(0)), (Shard(1), Shard(2)), (Replicate(), Replicate()))
    for pair in zip(gate_up.placements, down.placements, strict=True):
        if pair not in allowed:
            raise ArgumentError(
                f"GroupedExperts: the placements of gate_up_weight and down_weight are {pair}; "
                "expected both Shard(0) (experts) or Shard(1) and Shard(2) (features), as "
                "cutwheel.distributed.ExpertParallel makes them"
            )
    first = own_part(gate_up.shape[0], 0, gate_up.device_mesh, gate_up.placements).start
    local = [_local(weight, weight.placements, weight.placements) for weight in both]
    return local[0], local[1], first


_permute: Callable[..., Tensor] = _Permute.apply


# ---- quantisation
def quantize(x: DTensor, recipe: int, dtype: torch.dtype, symmetric: bool, call: Call) -> Any:
    """Values, scales and zero points; the same as those of the whole of x.

    Where elements that share a scale lie on several devices, these exchange the extremes of their
    own, and the values are computed by torch: the kernel takes no scale.
    """
    mesh, last = x.device_mesh, x.dim() - 1
    dims = {TENSORWISE: range(x.dim()), ROWWISE: (last,)}.get(recipe, ())
    shared = [isinstance(p, Shard) and p.dim in dims for p in x.placements]
    if recipe in (BLOCKWISE_1X128, BLOCKWISE_128X128) or not any(shared):
        return call(x, recipe, dtype, symmetric)
    x = reduced(x)
    is_rows = recipe == ROWWISE
    if is_rows and x.dim() > 2:
        # Scales have one dimension for all rows.
        whole = [p if isinstance(p, Shard) and p.dim == last else Replicate() for p in x.placements]
        x = x.redistribute(placements=whole)
    own = x.to_local().float()
    parts = own.reshape(-1, own.shape[-1]) if is_rows else own.reshape(1, -1)
    # Of no elements, and of zeros alone, the extremes are 0; NaN counts as infinite.
    zeros = parts.new_zeros(parts.shape[0], 1)
    parts = torch.cat((torch.where(parts.isnan(), float("inf"), parts), zeros), dim=1)
    extremes = torch.cat((parts.amax(1, keepdim=True), -parts.amin(1, keepdim=True)), dim=1)
    for dim, is_shared in enumerate(shared):
        if is_shared:
            group = mesh.get_group(dim)
            torch.distributed.all_reduce(extremes, torch.distributed.ReduceOp.MAX, group)
    high, low = extremes[:, :1], -extremes[:, 1:]
    scale, azp = _scales(low, high, dtype, symmetric)
    values = _values(own, scale, azp, dtype, symmetric, is_rows)
    of_scales = [
        Shard(0) if is_rows and isinstance(p, Shard) and p.dim == 0 else Replicate()
        for p in x.placements
    ]
    rows = x.numel() // max(x.shape[-1], 1) if is_rows else 1
    shape = (rows, 1) if is_rows else (1,)
    return (
        _whole(values, mesh, x.placements, x.shape),
        _whole(scale if is_rows else scale.view(1), mesh, of_scales, shape),
        azp if symmetric else _whole(azp if is_rows else azp.view(1), mesh, of_scales, shape),
    )


def _scales(
    low: Tensor, high: Tensor, dtype: torch.dtype, symmetric: bool
) -> tuple[Tensor, Tensor]:
    """Scales and zero points of the extremes, as quantize documents them."""
    scale = torch.maximum(high, -low) / _largest(dtype) if symmetric else (high - low) / 255
    is_finite = scale.isfinite()
    is_zero = scale == 0
    azp = (-128 - (low / scale).round()).nan_to_num(0).clamp(-128, 127)
    azp = torch.where(is_zero | ~is_finite, 0, azp).int()
    scale = torch.where(is_zero, 1.0, torch.where(is_finite, scale, float("nan")))
    return scale, azp


def _largest(dtype: torch.dtype) -> float:
    return 127.0 if dtype == torch.int8 else torch.finfo(dtype).max


def _values(
    own: Tensor, scale: Tensor, azp: Tensor, dtype: torch.dtype, symmetric: bool, is_rows: bool
) -> Tensor:
    rows = own.reshape(-1, own.shape[-1]) if is_rows else own.reshape(1, -1)
    values = rows / scale
    largest = _largest(dtype)
    smallest = -largest
    if dtype == torch.int8:
        values = values.round().nan_to_num(0)
    if not symmetric:
        values, smallest = torch.where(scale.isnan(), 0, values + azp), -128.0
    return values.clamp(smallest, largest).to(dtype).view(own.shape)
