"""NCCL's all-reduce alone, and beside products that take all SMs or leave some to it.

The products run on the default stream, one behind the other, from before the first all-reduce
until after the last one. A ratio is the part of the bandwidth that is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import cutwheel
from cutwheel.tuning.case import Case, Pair, Provider
from cutwheel.tuning.measure import ROUNDING, Error, Spread

from ..compare import Measurement, ratio_of, texts_of
from .team import Team
from .timing import Limits, in_all

Tensor = torch.Tensor
DTYPE = torch.bfloat16
SEED = 2614
LEFT = 16  # SMs that a limit leaves: it is 116 on a GPU of 132
CALLS = 6  # all-reduces of a sample: their sums stay finite for dozens of GPUs
ALONE = "alone"


class Sizes(NamedTuple):
    elements: int
    """of the tensor that is reduced"""
    side: int
    """of the square matrices"""
    max_ctas: int
    """that NCCL may take; 0: as it likes"""

    def fields(self, _: str) -> dict[str, Any]:
        return {"input": list(self), "m": self.elements}

    def __str__(self) -> str:
        return " x ".join(map(str, self))


@dataclass(frozen=True)
class Beside:
    """The work beside NCCL's all-reduce."""

    name: str
    product: Callable[[], Any] | None
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def _group(team: Team, max_ctas: int) -> Any:
    if not max_ctas or not team.is_on_gpu:
        return team.group
    options = dist.ProcessGroupNCCL.Options()
    options.config.max_ctas = max_ctas
    return dist.new_group(backend="nccl", pg_options=options)


@contextmanager
def _stream(stream: Any) -> Iterator[None]:
    with torch.cuda.stream(stream) if stream is not None else nullcontext():
        yield


class Bench:
    def __init__(self, team: Team, sizes: Sizes) -> None:
        operands = team.operands(SEED)
        self.team, self.group = team, _group(team, sizes.max_ctas)
        every = [operands.normal(sizes.elements) for _ in range(team.size)]
        self.source = every[team.rank]
        self.wanted = torch.stack([each.double() for each in every]).sum(0)
        self.wanted *= float(team.size) ** (CALLS - 1)
        del every
        self.target = torch.empty_like(self.source)
        self._met = torch.zeros(1, device=team.device)
        a, b = operands.normal(sizes.side, sizes.side), operands.normal(sizes.side, sizes.side)
        sms = LEFT + 1
        self.stream: Any = None
        if team.is_on_gpu:
            sms = torch.cuda.get_device_properties(team.device).multi_processor_count
            self.stream = torch.cuda.Stream()

        def ours() -> Tensor:
            result: Tensor = cutwheel.mm(a, b)
            return result

        self.limited = f"cutwheel.mm, sm_limit({sms - LEFT})"
        self.all = [
            Beside(ALONE, None),
            Beside("torch.mm", lambda: torch.mm(a, b)),
            Beside("cutwheel.mm", ours),
            Beside(self.limited, ours, lambda: cutwheel.sm_limit(sms - LEFT)),
        ]
        self.products = dict.fromkeys((beside.name for beside in self.all), 8)

    def error(self) -> Error:
        """The error of the last sample's sums."""
        return self.team.largest(Error.of(self.target, self.wanted))

    def seconds(self, beside: Beside) -> float:
        """Seconds of an all-reduce, on the slowest GPU.

        Raises:
            RuntimeError: the products do not outlast the all-reduces, however many there are
        """
        if not self.team.is_on_gpu:
            return self._on_cpu(beside)
        while True:
            found = self.team.gather(self._sample(beside))
            if all(is_covered for _, is_covered in found):
                return max(seconds for seconds, _ in found)
            self.products[beside.name] *= 2
            if self.products[beside.name] > 400:
                raise RuntimeError("the products do not outlast the all-reduces")

    def _on_cpu(self, beside: Beside) -> float:
        self.target.copy_(self.source)
        self.team.barrier()
        start = time.perf_counter()
        if beside.product is not None:
            with beside.context():
                beside.product()
        for _ in range(CALLS):
            dist.all_reduce(self.target, group=self.group)
        return max(self.team.gather((time.perf_counter() - start) / CALLS))

    def _sample(self, beside: Beside) -> tuple[float, bool]:
        """Seconds here, and whether products ran all the time."""

        def event() -> Any:
            return torch.cuda.Event(enable_timing=True)

        start, stop, end = event(), event(), event()
        self.target.copy_(self.source)
        self.team.barrier()
        products = self.products[beside.name] if beside.product is not None else 0
        with beside.context():
            for index in range(products):
                assert beside.product is not None
                beside.product()
                if index == 0:
                    self.stream.wait_stream(torch.cuda.current_stream())
        end.record()
        with _stream(self.stream):
            dist.all_reduce(self._met, group=self.group)  # the GPUs meet
            start.record()
            for _ in range(CALLS):
                dist.all_reduce(self.target, group=self.group)
            stop.record()
        self.team.synchronize()
        is_covered = not products or stop.elapsed_time(end) > 0.0
        return start.elapsed_time(stop) * 1e-3 / CALLS, is_covered


def measure(team: Team, sizes: Sizes, limits: Limits) -> tuple[Case, Measurement]:
    bench = Bench(team, sizes)
    allowed = Error(8 * ROUNDING[DTYPE], 160 * ROUNDING[DTYPE])  # a rounding for each sum
    failures: dict[str, str] = {}
    errors: dict[str, Error] = {}
    for beside in bench.all:
        for _ in range(2):
            if text := in_all(team, lambda b=beside: bench.seconds(b)):
                failures[beside.name] = text
                break
        else:
            errors[beside.name] = error = bench.error()
            if not error.within(allowed):
                failures[beside.name] = f"wrong sums, relative error {error.relative:.1e}"
    rest = [beside for beside in bench.all if beside.name not in failures]
    samples: dict[str, list[float]] = {beside.name: [] for beside in rest}
    for _ in range(limits.rounds):
        for beside in rest:
            samples[beside.name].append(bench.seconds(beside))
    pairs: list[Pair] = [(each.name, ALONE) for each in bench.all if each.product is not None]
    moved = 2 * (team.size - 1) / team.size * bench.source.nbytes  # by each GPU, in each direction
    names = [Provider(beside.name, lambda _: None) for beside in bench.all]
    case = Case(names, 1, lambda _: None, allowed, 0.0, moved, pairs)
    found = Measurement(
        "failed" if failures else "ok",
        texts_of(failures),
        errors,
        {name: Spread.of(values) for name, values in samples.items()},
        {
            pair: ratio_of(samples[pair[1]], samples[pair[0]])
            for pair in pairs
            if pair[0] in samples and pair[1] in samples
        },
        CALLS,
        limits.rounds,
    )
    return case, found
