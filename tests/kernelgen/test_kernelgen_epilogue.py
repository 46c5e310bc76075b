"""Epilogue expressions: what is recognised, and where the others are told to be wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import bounded

from kernelgen.epilogue import Accum, Add, ExpressionError, Multiply, Operand, Scalar, build, parse

C = {"c": "matrix[M,N]"}


def test_the_tree_is_typed() -> None:
    tree = parse("alpha * accum + beta * c", C)
    assert tree == Add(
        Multiply(Scalar("alpha"), Accum()),
        Multiply(Scalar("beta"), Operand("c", "matrix[M,N]")),
    )


@st.composite
def spellings(draw: st.DrawFn, with_c: bool) -> str:
    """Any order of operands, any white space, any redundant parentheses."""

    def binary(operator: str, left: str, right: str) -> str:
        if draw(st.booleans()):
            left, right = right, left
        space = draw(st.sampled_from(["", " ", "  ", "\n"]))
        text = f"{left}{space}{operator}{space}{right}"
        return f"({text})" if draw(st.booleans()) else text

    product = binary("*", "alpha", draw(st.sampled_from(["accum", "(accum)"])))
    text = binary("+", product, binary("*", "beta", "c")) if with_c else product
    return draw(st.sampled_from(["", " "])) + text


@bounded
@given(spellings(with_c=False))
def test_plain_is_recognised_however_it_is_spelled(expr: str) -> None:
    assert not build("x", expr, {}).reads_c


@bounded
@given(spellings(with_c=True))
def test_linear_combination_is_recognised_however_it_is_spelled(expr: str) -> None:
    assert build("x", expr, C).reads_c


@pytest.mark.parametrize(
    ("expr", "column", "reason"),
    [
        ("gelu(alpha * accum)", 1, "function call"),
        ("alpha * accum + relu(c)", 17, "function call"),
        ("alpha * accum - beta * c", 15, 'operator "-"'),
        ("(alpha * accum) / beta", 17, 'operator "/"'),
        ("  alpha ** accum", 9, 'operator "*"'),
        ("alpha * accum + beta * bias", 24, 'unknown name "bias"'),
        ("2 * accum", 1, 'constant "2"'),
        ("-alpha * accum", 1, "unaryop"),
        ("alpha *", 8, "not an expression"),
        ("", 1, "not an expression"),
        ("alpha * \0", 10, "not an expression"),
        ("accum", 1, "a scalar times"),
        ("alpha * accum + c", 17, "a scalar times"),
        ("beta * accum + alpha * c", 1, "accum is scaled by alpha"),
        ("alpha * accum + alpha * c", 17, "accum is scaled by alpha"),
        ("alpha * (accum + beta * c)", 1, "accum is scaled by alpha"),
        ("alpha * beta * accum", 1, "accum is scaled by alpha"),
        ("alpha * accum + alpha * accum", 17, "exactly one term"),
        ("beta * c + beta * c", 12, "exactly one term"),
        ("beta * c", 1, "exactly one term"),
        ("alpha * accum", 1, "does not use"),
    ],
)
def test_other_expressions_are_refused_at_their_token(expr: str, column: int, reason: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        build("x", expr, C)
    assert (caught.value.column, reason in str(caught.value)) == (column, True), caught.value


def test_c_must_be_declared() -> None:
    with pytest.raises(ExpressionError, match='unknown name "c"') as caught:
        build("x", "alpha * accum + beta * c", {})
    assert caught.value.column == 24


def test_a_row_addend() -> None:
    built = build("bias", "bias + accum * alpha", {"bias": "row[N]"})
    assert built.addend == "row"
    assert not built.reads_c


def test_a_declared_operand_that_is_not_used_is_refused() -> None:
    with pytest.raises(ExpressionError, match="declared operand c"):
        build("bias", "alpha * accum + bias", {"bias": "row[N]", "c": "matrix[M,N]"})
