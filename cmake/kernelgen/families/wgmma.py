"""Instructions of Hopper's tensor cores in widths for which CUTLASS's plain headers have none.

CUTLASS declares all of them in one header that takes the compiler 20 s; a kernel needs one.
"""

from __future__ import annotations

HEADER = "wgmma_widths.cuh"
PLAIN = (8, 16, 32, 64, 96, 128, 192, 256)  # mma_sm90_gmma.hpp
EXTRA = (24, 40, 48, 56, 72, 80, 88, 104, 112, 120, 136, 144, 152, 160, 176, 200, 208, 224, 240)
# Operands that have these widths, float32 sums: PTX's name, C++'s, elements of K, and whether
# either may lie with K not contiguous.
_TYPES = {
    "e4m3": ("cutlass::float_e4m3_t", 32, False),
    "bf16": ("cutlass::bfloat16_t", 16, True),
    "f16": ("cutlass::half_t", 16, True),
}
OPERANDS = tuple(_TYPES)
_PER_LINE = 8


def fields() -> dict[str, str]:
    """Values for the template of the header: one struct for each type and width."""
    return {"instructions": "\n".join(_instruction(x, n) for x in _TYPES for n in EXTRA)}


def _instruction(type_name: str, columns: int) -> str:
    cpp_type, k, has_majors = _TYPES[type_name]
    registers = columns // 2  # of a thread: 64 rows by `columns`, over 128 threads
    parameters = _lines([f"float& d{i}" for i in range(registers)], "                 ")
    outputs = _lines([f'"+f"(d{i})' for i in range(registers)], "        ")
    listed = ", ".join(f"%{i}" for i in range(registers))
    a, b, scale = registers, registers + 1, registers + 2
    if has_majors:
        parameters_of = (
            "template <cute::SM90::GMMA::Major a_major, cute::SM90::GMMA::Major b_major>"
        )
        arguments = "a_major, b_major"
        majors = f", %{scale + 1}, %{scale + 2}"
        values = "".join(f', "n"(static_cast<std::int32_t>({x}_major))' for x in "ab")
    else:
        parameters_of = "template <>"
        arguments = "cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K"
        majors = values = ""
    return f"""{parameters_of}
struct Wgmma<{cpp_type}, {columns}, {arguments}> {{
  using DRegisters = void;
  using ARegisters = std::uint64_t[1];
  using BRegisters = std::uint64_t[1];
  using CRegisters = float[{registers}];
  CUTE_HOST_DEVICE static void fma(std::uint64_t const& a, std::uint64_t const& b,
{parameters},
                 cute::SM90::GMMA::ScaleOut scale = cute::SM90::GMMA::ScaleOut::One) {{
#if defined(CUTE_ARCH_MMA_SM90A_ENABLED)
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{scale}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{type_name}.{type_name} "
        "{{{listed}}}, "
        "%{a}, %{b}, p, 1, 1{majors};\\n}}\\n"
        :
{outputs}
        : "l"(a), "l"(b), "r"(static_cast<std::int32_t>(scale)){values});
#else
    CUTE_INVALID_CONTROL_PATH("Wgmma without CUTE_ARCH_MMA_SM90A_ENABLED.");
#endif
  }}
}};
"""


def _lines(items: list[str], indent: str) -> str:
    rows = [items[i : i + _PER_LINE] for i in range(0, len(items), _PER_LINE)]
    return ",\n".join(indent + ", ".join(row) for row in rows)
