"""A row of a result is the same bits in every batch, in the mode; and what that rests on: kernels
with one summation order give the same bits."""

from __future__ import annotations

import functools
import os
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from invariance_cases import (
    BRAIN,
    FP8,
    HALF,
    KINDS,
    SINGLE,
    Draw,
    differences,
    different,
)
from torch import Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.no_dispatch_mode]

DRAWS = int(os.environ.get("CUTWHEEL_TEST_DRAWS", "260"))


def check_draws(
    cutwheel: ModuleType,
    device: str,
    seed: int,
    draws: int,
    kinds: tuple[str, ...],
    *,
    may_lack: bool = False,
) -> None:
    draw, wrong, lacking = Draw(cutwheel, device, seed), [], 0
    for i in range(draws):
        try:
            case = draw.case(kinds[i % len(kinds)])
            if may_lack:
                case.run(*case.rows)
        except NotImplementedError:
            if not may_lack:
                raise
            lacking += 1
            continue
        with cutwheel.batch_invariant():
            found, counts = differences(case, draw.rng)
        values = found.tolist()
        if any(values):
            at = {m: bad for m, bad in zip(counts, values, strict=True) if bad}
            wrong.append(f"{case.text}: rows -> elements with other bits {at}")
    assert not wrong, f"{len(wrong)} of {draws}:\n" + "\n".join(wrong[:40])
    assert 2 * lacking <= draws


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_a_row_is_the_same_in_every_batch(
    cutwheel: ModuleType, device: str, seed: int, kind: str
) -> None:
    if kind == "volume" and torch.cuda.get_device_capability(device) != (9, 0):
        pytest.skip("volumes have kernels on compute capability 9.0 alone")
    share = KINDS.count(kind) / len(KINDS)
    check_draws(cutwheel, device, seed, max(4, round(DRAWS * share)), (kind,))


def test_outside_of_the_mode_rows_differ(cutwheel: ModuleType, device: str, seed: int) -> None:
    """The test above can fail: a small N and a long K are split where there are few rows."""
    draw, differing = Draw(cutwheel, device, seed), 0
    for n, k in ((128, 8192), (256, 16384), (512, 4096), (64, 6144)):
        case = draw.mm()
        w = draw.normal(n, k).t()
        case.rows, case.run = [draw.normal(2048, k)], lambda x, w=w: (cutwheel.mm(x, w, SINGLE),)
        differing += int(differences(case, draw.rng)[0].any())
        with cutwheel.batch_invariant():
            assert not differences(case, draw.rng)[0].any()
    assert differing > 0


@pytest.mark.parametrize("arch", ["sm80", "sm89"])
def test_through_ptx(
    cutwheel: ModuleType, device: str, seed: int, environment: Callable[..., None], arch: str
) -> None:
    environment(CUTWHEEL_ARCH=arch)
    if arch == "sm80":
        kinds: tuple[str, ...] = ("mm", "linear", "addmm", "gated", "grouped", "conv")
        check_draws(cutwheel, device, seed, 12, kinds)
    else:  # compute capability 8.9 has the kernels of sm80, too, for the epilogues that these lack
        kinds = ("mm", "linear", "addmm", "gated", "scaled")
        check_draws(cutwheel, device, seed, 20, kinds, may_lack=True)


# ---- equal keys, equal bits ----------------------------------------------------------------------


def unsplit(explanation: Any) -> list[str]:
    """The kernels that compute the call as a whole."""
    plans = [plan for plan in explanation.candidates if "reason" not in plan]
    return [plan["row"] for plan in plans if plan["reduce"] is None]


@functools.cache
def problems(cutwheel: ModuleType, device: str) -> dict[str, tuple[Any, ...]]:
    """Calls, each as (name of the function, arguments, keywords)."""
    draw = Draw(cutwheel, device, 3)
    m, n, k = 200, 384, 1536
    found: dict[str, tuple[Any, ...]] = {}
    for dtype in (BRAIN, HALF, SINGLE):
        name = str(dtype).removeprefix("torch.")
        x, w = draw.normal(m, k, dtype=dtype), draw.normal(n, k, dtype=dtype, scale=k**-0.5)
        c, bias = draw.normal(m, n, dtype=dtype), draw.normal(n, dtype=dtype)
        for layout, b in (("tnt", w.t()), ("ttt", w.t().contiguous())):
            found[f"mm {name} {layout}"] = ("mm", (x, b), {})
            found[f"mm {name} float32 {layout}"] = ("mm", (x, b, SINGLE), {})
        column = x.t().contiguous().t()
        found[f"mm {name} nnt"] = ("mm", (column, w.t()), {})
        found[f"addmm {name}"] = ("addmm", (c, x, w.t()), {"beta": 0.7, "alpha": -0.3})
        found[f"addmm {name} alpha"] = ("addmm", (c, x, w.t()), {"alpha": 0.3})
        found[f"addmm row {name}"] = ("addmm", (bias, x, w.t()), {})
        found[f"linear {name}"] = ("linear", (x, w, bias), {})
        for activation in ("relu", "gelu", "gelu_tanh", "silu"):
            how = {"activation": activation}
            found[f"linear {name} {activation}"] = ("linear", (x, w, bias), how)
        found[f"linear {name} residual"] = ("linear", (x, w, bias), {"residual": c})
        how = {"residual": c, "activation": "relu"}
        found[f"linear {name} residual relu"] = ("linear", (x, w, bias), how)
        if dtype != SINGLE:
            found[f"gated {name}"] = ("gated_linear", (x, w), {})
            odd = torch.empty(m * (k + 1) + 8, dtype=dtype, device=device)[1:]
            odd = odd.as_strided((m, k), (k + 1, 1)).copy_(x)
            found[f"mm {name} unaligned"] = ("mm", (odd, w.t()), {})
        thin = draw.normal(m, 96, dtype=dtype), draw.normal(64, 96, dtype=dtype).t()
        found[f"mm {name} thin"] = ("mm", thin, {})
        ends = torch.tensor([37, 37, 100, m], dtype=torch.int32, device=device)
        weights = draw.normal(4, n, k, dtype=dtype, scale=k**-0.5)
        found[f"grouped {name}"] = ("grouped_mm", (x, weights.mT), {"offs": ends})
    x, w = draw.normal(m, k), draw.normal(n, k)
    for recipe, of_weight, dtype in (
        ("rowwise", "rowwise", FP8),
        ("tensorwise", "tensorwise", FP8),
        ("blockwise_1x128", "blockwise_128x128", FP8),
        ("blockwise_1x128", "blockwise_1x128", FP8),
        ("rowwise", "rowwise", torch.int8),
    ):
        a, of_a = cutwheel.quantize(x, recipe, dtype)
        b, of_b = cutwheel.quantize(w, of_weight, dtype)
        of_b = of_b if of_weight == "tensorwise" else of_b.t()
        for out in (BRAIN, SINGLE):
            for fast in (False, True):
                how = {"scale_b": of_b, "output_dtype": out, "use_fast_accum": fast}
                how |= {"scale_recipe_a": recipe, "scale_recipe_b": of_weight}
                key = f"scaled {dtype} {recipe} {of_weight} {out} {fast}"
                found[key] = ("scaled_mm", (a, b.t(), of_a), how)
    return found


_NAMES = [
    *(
        f"{op} {dtype}{rest}"
        for dtype in ("bfloat16", "float16", "float32")
        for op, rests in {
            "mm": (" tnt", " ttt", " float32 tnt", " float32 ttt", " nnt", " unaligned", " thin"),
            "addmm": ("", " alpha"),
            "addmm row": ("",),
            "linear": ("", " relu", " gelu", " gelu_tanh", " silu", " residual", " residual relu"),
            "gated": ("",),
            "grouped": ("",),
        }.items()
        for rest in rests
        if dtype != "float32" or (op != "gated" and rest != " unaligned")
    ),
    *(
        f"scaled {dtype} {recipes} {out} {fast}"
        for dtype, recipes in (
            (FP8, "rowwise rowwise"),
            (FP8, "tensorwise tensorwise"),
            (FP8, "blockwise_1x128 blockwise_128x128"),
            (FP8, "blockwise_1x128 blockwise_1x128"),
            (torch.int8, "rowwise rowwise"),
        )
        for out in (BRAIN, SINGLE)
        for fast in (False, True)
    ),
]


@pytest.mark.parametrize("arch", ["", "sm80", "sm89"])
@pytest.mark.parametrize("name", _NAMES)
def test_kernels_of_one_summation_order_give_the_same_bits(
    cutwheel: ModuleType, device: str, environment: Callable[..., None], name: str, arch: str
) -> None:
    """Every kernel that serves the call, forced."""
    op, args, kwargs = problems(cutwheel, device)[name]
    if arch:
        environment(CUTWHEEL_ARCH=arch)
    orders = {kernel.name: kernel.summation for kernel in cutwheel.kernels()}
    try:
        rows = unsplit(cutwheel.explain(op, *args, **kwargs))
    except NotImplementedError as error:
        pytest.skip(str(error).partition(". ")[0])
    results: dict[str, dict[str, Tensor]] = defaultdict(dict)
    with cutwheel.batch_invariant():
        for row in rows:
            environment(CUTWHEEL_KERNEL=row)
            order = orders[row]
            assert order is not None
            results[order][row] = getattr(cutwheel, op)(*args, **kwargs)
    wrong = []
    for order, of_order in results.items():
        (first, reference), *others = of_order.items()
        for row, result in others:
            if count := int(different(result, reference)):
                wrong.append(f"{order}: {row} and {first} differ in {count} elements")
    assert not wrong, f"{len(rows)} kernels, {sorted(results)}:\n" + "\n".join(wrong)


def test_kernels_that_share_k_have_another_order(
    cutwheel: ModuleType, device: str, environment: Callable[..., None]
) -> None:
    """What the test above rests on: another key comes with other bits, so it would see a kernel
    that had a wrong key."""
    draw = Draw(cutwheel, device, 5)
    x, w = draw.normal(64, 8192), draw.normal(256, 8192).t()
    orders = {kernel.name: kernel.summation for kernel in cutwheel.kernels()}
    explanation, by_order = cutwheel.explain("mm", x, w, SINGLE), {}
    with cutwheel.batch_invariant():
        for row in unsplit(explanation):
            if orders[row] not in by_order:
                environment(CUTWHEEL_KERNEL=row)
                by_order[orders[row]] = cutwheel.mm(x, w, SINGLE)
    if len(by_order) < 2:
        pytest.skip("all kernels of this GPU add up in one order")
    results = list(by_order.values())
    pairs = [(a, b) for i, a in enumerate(results) for b in results[:i]]
    assert all(bool(different(a, b)) for a, b in pairs), sorted(by_order)


# ---- run to run ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("invariant", [False, True])
def test_a_call_is_the_same_when_it_is_repeated(
    cutwheel: ModuleType, device: str, seed: int, strict: bool, invariant: bool
) -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(strict)
    cutwheel.set_batch_invariant(invariant)
    try:
        draw = Draw(cutwheel, device, seed + 1)
        for kind in sorted(set(KINDS)):
            if kind.endswith("grouped"):
                continue  # its other groups are drawn anew
            case = draw.case(kind)
            rows = [each[: case.counts[-1]] for each in case.rows]
            first = case.run(*rows)
            for _ in range(5):
                for a, b in zip(case.run(*rows), first, strict=True):
                    assert not different(a.contiguous(), b.contiguous()), case.text
    finally:
        torch.use_deterministic_algorithms(before)
        cutwheel.set_batch_invariant(False)
