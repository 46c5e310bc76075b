// Operands of convolutions, gathered 16 bytes at a time by one or two warpgroups (cp.async). Each piece of 16 bytes has a
// tap of its own, so that taps follow each other in K without padding, however few their channels are; and pixels lie at
// any multiple of 16 bytes, where TMA takes up to 2.3 times as long unless it is one of 64.
#pragma once

#include "sm90/native/load/tiles.cuh"
#include "sm90/native/scheduler/conv.cuh"
#include "sm90/native/scheduler/wgrad.cuh"

namespace cutwheel::conv2d {

// Elements of 16 bits, whose tiles of K are 64 long: eight lanes have a line of 128 bytes, a piece each.
constexpr int kPieceElements = 8, kLinePieces = 8;

// Threads that gather. fprop, which copies pixels alone: one warpgroup, as fast as two, unless the lanes of a line would
// have to find more than one pixel each. wgrad: two, if accumulators leave them registers.
template <class Tile, Direction direction>
constexpr int kGatherThreads =
    direction == Direction::wgrad ? (Tile::kM * Tile::kN <= 128 * 192 ? 256 : 128) : (Tile::kM <= 128 ? 128 : 256);

// Copies a piece, or zeros; then nothing is read at `from`.
CUTLASS_DEVICE void copy_piece(std::uint32_t to, void const* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0)
               : "memory");
}

// A thread's share of an operand: lines first, first + kThreadLines, ..., and its piece of each.
struct GatherLane {
  int line, piece;

  CUTLASS_DEVICE explicit GatherLane(int thread) : line(thread / kLinePieces), piece(thread % kLinePieces) {}

  // What the `i`-th of the lanes that have this line says.
  template <class T>
  CUTLASS_DEVICE T said_by(int i, T own) const {
    return __shfl_sync(0xffffffff, own, i, kLinePieces);
  }

  // Lines are whole eights apart, so that all of a thread's are swizzled alike.
  template <class E>
  CUTLASS_DEVICE std::uint32_t place(E* stage) const {
    return cute::cast_smem_ptr_to_uint(stage) + static_cast<std::uint32_t>(line * 128 + (piece ^ line % 8) * 16);
  }
};

// An image or a volume, strides in pieces.
struct GatherImage {
  uint4 const* data;
  int image, slice, row, pixel;
  int d, h, w;

  // False where strides or extents are too large for the loaders' integers.
  bool encode(void const* from, std::int64_t const (&strides)[3], std::int64_t depth_stride, ConvProblem const& x) {
    data = static_cast<uint4 const*>(from);
    image = static_cast<int>(strides[0] / kPieceElements), slice = static_cast<int>(depth_stride / kPieceElements);
    row = static_cast<int>(strides[1] / kPieceElements), pixel = static_cast<int>(strides[2] / kPieceElements);
    d = x.d, h = x.h, w = x.w;
    constexpr std::int64_t kMost = 0x7fffffff;
    return (x.images * strides[0] + 2 * h * strides[1] + 2 * d * depth_stride) / kPieceElements < kMost;
  }
};

// Where a pixel lies that may be outside of the image.
struct GatherPixel {
  int h, w;
  int at;

  CUTLASS_DEVICE GatherPixel(GatherImage const& image, Im2colPixel const& pixel)
      : h(pixel.h), w(pixel.w), at(pixel.image * image.image + pixel.d * image.slice + h * image.row + w * image.pixel) {}
};

// Which taps find a pixel inside of the image: a bit for each row of the filter, then one for each column. One test in the
// main loop does for both. Slices of a volume take the bits of the last rows.
constexpr int kMostTaps = 16, kMostSlices = 6;  // of a row, of a column
CUTLASS_DEVICE std::uint32_t taps_inside(int first, int step, int count, int extent) {
  if (step == 1) {
    int const begin = min(max(-first, 0), count), end = min(max(extent - first, 0), count);
    return ((1u << end) - 1) & ~((1u << begin) - 1);
  }
  std::uint32_t bits = 0;
  for (int i = 0; i < count; ++i, first += step) {
    bits |= static_cast<std::uint32_t>(static_cast<unsigned>(first) < static_cast<unsigned>(extent)) << i;
  }
  return bits;
}
CUTLASS_DEVICE std::uint32_t bits_of_tap(bool is_volume, int slice, int row, int column) {
  std::uint32_t const of_slice = is_volume ? 1u << (kMostTaps - kMostSlices + slice) : 0;
  return of_slice | 1u << row | 1u << (kMostTaps + column);
}
inline bool has_bits(ConvProblem const& x) {
  return x.r <= kMostTaps - (x.is_volume() ? kMostSlices : 0) && x.s <= kMostTaps && x.t <= kMostSlices;
}

// fprop. A: pixels. B: the filter, a matrix [Ko, taps C], by TMA: at 232 channels, 3x3, the time of a 128x256 tile falls to
// 0.75 of what it is where threads copy the filter, too, if each filter begins on a line of L2, and to 0.98 if not (H100).
template <class OperandA, class OperandB, class Tile>
struct Sm90GatherFpropLoader {
  using Scheduler = Sm90ConvScheduler<Tile, Direction::fprop>;
  static constexpr bool kLoadsByTma = true;
  // Lines that all threads copy at once, and those of a thread.
  static constexpr int kThreadLines = kGatherThreads<Tile, Direction::fprop> / kLinePieces;
  static constexpr int kLinesA = Tile::kM / kThreadLines;
  static_assert(OperandA::kIsK && OperandB::kIsK && Tile::kK == 64 && kLinesA <= kLinePieces);
  struct Params {
    GatherImage a;
    CUtensorMap b, b_tail;
    int taps_d, taps_h, taps_w;
  };
  Params const& p;
  typename Scheduler::Params const& problem;
  GatherLane lane;
  int pixels[kLinesA];            // where they lie
  std::uint32_t inside[kLinesA];  // taps_inside
  // Position in K of this lane's pieces: a slice, row and column of taps, and an element of a tap's channels.
  int slice = 0, row = 0, column = 0, element = 0;
  bool is_first;  // thread
  typename OperandB::Part part_b{};
  int filter = 0, filter_k = 0;  // where B's next tile begins

  CUTLASS_DEVICE Sm90GatherFpropLoader(Params const& params, Scheduler const& scheduler, int thread)
      : p(params), problem(scheduler.p), lane(thread), is_first(thread == 0) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&p.b));
  }

  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    Im2colGrid const& grid = problem.classes[0].grid;
    // Each of the lanes of these lines finds the pixel of one. No memory is read in place of what is not there: all
    // threadblocks would read the same line.
    int const m = work.m + lane.line + lane.piece % kLinesA * kThreadLines;
    Im2colPixel const first = grid.at(min(m, work.end_m - 1));
    GatherPixel const pixel(p.a, first);
    std::uint32_t taps = taps_inside(pixel.h, problem.offset_step.h, p.taps_h, p.a.h) |
                         taps_inside(pixel.w, problem.offset_step.w, p.taps_w, p.a.w) << kMostTaps;
    if (problem.is_volume) {
      taps |= taps_inside(first.d, problem.offset_step.d, p.taps_d, p.a.d) << (kMostTaps - kMostSlices);
    }
    if (m >= work.end_m) taps = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLinesA; ++i) {
      pixels[i] = lane.said_by(i, pixel.at);
      inside[i] = lane.said_by(i, taps);
    }
    slice = row = column = 0;
    element = lane.piece * kPieceElements;
    part_b = OperandB::part_of(work.n, problem.n);
    filter = work.n, filter_k = 0;
  }

  // B of the k-tile that load() takes next.
  template <class Pipeline, class E, class F>
  CUTLASS_DEVICE void load_by_tma(Pipeline const& pipeline, typename Pipeline::State write, E*, F* stage_b) {
    if (is_first) {
      std::uint64_t* const barrier = pipeline.producer_expect(write, static_cast<std::uint32_t>(part_b.bytes));
      OperandB::load(p.b, p.b_tail, barrier, stage_b, filter, filter_k, 0, part_b);
    }
    filter_k += Tile::kK;
  }

  // The next tile of K.
  template <class E, class F>
  CUTLASS_DEVICE void load(E* stage_a, F*) {
    while (element >= problem.channels) {
      element -= problem.channels;
      if (++column < p.taps_w) continue;
      column = 0;
      if (++row == p.taps_h && slice + 1 < p.taps_d) row = 0, ++slice;
    }
    bool const is_tap = row < p.taps_h;
    std::uint32_t const tap = is_tap ? bits_of_tap(problem.is_volume, slice, row, column) : 0;
    uint4 const* const from = p.a.data + slice * problem.offset_step.d * p.a.slice + row * problem.offset_step.h * p.a.row +
                              column * problem.offset_step.w * p.a.pixel + element / kPieceElements;
    std::uint32_t const to_a = lane.place(stage_a);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLinesA; ++i) {
      copy_piece(to_a + i * kThreadLines * 128, from + pixels[i], is_tap && (inside[i] & tap) == tap);
    }
    element += Tile::kK;
  }
};

// wgrad. A: the gradient of the output, a matrix with pixels along K. B: pixels, M- and N-major. A comes by TMA where it
// has more than 64 rows: fewer are a small part of what is copied, and TMA takes longer for rows of few filters, up to 1.2
// times as long in all at 64 x 24 x 112 x 112, 3x3 (H200). sharing: threadblocks of a cluster whose tiles lie beside each
// other, and which load parts of A for all of them. Otherwise L2 limits 256x128 where rows begin within lines: at 232
// channels it works at 92 % of its rate, by the profiler.
template <class OperandA, class OperandB, class Tile, int sharing>
struct Sm90GatherWgradLoader {
  using Scheduler = Sm90WgradScheduler<Tile, PackedColumns>;
  static constexpr bool kLoadsByTma = Tile::kM > 64;
  static constexpr int kThreadLines = kGatherThreads<Tile, Direction::wgrad> / kLinePieces;  // that all copy at once
  static constexpr int kLines = Tile::kK / kThreadLines;
  static_assert(!OperandA::kIsK && !OperandB::kIsK && Tile::kK == 64);
  static_assert(kLoadsByTma || (OperandA::kBoxes == 1 && sharing == 1));
  struct Params {
    CUtensorMap a, a_tail;
    uint4 const* a_data;   // where threads copy it
    std::int64_t a_pixel;  // pieces from one to the next
    GatherImage b;
    int pixels;  // K
    int channels;
  };
  static constexpr int kNowhere = 1 << 20;
  // The tap of the columns of a box.
  struct Tap {
    int at, h, w;
  };
  Params const& p;
  typename Scheduler::Params const& problem;
  GatherLane lane;
  bool is_first;           // thread
  int row = 0, row_k = 0;  // where A's next tile begins
  typename OperandA::Part part_a{};
  int column = 0, k = 0;
  Tap taps[OperandB::kBoxes];
  // Each of the lanes of a line finds a pixel: of these lines, and of the k-tiles behind this one.
  static constexpr int kFound = kLinePieces / kLines;  // k-tiles
  static_assert(kLinePieces % kLines == 0);
  int found = 0;  // k-tiles of which pixels are still known
  int pixel_h = 0, pixel_w = 0, pixel_at = 0;

  CUTLASS_DEVICE Sm90GatherWgradLoader(Params const& params, Scheduler const& scheduler, int thread)
      : p(params), problem(scheduler.p), lane(thread), is_first(thread == 0) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(&p.a));
  }

  CUTLASS_DEVICE void begin(Sm90WorkTile const& work) {
    row = work.m, row_k = work.k;
    part_a = OperandA::part_of(work.m, problem.m);
    column = work.n + lane.piece * kPieceElements;
    k = work.k + lane.line;
    found = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int box = 0; box < OperandB::kBoxes; ++box) {
      int const at = column + box * 64, tap = at / p.channels;
      int tap_h, tap_w;
      problem.taps_w(tap_h, tap_w, tap);
      Tap& one = taps[box];
      one.h = tap_h * problem.dilation_h, one.w = tap_w * problem.dilation_w;
      if (at >= problem.columns.count()) one.h = p.b.h + kNowhere;
      one.at = one.h * p.b.row + one.w * p.b.pixel + (at - tap * p.channels) / kPieceElements;
    }
  }

  // A of the k-tile that load() takes next.
  template <class Pipeline, class E, class F>
  CUTLASS_DEVICE void load_by_tma(Pipeline const& pipeline, typename Pipeline::State write, E* stage_a, F*) {
    if (is_first) {
      std::uint64_t* const barrier = pipeline.producer_expect(write, static_cast<std::uint32_t>(part_a.bytes));
      if constexpr (sharing == 1) {
        OperandA::load(p.a, p.a_tail, barrier, stage_a, row, row_k, 0, part_a);
      } else {
        int const own = static_cast<int>(cute::block_rank_in_cluster());
        OperandA::template load_shared<sharing>(p.a, p.a_tail, barrier, stage_a, row, row_k, 0, own, (1 << sharing) - 1,
                                                part_a);
      }
    }
    row_k += Tile::kK;
  }

  template <class E, class F>
  CUTLASS_DEVICE void load(E* stage_a, F* stage_b) {
    std::uint32_t const to_a = lane.place(stage_a), to_b = lane.place(stage_b);
    if (found == 0) {
      int const position = k + lane.piece / kLines * Tile::kK + lane.piece % kLines * kThreadLines;
      GatherPixel const pixel(p.b, problem.grid.at(min(position, p.pixels - 1)));
      pixel_h = pixel.h, pixel_w = pixel.w, pixel_at = pixel.at;
      found = kFound;
    }
    int const first_found = (kFound - found--) * kLines;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLines; ++i) {
      int const position = k + i * kThreadLines;
      bool const there = position < p.pixels;
      if constexpr (!kLoadsByTma) {
        int const of_lane = row + lane.piece * kPieceElements;
        copy_piece(to_a + i * kThreadLines * 128, p.a_data + position * p.a_pixel + of_lane / kPieceElements,
                   there && of_lane < problem.m);
      }
      int const at = lane.said_by(first_found + i, pixel_at);
      int const h = lane.said_by(first_found + i, pixel_h), w = lane.said_by(first_found + i, pixel_w);
      CUTLASS_PRAGMA_UNROLL
      for (int box = 0; box < OperandB::kBoxes; ++box) {
        Tap const& tap = taps[box];
        bool const inside = there && static_cast<unsigned>(h + tap.h) < static_cast<unsigned>(p.b.h) &&
                            static_cast<unsigned>(w + tap.w) < static_cast<unsigned>(p.b.w);
        copy_piece(to_b + (box * Tile::kK + i * kThreadLines) * 128, p.b.data + at + tap.at, inside);
      }
    }
    k += Tile::kK;
  }
};

}  // namespace cutwheel::conv2d
