// Convolutions on Ampere and Ada as implicit GEMMs: cp.async into a multistage shared-memory pipeline, mma.sync and the
// epilogue are those of Sm80Multistage; what is loaded is found in images and filters.
#pragma once

#include <cutlass/arch/mma.h>  // the next one relies on it
#include <cutlass/conv/threadblock/implicit_gemm_multistage.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/conv_args.h"
#include "sm80/conv_iterators.cuh"
#include "sm80/conv_store.cuh"
#include "sm80/multistage.cuh"

namespace cutwheel::conv2d {

using namespace gemm;

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, class Tile, class Warp, int stages_, Direction direction_,
          template <DType> class Epilogue_>
struct Sm80Conv {
  static constexpr bool kFprop = direction_ == Direction::fprop, kDgrad = direction_ == Direction::dgrad,
                        kWgrad = direction_ == Direction::wgrad;
  static_assert(kFprop || kDgrad || kWgrad);
  static_assert(Tile::kK == Warp::kK, "warps share M and N of a tile");

  // The layouts of the matrices that the operands stand for.
  static constexpr Layout kLayoutA = kWgrad ? Layout::column : Layout::row;
  static constexpr Layout kLayoutB = kFprop ? Layout::column : Layout::row;
  using Epilogue = Epilogue_<d_>;
  using Gemm = Sm80Multistage<arch_, a_, b_, acc_, d_, kLayoutA, kLayoutB, Tile, Warp, stages_, Epilogue_>;

  // Rows of D of dgrad lie apart: it has a store of its own.
  template <class E>
  static constexpr auto visitor_of() {
    if constexpr (kDgrad) {
      return epilogue::TypeIdentity<Sm80PlacedStore<E, d_, typename Gemm::ThreadMap>>{};
    } else {
      return epilogue::TypeIdentity<typename Gemm::template VisitorOf<E>::Callbacks>{};
    }
  }
  using Visitor = typename decltype(visitor_of<Epilogue>())::type;
  using Kernel = typename Gemm::template KernelWithVisitor<Visitor>;
  using CollectiveEpilogue = typename Kernel::Epilogue;

  using GemmMma = typename Kernel::Mma;
  using ElementA = typename Gemm::ElementA;
  using ElementB = typename Gemm::ElementB;
  using ThreadMapA = typename GemmMma::IteratorA::ThreadMap;
  using ThreadMapB = typename GemmMma::IteratorB::ThreadMap;
  using IteratorA =
      std::conditional_t<kWgrad, Sm80GradientRows<ElementA, ThreadMapA>, Sm80PlaceRows<ElementA, ThreadMapA, Tile::kK>>;
  using IteratorB = std::conditional_t<kWgrad, Sm80MeetingRows<ElementB, ThreadMapB>,
                                       std::conditional_t<kFprop, Sm80FilterColumns<ElementB, ThreadMapB, Tile::kK>,
                                                          Sm80FilterRows<ElementB, ThreadMapB, Tile::kK>>>;
  // Neighbouring taps read the same pixels, which L1 keeps for them. The other operand is read once by each threadblock.
  static constexpr auto kThroughL1 = cutlass::arch::CacheOperation::Always;
  static constexpr auto kPastL1 = cutlass::arch::CacheOperation::Global;
  using Mma = cutlass::conv::threadblock::ImplicitGemmMultistage<
      typename GemmMma::Shape, IteratorA, typename GemmMma::SmemIteratorA, kWgrad ? kPastL1 : kThroughL1, IteratorB,
      typename GemmMma::SmemIteratorB, kWgrad ? kThroughL1 : kPastL1, typename GemmMma::Policy, stages_>;
  using Accumulator = typename Mma::FragmentC;

  struct Params {
    int m, n, k;
    int tiles_m, tiles_n;
    Sm80Image image_a, image_b;  // b: of wgrad
    void const* filter;
    int filter_columns, channels;  // S and C
    Sm80Meeting vertical, horizontal;
    // dgrad: indexed by the variants of a residue class's extents, rows first. Otherwise only [0][0].
    Sm80Counter places[2][2];
    Sm80Taps taps[2][2];
    Sm80PhaseAxis rows, columns;
    typename Sm80FilterRows<ElementB, ThreadMapB, Tile::kK>::Pitches pitches;
    int phases, column_phases;
    Sm80Counter columns_of_taps;  // of wgrad: N as tap and channel
    int slice;                    // of wgrad: the part of K that one threadblock takes
    EpilogueValue d;
    EpilogueValue operands[kMaxEpilogueOperands];
  };

  using SharedStorage = typename Kernel::SharedStorage;
  static constexpr int kMaxThreads = Kernel::kThreadCount;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));

  CUTLASS_DEVICE static void multiply(SharedStorage& shared, int k, IteratorA const& a, IteratorB const& b,
                                      Accumulator& accum) {
    int const thread = threadIdx.x;
    Mma mma(shared.main_loop, thread, cutlass::canonical_warp_idx_sync(), thread % 32);
    mma((k + Tile::kK - 1) / Tile::kK, accum, a, b, accum);
  }

  CUTLASS_DEVICE static void store(SharedStorage& shared, typename Visitor::Params const& params, int tile_m, int tile_n,
                                   int m, int n, Accumulator const& accum) {
    int const thread = threadIdx.x;
    CollectiveEpilogue epilogue(params, shared.epilogue, thread, cutlass::canonical_warp_idx_sync(), thread % 32);
    epilogue(accum, {tile_m, tile_n, 0}, cute::make_shape(m, n, 1), thread);
  }

  CUTLASS_DEVICE static void store_matrix(Params const& p, SharedStorage& shared, std::int64_t first, int tile_m,
                                          int tile_n, Accumulator const& accum) {
    using NodeParams = typename Visitor::Params;
    auto* const d = static_cast<Element<d_>*>(p.d.data) + first;
    auto const params = Gemm::template VisitorOf<Epilogue>::template arguments<NodeParams>(p.operands, d, p.d.leading, 0);
    store(shared, params, tile_m, tile_n, p.m, p.n, accum);
  }

  CUTLASS_DEVICE static void fprop(Params const& p, SharedStorage& shared, int tile_m, int tile_n) {
    int const thread = threadIdx.x;
    Accumulator accum;
    accum.clear();
    multiply(shared, p.k,
             IteratorA(p.image_a, p.vertical, p.horizontal, p.places[0][0], p.taps[0][0], tile_m * Tile::kM, thread),
             IteratorB(p.filter, p.filter_columns, p.channels, p.n, p.k, p.taps[0][0], tile_n * Tile::kN, thread), accum);
    store_matrix(p, shared, 0, tile_m, tile_n, accum);
  }

  CUTLASS_DEVICE static void wgrad(Params const& p, SharedStorage& shared, int slice, int tile_m, int tile_n) {
    int const thread = threadIdx.x, first = slice * p.slice, length = min(p.k - first, p.slice);
    Accumulator accum;
    accum.clear();
    if (length > 0) {
      multiply(shared, length, IteratorA(p.image_a, p.places[0][0], p.m, tile_m * Tile::kM, first, thread),
               IteratorB(p.image_b, p.vertical, p.horizontal, p.places[0][0], p.columns_of_taps, p.n, tile_n * Tile::kN,
                         first, thread),
               accum);
    }
    store_matrix(p, shared, slice * p.d.batch_stride, tile_m, tile_n, accum);
  }

  // Work tile of a dgrad threadblock. It is computed before the mainloop and again after it, which frees its registers for
  // the mainloop: the compiler cannot know that the second index equals the first one.
  struct PhaseTile {
    int tile_n, tile_m, row_phase, column_phase;
    Sm80Phase rows, columns;
    int m;

    CUTLASS_DEVICE static int block() {
      int index;
      asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
      return index;
    }
    CUTLASS_DEVICE PhaseTile(Params const& p, int index) : PhaseTile(p, index % p.tiles_n, index / p.tiles_n) {}
    CUTLASS_DEVICE PhaseTile(Params const& p, int tile_n, int rest)
        : tile_n(tile_n),
          tile_m(rest / p.phases),
          row_phase(rest % p.phases / p.column_phases),
          column_phase(rest % p.phases % p.column_phases),
          rows(p.rows, row_phase),
          columns(p.columns, column_phase),
          m(p.image_a.images * rows.rows * columns.rows) {}
    CUTLASS_DEVICE Sm80Counter const& places(Params const& p) const {
      return p.places[rows.row_variant][columns.row_variant];
    }
  };

  // Pixels that no tap reaches are stored as zeros.
  CUTLASS_DEVICE static void dgrad(Params const& p, SharedStorage& shared) {
    Accumulator accum;
    accum.clear();
    {
      PhaseTile const tile(p, PhaseTile::block());
      Sm80Phase const &rows = tile.rows, &columns = tile.columns;
      if (tile.tile_m * Tile::kM >= tile.m) return;
      int const thread = threadIdx.x, taps = rows.taps * columns.taps;
      if (taps > 0) {
        Sm80Taps const& walk = p.taps[rows.tap_variant][columns.tap_variant];
        Sm80Meeting const vertical{1, rows.place, -p.rows.place_step}, horizontal{1, columns.place, -p.columns.place_step};
        std::int64_t const first_tap = rows.first_tap * p.filter_columns + columns.first_tap;
        multiply(shared, taps * p.k,
                 IteratorA(p.image_a, vertical, horizontal, tile.places(p), walk, tile.tile_m * Tile::kM, thread),
                 IteratorB(static_cast<ElementB const*>(p.filter) + first_tap * p.n, p.pitches, p.n, walk,
                           tile.tile_n * Tile::kN, thread),
                 accum);
      }
    }
    PhaseTile const tile(p, PhaseTile::block());
    std::int64_t const pixel = p.d.leading, row = p.columns.extent * pixel;
    Sm80PlacedRows const placed{tile.places(p), tile.row_phase * row + tile.column_phase * pixel, p.rows.extent * row,
                                p.rows.stride * row, p.columns.stride * pixel};
    store(shared, {static_cast<Element<d_>*>(p.d.data), placed, p.operands}, tile.tile_m, tile.tile_n, tile.m, p.n, accum);
  }

  // Consecutive threadblocks share rows of A. Residue classes of dgrad have different taps: interleaving balances them.
  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(16) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    if constexpr (kDgrad) {
      dgrad(p, shared);
    } else {
      int const index = blockIdx.x, tile_n = index % p.tiles_n, rest = index / p.tiles_n;
      if constexpr (kFprop) {
        fprop(p, shared, rest, tile_n);
      } else {
        wgrad(p, shared, rest / p.tiles_m, rest % p.tiles_m, tile_n);
      }
    }
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  // Returns how many threadblocks it takes.
  static std::int64_t fill(ConvArgs const& args, Params& p) {
    ConvProblem const& c = args.conv;
    constexpr int kBytes = element_bytes(a_);
    p.m = args.m;
    p.n = args.n;
    p.k = args.k;
    p.tiles_n = ceil_div(args.n, Tile::kN);
    p.tiles_m = ceil_div(args.m, Tile::kM);
    p.filter_columns = c.s;
    p.channels = c.c;
    p.vertical = {c.stride_h, -c.pad_h, c.dilation_h};
    p.horizontal = {c.stride_w, -c.pad_w, c.dilation_w};
    std::int64_t blocks = std::int64_t{p.tiles_m} * p.tiles_n;
    if constexpr (kFprop) {
      p.image_a = Sm80Image(args.a.data, args.x_strides, kBytes, c.images, c.h, c.w);
      p.filter = args.b.data;
      p.places[0][0] = Sm80Counter(c.p, c.q, ThreadMapA::Delta::kStrided);
      p.taps[0][0] = Sm80Taps(c.r, c.s, c.c, Tile::kK, 0);
    } else if constexpr (kWgrad) {
      p.image_a = Sm80Image(args.a.data, args.y_strides, kBytes, c.images, c.p, c.q);
      p.image_b = Sm80Image(args.b.data, args.x_strides, kBytes, c.images, c.h, c.w);
      p.places[0][0] = Sm80Counter(c.p, c.q, Tile::kK);
      p.columns_of_taps = Sm80Counter(c.s, c.c, 0);
      int const splits = std::max(args.splits, 1);
      p.slice = round_up(ceil_div(args.k, splits), Tile::kK);
      blocks *= splits;
    } else {
      p.image_a = Sm80Image(args.a.data, args.y_strides, kBytes, c.images, c.p, c.q);
      p.filter = args.b.data;
      p.k = c.k_out;
      p.rows = Sm80PhaseAxis(c.h, c.stride_h, c.dilation_h, c.pad_h, c.r);
      p.columns = Sm80PhaseAxis(c.w, c.stride_w, c.dilation_w, c.pad_w, c.s);
      for (int y = 0; y < 2; ++y) {
        for (int x = 0; x < 2; ++x) {
          p.places[y][x] = Sm80Counter(p.rows.rows(y), p.columns.rows(x), ThreadMapA::Delta::kStrided);
          p.taps[y][x] = Sm80Taps(p.rows.taps_of(y), p.columns.taps_of(x), c.k_out, Tile::kK, ThreadMapB::Delta::kStrided);
        }
      }
      int const vectors = c.c * kBytes / kSm80VectorBytes;
      p.pitches = {std::min(p.rows.tap_step, c.r) * c.s * vectors, std::min(p.columns.tap_step, c.s) * vectors,
                   c.r * c.s * vectors};
      p.column_phases = p.columns.phases();
      p.phases = p.rows.phases() * p.column_phases;
      p.tiles_m = ceil_div(c.images * p.rows.rows(0) * p.columns.rows(0), Tile::kM);
      blocks = std::int64_t{p.tiles_m} * p.tiles_n * p.phases;
    }
    p.d.data = args.d;
    p.d.leading = args.d_leading;
    p.d.batch_stride = args.d_batch_stride;
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), p.operands);
    return blocks;
  }

  // Vectors do not cross from one tap to the next; a sum over a part of K is a float32; offsets have 32 bits.
  static bool takes(ConvArgs const& args) {
    constexpr int kBytes = element_bytes(a_), kVector = kSm80VectorBytes / kBytes;
    ConvProblem const& c = args.conv;
    if (c.c % kVector != 0 || c.k_out % kVector != 0) return false;
    if (args.splits > 1 && !(kWgrad && d_ == DType::f32)) return false;
    // Images that a tile of rows may extend over; wgrad counts from the first one on.
    std::int64_t const pixels =
        kFprop ? std::int64_t{c.p} * c.q : std::int64_t{std::max(c.h / c.stride_h, 1)} * std::max(c.w / c.stride_w, 1);
    int const images = kWgrad ? 1 : static_cast<int>(std::min<std::int64_t>(Tile::kM / pixels + 2, c.images));
    return (kDgrad || Sm80Image::fits(args.x_strides, kBytes, images, c.h, c.w)) &&
           (kFprop || Sm80Image::fits(args.y_strides, kBytes, images, c.p, c.q));
  }

  static Status launch(GemmArgs const& gemm_args, void const* kernel) {
    static KernelAttributes attributes;
    auto const& args = static_cast<ConvArgs const&>(gemm_args);
    if (args.m == 0 || args.n == 0) return {};
    if (!takes(args)) return {StatusCode::not_implementable, 0};
    Params params{};
    std::int64_t const blocks = fill(args, params);
    if (blocks > std::numeric_limits<int>::max()) return {StatusCode::not_implementable, 0};
    if (cudaError_t const error = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes);
        error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(blocks));
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::conv2d
