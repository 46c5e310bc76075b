"""Matrix products in Inductor's graphs: operands, extents and layouts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ..ops._common.errors import dtype_name
from .sizes import letter, static, value_of

aten = torch.ops.aten

DTYPES = (torch.float16, torch.bfloat16)

# By op, where the operands are among its arguments.
_OPS: dict[Any, tuple[str, int]] = {
    aten.mm.default: ("mm", 0),
    aten.bmm.default: ("bmm", 0),
    aten.addmm.default: ("addmm", 1),
    aten.baddbmm.default: ("baddbmm", 1),
}


class Product(NamedTuple):
    """A node that multiplies matrices."""

    node: fx.Node
    op: str
    a: fx.Node
    """[M, K], or [B, M, K]"""
    b: fx.Node
    """[K, N], or [B, K, N]"""
    c: fx.Node | None
    """of addmm and baddbmm"""
    alpha: float
    beta: float
    batch: Any
    m: Any
    n: Any
    k: Any
    layout: str
    """of A and B, as letter() has it"""
    dtype: torch.dtype
    device: torch.device

    @property
    def is_plain_sum(self) -> bool:
        """Whether it is A @ B, or A @ B + C."""
        return self.c is None or (self.alpha == 1 and self.beta == 1)

    def __str__(self) -> str:
        batch = "" if self.op in ("mm", "addmm") else f"{self.batch}x"
        return f"{batch}{self.m}x{self.n}x{self.k} {dtype_name(self.dtype)} {self.layout}"


def product_of(node: fx.Node) -> Product | None:
    """A node as a product; None: it is none, or nothing is known of its operands."""
    known = _OPS.get(node.target) if node.op == "call_function" else None
    if known is None:
        return None
    op, first = known
    c = node.args[0] if first else None
    a, b = node.args[first : first + 2]
    left, right = value_of(a), value_of(b)
    if left is None or right is None or value_of(node) is None:
        return None
    assert isinstance(a, fx.Node)
    assert isinstance(b, fx.Node)
    scalars = {"beta": 1, "alpha": 1, **node.kwargs}
    if not all(isinstance(scalars[name], (int, float)) for name in ("beta", "alpha")):
        return None
    alpha, beta = (float(scalars[name]) for name in ("alpha", "beta"))  # type: ignore[arg-type]
    return Product(
        node=node,
        op=op,
        a=a,
        b=b,
        c=c if isinstance(c, fx.Node) else None,
        alpha=alpha,
        beta=beta,
        batch=left.shape[0] if left.dim() == 3 else 1,
        m=left.shape[-2],
        n=right.shape[-1],
        k=left.shape[-1],
        layout=letter(left) + letter(right),
        dtype=left.dtype,
        device=left.device,
    )


def why_not(product: Product) -> str | None:
    """Why the kernels cannot take the operands as they lie; None: they can."""
    if product.dtype not in DTYPES:
        return f"{dtype_name(product.dtype)} stays with Inductor"
    values: list[Tensor | None] = [value_of(product.b), value_of(product.node)]
    if any(value is None or value.dtype != product.dtype for value in values):
        return "dtypes differ"
    if any(value is None or value.device != product.device for value in values):
        return "devices differ"
    sizes = [static(each) for each in (product.batch, product.m, product.n, product.k)]
    if 0 in sizes:
        return "an empty operand"
    if "?" in product.layout:
        return "rows that do not begin at multiples of 16 bytes, or are not known to"
    if sizes[2] is None or sizes[2] % 8:
        return "columns that are no multiple of 8, or not known"
    return None
