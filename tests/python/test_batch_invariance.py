"""The mode batch_invariant(): its switches, and which kernels it leaves to choose from."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from selection import (
    A1X128_B128X128,
    A100,
    BF16,
    COLUMN,
    DGRAD,
    E4M3,
    F16,
    F32,
    FPROP,
    H200,
    L40S,
    MATRIX,
    NONE,
    ROW,
    ROWS,
    RTX3090,
    S8,
    TF32,
    VECTOR,
    WGRAD,
    Gpu,
    explain,
    needs_all,
)

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

MS = (1, 2, 7, 8, 16, 33, 64, 100, 128, 200, 256, 511, 1024, 3000, 4096, 16384, 100000)


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    cutwheel.set_batch_invariant(False)
    assert not cutwheel.is_batch_invariant()


# ---- switches ------------------------------------------------------------------------------------


def is_on_in_the_library() -> bool:
    return "batch_invariant" in explain(H200, 64, 512, 512)["request"]


def test_blocks_nest_and_leave_what_is_set() -> None:
    assert not is_on_in_the_library()
    with cutwheel.batch_invariant():
        with cutwheel.batch_invariant():
            assert cutwheel.is_batch_invariant()
            assert is_on_in_the_library()
        assert is_on_in_the_library()
        cutwheel.set_batch_invariant(True)
    assert is_on_in_the_library()
    cutwheel.set_batch_invariant(False)
    assert not is_on_in_the_library()


def test_an_open_block_outlasts_the_setting() -> None:
    with cutwheel.batch_invariant():
        cutwheel.set_batch_invariant(False)
        assert is_on_in_the_library()
    assert not is_on_in_the_library()


def test_an_error_closes_the_block() -> None:
    with pytest.raises(KeyError), cutwheel.batch_invariant():
        raise KeyError
    assert not is_on_in_the_library()


def test_it_decorates() -> None:
    @cutwheel.batch_invariant()
    def inside() -> bool:
        return is_on_in_the_library()

    assert inside()
    assert not is_on_in_the_library()


def test_threads_share_it() -> None:
    """Of several blocks the last to close ends it."""
    entered, leave, seen = threading.Barrier(5), threading.Event(), []

    def work() -> None:
        with cutwheel.batch_invariant():
            entered.wait()
            leave.wait()
            seen.append(is_on_in_the_library())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    entered.wait()
    assert is_on_in_the_library()
    leave.set()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4
    assert not is_on_in_the_library()


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_it_takes_a_bool(value: Any) -> None:
    with pytest.raises(TypeError, match=r"enabled is of type .*; expected a bool"):
        cutwheel.set_batch_invariant(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "False"),
        ("", "False"),
        ("0", "False"),
        ("1", "True"),
        ("on", 'CUTWHEEL_BATCH_INVARIANT is "on"; expected 1 or 0'),
    ],
)
def test_the_environment(value: str | None, text: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "CUTWHEEL_BATCH_INVARIANT"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if value is not None:
        environment["CUTWHEEL_BATCH_INVARIANT"] = value
    code = "import cutwheel; print(cutwheel.is_batch_invariant())"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert text in (ran.stderr if text.startswith("CUTWHEEL") else ran.stdout)


def test_compiled_code_follows_it_without_being_traced_again(cpu_ops: Any) -> None:
    traces = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        traces.append(graph)
        return graph.forward

    compiled = torch.compile(
        lambda a, b: cutwheel.mm(a, b) + is_on(a), backend=backend, fullgraph=True
    )
    a = torch.randn(8, 8, dtype=torch.bfloat16)
    compiled(a, a.clone())
    with cutwheel.batch_invariant():
        compiled(a, a.clone())
    assert len(traces) == 1


def is_on(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sum()


# ---- what torch would compute --------------------------------------------------------------------


@pytest.mark.parametrize("op", ["mm", "bmm", "addmm", "linear", "gemm"])
def test_float32_without_tf32_is_refused(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        shape = (2, 16, 16) if op == "bmm" else (16, 16)
        a = torch.empty(shape, device="meta")
        operands = {"addmm": (a, a, a), "gemm": (a, a, "plain")}.get(op, (a, a))
        getattr(cutwheel, op)(*operands)
        text = rf"{op}: batch_invariant\(\) is on, and torch would compute this call.*forbids TF32"
        with cutwheel.batch_invariant(), pytest.raises(NotImplementedError, match=text):
            getattr(cutwheel, op)(*operands)
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_transform_is_refused() -> None:
    a = torch.empty(16, 16, device="meta", dtype=torch.bfloat16)
    text = r"linear: batch_invariant\(\) is on, .*a transform of torch.func"
    with cutwheel.batch_invariant(), pytest.raises(NotImplementedError, match=text):
        torch.func.jvp(lambda x: cutwheel.linear(x, a), (a,), (a,))


def test_a_convolution_by_torch_is_refused() -> None:
    x = torch.randn(1, 8, 9, 9, dtype=torch.float64)
    text = r"conv2d: batch_invariant\(\) is on, .*input has dtype float64"
    with cutwheel.batch_invariant(), pytest.raises(NotImplementedError, match=text):
        cutwheel.conv2d(x, torch.randn(8, 8, 3, 3, dtype=torch.float64))


# ---- the choice of kernels -----------------------------------------------------------------------

_GELU = {"epilogue": "bias_gelu"}
KINDS: list[tuple[Gpu, dict[str, Any]]] = [
    *((gpu, {"a": a}) for gpu in (H200, A100, RTX3090, L40S) for a in (BF16, F16, TF32)),
    *((H200, {"addend": addend}) for addend in (VECTOR, MATRIX)),
    *((H200, {"d": F32, "addend": addend}) for addend in (NONE, VECTOR, MATRIX)),
    *((H200, {"layout_a": x, "layout_b": y}) for x in (ROW, COLUMN) for y in (ROW, COLUMN)),
    *((gpu, _GELU) for gpu in (H200, A100, L40S)),
    *(
        (gpu, {"a": E4M3, "d": BF16, "epilogue": "scaled", "fast_accum": fast})
        for gpu in (H200, L40S)
        for fast in (False, True)
    ),
    *(
        (gpu, {"a": E4M3, "d": BF16, "epilogue": "block_bias", "scales": A1X128_B128X128})
        for gpu in (H200, L40S)
    ),
    *((gpu, {"a": S8, "d": BF16, "epilogue": "scaled"}) for gpu in (H200, A100)),
    *((gpu, {"grouping": ROWS, "groups": 8}) for gpu in (H200, A100)),
]


@needs_all
@pytest.mark.parametrize(("gpu", "options"), KINDS, ids=str)
def test_one_order_whatever_the_batch(gpu: Gpu, options: dict[str, Any]) -> None:
    """Of all M, N and K, alignments too: there is a kernel for each, and none splits K."""
    orders, tiles = set(), set()
    with cutwheel.batch_invariant():
        for n, k in ((4096, 4096), (64, 8192), (128, 512), (32, 96), (8192, 1024)):
            for m in MS:
                found = explain(gpu, m, n, k, **options)
                assert found["request"]["batch_invariant"] is True
                plans = found["plans"]
                assert plans, f"nothing for M={m} N={n} K={k}"
                orders |= {plan["summation"] for plan in plans}
                tiles.add(plans[0]["row"])
                assert {plan["splits"] for plan in plans} == {1}
    assert len(orders) == 1
    has_one = "grouping" in options or (options.get("a") == TF32 and gpu is H200)
    assert len(tiles) > 1 or has_one  # M still chooses among them


@needs_all
def test_unaligned_operands_have_kernels_of_the_order() -> None:
    aligned = explain(H200, 64, 512, 512)["plans"][0]["summation"]
    with cutwheel.batch_invariant():
        for which in ("a", "b", "ab", "d", "bd"):
            plans = explain(H200, 64, 512, 512, unaligned=which)["plans"]
            assert {plan["summation"] for plan in plans} == {aligned}, which


@needs_all
def test_split_kernels_are_rejected_with_a_reason() -> None:
    shape = 64, 128, 16384
    assert any(".cluster" in plan["summation"] for plan in explain(H200, *shape)["plans"])
    with cutwheel.batch_invariant():
        found = explain(H200, *shape)
    reasons = {x["reason"] for x in found["rejected"] if "cluster" in x["reason"]}
    text = "batch_invariant() is on and asks for sums in the order wgmma.k16, its own is wgmma.k16."
    assert f"{text}cluster2x64" in reasons
    assert any(reason.startswith(f"{text}cluster4x128.rows") for reason in reasons)


@needs_all
def test_what_no_kernel_computes_is_rejected_for_that_reason() -> None:
    """An epilogue that no kernel of these types has, not an order that nobody asked for."""
    options: dict[str, Any] = {"d": F32, "epilogue": "gated_silu"}
    before = explain(H200, 64, 512, 512, **options)
    with cutwheel.batch_invariant():
        found = explain(H200, 64, 512, 512, **options)
    assert found["plans"] == before["plans"] == []
    assert found["rejected"] == before["rejected"]
    assert any("epilogue" in x["reason"] for x in found["rejected"])


@needs_all
def test_a_thin_kernel_is_none_of_them() -> None:
    def orders() -> set[str]:
        return {plan["summation"] for plan in explain(H200, 200000, 64, 64)["plans"]}

    assert "wgmma.k16.thin" in orders()
    with cutwheel.batch_invariant():
        assert orders() == {"wgmma.k16"}


@needs_all
@pytest.mark.parametrize("gpu", [H200, A100])
def test_a_long_k_is_cut_at_places_of_its_own(gpu: Gpu) -> None:
    """Longer sums are less accurate in one accumulator; the parts depend on K alone."""
    k = 600_000
    with cutwheel.batch_invariant():
        cuts = set()
        for m in MS[:12]:
            plans = explain(gpu, m, 512, k)["plans"]
            rows = {kernel.name: kernel for kernel in cutwheel.kernels()}
            for plan in plans:
                tile_k = rows[plan["row"]].tile[2]
                share = -(-k // 3)
                cuts.add((plan["splits"], -(-share // tile_k) * tile_k))
    assert len(cuts) == 1
    assert cuts.pop()[0] == 3


@needs_all
@pytest.mark.parametrize("direction", [FPROP, DGRAD])
def test_a_weights_gradient_is_chosen_as_ever(direction: str) -> None:
    """Its K is the batch: there is no row to keep."""
    options: dict[str, Any] = {"direction": WGRAD, "taps": 9, "layout_a": COLUMN, "layout_b": ROW}
    before = explain(H200, 64, 576, 200000, **options)["plans"]
    with cutwheel.batch_invariant():
        assert explain(H200, 64, 576, 200000, **options)["plans"] == before
        assert explain(H200, 3136, 64, 576, direction=direction, taps=9)["plans"]


def test_kernels_tell_their_order() -> None:
    first = {kernel.summation.split(".")[0] for kernel in cutwheel.kernels() if kernel.summation}
    assert first <= {"mma", "wgmma", "exact"}
