"""Differences between two public interfaces, and the versions that may differ so.

The rules are written down in schema_lock.py, which says what an interface is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from typing import Any, NamedTuple

# section -> what a message calls an entry of it
SECTIONS = {
    "ops": "op",
    "functions": "function",
    "classes": "class",
    "values": "value",
    "epilogues": "epilogue",
}
Interface = dict[str, dict[str, Any]]


class Level(IntEnum):
    FREE = 0
    ADDS = 1
    BREAKS = 2


class Change(NamedTuple):
    level: Level
    text: str

    def __str__(self) -> str:
        return f"  {self.level.name.lower():<6}  {self.text}"


# --- versions


def release(version: str) -> tuple[int, int, int]:
    """Reads "1.2.3", or a pre-release of it, which may hold the same."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"version {version!r} is not of the form X.Y.Z")
    return int(found[1]), int(found[2]), int(found[3])


def allowed(last: str, version: str) -> Level | None:
    """The highest level of a change from release `last` to `version`; None: it is an older one."""
    old, new = release(last), release(version)
    if new < old:
        return None
    # The first number that is not zero is the one that says "breaks".
    breaking = 1 if old[0] else 2 if old[1] else 3
    if old[:breaking] != new[:breaking]:
        return Level.BREAKS
    return Level.ADDS if old[:2] != new[:2] else Level.FREE


def next_version(last: str, level: Level) -> str:
    """The lowest release after `last` that may hold a change of this level."""
    major, minor, patch = release(last)
    candidates = ((major, minor, patch + 1), (major, minor + 1, 0), (major + 1, 0, 0))
    texts = [".".join(map(str, candidate)) for candidate in candidates]
    return next(text for text in texts if (allowed(last, text) or Level.FREE) >= level)


# --- signatures

POSITIONAL_ONLY, POSITIONAL, KEYWORD, REST = "positional-only", "positional", "keyword-only", "rest"


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str
    type: str
    default: str | None = None


class Signature(NamedTuple):
    parameters: dict[str, Parameter]
    result: str


# A parameter's type before and now -> the level of the change.
TypeLevel = Callable[[str, str], Level]


def python_signature(lines: Iterable[str]) -> Signature:
    """Reads parameters as a `def` has them, and "-> result"."""
    *texts, result = lines
    definition = ast.parse(f"def f({', '.join(texts)}) {result}: ...").body[0]
    assert isinstance(definition, ast.FunctionDef)
    given, found = definition.args, []
    positional = [*given.posonlyargs, *given.args]
    missing: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults))
    for index, (argument, default) in enumerate(
        zip(positional, [*missing, *given.defaults], strict=True)
    ):
        kind = POSITIONAL_ONLY if index < len(given.posonlyargs) else POSITIONAL
        found.append(_parameter(argument, kind, default))
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        found.append(_parameter(argument, KEYWORD, default))
    for stars, rest in (("*", given.vararg), ("**", given.kwarg)):
        if rest is not None:
            found.append(_parameter(ast.arg(stars, rest.annotation), REST, None))
    return Signature({p.name: p for p in found}, result.removeprefix("->").strip())


def _parameter(argument: ast.arg, kind: str, default: ast.expr | None) -> Parameter:
    annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
    return Parameter(
        argument.arg, kind, annotation, None if default is None else ast.unparse(default)
    )


def _members(annotation: str) -> set[str]:
    """X and Y of `X | Y`."""

    def walk(node: ast.expr) -> Iterator[str]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            yield from walk(node.left)
            yield from walk(node.right)
        else:
            yield ast.unparse(node)

    return set(walk(ast.parse(annotation, mode="eval").body))


def _python_type(old: str, new: str) -> Level:
    before, after = _members(old), _members(new)
    if before == after:
        return Level.FREE
    return Level.ADDS if before < after else Level.BREAKS


def _split(text: str) -> list[str]:
    """At the commas that are in no brackets and no string."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == '"'
        depth += 0 if quoted else (character in "([") - (character in ")]")
        if character == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def op_signature(schema: str) -> Signature:
    """Reads a schema as torch prints it."""
    found = re.fullmatch(r"[^(]+\((.*)\) -> (.*)", schema)
    if found is None:
        raise ValueError(f"{schema!r} is no schema")
    parameters, kind = {}, POSITIONAL
    for text in _split(found[1]):
        if text == "*":
            kind = KEYWORD
            continue
        head, has_default, default = text.partition("=")
        type_, _, name = head.rpartition(" ")
        parameters[name] = Parameter(name, kind, type_, default if has_default else None)
    return Signature(parameters, found[2])


def _op_type(old: str, new: str) -> Level:
    return Level.ADDS if new == f"{old}?" else Level.BREAKS


def signature_changes(old: Signature, new: Signature, type_level: TypeLevel) -> Iterator[Change]:
    """Changes that callers of `old` meet in `new`."""
    positions = [
        [p.name for p in signature.parameters.values() if p.kind in (POSITIONAL_ONLY, POSITIONAL)]
        for signature in (old, new)
    ]
    renamed = {
        before: after
        for before, after in zip(*positions, strict=False)
        if before not in new.parameters and after not in old.parameters
    }
    for name, before in old.parameters.items():
        after = new.parameters.get(renamed.get(name, name))
        if after is None:
            yield Change(Level.BREAKS, f"{name} is removed")
            continue
        if name in renamed:
            level = Level.FREE if before.kind == POSITIONAL_ONLY else Level.BREAKS
            yield Change(level, f"{name} is called {after.name}")
        yield from _kind_changes(before, after, *positions)
        if before.default != after.default:
            level = Level.ADDS if before.default is None else Level.BREAKS
            texts = ["no default" if d is None else d for d in (before.default, after.default)]
            yield Change(level, f"{name} has the default {texts[1]}, had {texts[0]}")
        if before.type != after.type:
            level = type_level(before.type, after.type)
            yield Change(level, f"{name} is of type {after.type}, was {before.type}")
    known = {renamed.get(name, name) for name in old.parameters}
    for name, after in new.parameters.items():
        if name not in known:
            yield _new_parameter(after, takes_rest="*" in old.parameters)
    if old.result != new.result:
        # The other way round: callers of `old` can use what is one of fewer types.
        level = type_level(new.result, old.result)
        yield Change(level, f"the result is {new.result}, was {old.result}")


def _kind_changes(
    before: Parameter, after: Parameter, old: list[str], new: list[str]
) -> Iterator[Change]:
    name = before.name
    if before.kind in (POSITIONAL_ONLY, POSITIONAL):
        if after.kind == KEYWORD:
            yield Change(Level.BREAKS, f"{name} is keyword-only")
        elif old.index(name) != new.index(after.name):
            where = new.index(after.name) + 1
            yield Change(Level.BREAKS, f"{name} is number {where}, was {old.index(name) + 1}")
    if before.kind != after.kind and KEYWORD not in (before.kind, after.kind):
        level = Level.BREAKS if after.kind == POSITIONAL_ONLY else Level.ADDS
        yield Change(level, f"{name} is {after.kind}, was {before.kind}")
    elif before.kind == KEYWORD and after.kind != KEYWORD:
        level = Level.ADDS if after.kind == POSITIONAL else Level.BREAKS
        yield Change(level, f"{name} is {after.kind}, was {before.kind}")


def _new_parameter(parameter: Parameter, takes_rest: bool) -> Change:
    if parameter.kind == REST:
        return Change(Level.ADDS, f"{parameter.name} is new")
    if parameter.default is None:
        return Change(Level.BREAKS, f"{parameter.name} is new and required")
    if takes_rest and parameter.kind != KEYWORD:
        return Change(Level.BREAKS, f"{parameter.name} is new and takes what went into *")
    return Change(Level.ADDS, f"{parameter.name} is new, with the default {parameter.default}")


# --- entries of the sections


def _op(old: str, new: str) -> Iterator[Change]:
    changes = list(signature_changes(op_signature(old), op_signature(new), _op_type))
    yield from changes
    parse = import_module("torch")._C.parse_schema
    accepted = parse(new).is_backward_compatible_with(parse(old))
    if not accepted and all(change.level < Level.BREAKS for change in changes):
        text = f"torch does not take it as compatible: {new}, was {old}"
        yield Change(Level.BREAKS, text)


def _function(old: list[str], new: list[str]) -> Iterator[Change]:
    yield from signature_changes(python_signature(old), python_signature(new), _python_type)


def _class(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Change]:
    bases = old.get("bases", []), new.get("bases", [])
    yield from _named("base", {b: b for b in bases[0]}, {b: b for b in bases[1]}, _other)
    # Fields are read, so their types change as those of results do.
    before, after = (
        {p.name: p.type for p in python_signature(["*", *lines, "-> None"]).parameters.values()}
        if lines
        else {}
        for lines in (old.get("fields"), new.get("fields"))
    )
    yield from _named("field", before, after, _field)
    yield from _named("method", old.get("methods", {}), new.get("methods", {}), _function)
    variants = old.get("state_dicts", {}), new.get("state_dicts", {})
    for variant in variants[0].keys() & variants[1].keys():
        keys = [dict(line.split(" ", 1) for line in side[variant]) for side in variants]
        where = "state dict" if variant == "defaults" else f"state dict ({variant})"
        for key in sorted(keys[0].keys() | keys[1].keys()):
            shapes = [side.get(key, "nothing") for side in keys]
            if shapes[0] != shapes[1]:
                yield Change(Level.BREAKS, f"{where}: {key} is {shapes[1]}, was {shapes[0]}")


def _field(old: str, new: str) -> Iterator[Change]:
    yield Change(_python_type(new, old), f"is of type {new}, was {old}")


def _other(old: object, new: object) -> Iterator[Change]:
    yield Change(Level.BREAKS, f"is {new}, was {old}")


def _epilogue(old: dict[str, str], new: dict[str, str]) -> Iterator[Change]:
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            yield Change(Level.BREAKS, f"{key} is {new.get(key)!r}, was {old.get(key)!r}")


_COMPARED: dict[str, Callable[[Any, Any], Iterator[Change]]] = {
    "ops": _op,
    "functions": _function,
    "classes": _class,
    "values": _other,
    "epilogues": _epilogue,
}


def _named(
    kind: str,
    old: dict[str, Any],
    new: dict[str, Any],
    changes: Callable[[Any, Any], Iterator[Change]],
) -> Iterator[Change]:
    for name in sorted({*old, *new}):
        where = f"{kind} {name}"
        if name not in old:
            yield Change(Level.ADDS, f"{where}: new")
        elif name not in new:
            yield Change(Level.BREAKS, f"{where}: removed")
        elif old[name] != new[name]:
            found = list(changes(old[name], new[name]))
            found = found or [Change(Level.FREE, "is written in another way")]
            yield from (Change(level, f"{where}: {text}") for level, text in found)


def compare(old: Interface, new: Interface) -> list[Change]:
    """Every change from `old` to `new`."""
    found = []
    for section, kind in SECTIONS.items():
        changes = _named(kind, old[section], new[section], _COMPARED[section])
        for level, text in changes:
            is_private = section == "ops" and text.startswith(f"{kind} _")
            found.append(Change(Level.FREE if is_private else level, text))
    return found
