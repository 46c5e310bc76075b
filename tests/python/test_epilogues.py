"""epilogues(), and gemm by the name of an epilogue: operands, errors, shapes of results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cpu_reference import CpuOps
from refusals import places
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, SINGLE = torch.float16, torch.float32
Make = Callable[..., torch.Tensor]
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
EIGHT_BITS = ("e4m3", "s8")


@pytest.fixture
def fake(cutwheel: ModuleType) -> Iterator[Make]:
    """Makes fake CUDA tensors; none of it needs a GPU."""
    with FakeTensorMode():
        yield lambda *shape, dtype=HALF, device="cuda": torch.empty(
            shape, dtype=dtype, device=device
        )


def test_epilogues_are_those_of_the_manifest(cutwheel: ModuleType) -> None:
    assert cutwheel.__file__ is not None
    path = Path(cutwheel.__file__).with_name("manifest.json")
    if not path.is_file():
        pytest.skip("the package has no manifest.json")
    manifest = json.loads(path.read_text())
    # Those of scaled products and convolutions are chosen by what is given, and named nowhere else.
    scaled = {
        kernel["epilogue"]
        for kernel in manifest["kernels"]
        if kernel["op"] == "scaled_mm" or (kernel["op"] == "conv2d" and kernel["a"] in EIGHT_BITS)
    }
    declared = {k: v for k, v in manifest["epilogues"].items() if k not in scaled}
    found = {epilogue.name: epilogue for epilogue in cutwheel.epilogues()}
    assert set(found) == set(declared)
    for name, epilogue in found.items():
        assert epilogue.expr == declared[name]["expr"]
        assert epilogue.width == declared[name]["width"]
        assert list(epilogue.aux) == list(declared[name].get("aux", {}))
        operands = {k: v for k, v in epilogue.operands.items() if k not in ("alpha", "beta")}
        assert operands == declared[name].get("operands", {})


def test_epilogues_of_the_layers_are_declared(cutwheel: ModuleType) -> None:
    names = {epilogue.name for epilogue in cutwheel.epilogues()}
    linear, gated = cutwheel.ops.linear, cutwheel.ops.linear._gated
    for fusion in linear._FUSIONS.values():
        assert {fusion.epilogue, *filter(None, fusion[1:])} <= names
    assert set(linear._COMPOSED_EPILOGUES.values()) <= names
    assert set(gated.EPILOGUES.values()) <= names
    assert {name for pair in gated.TRAINED.values() for name in pair} <= names
    assert "identity_backward" in names


def test_an_epilogue_is_readable(cutwheel: ModuleType) -> None:
    found = {epilogue.name: epilogue for epilogue in cutwheel.epilogues()}
    gelu = found["bias_gelu_aux"]
    assert gelu.operands == {"alpha": "scalar", "bias": "row[N]"}
    assert gelu.aux == ("z",)
    assert gelu.has_accum
    assert str(gelu) == "bias_gelu_aux(alpha: scalar, bias: row[N]) = gelu(z), and stores z"
    assert found["linear_combination"].operands["c"] == "matrix[M,N]"
    assert found["gated_silu"].width == "half"
    backward = found["gated_silu_backward"]
    assert (backward.width, backward.has_accum) == ("twice", False)
    assert backward.operands == {"grad": "matrix[M,N]", "z": "matrix[M,2N]"}


def test_gemm_by_position(cutwheel: ModuleType, cpu_ops: CpuOps) -> None:
    a, b = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    c, bias = torch.randn(3, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    gemm = cutwheel.gemm
    torch.testing.assert_close(gemm(a, b, "linear_combination", c=c, beta=2), a @ b + 2 * c)
    torch.testing.assert_close(gemm(a, b, "linear_combination", alpha=3), 3 * (a @ b))
    result = gemm(a, b, "bias_leaky_relu", slope=0.25, bias=bias, alpha=2)
    torch.testing.assert_close(result, torch.nn.functional.leaky_relu(2 * (a @ b) + bias, 0.25))


def test_shapes_of_gemm(cutwheel: ModuleType, fake: Make) -> None:
    gemm = cutwheel.gemm
    a, b = fake(4, 6), fake(6, 8)
    a3, b3 = fake(2, 4, 6), fake(2, 6, 8)
    assert gemm(a, b).shape == (4, 8)
    assert gemm(a, b, out_dtype=SINGLE).dtype == SINGLE
    assert gemm(a3, b3, "bias_gelu", bias=fake(8)).shape == (2, 4, 8)
    assert gemm(a3, b3, "bias_gelu", bias=fake(2, 8)).shape == (2, 4, 8)
    assert gemm(a3, b3, "bias_residual", residual=fake(4, 8)).shape == (2, 4, 8)
    assert gemm(a, b, "bias_gelu", bias=fake(8, dtype=SINGLE), out_dtype=SINGLE).dtype == SINGLE
    assert gemm(a, b, "gated_silu").shape == (4, 4)
    d, z = gemm(a, b, "bias_gelu_residual_aux", residual=fake(8, 4).t())
    assert d.shape == z.shape == (4, 8)
    d, z = gemm(a, b, "gated_silu_aux")
    assert (d.shape, z.shape) == ((4, 4), (4, 8))
    assert d.is_contiguous()
    out = fake(8, 4).t()
    assert gemm(a, b, out=out) is out
    pair = fake(4, 4), fake(4, 8)
    assert gemm(a, b, "gated_silu_aux", out=pair) is pair
    assert gemm(fake(0, 6), b).shape == (0, 8)
    assert gemm(fake(4, 0), fake(0, 8)).shape == (4, 8)


def test_autocast_casts_the_operands_of_gemm(cutwheel: ModuleType, fake: Make) -> None:
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        a, b, bias = fake(4, 6, dtype=SINGLE), fake(6, 8, dtype=SINGLE), fake(8, dtype=SINGLE)
        assert cutwheel.gemm(a, b, "bias_gelu", bias=bias).dtype == torch.bfloat16
        wide = cutwheel.gemm(a, b, "bias_gelu", bias=bias, out_dtype=SINGLE)
        assert wide.dtype == SINGLE
    finally:
        torch.set_autocast_enabled("cuda", False)


def bad_calls(make: Make) -> dict[str, tuple[type[Exception], str, Callable[[Any], object]]]:
    a, b, row = make(4, 6), make(6, 8), make(8)
    return {
        "unknown": (
            ValueError,
            r"'gelu' is not declared in this wheel; declared: plain, bias, linear_combination",
            lambda g: g(a, b, "gelu"),
        ),
        "no_name": (ValueError, "not declared", lambda g: g(a, b, None)),
        "elementwise": (ValueError, "no product", lambda g: g(a, b, "gelu_backward")),
        "operand": (
            TypeError,
            r"residual is no operand of epilogue 'bias_gelu'; it has: alpha, bias",
            lambda g: g(a, b, "bias_gelu", residual=row),
        ),
        "tensor_for_scalar": (
            TypeError,
            "alpha is a Tensor that has 1 dimensions; expected a number",
            lambda g: g(a, b, alpha=make(1)),
        ),
        "none_for_scalar": (TypeError, "alpha is of type None", lambda g: g(a, b, alpha=None)),
        "scalar_for_tensor": (
            TypeError,
            "bias is of type float; expected a Tensor",
            lambda g: g(a, b, "bias_gelu", bias=1.0),
        ),
        "missing": (
            TypeError,
            "slope, a scalar of epilogue 'bias_leaky_relu', is missing",
            lambda g: g(a, b, "bias_leaky_relu"),
        ),
        "no_tensor": (TypeError, "b is of type list", lambda g: g(a, [1])),
        "rank": (ValueError, "b has 3 dimensions", lambda g: g(a, make(1, 6, 8))),
        "vector": (ValueError, "a has 1 dimensions", lambda g: g(make(6), b)),
        "inner": (ValueError, r"b has shape \[5, 8\]", lambda g: g(a, make(5, 8))),
        "row": (
            ValueError,
            r"bias has shape \[4\]; expected \[8\]",
            lambda g: g(a, b, "bias", bias=make(4)),
        ),
        "matrix": (
            ValueError,
            r"residual has shape \[1, 8\]; expected \[4, 8\]",
            lambda g: g(a, b, "bias_residual", residual=make(1, 8)),
        ),
        "operand_dtype": (
            TypeError,
            "bias has dtype float32; expected float16",
            lambda g: g(a, b, "bias", bias=row.float()),
        ),
        "b_dtype": (TypeError, "b has dtype float32", lambda g: g(a, b.float())),
        "odd": (ValueError, "even", lambda g: g(a, make(6, 7), "gated_silu")),
        "out_count": (
            ValueError,
            "out has 1 tensors; expected 2",
            lambda g: g(a, b, "bias_gelu_aux", out=make(4, 8)),
        ),
        "out_shape": (ValueError, "never resized", lambda g: g(a, b, out=make(4, 7))),
        "out_dtype": (
            TypeError,
            "out has dtype torch.float16; expected torch.float32",
            lambda g: g(a, b, out=make(4, 8), out_dtype=SINGLE),
        ),
        "out_overlaps": (
            ValueError,
            "overlaps itself",
            lambda g: g(a, b, out=make(4, 1).expand(4, 8)),
        ),
        "grad": (
            RuntimeError,
            "a requires grad.*use linear, gated_linear or mm",
            lambda g: g(make(4, 6).requires_grad_(), b),
        ),
        "operand_grad": (
            RuntimeError,
            "bias requires grad",
            lambda g: g(a, b, "bias", bias=make(8).requires_grad_()),
        ),
        "out_grad": (
            RuntimeError,
            "out requires grad",
            lambda g: g(a, b, out=make(4, 8).requires_grad_()),
        ),
    }


def maker(device: str) -> Make:
    return lambda *shape, dtype=HALF, device=device: torch.empty(shape, dtype=dtype, device=device)


ONLY_LIBRARY = (
    *("row", "matrix", "operand_dtype", "b_dtype", "odd"),
    *("out_shape", "out_overlaps"),
)


@pytest.mark.parametrize(("name", "where"), places(bad_calls(maker("meta")), ONLY_LIBRARY))
def test_bad_gemm(
    cutwheel: ModuleType, name: str, where: str, check_class: Callable[..., None]
) -> None:
    error, message, call = bad_calls(maker(where))[name]
    torch.set_float32_matmul_precision("highest")
    with pytest.raises(error, match=message) as raised:
        call(cutwheel.gemm)
    check_class(raised.value, error)


def test_no_grad_lets_gemm_take_parameters(cutwheel: ModuleType, fake: Make) -> None:
    with torch.no_grad():
        assert cutwheel.gemm(fake(4, 6).requires_grad_(), fake(6, 8)).shape == (4, 8)


def test_gemm_compiles(cutwheel: ModuleType) -> None:
    def model(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        d, z = cutwheel.gemm(a, b, "bias_gelu_aux", bias=bias, alpha=2)
        return d + z + cutwheel.gemm(a, b)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    shapes = ((4, 6), (6, 8), (8,))
    result = compiled(*(torch.empty(s, dtype=HALF, device="meta") for s in shapes))
    assert result.shape == (4, 8)
