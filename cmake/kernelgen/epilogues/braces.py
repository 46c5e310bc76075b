"""Names with alternatives: "bias_{relu,gelu}" stands for bias_relu and bias_gelu, as in a shell.

In the texts of what is declared under such a name, {} stands for the alternative.
"""

from __future__ import annotations

import re
from typing import Any

_BRACES = re.compile(r"([^{}]*)\{([^{}]*)\}([^{}]*)")


def expand(name: str) -> list[tuple[str, str | None]]:
    """(full name, alternative) for each alternative; (name, None) where there are no braces.

    Raises ValueError, with what is allowed, for braces that make no list of alternatives.
    """
    if "{" not in name and "}" not in name:
        return [(name, None)]
    found = _BRACES.fullmatch(name)
    alternatives = [item.strip() for item in found[2].split(",")] if found else []
    if not found or len(alternatives) < 2 or not all(alternatives):
        raise ValueError('braces hold two or more alternatives, once in a name: "bias_{relu,gelu}"')
    return [(f"{found[1]}{item}{found[3]}", item) for item in alternatives]


def fill(value: Any, alternative: str | None) -> Any:
    """`value` with {} replaced in every string of it; as it is without an alternative."""
    if alternative is None:
        return value
    if isinstance(value, str):
        return value.replace("{}", alternative)
    if isinstance(value, dict):
        return {key: fill(item, alternative) for key, item in value.items()}
    return value
