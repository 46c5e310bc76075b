"""Calls with every placement of every operand, on the processes of test_sharding.

A call is made with DTensors and with plain tensors; results and gradients have to be the same.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from cpu_reference import CpuOps, install
from sharded_plans import checks

Tensor = torch.Tensor
SIZE = 4
TIMEOUT = datetime.timedelta(seconds=20)


@dataclass
class Call:
    function: Callable[..., Any]
    """of the tensors by name"""
    tensors: dict[str, Tensor]
    together: tuple[str, ...] = ()
    """operands of which every pair of placements is tried; others are moved one at a time"""
    has_gradient: bool = True
    exact: bool = False
    is_single: bool = False
    """whether it computes in float32"""
    never: dict[str, str] = field(default_factory=dict)
    """operand -> kinds of placements that it does not take ("P")"""


def calls(cutwheel: Any) -> dict[str, Call]:
    torch.manual_seed(3)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    m, n, k, b, s = 8, 12, 16, 4, 6
    found = {
        "mm": Call(cutwheel.mm, {"input": random(m, k), "mat2": random(k, n)}, ("input", "mat2")),
        "mm_uneven": Call(cutwheel.mm, {"input": random(5, 7), "mat2": random(7, 6)}),
        "bmm": Call(cutwheel.bmm, {"input": random(b, m, k), "mat2": random(b, k, n)}),
        "addmm": Call(
            lambda **tensors: cutwheel.addmm(**tensors, beta=0.5, alpha=2),
            {"input": random(m, n), "mat1": random(m, k), "mat2": random(k, n)},
        ),
        "addmm_row": Call(
            cutwheel.addmm,
            {"input": random(n), "mat1": random(m, k), "mat2": random(k, n)},
        ),
        "addmm_column": Call(
            cutwheel.addmm,
            {"input": random(m, 1), "mat1": random(m, k), "mat2": random(k, n)},
        ),
        "baddbmm": Call(
            cutwheel.baddbmm,
            {"input": random(b, 1, n), "batch1": random(b, m, k), "batch2": random(b, k, n)},
        ),
    }
    operands = {"input": random(b, s, k), "weight": random(n, k), "bias": random(n)}
    residual = random(b, s, n)
    both = ("input", "weight")
    found["linear"] = Call(cutwheel.linear, operands)
    for activation, last in ((None, False), ("silu", False), ("gelu", True)):

        def fused(
            activation: str | None = activation, last: bool = last, **tensors: Tensor
        ) -> Tensor:
            how = {"activation": activation, "residual_after_activation": last}
            result: Tensor = cutwheel.linear(**tensors, **how)
            return result

        name = f"linear_{activation}" + "_last" * last
        found[f"{name}_residual"] = Call(fused, {**operands, "residual": residual})
        if activation is not None:
            found[name] = Call(fused, operands)
    found["linear_sigmoid"] = Call(
        lambda **tensors: cutwheel.linear(**tensors, activation="sigmoid"),
        operands,
        has_gradient=False,
    )
    # More than K = 256: z is stored for backward.
    found["linear_stored"] = Call(
        lambda **tensors: cutwheel.linear(**tensors, activation="gelu"),
        {"input": random(m, 260), "weight": random(n, 260)},
    )
    interleaved = functools.partial(cutwheel.gated_linear, interleaved=True)
    found["gated_linear"] = Call(
        interleaved, {"input": random(b, s, k), "weight": random(2 * n, k)}, both
    )
    found["gated_linear_bias"] = Call(
        interleaved,
        {"input": random(b, s, k), "weight": random(2 * n, k), "bias": random(2 * n)},
        both,
    )
    weights = {"gate": random(n, k), "up": random(n, k), "b": random(n), "c": random(n)}
    found["gated_linear_pair"] = Call(
        lambda x, gate, up, b, c: cutwheel.gated_linear(x, (gate, up), bias=(b, c)),
        {"x": random(b, s, k), **weights},
        ("gate", "up"),
    )
    found["gated_linear_halves"] = Call(
        cutwheel.gated_linear,
        {"input": random(m, k), "weight": random(2 * n, k)},
    )
    # 3 pairs of rows of gate and up cannot be shared by 4 processes.
    found["gated_linear_odd"] = Call(interleaved, {"input": random(m, k), "weight": random(6, k)})
    found["gemm"] = Call(
        lambda a, b, c: cutwheel.gemm(a, b, "linear_combination", c=c, beta=0.5),
        {"a": random(m, k), "b": random(k, n), "c": random(m, n)},
        has_gradient=False,
    )
    found["gemm_leaky_relu"] = Call(
        lambda a, b, bias: cutwheel.gemm(a, b, "bias_leaky_relu", bias=bias, slope=0.1),
        {"a": random(m, k), "b": random(k, n), "bias": random(n)},
        has_gradient=False,
        is_single=True,
    )
    found["matmul"] = Call(cutwheel.matmul, {"input": random(b, m, k), "other": random(k, n)})
    found.update(_scaled(cutwheel))
    found.update(_grouped(cutwheel))
    found.update(_convolutions(cutwheel))
    return found


def _scaled(cutwheel: Any) -> dict[str, Call]:
    # gloo has no fp8; the reference kernels take int8 with every recipe.
    found = {}
    m, k, n = 16, 512, 512
    x, w = torch.randn(m, k), torch.randn(n, k)
    recipes = {
        "tensorwise": ("tensorwise", "tensorwise"),
        "rowwise": ("rowwise", "rowwise"),
        "blockwise": ("blockwise_1x128", "blockwise_128x128"),
    }
    for name, (of_a, of_b) in recipes.items():
        a, scale_a = cutwheel.quantize(x, of_a, torch.int8)
        b, scale_b = cutwheel.quantize(w, of_b, torch.int8)

        def scaled(
            mat_a: Tensor,
            mat_b: Tensor,
            scale_a: Tensor,
            scale_b: Tensor,
            bias: Tensor,
            of_a: str = of_a,
            of_b: str = of_b,
        ) -> Tensor:
            by_column = scale_b if of_b == "tensorwise" else scale_b.t()
            result: Tensor = cutwheel.scaled_mm(
                *(mat_a, mat_b.t(), scale_a, of_a, by_column, of_b),
                bias=bias,
                output_dtype=torch.float32,
            )
            return result

        tensors = {"mat_a": a, "mat_b": b, "scale_a": scale_a, "scale_b": scale_b}
        found[f"scaled_mm_{name}"] = Call(
            scaled,
            {**tensors, "bias": torch.randn(n)},
            has_gradient=False,
            never={"mat_a": "P", "mat_b": "P"},
        )
    for recipe in ("tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128"):
        found[f"quantize_{recipe}"] = Call(
            lambda x, recipe=recipe: cutwheel.quantize(x, recipe, torch.int8),
            {"x": torch.randn(256, 512)},
            has_gradient=False,
            exact=True,
            never={"x": "P"},  # sums of parts are rounded
        )
    for recipe in ("tensorwise", "rowwise"):
        found[f"quantize_int8_{recipe}"] = Call(
            lambda x, recipe=recipe: cutwheel.quantize(x, recipe, torch.int8, symmetric=False),
            {"x": torch.cat((torch.randn(6, 4, 32), torch.zeros(1, 4, 32)))},
            has_gradient=False,
            exact=True,
            never={"x": "P"},
        )
    ends = torch.tensor([3, 3, 11, 14], dtype=torch.int32)
    values, scale = cutwheel.quantize(torch.randn(16, 64), "rowwise", torch.int8)
    weights, weight_scale = cutwheel.quantize(torch.randn(512, 64), "rowwise", torch.int8)
    found["scaled_grouped_mm"] = Call(
        lambda mat_a, mat_b, scale_a, scale_b, bias: cutwheel.scaled_grouped_mm(
            mat_a,
            mat_b.mT,
            scale_a,
            scale_b=scale_b,
            bias=bias,
            offs=ends,
            output_dtype=torch.float32,
        ),
        {
            "mat_a": values,
            "mat_b": weights.view(4, 128, 64),
            "scale_a": scale,
            "scale_b": weight_scale.view(4, 128),
            "bias": torch.randn(4, 128),
        },
        has_gradient=False,
        never={"mat_a": "P", "mat_b": "P"},
    )
    return found


def _grouped(cutwheel: Any) -> dict[str, Call]:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    g, t, k, n = 4, 14, 8, 12
    # One group is empty, and the last rows belong to none.
    ends = torch.tensor([3, 3, 9, 12], dtype=torch.int32)
    operands = {"input": random(t, k), "weight": random(g, n, k)}
    return {
        "grouped_mm": Call(
            lambda mat_a, mat_b, bias: cutwheel.grouped_mm(mat_a, mat_b, offs=ends, bias=bias),
            {"mat_a": random(t, k), "mat_b": random(g, k, n), "bias": random(g, n)},
            ("mat_a", "mat_b"),
            is_single=True,
        ),
        "grouped_mm_few_experts": Call(
            lambda mat_a, mat_b: cutwheel.grouped_mm(mat_a, mat_b, offs=ends[1:]),
            {"mat_a": random(t, k), "mat_b": random(3, k, n)},
        ),
        "grouped_mm_columns": Call(
            lambda mat_a, mat_b: cutwheel.grouped_mm(mat_a, mat_b, offs=ends),
            {"mat_a": random(g, n, k), "mat_b": random(k, t)},
        ),
        "grouped_mm_k": Call(
            lambda mat_a, mat_b: cutwheel.grouped_mm(mat_a, mat_b, offs=ends),
            {"mat_a": random(k, t), "mat_b": random(t, n)},
        ),
        "grouped_mm_batch": Call(
            cutwheel.grouped_mm, {"mat_a": random(g, t, k), "mat_b": random(g, k, n)}
        ),
        "grouped_linear": Call(
            lambda **tensors: cutwheel.grouped_linear(**tensors, offs=ends, activation="gelu"),
            {**operands, "bias": random(g, n)},
            is_single=True,
        ),
        "grouped_gated_linear": Call(
            lambda **tensors: cutwheel.grouped_gated_linear(**tensors, offs=ends, interleaved=True),
            {"input": random(t, k), "weight": random(g, 2 * n, k)},
        ),
        "grouped_gated_linear_halves": Call(
            lambda **tensors: cutwheel.grouped_gated_linear(**tensors, offs=ends),
            {"input": random(t, k), "weight": random(g, 2 * n, k)},
        ),
        "grouped_gated_linear_pair": Call(
            lambda x, gate, up: cutwheel.grouped_gated_linear(x, (gate, up), offs=ends),
            {"x": random(t, k), "gate": random(g, n, k), "up": random(g, n, k)},
        ),
        "moe_rows": Call(
            _there_and_back,
            {"tokens": random(t, k), "ids": torch.randint(-1, g, (t, 2)), "weights": random(t, 2)},
            has_gradient=False,
        ),
    }


def _there_and_back(tokens: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    from cutwheel.ops.grouped._permutation import permute, route, unpermute

    routing = route(ids, 4)
    rows = permute(tokens, routing.places, weights, routing.offs)
    products = torch.ops.cutwheel.moe_permute_dots(rows, tokens, routing.places, routing.offs)
    return unpermute(rows, routing.places, products, routing.offs)


def _convolutions(cutwheel: Any) -> dict[str, Call]:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    images = {"input": random(8, 4, 5, 5), "weight": random(8, 4, 3, 3), "bias": random(8)}
    # Of other dtypes, torch convolves; sums of rounded parts are others.
    transposed = {"input": random(8, 4, 5, 5), "weight": random(4, 8, 3, 3), "bias": random(8)}
    transposed = {name: tensor.bfloat16() for name, tensor in transposed.items()}
    return {
        "conv2d": Call(lambda **tensors: cutwheel.conv2d(**tensors, padding=1), images),
        "conv2d_relu_residual": Call(
            lambda **tensors: cutwheel.conv2d(**tensors, padding=1, activation="relu"),
            {**images, "residual": random(8, 8, 5, 5)},
        ),
        "conv2d_grouped": Call(
            lambda **tensors: cutwheel.conv2d(**tensors, groups=2),
            {"input": random(8, 4, 5, 5), "weight": random(8, 2, 3, 3)},
        ),
        "conv3d": Call(
            cutwheel.conv3d,
            {"input": random(4, 4, 3, 5, 5), "weight": random(8, 4, 2, 3, 3), "bias": random(8)},
        ),
        "conv_transpose2d": Call(
            lambda **tensors: cutwheel.conv_transpose2d(**tensors, stride=2),
            transposed,
            never=dict.fromkeys(transposed, "P"),
        ),
        "scaled_conv2d": Call(
            lambda scale, **images: cutwheel.scaled_conv2d(
                **images, scale_input=scale, scale_weight=scale, out_dtype=torch.float32
            ),
            {
                "input": random(8, 16, 5, 5).mul(9).to(torch.int8),
                "weight": random(16, 16, 3, 3).mul(9).to(torch.int8),
                "scale": torch.ones(1),
            },
            has_gradient=False,
            never={"input": "P", "weight": "P"},
        ),
    }


# ---- placements
def _placements(tensor: Tensor, never: str) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    found: list[Any] = [Replicate(), *(Shard(dim) for dim in range(tensor.dim()))]
    if "P" not in never and tensor.is_floating_point() and tensor.dtype.itemsize > 1:
        found.append(Partial())
    return found


def _ways(call: Call) -> Iterator[dict[str, Any]]:
    """Placements of the operands by name."""
    from torch.distributed.tensor import Replicate

    every = {
        name: _placements(tensor, call.never.get(name, "")) for name, tensor in call.tensors.items()
    }
    whole: dict[str, Any] = dict.fromkeys(every, Replicate())
    if call.together:
        for pair in itertools.product(*(every[name] for name in call.together)):
            yield {**whole, **dict(zip(call.together, pair, strict=True))}
    else:
        yield whole
    # The first operand and the last dimension of the second: often those that are summed over.
    first = {n: every[n][t.dim()] for n, t in list(call.tensors.items())[:2]}
    yield {**whole, **first}
    for name, placements in every.items():
        if name not in call.together:
            for placement in placements[1:]:
                yield {**whole, name: placement}
            if name not in first:
                yield {**whole, **first, name: placements[-1]}


def distribute(tensor: Tensor, mesh: Any, placements: list[Any]) -> Any:
    """The DTensor that stands for `tensor`; Partial: of different terms in each process."""
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    whole = [Replicate() if p.is_partial() else p for p in placements]
    found = distribute_tensor(tensor.detach(), mesh, whole, src_data_rank=None)
    local = found.to_local()
    for dim, placement in enumerate(placements):
        if placement.is_partial():
            rank, size = mesh.get_local_rank(dim), mesh.size(dim)
            local = local * (size if rank == 0 else -1.0)
    result = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return result.detach()


def _flat(results: Any) -> list[Tensor]:
    given = [results] if isinstance(results, torch.Tensor) else list(results)
    return [result for result in given if result.numel()]


def _whole(tensor: Any) -> Tensor:
    result: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return result


# Of bfloat16, four parts of a sum of up to 32 are each rounded by up to 1/16.
_NEAR = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-4, 1e-4), torch.bfloat16: (2e-2, 0.25)}


def _compare(what: str, got: Any, want: Tensor, call: Call) -> None:
    got = _whole(got)
    rtol, atol = (
        _NEAR[torch.float32 if call.is_single else want.dtype] if not call.exact else (0, 0)
    )
    near = {"rtol": rtol, "atol": atol}
    torch.testing.assert_close(
        got.to(torch.float32) if got.dtype.itemsize == 1 else got,
        want.to(torch.float32) if want.dtype.itemsize == 1 else want,
        **near,
        msg=lambda text: f"{what}: {text}",
    )


def check(call: Call, mesh: Any, placements: dict[str, list[Any]]) -> None:
    plain = {name: tensor.detach().clone() for name, tensor in call.tensors.items()}
    shared = {name: distribute(t, mesh, placements[name]) for name, t in plain.items()}
    if call.has_gradient:
        for tensor in (*plain.values(), *shared.values()):
            tensor.requires_grad_()
    wanted, got = _flat(call.function(**plain)), _flat(call.function(**shared))
    assert len(got) == len(wanted)
    for index, (one, other) in enumerate(zip(got, wanted, strict=True)):
        assert hasattr(one, "placements"), "the result is no DTensor"
        _compare(f"result {index}", one, other.detach(), call)
    if not call.has_gradient:
        return
    torch.manual_seed(4)
    factors = torch.randn(wanted[0].shape, dtype=wanted[0].dtype)
    wanted[0].backward(factors)
    whole = distribute(factors, mesh, [_whole_sum(p) for p in got[0].placements])
    got[0].backward(whole)
    for name, tensor in plain.items():
        _compare(f"gradient of {name}", shared[name].grad, tensor.grad, call)


def _whole_sum(placement: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate() if placement.is_partial() else placement


# ---- processes
class OpsBelowAutograd(CpuOps):
    """Reference kernels without autograd, which is off below DTensor."""

    def elementwise(
        self,
        operands: list[Tensor],
        epilogue: str,
        with_result: bool = True,
        with_sums: bool = False,
        in_halves: bool = False,
    ) -> tuple[Tensor, Tensor]:
        from cutwheel.ops._common.elementwise import _derivative_by_torch, halves_of

        if len(operands) == 1:
            return super().elementwise(operands, epilogue, with_result, with_sums)
        grad, z = operands
        dz, sums = _derivative_by_torch(grad, z, epilogue, with_result, with_sums)
        return (halves_of(dz), sums) if in_halves and with_result else (dz, sums)

    def gemm(self, a: Tensor, b: Tensor, epilogue: str, *rest: Any) -> list[Tensor]:
        from cutwheel.ops._common.elementwise import _REFERENCES

        if not epilogue.endswith("_backward"):
            return super().gemm(a, b, epilogue, *rest)
        (bias, grad), (alpha,) = rest[:2]
        z = alpha * (a @ b) + (0 if bias is None else bias)
        return [_REFERENCES[epilogue.removeprefix("bias_")](grad, z)]


def run(rank: int, folder: str) -> None:
    """All calls in one of SIZE processes; what failed, and how, goes to `folder`."""
    import torch.distributed as dist

    import cutwheel
    from cutwheel.ops._common import meta
    from cutwheel.ops.conv import _convolve, _volume

    meta.check_devices = lambda op, arguments: None  # type: ignore[assignment]
    library = install(OpsBelowAutograd())
    # torch would convolve groups and volumes on the CPU.
    _convolve.why_torch = _volume.why_torch = lambda *given: None
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(1)
    store = f"file://{Path(folder) / 'store'}"
    where: Any = {"init_method": store, "rank": rank, "world_size": SIZE}
    dist.init_process_group("gloo", timeout=TIMEOUT, **where)
    from torch.distributed.device_mesh import init_device_mesh

    line, square = init_device_mesh("cpu", (SIZE,)), init_device_mesh("cpu", (2, 2))
    failures: dict[str, list[str]] = {}
    start = time.process_time()
    for name, call in calls(cutwheel).items():
        ways = list(_ways(call))
        tried = [(line, {n: [p] for n, p in way.items()}) for way in ways]
        # On two dimensions, one way after the other.
        step = max(len(ways) // 2, 1)
        for first, second in zip(ways[::step], ways[1::step], strict=False):
            both = {n: [first[n], second[n]] for n in call.tensors}
            tried.append((square, both))
        failures[name] = []
        for mesh, placements in tried:
            try:
                check(call, mesh, placements)
            except Exception:
                failures[name].append(f"{placements}: {traceback.format_exc()}")
                if "closure" in failures[name][-1] or "losed" in failures[name][-1]:
                    break  # the other processes are gone
        failures[name].append(str(len(tried)))
    for name, plan in checks(cutwheel, line, Path(folder) / "checkpoint").items():
        try:
            plan()
            failures[f"plan {name}"] = []
        except Exception:
            failures[f"plan {name}"] = [traceback.format_exc()]
            if "imed out" in failures[f"plan {name}"][0]:
                break
    failures["seconds"] = [str(time.process_time() - start)]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(failures))
    dist.destroy_process_group()
    library._destroy()
