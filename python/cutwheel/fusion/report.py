"""The report of cutwheel.fuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Replacement(NamedTuple):
    """Layers that one module stands for."""

    name: str
    """of the convolution or linear layer, in the model"""
    module: str
    """the name of the new module in the fused model: the same, unless the layer serves elsewhere"""
    parts: tuple[str, ...]
    """conv or linear, then of bias, batch norm, residual and the activation what follows, in the
    order of the computation"""
    note: str = ""
    """why what follows is not in it, where it could have been"""
    us: float | None = None
    """GPU time of a call, if it was measured, in microseconds"""
    torch_us: float | None = None
    """of the layers that it stands for, by torch"""

    def __str__(self) -> str:
        text = f"{self.name or 'the model'}: {' + '.join(self.parts)}"
        if self.module != self.name:
            text += f", as {self.module}"
        if self.us is not None and self.torch_us is not None:
            text += f", {self.us:.1f} us in place of {self.torch_us:.1f}"
        return text + (f"; {self.note}" if self.note else "")


class Kept(NamedTuple):
    """A module that is as it was, and why."""

    name: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name or 'the model'} ({self.type}): {self.reason}"


@dataclass(frozen=True)
class FusionReport:
    """The layers that cutwheel.fuse has replaced in a model, those it has kept, and why.

    str() of it is meant to be read.
    """

    model: str
    """its type"""
    replaced: tuple[Replacement, ...]
    kept: tuple[Kept, ...]
    """convolutions and linear layers that are still torch's"""
    untraced: tuple[Kept, ...]
    """modules whose forward could not be traced: fused child by child instead"""

    def __str__(self) -> str:
        total = len(self.replaced) + len(self.kept)
        lines = [f"{self.model}: {len(self.replaced)} of {total} layers replaced"]
        for title, entries in (
            ("", self.replaced),
            ("not replaced:", self.kept),
            ("not traced, so fused child by child:", self.untraced),
        ):
            if title and entries:
                lines.append(title)
            lines += [f"  {entry}" for entry in entries]
        return "\n".join(lines)
