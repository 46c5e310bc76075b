"""Rules and sources of grouped convolutions."""

from __future__ import annotations

import re

import pytest
from kernelgen_cases import Table, changed
from kernelgen_conv_cases import one_error, rendered

HALF = {"a": "bf16", "b": "bf16", "acc": "f32", "d": "bf16"}
GROUPED: Table = {
    "family": "grouped_conv",
    "arch": ["90a"],
    "dtypes": [HALF],
    "direction": ["fprop"],
    "epilogue": ["plain", "bias", "bias_residual_relu"],
    "tiles": [{"tile": [64, 8, 16]}],
}
GRADIENT: Table = {key: value for key, value in GROUPED.items() if key != "epilogue"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [64, 8, 32]}, "tile 64x8x32; expected K = 16, M a multiple of 16 and N of 8"),
        ({"tile": [64, 12, 16]}, "tile 64x12x16; expected K = 16"),
        ({"tile": [128, 64, 16]}, "at most 4480 sums"),
        ({"epilogue": ["bias", "plain"]}, "epilogue begins with bias, plain; expected plain, bias"),
        ({"direction": ["wgrad"]}, "epilogues of wgrad; only fprop has any"),
        ({"arch": ["75"]}, "unknown architecture '75'; allowed: 80, 89, 90a"),
    ],
)
def test_rules(values: Table, text: str) -> None:
    assert text in one_error(GROUPED, **values)


def test_dgrad_has_no_kernels() -> None:
    assert "those of fprop compute it" in one_error(GRADIENT, direction=["dgrad"])


def test_one_kernel_has_all_epilogues() -> None:
    wgrad = changed(GRADIENT, direction=["wgrad"], tile=[80, 8, 16])
    files = rendered(GROUPED, wgrad)
    assert [name for name in files if name.endswith(".cu")] == ["conv2d_sm90a_grouped_conv.cu"]
    text = files["conv2d_sm90a_grouped_conv.cu"]
    cases = ", ".join(
        f"EpilogueCase<Epilogue::{name}, epilogue::{name}>"
        for name in ("plain", "bias", "bias_residual_relu")
    )
    start = "GroupedConv<Arch::sm90a, DType::bf16, Shape3<"
    assert re.findall(r"\nusing K\d = (.*);", text) == [
        f"{start}64, 8, 16>, Direction::fprop, {cases}>",
        f"{start}80, 8, 16>, Direction::wgrad>",
    ]
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x8x16_fprop_grouped" in text
