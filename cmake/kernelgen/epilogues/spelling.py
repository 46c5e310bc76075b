"""Trees back to text, with the parentheses that the grouping needs and no others.

The grouping is part of the meaning: float32 addition and multiplication are not associative.
"""

from __future__ import annotations

from kernelgen.epilogues import tree
from kernelgen.epilogues.identifiers import cpp_name

# How tightly the outermost operator of a text binds; the same in Python and C++.
_CHOICE, _COMPARISON, _SUM, _PRODUCT, _SIGN, _ATOM = range(6)
_BINDING = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}


class Expression:
    """The language of manifests."""

    def spell(self, node: tree.Node, least: int = _CHOICE) -> str:
        """`node`, in parentheses if it binds less tightly than `least`."""
        text, binding = self._spell(node)
        return text if binding >= least else f"({text})"

    def _spell(self, node: tree.Node) -> tuple[str, int]:
        match node:
            case tree.Number(value):
                return self._number(value), _ATOM
            case tree.Accum():
                return "accum", _ATOM
            case tree.Scalar(name) | tree.Operand(name) | tree.Aux(name):
                return self._name(name), _ATOM
            case tree.Lane():
                return self._lane(node), _ATOM
            case tree.Negate(value):
                # Above its own binding: "--x" would be a decrement.
                return f"-{self.spell(value, _ATOM)}", _SIGN
            case tree.Binary(operator, left, right):
                # From left to right among equals, so that only the right one needs parentheses.
                own = _BINDING[operator]
                return f"{self.spell(left, own)} {operator} {self.spell(right, own + 1)}", own
            case tree.Compare(operator, left, right):
                return f"{self.spell(left, _SUM)} {operator} {self.spell(right, _SUM)}", _COMPARISON
            case tree.Where():
                return self._where(node)
            case tree.Call(function, arguments):
                return self._call(function, *arguments), _ATOM
            case tree.Pair(even, odd):
                return self._call("pair", even, odd), _ATOM

    def _number(self, value: float) -> str:
        return repr(value).removesuffix(".0")

    def _name(self, name: str) -> str:
        return name

    def _lane(self, node: tree.Lane) -> str:
        return f"{node.parity}({self.spell(node.value)})"

    def _where(self, node: tree.Where) -> tuple[str, int]:
        return self._call("where", node.condition, node.yes, node.no), _ATOM

    def _call(self, function: str, *arguments: tree.Node) -> str:
        return f"{function}({', '.join(map(self.spell, arguments))})"


class Cpp(Expression):
    """float expressions of C++ on the parameters of an epilogue's compute()."""

    def __init__(self, member: str = "") -> None:
        """With `member`, one column of values that come in pairs: accum.even."""
        self._member = f".{member}" if member else ""

    def _spell(self, node: tree.Node) -> tuple[str, int]:
        text, binding = super()._spell(node)
        is_paired = isinstance(node, tree.Accum | tree.Operand | tree.Aux)
        return (text + self._member if is_paired else text), binding

    def _number(self, value: float) -> str:
        spelled = repr(value)
        return f"{spelled[:-1]}f" if spelled.endswith(".0") else f"{spelled}f"

    def _name(self, name: str) -> str:
        return cpp_name(name)

    def _lane(self, node: tree.Lane) -> str:
        return f"{self.spell(node.value)}.{node.parity}"

    def _where(self, node: tree.Where) -> tuple[str, int]:
        condition = self.spell(node.condition)
        # The middle of a ternary is as good as parenthesised, and its end reaches to the right.
        return f"{condition} ? {self.spell(node.yes)} : {self.spell(node.no)}", _CHOICE

    def _call(self, function: str, *arguments: tree.Node) -> str:
        return f"F::{super()._call(function, *arguments)}"


def text(node: tree.Node) -> str:
    """The expression as a manifest would have it; equal trees give equal text."""
    return Expression().spell(node)
