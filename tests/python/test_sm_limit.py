"""sm_limit(): its switches, torch's carveout, and what is chosen for the SMs that are left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from selection import H200, explain, needs_all

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")
from cutwheel.ops._common import sm_limit as module  # noqa: E402

get_carveout = getattr(torch._C, "_get_sm_carveout_experimental", None)
set_carveout = getattr(torch._C, "_set_sm_carveout_experimental", None)


@pytest.fixture(autouse=True)
def off() -> Iterator[None]:
    yield
    cutwheel.set_sm_limit(None)
    assert cutwheel.get_sm_limit() is None


def predicted_us(m: int = 16384) -> float:
    """Of the best kernel for many tiles: fewer SMs take longer."""
    return float(explain(H200, m, 4096, 4096)["plans"][0]["predicted_us"])


def test_the_cost_model_counts_the_sms_that_are_left() -> None:
    every = predicted_us()
    with cutwheel.sm_limit(66):
        half = predicted_us()
    assert 1.6 * every < half < 2.4 * every
    assert predicted_us() == every


def test_more_sms_than_there_are_change_nothing() -> None:
    every = predicted_us()
    with cutwheel.sm_limit(1000):
        assert predicted_us() == every


def test_the_lowest_limit_holds() -> None:
    cutwheel.set_sm_limit(100)
    with cutwheel.sm_limit(120):
        assert cutwheel.get_sm_limit() == 100
        with cutwheel.sm_limit(66), cutwheel.sm_limit(80):
            assert cutwheel.get_sm_limit() == 66
        assert cutwheel.get_sm_limit() == 100
        cutwheel.set_sm_limit(None)
        assert cutwheel.get_sm_limit() == 120
    assert cutwheel.get_sm_limit() is None


def test_an_error_closes_the_block() -> None:
    with pytest.raises(KeyError), cutwheel.sm_limit(66):
        raise KeyError
    assert cutwheel.get_sm_limit() is None


def test_it_decorates() -> None:
    @cutwheel.sm_limit(66)
    def inside() -> float:
        return predicted_us()

    assert inside() > 1.6 * predicted_us()


def test_threads_share_it() -> None:
    seen: list[int | None] = []
    with cutwheel.sm_limit(66):
        thread = threading.Thread(target=lambda: seen.append(cutwheel.get_sm_limit()))
        thread.start()
        thread.join()
    assert seen == [66]


@pytest.mark.parametrize("value", [1.0, "66", True])
def test_it_takes_an_int(value: Any) -> None:
    with pytest.raises(TypeError, match=r"set_sm_limit: sms is of type .*; expected an int"):
        cutwheel.set_sm_limit(value)
    with pytest.raises(TypeError, match=r"sm_limit: sms is of type .*; expected an int"):
        cutwheel.sm_limit(value)
    with pytest.raises(TypeError, match="expected an int"):
        cutwheel.sm_limit(None)


@pytest.mark.parametrize("value", [0, -4])
def test_it_takes_at_least_one(value: int) -> None:
    with pytest.raises(ValueError, match=rf"set_sm_limit: sms is {value}; expected at least 1"):
        cutwheel.set_sm_limit(value)
    with pytest.raises(ValueError, match=rf"sm_limit: sms is {value}; expected at least 1"):
        cutwheel.sm_limit(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        ("", "None"),
        ("116", "116"),
        ("0", 'CUTWHEEL_SM_LIMIT is "0"; expected a number of SMs'),
        ("-3", 'CUTWHEEL_SM_LIMIT is "-3"; expected a number of SMs'),
        ("all", 'CUTWHEEL_SM_LIMIT is "all"; expected a number of SMs'),
    ],
)
def test_the_environment(value: str | None, text: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != module.VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if value is not None:
        environment[module.VARIABLE] = value
    code = "import cutwheel; print(cutwheel.get_sm_limit())"
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert text in ran.stdout + ran.stderr


@pytest.mark.skipif(set_carveout is None, reason="this torch has no SM carveout")
def test_torchs_carveout_is_followed() -> None:
    assert module.follow_torch()
    assert get_carveout() is None
    every = predicted_us()
    try:
        set_carveout(66)
        assert predicted_us() > 1.6 * every
        with cutwheel.sm_limit(33):
            assert predicted_us() > 3 * every
        set_carveout(0)
        assert predicted_us() == every
    finally:
        set_carveout(None)
    assert predicted_us() == every


@pytest.mark.skipif(set_carveout is None, reason="this torch has no SM carveout")
@pytest.mark.parametrize("what", ["missing", "other"])
def test_a_torch_without_that_function_is_left_alone(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing, or of another type than its name says."""

    class Other:
        def __init__(self, *given: Any, **options: Any) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            if what == "missing":
                raise AttributeError(name)

            def function(*given: Any) -> int:
                return 1 << 32 | 77

            return function

    told: list[Any] = []
    monkeypatch.setattr(module.ctypes, "CDLL", Other)
    monkeypatch.setattr(module, "_ops", type("Ops", (), {"_set_sm_carveout_source": told.append}))
    assert not module.follow_torch()
    assert not told
    assert get_carveout() is None


@needs_all
@pytest.mark.parametrize("shape", [(200704, 24, 40), (4096, 4096, 4096)])
def test_all_kernels_of_hopper_can_be_limited(shape: tuple[int, int, int]) -> None:
    rows = {row["name"]: row for row in json.loads(torch.ops.cutwheel._kernels())}
    with cutwheel.sm_limit(116):
        plans = explain(H200, *shape)["plans"]
    assert plans
    assert {rows[plan["row"]]["family"] for plan in plans} <= PERSISTENT


# Their grids are what launches ask for: as many threadblocks as SMs.
PERSISTENT = {"thin", "sm90_persistent", "sm90_unaligned", "sm90_warpspecialized"}
