"""Rules and sources of the kernels that read windows of patches in shared memory."""

from __future__ import annotations

import re

import pytest
from kernelgen_cases import SM90_BLOCKS, SM90_CONV, SM90_PHASES, SM90_WINDOW, Table, changed
from kernelgen_conv_cases import PRODUCT, manifest, one_error, rendered

from kernelgen.families import FAMILIES


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"tile": [64, 256, 64]}, "tile 64x256x64; it is 64x240x64, which shared memory holds"),
        ({"direction": ["wgrad"]}, "direction wgrad; windows are of the input, for each pixel"),
        ({"direction": ["dgrad"], "epilogue": ["bias_gelu"]}, "gradients are stored as they are"),
        ({"arch": ["80"]}, "unknown architecture '80'; allowed: 90a"),
    ],
)
def test_rules_of_sm90_conv_window(values: Table, text: str) -> None:
    assert text in one_error(SM90_WINDOW, **values)


def test_windows_have_a_source_and_names_of_their_own() -> None:
    same = changed(SM90_CONV, tile=[64, 128, 64])
    files = rendered(same, changed(SM90_WINDOW, direction=["fprop", "dgrad"]))
    assert [name for name in files if name.endswith(".cu")] == [
        "conv2d_sm90a_persistent.cu",
        "conv2d_sm90a_window.cu",
    ]
    text = files["conv2d_sm90a_window.cu"]
    assert '#include "conv2d/sm90_conv_window.cuh"\n' in text
    assert re.findall(r"\nusing K\d = (.*);", text) == [
        f"Sm90ConvWindow<Arch::sm90a, {PRODUCT}, Shape3<64, 240, 64>, Direction::{direction},"
        " epilogue::plain>"
        for direction in ("dgrad", "fprop")
    ]
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x240x64_fprop_window_plain" in text
    assert "Family::sm90_conv_window, Arch::sm90a" in files["kernel_table.cpp"]


def test_phases_are_those_of_gradients() -> None:
    assert "direction fprop; phases are those" in one_error(SM90_PHASES, direction=["fprop"])
    text = rendered(changed(SM90_PHASES))["conv2d_sm90a_phases.cu"]
    assert "Direction::dgrad, epilogue::plain>" in text
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x240x64_dgrad_phases_plain" in text


def test_blocks_are_those_of_inputs() -> None:
    assert "direction dgrad; blocks are those" in one_error(SM90_BLOCKS, direction=["dgrad"])
    assert "it is 64x240x16 or 64x240x32, which" in one_error(SM90_BLOCKS, tile=[64, 240, 8])
    text = rendered(changed(SM90_BLOCKS))["conv2d_sm90a_blocks.cu"]
    assert "conv2d_sm90a_bf16_bf16_f32_bf16_64x240x16_fprop_blocks_plain" in text


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (SM90_WINDOW, "3 patches x 45056 + filters 64 x 576 x 2 + 2048"),
        (SM90_PHASES, "2 patches x 45056 + filters 64 x 1024 x 2 + 2048"),
        (SM90_BLOCKS, "3 patches x 30848 + filters 64 x 512 x 2 + 2048"),
        (
            changed(SM90_BLOCKS, tile=[64, 240, 32]),
            "3 patches x 45056 + filters 64 x 512 x 2 + 2048",
        ),
    ],
)
def test_shared_memory_of_windows_fits_once(entry: Table, text: str) -> None:
    (kernel,) = manifest(entry).kernels
    total, terms = FAMILIES[kernel.family].shared_memory(kernel)
    assert terms == f"{text} = {total} bytes"
    assert total <= 227 * 1024
