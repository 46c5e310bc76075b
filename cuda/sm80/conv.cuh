// Convolutions on Ampere and Ada as implicit GEMMs: the mainloop and the epilogue are those of dense GEMMs; what is loaded
// is found in images and filters.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/args/conv.h"
#include "core/launch.h"
#include "sm80/conv_loaders.cuh"
#include "sm80/epilogue.cuh"
#include "sm80/mainloop.cuh"

namespace cutwheel::conv2d {

using namespace gemm;

// Rows of D of dgrad lie apart: their offsets in elements, by the digits of the GEMM's rows, which are image, row and
// column of a residue class.
struct Sm80PlacedRows {
  Sm80Counter places;
  std::int64_t first = 0, image_stride = 0, row_stride = 0, column_stride = 0;

  CUTLASS_DEVICE std::int64_t at(int row, std::int64_t) const {
    Sm80Digits const place = places.at(row);
    return first + place.high * image_stride + place.middle * row_stride + place.low * column_stride;
  }
};

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, class Tile, class Warp, int stages_, Direction direction_,
          template <DType> class Epilogue_>
struct Sm80Conv {
  static constexpr bool kFprop = direction_ == Direction::fprop, kDgrad = direction_ == Direction::dgrad,
                        kWgrad = direction_ == Direction::wgrad;
  static_assert(kFprop || kDgrad || kWgrad);
  static_assert(arch_ == Arch::sm80 || arch_ == Arch::sm89);

  // The layouts of the matrices that the operands stand for.
  static constexpr Layout kLayoutA = kWgrad ? Layout::column : Layout::row;
  static constexpr Layout kLayoutB = kFprop ? Layout::column : Layout::row;
  using Mainloop = Sm80Mainloop<a_, b_, acc_, kLayoutA, kLayoutB, Tile, Warp, stages_, is_fp8(a_)>;
  using Epilogue = Sm80Epilogue<Epilogue_<d_>, d_, Warp>;
  using Sums = typename Mainloop::Sums;
  static constexpr int kMaxThreads = Mainloop::kThreads;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = std::max(Mainloop::kSharedBytes, kMaxThreads / 32 * Epilogue::kBytesPerWarp);

  using TileA = typename Mainloop::TileA;
  using TileB = typename Mainloop::TileB;
  using LoaderA = std::conditional_t<kWgrad, Sm80GradientRows<TileA, kMaxThreads>, Sm80PlaceRows<TileA, kMaxThreads>>;
  using LoaderB = std::conditional_t<
      kWgrad, Sm80MeetingRows<TileB, kMaxThreads>,
      std::conditional_t<kFprop, Sm80FilterColumns<TileB, kMaxThreads>, Sm80FilterRows<TileB, kMaxThreads>>>;
  static constexpr int kRowsApartA = Sm80CopyMap<TileA, kMaxThreads>::kRowsApart,
                       kRowsApartB = Sm80CopyMap<TileB, kMaxThreads>::kRowsApart;

  struct Params {
    int m, n, k;
    int tiles_m, tiles_n;
    Sm80Image image_a, image_b;  // b: of wgrad
    void const* filter;
    int filter_rows, filter_columns, channels;  // R, S and C
    Sm80Meeting vertical, horizontal;
    // dgrad: indexed by the variants of a residue class's extents, rows first. Otherwise only [0][0].
    Sm80Counter places[2][2];
    Sm80Taps taps[2][2];
    Sm80PhaseAxis rows, columns;
    Sm80FilterPitches pitches;
    int phases, column_phases;
    Sm80Counter columns_of_taps;  // of wgrad: N as tap and channel
    int slice;                    // of wgrad: the part of K that one threadblock takes
    EpilogueValue d;
    EpilogueValue operands[kMaxEpilogueOperands];
  };

  CUTLASS_DEVICE static void multiply(char* shared, int k, LoaderA& a, LoaderB& b, Sums& sums) {
    Mainloop::run(static_cast<unsigned>(__cvta_generic_to_shared(shared)), ceil_div(k, Tile::kK), a, b, sums);
  }

  template <class Rows = Sm80FollowingRows>
  CUTLASS_DEVICE static void store(Params const& p, char* shared, int tile_m, int tile_n, int m, int slice, Sums& sums,
                                   Rows const& rows = {}) {
    __syncthreads();
    Epilogue::store(p.operands, p.d, shared + threadIdx.x / 32 * Epilogue::kBytesPerWarp, sums,
                    {tile_m * Tile::kM + Mainloop::warp_row(), tile_n * Tile::kN + Mainloop::warp_column(), m, p.n, slice},
                    rows);
  }

  CUTLASS_DEVICE static void fprop(Params const& p, char* shared, int tile_m, int tile_n) {
    Sums sums;
    Mainloop::clear(sums);
    LoaderA a(p.image_a, p.vertical, p.horizontal, p.places[0][0], p.taps[0][0], tile_m * Tile::kM);
    LoaderB b(p.filter, p.filter_columns, p.channels, p.n, p.k, p.taps[0][0], tile_n * Tile::kN);
    multiply(shared, p.k, a, b, sums);
    store(p, shared, tile_m, tile_n, p.m, 0, sums);
  }

  CUTLASS_DEVICE static void wgrad(Params const& p, char* shared, int slice, int tile_m, int tile_n) {
    int const first = slice * p.slice, length = min(p.k - first, p.slice);
    Sums sums;
    Mainloop::clear(sums);
    if (length > 0) {
      LoaderA a(p.image_a, p.places[0][0], p.m, tile_m * Tile::kM, first);
      LoaderB b(p.image_b, p.vertical, p.horizontal, p.places[0][0], p.columns_of_taps, p.filter_rows, tile_n * Tile::kN,
                first);
      multiply(shared, length, a, b, sums);
    }
    store(p, shared, tile_m, tile_n, p.m, slice, sums);
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
  CUTLASS_DEVICE static void dgrad(Params const& p, char* shared) {
    Sums sums;
    Mainloop::clear(sums);
    {
      PhaseTile const tile(p, PhaseTile::block());
      Sm80Phase const &rows = tile.rows, &columns = tile.columns;
      if (tile.tile_m * Tile::kM >= tile.m) return;
      int const taps = rows.taps * columns.taps;
      if (taps > 0) {
        Sm80Taps const& walk = p.taps[rows.tap_variant][columns.tap_variant];
        Sm80Meeting const vertical{1, rows.place, -p.rows.place_step}, horizontal{1, columns.place, -p.columns.place_step};
        std::int64_t const first_tap = rows.first_tap * p.filter_columns + columns.first_tap;
        LoaderA a(p.image_a, vertical, horizontal, tile.places(p), walk, tile.tile_m * Tile::kM);
        LoaderB b(static_cast<Element<b_> const*>(p.filter) + first_tap * p.n, p.pitches, p.n, walk,
                  tile.tile_n * Tile::kN);
        multiply(shared, taps * p.k, a, b, sums);
      }
    }
    PhaseTile const tile(p, PhaseTile::block());
    std::int64_t const pixel = p.d.leading, row = p.columns.extent * pixel;
    Sm80PlacedRows const placed{tile.places(p), tile.row_phase * row + tile.column_phase * pixel, p.rows.extent * row,
                                p.rows.stride * row, p.columns.stride * pixel};
    store(p, shared, tile.tile_m, tile.tile_n, tile.m, 0, sums, placed);
  }

  // Consecutive threadblocks share rows of A. Residue classes of dgrad have different taps: interleaving balances them.
  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(128) char shared[];
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
    p.filter_rows = c.r;
    p.filter_columns = c.s;
    p.channels = c.c;
    p.vertical = {c.stride_h, -c.pad_h, c.dilation_h};
    p.horizontal = {c.stride_w, -c.pad_w, c.dilation_w};
    std::int64_t blocks = std::int64_t{p.tiles_m} * p.tiles_n;
    if constexpr (kFprop) {
      p.image_a = Sm80Image(args.a.data, args.x_strides, kBytes, c.images, c.h, c.w);
      p.filter = args.b.data;
      p.places[0][0] = Sm80Counter(c.p, c.q, kRowsApartA);
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
          p.places[y][x] = Sm80Counter(p.rows.rows(y), p.columns.rows(x), kRowsApartA);
          p.taps[y][x] = Sm80Taps(p.rows.taps_of(y), p.columns.taps_of(x), c.k_out, Tile::kK, kRowsApartB);
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
    p.d = {args.d, args.d_leading, args.d_batch_stride, 0};
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
    if (Status const status = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes); !status.good()) {
      return status;
    }
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(blocks));
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::conv2d
