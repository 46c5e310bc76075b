"""DTensors: every op with every placement of every operand, and the plans for modules.

The processes are started once for all of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from processes import run_in_processes

pytestmark = [
    pytest.mark.slow,  # the processes are
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="this torch has no torch.distributed"
    ),
]

Outcomes = dict[str, list[str]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What failed in the first process, by the name of a check."""
    from sharded_ops import SIZE, run

    folder = tmp_path_factory.mktemp("sharding")
    run_in_processes(run, SIZE, str(folder))
    found: Outcomes = json.loads((folder / "0.json").read_text())
    return found


OPS = (
    *("mm", "mm_uneven", "bmm", "addmm", "addmm_row", "addmm_column", "baddbmm", "matmul"),
    *("linear", "linear_None_residual", "linear_silu", "linear_silu_residual"),
    *(
        "linear_gelu_last",
        "linear_gelu_last_residual",
    ),
    *("linear_sigmoid", "linear_stored", "gated_linear", "gated_linear_bias"),
    *("gated_linear_odd", "gated_linear_pair", "gated_linear_halves"),
    *("gemm", "gemm_leaky_relu"),
    *("scaled_mm_tensorwise", "scaled_mm_rowwise", "scaled_mm_blockwise", "scaled_grouped_mm"),
    *("quantize_tensorwise", "quantize_rowwise", "quantize_blockwise_1x128"),
    *("quantize_blockwise_128x128", "quantize_int8_tensorwise", "quantize_int8_rowwise"),
    *("grouped_mm", "grouped_mm_few_experts", "grouped_mm_columns", "grouped_mm_k"),
    *("grouped_mm_batch", "grouped_linear", "grouped_gated_linear", "grouped_gated_linear_pair"),
    *("grouped_gated_linear_halves", "moe_rows"),
    *("conv2d", "conv2d_relu_residual", "conv2d_grouped", "conv3d", "conv_transpose2d"),
    "scaled_conv2d",
)


@pytest.mark.parametrize("name", OPS)
def test_op(cutwheel: ModuleType, outcomes: Outcomes, name: str) -> None:
    failures, count = outcomes[name][:-1], int(outcomes[name][-1])
    assert count > 4
    assert not failures, f"{len(failures)} of {count} placements:\n" + "\n".join(failures[:3])


PLANS = (
    *("linear", "shared input", "torchs styles", "gated mlp", "experts", "scaled linear"),
    *("fsdp2 in mixed precision", "checkpoints", "example", "ddp", "tensor parallelism in fsdp2"),
    *("exchanged experts", "overlap", "overlap by memory"),
)


@pytest.mark.parametrize("name", PLANS)
def test_plan(cutwheel: ModuleType, outcomes: Outcomes, name: str) -> None:
    failures = outcomes[f"plan {name}"]
    assert not failures, failures[0]


@pytest.mark.parametrize("first", ["cutwheel", "torch.distributed.tensor"])
def test_strategies_come_with_dtensor(cutwheel: ModuleType, first: str) -> None:
    """Whichever is imported first; cutwheel alone imports no DTensor."""
    code = f"""
import sys, {first}
is_there = "torch.distributed.tensor" in sys.modules
assert is_there == ({first!r} != "cutwheel")
finders = len(sys.meta_path)
import cutwheel, torch.distributed.tensor
from torch.distributed.tensor import DTensor
from cutwheel.ops._common import sharding
strategies = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
assert sharding.calls is not None and torch.ops.cutwheel.mm.default in strategies
assert len(sys.meta_path) == finders - (not is_there)
assert type(torch.distributed.tensor.__loader__).__name__ == "SourceFileLoader"
assert "exec_module" not in vars(torch.distributed.tensor.__loader__)
"""
    folder = Path(str(cutwheel.__file__)).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_every_op_has_a_layout(cutwheel: ModuleType) -> None:
    """But for those that write into their arguments."""
    from cutwheel.ops._sharding._layouts import LAYOUTS

    lock = json.loads((Path(__file__).parents[1] / "schemas.lock").read_text())
    ops = {op for op in lock["ops"] if not op.startswith("_") and not op.endswith(".out")}
    assert ops - {"grouped_mm_accumulate"} == {*LAYOUTS}


def test_every_op_is_listed(cutwheel: ModuleType, outcomes: Outcomes) -> None:
    assert {*outcomes} - {"seconds"} == {*OPS, *(f"plan {name}" for name in PLANS)}
