"""How a check fails."""

from __future__ import annotations

from collections.abc import Iterable


class Failure(Exception):  # noqa: N818  (a verdict on the wheel, not an error of the tool)
    """A check does not hold; the text says what is wrong and what to do."""


def shortlist(items: Iterable[object], limit: int = 5) -> str:
    """ "a, b, c (+2 more)", sorted."""
    names = sorted({str(item) for item in items})
    more = f" (+{len(names) - limit} more)" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
