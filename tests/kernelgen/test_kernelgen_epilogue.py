"""Epilogues: their operands, how wide their result is, and which of them are recognised."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelgen_cases import bounded
from kernelgen_expressions import epilogue_bodies, positions, width_of

from kernelgen.epilogues.epilogue import MAX_OPERANDS, ExpressionError, build
from kernelgen.epilogues.identifiers import epilogue_fault, operand_fault
from kernelgen.epilogues.tree import FORMS, FUNCTIONS, KINDS

C = {"c": "matrix[M,N]"}
ROW = {"bias": "row[N]"}
WIDE = {"w": "matrix[M,2N]"}


@bounded
@given(epilogue_bodies())
def test_what_a_launch_is_given(body: dict[str, Any]) -> None:
    built = build("x", **body)
    found = [(name, k.enumerator, k.dtype, k.may_be_one) for name, k in built.positions]
    enumerators = {"matrix[M,2N]": "wide_matrix"}
    assert found == [
        (
            name,
            enumerators.get(kind) or re.split(r"\W", kind)[0],
            [*kind.split(), "d"][1],
            "1|" in kind,
        )
        for name, kind in positions(body)
    ]
    assert built.width == width_of(body)
    assert built.has_accum == ("accum" in body["expr"] + "".join(body["aux"].values()))


def test_operands_keep_the_order_of_their_declaration() -> None:
    built = build("x", "b2 + a2 * accum * beta", {"a2": "row[N]", "b2": "col[M]"}, {"z": "accum"})
    assert [name for name, _ in built.positions] == ["beta", "a2", "b2", "z"]


@st.composite
def spellings(draw: st.DrawFn, addend: str) -> str:
    """Any order of operands, any white space, any redundant parentheses."""

    def binary(operator: str, left: str, right: str) -> str:
        if draw(st.booleans()):
            left, right = right, left
        space = draw(st.sampled_from(["", " ", "  ", "\n"]))
        text = f"{left}{space}{operator}{space}{right}"
        return f"({text})" if draw(st.booleans()) else text

    text = binary("*", "alpha", draw(st.sampled_from(["accum", "(accum)"])))
    if addend == "matrix":
        text = binary("+", text, binary("*", "beta", "c"))
    if addend == "row":
        text = binary("+", text, "bias")
    return draw(st.sampled_from(["", " "])) + text


@bounded
@given(st.data())
@pytest.mark.parametrize(("addend", "operands"), [("none", {}), ("row", ROW), ("matrix", C)])
def test_the_epilogues_of_addmm_are_recognised_however_they_are_spelled(
    addend: str, operands: dict[str, str], data: st.DataObject
) -> None:
    assert build("x", data.draw(spellings(addend)), operands).addend == addend


@pytest.mark.parametrize(
    ("expr", "operands", "aux"),
    [
        ("accum", {}, {}),
        ("beta * accum", {}, {}),
        ("2 * accum", {}, {}),
        ("alpha * accum + alpha * accum", {}, {}),
        ("alpha * accum - beta * c", C, {}),
        ("alpha * accum + c", C, {}),
        ("alpha * accum + alpha * c", C, {}),
        ("alpha * (accum + beta * c)", C, {}),
        ("alpha * accum + beta * c + bias", {**C, **ROW}, {}),
        ("alpha * accum + beta * bias", ROW, {}),
        ("alpha * accum + shift", {"shift": "row[N]"}, {}),
        ("alpha * accum + bias", {"bias": "row[N] f32"}, {}),
        ("alpha * accum + bias", {"bias": "col[M]"}, {}),
        ("alpha * accum + beta * c", {"c": "matrix[M,N] f32"}, {}),
        ("alpha * accum", {}, {"z": "accum"}),
        ("relu(alpha * accum)", {}, {}),
    ],
)
def test_everything_else_is_other(expr: str, operands: dict[str, str], aux: dict[str, str]) -> None:
    assert build("x", expr, operands, aux).addend == "other"


def test_matrices_are_what_takes_shared_memory() -> None:
    kinds = {"bias": "row[N]", "w": "matrix[M,2N]", "s": "scalar", "c": "matrix[M,N] f32"}
    built = build("x", "accum * s + bias * even(w) + c", kinds)
    assert [str(kind) for kind in built.matrices] == ["matrix[M,2N]", "matrix[M,N] f32"]


def test_epilogues_compare_by_meaning() -> None:
    built = build("x", "(alpha*accum) +\n bias", ROW)
    assert built == build("x", "alpha * accum + bias", ROW)
    assert hash(built) == hash(build("x", "alpha * accum + bias", ROW))
    assert built != build("x", "bias + alpha * accum", ROW)
    assert built.expr == "alpha * accum + bias"


@pytest.mark.parametrize(
    ("expr", "operands", "aux", "width"),
    [
        ("gelu(z)", {}, {"z": "accum"}, "same"),
        ("accum * even(w)", WIDE, {}, "same"),
        ("even(w)", WIDE, {}, "same"),
        ("z * accum", WIDE, {"z": "accum * odd(w)"}, "same"),
        ("even(accum)", {}, {}, "half"),
        ("odd(z)", {}, {"z": "accum"}, "half"),
        ("silu(even(z)) * odd(y)", ROW, {"y": "accum + bias", "z": "y * 2"}, "half"),
        ("even(accum) + odd(bias)", ROW, {}, "half"),
        ("pair(accum, accum)", {}, {}, "twice"),
        ("pair(c * odd(w), c * bias)", {**WIDE, **C, **ROW}, {}, "twice"),
    ],
)
def test_widths(expr: str, operands: dict[str, str], aux: dict[str, str], width: str) -> None:
    assert build("x", expr, operands, aux).width == width


@pytest.mark.parametrize(
    ("expr", "operands", "column", "reason"),
    [
        # widths
        ("even(accum) + accum", {}, 15, "accum has every column, and D half as many because"),
        ("accum * odd(accum)", {}, 1, "write even(accum) or odd(accum)"),
        ("even(accum) + bias", ROW, 15, "bias has every column, and D half as many"),
        ("even(accum) + c", C, 15, "c is matrix[M,N]; where even() or odd() halves the width"),
        ("even(accum) + s", {"s": "col[M]"}, 15, "s is col[M]; where even()"),
        ("even(accum) + even(w)", WIDE, 20, "w is matrix[M,2N]; where even()"),
        ("odd(accum) + odd(s)", {"s": "row[1|N] f32"}, 18, "s is row[1|N] f32; where even()"),
        ("accum + even(bias)", ROW, 1, "accum has every column"),
        ("accum + w", WIDE, 9, "w is matrix[M,2N]: write even(w) or odd(w)"),
        ("pair(w, accum)", WIDE, 6, "w is matrix[M,2N]: write even(w) or odd(w)"),
        ("pair(even(accum), 1)", {}, 6, "even(accum) halves the width of D, pair() doubles it"),
        ("pair(c, odd(bias) + c)", {**C, **ROW}, 9, "odd(bias) halves the width"),
        # use
        ("accum", C, 1, "nothing uses the operand c: use it or do not declare it"),
        ("(accum + bias)", {**ROW, **C, "s": "scalar"}, 2, "nothing uses the operand c, s"),
        ("1", {}, 1, "the same for every element: use accum, an aux or a tensor operand"),
        ("  -alpha * s", {"s": "scalar"}, 3, "the same for every element"),
        ("relu(beta)", {}, 1, "the same for every element"),
        # kinds and names: declarations, in which no token is wrong
        ("accum + v", {"v": "row[M]"}, 0, 'v = "row[M]" is no kind of operand; allowed: "scalar"'),
        ("accum + v", {"v": "scalar f32"}, 0, "is no kind of operand"),
        ("accum + v", {"v": "row[1|N]"}, 0, '"row[1|N] f32", "col[1|M] f32", "row[1|N] s32"'),
        ("accum + v", {"v": "matrix[M,N] s32"}, 0, "is no kind of operand"),
        ("accum + v", {"v": "matrix[M, N]"}, 0, '"matrix[M,N]", "matrix[M,2N]", "row[N] f32"'),
        ("accum + Bias", {"Bias": "row[N]"}, 0, "a name is made of a-z, 0-9 and single _"),
        ("accum + x_", {"x_": "row[N]"}, 0, "a name is made of"),
        ("accum + x__y", {"x__y": "row[N]"}, 0, "a name is made of"),
        ("accum", {"": "row[N]"}, 0, "a name is made of"),
        ("accum", {"accum": "matrix[M,N]"}, 0, "accum is the accumulator; choose another name"),
        ("accum", {"alpha": "scalar"}, 0, "alpha is a scalar that needs no declaration"),
        ("accum + d", {"d": "row[N]"}, 0, "d is the result; choose another name"),
        ("accum + out", {"out": "row[N]"}, 0, "out is an argument of cutwheel.gemm"),
        ("accum + gelu", {"gelu": "row[N]"}, 0, "gelu is a function; choose another name"),
        ("accum + pair", {"pair": "row[N]"}, 0, "pair is a function"),
        ("accum + lambda", {"lambda": "row[N]"}, 0, "lambda is a keyword of Python"),
    ],
)
def test_what_cannot_be_built(
    expr: str, operands: dict[str, str], column: int, reason: str
) -> None:
    with pytest.raises(ExpressionError) as caught:
        build("x", expr, operands)
    assert caught.value.column == column, caught.value
    assert reason in caught.value.reason
    assert caught.value.where == ("expr" if column else "operands")
    assert str(caught.value).endswith(caught.value.reason)
    assert ("column" in str(caught.value)) == bool(column)


@pytest.mark.parametrize(
    ("expr", "aux", "where", "column", "reason"),
    [
        ("z", {"z": "what + accum"}, "aux z", 1, 'unknown name "what"'),
        ("z", {"y": "accum", "z": "gelu(y, 1)"}, "aux z", 1, "gelu takes 1 argument"),
        ("z", {"z": "2 * z"}, "aux z", 5, "z is an aux that is computed later"),
        ("z", {"z": "1 + y", "y": "accum"}, "aux z", 5, "y is an aux that is computed later"),
        ("z", {"z": "alpha * 2"}, "aux z", 1, "the same for every element"),
        ("accum", {"z": ""}, "aux z", 1, "there is no expression"),
        ("z", {"z": "pair(accum, c)"}, "aux z", 1, "one value for each column, no pair()"),
        (
            "even(z)",
            {"z": "2 * even(accum)"},
            "aux z",
            5,
            "write accum here, and even() where expr",
        ),
        ("even(z)", {"z": "accum + odd(bias)"}, "aux z", 9, "write bias here, and odd() where"),
        ("odd(z)", {"y": "accum", "z": "odd(y)"}, "aux z", 1, "write y here"),
        ("z", {"z": "accum + w"}, "aux z", 9, "w is matrix[M,2N]: write even(w) or odd(w)"),
        ("even(z)", {"z": "accum + c"}, "aux z", 9, "c is matrix[M,N]; where even() or odd()"),
        ("even(z)", {"z": "accum + odd(w)"}, "aux z", 13, "w is matrix[M,2N]; where even()"),
        ("even(z) + z", {"z": "accum"}, "expr", 11, "z has every column"),
        ("z + even(accum)", {"z": "accum"}, "expr", 1, "write even(z) or odd(z)"),
        ("pair(z, accum)", {"z": "accum"}, "expr", 1, "with pair() nothing is stored besides D"),
        (" pair(accum, c)", {"z": "accum"}, "expr", 2, "remove aux"),
        ("accum", {"bias": "accum"}, "aux bias", 0, "bias is an operand; choose another name"),
        ("accum", {"alpha": "accum"}, "aux alpha", 0, "alpha is a scalar"),
        ("accum", {"tanh": "accum"}, "aux tanh", 0, "tanh is a function"),
        ("accum", {"in": "accum"}, "aux in", 0, "in is a keyword of Python"),
        ("accum", {"Z": "accum"}, "aux Z", 0, "a name is made of"),
    ],
)
def test_what_cannot_be_stored(
    expr: str, aux: dict[str, str], where: str, column: int, reason: str
) -> None:
    """Against operands of every kind that the texts use."""
    kinds = {**ROW, **C, **WIDE}
    used = " ".join([expr, *aux, *aux.values()])
    operands = {n: kind for n, kind in kinds.items() if re.search(rf"\b{n}\b", used)}
    with pytest.raises(ExpressionError) as caught:
        build("x", expr, operands, aux)
    assert (caught.value.where, caught.value.column) == (where, column), caught.value
    assert reason in caught.value.reason


def test_an_aux_need_not_be_used() -> None:
    assert build("x", "relu(accum)", {}, {"z": "accum * 2"}).has_accum


@pytest.mark.parametrize("aux", [0, 1])
def test_operands_are_counted(aux: int) -> None:
    names = [f"v{i}" for i in range(MAX_OPERANDS - 1 - aux)]
    expr = " + ".join(["alpha * accum", *names])
    stored = {"z": "accum"} if aux else {}
    assert len(build("x", expr, dict.fromkeys(names, "row[N]"), stored).positions) == MAX_OPERANDS
    with pytest.raises(ExpressionError) as caught:
        build("x", f"{expr} + beta", dict.fromkeys(names, "row[N]"), stored)
    assert (caught.value.where, caught.value.column) == ("operands", 0)
    assert caught.value.reason.startswith("9 operands (alpha, beta, v0, v1")
    assert caught.value.reason.endswith("at most 8, scalars and aux included")


def test_every_kind_of_operand_is_accepted() -> None:
    for spelled, kind in KINDS.items():
        expr = "accum * even(v)" if kind.is_wide else "accum * v"
        assert build("x", expr, {"v": spelled}).operands == (("v", kind),)


@pytest.mark.parametrize(
    "name", ["class", "auto", "compute", "std", "linux", "A", "a__b", "a_", "1a"]
)
def test_names_that_no_epilogue_can_have(name: str) -> None:
    assert epilogue_fault(name) is not None


@given(st.from_regex(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", fullmatch=True))
@bounded
def test_names_are_free_but_for_a_few(name: str) -> None:
    taken = {*FUNCTIONS, *FORMS, "accum", "alpha", "beta", "a", "b", "d", "out", "epilogue"}
    if name not in taken and len(name) not in range(2, 9):  # no keyword is in that range
        assert operand_fault(name) is None
    if operand_fault(name) is None:
        assert build("x", f"accum * {name}", {name: "row[N]"}).positions[0][0] == name
