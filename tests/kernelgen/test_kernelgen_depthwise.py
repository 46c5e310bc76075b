"""Rules and sources of depthwise convolutions: one kernel has all epilogues of its entry."""

from __future__ import annotations

import re

import pytest
from kernelgen_cases import Table, changed
from kernelgen_conv_cases import manifest, one_error, rendered

HALF = {"a": "bf16", "b": "bf16", "acc": "f32", "d": "bf16"}
DEPTHWISE: Table = {
    "family": "depthwise",
    "arch": ["90a"],
    "dtypes": [HALF],
    "direction": ["fprop"],
    "epilogue": ["plain", "bias", "bias_residual_relu"],
    "tiles": [{"tile": [3, 3, 1]}],
}
GRADIENT: Table = {key: value for key, value in DEPTHWISE.items() if key != "epilogue"}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [3, 3, 3]}, "tile 3x3x3 for fprop; R, S and stride are one of 3x3x1, 3x3x2"),
        ({"epilogue": ["bias", "plain"]}, "epilogue begins with bias, plain; expected plain, bias"),
        ({"epilogue": ["plain", "bias", "relu_aux"]}, "epilogue relu_aux; expected one of the acc"),
        ({"epilogue": ["plain", "bias", "gated"]}, "epilogue gated; expected one of the accumulat"),
        ({"epilogue": ["plain", "bias", "scaled"]}, "epilogue scaled reads scale, row[1|N] f32"),
        ({"direction": ["wgrad"]}, "epilogues of wgrad; only fprop has any"),
        ({"arch": ["75"]}, "unknown architecture '75'; allowed: 80, 89, 90a"),
    ],
)
def test_rules(values: Table, text: str) -> None:
    assert text in one_error(DEPTHWISE, **values)


def test_gradients_have_tiles_of_their_own() -> None:
    assert "tile 3x3x1 for dgrad; " in one_error(GRADIENT, direction=["dgrad"])
    assert "tile 1x3x1 for wgrad; " in one_error(GRADIENT, direction=["wgrad"], tile=[1, 3, 1])


def test_one_kernel_has_all_epilogues() -> None:
    dgrad = changed(GRADIENT, direction=["dgrad"], tile=[3, 3, 2])
    kernels = manifest(DEPTHWISE, dgrad).kernels
    assert [[e.name for e in kernel.epilogues] for kernel in kernels] == [
        ["plain", "bias", "bias_residual_relu"],
        [],
    ]
    files = rendered(DEPTHWISE, dgrad)
    assert [name for name in files if name.endswith(".cu")] == ["conv2d_sm90a_depthwise.cu"]
    text = files["conv2d_sm90a_depthwise.cu"]
    for name in ("plain", "bias", "bias_residual_relu"):
        assert f'#include "epilogue_{name}.cuh"\n' in text
    cases = ", ".join(
        f"EpilogueCase<Epilogue::{name}, epilogue::{name}>"
        for name in ("plain", "bias", "bias_residual_relu")
    )
    start = "Depthwise<Arch::sm90a, DType::bf16, Shape3<3, 3, "
    assert re.findall(r"\nusing K\d = (.*);", text) == [
        f"{start}1>, Direction::fprop, {cases}>",
        f"{start}2>, Direction::dgrad>",
    ]
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_3x3x2_dgrad_depthwise" in text
