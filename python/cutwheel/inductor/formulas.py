"""Activations, recognised in Inductor's graphs, where they are sums, products and exponentials.

Which ones an activation becomes depends on the release of torch. So the patterns are not written
down: torch's functions are traced with the decompositions that Inductor uses.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx

aten = torch.ops.aten

# Other spellings than torch's own functions: x * sigmoid(x), the GELU of GPT-2.
_SPELLINGS: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "relu": (F.relu, lambda z: z.clamp(min=0), lambda z: z.clamp_min(0)),
    "gelu": (F.gelu, lambda z: z * 0.5 * (1.0 + torch.erf(z / math.sqrt(2.0)))),
    "gelu_tanh": (
        lambda z: F.gelu(z, approximate="tanh"),
        lambda z: (
            0.5
            * z
            * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * torch.pow(z, 3.0))))
        ),
    ),
    "silu": (F.silu, lambda z: z * torch.sigmoid(z)),
    "sigmoid": (torch.sigmoid,),
    "tanh": (torch.tanh,),
    "hardswish": (F.hardswish,),
    "softplus": (F.softplus,),
}
NAMES = tuple(_SPELLINGS)

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_COMMUTATIVE = (aten.add.Tensor, aten.mul.Tensor)
_MOST_NODES = 24
"""between a value and what an activation makes of it"""


class _Argument:
    """Stands for z in a pattern."""


class Pattern(NamedTuple):
    """An operation and its arguments, which are patterns, numbers or the activation's argument."""

    target: Any
    args: tuple[Any, ...]


class Applied(NamedTuple):
    """An activation in a graph."""

    name: str
    argument: fx.Node
    """before casts"""
    inner: frozenset[fx.Node]
    """nodes between the argument and the result, neither of them included"""
    result: fx.Node


def is_cast(node: Any) -> bool:
    """Whether a node converts between floating-point dtypes. Where values are kept in float32 all
    the way, it means nothing."""
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return False
    if node.target is not torch.ops.prims.convert_element_type.default:
        return False
    before = node.args[0]
    value = before.meta.get("val") if isinstance(before, fx.Node) else None
    return isinstance(value, Tensor) and value.dtype in FLOATS and node.args[1] in FLOATS


def before_casts(value: Any, inner: set[fx.Node]) -> Any:
    """The node that casts begin with; they are added to `inner`."""
    while is_cast(value):
        inner.add(value)
        value = value.args[0]
    return value


def _traced(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Pattern | None:
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    disabled = torch.utils._python_dispatch._disable_current_modes
    with disabled(), torch.no_grad(), torch.autocast("cpu", enabled=False):
        # Functions may have further arguments, which make_fx would ask for.
        traced = make_fx(lambda z: function(z), decomposition_table=select_decomp_table())(
            torch.zeros(2, 2, dtype=dtype, device="cpu")
        )
    (argument,) = traced.graph.find_nodes(op="placeholder")
    (output,) = traced.graph.find_nodes(op="output")

    def pattern(value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        if value is argument:
            return _Argument
        target = value.target
        if target in (torch.ops.prims.convert_element_type.default, aten._to_copy.default):
            return pattern(value.args[0])
        if value.kwargs:
            raise _UnwritableError
        return Pattern(target, tuple(pattern(each) for each in value.args))

    result = output.args[0]
    try:
        found = pattern(result[0] if isinstance(result, (tuple, list)) else result)
    except _UnwritableError:
        return None
    return found if isinstance(found, Pattern) else None


class _UnwritableError(Exception):
    """A graph that no Pattern can say."""


@functools.cache
def patterns() -> dict[Any, tuple[tuple[str, Pattern], ...]]:
    """By the last operation, the patterns of all spellings."""
    found: dict[Pattern, str] = {}
    for name, spellings in _SPELLINGS.items():
        for spelling in spellings:
            for dtype in (torch.float32, torch.bfloat16):
                pattern = _traced(spelling, dtype)
                if pattern is not None:
                    found.setdefault(pattern, name)
    by_target: dict[Any, list[tuple[str, Pattern]]] = {}
    for pattern, name in found.items():
        by_target.setdefault(pattern.target, []).append((name, pattern))
    return {target: tuple(each) for target, each in by_target.items()}


def _same_number(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, (int, float)) and isinstance(given, (int, float)):
        return math.isclose(wanted, given, rel_tol=1e-6)
    return bool(wanted == given) and type(wanted) is type(given)


class _Match:
    """A pattern compared with a graph; tried orders of operands are taken back."""

    def __init__(self) -> None:
        self.argument: fx.Node | None = None
        self.inner: set[fx.Node] = set()

    def fits(self, pattern: Any, value: Any) -> bool:
        if pattern is _Argument:
            if not isinstance(value, fx.Node):
                return False
            casts: set[fx.Node] = set()
            start = before_casts(value, casts)
            if self.argument is not None and start is not self.argument:
                return False
            self.argument = start
            self.inner |= casts
            return True
        if not isinstance(pattern, Pattern):
            return not isinstance(value, fx.Node) and _same_number(pattern, value)
        if not isinstance(value, fx.Node):
            return False
        casts = set()
        value = before_casts(value, casts)
        if value.op != "call_function" or value.target is not pattern.target or value.kwargs:
            return False
        self.inner |= casts | {value}
        orders = [tuple(value.args)]
        if pattern.target in _COMMUTATIVE and len(value.args) == 2:
            orders.append(orders[0][::-1])
        before = self.argument, set(self.inner)
        for order in orders:
            if len(order) == len(pattern.args) and all(
                self.fits(*each) for each in zip(pattern.args, order, strict=True)
            ):
                return True
            self.argument, self.inner = before[0], set(before[1])
        return False


def applied_at(node: fx.Node) -> Iterator[Applied]:
    """The activations whose last operation is `node`, by whatever argument."""
    for name, pattern in patterns().get(node.target, ()):
        match = _Match()
        if match.fits(pattern, node) and match.argument is not None:
            yield Applied(name, match.argument, frozenset(match.inner - {node}), node)


def applied_to(values: set[fx.Node]) -> list[Applied]:
    """The activations of one of `values`, those of most nodes first."""
    found: list[Applied] = []
    seen: set[fx.Node] = set()
    last = list(values)
    while last and len(seen) < _MOST_NODES:
        users = [user for node in last for user in node.users if user not in seen]
        last = []
        for user in users:
            if user in seen or user.op != "call_function":
                continue
            seen.add(user)
            last.append(user)
            found += [each for each in applied_at(user) if each.argument in values]
    return sorted(found, key=lambda each: -len(each.inner))
