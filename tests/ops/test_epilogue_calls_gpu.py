"""cutwheel.gemm: out=, aliasing, graphs, streams, schemas, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from epilogue_cases import Call, declared, nan_outs, products, representatives, served
from epilogue_reference import Epilogue
from gemm_cases import BRAIN, HALF, LAYOUTS, SINGLE, random_tensor

pytestmark = pytest.mark.gpu

FORMS = [case.epilogue for case in served(representatives(), BRAIN) if case.arch == "sm80"]
WITH_MATRIX = [e for e in FORMS if "matrix[M,N]" in e.tensors.values() and e.width == "same"]


OUTS = ("row", "column", "row_padded_8", "row_padded_3", "row_offset", "column_offset")


def name_of(epilogue: Epilogue) -> str:
    return epilogue.name


def given(results: list[torch.Tensor]) -> Any:
    """As out= takes them."""
    return results[0] if len(results) == 1 else tuple(results)


@pytest.mark.parametrize(
    "layout",
    [
        "row",
        "column",
        "row_padded_8",
        "row_padded_3",
        "row_offset",
        "every_second",
        "column_offset",
    ],
)
@pytest.mark.parametrize("epilogue", FORMS, ids=name_of)
def test_out(cutwheel: ModuleType, device: str, epilogue: Epilogue, layout: str) -> None:
    for m, n, k in ((72, 136, 104), (33, 66, 77)):
        call = Call.random(epilogue, m, n, k, BRAIN, device)
        outs = nan_outs(call, LAYOUTS[layout])
        places = [(out.data_ptr(), out.stride()) for out in outs]
        storages = [out.untyped_storage() for out in outs]
        untouched = [
            s.nbytes() // out.element_size() - out.numel()
            for s, out in zip(storages, outs, strict=True)
        ]
        call = replace(call, out=given(outs))
        results = call.run(cutwheel)
        assert all(result is out for result, out in zip(results, outs, strict=True))
        assert [(out.data_ptr(), out.stride()) for out in outs] == places
        call.judge(outs)
        for storage, count in zip(storages, untouched, strict=True):
            # Memory between the elements of a view is not written.
            whole = torch.empty(0, dtype=BRAIN, device=device).set_(storage)
            assert int(whole.isnan().sum()) == count


@pytest.mark.parametrize("epilogue", FORMS, ids=name_of)
def test_out_of_batches(cutwheel: ModuleType, device: str, epilogue: Epilogue) -> None:
    call = Call.random(epilogue, 40, 56, 72, BRAIN, device, batch=(3,))

    def heads(x: torch.Tensor) -> torch.Tensor:  # [M, B, N] in memory
        return x.transpose(0, 1).contiguous().transpose(0, 1)

    for lay in (LAYOUTS["row"], LAYOUTS["column"], heads):
        outs = nan_outs(call, lay)
        into = replace(call, out=given(outs))
        into.run(cutwheel)
        into.judge(outs)


@pytest.mark.parametrize("layout", ["row", "row_padded_8", "column", "row_offset"])
@pytest.mark.parametrize("epilogue", WITH_MATRIX, ids=name_of)
def test_out_may_be_a_matrix_operand(
    cutwheel: ModuleType, device: str, epilogue: Epilogue, layout: str
) -> None:
    for m, n, k in ((72, 136, 104), (129, 65, 77)):
        call = Call.random(epilogue, m, n, k, BRAIN, device)
        name = next(n for n, kind in epilogue.tensors.items() if kind == "matrix[M,N]")
        residual = LAYOUTS[layout](call.operands[name])
        call = call.with_operands(**{name: residual.clone()})
        _, *aux = nan_outs(call)
        aliased = replace(call.with_operands(**{name: residual}), out=given([residual, *aux]))
        results = aliased.run(cutwheel)
        assert results[0] is residual
        replace(call, out=residual).judge([residual, *aux])


@pytest.mark.parametrize("epilogue", WITH_MATRIX, ids=name_of)
def test_out_that_overlaps_is_refused(
    cutwheel: ModuleType, device: str, epilogue: Epilogue
) -> None:
    call = Call.random(epilogue, 40, 56, 72, BRAIN, device)
    name = next(n for n, kind in epilogue.tensors.items() if kind == "matrix[M,N]")
    base = random_tensor((60, 64), BRAIN, device)
    d, *aux = nan_outs(call)
    shifted = replace(
        call.with_operands(**{name: base[1:41, :56]}), out=given([base[:40, :56], *aux])
    )
    transposed = replace(
        call.with_operands(**{name: base[:40, :56]}),
        out=given([base.view(-1)[: 40 * 56].view(56, 40).t(), *aux]),
    )
    for bad in (shifted, transposed):
        with pytest.raises(ValueError, match="out"):
            bad.run(cutwheel)
    square = random_tensor((64, 64), BRAIN, device)
    with pytest.raises(ValueError, match="out"):
        cutwheel.gemm(square, square, "plain", out=square)
    if aux:
        with pytest.raises(ValueError, match="out"):
            replace(call, out=given([d, d, *aux[1:]])).run(cutwheel)
    call.check(cutwheel)


def by_position(call: Call) -> tuple[Any, ...]:
    operands = [call.operands[name] for name in call.epilogue.tensors]
    scalars = [call.scalars[name] for name in call.epilogue.scalars]
    return call.a, call.b, call.epilogue.name, operands, scalars


@pytest.mark.no_dispatch_mode
@pytest.mark.parametrize("epilogue", FORMS, ids=name_of)
def test_opcheck(cutwheel: ModuleType, device: str, epilogue: Epilogue) -> None:
    call = Call.random(epilogue, 24, 56, 40, BRAIN, device)
    gemm = torch.ops.cutwheel.gemm
    torch.library.opcheck(gemm.default, by_position(call))
    a, b, name, operands, scalars = by_position(call)
    torch.library.opcheck(gemm.default, (a, b, name, [None for _ in operands], scalars))
    batch = Call.random(epilogue, 24, 56, 40, BRAIN, device, batch=(2,))
    torch.library.opcheck(gemm.default, by_position(batch))
    torch.library.opcheck(
        gemm.out, by_position(call), {"out": nan_outs(call)}, test_utils=("test_faketensor",)
    )


@pytest.mark.no_dispatch_mode
def test_compile(cutwheel: ModuleType, device: str) -> None:
    backend = "inductor" if device != "cpu" else "aot_eager"
    for epilogue in FORMS:
        call = Call.random(epilogue, 72, 56, 40, BRAIN, device)

        def run(a: torch.Tensor, b: torch.Tensor, call: Call = call) -> tuple[torch.Tensor, ...]:
            operands = {**call.operands, **call.scalars}
            result = cutwheel.gemm(a, b, call.epilogue.name, **operands)
            return result if isinstance(result, tuple) else (result,)

        torch._dynamo.reset()
        compiled = torch.compile(run, fullgraph=True, backend=backend)
        call.judge(list(compiled(call.a, call.b)))


def test_the_manifest_says_what_the_library_has(cutwheel: ModuleType) -> None:
    listed = {epilogue.name: epilogue for epilogue in cutwheel.epilogues()}
    assert set(listed) == set(declared())
    for name, wanted in declared().items():
        assert (listed[name].expr, listed[name].width) == (wanted.expr, wanted.width)


# name: (classes, what the message names, call with a [8, 24], b [24, 16])
Bad = tuple[tuple[type[Exception], ...], str, Callable[..., object]]
BAD: dict[str, Bad] = {
    "epilogue": ((ValueError,), "declared in this wheel", lambda g, a, b: g(a, b, "bias_gelo")),
    "operand": (
        (ValueError, TypeError),
        "biass",
        lambda g, a, b: g(a, b, "bias_gelu", biass=b[0]),
    ),
    "operand_of_another": (
        (ValueError, TypeError),
        "residual",
        lambda g, a, b: g(a, b, "bias_gelu", residual=a[:, :16]),
    ),
    "row_extent": ((ValueError,), "bias", lambda g, a, b: g(a, b, "bias_gelu", bias=b[0, :5])),
    "row_rank": ((ValueError,), "bias", lambda g, a, b: g(a, b, "bias_gelu", bias=b[:8])),
    "matrix_shape": (
        (ValueError,),
        "residual",
        lambda g, a, b: g(a, b, "bias_residual", residual=b),
    ),
    "operand_dtype": ((TypeError,), "bias", lambda g, a, b: g(a, b, "bias_gelu", bias=b[0].half())),
    "operand_is_a_number": ((TypeError,), "bias", lambda g, a, b: g(a, b, "bias_gelu", bias=1.0)),
    "scalar_is_a_text": ((TypeError,), "alpha", lambda g, a, b: g(a, b, "bias_gelu", alpha="2")),
    "inner_extent": ((ValueError,), "b", lambda g, a, b: g(a, b[:-1], "bias_gelu")),
    "ranks": ((ValueError,), "b", lambda g, a, b: g(a, b[None], "bias_gelu")),
    "dtypes": ((TypeError,), "b", lambda g, a, b: g(a, b.half(), "bias_gelu")),
    "double": ((TypeError,), "a", lambda g, a, b: g(a.double(), b.double(), "bias_gelu")),
    "odd_n_of_pairs": ((ValueError,), "even|b", lambda g, a, b: g(a, b[:, :15], "gated_silu")),
    "elementwise_epilogue": (
        (ValueError,),
        "gelu_backward",
        lambda g, a, b: g(a, b, "gelu_backward"),
    ),
    "out_shape": ((ValueError,), "out", lambda g, a, b: g(a, b, "bias_gelu", out=b)),
    "out_dtype": (
        (TypeError,),
        "out",
        lambda g, a, b: g(a, b, "bias_gelu", out=a.new_empty(8, 16, dtype=HALF)),
    ),
    "too_few_outs": (
        (ValueError, TypeError),
        "out",
        lambda g, a, b: g(a, b, "bias_gelu_aux", out=a.new_empty(8, 16)),
    ),
    "device_of_operand": (
        (ValueError,),
        "bias",
        lambda g, a, b: g(a, b, "bias_gelu", bias=b[0].cpu()),
    ),
    "device_of_b": ((ValueError,), "b", lambda g, a, b: g(a, b.cpu(), "bias_gelu")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(
    cutwheel: ModuleType, device: str, name: str, check_class: Callable[..., None]
) -> None:
    if device == "cpu" and name.startswith("device"):
        pytest.skip("needs CUDA tensors")
    classes, words, call = BAD[name]
    a, b = random_tensor((8, 24), BRAIN, device), random_tensor((24, 16), BRAIN, device)
    with pytest.raises(classes, match=rf"\b({words})\b") as raised:
        call(cutwheel.gemm, a, b)
    check_class(raised.value, classes)
    assert "cutwheel." not in str(raised.value), "the class prefix is not for people"
    # The context is alive, and nothing of the failed call is left.
    torch.set_float32_matmul_precision("high")
    for epilogue in products()[:1]:
        Call.random(epilogue, 40, 56, 72, BRAIN, device).check(cutwheel)


def test_out_dtype(cutwheel: ModuleType, device: str) -> None:
    """float32 results of 16-bit operands, for the epilogues that have such kernels."""
    for case in served(products()):
        if case.d != SINGLE or case.dtype == SINGLE or case.arch != "sm80":
            continue
        Call.random(case.epilogue, 72, 136, 200, case.dtype, device, case.d).check(cutwheel)
