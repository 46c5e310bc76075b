// GEMMs of 8-bit floats with scales along K on Ada: cp.async into a multistage shared-memory pipeline, mma.sync, and
// partial sums over 128 of K, scaled as they are accumulated. CUTLASS has no such mainloop for this architecture.
#pragma once

#include <cutlass/cutlass.h>

#include "core/gemm_args.h"

namespace cutwheel::gemm {

CUTLASS_DEVICE void cp_async16(unsigned shared, void const* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}

// Four 8 x 16-byte matrices; lane i gives the address of row i % 8 of matrix i / 8.
CUTLASS_DEVICE void load_matrices(unsigned (&out)[4], unsigned shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared)
               : "memory");
}

template <DType a, DType b>
CUTLASS_DEVICE void mma_16x8x32(float (&d)[4], unsigned const (&x)[4], unsigned y0, unsigned y1) {
#define CUTWHEEL_MMA(A, B)                                                            \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." A "." B                       \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
               : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1))
  if constexpr (a == DType::e4m3 && b == DType::e4m3) {
    CUTWHEEL_MMA("e4m3", "e4m3");
  } else if constexpr (a == DType::e4m3) {
    CUTWHEEL_MMA("e4m3", "e5m2");
  } else {
    CUTWHEEL_MMA("e5m2", "e4m3");
  }
#undef CUTWHEEL_MMA
}

template <DType a_, DType b_, class Tile, class Warp, int stages_, BlockScales scales_>
struct Sm89BlockScaledMma {
  static_assert(scales_ != BlockScales::none && Tile::kK == 128 && Warp::kK == 128);
  static_assert(Warp::kM % 16 == 0 && Warp::kN % 16 == 0 && 128 % Warp::kN == 0);
  static constexpr int kWarpsM = Tile::kM / Warp::kM, kWarpsN = Tile::kN / Warp::kN;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kRowBytes = 128;  // of K, in a stage
  static constexpr int kStageBytes = (Tile::kM + Tile::kN) * kRowBytes;
  static constexpr int kSharedBytes = stages_ * kStageBytes;
  static constexpr int kMmaM = Warp::kM / 16, kMmaN = Warp::kN / 8;
  static constexpr bool kByColumn = scales_ == BlockScales::a1x128_b1x128;

  // A [m, k] and B [n, k], with K contiguous. Neither values nor scales of other rows are read.
  struct Operands {
    char const* a;
    char const* b;
    std::int64_t a_leading, b_leading;
    BlockScaleOperand scale_a, scale_b;
    int m, n, k;
  };
  // Accumulators of a warp's part of a tile: of each mma.sync a thread holds two columns of row 0 and two of row 8.
  using Sums = float[kMmaM][kMmaN][4];

  // Where the warp's part begins in a tile.
  CUTLASS_DEVICE static int warp_row() { return threadIdx.x / 32 % kWarpsM * Warp::kM; }
  CUTLASS_DEVICE static int warp_column() { return threadIdx.x / 32 / kWarpsM * Warp::kN; }

  // Chunks of 16 bytes are permuted within a row, so that eight rows of a matrix lie in different banks.
  CUTLASS_DEVICE static unsigned offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ (row & 7)) << 4); }

  template <int rows>
  CUTLASS_DEVICE static void load(unsigned shared, char const* source, std::int64_t leading, int first, int end, int column,
                                  int k) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = threadIdx.x; i < rows * 8; i += kThreads) {
      int const row = i / 8, chunk = i % 8, at = column + chunk * 16;
      bool const valid = first + row < end && at < k;
      cp_async16(shared + offset(row, chunk), valid ? source + (first + row) * leading + at : source, valid);
    }
  }

  CUTLASS_DEVICE static void load_stage(Operands const& p, unsigned shared, int m0, int n0, int k_tile) {
    load<Tile::kM>(shared, p.a, p.a_leading, m0, p.m, k_tile * 128, p.k);
    load<Tile::kN>(shared + Tile::kM * kRowBytes, p.b, p.b_leading, n0, p.n, k_tile * 128, p.k);
  }

  struct Scales {
    float row[kMmaM][2];
    float column[kByColumn ? kMmaN : 1][kByColumn ? 2 : 1];

    CUTLASS_DEVICE Scales(Operands const& p, int m0, int n0, int k_tile) {
      int const lane = threadIdx.x % 32;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kMmaM; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < 2; ++r) {
          int const m = min(m0 + i * 16 + r * 8 + lane / 4, p.m - 1);
          row[i][r] = __ldg(p.scale_a.data + m * p.scale_a.stride + k_tile * p.scale_a.k_stride);
        }
      }
      if constexpr (kByColumn) {
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kMmaN; ++j) {
          CUTLASS_PRAGMA_UNROLL
          for (int c = 0; c < 2; ++c) {
            int const n = min(n0 + j * 8 + lane % 4 * 2 + c, p.n - 1);
            column[j][c] = __ldg(p.scale_b.data + n * p.scale_b.stride + k_tile * p.scale_b.k_stride);
          }
        }
      } else {
        // All columns of a warp share a block: the tile starts on one, and 128 is a multiple of the warp's columns.
        int const block = min(n0, p.n - 1) / 128;
        column[0][0] = __ldg(p.scale_b.data + block * p.scale_b.stride + k_tile * p.scale_b.k_stride);
      }
    }

    CUTLASS_DEVICE float operator()(int i, int j, int value) const {
      if constexpr (kByColumn) return row[i][value / 2] * column[j][value % 2];
      return row[i][value / 2] * column[0][0];
    }
  };

  // Adds the tile that begins at (tile_m, tile_n) to the sums; by all threads of the threadblock. Afterwards no copy is
  // under way, but other warps may still read shared memory.
  CUTLASS_DEVICE static void run(Operands const& p, unsigned shared, int tile_m, int tile_n, Sums& sums) {
    int const lane = threadIdx.x % 32, warp_m = warp_row(), warp_n = warp_column();
    int const k_tiles = (p.k + 127) / 128;

    CUTLASS_PRAGMA_UNROLL
    for (int stage = 0; stage < stages_ - 1; ++stage) {
      if (stage < k_tiles) load_stage(p, shared + stage * kStageBytes, tile_m, tile_n, stage);
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
      asm volatile("cp.async.wait_group %0;" ::"n"(stages_ - 2) : "memory");
      __syncthreads();
      int const next = k_tile + stages_ - 1;
      if (next < k_tiles) load_stage(p, shared + next % stages_ * kStageBytes, tile_m, tile_n, next);
      asm volatile("cp.async.commit_group;" ::: "memory");
      Scales const scales(p, tile_m + warp_m, tile_n + warp_n, k_tile);

      unsigned const a = shared + k_tile % stages_ * kStageBytes, b = a + Tile::kM * kRowBytes;
      float part[kMmaM][kMmaN][4] = {};
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < 4; ++k) {
        unsigned x[kMmaM][4], y[kMmaN / 2][4];
        // A: rows 0 and 8, then the same 16 bytes on. B: 16 bytes and the next, then columns 8 on.
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kMmaM; ++i) load_matrices(x[i], a + offset(warp_m + i * 16 + lane % 16, 2 * k + lane / 16));
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kMmaN / 2; ++j) {
          load_matrices(y[j], b + offset(warp_n + j * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kMmaM; ++i) {
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kMmaN; ++j) {
            mma_16x8x32<a_, b_>(part[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
          }
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kMmaM; ++i) {
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kMmaN; ++j) {
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < 4; ++v) sums[i][j][v] += scales(i, j, v) * part[i][j][v];
        }
      }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
  }
};

}  // namespace cutwheel::gemm
