"""The parser of epilogue expressions: text to typed tree, by way of Python's own parser.

What Python's grammar allows beyond the language stops here, with the column of the token at fault
and what to write instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from kernelgen.epilogues import tree

MAX_DEPTH = 64
FLOAT32_MAX = float.fromhex("0x1.fffffep+127")
FLOAT32_MIN = float.fromhex("0x1p-126")  # smaller ones lose bits, or all of them
_FOREIGN = re.compile(r"[^ -~]|#")
_SPELLINGS: dict[type[ast.operator] | type[ast.cmpop], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_REMEDIES: dict[type[ast.expr], str] = {
    ast.IfExp: "write where(condition, a, b) for a choice",
    ast.BoolOp: 'conditions cannot be joined by "and" or "or": nest where() instead',
    ast.Subscript: "operands are not indexed: their kind says which element is read",
    ast.Tuple: "an expression is one value; two columns of D are pair(x, y)",
    ast.Attribute: "names have no attributes",
}


class ExpressionError(ValueError):
    """An epilogue that cannot be built.

    `where` says which text is wrong ("expr", "aux z" or "operands"), `column` which token of it,
    from 1 and line ends counted as one character; 0 where it is not a token that is wrong.
    """

    def __init__(self, reason: str, where: str, text: str = "", column: int = 0) -> None:
        super().__init__(f'column {column} of "{text}": {reason}' if column else reason)
        self.reason = reason
        self.where = where
        self.column = column


@dataclass(frozen=True)
class Source:
    """One expression of an epilogue, and where the manifest has it."""

    where: str
    text: str

    def error(self, reason: str, column: int) -> ExpressionError:
        return ExpressionError(reason, self.where, self.line, column)

    @property
    def line(self) -> str:
        """The text as one line in which every character keeps its column."""
        return re.sub(r"[\t\n\r]", " ", self.text)


def parse(
    source: Source, symbols: Mapping[str, tree.Symbol], later: Collection[str] = ()
) -> tree.Root:
    """Parses `source` into a tree whose names are all in `symbols`.

    `later` are names that exist but cannot be used yet. Raises ExpressionError. Widths are not
    checked here.
    """
    line = source.line
    if foreign := _FOREIGN.search(line):
        character, column = foreign.group(), foreign.start() + 1
        if character == "#":
            raise source.error("comments belong in the manifest, outside the quotes", column)
        raise source.error(f"character {character!a}; expressions are made of ASCII", column)
    body = line.strip()
    indent = len(line) - len(line.lstrip())
    if not body:
        raise source.error("there is no expression", 1)
    try:
        root = ast.parse(body, mode="eval").body
    except (SyntaxError, ValueError) as error:
        # Python gives no offset where the text ends too early.
        column = min(getattr(error, "offset", None) or len(body) + 1, len(body) + 1)
        raise source.error(f"not an expression ({error.args[0]})", column + indent) from None
    except (MemoryError, RecursionError):
        raise source.error(f"nested more than {MAX_DEPTH} deep", indent + 1) from None
    return _Parser(source, line, indent, symbols, later).root(root)


class _Parser:
    """Turns Python's nodes into ours."""

    def __init__(
        self,
        source: Source,
        line: str,
        indent: int,
        symbols: Mapping[str, tree.Symbol],
        later: Collection[str],
    ) -> None:
        self._error = source.error
        self._line = line
        self._indent = indent
        self._symbols = symbols
        self._later = later
        self._depth = 0

    def root(self, node: ast.expr) -> tree.Root:
        match node:
            case ast.Call(func=ast.Name("pair")):
                even, odd = self._arguments(node, "pair")
                return tree.Pair(self._value(even), self._value(odd), column=self._column(node))
        return self._value(node)

    def _value(self, node: ast.expr) -> tree.Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(
                f"nested more than {MAX_DEPTH} deep: store a part in aux", self._column(node)
            )
        value = self._convert(node)
        self._depth -= 1
        return value

    def _convert(self, node: ast.expr) -> tree.Value:
        column = self._column(node)
        match node:
            case ast.Name(name):
                return self._symbol(name, column)
            case ast.Constant(value):
                return self._number(value, column)
            case ast.UnaryOp(ast.USub(), operand):
                return tree.Negate(self._value(operand), column=column)
            case ast.UnaryOp(ast.UAdd()):
                raise self._error('a sign "+" does nothing: leave it out', column)
            case ast.BinOp(left, operation, right):
                operator, column = self._operator(left, operation)
                if operator not in tree.OPERATORS:
                    remedy = ": write x * x" if operator == "**" else ""
                    allowed = " ".join(tree.OPERATORS)
                    raise self._error(f'operator "{operator}"; allowed: {allowed}{remedy}', column)
                return tree.Binary(operator, self._value(left), self._value(right), column=column)
            case ast.Call():
                return self._call(node, column)
            case ast.Compare(left, operations, _):
                column = self._operator(left, operations[0])[1]
                raise self._error(
                    "a comparison is no value; use it as in where(x > 0, a, b)", column
                )
        what = _REMEDIES.get(type(node), "an expression has names, numbers, + - * / and calls")
        raise self._error(f'"{ast.unparse(node)}" is not allowed; {what}', column)

    def _symbol(self, name: str, column: int) -> tree.Symbol:
        if symbol := self._symbols.get(name):
            return replace(symbol, column=column)
        if parameters := (tree.FUNCTIONS | tree.FORMS).get(name):
            usage = f"{name}({', '.join(parameters)})"
            raise self._error(f"{name} is a function: write {usage}", column)
        if name in self._later:
            raise self._error(f"{name} is an aux that is computed later: declare it first", column)
        raise self._error(
            f'unknown name "{name}"; known here: {", ".join(self._symbols)}'
            " (operands and aux declare more)",
            column,
        )

    def _number(self, value: object, column: int) -> tree.Number:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._error(f"{value!r} is no real number", column)
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if number > FLOAT32_MAX or 0 < number < FLOAT32_MIN:
            raise self._error("the number is out of float32's range, 1.18e-38 to 3.40e38", column)
        return tree.Number(number, column=column)

    def _call(self, node: ast.Call, column: int) -> tree.Value:
        if not isinstance(node.func, ast.Name):
            raise self._error(f'"{ast.unparse(node.func)}" is no name of a function', column)
        name = node.func.id
        if name in tree.FUNCTIONS:
            arguments = tuple(map(self._value, self._arguments(node, name)))
            return tree.Call(name, arguments, column=column)
        match name:
            case "where":
                condition, yes, no = self._arguments(node, name)
                return tree.Where(
                    self._condition(condition), self._value(yes), self._value(no), column=column
                )
            case "even" | "odd":
                return self._lane(name, self._arguments(node, name)[0], column)
            case "pair":
                raise self._error(
                    "pair() is the two columns of D: nothing may stand around it", column
                )
        known = ", ".join(sorted(tree.FUNCTIONS | tree.FORMS))
        raise self._error(f'unknown function "{name}"; known: {known}', column)

    def _arguments(self, node: ast.Call, name: str) -> list[ast.expr]:
        parameters = (tree.FUNCTIONS | tree.FORMS)[name]
        usage = f"{name}({', '.join(parameters)})"
        unusual: list[ast.keyword | ast.expr] = [
            *(argument for argument in node.args if isinstance(argument, ast.Starred)),
            *node.keywords,
        ]
        if unusual:
            column = self._column(unusual[0])
            raise self._error(f"arguments are given by position: {usage}", column)
        if len(node.args) != len(parameters):
            raise self._error(
                f"{name} takes {len(parameters)} argument{'s' if len(parameters) > 1 else ''},"
                f" not {len(node.args)}: {usage}",
                self._column(node),
            )
        return node.args

    def _condition(self, node: ast.expr) -> tree.Compare:
        column = self._column(node)
        match node:
            case ast.Compare(left, [operation], [right]):
                operator, column = self._operator(left, operation)
                if operator in tree.COMPARISONS:
                    return tree.Compare(
                        operator, self._value(left), self._value(right), column=column
                    )
                allowed = " ".join(tree.COMPARISONS)
                raise self._error(f'operator "{operator}"; allowed: {allowed}', column)
            case ast.Compare(_, [_, second, *_], [first, *_]):
                column = self._operator(first, second)[1]
                raise self._error("a condition is one comparison: nest where() instead", column)
        raise self._error("a condition is one comparison, as in where(x > 0, a, b)", column)

    def _lane(self, parity: tree.Parity, node: ast.expr, column: int) -> tree.Lane:
        at = self._column(node)
        if not isinstance(node, ast.Name):
            raise self._error(
                f"{parity}() takes a name, as in {parity}(accum): apply the rest outside", at
            )
        value = self._symbol(node.id, at)
        match value:
            case tree.Accum() | tree.Aux():
                return tree.Lane(parity, value, column=column)
            case tree.Operand(_, kind) if kind.enumerator in ("row", "wide_matrix"):
                return tree.Lane(parity, value, column=column)
        what = value.kind if isinstance(value, tree.Operand) else "a scalar"
        raise self._error(
            f"{node.id} is {what}, which has no pairs of columns; {parity}() takes accum, an aux,"
            " a row[N] or a matrix[M,2N]",
            at,
        )

    def _column(self, node: ast.expr | ast.keyword) -> int:
        return node.col_offset + self._indent + 1

    def _operator(self, left: ast.expr, operation: ast.operator | ast.cmpop) -> tuple[str, int]:
        """Spelling and column. Python keeps none: it is the first thing behind the left operand."""
        end = (left.end_col_offset or 0) + self._indent
        behind = self._line[end:].lstrip(" )")
        spelling = _SPELLINGS.get(type(operation)) or behind.split()[0]  # or a word, as in "is"
        return spelling, len(self._line) - len(behind) + 1
