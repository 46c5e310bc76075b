"""Instructions by the line they were written on, from PTX as nvcc writes it."""

from __future__ import annotations

import json
from pathlib import Path

import ptx_lines
import pytest
from ptx_lines import Line

PTX = """
.visible .entry gemm_a(
	.param .align 64 .b8 gemm_a_param_0[512]
)
.maxntid 128
{
	.reg .pred 	%p<3>;
	.loc	1 10 3
	ld.param.u64 	%rd1, [gemm_a_param_0];
	.loc	2 20 5, function_name $L__info_string0, inlined_at 1 11 3
	@%p1 bra 	$L__BB0_2;
	add.s32 	%r1, %r2, %r3;
	// begin inline asm
	wgmma.fence.sync.aligned;
	// end inline asm
$L__BB0_2:
	.loc	1 12 1
	ret;
}
.visible .entry gemm_b(
)
{
	mov.u32 	%r1, %tid.x;
	.loc	1 30 3
	@!%p2 st.global.u32 	[%rd1], %r1;
	ret;
}
	.file	1 "/source/kernel.cuh"
	.file	2 "/source/epilogue.cuh"
"""


def test_instructions_belong_to_the_line_that_was_inlined() -> None:
    found = ptx_lines.count(PTX.splitlines(), "gemm_a")
    assert found.kernels == 1
    assert found.lines == {
        Line("/source/kernel.cuh", 10): 1,
        Line("/source/epilogue.cuh", 20): 3,
        Line("/source/kernel.cuh", 12): 1,
    }


def test_what_stands_before_the_first_line_of_a_kernel_is_of_no_line() -> None:
    found = ptx_lines.count(PTX.splitlines(), "gemm_b")
    assert found.lines == {Line("", 0): 1, Line("/source/kernel.cuh", 30): 2}


def test_all_kernels_are_counted_together() -> None:
    found = ptx_lines.count(PTX.splitlines())
    assert (found.kernels, found.lines.total()) == (2, 8)


def build_of(folder: Path, compiler: str) -> None:
    entry = {
        "directory": str(folder),
        "file": str(folder / "generated" / "a.cu"),
        "command": f"/usr/bin/ccache {compiler} -O3 --compress-mode=size -x cu -c a.cu -o a.cu.o",
    }
    (folder / "compile_commands.json").write_text(json.dumps([entry]))


def test_a_source_is_compiled_as_the_build_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = tmp_path / "nvcc"
    compiler.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n'
        'while [ "$1" != -o ]; do shift; done\n'
        f'cp {tmp_path}/written.ptx "$2"\n'
    )
    compiler.chmod(0o755)
    (tmp_path / "written.ptx").write_text(PTX)
    build_of(tmp_path, str(compiler))
    ptx_lines.main(["a.cu", "--build", str(tmp_path), "--kernel", "gemm_a"])
    arguments = (tmp_path / "arguments").read_text().split()
    # Once each: nvcc takes one source for one PTX file.
    assert arguments[:-1] == ["-O3", "-x", "cu", "a.cu", "-ptx", "-lineinfo", "-o"]
    assert "5 instructions in 1 kernels" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no kernel 'conv_"):
        ptx_lines.main(["a.cu", "--build", str(tmp_path), "--kernel", "conv_*"])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not configured"):
        ptx_lines.main(["a.cu", "--build", str(tmp_path)])
    build_of(tmp_path, "false")
    with pytest.raises(SystemExit, match=r"no source 'b\.cu'"):
        ptx_lines.main(["b.cu", "--build", str(tmp_path)])
    with pytest.raises(SystemExit, match="does not compile"):
        ptx_lines.main(["a.cu", "--build", str(tmp_path)])
