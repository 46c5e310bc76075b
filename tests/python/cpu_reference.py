"""Reference kernels for CPU tensors: what is built of the ops can be tested on them anywhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
}


class CpuOps:
    """Reference kernels, and the calls that they have served.

    A call is (op, epilogue); for elementwise, what was asked for stands behind it.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def names(self, op: str) -> list[object]:
        """Epilogues of the calls of `op` since the last one of this, in order."""
        found = [call[1] for call in self.calls if call[0] == op]
        self.calls.clear()
        return found

    def mm(
        self, a: Tensor, b: Tensor, out_dtype: object = None, allow_tf32: bool = False
    ) -> Tensor:
        self.calls.append(("mm", "plain"))
        return a @ b

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, allow_tf32: bool = False
    ) -> Tensor:
        self.calls.append(("linear", "bias"))
        return F.linear(x, weight, bias)

    def _fused(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        epilogue: str,
    ) -> tuple[Tensor, Tensor]:
        name = epilogue.removesuffix("_aux")
        z = F.linear(x, weight, bias)
        if name.startswith("gated_"):
            return ACTIVATIONS[name.removeprefix("gated_")](z[..., 0::2]) * z[..., 1::2], z
        assert ("residual" in name) == (residual is not None)
        if name == "bias_residual":
            return z + residual, z
        if name.startswith("bias_residual_"):
            z = z + residual
            return ACTIVATIONS[name.removeprefix("bias_residual_")](z), z
        d = ACTIVATIONS[name.removeprefix("bias_").removesuffix("_residual")](z)
        return d if residual is None else d + residual, z

    def linear_fused(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        epilogue: str,
        allow_tf32: bool = False,
    ) -> Tensor:
        assert not epilogue.endswith("_aux")
        self.calls.append(("linear_fused", epilogue))
        return self._fused(x, weight, bias, residual, epilogue)[0]

    def linear_fused_aux(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        epilogue: str,
        allow_tf32: bool = False,
    ) -> tuple[Tensor, Tensor]:
        assert epilogue.endswith("_aux")
        self.calls.append(("linear_fused_aux", epilogue))
        return self._fused(x, weight, bias, residual, epilogue)

    def elementwise(
        self,
        operands: list[Tensor],
        epilogue: str,
        with_result: bool = True,
        with_sums: bool = False,
    ) -> tuple[Tensor, Tensor]:
        self.calls.append(("elementwise", epilogue, with_result, with_sums))
        assert with_result or with_sums
        grad, *rest = operands
        name = epilogue.removesuffix("_backward")
        result = grad
        if rest:
            (z,) = rest
            gated = name.startswith("gated_")
            assert z.shape == (*grad.shape[:-1], grad.shape[-1] * (2 if gated else 1))
            argument = z.detach().to(torch.promote_types(z.dtype, torch.float32)).requires_grad_()
            with torch.enable_grad():
                if gated:
                    act = ACTIVATIONS[name.removeprefix("gated_")]
                    d = act(argument[..., 0::2]) * argument[..., 1::2]
                else:
                    d = ACTIVATIONS[name](argument)
            (result,) = torch.autograd.grad(d, argument, grad.to(d.dtype))
        wide = torch.promote_types(grad.dtype, torch.float32)
        sums = result.to(wide).reshape(-1, result.shape[-1]).sum(0)
        return (
            result.to(grad.dtype).clone() if with_result else grad.new_empty(0),
            sums.to(grad.dtype) if with_sums else grad.new_empty(0),
        )

    def gemm(
        self,
        a: Tensor,
        b: Tensor,
        epilogue: str,
        operands: list[Tensor | None],
        scalars: list[float],
        out_dtype: torch.dtype | None = None,
        allow_tf32: bool = False,
    ) -> list[Tensor]:
        self.calls.append(("gemm", epilogue))
        accum = a @ b
        if epilogue == "linear_combination":
            (c,), (alpha, beta) = operands, scalars
            return [alpha * accum + (0 if c is None else beta * c)]
        if epilogue.endswith("_backward"):
            (bias, grad), (alpha,) = operands, scalars
            assert grad is not None
            z = (alpha * accum + (0 if bias is None else bias)).detach().requires_grad_()
            with torch.enable_grad():
                d = ACTIVATIONS[epilogue.removeprefix("bias_").removesuffix("_backward")](z)
            return list(torch.autograd.grad(d, z, grad))
        assert epilogue == "bias_leaky_relu"
        (bias,), (alpha, slope) = operands, scalars
        return [F.leaky_relu(alpha * accum + (0 if bias is None else bias), slope)]
