"""Epilogue expressions: parsed once into a small typed tree, recognised by their structure.

An epilogue is data, so that any family on any architecture can use it. This version builds sums of
the scaled accumulator and one addend; everything else stops with the column of the token at fault.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

SCALARS = ("alpha", "beta")
OPERAND_SHAPES = {"c": "matrix[M,N]", "bias": "row[N]"}
SUPPORTED = '"alpha * accum", "alpha * accum + beta * c" or "alpha * accum + bias"'


class ExpressionError(ValueError):
    """An expression that cannot be built; `column` counts from 1."""

    def __init__(self, reason: str, column: int) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True)
class Accum:
    """The accumulator of the mainloop."""

    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Scalar:
    """A run-time scalar."""

    name: str
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Operand:
    """A tensor read by the epilogue."""

    name: str
    shape: str
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Multiply:
    left: Node
    right: Node
    column: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Add:
    left: Node
    right: Node
    column: int = field(default=0, compare=False)


Node = Accum | Scalar | Operand | Multiply | Add

_OPERATORS: dict[type[ast.operator], type[Multiply] | type[Add]] = {
    ast.Mult: Multiply,
    ast.Add: Add,
}


@dataclass(frozen=True)
class Epilogue:
    """A declared epilogue: `operands` maps each tensor name to its shape."""

    name: str
    expr: str
    operands: tuple[tuple[str, str], ...]
    tree: Node

    @property
    def addend(self) -> str:
        """What is added to the product: none, row (a vector over N) or matrix."""
        shapes = [shape for _, shape in self.operands]
        return shapes[0].partition("[")[0] if shapes else "none"

    @property
    def reads_c(self) -> bool:
        """Whether a C tile goes through shared memory besides D."""
        return self.addend == "matrix"


def parse(expr: str, operands: Mapping[str, str]) -> Node:
    """Parses `expr` into a tree whose names are all declared."""
    text = expr.replace("\n", " ")
    indent = len(text) - len(text.lstrip())
    try:
        root = ast.parse(text.lstrip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        # Python gives no offset where the text ends too early.
        column = getattr(error, "offset", None) or len(text.strip()) + 1
        raise ExpressionError(f"not an expression ({error.args[0]})", column + indent) from None
    return _convert(root, text, indent, operands)


def _convert(node: ast.expr, text: str, indent: int, operands: Mapping[str, str]) -> Node:
    column = node.col_offset + indent + 1
    if isinstance(node, ast.Name):
        if node.id == "accum":
            return Accum(column)
        if node.id in SCALARS:
            return Scalar(node.id, column)
        if node.id in operands:
            return Operand(node.id, operands[node.id], column)
        known = ", ".join(["accum", *SCALARS, *operands])
        reason = f'unknown name "{node.id}"; known are {known} (operands declares tensors)'
        raise ExpressionError(reason, column)
    if isinstance(node, ast.BinOp):
        # ast keeps no position of the operator: it is the first thing behind the left operand.
        end = (node.left.end_col_offset or 0) + indent
        column = end + len(text[end:]) - len(text[end:].lstrip(" \t)")) + 1
        kind = _OPERATORS.get(type(node.op))
        if kind is None:
            raise ExpressionError(f'operator "{text[column - 1]}"', column)
        left = _convert(node.left, text, indent, operands)
        right = _convert(node.right, text, indent, operands)
        return kind(left, right, column)
    what = "function call" if isinstance(node, ast.Call) else type(node).__name__.lower()
    raise ExpressionError(f'{what} "{ast.unparse(node)}"', column)


def build(name: str, expr: str, operands: Mapping[str, str]) -> Epilogue:
    """Parses and recognises; returns an epilogue that every GEMM family can build.

    Raises ExpressionError at the first token that leaves the supported trees.
    """
    tree = parse(expr, operands)
    terms = [tree.left, tree.right] if isinstance(tree, Add) else [tree]
    kinds = [_term(term) for term in terms]
    if kinds.count(Accum) != 1:
        column = _start(terms[-1])
        raise ExpressionError('there must be exactly one term "alpha * accum"', column)
    if unused := [name for name in operands if name not in _names(tree)]:
        names = ", ".join(unused)
        raise ExpressionError(f"does not use the declared operand {names}", _start(tree))
    return Epilogue(name, expr, tuple(sorted(operands.items())), tree)


def _term(node: Node) -> type[Accum] | type[Operand]:
    """Accum for `alpha * accum`, Operand for `beta * c` (either way round) and for `bias`."""
    if node == Operand("bias", OPERAND_SHAPES["bias"]):
        return Operand
    if not isinstance(node, Multiply):
        raise ExpressionError("a term is bias, or a scalar times accum or c", _start(node))
    for scalar, tensor in ((node.left, node.right), (node.right, node.left)):
        if scalar == Scalar("alpha") and isinstance(tensor, Accum):
            return Accum
        if scalar == Scalar("beta") and tensor == Operand("c", OPERAND_SHAPES["c"]):
            return Operand
    raise ExpressionError("accum is scaled by alpha and c by beta, nothing else", _start(node))


def _names(node: Node) -> set[str]:
    """Tensors that a subtree reads."""
    if isinstance(node, (Multiply, Add)):
        return _names(node.left) | _names(node.right)
    return {node.name} if isinstance(node, Operand) else set()


def _start(node: Node) -> int:
    """Column of the first token of a subtree."""
    return min(node.column, _start(node.left)) if isinstance(node, (Multiply, Add)) else node.column
