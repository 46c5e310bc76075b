"""Reference kernels for CPU tensors: what is built of the ops can be tested on them anywhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from cpu_conv import NAMES as CONV_NAMES
from cpu_conv import ConvOps

NAMES = (
    *CONV_NAMES,
    *(
        "mm",
        "mm.out",
        "addmm.out",
        "linear",
        "linear_gradients",
        "gated_input_gradient",
        "linear_fused",
        "linear_fused.out",
        "linear_fused_aux",
        "elementwise",
        "gemm",
    ),
    *("scaled_mm", "scaled_mm.out", "quantize", "bmm", "addmm", "baddbmm"),
    *("grouped_mm", "grouped_mm_accumulate", "grouped_linear_fused", "grouped_linear_fused_aux"),
    "scaled_grouped_mm",
    *("grouped_linear_gathered", "grouped_linear_gathered_aux"),
    *("moe_route", "moe_permute", "moe_unpermute", "moe_permute_dots"),
)
"""names of the ops that have a reference kernel"""
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

TENSORWISE, ROWWISE, BLOCKWISE_1X128, BLOCKWISE_128X128 = range(4)
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


def alternating(weight: Tensor, up: Tensor | None) -> Tensor:
    """Rows of `weight` and `up` in turn, [..., N, K] each; without `up` the weight as it is."""
    return weight if up is None else torch.stack((weight, up), -2).flatten(-3, -2)


def spread(scale: Tensor, rows: int, columns: int) -> Tensor:
    """A scale for each element, of scales for groups of 1, of 128, or of all."""
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(rows, columns)
    for dim, size in enumerate((rows, columns)):
        if scale.shape[dim] not in (1, size):
            scale = scale.repeat_interleave(128, dim).narrow(dim, 0, size)
    return scale.expand(rows, columns)


def groups(x: Tensor, recipe: int) -> Tensor:
    """[M, K] -> [.., .., elements that share a scale]"""
    m, k = x.shape
    if recipe == TENSORWISE:
        return x.reshape(1, m * k)
    if recipe == ROWWISE:
        return x.reshape(m, 1, k)
    rows = 1 if recipe == BLOCKWISE_1X128 else 128
    x = F.pad(x, (0, -k % 128, 0, -m % rows))
    tiles = x.reshape(x.shape[0] // rows, rows, x.shape[1] // 128, 128)
    return tiles.transpose(1, 2).flatten(2)


def spans(offs: Tensor, total: int) -> list[tuple[int, int]]:
    """[first, last) of each group; ends that decrease or lie outside are moved."""
    found, first = [], 0
    for end in offs.tolist():
        last = min(max(first, end), total)
        found.append((first, last))
        first = last
    return found


def _product(a: Tensor, b: Tensor, out_dtype: torch.dtype | None) -> Tensor:
    wide = torch.promote_types(a.dtype, torch.float32)
    return (a.to(wide) @ b.to(wide)).to(a.dtype if out_dtype is None else out_dtype)


class CpuOps(ConvOps):
    """Reference kernels, and the calls that they have served.

    A call is (op, epilogue); for elementwise, what was asked for stands behind it. Of convolutions,
    also whether their images were channels last.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.images: list[bool] = []

    def names(self, op: str) -> list[object]:
        """Epilogues of the calls of `op` since the last one of this, in order."""
        found = [call[1] for call in self.calls if call[0] == op]
        self.calls.clear()
        return found

    def mm(
        self, a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, allow_tf32: bool = False
    ) -> Tensor:
        self.calls.append(("mm", "plain"))
        return _product(a, b, out_dtype)

    def mm_out(self, a: Tensor, b: Tensor, allow_tf32: bool = False, *, out: Tensor) -> None:
        out.copy_(self.mm(a, b))

    def bmm(
        self, a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, allow_tf32: bool = False
    ) -> Tensor:
        self.calls.append(("bmm", "plain"))
        return _product(a, b, out_dtype)

    def addmm(
        self,
        c: Tensor,
        a: Tensor,
        b: Tensor,
        out_dtype: object = None,
        beta: float = 1,
        alpha: float = 1,
        allow_tf32: bool = False,
    ) -> Tensor:
        self.calls.append(("addmm" if a.dim() == 2 else "baddbmm", "plain"))
        return alpha * (a @ b) + (beta * c if beta else 0)

    baddbmm = addmm

    def addmm_out(
        self,
        c: Tensor,
        a: Tensor,
        b: Tensor,
        beta: float = 1,
        alpha: float = 1,
        allow_tf32: bool = False,
        *,
        out: Tensor,
    ) -> None:
        out.copy_(self.addmm(c, a, b, None, beta, alpha))

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, allow_tf32: bool = False
    ) -> Tensor:
        self.calls.append(("linear", "bias"))
        return F.linear(x, weight, bias)

    def linear_gradients(
        self,
        grad: Tensor,
        x: Tensor,
        weight: Tensor,
        weight_is_column_major: bool,
        allow_tf32: bool = False,
    ) -> tuple[Tensor, Tensor]:
        self.calls.append(("linear_gradients", "plain"))
        # Unlike reshape(-1, X), of X = 0, too.
        dy, rows = (t.unsqueeze(0).flatten(0, -2) for t in (grad, x))
        if weight_is_column_major:
            return grad @ weight, (rows.t() @ dy).t()
        return grad @ weight, dy.t() @ rows

    def gated_input_gradient(
        self, grad: Tensor, weight: Tensor, up: Tensor, allow_tf32: bool = False
    ) -> Tensor:
        self.calls.append(("gated_input_gradient", "plain"))
        return grad @ torch.cat((weight, up))

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
            assert name.startswith("gated_bias_") == (bias is not None)
            activation = name.removeprefix("gated_").removeprefix("bias_")
            return ACTIVATIONS[activation](z[..., 0::2]) * z[..., 1::2], z
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
        up: Tensor | None = None,
    ) -> Tensor:
        assert not epilogue.endswith("_aux")
        self.calls.append(("linear_fused", epilogue))
        return self._fused(x, alternating(weight, up), bias, residual, epilogue)[0]

    def linear_fused_aux(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        epilogue: str,
        allow_tf32: bool = False,
        up: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert epilogue.endswith("_aux")
        self.calls.append(("linear_fused_aux", epilogue))
        return self._fused(x, alternating(weight, up), bias, residual, epilogue)

    def linear_fused_out(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        epilogue: str,
        allow_tf32: bool = False,
        up: Tensor | None = None,
        *,
        out: list[Tensor],
    ) -> None:
        self.calls.append(("linear_fused.out", epilogue))
        results = self._fused(x, alternating(weight, up), bias, residual, epilogue)
        assert len(out) == 1 + epilogue.endswith("_aux")
        for target, result in zip(out, results, strict=False):
            assert target.shape == result.shape
            target.copy_(result)

    def elementwise(
        self,
        operands: list[Tensor],
        epilogue: str,
        with_result: bool = True,
        with_sums: bool = False,
        in_halves: bool = False,
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
        if in_halves:
            assert epilogue.startswith("gated_")
            result = torch.cat((result[..., 0::2], result[..., 1::2]), -1)
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
        wide = torch.promote_types(a.dtype, torch.float32)
        dtype = a.dtype if out_dtype is None else out_dtype
        accum = a.to(wide) @ b.to(wide)
        if epilogue == "linear_combination":
            (c,), (alpha, beta) = operands, scalars
            return [(alpha * accum + (0 if c is None else beta * c)).to(dtype)]
        if epilogue.endswith("_backward"):
            (bias, grad), (alpha,) = operands, scalars
            assert grad is not None
            z = (alpha * accum + (0 if bias is None else bias)).detach().requires_grad_()
            with torch.enable_grad():
                d = ACTIVATIONS[epilogue.removeprefix("bias_").removesuffix("_backward")](z)
            return [torch.autograd.grad(d, z, grad.to(wide))[0].to(dtype)]
        assert epilogue == "bias_leaky_relu"
        (bias,), (alpha, slope) = operands, scalars
        return [F.leaky_relu(alpha * accum + (0 if bias is None else bias), slope).to(dtype)]

    def scaled_mm(
        self,
        a: Tensor,
        b: Tensor,
        scale_a: Tensor | None,
        scale_b: Tensor | None,
        bias: Tensor | None = None,
        azp: Tensor | None = None,
        azp_adj: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        recipe_a: int | None = None,
        recipe_b: int | None = None,
        use_fast_accum: bool = False,
    ) -> Tensor:
        self.calls.append(("scaled_mm", (recipe_a, recipe_b), use_fast_accum))
        dtype = torch.bfloat16 if out_dtype is None else out_dtype
        left, right = a.double(), b.double()
        if dtype == torch.int32:
            return (left @ right).to(dtype)
        assert scale_a is not None
        assert scale_b is not None
        if scale_a.dim() == 1 and scale_a.numel() > 1:
            scale_a = scale_a.unsqueeze(1)
        if scale_b.dim() == 1 and scale_b.numel() > 1:
            scale_b = scale_b.unsqueeze(0)
        if azp is not None:
            assert azp_adj is not None
            assert torch.equal(azp_adj.reshape(-1), b.sum(0, dtype=torch.int32))
            left = left - azp.reshape(-1, 1)
        result = (left * spread(scale_a.double(), *a.shape)) @ (
            right * spread(scale_b.double(), *b.shape)
        )
        return (result if bias is None else result + bias).to(dtype)

    def scaled_mm_out(
        self,
        a: Tensor,
        b: Tensor,
        scale_a: Tensor | None,
        scale_b: Tensor | None,
        bias: Tensor | None = None,
        azp: Tensor | None = None,
        azp_adj: Tensor | None = None,
        recipe_a: int | None = None,
        recipe_b: int | None = None,
        use_fast_accum: bool = False,
        *,
        out: Tensor,
    ) -> None:
        operands = (a, b, scale_a, scale_b, bias, azp, azp_adj)
        out.copy_(self.scaled_mm(*operands, out.dtype, recipe_a, recipe_b, use_fast_accum))

    def quantize(
        self, x: Tensor, recipe: int, dtype: torch.dtype, symmetric: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.calls.append(("quantize", recipe, dtype, symmetric))
        rows = x.float().flatten(0, -2)
        m, k = rows.shape
        parts = groups(rows, recipe)
        zeros = parts.new_zeros((*parts.shape[:-1], 1))
        parts = torch.cat((parts, zeros), -1)  # of no elements, the largest is 0
        low, high = parts.amin(-1), parts.amax(-1)
        if symmetric:
            scale, largest = parts.abs().amax(-1) / LARGEST[dtype], LARGEST[dtype]
            smallest = -largest
        else:
            scale, smallest, largest = (high - low) / 255, -128.0, 127.0
        is_finite = parts.isfinite().all(-1)
        scale = torch.where(scale == 0, 1.0, torch.where(is_finite, scale, float("nan")))
        azp = (-128 - (low / scale).round()).nan_to_num(0).clamp(-128, 127)
        azp = torch.where((low == high) | ~is_finite, 0, azp).int()
        values = rows / spread(scale, m, k)
        if dtype == torch.int8:
            values = values.round().nan_to_num(0)
        if not symmetric:
            values = values + spread(azp, m, k)
            values = torch.where(spread(is_finite, m, k), values, 0)
        values = values.clamp(smallest, largest).to(dtype).contiguous().view(x.shape)
        if recipe == BLOCKWISE_1X128:
            strided = torch.empty_strided((m, scale.shape[1]), (1, (m + 3) // 4 * 4))
            scale = strided.copy_(scale)
        return values, scale, azp if not symmetric else azp.new_empty(0)

    def grouped_mm(
        self,
        a: Tensor,
        b: Tensor,
        offs: Tensor,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        allow_tf32: bool = False,
    ) -> Tensor:
        self.calls.append(("grouped_mm", "rows" if b.dim() == 3 else "k"))
        dtype = a.dtype if out_dtype is None else out_dtype
        if b.dim() == 3:
            return self._rows(a, b, offs, bias).to(dtype)
        wide = torch.promote_types(a.dtype, torch.float32)
        parts = [a[:, i:j].to(wide) @ b[i:j].to(wide) for i, j in spans(offs, a.shape[1])]
        if not parts:
            return a.new_zeros(0, a.shape[0], b.shape[1], dtype=dtype)
        return torch.stack(parts).to(dtype)

    @staticmethod
    def _rows(a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None) -> Tensor:
        result = a.new_zeros(a.shape[0], b.shape[2])
        for group, (i, j) in enumerate(spans(offs, a.shape[0])):
            result[i:j] = a[i:j] @ b[group] + (0 if bias is None else bias[group])
        return result

    def moe_route(self, expert_ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
        self.calls.append(("moe_route", num_experts))
        ids = expert_ids.flatten()
        ids = torch.where((ids < 0) | (ids >= num_experts), num_experts, ids)
        order = torch.sort(ids, stable=True).indices
        places = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0]))
        ends = torch.bincount(ids, minlength=num_experts + 1)[:num_experts].cumsum(0)
        sources = order // max(expert_ids.shape[-1], 1)
        return places.view(expert_ids.shape).int(), sources.int(), ends.int()

    @staticmethod
    def _counting(places: Tensor, offs: Tensor | None) -> Tensor:
        """Whether the row of each choice is of an expert."""
        return places < (places.numel() if offs is None else offs[-1])

    def moe_permute(
        self,
        tokens: Tensor,
        places: Tensor,
        weights: Tensor | None = None,
        offs: Tensor | None = None,
    ) -> Tensor:
        self.calls.append(("moe_permute", "plain" if weights is None else "weights"))
        each = tokens.unsqueeze(1).expand(-1, places.shape[1], -1)
        if weights is not None:
            scaled = each * weights.unsqueeze(-1)
            each = torch.where(self._counting(places, offs).unsqueeze(-1), scaled, 0)
        rows = tokens.new_full((places.numel(), tokens.shape[1]), float("nan"))
        rows[places.flatten().long()] = each.flatten(0, 1).to(rows.dtype)
        return rows

    def moe_unpermute(
        self,
        rows: Tensor,
        places: Tensor,
        weights: Tensor | None = None,
        offs: Tensor | None = None,
    ) -> Tensor:
        self.calls.append(("moe_unpermute", "plain" if weights is None else "weights"))
        each = rows[places.long()]
        if weights is not None:
            each = each * weights.unsqueeze(-1)
        each = torch.where(self._counting(places, offs).unsqueeze(-1), each, 0)
        return each.sum(1).to(rows.dtype)

    def moe_permute_dots(
        self, rows: Tensor, tokens: Tensor, places: Tensor, offs: Tensor | None = None
    ) -> Tensor:
        self.calls.append(("moe_permute_dots", "plain"))
        dots = (rows[places.long()] * tokens.unsqueeze(1)).sum(-1)
        wide = torch.promote_types(rows.dtype, torch.float32)
        return torch.where(self._counting(places, offs), dots, 0).to(wide)

    def grouped_mm_accumulate(
        self, a: Tensor, b: Tensor, offs: Tensor, allow_tf32: bool = False, *, out: Tensor
    ) -> None:
        self.calls.append(("grouped_mm_accumulate", "k"))
        assert out.dtype == torch.float32
        assert out.is_contiguous()
        for group, (i, j) in enumerate(spans(offs, a.shape[1])):
            out[group] += a[:, i:j].float() @ b[i:j].float()

    def _grouped_linear(
        self, x: Tensor, weight: Tensor, offs: Tensor, bias: Tensor | None, epilogue: str
    ) -> tuple[Tensor, Tensor]:
        name = epilogue.removesuffix("_aux")
        z = self._rows(x, weight.mT, offs, bias)
        if name.startswith("gated_"):
            d = ACTIVATIONS[name.removeprefix("gated_")](z[:, 0::2]) * z[:, 1::2]
        else:
            d = ACTIVATIONS[name.removeprefix("bias_")](z)
        for _, end in spans(offs, x.shape[0])[-1:]:
            d[end:] = 0
        return d, z

    def grouped_linear_fused(
        self,
        x: Tensor,
        weight: Tensor,
        offs: Tensor,
        bias: Tensor | None,
        epilogue: str,
        allow_tf32: bool = False,
        up: Tensor | None = None,
    ) -> Tensor:
        assert not epilogue.endswith("_aux")
        self.calls.append(("grouped_linear_fused", epilogue))
        return self._grouped_linear(x, alternating(weight, up), offs, bias, epilogue)[0]

    def grouped_linear_gathered(
        self,
        x: Tensor,
        places: Tensor,
        sources: Tensor,
        weight: Tensor,
        offs: Tensor,
        epilogue: str,
        up: Tensor | None = None,
    ) -> Tensor:
        self.calls.append(("grouped_linear_gathered", epilogue))
        rows = x[sources.long()]
        if epilogue == "plain":
            return self._rows(rows, weight.mT, offs, None)
        return self._grouped_linear(rows, alternating(weight, up), offs, None, epilogue)[0]

    def grouped_linear_gathered_aux(
        self,
        x: Tensor,
        places: Tensor,
        sources: Tensor,
        weight: Tensor,
        offs: Tensor,
        epilogue: str,
        up: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert epilogue.endswith("_aux")
        self.calls.append(("grouped_linear_gathered_aux", epilogue))
        rows = x[sources.long()]
        return self._grouped_linear(rows, alternating(weight, up), offs, None, epilogue)

    def grouped_linear_fused_aux(
        self,
        x: Tensor,
        weight: Tensor,
        offs: Tensor,
        bias: Tensor | None,
        epilogue: str,
        allow_tf32: bool = False,
        up: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert epilogue.endswith("_aux")
        self.calls.append(("grouped_linear_fused_aux", epilogue))
        return self._grouped_linear(x, alternating(weight, up), offs, bias, epilogue)

    def scaled_grouped_mm(
        self,
        a: Tensor,
        b: Tensor,
        scale_a: Tensor,
        scale_b: Tensor,
        offs: Tensor,
        bias: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        use_fast_accum: bool = False,
    ) -> Tensor:
        self.calls.append(("scaled_grouped_mm", use_fast_accum))
        k, n = b.shape[1:]
        columns = scale_b if scale_b.dim() == 3 else scale_b.unsqueeze(1)
        left = a.float() * spread(scale_a.reshape(a.shape[0], -1), *a.shape)
        right = b.float() * torch.stack([spread(scale, k, n) for scale in columns])
        result = self._rows(left, right, offs, None if bias is None else bias.float())
        return result.to(torch.bfloat16 if out_dtype is None else out_dtype)


def install(ops: CpuOps) -> torch.library.Library:
    """Makes the ops run on CPU tensors, until the library is destroyed."""
    library = torch.library.Library("cutwheel", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in NAMES:
            function = getattr(ops, name.replace(".", "_"))
            library.impl(name, function, "CPU", allow_override=True)
    return library
