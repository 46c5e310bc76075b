"""The report of cutwheel.replace_layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Replaced(NamedTuple):
    """Layers of a model that are computed by cutwheel now."""

    name: str
    """of the module, as in model.named_modules()"""
    type: str
    """its class, before"""
    by: str
    """what computes it"""
    parts: tuple[str, ...] = ()
    """the names inside of it that became one parameter"""
    note: str = ""

    def __str__(self) -> str:
        parts = f" of {', '.join(self.parts)}" if self.parts else ""
        note = f"; {self.note}" if self.note else ""
        return f"{self.name or 'the model'} ({self.type}): {self.by}{parts}{note}"


class Left(NamedTuple):
    """A module, or a part of one, that is as it was, and why."""

    name: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({self.type}): {self.reason}"


@dataclass(frozen=True)
class ReplacementReport:
    """What cutwheel.replace_layers has replaced in a model, and what it has left, and why.

    str() of it is meant to be read: modules that differ by their numbers alone are one line.
    """

    model: str
    """its class"""
    quantize: str | None
    replaced: tuple[Replaced, ...]
    left: tuple[Left, ...]
    """linear layers, MLPs, attention blocks and experts that stay as they were, wholly or partly"""
    checkpoints: str
    """which checkpoints load_state_dict of the model takes from now on"""

    def __str__(self) -> str:
        lines = [f"{self.model}: {len(self.replaced)} modules replaced, {len(self.left)} left"]
        for title, entries in (("", self.replaced), ("left:", self.left)):
            if title and entries:
                lines.append(title)
            counts: dict[str, int] = {}
            for entry in entries:
                name = ".".join("*" if part.isdigit() else part for part in entry.name.split("."))
                text = str(entry._replace(name=name))
                counts[text] = counts.get(text, 0) + 1
            lines += [f"  {text}" + f" (x {n})" * (n > 1) for text, n in counts.items()]
        return "\n".join([*lines, f"state dict: {self.checkpoints}"])
