"""The layout of every op, from its arguments by name."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.tensor import Partial

from .._common.epilogue import expressions_of, find, signature_of
from ..scaled._recipes import BLOCK, BLOCKWISE_1X128, BLOCKWISE_128X128, ROWWISE
from ._layout import Dim, Layout, Operand

Arguments = dict[str, Any]

# Bytes that kernels for operands of 8 bits read at once.
PIECE = 16


def _layout(
    operands: list[Operand | None],
    *results: tuple[Dim, ...],
    summed: str | tuple[str, ...] = "",
    groups: tuple[tuple[int, str, int], ...] = (),
) -> Layout:
    given = tuple(o for o in operands if o is not None and o.tensor is not None)
    return Layout(given, results, frozenset(summed), groups)


def _added(tensor: Any, *dims: Dim) -> Operand:
    return Operand(tensor, dims, is_added=True)


@functools.cache
def is_linear(epilogue: str) -> bool:
    """Whether an epilogue's results are sums of terms with one operand or the accumulator each."""
    scalars = signature_of(epilogue).scalars if epilogue else ()

    def terms(node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return terms(node.left) and terms(node.right)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            is_factor = isinstance(node.left, ast.Name) and node.left.id in scalars
            return is_factor and terms(node.right)
        return isinstance(node, ast.Name) and node.id not in scalars

    return all(terms(ast.parse(text, mode="eval").body) for _, text in expressions_of(epilogue))


# ---- dense
def _mm(arguments: Arguments) -> Layout:
    a, b = Operand(arguments["input"], ("m", "k")), Operand(arguments["mat2"], ("k", "n"))
    return _layout([a, b], ("m", "n"), summed="k")


def _bmm(arguments: Arguments) -> Layout:
    a = Operand(arguments["input"], ("b", "m", "k"))
    b = Operand(arguments["mat2"], ("b", "k", "n"))
    return _layout([a, b], ("b", "m", "n"), summed="k")


def _with_c(names: tuple[str, str], rows: tuple[str, ...]) -> Callable[[Arguments], Layout]:
    def layout(arguments: Arguments) -> Layout:
        c, a, b = arguments["input"], arguments[names[0]], arguments[names[1]]
        result = (*rows, "n")
        # C broadcasts to the result.
        behind = result[len(result) - len(c.shape) :]
        dims = [None if size == 1 else dim for size, dim in zip(c.shape, behind, strict=True)]
        batch = rows[:-1]
        operands = [_added(c, *dims), Operand(a, (*rows, "k")), Operand(b, (*batch, "k", "n"))]
        return _layout([*operands], result, summed="k")

    return layout


def _leading(tensor: Any) -> tuple[str, ...]:
    """Names for all dimensions but the last."""
    return tuple(f"row{dim}" for dim in range(len(tensor.shape) - 1))


def _linear(arguments: Arguments) -> Layout:
    input = arguments["input"]
    rows = _leading(input)
    operands = [
        Operand(input, (*rows, "k")),
        Operand(arguments["weight"], ("n", "k")),
        _added(arguments["bias"], "n"),
    ]
    return _layout([*operands], (*rows, "n"), summed="k")


def _linear_fused(arguments: Arguments, with_z: bool = False) -> Layout:
    input, epilogue = arguments["input"], arguments["epilogue"]
    rows = _leading(input)
    n: Dim = ("n", 2) if _width(epilogue) == "half" else "n"
    operands = [
        Operand(input, (*rows, "k")),
        *_weights(arguments, n, "k"),
        _added(arguments["bias"], n),
        _added(arguments["residual"], *rows, "n"),
    ]
    results = [(*rows, "n"), (*rows, n)][: 1 + with_z]
    return _layout([*operands], *results, summed="k" if is_linear(epilogue) else "")


def of_gated_pair(input: Any, weights: Sequence[Any], biases: Sequence[Any]) -> Layout:
    """gated_linear of two matrices, [F, K] each, and two biases, [F] or None."""
    rows = _leading(input)
    operands = [
        Operand(input, (*rows, "k")),
        *(Operand(weight, ("n", "k")) for weight in weights),
        *(Operand(bias, ("n",)) for bias in biases),
    ]
    return _layout([*operands], (*rows, "n"))


def _weights(arguments: Arguments, n: Dim, k: Dim, *before: Dim) -> list[Operand]:
    """One weight, or that of even columns and that of odd ones."""
    up = arguments.get("up")
    weight = Operand(arguments["weight"], (*before, n if up is None else "n", k))
    return [weight] if up is None else [weight, Operand(up, (*before, "n", k))]


def _width(epilogue: str) -> str:
    declared = find(epilogue)
    return "same" if declared is None else declared.width


def _linear_fused_aux(arguments: Arguments) -> Layout:
    return _linear_fused(arguments, with_z=True)


def _linear_gradients(arguments: Arguments) -> Layout:
    grad = arguments["grad"]
    rows = _leading(grad)
    operands = [
        Operand(grad, (*rows, "n")),
        Operand(arguments["input"], (*rows, "k")),
        Operand(arguments["weight"], ("n", "k")),
    ]
    return _layout([*operands], (*rows, "k"), ("n", "k"), summed=(*rows, "n"))


def _gated_input_gradient(arguments: Arguments) -> Layout:
    grad = arguments["grad"]
    rows = _leading(grad)
    operands = [
        Operand(grad, (*rows, None)),
        Operand(arguments["weight"], (None, "k")),
        Operand(arguments["up"], (None, "k")),
    ]
    return _layout([*operands], (*rows, "k"))


def _elementwise(arguments: Arguments) -> Layout:
    tensors, epilogue = arguments["operands"], arguments["epilogue"]
    declared = find(epilogue)
    kinds = [] if declared is None else list(declared.operands.values())
    rows = _leading(tensors[0])
    operands = [
        Operand(tensor, (*rows, ("n", 2) if "2N" in kind else "n"))
        for tensor, kind in zip(tensors, kinds, strict=True)
    ]
    width = _width(epilogue)
    n: Dim = {"same": "n", "half": None, "twice": ("n", 2)}[width]
    if arguments.get("in_halves"):
        # A device's columns are not next to each other.
        n = None
    # Sums are those of the rows that a device has; of what is not asked for, nothing is split.
    result = (*rows, n) if arguments["with_result"] else ()
    sums = (n,) if arguments["with_sums"] else ()
    return _layout([*operands], result, sums, summed=rows)


def _gemm(arguments: Arguments) -> Layout:
    a, b, epilogue = arguments["a"], arguments["b"], arguments["epilogue"]
    signature, width = signature_of(epilogue), _width(epilogue)
    batch = ("b",) * (len(a.shape) - 2)
    of_accum: Dim = ("n", 2) if width == "half" else "n"
    of_result: Dim = ("n", 2) if width == "twice" else "n"
    columns: dict[str, Dim] = {"matrix[M,2N]": ("n", 2)}
    operands: list[Operand | None] = [
        Operand(a, (*batch, "m", "k")),
        Operand(b, (*batch, "k", of_accum)),
    ]
    for kind, tensor in zip(signature.kinds, arguments["operands"], strict=True):
        if tensor is None:
            continue
        kind = kind.removesuffix(" f32")
        # D's columns, unless the epilogue reads them in pairs.
        n = columns.get(kind, of_accum if kind == "row[N]" else "n")
        dims: tuple[Dim, ...] = {"row[N]": (n,), "col[M]": ("m",)}.get(kind, ("m", n))
        # A row or a column may be one for the whole batch.
        operands.append(_added(tensor, *batch[: len(tensor.shape) - len(dims)], *dims))
    stores = [(*batch, "m", of_accum)] * signature.stores
    summed = "k" if is_linear(epilogue) else ""
    return _layout(operands, (*batch, "m", of_result), *stores, summed=summed)


# ---- quantised
def _scaled_mm(arguments: Arguments) -> Layout:
    a, b = arguments["mat_a"], arguments["mat_b"]
    scale_a, scale_b = arguments["scale_a"], arguments["scale_b"]
    n = b.shape[1]
    has_blocks = _dims(scale_a) == 2 and scale_a.shape[1] > 1
    is_square = _dims(scale_b) == 2 and _has_several(scale_b) and scale_b.shape[1] != n
    in_k: Dim = ("k", BLOCK if has_blocks else PIECE)
    in_n: Dim = ("n", BLOCK if is_square else PIECE)
    of_k = "k" if has_blocks else None
    operands: list[Operand | None] = [
        Operand(a, ("m", in_k)),
        Operand(b, (in_k, in_n)),
        _scale(scale_a, ("m", of_k)[: _dims(scale_a)]),
        _scale(scale_b, (of_k, "n" if is_square else in_n)[-_dims(scale_b) :]),
        _added(arguments["bias"], in_n),
    ]
    azp, azp_adj = arguments["azp"], arguments["azp_adj"]
    is_summed = True
    operands.append(_scale(azp, ("m", None)[: _dims(azp)]))
    if azp_adj is not None:
        operands.append(_added(azp_adj, *(None, in_n)[-_dims(azp_adj) :]))
        # Integers are not split into a sum: those of a K that is split have to be given so.
        is_summed = all(isinstance(placement, Partial) for placement in azp_adj.placements)
    return _layout(operands, ("m", in_n), summed="k" if is_summed else "")


def _dims(tensor: Any) -> int:
    return 0 if tensor is None else len(tensor.shape)


def _has_several(tensor: Any) -> bool:
    count: int = math.prod(tensor.shape)
    return count > 1


def _scale(tensor: Any, dims: tuple[Dim, ...]) -> Operand | None:
    """A scale of one element belongs to all of them, and is whole on each device."""
    if tensor is None:
        return None
    return Operand(tensor, dims if _has_several(tensor) else (None,) * len(tensor.shape))


def _quantize(arguments: Arguments) -> Layout:
    x, recipe = arguments["x"], arguments["recipe"]
    rest = (None,) * (len(x.shape) - 1)
    dims: tuple[Dim, ...] = (None, *rest)
    scales: tuple[Dim, ...] = (None,)
    groups: tuple[tuple[int, str, int], ...] = ()
    if recipe == ROWWISE:
        dims, scales = ("m", *rest), ("m", None)
    elif recipe == BLOCKWISE_1X128:
        dims, scales = ("m", *rest[:-1], ("k", BLOCK)), ("m", "k")
    elif recipe == BLOCKWISE_128X128:
        dims, scales = (("m", BLOCK), ("k", BLOCK)), ("m", "k")
    if recipe in (ROWWISE, BLOCKWISE_1X128):
        # Scales have one dimension for all rows.
        inner = math.prod(x.shape[1:-1])
        groups = ((math.prod(x.shape[:-1]), "m", inner),) if inner > 1 else ()
    azp: tuple[Dim, ...] = () if arguments["symmetric"] else scales
    return _layout([Operand(x, dims)], dims, scales, azp, groups=groups)


def _scaled_grouped_mm(arguments: Arguments) -> Layout:
    a, b = arguments["mat_a"], arguments["mat_b"]
    scale_a, scale_b = arguments["scale_a"], arguments["scale_b"]
    has_blocks = _dims(scale_a) == 2 and scale_a.shape[1] > 1
    is_square = _dims(scale_b) == 3 and (has_blocks or scale_b.shape[2] != b.shape[2])
    in_k: Dim = ("k", BLOCK if has_blocks else PIECE)
    in_n: Dim = ("n", BLOCK if is_square else PIECE)
    of_k, of_n = "k" if has_blocks else None, "n" if is_square else in_n
    operands = [
        Operand(a, ("t", in_k)),
        Operand(b, ("g", in_k, in_n)),
        Operand(scale_a, ("t", of_k)[: _dims(scale_a)]),
        Operand(scale_b, ("g", of_n) if _dims(scale_b) == 2 else ("g", of_k, of_n)),
        _offs(arguments),
        _added(arguments["bias"], "g", in_n),
    ]
    return _layout([*operands], ("t", in_n), summed="kg")


# ---- grouped
def _offs(arguments: Arguments) -> Operand | None:
    offs = arguments["offs"]
    # Among the operands of a strategy; a call with local ends has taken it out.
    return Operand(offs, (None,)) if hasattr(offs, "placements") else None


def _grouped_mm(arguments: Arguments) -> Layout:
    a, b = arguments["mat_a"], arguments["mat_b"]
    if len(b.shape) == 3:
        operands = [
            Operand(a, ("t", "k")),
            Operand(b, ("g", "k", "n")),
            _offs(arguments),
            _added(arguments["bias"], "g", "n"),
        ]
        return _layout([*operands], ("t", "n"), summed="kg")
    operands = [Operand(a, ("m", "t")), Operand(b, ("t", "n")), _offs(arguments)]
    return _layout([*operands], (None, "m", "n"), summed="t")


def _grouped_fused(arguments: Arguments, with_z: bool = False) -> Layout:
    n: Dim = ("n", 2) if _width(arguments["epilogue"]) == "half" else "n"
    operands = [
        Operand(arguments["input"], ("t", "k")),
        *_weights(arguments, n, "k", "g"),
        _offs(arguments),
        _added(arguments["bias"], "g", n),
    ]
    return _layout([*operands], *[("t", "n"), ("t", n)][: 1 + with_z], summed="g")


def _grouped_fused_aux(arguments: Arguments) -> Layout:
    return _grouped_fused(arguments, with_z=True)


def _gathered(arguments: Arguments, with_z: bool = False) -> Layout:
    """Rows are found among all tokens."""
    n: Dim = ("n", 2) if _width(arguments["epilogue"]) == "half" else "n"
    operands = [
        Operand(arguments["input"], (None, "k")),
        _whole(arguments["places"], 2),
        _whole(arguments["sources"], 1),
        *_weights(arguments, n, "k", None),
        _whole(arguments["offs"], 1),
    ]
    summed = "k" if is_linear(arguments["epilogue"]) else ""
    return _layout([*operands], *[(None, "n"), (None, n)][: 1 + with_z], summed=summed)


def _gathered_aux(arguments: Arguments) -> Layout:
    return _gathered(arguments, with_z=True)


# ---- rows of experts: tokens are sorted whole, and columns go with them
def _whole(tensor: Any, dims: int) -> Operand:
    return Operand(tensor, (None,) * dims)


def _route(arguments: Arguments) -> Layout:
    ids = arguments["expert_ids"]
    places: tuple[Dim, ...] = (None,) * len(ids.shape)
    return _layout([Operand(ids, places)], places, (None,), (None,))


def _moved(arguments: Arguments) -> Layout:
    moved = arguments["tokens"] if "tokens" in arguments else arguments["rows"]
    others = [(arguments[name], dims) for name, dims in _BESIDE_ROWS]
    operands = [Operand(moved, (None, "h")), *(_whole(*given) for given in others)]
    return _layout([*operands], (None, "h"))


_BESIDE_ROWS = (("places", 2), ("weights", 2), ("offs", 1))


def _dots(arguments: Arguments) -> Layout:
    operands = [
        Operand(arguments["rows"], (None, "h")),
        Operand(arguments["tokens"], (None, "h")),
        _whole(arguments["places"], 2),
        _whole(arguments["offs"], 1),
    ]
    return _layout([*operands], (None, None), summed="h")


# ---- convolutions: only images are split
def _of_images(*names: str, results: int = 1) -> Callable[[Arguments], Layout]:
    """Split along images, the first dimension of `names` and of the results; the rest is whole."""

    def layout(arguments: Arguments) -> Layout:
        operands = []
        for name, value in arguments.items():
            if hasattr(value, "placements"):
                rest = (None,) * (len(value.shape) - 1)
                dims = ("b", *rest) if name in names else (None,) * len(value.shape)
                operands.append(Operand(value, dims))
        rest = (None,) * (len(arguments[names[0]].shape) - 1)
        return _layout([*operands], *[("b", *rest)] * results)

    return layout


def _wgrad(arguments: Arguments) -> Layout:
    grad, input = arguments["grad_output"], arguments["input"]
    rest = (None,) * (len(grad.shape) - 1)
    operands = [Operand(grad, ("b", *rest)), Operand(input, ("b", *rest))]
    return _layout([*operands], (None, *rest), summed="b")


_IMAGES = _of_images("input", "residual")
_IMAGES_AND_Z = _of_images("input", "residual", results=2)
_DGRAD = _of_images("grad_output")

# Ops with a result of their own, and what splits them. Among grouped ops, rows (t) and experts (g)
# need other ends on each device: _calls has these.
LAYOUTS: dict[str, Callable[[Arguments], Layout]] = {
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _with_c(("mat1", "mat2"), ("m",)),
    "baddbmm": _with_c(("batch1", "batch2"), ("b", "m")),
    "gemm": _gemm,
    "linear": _linear,
    "linear_fused": _linear_fused,
    "linear_fused_aux": _linear_fused_aux,
    "linear_gradients": _linear_gradients,
    "gated_input_gradient": _gated_input_gradient,
    "elementwise": _elementwise,
    "scaled_mm": _scaled_mm,
    "quantize": _quantize,
    "grouped_mm": _grouped_mm,
    "grouped_linear_fused": _grouped_fused,
    "grouped_linear_fused_aux": _grouped_fused_aux,
    "grouped_linear_gathered": _gathered,
    "grouped_linear_gathered_aux": _gathered_aux,
    "scaled_grouped_mm": _scaled_grouped_mm,
    "moe_route": _route,
    "moe_permute": _moved,
    "moe_unpermute": _moved,
    "moe_permute_dots": _dots,
    **dict.fromkeys(
        ("conv2d", "conv2d_fused", "conv2d_grouped", "conv3d", "conv3d_fused"), _IMAGES
    ),
    **dict.fromkeys(("conv2d_fused_aux", "conv3d_fused_aux"), _IMAGES_AND_Z),
    **dict.fromkeys(("conv_transpose2d", "conv_transpose3d", "scaled_conv2d"), _IMAGES),
    **dict.fromkeys(
        ("conv2d_input_grad", "conv2d_grouped_input_grad", "conv3d_input_grad"), _DGRAD
    ),
    **dict.fromkeys(
        ("conv2d_weight_grad", "conv2d_grouped_weight_grad", "conv3d_weight_grad"), _wgrad
    ),
}

RAGGED = ("t", "g")
"""names along which groups lie, which only calls with local ends may split"""
