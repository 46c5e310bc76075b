"""Split-K by our own kernels of Hopper, which take slices of any length: every kernel, forced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from gemm_cases import TORCH_DTYPE, operands, require_arch, torch_product
from persistent_cases import Row, persistent_rows
from reference import Problem, assert_as_good_as

pytestmark = pytest.mark.gpu

LAYS = {"t": ("row", "row"), "n": ("column", "column")}
# Whole slices, a last one of one tile, of part of a tile, and slices of one tile.
SPLITS = ((2, 8, 0), (3, 7, 0), (4, 13, 0), (5, 21, -24), (7, 7, -8), (33, 66, -40))
ROWS = [
    row
    for row in persistent_rows()
    if row["family"] == "sm90_persistent"
    and row["schedule"] == "persistent"
    and row["cluster"][2] == 1
    and row["d"] == "f32"
]


@pytest.fixture
def release(cutwheel: ModuleType) -> Iterator[None]:
    yield
    cutwheel.clear_tuning()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_slices(
    cutwheel: ModuleType, device: str, environment: object, release: None, row: Row
) -> None:
    from cutwheel.tuning.case import explained
    from cutwheel.tuning.cli import setup_of
    from cutwheel.tuning.journal import Candidate
    from cutwheel.tuning.search import TableForcing
    from cutwheel.tuning.table import Request

    require_arch(row["arch"])
    dtype = TORCH_DTYPE[row["a"]]
    forcing = TableForcing(setup_of(torch.cuda.current_device()).gpu)
    for splits, k_tiles, more in SPLITS:
        k = k_tiles * row["tile"][2] + more
        for m, n in ((200, 264), (64, 1040)):
            a, b = operands(
                m, n, k, dtype, device, LAYS[row["layout"][0]][0], LAYS[row["layout"][1]][1]
            )
            request = Request(**explained("mm", [a, b], None, 1.0, True)["tuning_request"])
            for raster in ("along_m", "along_n"):
                forcing.force(request, Candidate(row["name"], raster, 1, splits, 0.0))
                try:
                    plan = explained("mm", [a, b], None, 1.0, True)["plans"][0]
                    assert (plan["row"], plan["splits"]) == (row["name"], splits), json.dumps(plan)
                    result = cutwheel.mm(a, b)
                    # What its workspace had before does not come in.
                    before = torch.full((splits, m, n), float("nan"), device=device)
                    del before
                    again = cutwheel.mm(a, b)
                finally:
                    forcing.release()
                assert torch.equal(result, again)
                assert_as_good_as(result, torch_product(a, b, dtype), Problem.of(a, b))
