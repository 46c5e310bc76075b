"""Sharding strategies: how the ops run on torch's DTensor.

They are registered when torch.distributed.tensor is imported, whoever does it, before or after
cutwheel: without that module there are no DTensors, and importing it takes longer than importing
cutwheel does.
"""

from __future__ import annotations

import importlib.abc
import logging
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from .._common import sharding

_DTENSOR = "torch.distributed.tensor"
_logger = logging.getLogger("cutwheel")


def install() -> None:
    """Registers the strategies, now or as soon as there can be a DTensor."""
    if not torch.distributed.is_available():
        return
    if _DTENSOR in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterImport())


def register() -> None:
    """Registers the strategies; a second call does nothing."""
    if sharding.calls is not None:
        return
    try:
        from . import _calls, _strategies

        _strategies.register()
    except (ImportError, AttributeError, TypeError) as error:
        # What is registered with is not all public. The import of torch's module goes on.
        _logger.warning(
            "cutwheel's ops refuse DTensors: torch %s does not take their sharding strategies (%s)",
            torch.__version__,
            error,
        )
        return
    sharding.calls = _calls


class _AfterImport(importlib.abc.MetaPathFinder):
    """Finds nothing itself; has the strategies registered behind the import of DTensor."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _DTENSOR:
            return None
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(fullname, path, target)
            if found is not None:
                self._register_behind(found.loader)
                return found
        return None

    def _register_behind(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            del loader.exec_module  # the class's own is in its place again
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            register()

        loader.exec_module = execute_and_register
