"""tools/compat/schema_changes.py: which change breaks whom, and which version it needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import schema_changes
from schema_changes import SECTIONS, Interface, Level, allowed, compare, next_version

FREE, ADDS, BREAKS = Level.FREE, Level.ADDS, Level.BREAKS
CLASS: dict[str, Any] = {
    "bases": ["torch.nn.modules.module.Module"],
    "methods": {"forward": ["input: Tensor", "-> Tensor"]},
    "state_dicts": {"defaults": ["weight [n, k]", "bias [n]"], "bias=False": ["weight [n, k]"]},
}
RESULT: dict[str, Any] = {"fields": ["name: str", "tile: int | None", "size: int = 0"]}
EPILOGUE = {
    "expr": "relu(z)",
    "stores": "z = alpha * accum + bias",
    "width": "same",
    "operands": "alpha: scalar, bias: row[N]",
    "product": "yes",
}


def interface(**sections: dict[str, Any]) -> Interface:
    return {section: {} for section in SECTIONS} | sections


def changes(section: str, old: Any, new: Any, name: str = "x") -> list[tuple[Level, str]]:
    """Between two entries, None for one that is not there."""
    before, after = (
        interface(**{section: {} if entry is None else {name: entry}}) for entry in (old, new)
    )
    return [(change.level, change.text) for change in compare(before, after)]


def level_of(section: str, old: Any, new: Any, name: str = "x") -> Level:
    return max(level for level, _ in changes(section, old, new, name))


# --- ops

OPS = [
    (ADDS, None, "(Tensor a) -> Tensor"),
    (BREAKS, "(Tensor a) -> Tensor", None),
    (ADDS, "(Tensor a) -> Tensor", "(Tensor a, int b=1) -> Tensor"),
    (ADDS, "(Tensor a) -> Tensor", "(Tensor a, *, int b=1) -> Tensor"),
    (ADDS, "(Tensor a, *, int b=1) -> Tensor", "(Tensor a, *, int b=1, int c=2) -> Tensor"),
    (ADDS, "(Tensor a, *, Tensor(x!) out) -> ()", "(Tensor a, int b=1, *, Tensor(x!) out) -> ()"),
    (ADDS, "(Tensor a, int b) -> Tensor", "(Tensor a, int b=1) -> Tensor"),
    (ADDS, "(Tensor a) -> Tensor", "(Tensor? a) -> Tensor"),
    (ADDS, "(Tensor a, *, int b=1) -> Tensor", "(Tensor a, int b=1) -> Tensor"),
    (ADDS, "(Tensor a) -> Tensor?", "(Tensor a) -> Tensor"),
    (BREAKS, "(Tensor a) -> Tensor", "(Tensor a, int b) -> Tensor"),
    (BREAKS, "(Tensor a, int b=1) -> Tensor", "(Tensor a) -> Tensor"),
    (BREAKS, "(Tensor a) -> Tensor", "(Tensor b) -> Tensor"),
    (BREAKS, "(Tensor a, Tensor b) -> Tensor", "(Tensor b, Tensor a) -> Tensor"),
    (BREAKS, "(Tensor a, int b=1) -> Tensor", "(Tensor a, int c=2, int b=1) -> Tensor"),
    (BREAKS, "(Tensor a, int b=1) -> Tensor", "(Tensor a, *, int b=1) -> Tensor"),
    (BREAKS, "(Tensor a, int b=1) -> Tensor", "(Tensor a, int b=2) -> Tensor"),
    (BREAKS, "(Tensor a, int b=1) -> Tensor", "(Tensor a, int b) -> Tensor"),
    (BREAKS, "(Tensor a, float b=1.0) -> Tensor", "(Tensor a, int b=1) -> Tensor"),
    (BREAKS, "(Tensor? a) -> Tensor", "(Tensor a) -> Tensor"),
    (BREAKS, "(Tensor a, *, Tensor(x!) out) -> ()", "(Tensor a, *, Tensor out) -> ()"),
    (BREAKS, "(Tensor a) -> Tensor", "(Tensor a) -> (Tensor, Tensor)"),
    (BREAKS, "(Tensor a) -> Tensor", "(Tensor a) -> Tensor?"),
    # Only torch's checker objects.
    (BREAKS, "(Tensor a, *, int b=1) -> Tensor", "(Tensor a, *, int c=2, int b=1) -> Tensor"),
    (BREAKS, "(Tensor a, *, int b=1) -> Tensor", "(Tensor a, int c=2, *, int b=1) -> Tensor"),
]


@pytest.mark.parametrize(("level", "old", "new"), OPS)
def test_level_of_a_change_of_an_op(level: Level, old: str | None, new: str | None) -> None:
    pytest.importorskip("torch")
    for name, expected in (("x", level), ("_x", FREE)):
        before, after = (text and f"cutwheel::{name}{text}" for text in (old, new))
        assert level_of("ops", before, after, name) == expected


def test_a_schema_is_split_where_its_arguments_end() -> None:
    schema = 'n::x.out(Dict(str, int) a, int[2] b=[1, 2], str c=", (", *, Tensor(y!)[] out) -> ()'
    parameters = schema_changes.op_signature(schema).parameters
    assert [(p.type, p.name, p.default) for p in parameters.values()] == [
        ("Dict(str, int)", "a", None),
        ("int[2]", "b", "[1, 2]"),
        ("str", "c", '", ("'),
        ("Tensor(y!)[]", "out", None),
    ]


# --- Python

FUNCTIONS = [
    (ADDS, None, "-> int"),
    (BREAKS, "-> int", None),
    (ADDS, "a: int; -> int", "a: int; b: int = 1; -> int"),
    (ADDS, "a: int; -> int", "a: int; *; b: int = 1; -> int"),
    (ADDS, "*; b: int = 1; -> int", "*; a: int = 2; b: int = 1; -> int"),
    (ADDS, "a: int; -> int", "a: int = 1; -> int"),
    (ADDS, "a: int; -> int", "a: int | None; -> int"),
    (ADDS, "-> int | None", "-> int"),
    (ADDS, "*; a: int; -> int", "a: int; -> int"),
    (ADDS, "a: int; /; -> int", "a: int; -> int"),
    (ADDS, "a: int; -> int", "a: int; *args: int; **kwargs: int; -> int"),
    (BREAKS, "a: int; -> int", "a: int; b: int; -> int"),
    (BREAKS, "a: int; -> int", "a: int; *; b: int; -> int"),
    (BREAKS, "a: int; b: int; -> int", "a: int; -> int"),
    (BREAKS, "a: int; b: int; -> int", "b: int; a: int; -> int"),
    (BREAKS, "a: int; -> int", "c: int = 1; a: int = 1; -> int"),
    (BREAKS, "a: int; -> int", "b: int; -> int"),
    (BREAKS, "a: int = 1; -> int", "a: int = 2; -> int"),
    (BREAKS, "a: int = 1; -> int", "a: int; -> int"),
    (BREAKS, "a: int; -> int", "*; a: int; -> int"),
    (BREAKS, "a: int; -> int", "a: int; /; -> int"),
    (BREAKS, "*; a: int; -> int", "a: int; /; -> int"),
    (BREAKS, "a: int; -> int", "a: str; -> int"),
    (BREAKS, "a: int | None; -> int", "a: int; -> int"),
    (BREAKS, "-> int", "-> int | None"),
    (BREAKS, "*args: int; -> int", "-> int"),
    (BREAKS, "**kwargs: int; -> int", "-> int"),
    (BREAKS, "*args: int; -> int", "a: int = 1; *args: int; -> int"),
    (FREE, "a: int | None; -> int", "a: None | int; -> int"),
    (FREE, "a: int; /; -> int", "b: int; /; -> int"),
    (FREE, "*args: int; -> int", "*rest: int; -> int"),
    (FREE, "a: dict[str,int]; -> int", "a: dict[str, int]; -> int"),
]


@pytest.mark.parametrize(("level", "old", "new"), FUNCTIONS)
def test_level_of_a_change_of_a_function(level: Level, old: str | None, new: str | None) -> None:
    before, after = (text and text.split("; ") for text in (old, new))
    assert level_of("functions", before, after) == level
    methods = [{"methods": {"forward": lines} if lines else {}} for lines in (before, after)]
    assert level_of("classes", methods[0], methods[1]) == level


def test_each_change_is_named() -> None:
    old = ["a: int", "b: int = 0", "c: int = 1", "*", "d: int = 1", "-> int"]
    new = ["first: int", "c: int = 2", "b: int = 0", "*", "e: int = 1", "-> str"]
    assert [text for _, text in changes("functions", old, new)] == [
        "function x: a is called first",
        "function x: b is number 3, was 2",
        "function x: c is number 2, was 3",
        "function x: c has the default 2, had 1",
        "function x: d is removed",
        "function x: e is new, with the default 1",
        "function x: the result is str, was int",
    ]


def edited(entry: dict[str, Any], edit: Callable[[Any], object]) -> dict[str, Any]:
    entry = copy.deepcopy(entry)
    edit(entry)
    return entry


@pytest.mark.parametrize(
    ("level", "entry", "edit", "named"),
    [
        (BREAKS, CLASS, lambda c: c.pop("bases"), "base torch.nn.modules.module.Module: removed"),
        (ADDS, CLASS, lambda c: c["bases"].append("b.Base"), "base b.Base: new"),
        (BREAKS, CLASS, lambda c: c["methods"].pop("forward"), "method forward: removed"),
        (ADDS, CLASS, lambda c: c["methods"].update(run=["-> None"]), "method run: new"),
        (
            BREAKS,
            CLASS,
            lambda c: c["state_dicts"]["defaults"].pop(),
            "state dict: bias is nothing, was [n]",
        ),
        (
            BREAKS,
            CLASS,
            lambda c: c["state_dicts"]["bias=False"].append("scale [1]"),
            "state dict (bias=False): scale is [1], was nothing",
        ),
        (
            BREAKS,
            CLASS,
            lambda c: c["state_dicts"]["defaults"].__setitem__(0, "weight [k, n]"),
            "state dict: weight is [k, n], was [n, k]",
        ),
        (FREE, CLASS, lambda c: c["state_dicts"].update({"new=True": []}), "another way"),
        (BREAKS, RESULT, lambda c: c["fields"].pop(), "field size: removed"),
        (ADDS, RESULT, lambda c: c["fields"].insert(0, "op: str"), "field op: new"),
        (BREAKS, RESULT, lambda c: c["fields"].__setitem__(0, "name: int"), "was str"),
        (ADDS, RESULT, lambda c: c["fields"].__setitem__(1, "tile: int"), "was int | None"),
        (BREAKS, RESULT, lambda c: c["fields"].__setitem__(2, "size: int | str"), "was int"),
        (FREE, RESULT, lambda c: c["fields"].__setitem__(2, "size: int = 1"), "another way"),
        (FREE, RESULT, lambda c: c["fields"].reverse(), "another way"),
    ],
)
def test_level_of_a_change_of_a_class(
    level: Level, entry: dict[str, Any], edit: Callable[[Any], object], named: str
) -> None:
    found = changes("classes", entry, edited(entry, edit))
    assert [change[0] for change in found] == [level]
    assert named in found[0][1]


def test_level_of_a_change_of_an_epilogue() -> None:
    assert level_of("epilogues", None, EPILOGUE) == ADDS
    assert level_of("epilogues", EPILOGUE, None) == BREAKS
    for key in EPILOGUE:
        ((level, text),) = changes("epilogues", EPILOGUE, {**EPILOGUE, key: "other"})
        assert level == BREAKS
        assert text == f"epilogue x: {key} is 'other', was {EPILOGUE[key]!r}"


def test_level_of_a_change_of_a_value() -> None:
    assert level_of("values", None, "str") == ADDS
    assert level_of("values", "str", None) == BREAKS
    assert level_of("values", "str", "tuple") == BREAKS


# --- versions


@pytest.mark.parametrize(
    ("last", "version", "level"),
    [
        ("1.2.3", "2.0.0", BREAKS),
        ("1.2.3", "1.3.0", ADDS),
        ("1.2.3", "1.2.4", FREE),
        ("1.2.3", "1.2.3", FREE),
        ("1.2.3", "1.2.2", None),
        ("1.2.3", "0.9.0", None),
        ("0.2.3", "1.0.0", BREAKS),
        ("0.2.3", "0.3.0", BREAKS),
        ("0.2.3", "0.2.4", FREE),
        ("0.2.9", "0.2.10", FREE),
        ("0.0.3", "0.0.4", BREAKS),
        ("0.0.3", "0.1.0", BREAKS),
        ("0.0.3", "0.0.3", FREE),
        ("0.2.3", "0.3.0rc1", BREAKS),
    ],
)
def test_what_a_version_may_hold(last: str, version: str, level: Level | None) -> None:
    assert allowed(last, version) == level


@pytest.mark.parametrize(
    ("last", "adds", "breaks"),
    [("1.2.3", "1.3.0", "2.0.0"), ("0.2.3", "0.3.0", "0.3.0"), ("0.0.3", "0.0.4", "0.0.4")],
)
def test_the_version_that_a_change_needs(last: str, adds: str, breaks: str) -> None:
    assert next_version(last, ADDS) == adds
    assert next_version(last, BREAKS) == breaks


def test_a_version_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"'1\.2' is not of the form X\.Y\.Z"):
        allowed("1.2", "1.3.0")
