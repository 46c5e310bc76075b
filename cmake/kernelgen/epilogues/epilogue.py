"""Epilogues: a named expression of the accumulator, with its operands, and how wide its result is.

An epilogue is data, so that any family on any architecture can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kernelgen.epilogues.expression import ExpressionError, Source, parse
from kernelgen.epilogues.identifiers import operand_fault
from kernelgen.epilogues.spelling import text
from kernelgen.epilogues.tree import (
    KINDS,
    SCALAR,
    STORE,
    Accum,
    Aux,
    Binary,
    Kind,
    Lane,
    Node,
    Operand,
    Pair,
    Root,
    Scalar,
    Symbol,
    Value,
    start,
    symbols,
    walk,
)

__all__ = ["Epilogue", "ExpressionError", "Width", "build"]

# Columns of D against those of the accumulator: as many, half as many, twice as many.
Width = Literal["same", "half", "twice"]
Addend = Literal["none", "row", "matrix", "other"]

MAX_OPERANDS = 8  # kMaxEpilogueOperands
BUILT_IN_SCALARS = ("alpha", "beta")


@dataclass(frozen=True)
class Epilogue:
    """A declared epilogue. It is compared by meaning: spaces and needless parentheses are gone."""

    name: str
    tree: Root  # of D
    aux: tuple[tuple[str, Value], ...]  # what is stored besides D, in order of declaration
    operands: tuple[tuple[str, Kind], ...]  # as declared
    width: Width

    @property
    def expr(self) -> str:
        """The value of D as a manifest would have it."""
        return text(self.tree)

    @property
    def trees(self) -> tuple[Root, ...]:
        """In order of evaluation."""
        return (*(tree for _, tree in self.aux), self.tree)

    @property
    def positions(self) -> tuple[tuple[str, Kind], ...]:
        """Everything that a launch has to be given, with the index that C++ knows it by."""
        used = {symbol.name for symbol in _symbols(self.trees) if isinstance(symbol, Scalar)}
        scalars = ((name, SCALAR) for name in BUILT_IN_SCALARS if name in used)
        return (*scalars, *self.operands, *((name, STORE) for name, _ in self.aux))

    @property
    def has_accum(self) -> bool:
        """Whether it follows a product; else it belongs to an elementwise kernel."""
        return any(isinstance(symbol, Accum) for symbol in _symbols(self.trees))

    @property
    def matrices(self) -> tuple[Kind, ...]:
        """The operands with an element for each element of the product."""
        return tuple(kind for _, kind in self.operands if kind.extents.startswith("matrix"))

    @property
    def addend(self) -> Addend:
        """Recognises the epilogues of mm and addmm, which are chosen by what they add."""
        return "other" if self.aux else _CLASSIC.get(self.tree, "other")


def _either_way(operator: str, left: Value, right: Value) -> tuple[Value, Value]:
    return Binary(operator, left, right), Binary(operator, right, left)


_PRODUCTS = _either_way("*", Scalar("alpha"), Accum())
_BIAS = Operand("bias", KINDS["row[N]"])
_SCALED_C = _either_way("*", Scalar("beta"), Operand("c", KINDS["matrix[M,N]"]))
_CLASSIC: dict[Root, Addend] = {
    **dict.fromkeys(_PRODUCTS, "none"),
    **{tree: "row" for p in _PRODUCTS for tree in _either_way("+", p, _BIAS)},
    **{tree: "matrix" for p in _PRODUCTS for c in _SCALED_C for tree in _either_way("+", p, c)},
}


def build(
    name: str,
    expr: str,
    operands: Mapping[str, str] | None = None,
    aux: Mapping[str, str] | None = None,
) -> Epilogue:
    """Parses and checks one epilogue.

    `operands` maps names to kinds as in KINDS, `aux` names to expressions; both in order. Raises
    ExpressionError at the first thing that is wrong.
    """
    known: dict[str, Symbol] = {"accum": Accum(), **{n: Scalar(n) for n in BUILT_IN_SCALARS}}
    kinds = _declare_operands(operands or {}, known)
    aux_sources = {n: Source(f"aux {n}", body) for n, body in (aux or {}).items()}
    aux_trees: dict[str, Value] = {}
    for aux_name, source in aux_sources.items():
        if fault := operand_fault(aux_name):
            raise ExpressionError(fault, source.where)
        if aux_name in known:
            raise ExpressionError(f"{aux_name} is an operand; choose another name", source.where)
        aux_trees[aux_name] = _parse_aux(source, known, set(aux_sources) - set(aux_trees))
        known[aux_name] = Aux(aux_name)
    source = Source("expr", expr)
    tree = parse(source, known)
    _check_depends(source, tree)
    width = _width(source, tree)
    if width == "twice" and aux_trees:
        raise source.error("with pair() nothing is stored besides D: remove aux", tree.column)
    if width == "half":
        _check_half(source, tree)
        for aux_name, aux_tree in aux_trees.items():
            _check_half(aux_sources[aux_name], aux_tree)
    built = Epilogue(name, tree, tuple(aux_trees.items()), tuple(kinds.items()), width)
    used = {symbol.name for symbol in _symbols(built.trees) if not isinstance(symbol, Accum)}
    if unused := [operand for operand in kinds if operand not in used]:
        reason = f"nothing uses the operand {', '.join(unused)}: use it or do not declare it"
        raise source.error(reason, start(tree))
    if (count := len(built.positions)) > MAX_OPERANDS:
        names = ", ".join(n for n, _ in built.positions)
        raise ExpressionError(
            f"{count} operands ({names}); at most {MAX_OPERANDS}, scalars and aux included",
            "operands",
        )
    return built


def _declare_operands(operands: Mapping[str, str], known: dict[str, Symbol]) -> dict[str, Kind]:
    """Enters declared operands into `known`."""
    kinds = {}
    for name, spelled in operands.items():
        if fault := operand_fault(name):
            raise ExpressionError(fault, "operands")
        kind = KINDS.get(spelled)
        if kind is None:
            allowed = ", ".join(f'"{kind}"' for kind in KINDS)
            reason = f'{name} = "{spelled}" is no kind of operand; allowed: {allowed}'
            raise ExpressionError(reason, "operands")
        kinds[name] = kind
        known[name] = Scalar(name) if kind == SCALAR else Operand(name, kind)
    return kinds


def _parse_aux(source: Source, known: Mapping[str, Symbol], later: set[str]) -> Value:
    """Parses a value that is stored: one for each column of the product."""
    tree = parse(source, known, later)
    if isinstance(tree, Pair):
        raise source.error("an aux is one value for each column, no pair()", tree.column)
    _check_depends(source, tree)
    for node in walk(tree):
        if isinstance(node, Lane) and not _is_wide(node.value):
            name = text(node.value)
            raise source.error(
                f"an aux has every column of the product: write {name} here, and"
                f" {node.parity}() where expr uses the aux",
                node.column,
            )
    _check_wide(source, tree)
    return tree


def _width(source: Source, tree: Root) -> Width:
    _check_wide(source, tree)
    halving = next(
        (node for node in walk(tree) if isinstance(node, Lane) and not _is_wide(node.value)), None
    )
    if isinstance(tree, Pair):
        if halving is not None:
            raise source.error(
                f"{text(halving)} halves the width of D, pair() doubles it: use one of them",
                halving.column,
            )
        return "twice"
    return "same" if halving is None else "half"


def _check_wide(source: Source, tree: Root) -> None:
    """A wide matrix has two elements for each column; one of them must be chosen."""
    for node in walk(tree):
        if isinstance(node, Operand) and _is_wide(node):
            reason = f"{node.name} is {node.kind}: write even({node.name}) or odd({node.name})"
            raise source.error(reason, node.column)


def _check_half(source: Source, tree: Root) -> None:
    """In an epilogue that halves the width; its aux have every column, its expr has pairs."""
    for symbol in symbols(tree):
        if isinstance(symbol, Operand) and symbol.kind.extents != "row[N]":
            raise source.error(
                f"{symbol.name} is {symbol.kind}; where even() or odd() halves the width of D,"
                " operands are scalar or row[N]",
                symbol.column,
            )
    if source.where != "expr":
        return
    for node in walk(tree):
        if isinstance(node, Accum | Operand | Aux):
            name = text(node)
            raise source.error(
                f"{name} has every column, and D half as many because even() or odd() is used:"
                f" write even({name}) or odd({name})",
                node.column,
            )


def _check_depends(source: Source, tree: Root) -> None:
    if all(isinstance(symbol, Scalar) for symbol in symbols(tree)):
        raise source.error(
            "the same for every element: use accum, an aux or a tensor operand", start(tree)
        )


def _is_wide(node: Node) -> bool:
    return isinstance(node, Operand) and node.kind.is_wide


def _symbols(trees: Iterable[Root]) -> Iterator[Symbol]:
    for tree in trees:
        yield from symbols(tree)
