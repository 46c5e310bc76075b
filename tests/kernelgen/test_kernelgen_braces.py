"""Alternatives in names: one declaration for several epilogues."""

from __future__ import annotations

from typing import Any

import pytest
from kernelgen_cases import SM90, changed

from kernelgen import manifest
from kernelgen.epilogues import braces


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bias", [("bias", None)]),
        ("bias_{relu,gelu}", [("bias_relu", "relu"), ("bias_gelu", "gelu")]),
        ("{a,b}_aux", [("a_aux", "a"), ("b_aux", "b")]),
        ("x_{ a , b }_y", [("x_a_y", "a"), ("x_b_y", "b")]),
    ],
)
def test_expansion(name: str, expected: list[tuple[str, str | None]]) -> None:
    assert braces.expand(name) == expected


@pytest.mark.parametrize("name", ["{a", "a}", "{}", "{a}", "{a,}", "{a,b}{c,d}", "{a,{b,c}}"])
def test_braces_that_are_no_alternatives(name: str) -> None:
    with pytest.raises(ValueError, match="two or more alternatives"):
        braces.expand(name)


def test_every_text_is_filled() -> None:
    body = {"expr": "{}(z)", "aux": {"z": "{}_grad(accum)"}, "n": 3}
    assert braces.fill(body, "relu") == {
        "expr": "relu(z)",
        "aux": {"z": "relu_grad(accum)"},
        "n": 3,
    }
    assert braces.fill(body, None) is body


def declared(name: str, body: dict[str, Any], used: list[str]) -> manifest.Manifest:
    return manifest.parse({"epilogue": {name: body}, "kernel": [changed(SM90, epilogue=used)]})


def test_one_declaration_makes_an_epilogue_for_each_alternative() -> None:
    body = {"expr": "{}(alpha * accum)"}
    found = declared("act_{relu,silu}", body, ["act_{relu,silu}"])
    assert {e.name: e.expr for e in found.epilogues} == {
        "act_relu": "relu(alpha * accum)",
        "act_silu": "silu(alpha * accum)",
    }
    assert {kernel.epilogue.name for kernel in found.kernels if kernel.epilogue} == {
        "act_relu",
        "act_silu",
    }


def test_a_kernel_may_name_some_of_them() -> None:
    found = declared("act_{relu,silu}", {"expr": "{}(accum)"}, ["act_silu"])
    assert {kernel.epilogue.name for kernel in found.kernels if kernel.epilogue} == {"act_silu"}


@pytest.mark.parametrize(
    ("name", "used", "text"),
    [
        ("act_{relu}", ["act_relu"], "two or more alternatives"),
        ("act_{relu,silu}", ["act_{relu,gelu}"], "unknown epilogue 'act_gelu'"),
        ("act_{relu,silu}", ["act_{relu"], "two or more alternatives"),
        ("act_{relu,softer}", ["act_relu"], 'of "softer(accum)"'),
    ],
)
def test_errors_name_the_alternative(name: str, used: list[str], text: str) -> None:
    with pytest.raises(manifest.InvalidManifestError) as raised:
        declared(name, {"expr": "{}(accum)"}, used)
    assert text in str(raised.value)
