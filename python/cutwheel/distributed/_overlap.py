"""Linear layers whose communication overlaps with the product, in chunks of the devices' rows.

Copies go through symmetric memory: a device reads or writes its peers' by the copy engines, on a
stream of its own, while the product of another chunk runs. The order of the steps, a peer after the
other from the own rank on, is that of torch's fused_all_gather_matmul
(torch/distributed/_symmetric_memory/__init__.py), which multiplies on both streams; here one stream
copies and one multiplies.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, is_autocast_enabled
from torch.autograd.function import once_differentiable

from ..errors import ArgumentError
from ..ops._common import by_torch
from ..ops._common.activations import check_activation
from ..ops._common.elementwise import derivative
from ..ops._common.errors import RAISED, check_tensors, reraise, wrong_shape
from ..ops._common.precision import autocast_operands
from ..ops._common.transforms import is_transformed
from ..ops.gemm import addmm, mm
from ..ops.linear import gated_linear
from ..ops.linear._autograd import gradients_of_two
from ..ops.linear._gated import (
    EPILOGUES,
    GATED_ACTIVATIONS,
    TRAINED,
    named_parts,
    needs_grad,
    packed_bias,
    reraise_of_pair,
)

_linear_fused_out = torch.ops.cutwheel.linear_fused.out

_symmetric: dict[str, bool] = {}
"""by the name of a group"""
_streams: dict[int, torch.cuda.Stream] = {}
"""of the copies, by device"""


def _sees_peers(group: Any) -> bool:
    """Whether this process's GPU can reach those of all others, on the same machine."""
    device = torch.cuda.current_device()
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    everyone: list[Any] = [None] * group.size()
    dist.all_gather_object(everyone, (socket.gethostname(), uuid), group=group)
    here = {
        str(torch.cuda.get_device_properties(i).uuid): i for i in range(torch.cuda.device_count())
    }
    uuids = [uuid for _, uuid in everyone]
    if len({host for host, _ in everyone}) > 1 or len({*uuids}) < len(uuids):
        return False
    # One that a process does not see cannot be asked about; the rendezvous tries it.
    return all(
        torch.cuda.can_device_access_peer(device, here[other])
        for other in uuids
        if other != uuid and other in here
    )


def _all(group: Any, verdict: bool) -> bool:
    verdicts: list[Any] = [None] * group.size()
    dist.all_gather_object(verdicts, verdict, group=group)
    return all(verdicts)


def has_symmetric_memory(tensor: Tensor, group: Any) -> bool:
    """Whether all devices of the group share memory, asked once for each group, of all of them."""
    if tensor.device.type != "cuda" or group.size() == 1:
        return False
    name = group.group_name
    if name not in _symmetric:
        found = _all(group, _sees_peers(group))
        if found:
            try:
                _workspace(group, 1 << 20)
            except (RuntimeError, ImportError, AttributeError):
                found = False
            found = _all(group, found)
        _symmetric[name] = found
    return _symmetric[name]


def _workspace(group: Any, size: int) -> Any:
    from torch.distributed._symmetric_memory import get_symm_mem_workspace

    return get_symm_mem_workspace(group.group_name, min_size=size)


def _timeout_ms(group: Any, device: torch.device) -> int:
    """How long barriers of symmetric memory wait for a device that does not come: as long as the
    collectives of the group do. By themselves they wait for ever, which is 0."""
    options = getattr(group._get_backend(device), "options", None)
    timeout = getattr(options, "_timeout", None)
    return 0 if timeout is None else max(1, int(1000 * timeout.total_seconds()))


def _copy_stream() -> torch.cuda.Stream:
    device = torch.cuda.current_device()
    if device not in _streams:
        _streams[device] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    return _streams[device]


def _bytes(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Of a chunk in the workspace; the next one begins on 256 bytes."""
    return -(-rows * columns * dtype.itemsize // 256) * 256


def _single(kind: str) -> Callable[..., Any]:
    """A collective of one tensor by its name: those of torch up to 2.12 are deprecated later."""
    older = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
    found: Any = getattr(dist, f"{kind}_single", None) or getattr(dist, older[kind])
    return found  # type: ignore[no-any-return]


def gather_and_compute(
    shard: Tensor,
    group: Any,
    sizes: list[int],
    widths: Sequence[int],
    compute: Callable[[Tensor, list[Tensor]], Any],
) -> tuple[Tensor, list[Tensor]]:
    """[sizes[rank], K] -> all rows [M, K], and results of theirs, [M, N] for each of `widths`.

    Args:
        compute: writes the results of the rows that it is given, some of them or all
    """
    rank, size, columns = group.rank(), group.size(), shard.shape[1]
    gathered = shard.new_empty(sum(sizes), columns)
    results = [shard.new_empty(sum(sizes), width) for width in widths]
    chunks = torch.split(gathered, sizes)
    if not has_symmetric_memory(shard, group):
        if len({*sizes}) == 1:
            _single("all_gather")(gathered, shard.contiguous(), group=group)
        else:
            # all_gather of unequal tensors is broadcasts in NCCL, and unknown to gloo.
            mine = shard.contiguous().repeat(size, 1)
            dist.all_to_all_single(gathered, mine, sizes, [sizes[rank]] * size, group=group)
        compute(gathered, results)
        return gathered, results

    symmetric = _workspace(group, max(_bytes(max(sizes), columns, shard.dtype), 256))
    main, copies = torch.cuda.current_stream(), _copy_stream()
    limit = _timeout_ms(group, shard.device)
    parts = [torch.split(result, sizes) for result in results]
    outs = [[part[peer] for part in parts] for peer in range(size)]

    def buffer(peer: int) -> Tensor:
        found: Tensor = symmetric.get_buffer(peer, chunks[peer].shape, shard.dtype)
        return found

    symmetric.barrier(channel=0, timeout_ms=limit)  # nobody reads what an earlier call has left
    if sizes[rank]:
        buffer(rank).copy_(shard)
    symmetric.barrier(channel=1, timeout_ms=limit)  # everybody's rows are there
    copies.wait_stream(main)
    arrived = []
    with torch.cuda.stream(copies):
        for step in range(1, size):
            peer = (rank + step) % size
            if sizes[peer]:
                chunks[peer].copy_(buffer(peer))
            arrived.append((peer, copies.record_event()))
        chunks[rank].copy_(shard)  # while the last rows are multiplied
    if sizes[rank]:
        compute(shard, outs[rank])
    for peer, event in arrived:
        main.wait_event(event)
        if sizes[peer]:
            compute(chunks[peer], outs[peer])
    main.wait_stream(copies)
    symmetric.barrier(channel=0, timeout_ms=limit)  # the memory may go or change: all have read it
    return gathered, results


def gather_and_multiply(
    shard: Tensor, b: Tensor, bias: Tensor | None, group: Any, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    """[sizes[rank], K], [K, N] -> all rows [M, K], and their product [M, N]."""

    def compute(rows: Tensor, outs: list[Tensor]) -> None:
        if bias is None:
            mm(rows, b, out=outs[0])
        else:
            addmm(bias, rows, b, out=outs[0])

    gathered, (product,) = gather_and_compute(shard, group, sizes, [b.shape[1]], compute)
    return gathered, product


def multiply_and_scatter(a: Tensor, b: Tensor, group: Any, sizes: list[int]) -> Tensor:
    """[M, K], [K, N] -> [sizes[rank], N], this device's rows of the sum of all products."""
    return compute_and_scatter(a, b.shape[1], lambda rows, out: mm(rows, b, out=out), group, sizes)


def compute_and_scatter(
    a: Tensor,
    columns: int,
    compute: Callable[[Tensor, Tensor | None], Tensor],
    group: Any,
    sizes: list[int],
) -> Tensor:
    """[M, K] -> [sizes[rank], columns], this device's rows of the sum of all devices' results.

    Args:
        compute: [rows, K] -> [rows, columns], written into the second argument if there is one
    """
    rank, size = group.rank(), group.size()
    if not has_symmetric_memory(a, group):
        partial = compute(a, None)
        if size == 1:
            return partial
        if len({*sizes}) == 1 and a.device.type == "cuda":
            own = partial.new_empty(sizes[rank], columns)
            _single("reduce_scatter")(own, partial, group=group)
            return own
        got = partial.new_empty(size * sizes[rank], columns)
        dist.all_to_all_single(got, partial, [sizes[rank]] * size, sizes, group=group)
        return _sum(got.view(size, sizes[rank], columns))

    place = _bytes(max(sizes), columns, a.dtype)
    symmetric = _workspace(group, max(size * place, 256))
    main, copies = torch.cuda.current_stream(), _copy_stream()
    limit = _timeout_ms(group, a.device)
    chunks = torch.split(a, sizes)

    def buffer(owner: int, source: int) -> Tensor:
        """The owner's memory for the sums of the source."""
        shape, first = (sizes[owner], columns), source * place // a.dtype.itemsize
        found: Tensor = symmetric.get_buffer(owner, shape, a.dtype, first)
        return found

    symmetric.barrier(channel=0, timeout_ms=limit)  # nobody reads what an earlier call has left
    for step in range(1, size):
        owner = (rank + step) % size
        if not sizes[owner]:
            continue
        partial = compute(chunks[owner], None)
        copies.wait_stream(main)
        with torch.cuda.stream(copies):
            buffer(owner, rank).copy_(partial)
        partial.record_stream(copies)
    if sizes[rank]:
        compute(chunks[rank], buffer(rank, rank))
    main.wait_stream(copies)
    symmetric.barrier(channel=1, timeout_ms=limit)  # everybody's sums are there
    if not sizes[rank]:
        return a.new_empty(0, columns)
    # The parts of all sources as they lie, each in its place.
    whole: Tensor = symmetric.get_buffer(rank, (size, place // a.dtype.itemsize), a.dtype)
    used = whole[:, : sizes[rank] * columns]
    return _sum(used.view(size, sizes[rank], columns))


def _sum(parts: Tensor) -> Tensor:
    """Over the first dimension: torch adds up in float32 or wider, always in the same order."""
    return parts.sum(0, dtype=parts.dtype)  # named: under autocast sum returns float32


class _AllGatherLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, group: Any, sizes: list[int]
    ) -> Tensor:
        gathered, result = gather_and_multiply(input, weight.t(), bias, group, sizes)
        ctx.save_for_backward(gathered, weight)
        ctx.group, ctx.sizes = group, sizes
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gathered, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        of_input = of_weight = of_bias = None
        if needs_input:
            of_input = multiply_and_scatter(grad, weight, ctx.group, ctx.sizes)
        if needs_weight:
            of_weight = mm(grad.t(), gathered)
        if needs_bias:
            of_bias = grad.sum(0)
        return of_input, of_weight, of_bias, None, None


class _AllGather(torch.autograd.Function):
    """The rows of all devices; the gradient is the sum of all devices', each its own rows."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, group: Any, sizes: list[int]) -> Tensor:
        ctx.group, ctx.sizes = group, sizes
        return gather_and_compute(input, group, sizes, (), lambda rows, outs: None)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        grad = grad.contiguous()
        own = compute_and_scatter(grad, grad.shape[1], _copied, ctx.group, ctx.sizes)
        return own, None, None


def _copied(rows: Tensor, out: Tensor | None) -> Tensor:
    return rows if out is None else out.copy_(rows)


class _Gated(NamedTuple):
    """The arguments of all_gather_gated_linear that are no tensors."""

    group: Any
    sizes: list[int]
    activation: str
    interleaved: bool

    def compute(
        self, input: Tensor, weight: Tensor, up: Tensor | None, bias: Tensor | None, with_z: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """All rows, and the results; with_z: and what backward reads, columns of gate and up in
        turn."""
        gate = weight
        if up is None and not self.interleaved:
            gate, up = weight.chunk(2)
        features = gate.shape[0] if up is not None else gate.shape[0] // 2
        key, allow_tf32 = (self.activation, bias is not None), input.dtype == torch.float32
        epilogue = TRAINED[key][0] if with_z else EPILOGUES[key]

        def compute(rows: Tensor, outs: list[Tensor]) -> None:
            _linear_fused_out(rows, gate, bias, None, epilogue, allow_tf32, up, out=outs)

        widths = [features, 2 * features][: 1 + with_z]
        return gather_and_compute(input, self.group, self.sizes, widths, compute)


class _AllGatherGatedLinear(torch.autograd.Function):
    """`weight` is the gate's, and `up` as large; where `up` is None, `weight` has the rows of both,
    and dz, the gradient of their products, has its columns in the same order."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        up: Tensor | None,
        bias: Tensor | None,
        how: _Gated,
    ) -> Tensor:
        gathered, (result, z) = how.compute(input, weight, up, bias, True)
        ctx.save_for_backward(gathered, weight, up, z)
        ctx.how = how
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        gathered, weight, up, z = ctx.saved_tensors
        needs_input, needs_weight, needs_up, needs_bias, _ = ctx.needs_input_grad
        how: _Gated = ctx.how
        needs_dz = needs_input or needs_weight or needs_up
        _, name = TRAINED[how.activation, False]  # the same with a bias
        dz, sums = derivative(grad, z, name, needs_dz, needs_bias, not how.interleaved)
        of_input = of_weight = of_up = None

        def multiply(rows: Tensor, out: Tensor | None) -> Tensor:
            if up is None:
                return mm(rows, weight, out=out)
            found: Any = gradients_of_two(rows, None, weight, up, (False, False))[0]
            return _copied(found, out)

        if needs_input:
            of_input = compute_and_scatter(dz, weight.shape[1], multiply, how.group, how.sizes)
        if up is None:
            of_weight = mm(dz.t(), gathered) if needs_weight else None
        elif needs_weight or needs_up:
            wanted = needs_weight, needs_up
            _, of_weight, of_up = gradients_of_two(dz, gathered, None, None, wanted)
        return of_input, of_weight, of_up, sums if needs_bias else None, None


class _LinearReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, group: Any, sizes: list[int]
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.group, ctx.sizes = group, sizes
        result = multiply_and_scatter(input, weight.t(), group, sizes)
        return result if bias is None else result + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        input, weight = ctx.saved_tensors
        # Every device needs all rows, whichever of its gradients it needs.
        whole, of_input = gather_and_multiply(grad, weight, None, ctx.group, ctx.sizes)
        of_weight = mm(whole.t(), input) if ctx.needs_input_grad[1] else None
        of_bias = whole.sum(0) if ctx.needs_input_grad[2] else None
        return of_input, of_weight, of_bias, None, None


def _check(
    op: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    group: Any,
    sizes: Sequence[int] | None,
    gathers: bool,
) -> list[int]:
    """The rows of each device."""
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1]:
        raise ArgumentError(
            f"{op}: input has shape {[*input.shape]} and weight {[*weight.shape]}; expected [M, K] "
            "and [N, K]: flatten other dimensions, rows first"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ArgumentError(
            f"{op}: bias has shape {[*bias.shape]}; expected [{weight.shape[0]}], a number for "
            "each row of weight"
        )
    size, rows = group.size(), input.shape[0]
    if sizes is None:
        if not gathers and rows % size:
            raise ArgumentError(
                f"{op}: input has {rows} rows for {size} devices; expected a multiple, or pass "
                "sizes, the rows of each"
            )
        return [rows if gathers else rows // size] * size
    found = [*sizes]
    own = found[group.rank()] if len(found) == size else -1
    if own != rows if gathers else len(found) != size or sum(found) != rows:
        what = f"{rows} at place {group.rank()}" if gathers else f"the sum {rows}"
        raise ArgumentError(
            f"{op}: sizes is {found}, for {size} devices, and input has {rows} rows; expected "
            f"{size} numbers with {what}"
        )
    return found


_all_gather: Callable[..., Tensor] = _AllGather.apply
_all_gather_linear: Callable[..., Tensor] = _AllGatherLinear.apply
_all_gather_gated_linear: Callable[..., Tensor] = _AllGatherGatedLinear.apply
_linear_reduce_scatter: Callable[..., Tensor] = _LinearReduceScatter.apply


def all_gather_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """linear(all_gather(input), weight, bias): the rows of the peers arrive while others multiply.

    The first half of tensor parallelism with split tokens (Megatron's sequence parallelism). Where
    the group's GPUs share memory (torch.distributed._symmetric_memory), rows are copied by the copy
    engines, a device's after the other, and multiplied as they arrive; elsewhere all are gathered
    first. Backward is linear_reduce_scatter's overlap, and needs every device of the group, too.

    Args:
        input: [M_i, K], this device's rows
        weight: [N, K], this device's output features
        bias: [N]
        group: the devices; default: all
        sizes: M_i of each device, which may be 0; default: all have as many

    Returns:
        [M, N], for the rows of all devices in turn

    Raises:
        ValueError: shapes or sizes that do not fit
        TypeError, RuntimeError, NotImplementedError: as mm
    """
    group = group or dist.group.WORLD
    if is_autocast_enabled():
        input, weight, bias = autocast_operands(input, weight, bias)
    rows = _check("all_gather_linear", input, weight, bias, group, sizes, gathers=True)
    return _all_gather_linear(input, weight, bias, group, rows)


def all_gather_gated_linear(
    input: Tensor,
    weight: Tensor | Sequence[Tensor],
    activation: str = "silu",
    bias: Tensor | Sequence[Tensor | None] | None = None,
    *,
    interleaved: bool = False,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """gated_linear(all_gather(input), weight, activation, bias): as all_gather_linear, with the
    gate in the kernels that multiply the rows as they arrive.

    Args:
        input: [M_i, K], this device's rows
        weight: (gate, up), this device's features, [F, K] each, or one tensor, [2F, K]
        activation, bias, interleaved: as gated_linear
        group, sizes: as all_gather_linear

    Returns:
        [M, F], for the rows of all devices in turn

    Raises:
        ValueError: an activation that is not known, shapes or sizes that do not fit
        TypeError, RuntimeError, NotImplementedError: as gated_linear
    """
    op = "all_gather_gated_linear"
    check_activation(activation, GATED_ACTIVATIONS, op)
    group = group or dist.group.WORLD
    given = {"input": input, **named_parts(op, weight, bias)}
    check_tensors(op, given, ("bias", "bias[0]", "bias[1]"))
    if is_autocast_enabled():
        given = dict(zip(given, autocast_operands(*given.values()), strict=True))
    is_one = isinstance(weight, Tensor)
    first, up = (given["weight"], None) if is_one else (given["weight[0]"], given["weight[1]"])
    rows = _check(op, given["input"], first, None, group, sizes, gathers=True)
    if is_one and first.shape[0] % 2:
        raise wrong_shape(op, "weight", first, "[2F, K]")
    if up is not None and up.shape != first.shape:
        raise wrong_shape(op, "weight[1]", up, first.shape, " as weight[0] has")
    if is_one and interleaved:
        packed = given["bias"]
        if packed is not None and packed.shape != first.shape[:1]:
            raise wrong_shape(op, "bias", packed, first.shape[:1])
    else:
        packed = packed_bias(op, given, first.chunk(2)[0] if is_one else first)
    input = given["input"]
    if (input.dtype == torch.float32 or is_transformed()) and by_torch.serves(
        "gated_linear", input
    ):
        whole = _all_gather(input, group, rows)
        return gated_linear(whole, weight, activation, bias, interleaved=interleaved)
    how = _Gated(group, rows, activation, is_one and interleaved)
    try:
        if needs_grad(*given.values()):
            return _all_gather_gated_linear(input, first, up, packed, how)
        return how.compute(input, first, up, packed, False)[1][0]
    except RAISED as error:
        if is_one:
            reraise(op, error, ("bias",), **given)
        reraise_of_pair(op, error, given)


def linear_reduce_scatter(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """reduce_scatter(linear(input, weight)) + bias: sums leave while other rows multiply.

    The second half of tensor parallelism with split tokens. Where the group's GPUs share memory
    (torch.distributed._symmetric_memory), the product of each device's rows is copied to it by the
    copy engines, and it adds up in float32, always in the same order; elsewhere the whole
    product is reduced by the group's backend. Backward is all_gather_linear's overlap.

    Args:
        input: [M, K], this device's features of all rows
        weight: [N, K], this device's input features
        bias: [N], the same on all devices, and its gradient, too
        group: the devices; default: all
        sizes: rows of the result of each device, which may be 0; default: all have as many

    Returns:
        [M_i, N], this device's rows

    Raises:
        ValueError: shapes or sizes that do not fit
        TypeError, RuntimeError, NotImplementedError: as mm
    """
    group = group or dist.group.WORLD
    if is_autocast_enabled():
        input, weight, bias = autocast_operands(input, weight, bias)
    rows = _check("linear_reduce_scatter", input, weight, bias, group, sizes, gathers=False)
    return _linear_reduce_scatter(input, weight, bias, group, rows)
