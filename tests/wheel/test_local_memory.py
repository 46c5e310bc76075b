"""What kernels keep in local memory: it is as far away as device memory, and seldom meant."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from wheelcheck.fatbin import find_cuobjdump

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

# "Function NAME:", and below it " REG:64 STACK:16 SHARED:...".
USAGE = re.compile(r"Function (\w+):\s+REG:\d+ STACK:(\d+)")
# Bytes that a thread may have there, by kernel: in the largest tiles a few values find no register.
SPILLED = {
    r"gemm_sm80_\w+_f32_f32_\w+_multistage\d_linear_combination": 168,
    r"gemm_sm90a_\w+_128x192x64_tnt_persistent_bias_gelu_tanh_aux": 8,
    r"gemm_sm90a_tf32_\w+": 56,
    r"gemm_sm90a_\w+_unaligned_linear_combination": 24,
    r"grouped_mm_sm90a_\w+_128x256x64_\w+_aux": 64,
    r"conv2d_sm(80|90a)_\w+_grouped": 40,
    # In the one thread that loads, which has 40 registers.
    r"conv2d_sm90a_\w+_128x(64|128)x64_dgrad_persistent_split4_plain": 8,
    r"conv2d_sm90a_\w+_128x192x64_dgrad_persistent_split\d_plain": 16,
    r"scaled_mm_sm90a_\w+_swap_1x128_1x128_block_bias": 24,
}


def test_only_large_tiles_spill() -> None:
    library = Path(cutwheel.__file__).with_name("_C.so")
    command = [str(find_cuobjdump()), "--dump-resource-usage", str(library)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = [(name, int(stack)) for name, stack in USAGE.findall(text)]
    assert len(used) > 20
    allowed = {
        name: max((most for like, most in SPILLED.items() if re.fullmatch(like, name)), default=0)
        for name, _ in used
    }
    assert {name: stack for name, stack in used if stack > allowed[name]} == {}
