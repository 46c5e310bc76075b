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
from ..ops.grouped._linear import gathered_gated_linear
from ..ops.grouped._permutation import Routing, permute, route, unpermute
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

        def mlp(tokens: Tensor, routing: Routing) -> Tensor:
            compute = self._compute if self.process_group is None else self._exchange
            return compute(tokens, gate_up, down, routing)

        if not num_experts:
            return _no_experts(input, expert_weights, gate_up, down)
        ids = expert_ids - first if first else expert_ids
        tokens = input.reshape(-1, self.hidden_size)
        return by_expert(mlp, tokens, ids, expert_weights, num_experts).view(input.shape)

    def _compute(self, tokens: Tensor, gate_up: Tensor, down: Tensor, routing: Routing) -> Tensor:
        hidden = gathered_gated_linear(tokens, gate_up, routing, self.activation, interleaved=True)
        return grouped_mm(hidden, down.mT, offs=routing.offs)

    def _exchange(self, tokens: Tensor, gate_up: Tensor, down: Tensor, routing: Routing) -> Tensor:
        """_compute, each row on the device of its expert."""
        from ..distributed._exchange import plan_exchange

        plan = plan_exchange(routing.offs, self.num_experts, self.process_group)
        rows = permute(tokens, routing.places)
        sent = sum(plan.send)
        received = plan.dispatch(rows if sent == rows.shape[0] else rows[:sent])
        if gate_up.shape[0]:
            results = self._compute(received, gate_up, down, plan.routing)
        else:
            # No experts, so no rows. Weights get a gradient, and devices meet in backward.
            results = received + 0 * (gate_up.sum() + down.sum())
        results = plan.combine(unpermute(results, plan.routing.places))
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


def _no_experts(input: Tensor, *others: Tensor) -> Tensor:
    """Zeros, and zeros as gradients of all tensors: devices meet in backward."""
    whole = torch.ones((), dtype=torch.bool, device=input.device)
    return input.masked_fill(whole, 0) + sum(x.masked_fill(whole, 0).sum() for x in others)


def by_expert(
    mlp: Callable[[Tensor, Routing], Tensor],
    tokens: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    num_experts: int,
) -> Tensor:
    """The weighted sum of what `mlp` makes of each token for its experts.

    Args:
        mlp: of tokens and where their rows go; returns [T k, N], rows by expert, of which those
            behind the last expert's are not read
        tokens: [T, H]
        expert_ids: [..., k], T times k of them; one that is not in 0 to num_experts - 1 is none
        expert_weights: [..., k]
        num_experts: G

    Returns:
        [..., N], in the dtype of what mlp returns
    """
    k = expert_ids.shape[-1]
    routing = route(expert_ids.reshape(tokens.shape[0], k), num_experts)
    results = mlp(tokens, routing)
    factors = expert_weights.reshape(tokens.shape[0], k)
    if factors.dtype == torch.float64 != results.dtype:
        factors = factors.float()
    result = unpermute(results, routing.places, factors, routing.offs)
    return result.view(*expert_ids.shape[:-1], results.shape[-1])
