"""Which names manifests may give, and how C++ is told of them."""

from __future__ import annotations

import keyword
import re

from kernelgen.epilogues.tree import FORMS, FUNCTIONS

NAME_RULE = "a name is made of a-z, 0-9 and single _ inside, and begins with a letter"
# C++ reserves two underscores; one at the end is ours (see cpp_name).
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Keywords, alternative tokens, and lower-case macros of the compilers and the C library.
CPP_WORDS = _words(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
    char8_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return
    short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t
    while xor xor_eq
    assert errno i386 linux stderr stdin stdout unix
    """
)
# An epilogue is a class in a namespace of its own: these would hide what its code needs.
_CPP_SCOPES = _words("compute conv2d cutlass cute cutwheel detail gemm grouped_mm scaled_mm std")
_TAKEN = {
    "accum": "the accumulator",
    "alpha": "a scalar that needs no declaration",
    "beta": "a scalar that needs no declaration",
    "d": "the result",
    **dict.fromkeys(("a", "b", "epilogue", "out", "out_dtype"), "an argument of cutwheel.gemm"),
    **dict.fromkeys((*FUNCTIONS, *FORMS), "a function"),
}


def epilogue_fault(name: str) -> str | None:
    """Why an epilogue cannot be called `name`: it becomes a class, an enumerator, a file."""
    if not _NAME.fullmatch(name):
        return NAME_RULE
    if name in CPP_WORDS | _CPP_SCOPES:
        return f"{name} means something else in C++; choose another name"
    return None


def operand_fault(name: str) -> str | None:
    """Why an operand or aux cannot be called `name`: it stands in expressions and in C++."""
    if not _NAME.fullmatch(name):
        return NAME_RULE
    if what := _TAKEN.get(name):
        return f"{name} is {what}; choose another name"
    if keyword.iskeyword(name):
        return f"{name} is a keyword of Python, so no expression can use it; choose another name"
    return None


def cpp_name(name: str) -> str:
    """The parameter that stands for an operand."""
    return f"{name}_" if name in CPP_WORDS else name
