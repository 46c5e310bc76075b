// GEMM on Ampere and Ada.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/launch.h"
#include "core/tile_raster.cuh"
#include "sm80/epilogue.cuh"
#include "sm80/mainloop.cuh"

namespace cutwheel::gemm {

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile, class Warp,
          int stages_, template <DType> class Epilogue_, bool fast_accum = false>
struct Sm80Multistage {
  static_assert(arch_ == Arch::sm80 || arch_ == Arch::sm89);
  using Mainloop = Sm80Mainloop<a_, b_, acc_, layout_a_, layout_b_, Tile, Warp, stages_, is_fp8(a_) && !fast_accum>;
  using Epilogue = Sm80Epilogue<Epilogue_<d_>, d_, Warp>;
  static constexpr bool kInPairs = Epilogue_<d_>::kWidth == Width::half;
  static constexpr int kMaxThreads = Mainloop::kThreads;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = std::max(Mainloop::kSharedBytes, kMaxThreads / 32 * Epilogue::kBytesPerWarp);
  // Tiles across the raster order, for reuse in L2.
  static constexpr int kSwizzle = 8;

  struct Params {
    PreparedTileRaster order;
    Operand a, b;
    EpilogueValue d;
    EpilogueValue operands[kMaxEpilogueOperands];
    int m, n, k;
  };

  // scales_of(row, column): the scales along K of the tile that begins there, or Sm80NoScales.
  template <class ScalesOf>
  CUTLASS_DEVICE static void compute(Params const& p, ScalesOf const& scales_of) {
    extern __shared__ __align__(128) char shared_memory[];
    int tile_m, tile_n, batch;
    p.order.at(blockIdx.x, tile_m, tile_n, batch);
    int const row = tile_m * Tile::kM, column = tile_n * Tile::kN;
    Sm80MatrixLoader<typename Mainloop::TileA, kMaxThreads> load_a(
        static_cast<Element<a_> const*>(p.a.data) + batch * p.a.batch_stride, p.a.leading, row, p.m, p.k);
    Sm80MatrixLoader<typename Mainloop::TileB, kMaxThreads> load_b(
        static_cast<Element<b_> const*>(p.b.data) + batch * p.b.batch_stride, p.b.leading, column, p.n, p.k,
        kInPairs ? p.b.pair_stride : 0);
    typename Mainloop::Sums sums;
    Mainloop::clear(sums);
    Mainloop::run(static_cast<unsigned>(__cvta_generic_to_shared(shared_memory)), ceil_div(p.k, Tile::kK), load_a, load_b,
                  sums, scales_of(row, column));
    if (kInPairs && p.b.odd_first) Mainloop::exchange_pairs(sums);
    __syncthreads();
    Epilogue::store(p.operands, p.d, shared_memory + threadIdx.x / 32 * Epilogue::kBytesPerWarp, sums,
                    {row + Mainloop::warp_row(), column + Mainloop::warp_column(), p.m, p.n, batch});
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    compute(p, [](int, int) { return Sm80NoScales{}; });
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  // `params`: a type derived from Params, whose own members the caller has set.
  template <class P>
  static Status launch(GemmArgs const& args, void const* kernel, KernelAttributes& attributes, P& params) {
    if (Status const status = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes); !status.good()) {
      return status;
    }
    int const tiles_m = ceil_div(args.m, Tile::kM), tiles_n = ceil_div(args.n, Tile::kN);
    if (std::int64_t{tiles_m} * tiles_n * args.batch > std::numeric_limits<int>::max()) {
      return {StatusCode::not_implementable, 0};
    }
    TileRaster const order{tiles_m, tiles_n, args.batch, swizzle_width(kSwizzle, tiles_n), /*along_m=*/true};
    params.order = PreparedTileRaster::of(order);
    params.a = args.a;
    params.b = args.b;
    params.d = {args.d, args.d_leading, args.d_batch_stride, 0};
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), params.operands);
    params.m = args.m;
    params.n = args.n;
    params.k = args.k;
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(order.count()));
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    return launch_kernel(kernel, shape, params, args.stream);
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    Params params{};
    return launch(args, kernel, attributes, params);
  }
};

}  // namespace cutwheel::gemm
