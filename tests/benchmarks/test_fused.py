"""The fused benchmarks' own logic, on the CPU with synthetic timings: no GPU is needed."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
from synthetic_clock import SyntheticClock

from benchmarks import fused, harness, options, plan, record, session, shapes, sides

SHAPE = shapes.GemmShape(48, 40, 64)


def our_library(**changed: Any) -> sides.Library:
    """torch's results under our name, with an auxiliary store."""

    def linear_aux(x: Any, w: Any, b: Any) -> tuple[Any, Any]:
        z = torch.nn.functional.linear(x, w, b)
        return torch.nn.functional.gelu(z), z

    made = dataclasses.replace(sides.library("torch"), name="ours", linear_aux=linear_aux)
    return dataclasses.replace(made, **changed)


def setting(library: sides.Library | None = None, **changed: Any) -> fused.Setting:
    made = fused.Setting(SHAPE, torch.device("cpu"), 8000, library or our_library())
    return dataclasses.replace(made, **changed)


def compare(made: session.Made, *each: float) -> harness.Measurement:
    return harness.compare(made.case, SyntheticClock(*each or (2e-3,)), plan.Limits(), 0.1)


def measured(group: str, **changed: Any) -> dict[str, Any]:
    made = fused.GROUPS[group](setting(**changed))
    return session.row(shapes.ProductJob(group, SHAPE), made, compare(made))


# --- several baselines


def simple_case(**calls: Any) -> harness.Case:
    x = [torch.randn(6, 8) for _ in range(3)]
    made = [harness.Side(name, lambda i, call=call: call(x[i])) for name, call in calls.items()]
    return harness.Case(made, 3, lambda i: 2 * x[i], 1e-5)


def run(case: harness.Case, *each: float) -> harness.Measurement:
    return harness.compare(case, SyntheticClock(*each), plan.Limits(), 0.2)


def refuse(x: Any) -> Any:
    raise RuntimeError("no such kernel\nand advice")


def test_the_last_side_is_compared_with_each_other() -> None:
    case = simple_case(a=lambda x: 2 * x, b=lambda x: x + x, ours=lambda x: x * 2)
    found = run(case, 30e-6, 10e-6, 20e-6)
    assert found.status == "ok"
    assert {pair: ratio.median for pair, ratio in found.ratios.items()} == pytest.approx(
        {("ours", "a"): 1.5, ("ours", "b"): 0.5}
    )


@pytest.mark.parametrize("bad", [refuse, lambda x: 2.1 * x])
def test_a_baseline_that_fails_is_left_out(bad: Any) -> None:
    right = simple_case(a=lambda x: 2 * x, b=bad, ours=lambda x: 2 * x)
    found = run(right, 30e-6, 10e-6, 20e-6)
    assert found.status == "ok"
    assert list(found.ratios) == [("ours", "a")]
    assert found.reason.startswith("b: ")
    assert "advice" not in found.reason


def test_without_a_baseline_or_a_candidate_the_case_fails() -> None:
    only = run(simple_case(a=refuse, ours=lambda x: 2 * x), 1e-5)
    assert (only.status, only.ratios) == ("failed", {})
    wrong = run(simple_case(a=lambda x: 2 * x, ours=lambda x: 3 * x), 1e-5)
    assert wrong.status == "failed"
    assert wrong.reason.startswith("ours: wrong result")


def test_what_is_not_written_again_is_found() -> None:
    """Results that replays leave as they were are poisoned."""
    case = simple_case(a=lambda x: 2 * x, ours=lambda x: 2 * x)
    clock = SyntheticClock(1e-5)
    record_call = clock.record

    def stale(call: Any, slots: int, iterations: int) -> Any:
        replay = record_call(call, slots, iterations)
        replay.run = lambda: None
        return replay

    clock.record = stale
    assert harness.compare(case, clock, plan.Limits(), 0.2).status == "failed"


def test_tuples_are_checked_whole() -> None:
    case = simple_case(a=lambda x: (2 * x, x + 0), ours=lambda x: (2 * x, 1.5 * x))
    case = dataclasses.replace(case, reference=lambda i: case.sides[0].call(i))
    found = run(case, 1e-5)
    assert found.reason.startswith("ours: wrong result")


# --- groups


@pytest.mark.parametrize("group", fused.GROUPS)
def test_every_group_runs_and_is_right(group: str) -> None:
    row = measured(group)
    assert (row["status"], row["reason"]) == ("ok", "")
    assert all(side["relative_error"] < 0.02 for side in row["sides"].values())
    assert row["ratios"]
    assert row["slots"] >= 2
    json.dumps(record.plain(row), allow_nan=False)


def test_what_is_compared() -> None:
    pairs = {
        group: {(ratio["side"], ratio["baseline"]) for ratio in measured(group)["ratios"]}
        for group in fused.GROUPS
    }
    assert pairs["bias_gelu"] == {
        ("ours gelu", "eager"),
        ("ours gelu", "addmm_activation"),
        ("ours gelu_tanh", "addmm_activation"),
    }
    assert pairs["training_gelu"] == pairs["gated_silu"] == {("ours", "eager")}
    names = {"relu", "gelu", "gelu_tanh", "silu", "residual", "gelu, z stored"}
    assert pairs["overhead"] == {(name, "bias") for name in names}
    forms = {
        (ratio["side"], ratio["baseline"]): ratio.get("form")
        for ratio in measured("bias_gelu")["ratios"]
    }
    assert forms == {
        ("ours gelu", "eager"): None,
        ("ours gelu", "addmm_activation"): "gelu_tanh",
        ("ours gelu_tanh", "addmm_activation"): None,
    }


def test_least_traffic() -> None:
    m, n, k = SHAPE.m, SHAPE.n, SHAPE.k
    moved = {
        "bias_gelu": m * k + n * k + m * n,
        "bias_residual": m * k + n * k + 2 * m * n,
        "gated_silu": m * k + 2 * n * k + m * n,
        "training_gelu": 2 * (m * k + n * k + m * n),
    }
    for group, elements in moved.items():
        products = {"gated_silu": 2, "training_gelu": 3}.get(group, 1)
        found = measured(group)["flops_per_byte"]
        assert found == pytest.approx(products * 2 * m * n * k / (2 * elements)), group


# --- torch.compile within its budget


def made_with(budget: plan.CompileBudget, group: str, at: Any, compiled: Any) -> session.Made:
    fused.compiled, before = compiled, fused.compiled
    try:
        return fused.make(shapes.ProductJob(group, SHAPE), setting(), at, budget)
    finally:
        fused.compiled = before


def test_compile_where_it_is_asked_for() -> None:
    budget = plan.CompileBudget(100.0, 3)
    for group, at, expected in (
        ("bias_gelu", {SHAPE}, True),
        ("gated_silu", None, True),
        ("bias_residual", set(), False),
        ("training_gelu", None, False),
    ):
        made = made_with(budget, group, at, lambda function: function)
        assert ("compile" in {side.name for side in made.case.sides}) == expected, group
        assert made.refused == ""


def test_what_the_budget_leaves_out_is_named() -> None:
    budget = plan.CompileBudget(100.0, 4)
    made_with(budget, "bias_gelu", None, lambda function: function)
    budget.add(60.0)
    made = made_with(budget, "bias_gelu", None, lambda function: function)
    assert "compile" not in {side.name for side in made.case.sides}
    assert made.refused == "compile: left out, its 100 s were used up"
    row = session.row(shapes.ProductJob("bias_gelu", SHAPE), made, compare(made))
    assert (row["status"], row["reason"]) == ("ok", made.refused)


def test_only_the_first_call_is_taken_for_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 17.0])
    monkeypatch.setattr(fused.time, "monotonic", lambda: next(now))
    budget = plan.CompileBudget(100.0, 4)
    call = fused.timed(lambda x: x + 1, budget)
    assert (call(1), call(2)) == (2, 3)
    assert budget.used == 7.0


@pytest.mark.parametrize("group", fused.COMPILED)
def test_compile_is_one_more_baseline(group: str) -> None:
    row = measured(group, compiled=lambda function: function)
    assert "compile" in {ratio["baseline"] for ratio in row["ratios"]}
    row = measured(group, compiled=lambda function: lambda *operands: refuse(operands))
    assert row["status"] == "ok"
    assert row["reason"] == "compile: RuntimeError: no such kernel"


def test_errors_of_torch_compile_are_runtime_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_assertion(*operands: Any) -> Any:
        raise AssertionError("inside the compiler")

    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with pytest.raises(RuntimeError, match="AssertionError: inside the compiler"):
        sides.compiled(raise_assertion)(torch.ones(1))


def without_activation(x: Any, w: Any, b: Any, activation: Any = None, residual: Any = None) -> Any:
    return sides.eager_linear(x, w, b, None, residual)


def without_residual(x: Any, w: Any, b: Any, activation: Any = None, residual: Any = None) -> Any:
    return sides.eager_linear(x, w, b, activation)


@pytest.mark.parametrize(
    ("group", "linear"),
    [
        ("bias_gelu", without_activation),
        ("bias_residual", without_residual),
        ("training_gelu", without_activation),
        ("overhead", without_activation),
        ("overhead", without_residual),
    ],
)
def test_a_wrong_formula_is_a_failure(group: str, linear: Any) -> None:
    row = measured(group, library=our_library(linear=linear))
    assert row["status"] == "failed"
    assert "wrong result" in row["reason"]


def test_swapped_halves_of_a_gated_layer_are_a_failure() -> None:
    swapped = our_library(gated=lambda x, packed, gate, up: sides.eager_gated(x, up, gate))
    assert measured("gated_silu", library=swapped)["status"] == "failed"


def test_gated_layers_that_take_too_much_memory_are_skipped() -> None:
    big = shapes.GemmShape(16384, 57344, 8192)
    assert fused.gated_bytes(big, 2, 2) > fused.MOST_BYTES > fused.gated_bytes(SHAPE, 9, 3)
    with pytest.raises(fused.SkippedError, match="GB"):
        fused.gated_silu(setting(shape=big))


def test_the_form_of_addmm_activation_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    for form in ("gelu", "gelu_tanh"):
        monkeypatch.setattr(
            sides,
            "addmm_activation",
            lambda x, w, b, form=form: sides.eager_linear(x, w, b, form),
        )
        assert sides.form_of_addmm_activation("cpu") == form


# --- shapes, sessions, reports


def test_shapes_of_the_fused_benchmarks() -> None:
    table = shapes.load()
    everything = shapes.fused_shapes(table)
    assert len(everything) == 5 * 13
    assert shapes.compiled_shapes(table, None) <= set(everything)
    assert len(shapes.compiled_shapes(table, None)) == 8
    assert shapes.fused_shapes(table, m=[3], nk=[(5, 7)]) == [shapes.GemmShape(3, 5, 7)]
    assert len(shapes.fused_shapes(table, quick=True)) == 4
    assert shapes.compiled_shapes(table, ["all"]) is None
    assert shapes.compiled_shapes(table, ["none"]) == set()
    assert shapes.compiled_shapes(table, ["1x2x3"]) == {shapes.GemmShape(1, 2, 3)}
    with pytest.raises(ValueError, match="512x4096x14336"):
        shapes.compiled_shapes(table, ["1x2"])


def test_groups_of_the_command_are_those_of_the_module() -> None:
    assert list(options.GROUPS) == list(fused.GROUPS)
    given = options.parser().parse_args(["fused", "--groups", "bias_gelu", "--compile", "none"])
    assert (given.groups, given.compile) == (["bias_gelu"], ["none"])


class NamedJob(int):
    def fields(self) -> dict[str, Any]:
        return {"job": int(self)}


def test_a_session_goes_on_after_a_failure_and_stops_at_its_budget() -> None:
    def one(job: NamedJob, seconds: float) -> dict[str, Any]:
        if job == 1:
            raise ValueError("no\nadvice")
        return {"job": job, "status": "ok"}

    seen: list[int] = []
    jobs = [NamedJob(number) for number in range(3)]
    rows = session.run(jobs, one, plan.Limits(), progress=lambda rows: seen.append(len(rows)))
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    assert rows[1]["reason"] == "ValueError: no"
    assert rows[1]["job"] == 1
    assert seen == [1, 2, 3]
    late = session.run(jobs, one, plan.Limits(), budget_seconds=-1.0)
    assert [row["status"] for row in late] == ["skipped"] * 3


def test_cases_that_are_not_to_be_measured_are_skipped() -> None:
    def make(job: NamedJob) -> session.Made:
        raise session.SkippedError("takes 90 GB")

    (row,) = session.measure([NamedJob(0)], make, plan.Limits(), clock=SyntheticClock(1.0))
    assert (row["job"], row["status"], row["reason"]) == (0, "skipped", "takes 90 GB")
