"""A block of Llama in tensor and sequence parallelism, by cutwheel's plans and by torch's.

Both gather the tokens once in front of the attention and once in front of the MLP, and scatter the
sums behind each. "cutwheel, overlapping" is the same block by all_gather_linear,
all_gather_gated_linear and linear_reduce_scatter. Rotary embeddings, alike in all, are left out.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

import cutwheel
from cutwheel.tuning.case import Case, Provider
from cutwheel.tuning.measure import deviation, exactly, tolerance

from .team import Team

Tensor = torch.Tensor
DTYPE = torch.bfloat16
SEED = 2611


class Block(NamedTuple):
    tokens: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def flops(self) -> int:
        """Operations of a forward pass, with the causal half of the attention."""
        kv = self.kv_heads * self.head
        linear = self.hidden * (2 * self.hidden + 2 * kv + 3 * self.intermediate)
        return 2 * self.tokens * linear + 2 * self.tokens**2 * self.hidden

    def fields(self, _: str) -> dict[str, Any]:
        return {"input": list(self), "m": self.tokens}

    def __str__(self) -> str:
        return " x ".join(map(str, self))


def attention(q: Tensor, k: Tensor, v: Tensor, head: int) -> Tensor:
    """Causal, of [B, T, features]; keys and values may have fewer heads."""
    parts = (part.unflatten(-1, (-1, head)).transpose(1, 2) for part in (q, k, v))
    mixed = functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, shape: Block, linear: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.head = shape.head
        kv = shape.kv_heads * shape.head
        self.query = linear(shape.hidden, shape.hidden, bias=False, **options)
        self.key = linear(shape.hidden, kv, bias=False, **options)
        self.value = linear(shape.hidden, kv, bias=False, **options)
        self.out = linear(shape.hidden, shape.hidden, bias=False, **options)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        mixed = attention(self.query(x), self.key(x), self.value(x), self.head)
        result: Tensor = self.out(mixed) if residual is None else self.out(mixed, residual)
        return result


class Mlp(nn.Module):
    """torch's"""

    def __init__(self, shape: Block, **options: Any) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False, **options)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False, **options)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False, **options)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class TorchBlock(nn.Module):
    def __init__(self, shape: Block, **options: Any) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden, eps=1e-5, **options)
        self.attention = Attention(shape, nn.Linear, **options)
        self.mlp_norm = nn.RMSNorm(shape.hidden, eps=1e-5, **options)
        self.mlp = Mlp(shape, **options)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result

    def weights(self) -> list[nn.Parameter]:
        return _weights(self.attention, self.mlp)


class OurBlock(nn.Module):
    def __init__(self, shape: Block, whole: TorchBlock, **options: Any) -> None:
        super().__init__()
        self.attention_norm = copy.deepcopy(whole.attention_norm)
        self.attention = Attention(shape, cutwheel.nn.Linear, **options)
        self.mlp_norm = copy.deepcopy(whole.mlp_norm)
        self.mlp = cutwheel.nn.GatedMLP(shape.hidden, shape.intermediate, **options)
        self.attention.load_state_dict(whole.attention.state_dict())
        self.mlp.load_state_dict(whole.mlp.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(self.attention_norm(x), x)
        result: Tensor = self.mlp(self.mlp_norm(x), x)
        return result

    def weights(self) -> list[nn.Parameter]:
        return _weights(self.attention, self.mlp)


def _weights(attention: Any, mlp: Any) -> list[nn.Parameter]:
    """In the order that gradients are compared in."""
    layers = (attention.query, attention.key, attention.value, attention.out)
    return [layer.weight for layer in (*layers, mlp.gate_proj, mlp.up_proj, mlp.down_proj)]


class Overlapping(nn.Module):
    """This process's part of the block, and its tokens: [1, T / size, H]."""

    def __init__(self, shape: Block, whole: TorchBlock, team: Team) -> None:
        super().__init__()
        self.head, self.group = shape.head, team.group
        self.attention_norm = copy.deepcopy(whole.attention_norm)
        self.mlp_norm = copy.deepcopy(whole.mlp_norm)
        query, key, value, out, gate, up, down = (w.detach() for w in whole.weights())

        def columns(*weights: Tensor) -> nn.Parameter:
            return nn.Parameter(torch.cat([team.part(weight) for weight in weights]))

        self.qkv, self.gate_up = columns(query, key, value), columns(gate, up)
        self.widths = [team.part(weight).shape[0] for weight in (query, key, value)]
        self.out = nn.Parameter(team.part(out, 1))
        self.down = nn.Parameter(team.part(down, 1))

    def forward(self, x: Tensor) -> Tensor:
        from cutwheel.distributed import (
            all_gather_gated_linear,
            all_gather_linear,
            linear_reduce_scatter,
        )

        x = x.squeeze(0)
        whole = all_gather_linear(self.attention_norm(x), self.qkv, group=self.group)
        mixed = attention(*whole.unsqueeze(0).split(self.widths, -1), self.head).squeeze(0)
        x = x + linear_reduce_scatter(mixed, self.out, group=self.group)
        between = all_gather_gated_linear(self.mlp_norm(x), self.gate_up, group=self.group)
        x = x + linear_reduce_scatter(between, self.down, group=self.group)
        return x.unsqueeze(0)

    def weights(self) -> list[nn.Parameter]:
        return [self.qkv, self.out, self.gate_up, self.down]


# ---- plans
def torch_plan() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    tokens = Shard(1)
    gathered = PrepareModuleInput(input_layouts=(tokens,), desired_input_layouts=(Replicate(),))
    norm = SequenceParallel(sequence_dim=1, use_local_output=True)
    colwise, rowwise = ColwiseParallel(), RowwiseParallel(output_layouts=tokens)
    return {
        "attention_norm": norm,
        "attention": gathered,
        **{f"attention.{name}": colwise for name in ("query", "key", "value")},
        "attention.out": rowwise,
        "mlp_norm": norm,
        "mlp": gathered,
        "mlp.gate_proj": colwise,
        "mlp.up_proj": colwise,
        "mlp.down_proj": rowwise,
    }


def our_plan() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel

    from cutwheel.distributed import ColwiseParallel, GatedMLPParallel, RowwiseParallel

    tokens = Shard(1)
    norm = SequenceParallel(sequence_dim=1, use_local_output=True)
    colwise = ColwiseParallel()
    return {
        "attention_norm": norm,
        # The residual stays as it is.
        "attention": PrepareModuleInput(
            input_layouts=(tokens, None), desired_input_layouts=(Replicate(), None)
        ),
        **{f"attention.{name}": colwise for name in ("query", "key", "value")},
        "attention.out": RowwiseParallel(output_layouts=tokens),
        "mlp_norm": norm,
        "mlp": GatedMLPParallel(input_layouts=tokens, output_layouts=tokens),
    }


def _local(tensor: Any) -> Tensor:
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def _concatenated(widths: list[int], gradients: list[Tensor]) -> list[Tensor]:
    """Gradients as those of query, key, value, out, gate, up and down."""
    qkv, out, gate_up, down = gradients
    return [*qkv.split(widths), out, *gate_up.chunk(2), down]


def case(team: Team, shape: Block, *, is_training: bool) -> Case:
    """A pass over [1, T, H], of which each GPU has some tokens; in training the gradients of tokens
    and weights, too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    operands = team.operands(SEED)
    options: Any = {"device": team.device, "dtype": DTYPE}
    whole = TorchBlock(shape, **options)
    for norm in (whole.attention_norm, whole.mlp_norm):
        norm.requires_grad_(False)
    x = operands.normal(1, shape.tokens, shape.hidden)
    factors = operands.normal(1, shape.tokens, shape.hidden)
    mesh = init_device_mesh(team.device.type, (team.size,))
    ours = OurBlock(shape, whole, **options)
    overlapping = Overlapping(shape, whole, team)
    precise = copy.deepcopy(whole).float()
    alone = None if is_training else copy.deepcopy(ours)
    torchs = parallelize_module(whole, mesh, torch_plan())
    ours = parallelize_module(ours, mesh, our_plan())
    mine, grad = team.part(x, 1), team.part(factors, 1)

    def step(block: Any, x: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The result, and gradients of x and of the weights."""
        if not is_training:
            with torch.no_grad():
                return block(x), x, []
        x = x.detach().requires_grad_()
        y = block(x)
        of_x, *gradients = torch.autograd.grad(y, [x, *block.weights()], factors)
        return y.detach(), of_x, [_local(gradient) for gradient in gradients]

    @functools.cache
    def reference(_: int) -> Any:
        found: Any = exactly(
            lambda x, factors: step(precise, x, factors), x, factors, dtype=torch.float32
        )
        y, of_x, gradients = found
        if not is_training:
            return team.part(y, 1)
        is_rowwise = (False, False, False, True, False, False, True)
        parts = [team.part(g, int(r)) for g, r in zip(gradients, is_rowwise, strict=True)]
        return team.part(y, 1), team.part(of_x, 1), *parts

    def provider(name: str, block: Any, sort: Callable[[list[Tensor]], list[Tensor]]) -> Provider:
        def call(_: int) -> Any:
            y, of_x, gradients = step(block, mine, grad)
            return (y, of_x, *sort(gradients)) if is_training else y

        return Provider(name, call)

    baseline = provider("torch", torchs, list)
    concatenated = functools.partial(_concatenated, overlapping.widths)
    providers = [
        baseline,
        provider("cutwheel, overlapping", overlapping, concatenated),
        provider("cutwheel", ours, list),
    ]
    allowed = tolerance(team.largest(deviation(baseline.call(0), reference(0))), DTYPE)
    if alone is not None:  # with all tokens on each GPU: what several GPUs gain
        one = Provider("cutwheel, one GPU", lambda _: team.part(step(alone, x, factors)[0], 1))
        providers.insert(1, one)
    return Case(
        providers,
        1,
        reference,
        allowed,
        (3 if is_training else 1) * shape.flops / team.size,
        sum(weight.nbytes for weight in precise.parameters()) / 2 / team.size,
        [("cutwheel", "torch"), ("cutwheel, overlapping", "torch")],
    )
