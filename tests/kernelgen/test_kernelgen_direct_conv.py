"""Rules and sources of direct convolutions."""

from __future__ import annotations

import re

import pytest
from kernelgen_cases import (
    SM90_CONV,
    SM90_DIRECT_CONV,
    SM90_FEW_CHANNELS,
    SM90_SPACE_TO_DEPTH,
    SM90_STRIDED_DGRAD,
    Table,
    changed,
)
from kernelgen_conv_cases import PRODUCT, manifest, one_error, rendered

from kernelgen.families import FAMILIES


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [64, 256, 64]}, "tile 64x256x64; it is 64x240x64, which shared memory holds"),
        ({"direction": ["wgrad"]}, "direction wgrad; direct convolutions compute fprop or dgrad"),
        ({"direction": ["dgrad"], "epilogue": ["bias_gelu"]}, "gradients are stored as they are"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
    ],
)
def test_rules_of_sm90_direct_conv(values: Table, text: str) -> None:
    assert text in one_error(SM90_DIRECT_CONV, **values)


def test_they_have_a_source_and_names_of_their_own() -> None:
    same = changed(SM90_CONV, tile=[64, 128, 64])
    files = rendered(same, changed(SM90_DIRECT_CONV, direction=["fprop", "dgrad"]))
    assert [name for name in files if name.endswith(".cu")] == [
        "conv2d_sm90a_conv.cu",
        "conv2d_sm90a_direct_conv.cu",
    ]
    text = files["conv2d_sm90a_direct_conv.cu"]
    assert '#include "sm90/direct_conv/kernel.cuh"\n' in text
    assert re.findall(r"\nusing K\d = (.*);", text) == [
        f"Sm90DirectConv<Arch::sm90a, {PRODUCT}, Shape3<64, 240, 64>, Direction::{direction},"
        " epilogue::plain>"
        for direction in ("dgrad", "fprop")
    ]
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x240x64_fprop_direct_plain" in text
    assert "Family::sm90_direct_conv, Arch::sm90a" in files["kernel_table.cpp"]


def test_strided_dgrad_is_for_dgrad() -> None:
    assert "direction fprop; residue classes" in one_error(SM90_STRIDED_DGRAD, direction=["fprop"])
    text = rendered(changed(SM90_STRIDED_DGRAD))["conv2d_sm90a_strided_dgrad.cu"]
    assert "Direction::dgrad, epilogue::plain>" in text
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x240x64_dgrad_strided_plain" in text


def test_space_to_depth_is_for_fprop() -> None:
    assert "direction dgrad; space-to-depth" in one_error(SM90_SPACE_TO_DEPTH, direction=["dgrad"])
    assert "it is 64x240x16 or 64x240x32, which" in one_error(
        SM90_SPACE_TO_DEPTH, tile=[64, 240, 8]
    )
    text = rendered(changed(SM90_SPACE_TO_DEPTH))["conv2d_sm90a_space_to_depth.cu"]
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x240x16_fprop_space_to_depth_plain" in text


def test_few_channels_are_of_fprop() -> None:
    assert "direction dgrad; the channels" in one_error(SM90_FEW_CHANNELS, direction=["dgrad"])
    assert "it is 64x240x16, which" in one_error(SM90_FEW_CHANNELS, tile=[64, 240, 32])
    text = rendered(changed(SM90_FEW_CHANNELS))["conv2d_sm90a_few_channels.cu"]
    assert "Sm90FewChannels<Arch::sm90a, " in text
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x240x16_fprop_few_channels_plain" in text


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (SM90_DIRECT_CONV, "3 halo tiles x 45056 + filters 64 x 576 x 2 + 2048"),
        (SM90_STRIDED_DGRAD, "2 halo tiles x 45056 + filters 64 x 1024 x 2 + 2048"),
        (SM90_FEW_CHANNELS, "3 halo tiles x 30848 + filters 64 x 512 x 2 + 2048"),
        (SM90_SPACE_TO_DEPTH, "3 halo tiles x 30848 + filters 64 x 512 x 2 + 2048"),
        (
            changed(SM90_SPACE_TO_DEPTH, tile=[64, 240, 32]),
            "3 halo tiles x 45056 + filters 64 x 512 x 2 + 2048",
        ),
    ],
)
def test_shared_memory_fits_once(entry: Table, text: str) -> None:
    (kernel,) = manifest(entry).kernels
    total, terms = FAMILIES[kernel.family].shared_memory(kernel)
    assert terms == f"{text} = {total} bytes"
    assert total <= 227 * 1024
