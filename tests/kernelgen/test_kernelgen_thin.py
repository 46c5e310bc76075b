"""Rules and sources of thin products, whose weight stays in shared memory."""

from __future__ import annotations

import pytest
from kernelgen_cases import Table, dtypes
from kernelgen_conv_cases import PRODUCT, manifest, one_error, rendered

THIN: Table = {
    "family": "thin",
    "arch": ["90a"],
    "dtypes": [dtypes("bf16", "bf16")],
    "layouts": ["tnt"],
    "epilogue": ["bias_residual_relu"],
    "tiles": [{"tile": [64, 64, 64]}],
}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [128, 64, 32]}, "tile M = 128; a warpgroup takes strips of 64 rows"),
        ({"tile": [64, 48, 32]}, "tile N = 48; columns that are multiplied at once: 32, 64 or 128"),
        ({"tile": [64, 96, 32]}, "tile N = 96; columns"),
        (
            {"tile": [64, 32, 72]},
            "tile K = 72; elements of K that are multiplied at once: 32 or 64",
        ),
        ({"tile": [64, 32, 128]}, "tile K = 128; elements"),
        ({"layouts": ["nnt"]}, "layout"),
        ({"epilogue": ["relu_aux"]}, "stores z; nothing but D"),
        ({"epilogue": ["gated"]}, "epilogue gated gives D half the columns of the product"),
        ({"epilogue": ["scaled"]}, "epilogue scaled reads scale, row[1|N] f32; operands are"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
    ],
)
def test_rules(values: Table, text: str) -> None:
    assert text in one_error(THIN, **values)


def test_no_other_dtypes() -> None:
    assert "f32" in one_error(THIN, dtypes=[dtypes("bf16", "f32")])


def test_tiles_share_a_source() -> None:
    tiles = [{"tile": [64, 64, 64]}, {"tile": [64, 32, 32]}]
    entry = {**THIN, "layouts": ["tnt", "ttt"], "tiles": tiles}
    assert len(manifest(entry).kernels) == 4
    files = rendered(entry)
    assert [name for name in files if name.endswith(".cu")] == ["gemm_sm90a_thin.cu"]
    text = files["gemm_sm90a_thin.cu"]
    assert '#include "sm90/thin/kernel.cuh"' in text
    layouts = "Layout::row, Layout::column"
    kernel = f"Thin<Arch::sm90a, {PRODUCT}, {layouts}, Shape3<64, 64, 64>"
    assert f"{kernel}, epilogue::bias_residual_relu>" in text
    assert "gemm_sm90a_bf16_bf16_f32_bf16_64x32x32_ttt_thin_bias_residual_relu(" in text
