"""Convolutions of a graph: found, judged, replaced; the gradients of their backward one by one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ..ops._common.errors import dtype_name
from ..ops.conv import _volume
from . import rewriting
from .chains import Chain, Form, chains_of, same_value
from .consumers import end_of
from .gains import Target
from .products import DTYPES
from .report import Replacement
from .sizes import is_channels_last, is_same, same_shape, static, value_of

aten, ops = torch.ops.aten, torch.ops.cutwheel

_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default


class Convolution(NamedTuple):
    """A convolution of images or volumes, or its backward."""

    images: tuple[Tensor, ...]
    """all of its tensors with four dimensions, of volumes five"""
    computed: tuple[bool, ...]
    """of each of these: it is an operand, but not the filter, and made in the graph"""
    filters: Tensor
    """[Ko, C, R, S], of volumes [Ko, C, T, R, S]"""
    size: tuple[Any, ...]
    """N, C, H, W of the input, of volumes N, C, D, H, W"""
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    transposed: bool

    @property
    def geometry(self) -> tuple[int, ...]:
        """As the ops take it: both sides of each dimension are padded alike."""
        sides = (side for each in self.padding for side in (each, each))
        return (*self.stride, *sides, *self.dilation)

    @property
    def op(self) -> str:
        return f"conv{len(self.stride)}d"

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(static(each) or 0 for each in self.filters.shape[2:])

    @property
    def is_strided(self) -> bool:
        return max(self.stride) > 1

    def __str__(self) -> str:
        size, taps = ("x".join(map(str, each)) for each in (self.size, self.filters.shape[2:]))
        return f"{size} {self.filters.shape[0]} {taps} {dtype_name(self.filters.dtype)}"


def _convolution_of(node: fx.Node) -> Convolution | None:
    """None: it is no convolution of images or volumes, or nothing is known of its tensors."""
    if node.op != "call_function" or node.target not in (_FORWARD, _BACKWARD):
        return None
    is_forward = node.target is _FORWARD
    tensors = node.args[:2] if is_forward else node.args[:3]
    images = [value_of(each) for each in tensors]
    known = [image for image in images if image is not None]
    dims = {image.dim() for image in known}
    if len(known) < len(images) or dims not in ({4}, {5}):
        return None
    count = dims.pop() - 2
    result = value_of(node) if is_forward else None
    stride, padding, dilation, transposed, _, groups = node.args[3 if is_forward else 4 :][:6]
    steps, sides, spacing = (_numbers(each, count) for each in (stride, padding, dilation))
    if steps is None or sides is None or spacing is None or not isinstance(groups, int):
        return None
    return Convolution(
        images=(*known, *([result] if result is not None else [])),
        computed=(*map(_is_computed, tensors[:-1]), False, *([False] * (result is not None))),
        filters=known[-1],
        size=tuple(known[0 if is_forward else 1].shape),
        stride=steps,
        padding=sides,
        dilation=spacing,
        groups=groups,
        transposed=bool(transposed),
    )


def _is_computed(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "call_function"


def _numbers(given: Any, count: int) -> tuple[int, ...] | None:
    """One for each of D, H and W, or H and W; None: the graph does not know them."""
    if not isinstance(given, Sequence) or not all(isinstance(each, int) for each in given):
        return None
    return {1: (*given,) * count, count: (*given,)}.get(len(given))


def _why_not(found: Convolution) -> str | None:
    filters = found.filters
    if filters.dtype not in DTYPES:
        return f"{dtype_name(filters.dtype)} stays with Inductor"
    if found.transposed:
        return "a transposed convolution"
    if found.groups != 1:
        return "a convolution of several groups"
    if any(x.dtype != filters.dtype or x.device != filters.device for x in found.images):
        return "dtypes or devices differ"
    # Inductor writes what it computes in the order that is asked for.
    if not all(is_channels_last(x) or y for x, y in zip(found.images, found.computed, strict=True)):
        order = "channels_last" if len(found.stride) == 2 else "channels_last_3d"
        return f"not channels last: call model.to(memory_format=torch.{order})"
    if any(static(each) is None for each in filters.shape):
        return "the filter's size is not known"
    if filters.shape[0] % 8 or (filters.shape[1] % 8 and {*found.taps} in ({1}, {3})):
        return "channels that are no multiple of 8"
    if len(found.stride) == 3:
        because = _volume.why_not_encodable(filters, found.geometry)
        if because is not None:
            return because
        if not _volume.has_kernels(filters):
            return "no kernel of this wheel runs natively"
    if any(static(each) == 0 for image in found.images for each in image.shape):
        return "an empty operand"
    return None


def replace_convolution(graph: fx.Graph, node: fx.Node, context: Any) -> Replacement | None:
    """Puts kernels in the place of a convolution, with what follows it, or of its gradients. None:
    the node is no convolution of images or volumes."""
    found = _convolution_of(node)
    if found is None:
        return None
    is_forward = node.target is _FORWARD
    name = "convolution" if is_forward else "convolution_backward"

    def entry(by: str | None, reason: str = "") -> Replacement:
        return Replacement(name, str(found), by, reason)

    target = context.target(found.filters.device)
    because = target if isinstance(target, str) else _why_not(found)
    if because is not None:
        return entry(None, because)
    if is_forward:
        return entry(*_replace_forward(graph, node, found, target, context))
    return entry(*_replace_backward(graph, node, found, target))


def _in_order(graph: fx.Graph, image: Any, like: fx.Node) -> Any:
    """An operand in channels last, at the graph's insertion point."""
    value = value_of(image)
    if value is None or is_channels_last(value):
        return image
    order = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
    return rewriting.emit(graph, aten.clone.default, (image,), like, memory_format=order)


# ---- forward
def _form(like: Tensor) -> Form:
    channels, dims = like.shape[1], like.dim()

    def is_bias(node: Any) -> bool:
        value = value_of(node)
        if value is None or not same_value(node, like) or value.dim() not in (dims - 1, dims):
            return False
        sizes = 1, channels, *[1] * (dims - 2)
        same = all(map(is_same, value.shape, sizes[-value.dim() :]))
        return same and is_same(value.stride(1 - dims), 1)

    def is_residual(node: Any, of: fx.Node) -> bool:
        value, wanted = value_of(node), value_of(of)
        if value is None or wanted is None or not same_value(node, like):
            return False
        return same_shape(value, wanted) and is_channels_last(value)

    return Form(lambda node: False, is_bias, is_residual)


def _replace_forward(
    graph: fx.Graph, node: fx.Node, found: Convolution, target: Target, context: Any
) -> tuple[str | None, str]:
    bias, like = node.args[2], found.images[-1]
    if bias is not None and not same_value(bias, like):
        return None, "the bias has another dtype"
    chains, stop = chains_of(node, like.dtype, _form(like), bias)
    reasons: list[str] = []
    for chain in chains:
        because = _why_not_chain(found, chain, target)
        if because is None and context.is_written_between(node, chain.tail):
            because = "an operation between them writes to its operands"
        if because is None:
            return _put(graph, node, found, chain), "; ".join(reasons) or stop
        reasons.append(because if chain.is_plain else f"not {chain.epilogue}: {because}")
    return None, "; ".join(dict.fromkeys(reasons))


def _why_not_chain(found: Convolution, chain: Chain, target: Target) -> str | None:
    if chain.stored is not None:
        return "what the activation is applied to is used elsewhere"
    plain = "plain" if chain.bias is None else "bias"
    epilogue = plain if chain.is_plain else chain.epilogue
    if not target.has_kernel("conv2d", found.filters.dtype, "fprop", epilogue):
        return "no kernel of this wheel runs natively"
    kind = "fprop" if chain.is_plain else f"convolution{end_of(chain.tail)}"
    if chain.activation is not None:
        because = target.why_not_activation(chain.activation)
        if because is not None:
            return because
    return target.why_not_convolution(kind, found.taps, found.is_strided)


def _put(graph: fx.Graph, node: fx.Node, found: Convolution, chain: Chain) -> str:
    bias, filters = chain.bias, node.args[1]
    with graph.inserting_before(chain.tail if chain.stored is None else chain.stored):
        image = _in_order(graph, node.args[0], node)
    bias_value = value_of(bias)
    if bias_value is not None and bias_value.dim() != 1:
        with graph.inserting_before(chain.tail):
            shape = [found.filters.shape[0]]
            bias = rewriting.emit(graph, aten.reshape.default, (bias, shape), chain.tail)
    if chain.is_plain:
        args: tuple[Any, ...] = image, filters, bias, *found.geometry
        packet = getattr(ops, found.op)
        rewriting.put(graph, node, chain, packet.default, args, None, keeps_strides=True)
        return found.op
    args = image, filters, bias, chain.residual, *found.geometry, chain.epilogue
    packet = getattr(ops, f"{found.op}_fused")
    rewriting.put(graph, node, chain, packet.default, args, None, keeps_strides=True)
    return f"{found.op}_fused({chain.epilogue})"


# ---- backward
def _replace_backward(
    graph: fx.Graph, node: fx.Node, found: Convolution, target: Target
) -> tuple[str | None, str]:
    grad, image, filters = node.args[:3]
    mask = node.args[-1]
    uses = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if not isinstance(mask, Sequence) or len(uses) != len(node.users):
        return None, "a use of all gradients together"
    of_input, of_weight = (getattr(ops, f"{found.op}_{each}_grad") for each in ("input", "weight"))
    calls = {
        0: ("dgrad", of_input, (grad, filters), found.size[2:]),
        1: ("wgrad", of_weight, (grad, image), found.filters.shape[2:]),
    }
    made, reasons, left = [], [], [bool(each) for each in mask]
    for index, (kind, packet, operands, extents) in calls.items():
        if index not in uses:
            left[index] = False
            continue
        because = _why_not_gradient(found, target, kind, extents)
        if because is not None:
            reasons.append(f"not {kind}: {because}")
            continue
        with graph.inserting_before(node):
            operands = tuple(_in_order(graph, operand, node) for operand in operands)
            sizes = (*map(static, extents), *found.geometry)
            args = *operands, *sizes
            new = rewriting.emit(graph, packet.default, args, uses[index], keeps_strides=True)
        uses[index].replace_all_uses_with(new)
        graph.erase_node(uses[index])
        left[index] = False
        made.append(packet.__name__)
    if not made:
        return None, "; ".join(reasons)
    if 2 in uses:  # as Inductor computes it on GPUs
        with graph.inserting_before(node):
            over = grad, [0, *range(2, 2 + len(found.stride))]
            of_bias = rewriting.emit(graph, aten.sum.dim_IntList, over, uses[2])
        uses[2].replace_all_uses_with(of_bias)
        graph.erase_node(uses[2])
    left[2] = False
    if any(left):
        node.update_arg(len(node.args) - 1, left)
        values = [
            value if kept else None for value, kept in zip(node.meta["val"], left, strict=True)
        ]
        node.meta["val"] = tuple(values)
    else:
        graph.erase_node(node)
    return ", ".join(made), "; ".join(reasons)


def _why_not_gradient(
    found: Convolution, target: Target, kind: str, extents: Sequence[Any]
) -> str | None:
    if any(static(each) is None for each in extents):
        return "the image's size is not known"
    if not target.has_kernel("conv2d", found.filters.dtype, kind, "plain"):
        return "no kernel of this wheel runs natively"
    return target.why_not_convolution(kind, found.taps, found.is_strided)
