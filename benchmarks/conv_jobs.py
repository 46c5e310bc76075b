"""Which convolutions are measured. Needs neither torch nor a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

GROUPS = ("fprop", "dgrad", "wgrad", "fused", "resnet50")
DTYPE = "bf16"


class ConvShape(NamedTuple):
    """x [N, C, H, W] with filters [K, C, R, S]; stride, padding and dilation of both dimensions."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int
    padding: int
    dilation: int

    @property
    def p(self) -> int:
        return (self.h + 2 * self.padding - self.dilation * (self.r - 1) - 1) // self.stride + 1

    @property
    def q(self) -> int:
        return (self.w + 2 * self.padding - self.dilation * (self.s - 1) - 1) // self.stride + 1

    @property
    def input(self) -> tuple[int, int, int, int]:
        return self.n, self.c, self.h, self.w

    @property
    def filter(self) -> tuple[int, int, int, int]:
        return self.k, self.c, self.r, self.s

    @property
    def output(self) -> tuple[int, int, int, int]:
        return self.n, self.k, self.p, self.q

    @property
    def flops(self) -> int:
        """Of any of the three directions."""
        return 2 * self.n * self.p * self.q * self.k * self.c * self.r * self.s

    @property
    def elements(self) -> int:
        """Of input, filter and output, each once."""
        n, c, h, w = self.input
        return n * c * h * w + self.k * c * self.r * self.s + n * self.k * self.p * self.q

    def __str__(self) -> str:
        image = f"{self.n} x {self.c} x {self.h} x {self.w}"
        text = f"{image}, {self.k} of {self.r} x {self.s}, stride {self.stride}"
        return text + (f", dilation {self.dilation}" if self.dilation != 1 else "")


RESNET = ConvShape(64, 3, 224, 224, 64, 7, 7, 2, 3, 1)
"""what it begins with"""


class Job(NamedTuple):
    """group: what is computed, of GROUPS"""

    group: str
    shape: ConvShape

    def fields(self) -> dict[str, Any]:
        """m: rows of the product that a convolution is"""
        shape = self.shape
        return {"group": self.group, "shape": list(shape), "m": shape.n * shape.p * shape.q}

    def __str__(self) -> str:
        return text_of(self.group, self.shape)


def text_of(group: str, shape: ConvShape) -> str:
    if group == "resnet50":
        return f"resnet50 {shape.n} x {shape.c} x {shape.h} x {shape.w}"
    return f"{group} {shape}"


def shapes(table: Mapping[str, Any], *, quick: bool = False) -> list[ConvShape]:
    cases = table["conv"]["quick"]["cases"] if quick else table["conv"]["cases"]
    found = [ConvShape(*case) for case in cases]
    for shape in found:
        if min(shape._replace(padding=1)) < 1 or min(shape.p, shape.q) < 1 or shape.padding < 0:
            raise ValueError(f"conv case {list(shape)}: expected sizes of at least 1, and a result")
    return found


def jobs(wanted: Sequence[ConvShape], groups: Sequence[str] = GROUPS) -> list[Job]:
    """One group after another, in the order of GROUPS; the whole model last, once."""
    return [
        Job(group, shape)
        for group in GROUPS
        if group in groups
        for shape in ([RESNET] if group == "resnet50" else wanted)
    ]
