"""A problem as calls on rotated operands: torch's ways to compute it, cutwheel's, the reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .measure import Call, Error, Operands, Results, rotation

Reference = Callable[[int], Results]  # buffer -> what the results should be, float32 or better
Pair = tuple[str, str]  # a provider and the baseline it is compared with
Function = Callable[..., Any]
MOST_BYTES = 60e9  # of operands and results; what they are made and checked with comes on top
SINGLE_BUFFER = 64  # one buffer suffices where L2 holds less than this part of it
AGAIN = "torch (again)"  # in place of cutwheel, the noise


class SkippedError(Exception):
    """A problem that is not to be measured, and why."""


@dataclass(frozen=True)
class Setting:
    """One problem, and what its providers are made with."""

    shape: Any
    """Gemm, Grouped or Conv"""
    operands: Operands
    variant: str = ""
    """an activation, a recipe, how rows are spread over groups: see the problem's function"""
    compiled: Callable[[Function], Function] | None = None
    """makes one more baseline, where torch.compile is asked for"""
    passed: Callable[[Function], Function] | None = None
    """the same with the pass of cutwheel.inductor_options(), which makes one more side"""
    others: Mapping[str, Function] = field(default_factory=dict)
    """further baselines of mm, by name; they take torch.mm's arguments"""
    is_frugal: bool = False
    """few sets of operands: one where it alone fills L2, as many plans are measured on them"""

    @property
    def is_tf32(self) -> bool:
        return self.operands.dtype == torch.float32

    def buffers(self, of_operands: int, of_results: int = 0, providers: int = 2) -> int:
        """Sets of operands to rotate through; results of each provider are kept for each.

        Args:
            of_operands: bytes of one set that a call reads
            of_results: bytes of what one call returns

        Raises:
            SkippedError: they take too much memory
        """
        l2_bytes = self.operands.l2_bytes
        if self.is_frugal:
            return 1 if of_operands > 8 * l2_bytes else rotation(of_operands, l2_bytes, 128)

        def needed(buffers: int) -> int:
            kept = buffers + (buffers > 1)  # calls on one set are long: a graph has one
            return buffers * of_operands + providers * kept * of_results

        found = rotation(of_operands, l2_bytes)
        moved = of_operands + of_results  # results pass through L2 as operands do
        if needed(found) > MOST_BYTES:
            found = rotation(moved, l2_bytes)
        if needed(found) > MOST_BYTES and moved > SINGLE_BUFFER * l2_bytes:
            found = 1
        if needed(found) > MOST_BYTES:
            gigabytes = needed(found) / 1e9
            raise SkippedError(f"takes {gigabytes:.0f} GB; the limit is {MOST_BYTES / 1e9:.0f}")
        return found


@dataclass(frozen=True)
class Provider:
    name: str
    call: Call
    reference: Reference | None = None  # where it is another than the case's


@dataclass(frozen=True)
class Case:
    """Providers of one problem. A pair's ratio is its baseline's time over that of the other."""

    providers: Sequence[Provider]
    """torch's first; the last one is cutwheel's"""
    buffers: int
    reference: Reference
    allowed: Error
    flops: float = 0.0  # of a call; 0 where it does not multiply
    min_bytes: float = 1.0  # through device memory: operands read once, results written once
    pairs: Sequence[Pair] | None = None  # if not given: the last provider with each of the others
    kernels: Mapping[str, str | None] = field(default_factory=dict)  # by provider
    forms: Mapping[Pair, str] = field(default_factory=dict)  # of a baseline that computes another
    left_out: str = ""  # baselines that are not there, and why
    stands_alone: bool = False  # measured, too, if torch refuses all baselines
    explain: Callable[[], dict[str, Any]] = dict
    """what the library says of the last provider's call on buffer 0"""

    def all_pairs(self) -> list[Pair]:
        if self.pairs is not None:
            return list(self.pairs)
        *baselines, other = (provider.name for provider in self.providers)
        return [(other, baseline) for baseline in baselines]

    def against_itself(self) -> Case:
        """torch in our place: what the benchmark calls a difference where there is none."""
        by_name = {provider.name: provider for provider in self.providers}
        first = dict(reversed(self.all_pairs()))
        if not first:
            raise SkippedError("there is no baseline")
        named = {ours: ours.replace("cutwheel", AGAIN) for ours in first}
        providers = [
            replace(by_name[first[name]], name=named[name]) if name in first else provider
            for name, provider in by_name.items()
            if name in first or name in {baseline for _, baseline in self.all_pairs()}
        ]
        pairs = [(named[ours], baseline) for ours, baseline in self.all_pairs()]
        return replace(self, providers=providers, pairs=pairs, kernels={}, forms={})


def explained(op: str, operands: Sequence[Any], *rest: Any) -> dict[str, Any]:
    """rest: out_dtype, beta, allow_tf32, epilogue, recipes, use_fast_accum, geometry"""
    found: dict[str, Any] = json.loads(torch.ops.cutwheel._explain(op, list(operands), *rest))
    return found


def first_kernel(explain: Callable[[], Mapping[str, Any]]) -> str | None:
    """Which kernel runs; None if that cannot be said: the case itself will tell what is wrong."""
    try:
        plans = explain()["plans"]
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    return str(plans[0]["row"]) if plans else None
