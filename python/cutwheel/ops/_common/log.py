"""The logger "cutwheel": CUTWHEEL_LOG, and what the level debug tells of choices.

The library tells of kernels where it launches them, so calls of modules, compiled graphs and
backward passes are told alike. It asks for a listener where a launch has succeeded: one load and
one branch.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
from typing import Any

import torch
from torch import Tensor

from ... import _library  # noqa: F401  (registers torch.ops.cutwheel)
from .errors import dtype_name, shape_text

VARIABLE = "CUTWHEEL_LOG"
_LEVELS = {name: name.upper() for name in ("debug", "info", "warning", "error")}
_FORMAT = "%(name)s: %(message)s"

logger = logging.getLogger("cutwheel")
enabled = False
"""Whether choices are told. torch.compile guards on it where a trace reads it."""

_ops = torch.ops.cutwheel
_told: set[tuple[str, str, str]] = set()
# Of a request, what most requests have.
_USUAL = (
    ("batch", 1),
    ("addend", "none"),
    ("extents_aligned", True),
    ("unaligned", ""),
    ("tensor_maps", True),
    ("padded_filter", "none"),
    ("taps", 1),
    ("step", 1),
    ("rectangles", 0),
    ("shared_pixels", 0),
    ("grouping", "none"),
    ("fast_accum", False),
    ("scales", "none"),
)


def problem_text(request: dict[str, Any]) -> str:
    """ "M=32 N=11008 K=4096 dtype=bf16 ...": a request of the library, without what is usual."""
    extents = [f"{key.upper()}={request[key]}" for key in ("m", "n", "k")]
    rest = [
        f"{key}={value}"
        for key, value in request.items()
        if key not in ("m", "n", "k") and value is not None and (key, value) not in _USUAL
    ]
    return " ".join((*extents, *rest))


def choice_text(choice: dict[str, Any]) -> str:
    """A sentence for a choice of the library."""
    plan = choice["plan"]
    text = f"{choice['op']} {problem_text(choice['request'])}: {plan['row']}"
    if "choice" not in choice:
        return text
    parts = [f"raster {plan['raster']}", f"swizzle {plan['swizzle']}"]
    if plan["splits"] > 1:
        parts.append(f"{plan['splits']} splits")
    verb = "measured" if choice["choice"] == "tuned (exact)" else "predicted"
    return f"{text} ({', '.join(parts)}; {verb} {plan['predicted_us']:.3g} us, {choice['choice']})"


def _hear(text: bytes) -> None:
    logger.debug("%s", choice_text(json.loads(text)))


_listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_hear)


def _stop() -> None:
    _ops._set_choice_listener(0)


def tell_choices(enable: bool) -> None:
    """Tells each choice once from now on, at the level debug; what was told is told again."""
    global enabled
    enabled = enable
    _told.clear()
    atexit.unregister(_stop)
    if not enable:
        _stop()
        return
    _ops._set_choice_listener(ctypes.cast(_listener, ctypes.c_void_p).value)
    atexit.register(_stop)  # backward passes may outlive the interpreter


def tell_torch(op: str, because: str, *tensors: Tensor) -> None:
    """Tells of a call that torch computes. Asked where `enabled`; while torch.compile traces,
    without the tensors."""
    problem = " ".join(f"{dtype_name(x.dtype)} {shape_text(x.shape)}" for x in tensors)
    key = op, problem, because
    if key not in _told:
        _told.add(key)
        logger.debug("%s%s: by torch: %s", op, problem and f" {problem}", because)


# torch.compile calls it where it traces the op.
tell_torch._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _is_unheard(record: logging.LogRecord) -> bool:
    """Whether the program has set up no logging of its own."""
    return not logging.getLogger().handlers


def load_environment() -> None:
    """Sets the logger's level to CUTWHEEL_LOG, and writes to stderr where nothing else does."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return
    if value not in _LEVELS:
        raise ValueError(
            f'{VARIABLE} is "{value}"; expected {", ".join(_LEVELS)}, or leave it unset'
        )
    logger.setLevel(_LEVELS[value])
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(_is_unheard)
    logger.addHandler(handler)
    if value == "debug":
        tell_choices(True)
