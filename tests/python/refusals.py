"""Where calls that are refused are tried."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def places(names: Iterable[str], only_library: Collection[str]) -> list[Any]:
    """(name, device) for parametrize: on meta, where Python and the meta functions refuse, and on
    the GPU, where the library does, too.

    Args:
        only_library: the names of calls that nothing but the library refuses
    """
    names = list(names)
    assert set(only_library) <= set(names)
    on_meta = [name for name in names if name not in only_library]
    return [
        *(pytest.param(name, "meta", id=f"{name}-meta") for name in on_meta),
        *(pytest.param(name, "cuda", id=f"{name}-cuda", marks=pytest.mark.gpu) for name in names),
    ]
