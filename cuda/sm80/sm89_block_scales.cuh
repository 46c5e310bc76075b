// Scales of 8-bit floats along K on Ada: those of A for one row and 128 of K, those of B for 128 columns or for one. The
// mainloop's tiles are of 128 of K, and its partial sums are scaled as they are added up.
#pragma once

#include "core/args/gemm.h"
#include "sm80/mainloop.cuh"

namespace cutwheel::gemm {

template <class Warp, BlockScales scales>
struct Sm89BlockScales {
  static_assert(scales != BlockScales::none && 128 % Warp::kN == 0);
  static constexpr int kMmaM = Warp::kM / 16, kMmaN = Warp::kN / 8;
  static constexpr bool kByColumn = scales == BlockScales::a1x128_b1x128;

  BlockScaleOperand a, b;
  int row, column;          // the warp's first ones
  int end_row, end_column;  // behind which no scale is read

  struct Values {
    float row[kMmaM][2];
    float column[kByColumn ? kMmaN : 1][kByColumn ? 2 : 1];

    CUTLASS_DEVICE float operator()(int i, int j, int value) const {
      return row[i][value / 2] * (kByColumn ? column[kByColumn ? j : 0][kByColumn ? value % 2 : 0] : column[0][0]);
    }
  };

  CUTLASS_DEVICE Values of_tile(int k_tile) const {
    int const lane = threadIdx.x % 32;
    Values values;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kMmaM; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r) {
        int const m = min(row + i * 16 + r * 8 + lane / 4, end_row - 1);
        values.row[i][r] = __ldg(a.data + m * a.stride + k_tile * a.k_stride);
      }
    }
    if constexpr (kByColumn) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kMmaN; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int c = 0; c < 2; ++c) {
          int const n = min(column + j * 8 + lane % 4 * 2 + c, end_column - 1);
          values.column[j][c] = __ldg(b.data + n * b.stride + k_tile * b.k_stride);
        }
      }
    } else {
      // All columns of a warp share a block: the tile starts on one, and 128 is a multiple of the warp's columns.
      int const block = min(column, end_column - 1) / 128;
      values.column[0][0] = __ldg(b.data + block * b.stride + k_tile * b.k_stride);
    }
    return values;
  }
};

}  // namespace cutwheel::gemm
