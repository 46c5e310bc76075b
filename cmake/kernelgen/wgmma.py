"""Instructions of Hopper's tensor cores in widths for which CUTLASS's plain headers have none.

CUTLASS declares all of them in one header that takes the compiler 20 s; a kernel needs one.
"""

from __future__ import annotations

HEADER = "wgmma_widths.cuh"
PLAIN = (8, 16, 32, 64, 96, 128, 192, 256)  # mma_sm90_gmma.hpp
EXTRA = (56, 72, 80, 88, 112, 144, 160, 176, 224)
_PER_LINE = 8


def fields() -> dict[str, str]:
    """What the template of the header wants: one struct for each width."""
    return {"instructions": "\n".join(_instruction(columns) for columns in EXTRA)}


def _instruction(columns: int) -> str:
    registers = columns // 2  # of a thread: 64 rows by `columns`, over 128 threads
    parameters = _lines([f"float& d{i}" for i in range(registers)], "                 ")
    outputs = _lines([f'"+f"(d{i})' for i in range(registers)], "        ")
    listed = ", ".join(f"%{i}" for i in range(registers))
    a, b, scale = registers, registers + 1, registers + 2
    return f"""template <>
struct WgmmaE4M3<{columns}> {{
  using DRegisters = void;
  using ARegisters = std::uint64_t[1];
  using BRegisters = std::uint64_t[1];
  using CRegisters = float[{registers}];
  CUTE_HOST_DEVICE static void fma(std::uint64_t const& a, std::uint64_t const& b,
{parameters},
                 cute::GMMA::ScaleOut scale = cute::GMMA::ScaleOut::One) {{
#if defined(CUTE_ARCH_MMA_SM90A_ENABLED)
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{scale}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{columns}k32.f32.e4m3.e4m3 "
        "{{{listed}}}, "
        "%{a}, %{b}, p, 1, 1;\\n}}\\n"
        :
{outputs}
        : "l"(a), "l"(b), "r"(static_cast<std::int32_t>(scale)));
#else
    CUTE_INVALID_CONTROL_PATH("WgmmaE4M3 without CUTE_ARCH_MMA_SM90A_ENABLED.");
#endif
  }}
}};
"""


def _lines(items: list[str], indent: str) -> str:
    rows = [items[i : i + _PER_LINE] for i in range(0, len(items), _PER_LINE)]
    return ",\n".join(indent + ", ".join(row) for row in rows)
