"""Split-K by our own kernels of Hopper, which take slices of any length: every kernel, forced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from gemm_cases import TORCH_DTYPE, operands, require_arch, torch_product
from persistent_cases import Row, persistent_rows
from reference import Problem, assert_as_good_as

pytestmark = pytest.mark.gpu

LAYS = {"t": ("row", "row"), "n": ("column", "column")}
# Whole slices; a last one that is shorter, and part of a tile.
LENGTHS = (4096, 8136, 13984)
ROWS = [
    row
    for row in persistent_rows()
    if row["family"] == "sm90_persistent"
    and row["schedule"] == "persistent"
    and row["cluster"][2] == 1
    and row["d"] == "f32"
    and row["epilogue"] in ("plain", "linear_combination")
]


@pytest.fixture
def release(cutwheel: ModuleType) -> Iterator[None]:
    yield
    cutwheel.clear_tuning()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_slices(
    cutwheel: ModuleType,
    device: str,
    environment: Callable[..., None],
    release: None,
    row: Row,
) -> None:
    from cutwheel.tuning.case import explained
    from cutwheel.tuning.cli import setup_of
    from cutwheel.tuning.journal import Candidate
    from cutwheel.tuning.search import TableForcing
    from cutwheel.tuning.table import Request

    require_arch(row["arch"])
    environment(CUTWHEEL_KERNEL=row["name"])
    dtype, tried = TORCH_DTYPE[row["a"]], set()
    forcing = TableForcing(setup_of(torch.cuda.current_device()).gpu)
    lay_a, lay_b = LAYS[row["layout"][0]][0], LAYS[row["layout"][1]][1]
    for k, (m, n) in itertools.product(LENGTHS, ((200, 264), (64, 1040))):
        a, b = operands(m, n, k, dtype, device, lay_a, lay_b)
        product, problem = torch_product(a, b, dtype), Problem.of(a, b)
        found = explained("mm", [a, b], None, 1.0, True)
        request = Request(**found["tuning_request"])
        for plan in found["plans"]:
            if plan["splits"] == 1:
                continue
            splits = plan["splits"]
            for raster in ("along_m", "along_n"):
                forcing.force(request, Candidate(row["name"], raster, 1, splits, 0.0))
                try:
                    taken = explained("mm", [a, b], None, 1.0, True)["plans"][0]
                    assert (taken["row"], taken["splits"]) == (row["name"], splits), taken
                    # What its workspace had before does not come in.
                    before = torch.full((splits, m, n), float("nan"), device=device)
                    del before
                    result = cutwheel.mm(a, b)
                finally:
                    forcing.release()
                    environment(CUTWHEEL_KERNEL=row["name"])
                assert_as_good_as(result, product, problem)
            tried.add(splits)
    assert len(tried) > 3
