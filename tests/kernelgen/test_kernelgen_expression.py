"""The parser and the spelling of trees: what is accepted, and where the rest is wrong."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import bounded
from kernelgen_expressions import epilogue_bodies

from kernelgen.epilogues.epilogue import ExpressionError, build
from kernelgen.epilogues.expression import MAX_DEPTH, Source, parse
from kernelgen.epilogues.spelling import Cpp, text
from kernelgen.epilogues.tree import (
    FORMS,
    FUNCTIONS,
    KINDS,
    Accum,
    Aux,
    Binary,
    Call,
    Compare,
    Lane,
    Negate,
    Number,
    Operand,
    Pair,
    Root,
    Scalar,
    Symbol,
    Where,
)

BIAS = Operand("bias", KINDS["row[N]"])
WIDE = Operand("w", KINDS["matrix[M,2N]"])
SYMBOLS: dict[str, Symbol] = {
    "accum": Accum(),
    "alpha": Scalar("alpha"),
    "bias": BIAS,
    "c": Operand("c", KINDS["matrix[M,N]"]),
    "w": WIDE,
    "z": Aux("z"),
}


def parsed(expr: str) -> Root:
    return parse(Source("expr", expr), SYMBOLS)


def test_the_tree_is_typed() -> None:
    product = Binary("*", Scalar("alpha"), Accum())
    assert parsed("alpha * accum") == product
    assert parsed("clamp(-z, 0, 6.5)") == Call("clamp", (Negate(Aux("z")), Number(0), Number(6.5)))
    assert parsed("where(accum >= bias, 1, odd(w))") == Where(
        Compare(">=", Accum(), BIAS), Number(1), Lane("odd", WIDE)
    )
    assert parsed("pair(accum / 2, alpha * accum)") == Pair(
        Binary("/", Accum(), Number(2)), product
    )


def test_nodes_know_their_columns() -> None:
    tree = parsed("  alpha * gelu(accum)")
    assert isinstance(tree, Binary)
    assert (tree.column, tree.left.column, tree.right.column) == (9, 3, 11)
    assert tree == parsed("alpha*gelu(accum)")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_takes_its_parameters(function: str) -> None:
    arguments = ["accum", "0.5", "2"][: len(FUNCTIONS[function])]
    tree = parsed(f"{function}({', '.join(arguments)})")
    assert isinstance(tree, Call)
    assert tree.function == function
    assert text(tree) == f"{function}({', '.join(arguments)})"


@pytest.mark.parametrize(
    ("expr", "manifest", "cpp"),
    [
        ("(alpha*accum)+bias", "alpha * accum + bias", "alpha * accum + bias"),
        ("alpha * (accum + bias)", "alpha * (accum + bias)", "alpha * (accum + bias)"),
        ("(accum + bias) + c", "accum + bias + c", "accum + bias + c"),
        ("accum + (bias + c)", "accum + (bias + c)", "accum + (bias + c)"),
        ("accum - (bias - c)", "accum - (bias - c)", "accum - (bias - c)"),
        ("accum * (bias / c)", "accum * (bias / c)", "accum * (bias / c)"),
        ("(accum / bias) * c", "accum / bias * c", "accum / bias * c"),
        ("-accum * bias", "-accum * bias", "-accum * bias"),
        ("-(accum * bias)", "-(accum * bias)", "-(accum * bias)"),
        ("- -accum", "-(-accum)", "-(-accum)"),
        ("accum - -bias", "accum - -bias", "accum - -bias"),
        ("2 * accum + 0.1", "2 * accum + 0.1", "2.f * accum + 0.1f"),
        ("1e20 * accum - 1E-5", "1e+20 * accum - 1e-05", "1e+20f * accum - 1e-05f"),
        ("1 / 3 * accum", "1 / 3 * accum", "1.f / 3.f * accum"),
        ("even(w) * odd(w)", "even(w) * odd(w)", "w.even * w.odd"),
        ("min(accum, (bias + c))", "min(accum, bias + c)", "F::min(accum, bias + c)"),
        (
            "where((accum + 1) > (bias), c, where(c == 0, 1, 2))",
            "where(accum + 1 > bias, c, where(c == 0, 1, 2))",
            "accum + 1.f > bias ? c : c == 0.f ? 1.f : 2.f",
        ),
        ("2 * where(c < 0, 1, 2)", "2 * where(c < 0, 1, 2)", "2.f * (c < 0.f ? 1.f : 2.f)"),
        ("-where(c < 0, 1, 2)", "-where(c < 0, 1, 2)", "-(c < 0.f ? 1.f : 2.f)"),
        ("relu(where(c<0, 1, 2))", "relu(where(c < 0, 1, 2))", "F::relu(c < 0.f ? 1.f : 2.f)"),
        (
            "where(where(c < 0, 1, 2) != 1, c, 0)",
            "where(where(c < 0, 1, 2) != 1, c, 0)",
            "(c < 0.f ? 1.f : 2.f) != 1.f ? c : 0.f",
        ),
    ],
)
def test_spelling(expr: str, manifest: str, cpp: str) -> None:
    tree = parsed(expr)
    assert (text(tree), Cpp().spell(tree)) == (manifest, cpp)


@bounded
@given(epilogue_bodies())
def test_spelled_and_parsed_again_a_tree_is_the_same(body: dict[str, dict[str, str]]) -> None:
    built = build("x", **body)
    again = build(
        "x",
        text(built.tree),
        {name: str(kind) for name, kind in built.operands},
        {name: text(tree) for name, tree in built.aux},
    )
    assert again == built
    assert text(again.tree) == text(built.tree)


def _without_one_pair(expr: str) -> list[str]:
    """`expr` with each pair of grouping parentheses removed in turn, but for those of "-(-x)"."""
    found, opened = [], []
    for index, character in enumerate(expr):
        if character == "(":
            opened.append(index)
        elif character == ")":
            begin = opened.pop()
            is_call = begin > 0 and (expr[begin - 1].isalnum() or expr[begin - 1] == "_")
            if not is_call and expr[begin - 1 : begin + 2] != "-(-":
                found.append(expr[:begin] + expr[begin + 1 : index] + expr[index + 1 :])
    return found


@bounded
@given(epilogue_bodies())
def test_no_parentheses_are_needless(body: dict[str, dict[str, str]]) -> None:
    expr = build("x", **body).expr
    for shorter in _without_one_pair(expr):
        assert ast.dump(ast.parse(shorter)) != ast.dump(ast.parse(expr)), shorter


TOO_DEEP = "accum" + " + accum" * MAX_DEPTH


@pytest.mark.parametrize(
    ("expr", "column", "reason"),
    [
        # names and functions
        ("alpha * accum + beta * c", 17, 'unknown name "beta"; known here: accum, alpha, bias, c'),
        ("swish(accum)", 1, 'unknown function "swish"; known: abs, clamp, even, gelu, gelu_grad'),
        ("accum + gelu", 9, "gelu is a function: write gelu(x)"),
        ("accum * where", 9, "where is a function: write where(condition, a, b)"),
        ("F.gelu(accum)", 1, '"F.gelu" is no name of a function'),
        ("alpha * later", 9, 'unknown name "later"'),
        # arguments
        ("2 * gelu()", 5, "gelu takes 1 argument, not 0: gelu(x)"),
        ("min(accum)", 1, "min takes 2 arguments, not 1: min(a, b)"),
        ("leaky_relu(accum)", 1, "takes 2 arguments, not 1: leaky_relu(x, slope)"),
        ("clamp(accum, 0, 1, 2)", 1, "takes 3 arguments, not 4: clamp(x, low, high)"),
        ("where(accum > 0, 1)", 1, "where takes 3 arguments, not 2: where(condition, a, b)"),
        ("even(accum, z)", 1, "even takes 1 argument, not 2"),
        ("pair(accum)", 1, "pair takes 2 arguments, not 1: pair(x, y)"),
        ("gelu(x=accum)", 6, "given by position: gelu(x)"),
        ("min(accum, *c)", 12, "given by position: min(a, b)"),
        # comparisons
        ("accum * (c > 0)", 12, "a comparison is no value; use it as in where(x > 0, a, b)"),
        ("gelu(accum == c)", 12, "a comparison is no value"),
        ("where(accum, 1, 2)", 7, "a condition is one comparison, as in where(x > 0, a, b)"),
        ("where(0 < accum < 1, 1, 2)", 17, "one comparison: nest where() instead"),
        ("where(accum > 0 and c > 0, 1, 2)", 7, "a condition is one comparison"),
        ("where(accum is c, 1, 2)", 13, 'operator "is"; allowed: < <= > >= == !='),
        ("where(accum not in c, 1, 2)", 13, 'operator "not"; allowed: <'),
        ("where(accum > (c > 0), 1, 2)", 18, "a comparison is no value"),
        ("accum if c > 0 else 0", 1, "write where(condition, a, b) for a choice"),
        ("accum and c", 1, "nest where()"),
        # even, odd, pair
        ("1 + pair(accum, c)", 5, "pair() is the two columns of D: nothing may stand around it"),
        ("pair(accum, pair(c, c))", 13, "pair() is the two columns"),
        ("even(alpha)", 6, "alpha is a scalar, which has no pairs of columns; even() takes accum"),
        ("even(accum) * odd(c)", 19, "c is matrix[M,N], which has no pairs of columns; odd()"),
        ("even(alpha * accum)", 6, "even() takes a name, as in even(accum): apply the rest"),
        ("odd(even(w))", 5, "odd() takes a name"),
        ("even(nothing)", 6, 'unknown name "nothing"'),
        # operators and numbers
        ("accum ** 2", 7, 'operator "**"; allowed: + - * /: write x * x'),
        ("(accum) // 2", 9, 'operator "//"; allowed: + - * /'),
        ("accum % 2", 7, 'operator "%"'),
        ("accum @ c", 7, 'operator "@"'),
        ("c * +accum", 5, 'a sign "+" does nothing'),
        ("~accum", 1, '"~accum" is not allowed'),
        ("not accum", 1, '"not accum" is not allowed'),
        ("accum * True", 9, "True is no real number"),
        ("accum * 2j", 9, "2j is no real number"),
        ("accum + 'c'", 9, "'c' is no real number"),
        ("accum * 1e39", 9, "out of float32's range"),
        ("accum * 1e-39", 9, "out of float32's range"),
        ("accum * 1e999", 9, "out of float32's range"),
        ("accum * 1" + "0" * 400, 9, "out of float32's range"),
        ("accum[0]", 1, '"accum[0]" is not allowed; operands are not indexed'),
        ("accum.even", 1, "names have no attributes"),
        ("accum, c", 1, "two columns of D are pair(x, y)"),
        ("lambda x: x", 1, "an expression has names, numbers"),
        ("(x := accum)", 2, "an expression has names, numbers"),
        # not even Python
        ("alpha *", 8, "not an expression"),
        ("  alpha *  ", 10, "not an expression"),
        ("alpha accum", 7, "not an expression"),
        ("accum)", 6, "not an expression"),
        ("", 1, "there is no expression"),
        (" \n ", 1, "there is no expression"),
        ("accum = c", 7, "not an expression"),
        # characters
        ("alpha * \0", 9, "character '\\x00'; expressions are made of ASCII"),
        ("alpha × accum", 7, "character '\\xd7'"),
        ("accum + c # sum", 11, "comments belong in the manifest"),
        # size
        (TOO_DEEP, TOO_DEEP.index("accum") + 1, f"nested more than {MAX_DEPTH} deep"),
        # several lines: every line end is one character
        ("alpha *\n accum *\n what", 19, 'unknown name "what"'),
        ("\n\talpha\n* accum ** 2", 17, 'operator "**"'),
        ("\r\naccum +", 10, "not an expression"),
    ],
)
def test_wrong_expressions_are_refused_at_their_token(expr: str, column: int, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parsed(expr)
    assert caught.value.column == column, caught.value
    assert reason in caught.value.reason
    assert str(caught.value).startswith(f'column {column} of "')
    assert "\n" not in str(caught.value)


def column_of_error(expr: str) -> int | None:
    """Column of the token at fault; None if the parser accepts `expr`."""
    try:
        tree = parsed(expr)
    except ExpressionError as error:
        return error.column
    assert parsed(text(tree)) == tree
    return None


@pytest.mark.parametrize("count", [150, 5000, 100_000])
def test_no_depth_breaks_the_parser(count: int) -> None:
    """Python's own limit is another one in each version."""
    assert column_of_error("-" * count + "accum")
    assert column_of_error("accum + " * count + "c")
    assert count == 150 or column_of_error("(" * count + "accum" + ")" * count)


TOKENS = [
    *FUNCTIONS,
    *FORMS,
    *("accum", "alpha", "bias", "c", "w", "z", "nothing", "if", "else", "lambda", "not"),
    *("(", ")", ",", "+", "-", "*", "/", "**", "<", "==", "=", ".", ":", "[", "]", "{", "}"),
    *(" ", "\n", "\t", "#", "\\", "'", '"', "1", "0.5", "1e50", "0x", "2j", "é", "\0", ";", "`"),
]


@bounded
@given(st.lists(st.sampled_from(TOKENS), max_size=12).map("".join))
def test_no_text_breaks_the_parser(expr: str) -> None:
    column = column_of_error(expr)
    assert column is None or 1 <= column <= len(expr) + 1
