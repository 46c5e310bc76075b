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
    "tiles": [{"tile": [128, 64, 64]}],
}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [64, 64, 64]}, "tile M = 64; eight warps take 16 rows each: 128"),
        ({"tile": [128, 48, 64]}, "tile N = 48; groups of 32 columns are multiplied at once: 32"),
        ({"tile": [128, 96, 64]}, "tile N = 96; groups of 32"),
        ({"tile": [128, 32, 72]}, "tile K = 72; registers hold rows of up to 160, in blocks of 32"),
        ({"tile": [128, 32, 192]}, "tile K = 192; registers hold"),
        ({"layouts": ["nnt"]}, "layout"),
        ({"epilogue": ["relu_aux"]}, "stores z; nothing but D"),
        ({"epilogue": ["gated"]}, "epilogue gated gives D half the columns of the product"),
        ({"epilogue": ["scaled"]}, "epilogue scaled reads scale, row[1|N] f32; operands are"),
        ({"arch": ["75"]}, "unknown architecture '75'; allowed: 80, 89, 90a"),
    ],
)
def test_rules(values: Table, text: str) -> None:
    assert text in one_error(THIN, **values)


def test_no_other_dtypes() -> None:
    assert "f32" in one_error(THIN, dtypes=[dtypes("bf16", "f32")])


def test_tiles_share_a_source() -> None:
    tiles = [{"tile": [128, 64, 64]}, {"tile": [128, 32, 160]}]
    entry = {**THIN, "layouts": ["tnt", "ttt"], "tiles": tiles}
    assert len(manifest(entry).kernels) == 4
    files = rendered(entry)
    assert [name for name in files if name.endswith(".cu")] == ["gemm_sm90a_thin.cu"]
    text = files["gemm_sm90a_thin.cu"]
    assert '#include "sm80/thin.cuh"' in text
    layouts = "Layout::row, Layout::column"
    kernel = f"Thin<Arch::sm90a, {PRODUCT}, {layouts}, Shape3<128, 64, 64>"
    assert f"{kernel}, epilogue::bias_residual_relu>" in text
    assert "gemm_sm90a_bf16_bf16_f32_bf16_128x32x160_ttt_thin_bias_residual_relu(" in text
