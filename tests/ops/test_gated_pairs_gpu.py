"""Gated units whose gate and up do not alternate: kernels read both where they lie."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from fused_cases import (
    TRAINED,
    activate,
    assert_near,
    check_gated,
    compare_gradients,
    compare_second_gradients,
    inputs,
    leaves,
    values,
)
from gemm_cases import BRAIN, DTYPES, HALF, SINGLE, dtype_id
from grouped_cases import draw_ends, offsets, serves
from reference import poison
from runtime import capture

pytestmark = pytest.mark.gpu
Tensor = torch.Tensor
Pair = tuple[Tensor, Tensor]


def _in_one(order: tuple[int, int], between: int = 0) -> Callable[[Tensor, Tensor], Pair]:
    """Both in one tensor, in this order, with `between` elements behind each."""

    def lay(gate: Tensor, up: Tensor) -> Pair:
        whole = gate.new_full((2, gate.numel() + between), torch.nan)
        views = [part[: gate.numel()].view(gate.shape) for part in whole]
        for index, each in zip(order, (gate, up), strict=True):
            views[index].copy_(each)
        return views[order[0]], views[order[1]]

    return lay


def _in_rows(gate: Tensor, up: Tensor) -> Pair:
    """Rows of both side by side, as the halves of a longer K."""
    whole = torch.cat((up, gate), -1)
    k = gate.shape[-1]
    return whole[..., k:], whole[..., :k]


def _alternate(gate: Tensor, up: Tensor) -> Pair:
    whole = torch.stack((gate, up), -2)
    return whole[..., 0, :], whole[..., 1, :]


LAYOUTS: dict[str, Callable[[Tensor, Tensor], Pair]] = {
    "halves": _in_one((0, 1)),
    "up_first": _in_one((1, 0)),
    "spaced": _in_one((0, 1), 64),
    "up_first_spaced": _in_one((1, 0), 64),
    "alternating": _alternate,
    "side_by_side": _in_rows,
    "tensors": lambda gate, up: (gate.clone(), up.clone()),
    # Not read as they lie.
    "unaligned": _in_one((0, 1), 3),
    "one_column_major": lambda gate, up: (gate.mT.contiguous().mT, up),
    "pitches": lambda gate, up: (torch.cat((gate, gate), -1)[..., : gate.shape[-1]], up),
}


def of_torch(
    x: Tensor, gate: Tensor, up: Tensor, activation: str, b: Any = None, c: Any = None
) -> Tensor:
    first = torch.nn.functional.linear(x, gate, b)
    return activate(activation, first) * torch.nn.functional.linear(x, up, c)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_forward(cutwheel: ModuleType, device: str, layout: str, dtype: torch.dtype) -> None:
    """Bits as of packed weights: the kernel is the same."""
    for m, f, k in ((72, 136, 200), (67, 131, 77), (1, 1, 24), (300, 504, 512), (24, 64, 4096)):
        x, packed, bias = inputs((m,), 2 * f, k, dtype, device)[:3]
        gate, up = LAYOUTS[layout](packed[0::2].contiguous(), packed[1::2].contiguous())
        pairs = (bias[0::2], bias[1::2])
        for given, whole in ((None, None), (pairs, bias)):
            poison((m, f), dtype, device)
            result = cutwheel.gated_linear(x, (gate, up), "silu", given)
            check_gated(result, x, packed, "silu", whole)
        if k < 4096:  # there a packed weight may have its K split
            assert torch.equal(
                result, cutwheel.gated_linear(x, packed, "silu", bias, interleaved=True)
            )


@pytest.mark.parametrize("activation", TRAINED)
@pytest.mark.parametrize("rows", [1, 40, 200, 700])
def test_tiles(cutwheel: ModuleType, device: str, rows: int, activation: str) -> None:
    """The tiles for any number of rows, and tails of both extents."""
    for f, k in ((1000, 256), (520, 1032), (24, 64)):
        x, packed = inputs((rows,), 2 * f, k, BRAIN, device)[:2]
        expected = cutwheel.gated_linear(x, packed, activation, interleaved=True)
        check_gated(expected, x, packed, activation)
        for layout in ("halves", "up_first", "spaced"):
            pair = LAYOUTS[layout](packed[0::2].contiguous(), packed[1::2].contiguous())
            poison((rows, f), BRAIN, device)
            assert torch.equal(cutwheel.gated_linear(x, pair, activation), expected)


def _within(rows: int, columns: int, like: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Where [rows, columns] may go: (that, all of the memory), of NaN."""
    wide = like.new_full((rows, columns + 16), torch.nan)
    odd = like.new_full((rows, columns + 3), torch.nan)
    tall = like.new_full((rows + 9, columns), torch.nan)
    return {
        "rows of more": (tall[5 : 5 + rows], tall),
        "columns of more": (wide[:, 8 : 8 + columns], wide),
        "unaligned": (odd[:, 1 : 1 + columns], odd),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("stores_z", [False, True], ids=["alone", "with_z"])
def test_out(cutwheel: ModuleType, device: str, stores_z: bool, dtype: torch.dtype) -> None:
    """Into memory that is given: the same bits, and nothing beside it."""
    ops = torch.ops.cutwheel
    for m, f, k in ((72, 136, 200), (67, 131, 77), (300, 504, 512), (24, 64, 1024)):
        x, packed, bias = inputs((m,), 2 * f, k, dtype, device)[:3]
        gate, up = packed[0::2].contiguous(), packed[1::2].contiguous()
        for given, name in ((None, "gated_silu"), (bias, "gated_bias_silu")):
            call = x, gate, given, None, name + ("_aux" if stores_z else ""), dtype == SINGLE, up
            made = ops.linear_fused_aux(*call) if stores_z else (ops.linear_fused(*call),)
            check_gated(made[0], x, packed, "silu", given)
            places = [_within(m, result.shape[1], x) for result in made]
            for where in places[0]:
                outs = [place[where][0] for place in places]
                ops.linear_fused.out(*call, out=outs)
                for out, result, place in zip(outs, made, places, strict=True):
                    assert torch.equal(out, result), where
                    memory = place[where][1]
                    assert int(memory.isnan().sum()) == memory.numel() - out.numel(), where


def test_out_is_refused(cutwheel: ModuleType, device: str) -> None:
    m, f, k = 16, 64, 64
    x, packed = inputs((m,), 2 * f, k, BRAIN, device)[:2]
    gate, up = packed[0::2].contiguous(), packed[1::2].contiguous()
    out, z = x.new_empty(m, f), x.new_empty(m, 2 * f)

    def refused(text: str, outs: list[Tensor], input: Tensor = x, suffix: str = "_aux") -> None:
        call = input, gate, None, None, f"gated_silu{suffix}", False, up
        with pytest.raises(RuntimeError, match=text):
            torch.ops.cutwheel.linear_fused.out(*call, out=outs)

    refused("out has 1 tensors; expected 2", [out])
    refused("out has 2 tensors; expected 1", [out, z], suffix="")
    refused("out has 0 tensors", [])
    refused(r"out\[1\] has shape", [out, out])
    refused(r"out\[0\] has shape", [z, z])
    refused("input has 3 dimensions", [out, z], x.view(2, 8, k))
    refused(r"out\[1\] has dtype float32; expected bfloat16", [out, z.float()])
    refused("overlaps", [out, torch.as_strided(z, (m, 2 * f), (0, 1))])
    refused("overlaps up in memory", [up[:m], z])


@pytest.mark.parametrize("dtype", [BRAIN, HALF, SINGLE], ids=dtype_id)
def test_every_kernel(
    cutwheel: ModuleType, device: str, environment: Callable[..., None], dtype: torch.dtype
) -> None:
    """Each kernel that could take the call, by its name."""
    for m, f, k in ((100, 264, 192), (9, 72, 1024)):
        x, packed = inputs((m,), 2 * f, k, dtype, device)[:2]
        gate, up = _in_one((1, 0), 64)(packed[0::2].contiguous(), packed[1::2].contiguous())
        plans = cutwheel.explain("gated_linear", x, (gate, up)).candidates
        rows = {plan["row"] for plan in plans if "reason" not in plan}
        assert rows
        assert all(plan.get("splits", 1) == 1 for plan in plans if "reason" not in plan)
        for row in rows:
            environment(CUTWHEEL_KERNEL=row)
            poison((m, f), dtype, device)
            check_gated(cutwheel.gated_linear(x, (gate, up)), x, packed, "silu")
        environment(CUTWHEEL_KERNEL="")


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("activation", TRAINED)
def test_gradients(cutwheel: ModuleType, device: str, activation: str, dtype: torch.dtype) -> None:
    for leading, f, k in (((40,), 136, 200), ((3, 5), 33, 64)):
        x, packed, bias = inputs(leading, 2 * f, k, dtype, device)[:3]
        tensors = [x, packed[0::2].clone(), packed[1::2].clone(), bias[::2], bias[1::2]]

        def pair(x: Tensor, gate: Tensor, up: Tensor, b: Any = None, c: Any = None) -> Tensor:
            biases = None if b is None else (b, c)
            result: Tensor = cutwheel.gated_linear(x, (gate, up), activation, biases)
            return result

        def theirs(x: Tensor, gate: Tensor, up: Tensor, b: Any = None, c: Any = None) -> Tensor:
            return of_torch(x, gate, up, activation, b, c)

        for given in (tensors[:3], tensors):
            compare_gradients(pair, theirs, leaves(given), dtype)
            for needed in range(3):
                wanted = [index == needed for index in range(len(given))]
                compare_gradients(pair, theirs, leaves(given, wanted), dtype)

        def halves(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
            result: Tensor = cutwheel.gated_linear(x, weight, activation, bias)
            return result

        def halves_of_torch(x: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
            z = torch.nn.functional.linear(x, weight, bias)
            gate, up = z.chunk(2, -1)
            return activate(activation, gate) * up

        for both in ([x, packed], [x, packed, bias]):
            compare_gradients(halves, halves_of_torch, leaves(both), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_input_gradient(cutwheel: ModuleType, device: str, layout: str, dtype: torch.dtype) -> None:
    """Halves of K that a tile of K divides, and such as make two products."""
    op = torch.ops.cutwheel.gated_input_gradient
    for leading, f, k in (
        ((40,), 256, 136),
        ((3, 5), 1024, 72),
        ((700,), 128, 520),
        ((9,), 77, 33),
    ):
        gate, up = values((f, k), dtype, device), values((f, k), dtype, device)
        grad = values((*leading, 2 * f), dtype, device) / f**0.5
        rows = grad.flatten(0, -2).shape[0]
        poison((rows, k), dtype, device)
        got = op(grad, *LAYOUTS[layout](gate, up), True)
        assert got.shape == (*leading, k)
        assert_near(got, grad.double() @ torch.cat((gate, up)).double(), dtype)


def test_every_kernel_of_the_input_gradient(
    cutwheel: ModuleType, device: str, environment: Callable[..., None]
) -> None:
    """Kernels that take the whole weight take its halves, and compute the same bits."""
    op = torch.ops.cutwheel.gated_input_gradient
    known = {
        kernel.name: kernel
        for kernel in cutwheel.kernels()
        if kernel.family == "sm90_persistent" and kernel.cluster[0] == 1
    }
    for m, f, k in ((100, 256, 264), (24, 512, 520), (300, 640, 136)):
        grad = values((m, 2 * f), BRAIN, device) / f**0.5
        weight = values((2 * f, k), BRAIN, device)
        plans = cutwheel.explain("mm", grad, weight).candidates
        names = {p["row"] for p in plans if "reason" not in p and p.get("splits", 1) == 1}
        rows = [known[n] for n in sorted(names & set(known)) if f % known[n].tile[2] == 0]
        if not rows:
            pytest.skip("of Hopper")
        for order in ((0, 1), (1, 0)):
            gate, up = _in_one(order, 64)(*weight.chunk(2))
            for row in rows:
                environment(CUTWHEEL_KERNEL=row.name)
                expected = cutwheel.mm(grad, weight)
                assert_near(expected, grad.double() @ weight.double(), BRAIN, row.name)
                poison((m, k), BRAIN, device)
                assert torch.equal(op(grad, gate, up), expected), row.name
        environment(CUTWHEEL_KERNEL="")


def test_second_gradients(cutwheel: ModuleType, device: str) -> None:
    x, packed = inputs((24,), 2 * 20, 32, HALF, device)[:2]
    gate, up = packed[0::2], packed[1::2]
    compare_second_gradients(
        lambda x, gate, up: cutwheel.gated_linear(x, (gate, up), "gelu"),
        lambda x, gate, up: of_torch(x, gate, up, "gelu"),
        leaves([x, gate, up]),
    )


@pytest.mark.no_dispatch_mode
def test_compile_and_capture(cutwheel: ModuleType, device: str) -> None:
    x, packed = inputs((24,), 2 * 40, 64, BRAIN, device)[:2]
    gate, up = packed[0::2].clone(), packed[1::2].clone()

    def layer(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
        result: Tensor = cutwheel.gated_linear(x, (gate, up))
        return result

    backend = "inductor" if device != "cpu" else "aot_eager"
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    compare_gradients(
        compiled, lambda x, g, u: of_torch(x, g, u, "silu"), leaves([x, gate, up]), BRAIN
    )
    with torch.no_grad():
        assert torch.equal(compiled(x, gate, up), layer(x, gate, up))
    if device == "cpu":
        return
    graph, result = capture(lambda: layer(x, gate, up))
    x.copy_(values(x.shape, BRAIN, device))
    graph.replay()
    assert torch.equal(result, layer(x, gate, up))


@pytest.mark.no_dispatch_mode
def test_opcheck(cutwheel: ModuleType, device: str) -> None:
    ops = torch.ops.cutwheel
    x, packed, bias = inputs((24,), 2 * 28, 40, HALF, device)[:3]
    gate, up = packed[0::2].clone(), packed[1::2].clone()
    given = x, gate, bias, None
    torch.library.opcheck(ops.linear_fused.default, (*given, "gated_bias_silu", False, up))
    torch.library.opcheck(ops.linear_fused_aux.default, (*given, "gated_bias_silu_aux", False, up))
    torch.library.opcheck(
        ops.gated_input_gradient.default, (values((2, 24, 56), HALF, device), gate, up)
    )
    z, grad = values((24, 56), HALF, device), values((24, 28), HALF, device)
    torch.library.opcheck(
        ops.elementwise.default,
        ([grad[:, :24], z[:, :48]], "gated_silu_backward", True, True, True),
    )


def test_bad_input(cutwheel: ModuleType, device: str) -> None:
    x, packed, bias = inputs((8,), 16, 24, BRAIN, device)[:3]
    gate, up = packed[:8], packed[8:]
    gated = cutwheel.gated_linear
    for error, words, call in (
        (ValueError, r"weight\[1\] has shape \[7, 24\]", lambda: gated(x, (gate, up[:7]))),
        (ValueError, r"weight\[0\] has shape \[8, 16\]", lambda: gated(x, (gate[:, :16], up))),
        (TypeError, r"weight\[1\] has dtype float16", lambda: gated(x, (gate, up.half()))),
        (TypeError, r"weight\[0\] has dtype float16", lambda: gated(x, (gate.half(), up))),
        (TypeError, r"weight\[1\] is None", lambda: gated(x, (gate, None))),
        (ValueError, "weight has 3 tensors", lambda: gated(x, (gate, up, up))),
        (TypeError, "expected a pair", lambda: gated(x, (gate, up), bias=bias)),
        (TypeError, "expected a Tensor", lambda: gated(x, packed, bias=(bias, None))),
        (ValueError, r"bias\[1\] has shape", lambda: gated(x, (gate, up), bias=(None, bias))),
        (ValueError, "weight has shape", lambda: gated(x, packed[:15])),
        (
            ValueError,
            "bias has shape",
            lambda: gated(x, packed, "silu", bias[:8]),
        ),
    ):
        with pytest.raises(error, match=f"gated_linear: .*{words}"):
            call()
    check_gated(gated(x, packed, interleaved=True), x, packed, "silu")


# ---- groups --------------------------------------------------------------------------------------
def _experts(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """x [60, 40], halves [5, 2 x 24, 40]"""
    x, weight = values((60, 40), dtype, device), values((5, 48, 40), dtype, device) / 8
    return x, weight


def _packed(weight: Tensor) -> Tensor:
    gate, up = weight.chunk(2, 1)
    return torch.stack((gate, up), 2).flatten(1, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
@pytest.mark.parametrize("activation", TRAINED)
def test_groups(cutwheel: ModuleType, device: str, activation: str, dtype: torch.dtype) -> None:
    names = f"gated_{activation}", f"gated_{activation}_aux"
    if not all(serves("rows", dtype, dtype, name) for name in names):
        pytest.skip("no kernel for this dtype")
    x, weight = _experts(dtype, device)
    gated = cutwheel.grouped_gated_linear
    for how in ("random", "short", "all_empty"):
        offs = offsets(draw_ends(60, 5, how), device)
        options: Any = {"offs": offs, "activation": activation}
        expected = gated(x, _packed(weight), interleaved=True, **options)
        poison((60, 24), dtype, device)
        assert torch.equal(gated(x, weight, **options), expected)
        for layout in ("halves", "up_first", "side_by_side", "unaligned", "tensors"):
            pair = LAYOUTS[layout](*(half.contiguous() for half in weight.chunk(2, 1)))
            poison((60, 24), dtype, device)
            assert torch.equal(gated(x, pair, **options), expected)
        for ours in (
            lambda x, w: gated(x, w, **options),  # noqa: B023
            lambda x, w: gated(x, w.chunk(2, 1), **options),  # noqa: B023
        ):
            compare_gradients(
                ours,
                lambda x, w: _groups_of_torch(x, w, offs.tolist(), activation),  # noqa: B023
                leaves([x, weight]),
                dtype,
            )


def _groups_of_torch(x: Tensor, weight: Tensor, ends: list[int], activation: str) -> Tensor:
    rows, first = [], 0
    for group, end in zip(weight, ends, strict=True):
        gate, up = group.chunk(2)
        rows.append(of_torch(x[first:end], gate, up, activation))
        first = end
    return torch.cat((*rows, x.new_zeros(x.shape[0] - first, weight.shape[1] // 2)))


@pytest.mark.parametrize("tokens", [3, 700])
def test_gathered_rows(cutwheel: ModuleType, device: str, tokens: int) -> None:
    ops = torch.ops.cutwheel
    x, weight = values((tokens, 72), BRAIN, device), values((4, 144, 72), BRAIN, device) / 8
    ids = torch.randint(4, (tokens, 2), device=device)
    places, sources, offs = ops.moe_route(ids, 4)
    gate, up = weight.chunk(2, 1)
    given = x, places, sources
    expected = ops.grouped_linear_gathered(*given, _packed(weight), offs, "gated_silu")
    poison((2 * tokens, 72), BRAIN, device)
    got = ops.grouped_linear_gathered(*given, gate, offs, "gated_silu", up)
    assert torch.equal(got, expected)
    got, z = ops.grouped_linear_gathered_aux(*given, gate, offs, "gated_silu_aux", up)
    wanted, wanted_z = ops.grouped_linear_gathered_aux(
        *given, _packed(weight), offs, "gated_silu_aux"
    )
    assert torch.equal(got, wanted)
    assert torch.equal(z, wanted_z)
