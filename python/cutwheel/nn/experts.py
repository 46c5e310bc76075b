"""The experts of a mixture-of-experts layer, behind whatever router chooses them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ops._common import sharding
from ..ops._common.activations import check_activation
from ..ops._common.errors import check_tensors, shape_text, wrong_dtype, wrong_shape
from ..ops._common.sizes import shapes_differ
from ..ops._common.transforms import REVERSE, is_transformed, refuse
from ..ops.grouped import grouped_mm
from ..ops.grouped._linear import grouped_gated_linear
from ..ops.linear._gated import GATED_ACTIVATIONS

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class GroupedExperts(torch.nn.Module):
    """A gated MLP for each expert, and for each token those that a router has chosen.

    With G experts, the result for a token x with experts e_i and weights w_i is the sum over i of

        w_i * down[e_i](act(gate[e_i](x)) * up[e_i](x))

    Tokens are sorted by expert, go through two grouped GEMMs, and are added up where they came
    from. All of it happens on the GPU without waiting for it, in shapes that do not depend on the
    routing, so it can be compiled and captured in a CUDA graph; no token is dropped, and there is
    no padding.

    Parameters, and entries of the state dict, are `gate_up_weight`, [G, 2F, H], packed as
    pack_gated_weight packs gate and up, [G, F, H] each, and `down_weight`, [G, H, F].

    With a process group, each of its devices has a run of the experts, ceil(G / size) of them (the
    last ones may have fewer, or none), and tokens of its own, any number of them. Each row goes to
    the device of its expert, and its result comes back: two all-to-alls, and two backward. Their
    sizes are exchanged first, and the host waits for them; so it is neither captured in a CUDA
    graph nor traced whole. All devices have to make the call and run backward. The gradients of
    weights are sums over the tokens of the whole group.

    Args:
        num_experts: G, of all devices
        hidden_size: H, features of input and output
        intermediate_size: F, features between
        activation: as in cutwheel.gated_linear
        device, dtype: of the parameters
        process_group: a torch.distributed.ProcessGroup that shares the experts; None: all of them
            are here. Parameters are those of this device's experts

    Raises:
        ValueError: an activation that is not known
    """

    gate_up_weight: torch.nn.Parameter
    down_weight: torch.nn.Parameter

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        intermediate_size: int,
        activation: str = "silu",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        check_activation(activation, GATED_ACTIVATIONS, "GroupedExperts")
        super().__init__()
        self.num_experts = num_experts
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.activation = activation
        self.process_group = process_group
        own = range(num_experts) if process_group is None else self._own_experts()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.gate_up_weight = torch.nn.Parameter(
            torch.empty(len(own), 2 * intermediate_size, hidden_size, **options)
        )
        self.down_weight = torch.nn.Parameter(
            torch.empty(len(own), hidden_size, intermediate_size, **options)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialises each expert's gate, up and down as torch.nn.Linear does."""
        for weight in (self.gate_up_weight, self.down_weight):
            if weight.numel():
                bound = weight.shape[-1] ** -0.5
                torch.nn.init.uniform_(weight, -bound, bound)

    def forward(self, input: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> Tensor:
        """The weighted sum of the chosen experts' results.

        Args:
            input: [..., H]
            expert_ids: [..., k], int32 or int64: the experts of each token. One that is not in
                0 to G - 1, such as -1, is none, and adds zeros: a token that was dropped, or an
                expert of another GPU
            expert_weights: [..., k], floating point: the factors, which may require grad

        Returns:
            [..., H], in the dtype of input, or of autocast

        Raises:
            ValueError: shapes that do not fit
            TypeError: a dtype that is none of the above
            RuntimeError, NotImplementedError: as mm
        """
        self._check(input, expert_ids, expert_weights)
        gate_up, down, first = self.gate_up_weight, self.down_weight, 0
        num_experts = self.num_experts
        if sharding.calls is not None and sharding.calls.is_sharded(gate_up, down):
            gate_up, down, first = sharding.calls.own_experts(gate_up, down)
            if self.process_group is None:
                # Experts of other devices count as none.
                num_experts = gate_up.shape[0]
            else:
                first = 0
        if is_transformed():
            weights = {"gate_up_weight": self.gate_up_weight, "down_weight": self.down_weight}
            given = {"input": input, "expert_weights": expert_weights}
            refuse("GroupedExperts", REVERSE, **given, **weights)

        def mlp(rows: Tensor, offs: Tensor) -> Tensor:
            compute = self._compute if self.process_group is None else self._exchange
            return compute(rows, gate_up, down, offs)

        ids = expert_ids - first if first else expert_ids
        tokens = input.reshape(-1, self.hidden_size)
        return by_expert(mlp, tokens, ids, expert_weights, num_experts).view(input.shape)

    def _compute(self, rows: Tensor, gate_up: Tensor, down: Tensor, offs: Tensor) -> Tensor:
        hidden = grouped_gated_linear(rows, gate_up, offs=offs, activation=self.activation)
        return grouped_mm(hidden, down.mT, offs=offs)

    def _exchange(self, rows: Tensor, gate_up: Tensor, down: Tensor, offs: Tensor) -> Tensor:
        """_compute, each row on the device of its expert."""
        from ..distributed._exchange import plan_exchange

        plan = plan_exchange(offs, self.num_experts, self.process_group)
        sent = sum(plan.send)
        received = plan.dispatch(rows if sent == rows.shape[0] else rows[:sent])
        # From the order of devices, each with its rows by expert, to that of experts.
        sorted_rows = _take(received, plan.order, plan.places, 1)
        if gate_up.shape[0]:
            results = self._compute(sorted_rows, gate_up, down, plan.offs)
        else:
            # No experts, so no rows. Weights get a gradient, and devices meet in backward.
            results = sorted_rows + 0 * (gate_up.sum() + down.sum())
        results = plan.combine(_take(results, plan.places, plan.order, 1))
        behind = rows.shape[0] - sent  # those without an expert
        return torch.nn.functional.pad(results, (0, 0, 0, behind)) if behind else results

    def _own_experts(self) -> range:
        from ..distributed._exchange import experts_of

        return experts_of(self.num_experts, self.process_group)

    def __deepcopy__(self, memo: dict[int, Any]) -> GroupedExperts:
        """Copies share the process group, which cannot be copied."""
        memo[id(self.process_group)] = self.process_group
        cls = type(self)
        copied = cls.__new__(cls)
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def extra_repr(self) -> str:
        return (
            f"num_experts={self.num_experts}, hidden_size={self.hidden_size}, "
            f"intermediate_size={self.intermediate_size}, activation={self.activation!r}"
        )

    def _check(self, input: Tensor, expert_ids: Tensor, expert_weights: Tensor) -> None:
        op = "GroupedExperts"
        given = {"input": input, "expert_ids": expert_ids, "expert_weights": expert_weights}
        check_tensors(op, given)
        if input.dim() < 1 or input.shape[-1] != self.hidden_size:
            raise wrong_shape(op, "input", input, ("...", self.hidden_size))
        if expert_ids.dtype not in (torch.int32, torch.int64):
            raise wrong_dtype(op, "expert_ids", expert_ids.dtype, "int32 or int64")
        if not expert_weights.is_floating_point():
            wanted = "a floating-point dtype"
            raise wrong_dtype(op, "expert_weights", expert_weights.dtype, wanted)
        if expert_ids.dim() != input.dim() or shapes_differ(
            expert_ids.shape[:-1], input.shape[:-1]
        ):
            why = f" as input has shape {shape_text(input.shape)}"
            raise wrong_shape(op, "expert_ids", expert_ids, (*input.shape[:-1], "k"), why)
        if shapes_differ(expert_weights.shape, expert_ids.shape):
            wanted_shape, why = expert_ids.shape, " as expert_ids has"
            raise wrong_shape(op, "expert_weights", expert_weights, wanted_shape, why)


def by_expert(
    mlp: Callable[[Tensor, Tensor], Tensor],
    tokens: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    num_experts: int,
) -> Tensor:
    """The weighted sum of what `mlp` makes of each token for its experts.

    Args:
        mlp: of rows [T k, H] by expert and the end of each expert's rows, [G], int32; returns
            [T k, N], of which rows behind the last end are zeros
        tokens: [T, H]
        expert_ids: [..., k], T times k of them; one that is not in 0 to num_experts - 1 is none
        expert_weights: [..., k]
        num_experts: G

    Returns:
        [..., N], in the dtype of what mlp returns
    """
    k = expert_ids.shape[-1]
    ids = expert_ids.reshape(-1)  # [T k]
    # Tokens without an expert are sorted behind the last group: the rows there are zeros.
    is_none = (ids < 0) | (ids >= num_experts)
    ids = torch.where(is_none, num_experts, ids).int()
    sorted_ids, order = torch.sort(ids, stable=True)
    # The place of each of the T k rows among the sorted ones.
    places = torch.empty_like(order).scatter_(
        0, order, torch.arange(order.shape[0], device=order.device)
    )
    experts = torch.arange(num_experts, device=ids.device, dtype=ids.dtype)
    offs = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)  # [G]

    results = mlp(_take(tokens, order, places, k), offs)  # [T k, N]
    by_token = _take(results, places, order, 1).view(*expert_weights.shape, results.shape[-1])
    # 0 times an infinite weight would be NaN.
    factors = expert_weights.masked_fill(is_none.view(expert_weights.shape), 0)
    return (by_token * factors.unsqueeze(-1)).sum(-2).to(results.dtype)


class _Take(torch.autograd.Function):
    """Row order[i] // k of the tokens as row i, each of them k times.

    torch's gradient of indexing adds up with atomics, in an order that changes. Here each row comes
    back to its place, and the k of a token are added up there.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, order: Tensor, places: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(order, places)
        ctx.rows, ctx.k = tokens.shape[0], k
        return tokens.index_select(0, order if k == 1 else order // k)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        order, places = ctx.saved_tensors
        by_token = _take(grad, places, order, 1)
        if ctx.k != 1:
            by_token = by_token.view(ctx.rows, ctx.k, grad.shape[1]).sum(1)
        return by_token, None, None, None


_take: Callable[..., Tensor] = _Take.apply
