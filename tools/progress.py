"""How far a build is: Ninja's lines with the share that is done and the time that is left.

    cmake --build build/dev | python tools/progress.py

tools/build_backend.py puts it between each build and its output. A source counts as many seconds of
a core as kernelgen estimates (estimates.json, whose path the configure prints), so that fifty
sources of a second do not hide that the CUTLASS kernels are still to come. How many of these
seconds a second is worth on this machine is told by what has finished in the last ten minutes: what
a compiler cache had is soon forgotten.
"""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

ANNOUNCED = re.compile(r"cutwheel: (\d+) jobs, estimates in (.+\S)")
NINJA = re.compile(r"\[(\d+)/(\d+)\] (.*)")
KERNELS = re.compile(r"([^/\s]+\.cu)\.o(?:bj)?$")
# Of a core, for what has no estimate: the host's C++, linking.
OTHER = 1.5
WINDOW = 600.0
# Before anything has finished, estimates are believed as if so many seconds of a core had confirmed
# them.
PRIOR = 30.0


class Progress:
    """Rewrites the lines of one build."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin = clock()
        self._jobs = 1
        self._estimates: Mapping[str, float] = {}
        self._seen: set[str] = set()
        self._done = 0.0
        self._recent: deque[tuple[float, float]] = deque()

    def line(self, text: str) -> str:
        """`text` as it is shown."""
        if announced := ANNOUNCED.search(text):
            self._announced(int(announced[1]), Path(announced[2]))
        if not (step := NINJA.match(text)):
            return text
        finished, total, what = int(step[1]), int(step[2]), step[3]
        left = self._left(finished, total, what)
        share = 100 if finished == total else min(99, int(100 * self._done / (self._done + left)))
        gone = _minutes(self._clock() - self._begin)
        rest = f"about {_minutes(self._seconds(left))} left" if finished < total else "done"
        return f"[{finished}/{total}, {share} %, {gone} gone, {rest}] {what}"

    def _announced(self, jobs: int, path: Path) -> None:
        try:
            self._estimates = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._estimates = {}  # progress by number, then
        self._jobs, self._begin = jobs, self._clock()
        self._seen, self._done = set(), 0.0
        self._recent.clear()

    def _left(self, finished: int, total: int, what: str) -> float:
        """Estimated seconds of a core that are left after `what`."""
        kernels = KERNELS.search(what)
        name = kernels[1] if kernels else ""
        weight = self._estimates.get(name, OTHER)
        self._seen.add(name)
        self._done += weight
        self._recent.append((self._clock(), weight))
        unseen = [weight for name, weight in self._estimates.items() if name not in self._seen]
        steps = total - finished
        if len(unseen) <= steps:
            return sum(unseen) + OTHER * (steps - len(unseen))
        # A rebuild of some: which of them is not known.
        return steps * sum(unseen) / len(unseen)

    def _seconds(self, left: float) -> float:
        """The same as time on the clock, at the speed of late."""
        now = self._clock()
        while len(self._recent) > 1 and self._recent[0][0] < now - WINDOW:
            self._recent.popleft()
        recent = sum(weight for _, weight in self._recent)
        elapsed = min(now - self._begin, WINDOW)
        return left * (elapsed + PRIOR / self._jobs) / (recent + PRIOR)


def _minutes(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if seconds < 99.5 else f"{minutes:.0f} min"


def rewritten(lines: Iterable[str]) -> Iterator[str]:
    progress = Progress()
    for line in lines:
        yield progress.line(line.rstrip("\n"))


def main() -> int:
    # A build writes into this program's input: whatever it writes and whatever interrupts it, it is
    # read to its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    for line in rewritten(sys.stdin):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
