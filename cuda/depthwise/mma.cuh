// Matrices of pixels x channels on tensor cores, as ldmatrix and mma.sync have them.
#pragma once

#include <cstdint>

#include "depthwise/element.cuh"

#ifdef __CUDACC__
namespace cutwheel::conv2d::depthwise {

// 8x8 matrices of 16-bit elements in shared memory: the row that each lane has the address of; a register of a matrix has
// two neighbours of a row, or with `transposed` of a column.
template <int count, bool transposed>
DEPTHWISE_DEVICE void load_matrices(std::uint32_t* to, unsigned address) {
  if constexpr (count == 4 && !transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
  } else if constexpr (count == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
  } else if constexpr (count == 2 && !transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
  } else if constexpr (count == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(address));
  } else if constexpr (!transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(address));
  }
}

// `taps` matrices, each one pixel (`pitch` bytes) behind the other: of eight pixels that lie `step` bytes apart. `address`:
// of the first.
template <int taps, bool transposed>
DEPTHWISE_DEVICE void load_shifted(std::uint32_t (&to)[taps], unsigned address, unsigned step, unsigned pitch) {
  unsigned const lane = static_cast<unsigned>(thread_index()) % 32;
  unsigned const row = address + lane % 8 * step;
  constexpr int kFours = taps / 4 * 4, kTwos = kFours + taps % 4 / 2 * 2;
#pragma unroll
  for (int i = 0; i < kFours; i += 4) load_matrices<4, transposed>(to + i, row + (i + lane / 8) * pitch);
  if constexpr (kTwos > kFours) load_matrices<2, transposed>(to + kFours, row + (kFours + lane / 8 % 2) * pitch);
  if constexpr (taps > kTwos) load_matrices<1, transposed>(to + kTwos, row + kTwos * pitch);
}

template <class E>
struct Mma;
#define DEPTHWISE_MMA(Type, name)                                                                          \
  template <>                                                                                              \
  struct Mma<Type> {                                                                                       \
    DEPTHWISE_DEVICE static void k16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,  \
                                     std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {               \
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                  \
                   ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                  \
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                \
    }                                                                                                      \
    DEPTHWISE_DEVICE static void k8(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) { \
      asm volatile("mma.sync.aligned.m16n8k8.row.col.f32." name "." name                                   \
                   ".f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"                              \
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                        \
                   : "r"(a0), "r"(a1), "r"(b0));                                                           \
    }                                                                                                      \
  }
DEPTHWISE_MMA(cutlass::bfloat16_t, "bf16");
DEPTHWISE_MMA(cutlass::half_t, "f16");
#undef DEPTHWISE_MMA

}  // namespace cutwheel::conv2d::depthwise
#endif
