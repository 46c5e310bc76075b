"""Linear layers with a quantised weight, whose input is quantised at each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled

from ..errors import DeviceError
from ..ops import gemm
from ..ops._common import sharding
from ..ops._common.elementwise import sum_rows
from ..ops._common.errors import check_tensors, dtype_name, wrong_dtype, wrong_shape
from ..ops._common.precision import DTYPES
from ..ops._common.transforms import NO_DERIVATIVE, REVERSE, is_transformed, refuse
from ..ops.scaled import column_sums, quantize, scaled_mm
from ..ops.scaled._recipes import BLOCK, blocks
from ._frozen import keep_dtypes
from ._source import check_source
from .dense import Linear

# The recipes of the input and of the weight [N, K], which scaled_mm takes transposed.
_RECIPES = {
    "tensorwise": ("tensorwise", "tensorwise"),
    "rowwise": ("rowwise", "rowwise"),
    "blockwise": ("blockwise_1x128", "blockwise_128x128"),
}
_DTYPES = (torch.float8_e4m3fn, torch.int8)


def _check_options(recipe: str, dtype: torch.dtype, symmetric: bool) -> None:
    if recipe not in _RECIPES:
        raise ValueError(
            f"ScaledLinear: recipe is {recipe!r}; expected one of {', '.join(_RECIPES)}"
        )
    if dtype not in _DTYPES:
        raise TypeError(f"ScaledLinear: dtype is {dtype}; expected float8_e4m3fn or int8")
    if dtype == torch.int8 and recipe == "blockwise":
        raise ValueError(
            "ScaledLinear: recipe is 'blockwise' with dtype int8; expected tensorwise or rowwise"
        )
    if dtype != torch.int8 and not symmetric:
        raise ValueError(
            "ScaledLinear: symmetric is False with dtype float8_e4m3fn; expected dtype int8: fp8 "
            "has no zero point"
        )


class ScaledLinear(torch.nn.Module):
    """input @ weight.T + bias with weight and input in fp8 or int8.

    The weight is quantised once, by from_linear, and is a buffer: it is not trained. The input is
    quantised at each call. The result has the dtype of the input, or autocast's.

    The state dict has `weight` [N, K] in `dtype`, `weight_scale` in float32 and `bias` [N]; with
    symmetric=False also `weight_sum`, int32 [N], the sums over K that zero points need. Scales are
    [1] (tensorwise), [N, 1] (rowwise) or [ceil(N / 128), ceil(K / 128)] (blockwise).
    load_state_dict takes a tensorwise scale of any shape with one element, and rowwise ones as [N],
    too; it computes `weight_sum` where there is a weight without. half(), bfloat16(), to(dtype) and
    the like change the bias alone.

    A new layer's weight is 0, its scales are 1: fill them by load_state_dict, or take from_linear.

    Args:
        in_features: K
        out_features: N
        bias: whether there is one
        recipe: of input and weight: "tensorwise", "rowwise" (a scale for each row of the input and
            each output feature) or "blockwise" (1x128 of the input, 128x128 of the weight)
        dtype: float8_e4m3fn, or int8 (not blockwise)
        symmetric: False, of int8 only: the input is quantised with a zero point
        use_fast_accum: as in scaled_mm
        straight_through: whether there are gradients, of input and bias: those of the GEMM with
            the weight that the values stand for, as if the input were not rounded. That GEMM is
            cutwheel.mm in the dtype of the result; the weight is multiplied out for it at each
            backward pass. Otherwise an input or a bias that requires grad is refused
        bias_dtype: of the bias; None: torch.get_default_dtype()
        device: of the buffers

    Raises:
        ValueError, TypeError: options that are not known, or do not go together
    """

    weight: Tensor
    weight_scale: Tensor
    weight_sum: Tensor | None
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        recipe: str = "rowwise",
        dtype: torch.dtype = torch.float8_e4m3fn,
        *,
        symmetric: bool = True,
        use_fast_accum: bool = True,
        straight_through: bool = False,
        bias_dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> None:
        _check_options(recipe, dtype, symmetric)
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.recipe = recipe
        self.symmetric = symmetric
        self.use_fast_accum = use_fast_accum
        self.straight_through = straight_through
        shapes = {
            "tensorwise": (1,),
            "rowwise": (out_features, 1),
            "blockwise": (blocks(out_features), blocks(in_features)),
        }
        values = torch.zeros(out_features, in_features, dtype=dtype, device=device)
        self.register_buffer("weight", values)
        scales = torch.ones(shapes[recipe], dtype=torch.float32, device=device)
        self.register_buffer("weight_scale", scales)
        sums = None if symmetric else torch.zeros(out_features, dtype=torch.int32, device=device)
        self.register_buffer("weight_sum", sums)
        self.bias = None
        if bias:
            zeros = torch.zeros(out_features, dtype=bias_dtype, device=device)
            self.bias = torch.nn.Parameter(zeros, requires_grad=straight_through)

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        recipe: str = "rowwise",
        *,
        dtype: torch.dtype = torch.float8_e4m3fn,
        symmetric: bool = True,
        use_fast_accum: bool = True,
        straight_through: bool = False,
    ) -> ScaledLinear:
        """The layer with the quantised weight of `linear`, and a copy of its bias.

        Args:
            linear: its weight [N, K] is float16, bfloat16 or float32, on a GPU
            recipe, dtype, symmetric, use_fast_accum, straight_through: as in the constructor

        Raises:
            TypeError: `linear` is no torch.nn.Linear, or of a subclass with a forward of its own;
                its weight has another dtype
            ValueError: `linear` has an activation, hooks, or a forward set on the object; options
                that do not go together
            NotImplementedError: its weight is on the CPU
        """
        check_source(
            *("ScaledLinear", "linear", linear, torch.nn.Linear),
            (torch.nn.Linear.forward, Linear.forward),
        )
        activation = getattr(linear, "activation", None)
        if activation is not None:
            raise ValueError(
                f"ScaledLinear: linear has the activation {activation!r}; expected a layer "
                "without one: apply it to the result of this layer"
            )
        layer = cls(
            linear.in_features,
            linear.out_features,
            linear.bias is not None,
            recipe,
            dtype,
            symmetric=symmetric,
            use_fast_accum=use_fast_accum,
            straight_through=straight_through,
            device="meta",
        )
        layer.weight, layer.weight_scale = quantize(
            linear.weight.detach(), _RECIPES[recipe][1], dtype
        )
        if not symmetric:
            layer.weight_sum = column_sums(layer.weight.t())
        if linear.bias is not None:
            needs_grad = straight_through and linear.bias.requires_grad
            layer.bias = torch.nn.Parameter(linear.bias.detach().clone(), needs_grad)
        return layer.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """input @ weight.T + bias.

        Args:
            input: [..., in_features], float16, bfloat16 or float32

        Returns:
            [..., out_features], in the dtype of input; under autocast in autocast's

        Raises:
            ValueError: another shape, or another device than the weight's
            TypeError: another dtype
            RuntimeError: input or bias requires grad, and straight_through is False
            NotImplementedError: as scaled_mm
        """
        # Looking up a buffer takes as long as a tenth of a call of an op: each is looked up once.
        weight, bias = self.weight, self.bias
        self._check_input(input, weight)
        if is_transformed():
            instead = REVERSE if self.straight_through else NO_DERIVATIVE
            refuse("ScaledLinear", instead, input=input, bias=bias)
        if is_grad_enabled() and (input.requires_grad or (bias is not None and bias.requires_grad)):
            if not self.straight_through:
                name = "input" if input.requires_grad else "bias"
                raise RuntimeError(
                    f"ScaledLinear: {name} requires grad, and a quantised layer has no gradient: "
                    "call it under torch.no_grad(), or build it with straight_through=True, which "
                    "takes the gradient of the product with the dequantised weight"
                )
            return _with_gradient(input, bias, weight, self)
        return self._product(input, bias, weight)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight that values and scales stand for, [N, K], multiplied in float32."""
        return _dequantized(self.weight, self.weight_scale, self.recipe, dtype)

    def extra_repr(self) -> str:
        text = (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, recipe={self.recipe!r}, "
            f"dtype={dtype_name(self.weight.dtype)}"
        )
        for name, default in (
            ("symmetric", True),
            ("use_fast_accum", True),
            ("straight_through", False),
        ):
            value = getattr(self, name)
            text += f", {name}={value}" if value != default else ""
        return text

    def _check_input(self, input: Tensor, weight: Tensor) -> None:
        check_tensors("ScaledLinear", {"input": input})
        if input.dim() < 1 or input.shape[-1] != self.in_features:
            raise wrong_shape("ScaledLinear", "input", input, ("...", self.in_features))
        if input.dtype not in DTYPES:
            wanted = "float16, bfloat16 or float32"
            raise wrong_dtype("ScaledLinear", "input", input.dtype, wanted)
        if input.device != weight.device:
            raise DeviceError(
                f"ScaledLinear: input is on {input.device} and weight is on {weight.device}; both "
                "must be on the same device"
            )

    def _product(self, input: Tensor, bias: Tensor | None, weight: Tensor) -> Tensor:
        recipe_a, recipe_b = _RECIPES[self.recipe]
        weight_scale = self.weight_scale
        out_dtype = input.dtype
        if is_autocast_enabled() and input.is_cuda:
            out_dtype = torch.get_autocast_dtype("cuda")
        if bias is not None and bias.dtype not in (out_dtype, torch.float32):
            bias = bias.to(out_dtype)
        rows = input
        if input.dim() != 2:
            rows = input.flatten(0, -2) if input.dim() > 2 else input.unsqueeze(0)
        azp: Tensor | None = None
        if self.symmetric:
            values, scale = quantize(rows, recipe_a, weight.dtype)
        else:
            values, scale, azp = quantize(rows, recipe_a, weight.dtype, symmetric=False)
        # Of a device's part of K, the sums are others.
        has_split_k = sharding.calls is not None and sharding.calls.has_split_k(weight)
        result = scaled_mm(
            values,
            weight.t(),
            scale,
            recipe_a,
            weight_scale if recipe_b == "tensorwise" else weight_scale.t(),
            recipe_b,
            bias=bias,
            output_dtype=out_dtype,
            use_fast_accum=self.use_fast_accum,
            azp=azp,
            azp_adj=None if azp is None or has_split_k else self.weight_sum,
        )
        return result if input.dim() == 2 else result.view(*input.shape[:-1], self.out_features)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        return super()._apply(keep_dtypes(self, fn), recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # A dictionary of its own: others may read what they have given.
        given = dict(state_dict)
        name, scale_name = f"{prefix}weight", f"{prefix}weight_scale"
        weight, scale = given.get(name), given.get(scale_name)
        if isinstance(scale, Tensor):
            if scale.is_floating_point():
                scale = scale.float()
            # Checkpoints have the one of a tensor as [], those of rows as [N].
            is_one = self.recipe == "tensorwise" and scale.numel() == 1
            is_flat = self.recipe == "rowwise" and scale.shape == (self.out_features,)
            if is_one or is_flat:
                scale = scale.reshape(self.weight_scale.shape)
            given[scale_name] = scale
        if isinstance(weight, Tensor) and weight.dtype != self.weight.dtype:
            # Copied into the buffer, it would be cast without a word, and without a scale.
            error_msgs.append(
                f"{name} has dtype {dtype_name(weight.dtype)}; expected "
                f"{dtype_name(self.weight.dtype)}: load it into a torch.nn.Linear, and quantise "
                "that with ScaledLinear.from_linear"
            )
            given[name] = self.weight
        elif (
            self.weight_sum is not None
            and f"{prefix}weight_sum" not in given
            and isinstance(weight, Tensor)
            and weight.shape == self.weight.shape
        ):
            # A checkpoint of a symmetric layer: the weight tells them.
            given[f"{prefix}weight_sum"] = column_sums(weight.t())
        super()._load_from_state_dict(
            given, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _dequantized(weight: Tensor, scale: Tensor, recipe: str, dtype: torch.dtype) -> Tensor:
    n, k = weight.shape
    if recipe == "blockwise":
        scale = scale.repeat_interleave(BLOCK, 0)[:n].repeat_interleave(BLOCK, 1)[:, :k]
    return (weight.float() * scale).to(dtype)


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, input: Tensor, bias: Tensor | None, weight: Tensor, layer: ScaledLinear
    ) -> Tensor:
        ctx.save_for_backward(weight, layer.weight_scale)
        ctx.recipe = layer.recipe
        ctx.input_shape, ctx.input_dtype = input.shape, input.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        with torch.no_grad():
            return layer._product(input, bias, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_input: Tensor | None = None
        grad_bias: Tensor | None = None
        if ctx.needs_input_grad[0]:
            values, scale = ctx.saved_tensors
            weight = _dequantized(values, scale, ctx.recipe, grad.dtype)
            rows = grad.flatten(0, -2) if grad.dim() > 1 else grad.unsqueeze(0)
            grad_input = gemm.mm(rows, weight).view(ctx.input_shape).to(ctx.input_dtype)
        if ctx.needs_input_grad[1]:
            grad_bias = sum_rows(grad).to(ctx.bias_dtype)
        return grad_input, grad_bias, None, None


_with_gradient: Callable[..., Tensor] = _StraightThrough.apply
