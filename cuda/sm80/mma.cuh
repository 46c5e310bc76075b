// Instructions of Ampere and Ada: cp.async, ldmatrix and mma.sync.
#pragma once

#include <cutlass/cutlass.h>

#include "core/types.h"

namespace cutwheel::gemm {

// Copies 16 or 4 bytes to shared memory; what is not valid becomes zeros, and nothing is read.
template <int bytes = 16, bool through_l1 = false>
CUTLASS_DEVICE void cp_async(unsigned shared, void const* global, bool valid) {
  static_assert(bytes == 16 || bytes == 4);
  int const size = valid ? bytes : 0;
  if constexpr (bytes == 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(size) : "memory");
  } else if constexpr (through_l1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(size) : "memory");
  }
}

CUTLASS_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most `groups` of this thread's groups of copies are under way.
template <int groups>
CUTLASS_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Four matrices of 8 x 16 bytes; lane i gives the address of row i % 8 of matrix i / 8. `transposed`: of 16-bit elements.
template <bool transposed = false>
CUTLASS_DEVICE void load_matrices(unsigned& w0, unsigned& w1, unsigned& w2, unsigned& w3, unsigned shared) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)
                 : "r"(shared)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w0), "=r"(w1), "=r"(w2), "=r"(w3)
                 : "r"(shared)
                 : "memory");
  }
}

CUTLASS_DEVICE unsigned load_word(unsigned shared) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(shared) : "memory");
  return word;
}

// Rounds a float32 to TF32, to the nearest and ties away from zero: adds half a unit in TF32's last place, which is 2^-11
// of the power of two below, and leaves it to the tensor cores to cut the rest off. NaN and infinity stay. With
// cvt.rna.tf32 kernels take 1.4 % longer (geometric mean over 15 tiles and layouts, 0.87 to 1.12).
CUTLASS_DEVICE unsigned round_to_tf32(unsigned word) {
  return __float_as_uint(__fmaf_rn(__uint_as_float(word & 0xff800000u), 0x1p-11f, __uint_as_float(word)));
}

// d += x y for 16 rows, 8 columns and 32 bytes of K. A thread holds two neighbouring columns of two rows of d, eight apart;
// words of the same two rows of x, and those 16 bytes further along K; and two words of one column of y, 16 bytes apart.
// Sums of integers saturate.
template <DType a, DType b, class Accumulator>
CUTLASS_DEVICE void mma_sync(Accumulator (&d)[4], unsigned const (&x)[4], unsigned const (&y)[2]) {
#define CUTWHEEL_MMA(NAME, CONSTRAINT)                                                                     \
  asm volatile("mma.sync.aligned." NAME " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : CONSTRAINT(d[0]), CONSTRAINT(d[1]), CONSTRAINT(d[2]), CONSTRAINT(d[3])                    \
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]))
  if constexpr (a == DType::s8) {
    static_assert(b == DType::s8);
    CUTWHEEL_MMA("m16n8k32.row.col.satfinite.s32.s8.s8.s32", "+r");
  } else if constexpr (a == DType::f16) {
    CUTWHEEL_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f");
  } else if constexpr (a == DType::bf16) {
    CUTWHEEL_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
  } else if constexpr (a == DType::tf32) {
    CUTWHEEL_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "+f");
  } else if constexpr (a == DType::e4m3 && b == DType::e4m3) {
    CUTWHEEL_MMA("m16n8k32.row.col.f32.e4m3.e4m3.f32", "+f");
  } else if constexpr (a == DType::e4m3) {
    CUTWHEEL_MMA("m16n8k32.row.col.f32.e4m3.e5m2.f32", "+f");
  } else {
    static_assert(a == DType::e5m2 && b == DType::e4m3);
    CUTWHEEL_MMA("m16n8k32.row.col.f32.e5m2.e4m3.f32", "+f");
  }
#undef CUTWHEEL_MMA
}

}  // namespace cutwheel::gemm
