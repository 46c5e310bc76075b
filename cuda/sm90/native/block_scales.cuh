// Block-wise scales of the persistent kernel: a warpgroup copies those of its own rows and of the tile's columns, for eight
// tiles of K at a time, while it multiplies by the eight before.
#pragma once

#include <cutlass/arch/barrier.h>

#include "core/args/gemm.h"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::gemm {

// Scales of a warpgroup's 64 rows and of the `columns` of a tile, as the kernel sees them (after swap-AB). shares_k: a work
// tile may begin behind the first tile of K.
template <int columns, BlockScales scales, bool swap_ab, bool shares_k>
struct Sm90BlockScaleShape {
  static constexpr bool kSharesK = shares_k;
  static constexpr int kTileK = 128;
  static constexpr int kOfB = scales == BlockScales::a1x128_b128x128 ? 128 : 1;  // columns of the user's B that share one
  static constexpr bool kSwapAB = swap_ab;
  static constexpr int kShareRows = swap_ab ? kOfB : 1, kShareColumns = swap_ab ? 1 : kOfB;
  static constexpr int kChunk = 8;  // tiles of K
  static constexpr int kRowScales = kShareRows == 1 ? 64 : 1;
  // A tile may begin within 128 columns.
  static constexpr int kColumnScales =
      kShareColumns == 1 ? columns : ceil_div(columns, kShareColumns) + (kShareColumns % columns ? 1 : 0);
  struct alignas(16) Storage {  // of a warpgroup
    float rows[2][kChunk][round_up(kRowScales, 4)];
    float columns_[2][kChunk][round_up(kColumnScales, 4)];
  };
  static constexpr int kBytes = static_cast<int>(sizeof(Storage));
};

// The source of kernels without block-wise scales.
struct Sm90NoScaleSource {
  struct Values {};
  static constexpr bool kScaled = false;
  struct Storage {};
  struct Params {};
  static Params params(GemmArgs const&) { return {}; }

  CUTLASS_DEVICE Sm90NoScaleSource(Params const&, Storage&, int, int) {}
  CUTLASS_DEVICE void prefetch(Sm90WorkTile const&) const {}
  CUTLASS_DEVICE void begin(Sm90WorkTile const&) const {}
  CUTLASS_DEVICE void enter(int) const {}
  CUTLASS_DEVICE void load(Values&, int, int, int, int, int) const {}
};

template <class Mma, class Shape>
struct Sm90BlockScaleSource {
  static constexpr bool kScaled = true;
  static constexpr int kChunk = Shape::kChunk, kShareRows = Shape::kShareRows, kShareColumns = Shape::kShareColumns;
  static constexpr int kRowScales = Shape::kRowScales, kColumnScales = Shape::kColumnScales;
  using Values = typename Mma::template Scales<kShareRows == 1, kShareColumns == 1>;
  using Storage = typename Shape::Storage;
  static_assert(kShareColumns == 1 || kShareColumns % Mma::kPartColumns == 0, "a part of the columns has one scale");

  struct Params {
    BlockScaleOperand a, b;
  };
  static Params params(GemmArgs const& args) {
    return {Shape::kSwapAB ? args.scale_b : args.scale_a, Shape::kSwapAB ? args.scale_a : args.scale_b};
  }

  CUTLASS_DEVICE Sm90BlockScaleSource(Params const& params, Storage& shared, int thread, int barrier)
      : p(params), storage(shared), thread(thread), barrier(barrier) {}

  Params const& p;
  Storage& storage;
  int thread, barrier;
  Sm90WorkTile work{};  // of the tile that is multiplied
  int chunk = 0;        // of those since the kernel began: its parity names the half that is written

  // Starts to copy what the tile's first chunk wants: before the epilogue of the tile before it.
  CUTLASS_DEVICE void prefetch(Sm90WorkTile const& next) const { copy(next, 0, chunk & 1); }

  CUTLASS_DEVICE void begin(Sm90WorkTile const& next) { work = next; }

  CUTLASS_DEVICE void enter(int k) {
    if (k % kChunk != 0) return;
    asm volatile("cp.async.wait_all;" ::: "memory");
    cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(barrier));
    ++chunk;
    if (k + kChunk < work.k_tiles) copy(work, k + kChunk, chunk & 1);
  }

  CUTLASS_DEVICE void load(Values& values, int k, int, int, int part, int) const {
    int const half = (chunk & 1) ^ 1, lane = thread % 32, warp = thread / 32;
    int const column = part * Mma::kPartColumns;
    int const first = kShareColumns == 1 ? column : (work.n + column) / kShareColumns - work.n / kShareColumns;
    values.load(storage.rows[half][k % kChunk] + (kShareRows == 1 ? warp * 16 : 0),
                storage.columns_[half][k % kChunk] + first, lane);
  }

 private:
  CUTLASS_DEVICE void copy(Sm90WorkTile const& at, int k, int half) const {
    copy_side<kShareRows, kRowScales>(&storage.rows[half][0][0], p.a, at.m, at.end_m, at, k);
    copy_side<kShareColumns, kColumnScales>(&storage.columns_[half][0][0], p.b, at.n, at.end_n, at, k);
  }

  template <int share, int count>
  CUTLASS_DEVICE void copy_side(float* to, BlockScaleOperand const& scales, int from, int end, Sm90WorkTile const& at,
                                int k) const {
    constexpr int kPitch = round_up(count, 4);
    float const* const source = scales.data + at.batch * scales.batch_stride;
    int const first = from / share, last = (end + share - 1) / share;
    int const first_tile = Shape::kSharesK ? at.k / Shape::kTileK : 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = thread; i < kChunk * count; i += 128) {
      int const tile = k + i / count, at_scale = first + i % count;
      bool const is_there = tile < at.k_tiles && at_scale < last;
      float const* const one =
          is_there ? source + at_scale * scales.stride + (first_tile + tile) * scales.k_stride : scales.data;
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                       cute::cast_smem_ptr_to_uint(to + i / count * kPitch + i % count)),
                   "l"(one), "r"(is_there ? 4 : 0));
    }
  }
};

}  // namespace cutwheel::gemm
