"""torch.compile with cutwheel's kernels: where one is expected to be faster."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from selection import needs_all
from torch import fx

BF16 = torch.bfloat16


def target(major: int = 9, only_faster: bool = True) -> Any:
    from cutwheel.inductor.gains import Target

    return Target(major, only_faster)


def symbol(least: int = 2, most: int | None = None) -> Any:
    """A number of rows that is not known."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    env = ShapeEnv()
    hint = max(least, 4096) if most is None else most
    size = env.create_symbol(hint, ConstantSource("rows"), dynamic_dim=DimDynamic.DYNAMIC)
    made = env.create_symintnode(size, hint=hint)
    env.constrain_symbol_range(size, least, 2**63 - 1 if most is None else most)
    return made


def product(m: Any, n: int = 4096, k: int = 4096, layout: str = "tn", **how: Any) -> Any:
    from cutwheel.inductor.products import Product

    node = fx.Graph().placeholder("x")
    given: dict[str, Any] = {
        "node": node,
        "op": "mm",
        "a": node,
        "b": node,
        "c": None,
        "alpha": 1.0,
        "beta": 1.0,
        "batch": 1,
        "m": m,
        "n": n,
        "k": k,
        "layout": layout,
        "dtype": BF16,
        "device": torch.device("cuda"),
    }
    return Product(**{**given, **how})


@pytest.fixture
def all_kernels(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutwheel.inductor.gains import Target

    monkeypatch.setattr(Target, "has_kernel", lambda self, *asked: True)


def test_plain_products_go_by_the_figures_of_enable(all_kernels: None) -> None:
    ask = target().why_not_product
    assert ask(product(4097, layout="nt")) is None
    assert "torch was measured" in ask(product(4097, layout="tt"))
    # It was measured itself.
    assert "torch was measured" in ask(product(8192, 2112, 7168))
    assert ask(product(4096, 6144, 4096)) is None
    assert "no measurement" in ask(product(4097, layout="nn"))


@pytest.mark.parametrize("layout", ["tn", "tt", "nt"])
@pytest.mark.parametrize("least", [2, 2049])
def test_any_number_of_rows_needs_a_gain_for_all(
    all_kernels: None, layout: str, least: int
) -> None:
    ask = target().why_not_product
    # Of all classes of rows, by extents that were not measured themselves.
    rows = [each for each in (2, 17, 65, 129, 513, 2049) if each >= least]
    each = [ask(product(number, 4104, 2056, layout)) for number in rows]
    found = ask(product(symbol(least), 4104, 2056, layout))
    assert (found is None) == all(reason is None for reason in each)
    assert found is None or "rows)" in found


def test_any_number_of_rows_needs_a_gain_of_what_is_fused_for_all(
    all_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cutwheel.inductor import measured

    gains = {"gated": (1, 1, 1, 1), "activation": (0, 1, 1, 1), "residual": (0, 1, 1, 0)}
    classes = (*measured.ROWS, 0)
    for kind, taken in gains.items():
        for most, gain in zip(classes, taken, strict=True):
            monkeypatch.setitem(measured.GEMMS, (kind, most), bool(gain))
    fused = target().why_not_fused
    assert fused("gated", "silu", symbol()) is None
    assert "up to 64 rows" in fused("activation", "gelu", symbol())
    assert fused("activation", "gelu", symbol(65)) is None
    assert fused("residual", None, symbol(65, 2048)) is None
    assert "more than 2048" in fused("residual", None, symbol(65))


def test_nothing_is_specialised_or_guarded(all_kernels: None) -> None:
    rows = symbol()
    env = rows.node.shape_env
    target().why_not_product(product(rows))
    target().why_not_fused("activation", "gelu", rows)
    assert not env.guards
    assert not env.replacements


@pytest.mark.parametrize("rows", [1, 64, 65, 512, 513, 2048, 2049, 100_000])
@pytest.mark.parametrize("kind", ["bias", "activation", "residual, goes on", "gated", "other"])
def test_classes_of_rows(all_kernels: None, kind: str, rows: int) -> None:
    from cutwheel.inductor import measured

    most = next((each for each in measured.ROWS if rows <= each), 0)
    expected = measured.GEMMS.get((kind, most))
    reason = target().why_not_fused(kind, None, rows)
    assert (reason is None) == bool(expected)
    assert (reason is not None and "nothing like it" in reason) == (expected is None)


def test_what_was_not_measured(all_kernels: None) -> None:
    assert "sigmoid was not measured" in target().why_not_fused("activation", "sigmoid", 512)
    assert "on this GPU" in target(8).why_not_fused("activation", "gelu", 512)
    assert "on this GPU" in target(8).why_not_product(product(4097))
    assert "on this GPU" in target(8).why_not_convolution("fprop", (3, 3), False)
    assert "on this GPU" in target(8).why_not_fused("rowwise", None, 64)
    assert "nothing like it" in target().why_not_convolution("fprop", (3, 3, 3), True)
    assert "number of matrices" in target().why_not_product(product(64, batch=symbol()))


def test_whatever_kernels_can_take(all_kernels: None) -> None:
    ask = target(8, only_faster=False)
    assert ask.why_not_product(product(4096, 6144, 4096)) is None
    assert ask.why_not_fused("activation", "sigmoid", 3) is None
    assert ask.why_not_convolution("wgrad", (3, 3), False) is None


def test_a_kernel_has_to_be_there(cutwheel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from cutwheel.inductor import gains

    monkeypatch.setattr(
        gains,
        "_available",
        lambda: frozenset({("gemm", "sm90a", "bf16", "bf16", "tnt", "bias_gelu")}),
    )
    assert target().has_kernel("gemm", BF16, "tnt", "bias_gelu")
    assert not target().has_kernel("gemm", torch.float16, "tnt", "bias_gelu")
    assert not target().has_kernel("gemm", BF16, "tnt", "bias_silu")
    assert not target(8).has_kernel("gemm", BF16, "tnt", "bias_gelu")
    assert "no kernel" in target().why_not_product(product(4097))


def test_kernels_of_the_wheel_are_found(cutwheel: ModuleType) -> None:
    from cutwheel.inductor.gains import _available

    found = {(kernel.op, kernel.arch, kernel.epilogue) for kernel in cutwheel.kernels()}
    asked = {(op, arch, epilogue) for op, arch, *_, epilogue in _available()}
    assert asked
    assert asked <= found


@needs_all
def test_kernels_that_the_figures_are_of(cutwheel: ModuleType) -> None:
    ask = target().has_kernel
    for dtype in (BF16, torch.float16):
        for epilogue in ("plain", "bias", "linear_combination"):
            for layout in ("tnt", "ttt", "ntt", "nnt"):
                assert ask("gemm", dtype, layout, epilogue)
        for activation in ("relu", "gelu", "gelu_tanh", "silu"):
            assert ask("gemm", dtype, "tnt", f"bias_{activation}")
            assert ask("gemm", dtype, "tnt", f"gated_{activation}")
            assert ask("conv2d", dtype, "fprop", f"bias_{activation}")
        assert ask("gemm", dtype, "tnt", "bias_residual")
        assert ask("gemm", dtype, "tnt", "bias_gelu_aux")
        assert ask("conv2d", dtype, "fprop", "bias_residual_relu")
        for direction in ("fprop", "dgrad", "wgrad"):
            assert ask("conv2d", dtype, direction, "plain")
        assert ask("scaled_mm", torch.float8_e4m3fn, "tnt", "scaled", dtype)
    assert not ask("conv2d", BF16, "fprop", "gated_silu")
    assert not ask("gemm", BF16, "fprop", "plain")


def test_no_gpu(cutwheel: ModuleType) -> None:
    from cutwheel.inductor.gains import Target

    assert "not on a CUDA device" in Target.of(torch.device("cpu"), True)


def test_bounds() -> None:
    from cutwheel.inductor.sizes import bounds, static

    assert bounds(5) == (5, 5)
    assert static(5) == 5
    rows = symbol(3, 17)
    assert static(rows) is None
    assert bounds(rows) == (3, 17)
    assert bounds(4 * rows) == (12, 68)
    assert bounds(symbol(3)) == (3, None)


def test_letters() -> None:
    from cutwheel.inductor.sizes import letter

    matrix = torch.empty(16, 32, dtype=BF16)
    assert letter(matrix) == "t"
    assert letter(matrix.t()) == "n"
    assert letter(matrix[:, :24]) == "t"
    assert letter(matrix[:, 1:25]) == "?"
    assert letter(matrix[:, ::2]) == "?"
    assert letter(torch.empty(16, 12, dtype=BF16)) == "?"
    assert letter(torch.empty(2, 16, 32, dtype=BF16).mT) == "n"
