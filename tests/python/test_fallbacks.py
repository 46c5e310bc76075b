"""Inductor's fallbacks are made before it meets an op, as it would make them itself."""

from __future__ import annotations

from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cutwheel")


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a torch whose Inductor writes messages that nobody reads."""
    from cutwheel.ops._common import fallbacks

    monkeypatch.setattr(fallbacks, "_pending", True)


def test_every_op_has_one(pending: None, cutwheel: ModuleType) -> None:
    import torch._inductor.graph
    from torch._inductor.lowering import lowerings, maybe_layout_constraints

    from cutwheel.ops._common import fallbacks

    ops = fallbacks.ops
    assert torch.ops.cutwheel.conv2d_fused.default in ops
    assert torch.ops.cutwheel.gemm.out in ops
    x = torch.empty(8, 8, device="meta", dtype=torch.bfloat16)
    cutwheel.mm(x, x)  # a trace calls meta functions before Inductor lowers the graph
    assert not fallbacks._pending
    for op in ops:
        assert op in lowerings
        assert maybe_layout_constraints(op) is not None


def test_nothing_is_loaded_for_them(pending: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from cutwheel.ops._common import fallbacks

    monkeypatch.delitem(sys.modules, "torch._inductor.graph", raising=False)
    fallbacks.make_fallbacks()
    assert fallbacks._pending
    assert "torch._inductor.graph" not in sys.modules
