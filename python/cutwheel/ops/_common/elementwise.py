"""Elementwise parts of backward passes: derivatives of activations, and sums over rows.

With z the argument of an activation and G the gradient of its result, dz = G * act'(z); of a gated
linear unit act(g) * u, dg = G * u * act'(g) and du = G * act(g). Formulas, storage and sums over
rows are those of the epilogues that the manifest declares for the family `elementwise`; sums are
accumulated in float32 and rounded once.

Where the gradient of a gradient is wanted, it is that of torch's own derivative, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, is_grad_enabled

from .activations import ACTIVATIONS
from .call import Op, fast_apply, is_tracing, overloads
from .errors import out_of_memory
from .transforms import is_transformed

Gradient = Tensor | None
_Binary = Callable[[Tensor, Tensor], Tensor]
_overload, _overload_direct = overloads("elementwise")
_aten = torch.ops.aten


def _elementwise(
    operands: list[Tensor],
    epilogue: str,
    with_result: bool,
    with_sums: bool,
    in_halves: bool = False,
) -> tuple[Tensor, Tensor]:
    call = _overload if is_tracing() else _overload_direct
    try:
        result, sums = call(operands, epilogue, with_result, with_sums, in_halves)
    except RuntimeError as error:
        raise out_of_memory(error) from None
    return result, sums


def _silu_backward(grad: Tensor, z: Tensor) -> Tensor:
    # torch's own kernel for it has no derivative.
    sigmoid = torch.sigmoid(z)
    return grad * sigmoid * (1 + z * (1 - sigmoid))


_DERIVATIVES: dict[str, _Binary] = {
    "relu": lambda grad, z: _aten.threshold_backward(grad, z, 0),
    "gelu": lambda grad, z: _aten.gelu_backward(grad, z),
    "gelu_tanh": lambda grad, z: _aten.gelu_backward(grad, z, approximate="tanh"),
    "silu": _silu_backward,
}


def _gated(activation: str) -> _Binary:
    act, derivative = ACTIVATIONS[activation], _DERIVATIVES[activation]

    def backward(grad: Tensor, z: Tensor) -> Tensor:
        gate, up = z[..., 0::2], z[..., 1::2]
        return torch.stack((derivative(grad * up, gate), grad * act(gate)), dim=-1).flatten(-2)

    return backward


# By the epilogue's name: the same function of (grad, z) in ops that torch can differentiate.
_REFERENCES: dict[str, _Binary] = {
    **{f"{name}_backward": derivative for name, derivative in _DERIVATIVES.items()},
    **{f"gated_{name}_backward": _gated(name) for name in _DERIVATIVES},
}


def derivative(
    grad: Tensor,
    z: Tensor,
    epilogue: str,
    with_result: bool,
    with_sums: bool,
    in_halves: bool = False,
) -> tuple[Tensor, Tensor]:
    """(dz, its sum over rows) for the gradient of an activation's result.

    Args:
        grad: [..., N]
        z: [..., N], the activation's argument ([..., 2N] if gated); of relu, its result
        epilogue: "<activation>_backward" or "gated_<activation>_backward"
        with_result, with_sums: what to compute; the other one comes back empty
        in_halves: of a gated unit, dz has the columns of gate, then those of up; the sums have them
            in turn, as z

    Returns:
        as `z`, and [N] ([2N] if gated)
    """
    how = epilogue, with_result, with_sums
    if is_transformed():
        dz, sums = _derivative_by_torch(grad, z, *how)
    elif is_grad_enabled() and (grad.requires_grad or z.requires_grad):
        dz, sums = _derivative_with_grad(grad, z, *how)
    elif in_halves and grad.shape[-1] % (16 // grad.element_size()) == 0:
        return _elementwise([grad, z], *how, True)
    else:
        dz, sums = _elementwise([grad, z], *how)
    return (halves_of(dz), sums) if in_halves and with_result else (dz, sums)


def halves_of(z: Tensor) -> Tensor:
    """[..., 2F], whose columns are in turn those of two matrices: those of the first, then those of
    the other."""
    return torch.cat((z[..., 0::2], z[..., 1::2]), dim=-1)


def sum_rows(grad: Tensor) -> Tensor:
    """[..., N] -> [N], the gradient of a bias."""
    if is_transformed():
        return _sum_rows_by_torch(grad).to(grad.dtype)
    if is_grad_enabled() and grad.requires_grad:
        return _sum_rows_with_grad(grad)
    return _elementwise([grad], "identity_backward", False, True)[1]


def _sum_rows_by_torch(grad: Tensor) -> Tensor:
    """In float32, or wider."""
    dtype = torch.promote_types(grad.dtype, torch.float32)
    rows = list(range(grad.dim() - 1))
    return grad.to(dtype).sum(rows) if rows else grad.to(dtype)


def _derivative_by_torch(
    grad: Tensor, z: Tensor, epilogue: str, with_result: bool, with_sums: bool
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(z.dtype, torch.float32)
    dz = _REFERENCES[epilogue](grad.to(dtype), z.to(dtype))
    nothing = z.new_empty(0)
    return (
        dz.to(z.dtype) if with_result else nothing,
        _sum_rows_by_torch(dz).to(z.dtype) if with_sums else nothing,
    )


def _leaf(tensor: Tensor, create_graph: bool) -> Tensor:
    """`tensor` in float32 as a node of its own: a gradient with respect to it is a partial one,
    although `grad` may depend on z."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    if create_graph and tensor.requires_grad:
        return tensor.view_as(tensor).to(dtype)
    return tensor.detach().to(dtype).requires_grad_()


class _Derivative(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, z: Tensor, epilogue: str, with_result: bool, with_sums: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(grad, z)
        ctx.epilogue = epilogue
        return _elementwise([grad, z], epilogue, with_result, with_sums)

    @staticmethod
    def backward(ctx: Any, of_dz: Gradient, of_sums: Gradient) -> tuple[Gradient, ...]:
        grad, z = ctx.saved_tensors
        if of_sums is not None:
            rows = of_sums.expand(z.shape)
            of_dz = rows if of_dz is None else of_dz + rows
        needs = ctx.needs_input_grad[:2]
        if of_dz is None or not any(needs):
            return None, None, None, None, None
        create_graph = is_grad_enabled()
        with torch.enable_grad():
            leaves = _leaf(grad, create_graph), _leaf(z, create_graph)
            dz = _REFERENCES[ctx.epilogue](*leaves)
            wanted = [leaf for leaf, needed in zip(leaves, needs, strict=True) if needed]
            found = iter(
                torch.autograd.grad(dz, wanted, of_dz.to(dz.dtype), create_graph=create_graph)
            )
        return (
            next(found).to(grad.dtype) if needs[0] else None,
            next(found).to(z.dtype) if needs[1] else None,
            None,
            None,
            None,
        )


class _SumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor) -> Tensor:
        ctx.shape = grad.shape
        return _elementwise([grad], "identity_backward", False, True)[1]

    @staticmethod
    def backward(ctx: Any, of_sums: Tensor) -> Tensor:
        return of_sums.expand(ctx.shape)


_derivative_with_grad: Callable[..., tuple[Tensor, Tensor]] = fast_apply(_Derivative, 2)
_sum_rows_with_grad: Op = fast_apply(_SumRows, 1)
