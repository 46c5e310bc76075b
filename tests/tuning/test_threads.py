"""Tables of measurements that are loaded by several threads at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
import torch

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

THREADS, TABLES = 4, 1000


@pytest.fixture(autouse=True)
def _cleared() -> Iterator[None]:
    yield
    cutwheel.clear_tuning()


def _names() -> set[str]:
    return {one["gpu"] for one in json.loads(torch.ops.cutwheel._tuning()) if not one["built_in"]}


def test_no_thread_loses_the_table_of_another() -> None:
    start = threading.Barrier(THREADS)

    def load(thread: int) -> None:
        start.wait()
        for i in range(TABLES):
            # The library reads lines: see cuda/dispatch/tuning/table.h. The op releases the GIL.
            torch.ops.cutwheel._load_tuning(f"table t\ngpu 9 0 132 4000 GPU {thread} {i}\n")

    threads = [threading.Thread(target=load, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"GPU {thread} {i}" for thread in range(THREADS) for i in range(TABLES)}
    assert _names() == expected
