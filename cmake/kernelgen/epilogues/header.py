"""The C++ of an epilogue: its header, its row in the host's table."""

from __future__ import annotations

from collections.abc import Iterator

from kernelgen import cpp
from kernelgen.epilogues.epilogue import Epilogue
from kernelgen.epilogues.identifiers import cpp_name
from kernelgen.epilogues.spelling import Cpp, text
from kernelgen.epilogues.tree import SCALAR, STORE, Kind, Pair

_UNITS = {
    "same": "Computes one column of D.",
    "half": "Computes one column of D from two columns of everything but scalars.",
    "twice": "Computes two columns of D from one of everything but wide matrices.",
}


def header_name(epilogue: Epilogue) -> str:
    return f"epilogue_{epilogue.name}.cuh"


def header_fields(epilogue: Epilogue) -> dict[str, str]:
    """Values for epilogue.cuh.in."""
    described = [*((name, text(tree)) for name, tree in epilogue.aux), ("D", epilogue.expr)]
    numbered = list(enumerate(kind for _, kind in epilogue.positions))
    return {
        "name": epilogue.name,
        "description": "".join(f"//   {name} = {expr}\n" for name, expr in described),
        "width": epilogue.width,
        "operands": ", ".join(_slot(i, kind) for i, kind in numbered if kind != STORE),
        "stores": ", ".join(_slot(i, kind) for i, kind in numbered if kind == STORE),
        "unit": _UNITS[epilogue.width],
        "parameters": ", ".join(_parameters(epilogue)),
        "statements": "".join(f"    {statement};\n" for statement in _statements(epilogue)),
    }


def info(epilogue: Epilogue) -> str:
    """The initialiser of an EpilogueInfo."""
    operands = ", ".join(
        f'{{"{name}", OperandKind::{kind.enumerator}, OperandType::{kind.dtype},'
        f" /*may_be_one=*/{cpp.boolean(kind.may_be_one)}}}"
        for name, kind in epilogue.positions
    )
    return (
        f'{{"{epilogue.name}", "{epilogue.expr}", Addend::{epilogue.addend},'
        f" Width::{epilogue.width}, /*has_accum=*/{cpp.boolean(epilogue.has_accum)},"
        f" {len(epilogue.positions)}, {{{operands}}}}}"
    )


def _slot(position: int, kind: Kind) -> str:
    if kind == SCALAR:
        return f"{kind.template}<{position}>"
    dtype = "d_" if kind.dtype == "d" else f"DType::{kind.dtype}"
    may_be_one = ", true" if kind.may_be_one else ""
    return f"{kind.template}<{position}, {dtype}{may_be_one}>"


def _parameters(epilogue: Epilogue) -> Iterator[str]:
    """Parameters of compute(): those that it reads, then those that it writes."""
    paired = "Pair" if epilogue.width == "half" else "float"
    if epilogue.has_accum:
        yield f"{paired} accum"
    for name, kind in epilogue.positions:
        value = "float" if kind == SCALAR else "Pair" if kind.is_wide else paired
        reference = "&" if kind == STORE else ""
        yield f"{value}{reference} {cpp_name(name)}"
    yield "Pair& d" if epilogue.width == "twice" else "float& d"


def _statements(epilogue: Epilogue) -> Iterator[str]:
    # An aux has every accumulator column, so it is computed for both of a pair.
    members = ("even", "odd") if epilogue.width == "half" else ("",)
    for name, tree in epilogue.aux:
        for member in members:
            target = cpp_name(name) + (f".{member}" if member else "")
            yield f"{target} = {Cpp(member).spell(tree)}"
    if isinstance(epilogue.tree, Pair):
        yield f"d.even = {Cpp().spell(epilogue.tree.even)}"
        yield f"d.odd = {Cpp().spell(epilogue.tree.odd)}"
    else:
        yield f"d = {Cpp().spell(epilogue.tree)}"
