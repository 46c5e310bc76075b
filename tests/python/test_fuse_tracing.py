"""cutwheel.fuse: what a graph would not do as forward does, so that there is none."""

from __future__ import annotations

import builtins
import functools
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from cpu_reference import CpuOps
from fusion_models import C, Net, Tensor, conv, fused, images, parts, same

Forward = Callable[[Any, Tensor, Tensor], Any]

# --- tensors that forward makes


def accumulates(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(2, C)
    out += m.a(x).mean((2, 3))
    return out


def sets_an_item(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.full((2, C, 5, 5), -1.0)
    out[0] = m.a(x)[0]
    return out * 2


def adds_to_an_item(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(2, C)
    out[1] += m.a(x).mean((2, 3))[1]
    return out


def writes_to_a_view(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(2, C)
    out.view(-1)[:C].add_(m.a(x).mean((2, 3))[0])
    return out + 1


def writes_to_a_view_in_the_graph(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(2, C)
    rows = out.reshape(x.shape[0], -1)
    rows.mul_(2).add_(m.a(x).mean((2, 3)))
    return out + 1


def passes_out(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.ones(2, C, 5, 5)
    torch.add(m.a(x), out, out=out)
    return out.sum()


def passes_two(m: Any, x: Tensor, r: Tensor) -> Any:
    values, places = torch.zeros(2, C, 5), torch.zeros(2, C, 5, dtype=torch.long)
    torch.max(m.a(x), 3, out=(values, places))
    return values + 1


def calls_an_operator(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(2, C)
    torch.ops.aten.add_.Tensor(out, m.a(x).mean((2, 3)))
    torch.ops.aten.add_(out, 1)
    return out * 2


def writes_to_a_list(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(2, C)
    torch._foreach_add_([out], [m.a(x).mean((2, 3))])
    return out * 2


def copies(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(2, C)
    z = out + m.a(x).mean((2, 3))
    out.copy_(z)
    return out + z


def accumulates_later(m: Any, x: Tensor, r: Tensor) -> Any:
    """Not in the graph, which would have the last value from the beginning."""
    offset = torch.zeros(C, 1, 1)
    z = m.a(x) + offset
    offset += 1
    return z + offset


def accumulates_at_the_end(m: Any, x: Tensor, r: Tensor) -> Any:
    offset = torch.zeros(C, 1, 1)
    z = m.a(x) + offset
    offset.view(-1)[0] = 1
    return z


WRITES = (
    *(accumulates, sets_an_item, adds_to_an_item, writes_to_a_view, writes_to_a_view_in_the_graph),
    *(passes_out, passes_two, calls_an_operator, writes_to_a_list, copies, accumulates_later),
    accumulates_at_the_end,
)


def layers() -> torch.nn.Module:
    return torch.nn.Sequential(conv(), torch.nn.ReLU())


def child_by_child(cutwheel: ModuleType, forward: Forward, *given: Tensor) -> str:
    """Why there is no graph of a model whose child, `a`, is fused nevertheless."""
    model, given = Net(forward, a=layers()), given or images()
    made = fused(cutwheel, model, *given)
    same(made, model, *given)  # another call, for what the first one has left
    assert type(made) is Net
    assert [str(each) for each in made.fusion_report.replaced] == ["a.0: conv + bias + relu"]
    ((name, kind, reason),) = made.fusion_report.untraced
    assert (name, kind) == ("", "Net")
    assert not any(name.startswith("_tensor_constant") for name in vars(made))
    return str(reason)


@pytest.mark.parametrize("forward", WRITES, ids=lambda forward: forward.__name__)
@pytest.mark.parametrize("inference", [False, True])
def test_what_writes_to_a_tensor_it_makes_has_no_graph(
    cutwheel: ModuleType, cpu_ops: CpuOps, forward: Forward, inference: bool
) -> None:
    with torch.inference_mode(inference):
        assert "may write to a tensor that it makes" in child_by_child(cutwheel, forward)


def writes_to_its_argument(m: Any, x: Tensor, r: Tensor) -> Any:
    r *= torch.arange(C).view(C, 1, 1)
    return m.relu(m.conv(x)) * r


def writes_to_a_buffer(m: Any, x: Tensor, r: Tensor) -> Any:
    z = m.relu(m.conv(x))
    m.norm.running_mean.add_(z.mean((0, 2, 3)))
    return z + m.norm.running_mean.view(1, C, 1, 1)


def writes_to_what_it_computed(m: Any, x: Tensor, r: Tensor) -> Any:
    z = m.relu(m.conv(x)).mul(torch.full((C, 1, 1), 0.5))
    z -= torch.ones(C, 1, 1)
    return torch.zeros(2, C, 5, 5).add(z).mul_(2)


def makes_by_its_argument(m: Any, x: Tensor, r: Tensor) -> Any:
    out = torch.zeros(x.shape[0], device=x.device, dtype=x.dtype)
    out += m.relu(m.conv(x)).mean((1, 2, 3))
    like = x.new_zeros(x.shape[0], C)
    like += out.unsqueeze(1)
    return like + torch.arange(x.shape[1])


@pytest.mark.parametrize(
    "forward",
    [writes_to_its_argument, writes_to_a_buffer, writes_to_what_it_computed, makes_by_its_argument],
    ids=lambda forward: forward.__name__,
)
def test_other_writes_are_in_the_graph(
    cutwheel: ModuleType, cpu_ops: CpuOps, forward: Forward
) -> None:
    model = Net(forward)
    made = fused(cutwheel, model, *images())
    assert parts(made) == ["conv + bias + relu"]
    assert made.fusion_report.untraced == ()
    same(made, model, *images())
    if forward is makes_by_its_argument:
        same(made, model, torch.randn(3, C, 4, 4), images()[1])
        same(made.double(), model.double(), *(x.double() for x in images()))


def test_callers_may_write_to_what_they_are_given(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """A state or a loss that forward makes and returns is another tensor in each call."""

    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        state = torch.zeros(2, C)
        return m.relu(m.conv(x)), {"loss": torch.zeros(()), "state": [state.expand(2, C)]}, state

    made = fused(cutwheel, Net(forward), *images())
    assert parts(made) == ["conv + bias + relu"]
    for _ in range(2):
        _, others, state = made(*images())
        for tensor in (others["loss"], *others["state"], state):
            assert tensor.abs().sum() == 0
            tensor += 1


class Accumulating(torch.nn.Module):
    """Writes to its arguments; a hook keeps it from being traced with its parent."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, args, result: None)

    def forward(self, total: Tensor, x: Tensor) -> Tensor:
        return total.add_(x.mean((2, 3)))


def gives_it_away(m: Any, x: Tensor, r: Tensor) -> Any:
    total = torch.zeros(2, C)
    m.b(total, m.a(x))
    return total * 2


def test_modules_that_are_given_a_tensor_may_write_to_it(
    cutwheel: ModuleType, cpu_ops: CpuOps
) -> None:
    model = Net(gives_it_away, a=layers(), b=Accumulating())
    made = fused(cutwheel, model, *images())
    same(made, model, *images())
    assert "may write to a tensor that it makes" in made.fusion_report.untraced[0].reason


def test_constants_are_no_state(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    model = Net(lambda m, x, r: m.relu(m.conv(x)) * torch.arange(C).view(C, 1, 1))
    made = fused(cutwheel, model, *images())
    assert list(made.state_dict()) == ["conv.weight", "conv.bias"]


# --- what forward asks about its values


@functools.singledispatch
def twice(x: Any) -> Any:
    return [x, x]


@twice.register
def _(x: Tensor) -> Tensor:
    return x * 2


def matches(x: Any) -> bool:
    match x:
        case Tensor():
            return True
    return False


def goes_on(m: Any, x: Any, r: Any) -> Any:
    try:
        known = torch.is_tensor(x)
    except Exception:
        known = False
    return m.a(x) if known else m.other(x)


def goes_on_without_a_value(m: Any, x: Any, r: Any) -> Any:
    try:
        large = bool(x.sum() > -1e9)
    except Exception:
        large = False
    return m.a(x) if large else m.other(x)


def goes_on_without_a_length(m: Any, x: Any, r: Any) -> Any:
    try:
        size = len(x)
    except Exception:
        size = 0
    return m.a(x) if size else m.other(x)


def tags(m: Any, x: Any, r: Any) -> Any:
    x.seen = True
    return m.a(x)


SCALES = {torch.float32: 0.5}
QUESTIONS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "is_tensor": (lambda m, x, r: m.a(x) if torch.is_tensor(x) else x, "the type"),
    "type is": (lambda m, x, r: m.a(x) if type(m.a(x)) is Tensor else x, "the type"),
    "type ==": (lambda m, x, r: m.a(x) if type(x) == Tensor else x, "the type"),  # noqa: E721
    "type in": (lambda m, x, r: m.a(x) if type(x) in (Tensor,) else x, "the type"),
    "name of the type": (lambda m, x, r: m.a(x) if type(x).__name__ == "Tensor" else x, "type"),
    "issubclass": (lambda m, x, r: m.a(x) if issubclass(type(x), Tensor) else x, "the type"),
    "__class__": (lambda m, x, r: m.a(x) if x.__class__ is Tensor else x, "the type"),
    "getattr of __class__": (
        lambda m, x, r: m.a(x) if getattr(x, "__class__") is Tensor else x,  # noqa: B009
        "the type",
    ),
    "isinstance": (lambda m, x, r: m.a(x) if isinstance(x, Tensor) else x, "the type"),
    "isinstance of a shape": (
        lambda m, x, r: m.a(x) if isinstance(x.shape, torch.Size) else x,
        "the type",
    ),
    "isinstance of a size": (
        lambda m, x, r: m.a(x) if isinstance(x.shape[0], int) else x,
        "the type",
    ),
    "match": (lambda m, x, r: m.a(x) if matches(x) else x, "the type"),
    "singledispatch": (lambda m, x, r: twice(m.a(x)), "the type"),
    "typename": (lambda m, x, r: m.a(x) if "Tensor" in torch.typename(x) else x, "the type"),
    "jit.isinstance": (lambda m, x, r: m.a(x) if torch.jit.isinstance(x, Tensor) else x, "type"),
    "callable": (lambda m, x, r: x if callable(x) else m.a(x), "the type"),
    "hasattr": (lambda m, x, r: x if hasattr(x, "tensors") else m.a(x), "the attributes"),
    "getattr": (lambda m, x, r: m.a(getattr(x, "tensors", x)), "tensors, or a default"),
    "attributes": (tags, "sets seen of a value"),
    "dtype is": (lambda m, x, r: m.a(x) if x.dtype is torch.float32 else x, "attribute dtype"),
    "is not dtype": (lambda m, x, r: x if torch.float32 is not x.dtype else m.a(x), "dtype"),
    "grad is None": (lambda m, x, r: m.a(x) if x.grad is None else x, "attribute grad"),
    "dtype in a table": (lambda m, x, r: m.a(x) * SCALES.get(x.dtype, 2), "the hash"),
    "dtype in a set": (lambda m, x, r: m.a(x) if x.dtype in {torch.float32} else x, "the hash"),
    "text of a device": (lambda m, x, r: m.a(x) if str(x.device) == "cpu" else x, "the text"),
    "formatted": (lambda m, x, r: m.a(x) if f"{x.dtype}" == "torch.float32" else x, "the text"),
    "printed": (lambda m, x, r: m.a(x) if print(x.shape) is None else x, "the text"),
    "refusals caught": (goes_on, "the type"),
    "truth caught": (goes_on_without_a_value, "control flow"),
    "length caught": (goes_on_without_a_length, "'len' is not supported"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_that_have_no_answer_in_a_trace(
    cutwheel: ModuleType, cpu_ops: CpuOps, name: str
) -> None:
    forward, reason = QUESTIONS[name]
    assert reason in child_by_child(cutwheel, forward)


def test_questions_elsewhere(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """About anything but values, forward may ask what it likes."""

    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        assert type(m) is Net
        assert isinstance(type(m), type)
        assert issubclass(type(m), torch.nn.Module)
        assert type("Named", (), {"a": 1}).a == 1
        assert list[type[int]]
        assert hasattr(m, "conv")
        assert getattr(m, "missing", None) is None
        assert callable(m.relu)
        assert f"{C}" == str(C)
        y = m.conv(x)
        if m.norm is not None and (m, x.shape, m is None):
            y = m.norm(y)
        return m.relu(y)

    made = fused(cutwheel, Net(forward), *images())
    assert parts(made) == ["conv + bias + batch norm + relu"]


def test_messages_of_assertions(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    """Are made whether they are needed or not, and nothing depends on them."""

    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        torch._assert(x.dim() == 4, f"expected an image, got {x.shape}")
        torch._assert(x.shape[1] == C, f"expected other channels than {x!r} of {r}")
        return m.relu(m.conv(x))

    made = fused(cutwheel, Net(forward), *images())
    assert parts(made) == ["conv + bias + relu"]
    with pytest.raises(AssertionError, match="expected an image"):
        made(torch.randn(C, 5, 5), torch.randn(1))


def test_what_is_replaced_in_a_trace_is_put_back(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    names = ("isinstance", "hasattr", "getattr", "callable", "type")
    before = [vars(builtins)[name] for name in names]
    entering = torch.autocast.__enter__
    started, seen = threading.Barrier(2), []

    def forward(m: Any, x: Tensor, r: Tensor) -> Any:
        seen.append(type is vars(builtins)["type"])
        return m.relu(m.conv(x))

    def in_a_thread() -> None:
        started.wait()
        for _ in range(5):
            cutwheel.fuse(Net(forward))

    threads = [threading.Thread(target=in_a_thread) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [False] * 10
    assert [vars(builtins)[name] for name in names] == before
    assert torch.autocast.__enter__ is entering
    assert "type" not in globals()
