"""Modules under plans, FSDP2, DDP and checkpoints, on the processes of test_sharding."""

from __future__ import annotations

import copy
import functools
import importlib.util
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor
HIDDEN, BETWEEN = 64, 128
ROWS, SEQUENCE = 2, 8


def _input() -> Tensor:
    torch.manual_seed(11)
    return torch.randn(ROWS, SEQUENCE, HIDDEN, dtype=torch.float64)


def _part(tensor: Tensor, mesh: Any, dim: int | None) -> Tensor:
    """What this process has of a tensor that is split along `dim`."""
    if dim is None:
        return tensor.clone()
    return tensor.chunk(mesh.size(), dim)[mesh.get_local_rank()].clone()


def _agree(
    module: torch.nn.Module,
    plan: Any,
    mesh: Any,
    tensors: tuple[Tensor, ...],
    inside: int | None,
    outside: int | None,
    others: int | None = None,
) -> None:
    """That a module under a plan does what it does alone, gradients included.

    Args:
        inside, outside: dimensions along which the input and the result are split; others: that of
            the tensors after the first
    """
    from torch.distributed.tensor.parallel import parallelize_module

    whole = copy.deepcopy(module)
    split = parallelize_module(module, mesh, plan)
    places = (inside, *[others] * (len(tensors) - 1))
    parts = [_part(tensor, mesh, place) for tensor, place in zip(tensors, places, strict=True)]
    given = [tensor.clone() for tensor in tensors]
    needs_grad = any(parameter.requires_grad for parameter in whole.parameters())
    for tensor in (*parts, *given):
        if needs_grad and tensor.is_floating_point():
            tensor.requires_grad_()
    got, want = split(*parts), whole(*given)
    torch.testing.assert_close(got, _part(want, mesh, outside), rtol=1e-6, atol=1e-6)
    if not needs_grad:
        return
    torch.manual_seed(12)
    factors = torch.randn_like(want)
    want.backward(factors)
    got.backward(_part(factors, mesh, outside))
    for part, tensor, place in zip(parts, given, places, strict=True):
        if tensor.grad is not None:
            wanted = _part(tensor.grad, mesh, place)
            torch.testing.assert_close(part.grad, wanted, rtol=1e-6, atol=1e-6)
    expected = dict(whole.named_parameters())
    for name, parameter in split.named_parameters():
        found = parameter.grad.full_tensor()  # type: ignore[union-attr]
        torch.testing.assert_close(found, expected[name].grad, rtol=1e-6, atol=1e-6)


def _linear(cutwheel: Any, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    from cutwheel.distributed import ColwiseParallel, RowwiseParallel

    def layer(**options: Any) -> Any:
        torch.manual_seed(13)
        return cutwheel.nn.Linear(HIDDEN, BETWEEN, dtype=torch.float64, **options)

    x = _input()
    residual = torch.randn(ROWS, SEQUENCE, BETWEEN, dtype=torch.float64)
    _agree(layer(), ColwiseParallel(), mesh, (x,), None, 2)
    plan = ColwiseParallel(input_layouts=Shard(1))
    _agree(layer(activation="gelu"), plan, mesh, (x,), 1, 2)
    plan = ColwiseParallel(output_layouts=Replicate(), residual_layouts=Shard(-1))
    _agree(layer(), plan, mesh, (x, residual), None, None, 2)
    _agree(layer(), RowwiseParallel(), mesh, (x,), 2, None)
    _agree(layer(activation="silu"), RowwiseParallel(), mesh, (x, residual), 2, None)
    plan = RowwiseParallel(output_layouts=Shard(1))
    for options in ({}, {"activation": "relu", "residual_after_activation": True}):
        _agree(layer(**options), plan, mesh, (x, residual), 2, 1, 1)


def _shared_input(cutwheel: Any, mesh: Any) -> None:
    """Layers that share an input, as query, key and value do, have its gradient reduced once."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.parallel import PrepareModuleInput, parallelize_module

    from cutwheel.distributed import ColwiseParallel, GatedMLPParallel

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(16)
            options: Any = {"bias": False, "dtype": torch.float64}
            self.one, self.two = (cutwheel.nn.Linear(HIDDEN, BETWEEN, **options) for _ in range(2))
            self.mlp = cutwheel.nn.GatedMLP(HIDDEN, BETWEEN, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.one(x) * self.two(x), self.mlp(x)], -1)

    plan = {
        "": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "one": ColwiseParallel(output_layouts=Replicate()),
        "two": ColwiseParallel(output_layouts=Replicate()),
        "mlp": GatedMLPParallel(),
    }
    _agree(Shared(), plan, mesh, (_input(),), 1, None)
    split = parallelize_module(Shared(), mesh, plan)
    part = _part(_input(), mesh, 1).requires_grad_()
    y = split(part)
    with CommDebugMode() as seen:
        y.sum().backward()
    counts = {str(op): count for op, count in seen.get_comm_counts().items() if count}
    assert counts == {"c10d_functional.reduce_scatter_tensor": 1}, counts


def _torchs_styles(cutwheel: Any, mesh: Any) -> None:
    """torch's own styles on cutwheel's layers, in a norm with sequence parallelism."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    torch.manual_seed(14)
    options: Any = {"bias": False, "dtype": torch.float64}
    model = torch.nn.Sequential(
        torch.nn.RMSNorm(HIDDEN, dtype=torch.float64),
        cutwheel.nn.Linear(HIDDEN, BETWEEN, activation="silu", **options),
        cutwheel.nn.Linear(BETWEEN, HIDDEN, **options),
    )
    plan = {
        "": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Shard(1), use_local_output=True
        ),
        "0": SequenceParallel(use_local_output=True),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Shard(1)),
    }
    _agree(model, plan, mesh, (_input(),), 1, 1)


def _gated_mlp(cutwheel: Any, mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    from cutwheel.distributed import GatedMLPParallel

    x = _input()
    residual = torch.randn_like(x)
    for packed in (False, True):
        for sequence in (None, 1):
            torch.manual_seed(15)
            mlp = cutwheel.nn.GatedMLP(HIDDEN, BETWEEN, dtype=torch.float64)
            if packed:
                mlp.pack_parameters()
            layout = None if sequence is None else Shard(sequence)
            plan = GatedMLPParallel(input_layouts=layout, output_layouts=layout)
            _agree(mlp, plan, mesh, (x, residual), sequence, sequence, sequence)
    _takes_one_product(cutwheel.nn.GatedMLP(HIDDEN, BETWEEN, dtype=torch.float64), mesh)
    mlp = cutwheel.nn.GatedMLP(HIDDEN, mesh.size() + 1, dtype=torch.float64).pack_parameters()
    _refused(ValueError, "intermediate_size", lambda: GatedMLPParallel()._apply(mlp, mesh))
    plan = GatedMLPParallel()
    _refused(TypeError, "GatedMLP", lambda: plan._apply(torch.nn.Linear(2, 2), mesh))


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))


def _takes_one_product(mlp: torch.nn.Module, mesh: Any) -> None:
    """For gate and up, in training as well, and compiled in one graph."""
    from torch.distributed.tensor.parallel import parallelize_module

    from cutwheel.distributed import GatedMLPParallel

    split = parallelize_module(mlp, mesh, GatedMLPParallel())
    eager, traced = (_input().requires_grad_() for _ in range(2))
    with _Calls() as calls:
        split(eager).sum().backward()
    for op in ("linear_fused_aux", "gated_input_gradient"):
        assert calls.names.count(f"cutwheel.{op}.default") == 1, calls.names
    compiled = torch.compile(split, backend="aot_eager", fullgraph=True)
    compiled(traced).sum().backward()
    torch.testing.assert_close(traced.grad, eager.grad)


def _refused(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=text):
        call()


def _experts(cutwheel: Any, mesh: Any) -> None:
    from torch.distributed.tensor import Shard

    from cutwheel.distributed import ExpertParallel

    tokens, count = 24, 2
    torch.manual_seed(16)
    x = torch.randn(tokens, HIDDEN, dtype=torch.float64)
    weights = torch.rand(tokens, count, dtype=torch.float64)
    # The last devices may have fewer experts, or none.
    for experts, split in ((8, "experts"), (6, "experts"), (3, "experts"), (3, "features")):
        ids = torch.randint(-1, experts, (tokens, count))
        for place in (None, 0):
            torch.manual_seed(17)
            layer = cutwheel.nn.GroupedExperts(experts, HIDDEN, BETWEEN, dtype=torch.float64)
            layout = None if place is None else Shard(place)
            plan = ExpertParallel(input_layouts=layout, split=split)
            _agree(layer, plan, mesh, (x, ids, weights), place, place, place)
    _refused(ValueError, "split", lambda: ExpertParallel(split="rows"))  # type: ignore[arg-type]


def _scaled_linear(cutwheel: Any, mesh: Any) -> None:
    from cutwheel.distributed import ColwiseParallel, RowwiseParallel

    size = 128 * mesh.size()
    torch.manual_seed(18)
    x = torch.randn(3, 5, size)
    linear = torch.nn.Linear(size, size)
    kinds = (("tensorwise", True), ("rowwise", True), ("rowwise", False))
    for recipe, symmetric in kinds:
        for plan, inside, outside in ((ColwiseParallel(), None, 2), (RowwiseParallel(), 2, None)):
            layer = cutwheel.nn.ScaledLinear.from_linear(
                linear, recipe, dtype=torch.int8, symmetric=symmetric
            )
            layer.requires_grad_(False)
            _agree(layer, plan, mesh, (x,), inside, outside)
    # The weight in fp8, which gloo cannot gather: it stays where it is.
    for plan, inside, outside in ((ColwiseParallel(), None, 2), (RowwiseParallel(), 2, None)):
        layer = cutwheel.nn.ScaledLinear.from_linear(linear, "blockwise").requires_grad_(False)
        _agree(layer, plan, mesh, (x,), inside, outside)
    trained = cutwheel.nn.ScaledLinear.from_linear(linear, dtype=torch.int8, straight_through=True)
    whole = copy.deepcopy(trained)
    split = ColwiseParallel()._apply(trained, mesh)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    split(one).square().sum().backward()
    whole(other).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-3)
    bias: Any = split.bias.grad
    torch.testing.assert_close(bias.full_tensor(), whole.bias.grad, rtol=1e-4, atol=1e-3)
    narrow = cutwheel.nn.ScaledLinear(64, 64, recipe="blockwise")
    _refused(ValueError, "out_features", lambda: ColwiseParallel()._apply(narrow, mesh))
    _refused(ValueError, "in_features", lambda: RowwiseParallel()._apply(narrow, mesh))


def _mixed_precision(cutwheel: Any, mesh: Any) -> None:
    """FSDP2 with parameters gathered in bfloat16, from meta tensors, of every module."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def model() -> torch.nn.Module:
        return torch.nn.Sequential(
            cutwheel.nn.Linear(HIDDEN, HIDDEN, activation="silu"),
            cutwheel.nn.GatedMLP(HIDDEN, BETWEEN),
            cutwheel.nn.ScaledLinear(HIDDEN, HIDDEN, straight_through=True, dtype=torch.int8),
        )

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    torch.manual_seed(19)
    whole = model()
    with torch.device("meta"):
        split: Any = model()
    for layer in (*split, split):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    split.to_empty(device="cpu")
    _load_full(split, whole.state_dict())
    x = _input().float()
    got = split(x)
    assert got.dtype == torch.bfloat16
    want = copy.deepcopy(whole).bfloat16()(x.bfloat16())
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    got.float().square().sum().backward()
    for parameter in split.parameters():
        assert parameter.grad.dtype == torch.float32


def _load_full(model: Any, state: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, dict(state), options=StateDictOptions(full_state_dict=True))


def _checkpoints(cutwheel: Any, mesh: Any, folder: Path) -> None:
    """Saved under one plan, loaded under another, and whole."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import parallelize_module

    from cutwheel.distributed import ExpertParallel, GatedMLPParallel

    def model(seed: int) -> Any:
        torch.manual_seed(seed)
        found = torch.nn.Sequential()
        found.add_module("mlp", cutwheel.nn.GatedMLP(HIDDEN, BETWEEN))
        found.add_module("experts", cutwheel.nn.GroupedExperts(6, HIDDEN, BETWEEN))
        found.add_module("conv", cutwheel.nn.Conv2d(4, 8, 3))
        return found

    plan: Any = {"mlp": GatedMLPParallel(), "experts": ExpertParallel()}
    whole, split, sharded = model(20), parallelize_module(model(20), mesh, plan), model(21)
    fully_shard(sharded, mesh=mesh)
    dcp.save(get_model_state_dict(split), checkpoint_id=folder)
    state = get_model_state_dict(sharded)
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(sharded, state)
    for name, value in sharded.state_dict().items():
        torch.testing.assert_close(value.full_tensor(), whole.state_dict()[name])


def _ddp(cutwheel: Any, mesh: Any) -> None:
    torch.manual_seed(22)
    whole = torch.nn.Sequential(
        cutwheel.nn.Linear(HIDDEN, HIDDEN, activation="gelu"),
        cutwheel.nn.GatedMLP(HIDDEN, BETWEEN),
    ).double()
    parallel = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(whole))
    x = torch.randn(4 * mesh.size(), HIDDEN, dtype=torch.float64)
    parallel(_part(x, mesh, 0)).square().sum().backward()
    whole(x).square().sum().backward()
    for one, other in zip(parallel.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad * mesh.size(), other.grad)


def _two_dimensions(cutwheel: Any, mesh: Any) -> None:
    """Tensor parallelism inside of FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from cutwheel.distributed import GatedMLPParallel

    square = init_device_mesh("cpu", (2, mesh.size() // 2), mesh_dim_names=("data", "tp"))
    torch.manual_seed(23)
    whole = cutwheel.nn.GatedMLP(HIDDEN, BETWEEN, dtype=torch.float64)
    split = GatedMLPParallel()._apply(copy.deepcopy(whole), square["tp"])
    fully_shard(split, mesh=square["data"])
    x = torch.randn(8, HIDDEN, dtype=torch.float64)
    got = split(_part(x, square["data"], 0))
    torch.testing.assert_close(got, _part(whole(x), square["data"], 0))
    got.square().sum().backward()
    whole(x).square().sum().backward()
    for one, other in zip(split.parameters(), whole.parameters(), strict=True):
        found: Any = one.grad
        torch.testing.assert_close(found.full_tensor() * 2, other.grad)
    plan = GatedMLPParallel()
    _refused(ValueError, "dimensions", lambda: plan._apply(copy.deepcopy(whole), square))


def _program(name: str) -> Any:
    path = Path(__file__).parents[2] / "examples" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules[name] = example  # dataclasses look themselves up there
    spec.loader.exec_module(example)
    return example


def _example(mesh: Any) -> None:
    """The examples, small and in float64."""
    example = _program("expert_parallel")
    config = example.Config(hidden=64, intermediate=96, experts=6, tokens=7, dtype=torch.float64)
    found = example.run(config, mesh.get_group(), "cpu")
    assert len(found) == 1 + 3
    assert max(found.values()) < 1e-6, found
    example = _program("tensor_parallel")
    config = example.Config(
        hidden=64, intermediate=96, heads=4, experts=6, tokens=16, dtype=torch.float64
    )
    found = example.run(config, mesh)
    assert len(found) == 1 + 4 + 2 + 3 + 1 + 2  # results, and gradients of all parameters
    assert max(found.values()) < 1e-6, found


def _exchanged(cutwheel: Any, mesh: Any) -> None:
    """Experts of which each process has some, and tokens of which each has as many as it has."""
    from torch.distributed.tensor import Replicate

    from cutwheel.distributed import ExpertParallel

    group, rank, size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    # Also: a process without tokens, experts without rows, processes without experts.
    cases = ((8, [5, 9, 2, 8], 8), (6, [24, 0, 0, 0], 6), (3, [0, 3, 3, 0], 3), (8, [6] * 4, 1))
    for experts, tokens, chosen in cases:
        torch.manual_seed(21)
        whole = cutwheel.nn.GroupedExperts(experts, HIDDEN, BETWEEN, dtype=torch.float64)
        x = torch.randn(sum(tokens), HIDDEN, dtype=torch.float64, requires_grad=True)
        weights = torch.rand(sum(tokens), 2, dtype=torch.float64, requires_grad=True)
        ids = torch.randint(-1, chosen, (sum(tokens), 2))
        want = whole(x, ids, weights)
        factors = torch.randn_like(want)
        (want * factors).sum().backward()

        layer = copy.deepcopy(
            cutwheel.nn.GroupedExperts(
                experts, HIDDEN, BETWEEN, dtype=torch.float64, process_group=group
            )
        )
        assert layer.process_group is group
        each = -(-experts // size)
        own = slice(min(rank * each, experts), min((rank + 1) * each, experts))
        with torch.no_grad():
            layer.gate_up_weight.copy_(whole.gate_up_weight[own])
            layer.down_weight.copy_(whole.down_weight[own])
        parts = [part.detach().split(tokens)[rank] for part in (x, ids, weights)]
        parts[0].requires_grad_()
        parts[2].requires_grad_()
        got = layer(*parts)
        torch.testing.assert_close(got, want.split(tokens)[rank])
        (got * factors.split(tokens)[rank]).sum().backward()
        torch.testing.assert_close(parts[0].grad, x.grad.split(tokens)[rank])
        torch.testing.assert_close(parts[2].grad, weights.grad.split(tokens)[rank])
        torch.testing.assert_close(layer.gate_up_weight.grad, whole.gate_up_weight.grad[own])
        torch.testing.assert_close(layer.down_weight.grad, whole.down_weight.grad[own])

        # The same under a plan, whose weights are DTensors.
        split = ExpertParallel(dispatch="all_to_all")._apply(copy.deepcopy(whole), mesh)
        split.zero_grad()
        again = split(*parts)
        torch.testing.assert_close(again, got)
        (again * factors.split(tokens)[rank]).sum().backward()
        whole_grad = split.get_parameter("down_weight").grad.full_tensor()  # type: ignore[union-attr, operator]
        torch.testing.assert_close(whole_grad, whole.down_weight.grad)
    plans = ({"split": "features"}, {"input_layouts": Replicate()}, {"use_local_output": False})
    for options in plans:
        given: Any = options
        call = lambda given=given: ExpertParallel(dispatch="all_to_all", **given)  # noqa: E731
        _refused(ValueError, "has tokens of its own", call)
    _refused(ValueError, "dispatch", lambda: ExpertParallel(dispatch="p2p"))  # type: ignore[arg-type]


def _overlapping(mesh: Any) -> None:
    """Results and gradients of the two functions."""
    from cutwheel.distributed import all_gather_linear, linear_reduce_scatter

    group, rank, size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    for sizes in (None, [3, 0, 5, 4], [0, 0, 7, 0]):
        rows = sizes or [3] * size
        torch.manual_seed(22)
        x = torch.randn(sum(rows), 8, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(size * 5, 8, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(size * 5, dtype=torch.float64, requires_grad=True)
        want = torch.nn.functional.linear(x, weight, bias)
        factors = torch.randn_like(want)
        (want * factors).sum().backward()

        mine = x.detach().split(rows)[rank].requires_grad_()
        parts = [t.detach().chunk(size)[rank].requires_grad_() for t in (weight, bias)]
        got = all_gather_linear(mine, *parts, group=group, sizes=sizes)
        torch.testing.assert_close(got, want.chunk(size, 1)[rank])
        (got * factors.chunk(size, 1)[rank]).sum().backward()
        for one, other in (
            (mine, x.grad.split(rows)[rank]),
            (parts[0], weight.grad.chunk(size)[rank]),
            (parts[1], bias.grad.chunk(size)[rank]),
        ):
            torch.testing.assert_close(one.grad, other)

        narrow = torch.randn(6, size * 3, dtype=torch.float64, requires_grad=True)
        x = torch.randn(sum(rows), size * 3, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(6, dtype=torch.float64, requires_grad=True)
        want = torch.nn.functional.linear(x, narrow, bias)
        factors = torch.randn_like(want)
        (want * factors).sum().backward()
        mine, part = (t.detach().chunk(size, 1)[rank].requires_grad_() for t in (x, narrow))
        added = bias.detach().clone().requires_grad_()
        got = linear_reduce_scatter(mine, part, added, group=group, sizes=sizes)
        torch.testing.assert_close(got, want.split(rows)[rank])
        (got * factors.split(rows)[rank]).sum().backward()
        for one, other in (
            (mine, x.grad.chunk(size, 1)[rank]),
            (part, narrow.grad.chunk(size, 1)[rank]),
            (added, bias.grad),
        ):
            torch.testing.assert_close(one.grad, other)


def _overlapping_gate(mesh: Any) -> None:
    """Results and gradients of all_gather_gated_linear, for each form of its weight and bias."""
    from cutwheel import pack_gated_weight
    from cutwheel.distributed import all_gather_gated_linear

    group, rank, size = mesh.get_group(), mesh.get_local_rank(), mesh.size()

    def own(tensor: Tensor) -> Tensor:
        return tensor.detach().chunk(size)[rank]

    forms: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "pair": lambda *both: both,
        "halves": lambda *both: torch.cat(both),
        "interleaved": pack_gated_weight,
    }
    for sizes in (None, [3, 0, 5, 4], [0, 0, 7, 0]):
        rows = sizes or [3] * size
        torch.manual_seed(23)
        x = torch.randn(sum(rows), 8, dtype=torch.float64, requires_grad=True)
        gate, up, b, c = (
            torch.randn(size * 6, *shape, dtype=torch.float64, requires_grad=True)
            for shape in ((8,), (8,), (), ())
        )
        for has_bias in (False, True):
            linear = torch.nn.functional.linear
            first, second = (b, c) if has_bias else (None, None)
            want = torch.nn.functional.gelu(linear(x, gate, first)) * linear(x, up, second)
            factors = torch.randn_like(want)
            tensors = (x, gate, up, *((b, c) if has_bias else ()))
            wanted = torch.autograd.grad(want, tensors, factors)
            wanted = (wanted[0].split(rows)[rank], *map(own, wanted[1:]))
            want = want.chunk(size, 1)[rank]
            for name, form in forms.items():
                mine = x.detach().split(rows)[rank].requires_grad_()
                parts = [own(tensor).requires_grad_() for tensor in tensors[1:]]
                bias = form(parts[2], parts[3]) if has_bias else None
                how: Any = {"group": group, "sizes": sizes, "interleaved": name == "interleaved"}
                call = functools.partial(all_gather_gated_linear, **how)
                got = call(mine, form(parts[0], parts[1]), "gelu", bias)
                torch.testing.assert_close(got, want)
                found = torch.autograd.grad(got, (mine, *parts), factors.chunk(size, 1)[rank])
                for one, other in zip(found, wanted, strict=True):
                    torch.testing.assert_close(one, other)
                with torch.no_grad():
                    got = call(mine, form(parts[0], parts[1]), "gelu", bias)
                torch.testing.assert_close(got, want)


def _overlap(cutwheel: Any, mesh: Any) -> None:
    """Without symmetric memory, and what is refused."""
    from cutwheel.distributed import (
        all_gather_gated_linear,
        all_gather_linear,
        linear_reduce_scatter,
    )

    _overlapping(mesh)
    _overlapping_gate(mesh)
    _in_full_precision(mesh)
    group, size = mesh.get_group(), mesh.size()

    def call(function: Any, *shapes: tuple[int, ...], **options: Any) -> Callable[[], Any]:
        tensors = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
        return lambda: function(*tensors, group=group, **options)

    gather, scatter = all_gather_linear, linear_reduce_scatter
    _refused(ValueError, r"expected \[M, K\] and \[N, K\]", call(gather, (2, 3), (4, 5)))
    _refused(ValueError, "bias has shape", call(gather, (2, 3), (4, 3), (3,)))
    _refused(ValueError, "sizes is", call(gather, (2, 3), (4, 3), sizes=[2, 2]))
    _refused(ValueError, "sizes is", call(gather, (2, 3), (4, 3), sizes=[1] * size))
    _refused(ValueError, "expected a multiple", call(scatter, (size + 1, 3), (4, 3)))
    _refused(ValueError, "with the sum", call(scatter, (2, 3), (4, 3), sizes=[1] * size))
    gated = all_gather_gated_linear
    _refused(
        ValueError, r"weight has shape \[5, 3\]; expected \[2F, K\]", call(gated, (2, 3), (5, 3))
    )
    _refused(ValueError, "activation", call(gated, (2, 3), (4, 3), activation="step"))
    x, gate, up = torch.randn(2, 3), torch.randn(4, 3), torch.randn(5, 3)
    _refused(ValueError, r"weight\[1\] has shape", lambda: gated(x, (gate, up), group=group))
    _refused(TypeError, r"weight\[1\]", lambda: gated(x, (gate, None), group=group))
    bias = torch.randn(3)
    for interleaved in (False, True):
        how: Any = {"group": group, "interleaved": interleaved}
        refused = functools.partial(gated, x, gate, bias=bias, **how)
        _refused(ValueError, r"all_gather_gated_linear: bias has shape \[3\]", refused)
    rows = torch.randn(size, 3, requires_grad=True)
    for function in (gather, gated, scatter):
        y = function(rows, gate, group=group)
        (of_rows,) = torch.autograd.grad(y.square().sum(), rows, create_graph=True)
        _refused(RuntimeError, "once_differentiable", of_rows.sum().backward)


def _in_full_precision(mesh: Any) -> None:
    """float32 where torch forbids TF32: torch multiplies the rows of all."""
    from cutwheel.distributed import all_gather_gated_linear

    group, rank, size = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    torch.manual_seed(24)
    x = torch.randn(2 * size, 8, requires_grad=True)
    weight = torch.randn(12, 8)
    want = _swiglu(x, weight)
    mine = x.detach().chunk(size)[rank].requires_grad_()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        got = all_gather_gated_linear(mine, weight, group=group)
        torch.testing.assert_close(got, want)
        got.sum().backward()
    finally:
        torch.set_float32_matmul_precision(before)
    (of_x,) = torch.autograd.grad(want.sum(), x)
    torch.testing.assert_close(mine.grad, size * of_x.chunk(size)[rank])


def _swiglu(x: Tensor, weight: Tensor) -> Tensor:
    gate, up = (x @ weight.t()).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


class _Memory:
    """Symmetric memory, of a file for each process that all of them map; of NaN at first."""

    def __init__(self, folder: Path, group: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.group, size = group, 1 << 14
        paths = [folder / str(rank) for rank in range(group.size())]
        if group.rank() == 0:
            for path in paths:
                path.write_bytes(b"\xff" * size)
        torch.distributed.barrier(group)
        self.all = [
            torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8) for path in paths
        ]

    def get_buffer(
        self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, storage_offset: int = 0
    ) -> Tensor:
        elements = self.all[rank].view(dtype)
        return elements.narrow(0, storage_offset, math.prod(shape)).view(shape)

    def barrier(self, channel: int, timeout_ms: int) -> None:
        from sharded_ops import TIMEOUT

        assert timeout_ms == 1000 * TIMEOUT.total_seconds()
        torch.distributed.barrier(self.group)


class _Stream:
    """On a CPU all is done in turn."""

    def wait_stream(self, _: Any) -> None: ...

    def wait_event(self, _: Any) -> None: ...

    def record_event(self) -> None: ...


def _overlap_by_memory(mesh: Any, folder: Path) -> None:
    """The same through memory that the processes share."""
    from cutwheel.distributed import _overlap

    memory = _Memory(folder, mesh.get_group())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_overlap, "has_symmetric_memory", lambda tensor, group: True)
        patch.setattr(_overlap, "_workspace", lambda group, size: memory)
        patch.setattr(_overlap, "_copy_stream", _Stream)
        patch.setattr(torch.cuda, "current_stream", _Stream)
        patch.setattr(torch.cuda, "stream", nullcontext)
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: None)
        _overlapping(mesh)
        _overlapping_gate(mesh)


def checks(cutwheel: Any, mesh: Any, folder: Path) -> dict[str, Callable[[], None]]:
    return {
        "linear": lambda: _linear(cutwheel, mesh),
        "shared input": lambda: _shared_input(cutwheel, mesh),
        "torchs styles": lambda: _torchs_styles(cutwheel, mesh),
        "gated mlp": lambda: _gated_mlp(cutwheel, mesh),
        "experts": lambda: _experts(cutwheel, mesh),
        "scaled linear": lambda: _scaled_linear(cutwheel, mesh),
        "fsdp2 in mixed precision": lambda: _mixed_precision(cutwheel, mesh),
        "checkpoints": lambda: _checkpoints(cutwheel, mesh, folder),
        "example": lambda: _example(mesh),
        "exchanged experts": lambda: _exchanged(cutwheel, mesh),
        "overlap": lambda: _overlap(cutwheel, mesh),
        "overlap by memory": lambda: _overlap_by_memory(mesh, folder / "memory"),
        "ddp": lambda: _ddp(cutwheel, mesh),
        "tensor parallelism in fsdp2": lambda: _two_dimensions(cutwheel, mesh),
    }
