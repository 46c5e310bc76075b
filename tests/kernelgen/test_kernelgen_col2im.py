"""Rules and sources of col2im: types of columns and images, and dgrad alone."""

from __future__ import annotations

import pytest
from kernelgen_cases import Table
from kernelgen_conv_cases import manifest, one_error, rendered

COLUMNS: Table = {
    "family": "col2im",
    "arch": ["90a"],
    "dtypes": [
        {"a": "f32", "b": "f32", "acc": "f32", "d": "bf16"},
        {"a": "bf16", "b": "bf16", "acc": "f32", "d": "bf16"},
    ],
    "direction": ["dgrad"],
}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"direction": ["fprop"]}, "direction fprop; columns are summed to the gradient"),
        ({"dtypes": [{"a": "bf16", "b": "bf16", "acc": "f32", "d": "f16"}]}, "dtypes"),
    ],
)
def test_rules(values: Table, text: str) -> None:
    assert text in one_error(COLUMNS, **values)


def test_a_source_has_all_types() -> None:
    kernels = manifest(COLUMNS).kernels
    assert [(kernel.dtypes.a, kernel.dtypes.d) for kernel in kernels] == [
        ("bf16", "bf16"),
        ("f32", "bf16"),
    ]
    files = rendered(COLUMNS)
    assert [name for name in files if name.endswith(".cu")] == ["conv2d_sm90a_col2im.cu"]
    text = files["conv2d_sm90a_col2im.cu"]
    assert '#include "elementwise/col2im.cuh"\n' in text
    assert "Col2im<Arch::sm90a, DType::f32, DType::bf16>" in text
    assert "Col2im<Arch::sm90a, DType::bf16, DType::bf16>" in text
