"""Measurement for the tuner, the benchmarks and the tests: no GPU is needed."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

from cutwheel.tuning import measure
from cutwheel.tuning.measure import Error, Operands, Spread, tolerance

MIB = 1 << 20
CPU = Operands(torch.device("cpu"), 60 * MIB)


# ---- how often


def test_quantiles_interpolate() -> None:
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (spread.median, spread.p20, spread.p80) == (3.5, 2.0, 5.0)
    assert Spread.of([3.0, 1.0, 2.0, 100.0]).median == 2.5
    assert Spread.of([0.0, 10.0]).p20 == pytest.approx(2.0)
    assert spread.scaled(2.0) == Spread(7.0, 4.0, 10.0)


@pytest.mark.parametrize("most", [128, 1024])
@pytest.mark.parametrize("buffer", [100, 3 * MIB, 33 * MIB, 60 * MIB, 120 * MIB, 1000 * MIB])
def test_rotation_exceeds_twice_the_l2_between_two_uses(buffer: int, most: int) -> None:
    buffers = measure.rotation(buffer, 60 * MIB, most)
    assert buffers >= 2
    assert buffers == most or (buffers - 1) * buffer > 120 * MIB
    assert buffers in (2, most) or (buffers - 2) * buffer <= 120 * MIB


@pytest.mark.parametrize(("of_replay", "most"), [(2e-3, 2000), (5e-4, 128)])
@pytest.mark.parametrize("seconds", [1e-7, 1e-6, 4e-6, 50e-6, 1e-3, 10e-3])
@pytest.mark.parametrize("buffers", [2, 5, 31, 1024])
def test_iterations_are_whole_rotations_near_the_target(
    seconds: float, buffers: int, of_replay: float, most: int
) -> None:
    count = measure.iterations(seconds, buffers, of_replay, most)
    assert count % buffers == 0
    assert count >= buffers
    wanted = min(of_replay / seconds, most)
    assert count == buffers or abs(count - wanted) <= buffers / 2 + 1


def test_what_cannot_be_rotated_or_repeated_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes_per_buffer is 0"):
        measure.rotation(0, MIB)
    with pytest.raises(ValueError, match="expected a positive number"):
        measure.iterations(0.0, 3, 2e-3, 2000)


def test_turns_alternate() -> None:
    order: list[str] = []

    class Timed:
        def __init__(self, name: str, each: float) -> None:
            self.name, self.each = name, each

        def seconds(self) -> float:
            order.append(self.name)
            return self.each

    found = measure.in_turns({"a": Timed("a", 4.0), "b": Timed("b", 2.0)}, 3)  # type: ignore[dict-item]
    assert found == {"a": [4.0] * 3, "b": [2.0] * 3}
    assert order == ["a", "b"] * 3


# ---- checks


def test_a_result_may_err_twice_as_much_as_torchs_plus_a_floor() -> None:
    expected = torch.randn(64, 64)
    small, large = (Error.of(expected * (1 + e), expected) for e in (0.003, 0.05))
    allowed = tolerance(Error(0.002, 0.01), torch.bfloat16)
    assert allowed.relative == pytest.approx(2 * 0.002 + 2**-8)
    assert small.within(allowed)
    assert not large.within(allowed)
    assert tolerance(None, torch.float32).relative == 4 * 2**-10
    nothing = tolerance(Error(math.nan, math.nan), torch.bfloat16)
    assert nothing == tolerance(None, torch.bfloat16)  # not a limit that nothing keeps


@pytest.mark.parametrize("value", [float("nan"), 1000.0])
def test_a_single_wrong_element_is_seen(value: float) -> None:
    expected = torch.randn(512, 512)
    result = expected.clone()
    result[3, 5] = value
    assert not Error.of(result, expected).within(Error(0.01, 0.2))


def test_a_single_wrong_element_does_not_hide_in_the_norm() -> None:
    expected = torch.randn(2048, 2048)
    result = expected.clone()
    result[3, 5] += 2.0
    error = Error.of(result, expected)
    assert error.relative < 0.01
    assert not error.within(Error(0.01, 0.2))


def test_blocks_of_rows_change_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = torch.randn(50, 4, 10) * 1e4
    whole = Error.of(expected * 1.01, expected)
    assert whole.relative == pytest.approx(0.01, rel=1e-3)
    monkeypatch.setattr(measure, "CHUNK_BYTES", 24 * 10 * 7)
    by_blocks = Error.of(expected * 1.01, expected)
    assert (by_blocks.relative, by_blocks.worst) == pytest.approx((whole.relative, whole.worst))
    x, w = torch.randn(50, 8), torch.randn(8, 3)
    monkeypatch.setattr(measure, "CHUNK_BYTES", 8 * 11 * 7)
    torch.testing.assert_close(measure.matmul(x, w), x @ w)


def test_what_cannot_be_compared_is_refused() -> None:
    expected = torch.randn(3, 4)
    with pytest.raises(ValueError, match="all zeros"):
        Error.of(expected, torch.zeros_like(expected))
    with pytest.raises(ValueError, match=r"shape \(4, 3\); expected \(3, 4\)"):
        Error.of(expected.t(), expected)


def test_nan_is_the_largest_error() -> None:
    found = Error.largest([Error(0.1, 2.0), Error(float("nan"), 1.0)])
    assert found.relative != found.relative
    assert found.worst == 2.0


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, measure.E4M3, torch.float8_e5m2, torch.int32]
)
def test_poison_is_no_result(dtype: torch.dtype) -> None:
    x = torch.zeros(4, 4, dtype=dtype)
    measure.poison(x)
    far = measure.wide(x)
    assert (far.isnan() | (far < -1e8)).all()


# ---- operands


def test_operands_are_random_and_as_wide_as_they_say() -> None:
    x = CPU.normal(256, 256, scale=0.5)
    assert (x.dtype, round(x.float().std().item(), 1)) == (torch.bfloat16, 0.5)
    image = CPU.channels_last(2, 16, 9, 8)
    assert image.is_contiguous(memory_format=torch.channels_last)
    for dtype in (measure.E4M3, torch.int8):
        values = CPU.eight_bits(128, 256, dtype=dtype)
        assert values.dtype == dtype
        assert 20 < values.float().std() < 28
        assert values.float().abs().max() <= measure.LARGEST[dtype]
    scales = CPU.scales(100)
    assert set(scales.log2().tolist()) <= {-8.0, -7.0, -6.0, -5.0, -4.0}


@pytest.mark.parametrize("recipe", [(1, 1), (48, 1), (48, 3), (1, 3)])
def test_scales_are_spread_over_their_groups(recipe: tuple[int, int]) -> None:
    values, scales = torch.randn(48, 300), CPU.scales(*recipe)
    found = measure.scaled(values, scales)
    for row, column in ((0, 0), (47, 127), (5, 128), (20, 299)):
        scale = scales[row if recipe[0] > 1 else 0, column // 128 if recipe[1] > 1 else 0]
        assert found[row, column] == values[row, column] * scale
    assert measure.scaled(torch.ones(300, 4), torch.arange(3.0)[:, None])[:, 0].tolist() == (
        [0.0] * 128 + [1.0] * 128 + [2.0] * 44
    )


def test_groups_have_their_rows() -> None:
    assert measure.spans([2, 2, 7]) == [(0, 2), (2, 2), (2, 7)]
    assert CPU.ends([2, 2, 7]).dtype == torch.int32
