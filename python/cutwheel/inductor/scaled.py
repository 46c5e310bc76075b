"""fp8 products of a graph, aten's _scaled_mm: found, judged, replaced."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..ops._common.errors import dtype_name
from . import rewriting
from .report import Replacement
from .sizes import is_contiguous, is_same, letter, static, value_of

aten, ops = torch.ops.aten, torch.ops.cutwheel

_NAMES = ("self", "mat2", "scale_a", "scale_b", "bias", "scale_result", "out_dtype")
_E4M3 = torch.float8_e4m3fn
TENSORWISE, ROWWISE = "tensorwise", "rowwise"


def _recipe_of(scale_a: Any, scale_b: Any, m: Any, n: Any) -> str | None:
    """Of two scales; None: another than those that were measured."""
    values = value_of(scale_a), value_of(scale_b)
    if any(each is None or each.dtype != torch.float32 for each in values):
        return None
    left, right = (each for each in values if each is not None)
    if all(is_same(size, 1) for size in (*left.shape, *right.shape)):
        # One row of A, or one column of B, has the shape of a tensor's scale.
        return TENSORWISE
    shapes = (*left.shape, *right.shape)
    rows = left.dim() == right.dim() == 2 and all(map(is_same, shapes, (m, 1, 1, n)))
    return ROWWISE if rows and is_contiguous(left) and is_contiguous(right) else None


def replace_scaled(graph: fx.Graph, node: fx.Node, context: Any) -> Replacement | None:
    """Puts a kernel in the place of an fp8 product. None: the node is none."""
    if node.op != "call_function" or node.target is not aten._scaled_mm.default:
        return None
    given = {**dict(zip(_NAMES, node.args, strict=False)), **node.kwargs}
    fast = given.get("use_fast_accum", node.args[7] if len(node.args) > 7 else False)
    a, b, result = value_of(given["self"]), value_of(given["mat2"]), value_of(node)
    if a is None or b is None or result is None:
        return None
    (m, k), n = a.shape, b.shape[1]
    layout = letter(a) + letter(b)
    problem = f"{m}x{n}x{k} {dtype_name(a.dtype)} {layout}"

    def entry(by: str | None, reason: str = "") -> Replacement:
        return Replacement("_scaled_mm", problem, by, reason)

    target = context.target(a.device)
    if isinstance(target, str):
        return entry(None, target)
    if a.dtype != _E4M3 or b.dtype != _E4M3 or result.dtype not in (torch.bfloat16, torch.float16):
        return entry(None, "other dtypes than float8_e4m3fn and a 16-bit result")
    if given.get("scale_result") is not None or given.get("bias") is not None:
        return entry(None, "a bias, or a scale of the result")
    if layout != "tn" or static(n) is None or static(n) % 16 or static(k) in (None, 0):  # type: ignore[operator]
        return entry(None, "rows that do not begin at multiples of 16 bytes, or a row-major B")
    recipe = _recipe_of(given["scale_a"], given["scale_b"], m, n)
    if recipe is None:
        return entry(None, "scales of another recipe than tensorwise and rowwise")
    if not target.has_kernel("scaled_mm", a.dtype, "tnt", "scaled", result.dtype):
        return entry(None, "no kernel of this wheel runs natively")
    because = target.why_not_fused(f"{recipe}{', fast' if fast else ''}", None, m)
    if because is not None:
        return entry(None, because)
    args = given["self"], given["mat2"], given["scale_a"], given["scale_b"], None, None, None
    with graph.inserting_before(node):
        rest = result.dtype, None, None, bool(fast)
        made = rewriting.emit(graph, ops.scaled_mm.default, (*args, *rest), node)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return entry("scaled_mm")
