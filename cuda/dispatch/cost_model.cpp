#include "dispatch/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "dispatch/float_math.h"
#include "dispatch/thin.h"
#include "dispatch/tuning/calibration.h"

namespace cutwheel {
namespace {

// Threadblocks of one kernel that are in flight at once.
double slots_of(KernelDescriptor const& kernel, DeviceInfo const& device) {
  // Kernels that are not persistent have as many as shared memory holds, and accumulators of half the registers.
  if (is_persistent(kernel)) {
    int const cluster = kernel.cluster.m * kernel.cluster.n * kernel.cluster.k;
    if (cluster <= 2) return device.sm_count;
    // SMs of a GPC that make no whole cluster stay idle: 12 of 132, of clusters of four and of eight, on an H100.
    return static_cast<double>(device.sm_count * 10 / 11 / cluster) * cluster;
  }
  constexpr int kAccumulators = 2 * 128 * 128;
  int const by_memory = *kernel.shared_memory_bytes > 0 ? device.shared_memory_bytes / *kernel.shared_memory_bytes : 1,
            by_registers = kAccumulators / (kernel.tile.m * kernel.tile.n);
  return static_cast<double>(device.sm_count) * std::clamp(std::min(by_memory, by_registers), 1, 2);
}

// Three limits of which the slowest rules, rounded off where two are close.
double combine(double compute, double dram, double l2, double sharpness) {
  return float_pow(float_pow(compute, sharpness) + float_pow(dram, sharpness) + float_pow(l2, sharpness), 1 / sharpness);
}

// Elements of A and B. Those of an image count once, though each is read for many taps, unless a step leaves it out.
double operand_elements(GemmRequest const& r) {
  double const m = r.m, n = r.n, k = r.k;
  if (r.direction == Direction::none) return m * k + n * k;
  double const reuse = static_cast<double>(r.taps) / std::min(r.taps, r.step);
  if (r.direction == Direction::wgrad) return m * k + n * k / reuse;
  double const image = r.direction == Direction::fprop ? m * k / reuse : m * k / r.taps / r.step;
  return image + n * k;
}

// DRAM traffic besides A and B, in bytes for each element of the GEMM: D, in a type, and the matrices that the epilogue
// reads and stores. An operand counts even where a call leaves it out; rows and columns are too little to count.
double epilogue_bytes(GemmRequest const& r, DType d) {
  double const d_bytes = element_bytes(d);
  if (r.addend != Addend::other) return r.addend == Addend::matrix ? 2 * d_bytes : d_bytes;
  EpilogueInfo const& info = info_of(r.epilogue);
  double bytes = d_bytes * (info.width == Width::half ? 0.5 : info.width == Width::twice ? 2 : 1);
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    double const one = element_bytes(operand, d);
    if (operand.kind == OperandKind::matrix || operand.kind == OperandKind::store) bytes += one;
    if (operand.kind == OperandKind::wide_matrix) bytes += 2 * one;
  }
  return bytes;
}

// Lines of L2 that TMA reads for each line of an operand that lies in shared memory. Where a row of the matrix is no whole
// number of lines, its pieces of 128 bytes lie across two, and where it is no whole number of sectors of 32 bytes, across
// five of these.
double lines_of_l2(KernelDescriptor const& kernel, int contiguous) {
  std::int64_t const bytes = std::int64_t{contiguous} * element_bytes(kernel.a);
  if (bytes % 128 == 0) return 1;
  return limits_of(kernel).split_lines[bytes % 64 == 0 ? 0 : bytes % 32 == 0 ? 1 : 2];
}

// Of A and B.
std::pair<double, double> lines_of_l2(KernelDescriptor const& kernel, GemmRequest const& r) {
  bool const by_tma = kernel.arch == Arch::sm90a && kernel.family != Family::sm90_unaligned && !is_direct_conv(kernel);
  if (!by_tma || r.grouping != Grouping::none) return {1, 1};
  int const of_k = r.k / r.taps, of_n = r.n / r.taps;  // channels of a tap
  auto const of_filter = [&](int contiguous) {
    return r.padded_filter != FilterPadding::none ? 1 : lines_of_l2(kernel, contiguous);
  };
  // Gathered loads of fprop, of pixels by cp.async and of each filter as a whole by TMA: over 250 layers on an H100 those
  // were slower that begin within a sector of 32 bytes. Filters that begin within two of them are read off two layers, of
  // 80 and 144 channels, whose filters take 0.82 and 0.92 of the time in a copy.
  if (kernel.family == Family::sm90_gather_conv) {
    constexpr double kWithinTwo = 2;
    if (r.direction != Direction::fprop) return {1, 1};
    auto const begins_within = [&](int sectors, std::int64_t contiguous) {
      return contiguous * element_bytes(kernel.a) % (32 * sectors) != 0;
    };
    double const pixels = begins_within(1, of_k) ? lines_of_l2(kernel, of_k) : 1;
    if (r.padded_filter != FilterPadding::none) return {pixels, 1};
    return {pixels, begins_within(1, r.k) ? lines_of_l2(kernel, r.k) : begins_within(2, r.k) ? kWithinTwo : 1};
  }
  switch (r.direction) {
    case Direction::none: break;
    case Direction::fprop: return {lines_of_l2(kernel, of_k), of_filter(of_k)};
    case Direction::dgrad: return {lines_of_l2(kernel, of_k), of_filter(r.n)};
    case Direction::wgrad: return {lines_of_l2(kernel, r.m), lines_of_l2(kernel, of_n)};
  }
  return {lines_of_l2(kernel, kernel.layout_a == Layout::row ? r.k : r.m),
          lines_of_l2(kernel, kernel.layout_b == Layout::column ? r.k : r.n)};
}

// Time that rows beyond the ends of A and B add to a mainloop step of a tile at the end: TMA takes longer for
// their zeros than for memory. Kernels of our own do not ask for them.
double beyond_us(KernelDescriptor const& kernel, GemmRequest const& r, Limits const& limits) {
  if (kernel.family != Family::sm90_warpspecialized) return 0;
  auto const beyond = [](int extent, int tile) { return (tile - extent % tile) % tile; };
  int const rows = beyond(kernel.swap_ab ? r.n : r.m, kernel.tile.m) + beyond(kernel.swap_ab ? r.m : r.n, kernel.tile.n);
  constexpr double kLine = 128;
  return limits.beyond_us * rows * kernel.tile.k * element_bytes(kernel.a) / kLine;
}

// In tiles of 128x128.
double area_of(Extent3 const& tile) { return tile.m * tile.n / (128.0 * 128.0); }

bool has_matrix(Epilogue epilogue) { return has_operand(epilogue, OperandKind::matrix); }

// Kernels that load and store by TMA, where short_rows() and few_steps() hold.
bool takes_rows_by_tma(KernelDescriptor const& kernel, GemmRequest const& r) {
  bool const is_tma = is_persistent(kernel) || kernel.family == Family::sm90_warpspecialized;
  bool const is_product = r.op == Op::gemm && r.batch == 1 && kernel.layout_a == Layout::row;
  return is_tma && is_product && element_bytes(kernel.a) == 2;
}

// By how much these kernels exceed the prediction where rows are short: read off the four tiles that
// are predicted to be the fastest, for 148 products of 5,000 to 900,000 rows with up to 700 columns, on an H200. It is rows
// that begin within lines of 128 bytes, of A and D, that take longer; less so where D has many columns for its K. The
// factor of a row-major B was 1.25 to 1.5 while its boxes were filled up with zeros (lines/h200_narrow_boxes.json).
double short_rows(KernelDescriptor const& kernel, GemmRequest const& r) {
  constexpr int kLine = 64, kSomeRows = 5000, kFewRows = 30000, kManyRows = 60000, kMostN = 700, kShortK = 60;
  if (!takes_rows_by_tma(kernel, r) || r.n > kMostN) return 1;
  bool const by_rows = kernel.layout_b == Layout::row, is_short = r.k <= kShortK, are_many = r.m >= kManyRows;
  bool const reads_within = r.k % kLine != 0, stores_within = r.n % kLine != 0;
  bool const takes_longer = reads_within && stores_within && !is_short && r.n < 3 * r.k;
  // Tiles with a K of 128 took 1.7 to 2.3 times as long as predicted, at four products of 4,704 rows and more.
  constexpr int kRowsOfLongTiles = 4000;
  if (takes_longer && by_rows && kernel.tile.k > kLine && r.m >= kRowsOfLongTiles) return 1.75;
  if (r.m < kSomeRows) return 1;
  // From this number of rows on few_steps() has it: 21888 x 144 x 24 takes 10.0 us by 192x104, and would be predicted to
  // take 5.9, less than kernels whose weight stays in shared memory; torch 6.4.
  if (!by_rows && is_short && r.m < kFewRows) return 1.35;
  if (!stores_within) return 1;
  if (!reads_within) return are_many ? 1.12 : 1.3;
  if (!takes_longer) return is_short ? 1 : 1.05;
  return by_rows ? 1.2 : are_many ? 1.11 : 1.36;
}

// Tiles of convolutions whose K is half a swizzle are for channels that fill at most half of the last one of 64: where they
// fill it, at 32 layers of an H200, the best of them take 1.31 times as long as the best of others. Their figures are of 32
// to 224 channels: they promise more than wgmma can do in many steps, and fewer channels leave a step of 32 empty, too
// (dgrad of 8 x 128 x 256 x 256 behind 3 filters takes 182 us, cuDNN 154).
double half_steps(KernelDescriptor const& kernel, GemmRequest const& r) {
  constexpr double kNeedlessHalf = 1.6;
  constexpr int kHalf = 32, kMostChannels = 256;
  bool const maps_pixels = kernel.family == Family::sm90_conv || kernel.family == Family::sm90_row_conv;
  if (!maps_pixels || element_bytes(kernel.a) != 2 || kernel.tile.k > kHalf) return 1;
  int const channels = r.k / r.taps, last = channels % (2 * kHalf);
  bool const is_measured = channels >= kHalf && channels < kMostChannels;
  return is_measured && last > 0 && last <= kHalf ? 1 : kNeedlessHalf;
}

// The time that threadblocks wait for each other at the first steps, where a row-major B has few columns that begin within
// lines of 128 bytes: all that lie below each other ask L2 for the same lines at once, which answer one by one. Read off 52
// products (1x1, dgrad) on an H200, where the choice among tiles that load by TMA takes 1.8 % longer than the best plan for
// 2.7 % (native_kernels: conv/gradients/h200_few_columns.json); over the 32 layers of 3x3 and 5x5 there it is as good
// without, 2.8 %. 3136 x 40 x 240 takes 5.4 us by 98 tiles of 32 rows with a K of 128, 3.7 by 17 of 192.
double same_columns_us(KernelDescriptor const& kernel, GemmRequest const& r, DeviceInfo const& device) {
  constexpr double kThreadblock = 0.015;  // and 64 elements of K
  constexpr int kMostN = 192, kLine = 64;
  bool const is_gradient = kernel.family == Family::sm90_conv && r.direction == Direction::dgrad && r.step == 1;
  bool const is_product = takes_rows_by_tma(kernel, r) && kernel.layout_b == Layout::row;
  if (!(is_gradient || is_product) || r.n > kMostN || r.n % kLine == 0) return 0;
  int const tiles = ceil_div(r.m, kernel.swap_ab ? kernel.tile.n : kernel.tile.m);
  return kThreadblock * std::min(kernel.tile.k, r.k) / kLine * std::min(tiles, device.sm_count);
}

// And where K has few steps and memory limits many rows. The choice takes 3.1 % longer than the best plan of 379 products
// with 3,000 to 900,000 rows and a K of up to 400 on an H200, 3.2 % of those that were left out of the fit, 4.8 % without
// it (native_kernels: choices/h200_few_steps.json, thin/h200_products.json). Up to 300 columns are predicted too fast
// beside kernels whose weight stays in shared memory, unless B is row-major: of such, nine products with 64 columns were
// predicted 1.3 times too slow by that factor (conv/gradients/h200_few_columns.json), and those with one whole step of K
// take less than predicted. With more columns tiles in turns take longer than predicted, and clusters take less.
double few_steps(KernelDescriptor const& kernel, GemmRequest const& r) {
  constexpr int kSomeRows = 3000, kManyRows = 15000, kMostN = 2048, kMostK = 512, kStep = 64;
  if (!takes_rows_by_tma(kernel, r) || r.m < kSomeRows || r.n > kMostN || r.k > kMostK) return 1;
  int const steps = round_up(r.k, kernel.tile.k) / kStep;
  bool const by_rows = kernel.layout_b == Layout::row, in_turns = kernel.schedule == Schedule::pingpong;
  if (r.m < kManyRows) return in_turns && steps <= 2 && !by_rows ? 0.81 : 1;
  constexpr int kFewColumns = 300, kManyShortRows = 30000;
  if (r.n <= kFewColumns) {
    if (r.m < kManyShortRows || (by_rows && steps > 1)) return 1;
    bool const is_one_step = by_rows && !in_turns;
    return !is_one_step ? 1.23 : r.k % kStep == 0 ? 0.80 : 1;
  }
  if (steps > 3) return 1;
  if (in_turns) return 1.44;
  if (kernel.cluster.m > 1) return 0.81;
  constexpr double kLarge = 1.4;  // of 128x128
  return steps > 1 && area_of(kernel.tile) < kLarge ? 1.27 : 1;
}

// Each warpgroup takes strips of 64 rows.
double predict_thin_us(GemmPlan const& plan, GemmRequest const& r, DeviceInfo const& device) {
  KernelDescriptor const& kernel = *plan.kernel;
  ThinFigures const& cost = kThinFigures;
  gemm::ThinShape shape;
  if (!plan_thin(shape, kernel, r.n, r.k)) return std::numeric_limits<double>::max();
  constexpr int kColumns = 32;
  double const steps = ceil_div(r.k, kernel.tile.k);
  double const pass = cost.pass_us + kernel.tile.n / kColumns * cost.store_us + steps * cost.step_us;
  double const strips = ceil_div(r.m, gemm::ThinShape::kRows);
  double const warpgroups = static_cast<double>(device.sm_count) * shape.warpgroups;
  double const rounds = std::max(1.0, strips / warpgroups);
  // A matrix: nothing of it is loaded behind a strip before that has left its place.
  double const matrix = has_matrix(kernel.epilogue) && strips > warpgroups ? cost.matrix_us : 0;
  double const bytes = operand_elements(r) * element_bytes(kernel.a) + epilogue_bytes(r, kernel.d) * r.m * r.n;
  double const dram = bytes / (cost.dram * device.memory_gb_per_s * 1e3);
  return cost.launch_us + cost.weight_us * shape.weight_bytes / 1024 + matrix +
         rounds * (cost.strip_us + shape.passes * pass) + dram;
}

}  // namespace

TileCount count_tiles(KernelDescriptor const& kernel, GemmRequest const& r, int splits) {
  if (is_direct_conv(kernel)) {
    bool const is_space_to_depth = kernel.family == Family::sm90_space_to_depth,
               has_few = kernel.family == Family::sm90_few_channels;
    DirectConvTiles const& known = has_few ? r.few_channels : is_space_to_depth ? r.space_to_depth : r.direct_conv;
    double const phases = is_space_to_depth || has_few ? 1 : r.step;
    // A table does not say how many output tiles there were: in most images nine tenths of the positions are pixels. Nor
    // how many steps: behind a stride some taps are of zeros.
    double const steps =
        is_space_to_depth ? static_cast<double>(r.k) / kernel.tile.k : r.taps / static_cast<double>(r.step);
    return {(known.output_tiles > 0 ? known.output_tiles : std::ceil(r.m / phases / (0.9 * kernel.tile.n))) *
                std::ceil(r.n * phases / kernel.tile.m),
            known.steps > 0 ? known.steps : std::ceil(steps * (r.step > 1 ? 1.4 : 1))};
  }
  // In the kernel's own frame from here on.
  double const m = kernel.swap_ab ? r.n : r.m, n = kernel.swap_ab ? r.m : r.n;
  auto const along = [](double extent, int tile, int cluster) {
    return std::ceil(std::ceil(extent / tile) / cluster) * cluster;
  };
  double const taps = r.taps, step = r.step, k = r.k;
  double const tiles_m = along(m, kernel.tile.m, kernel.cluster.m), tiles_n = along(n, kernel.tile.n, kernel.cluster.n);
  // TMA loads channels of one tap: they fill whole tiles of K, or units of 64 columns. cp.async takes them as they come.
  constexpr int kUnit = 64;
  bool const shares = kernel.family == Family::sm90_row_conv;
  bool const by_tap = kernel.family == Family::sm90_conv || shares;
  auto const steps_of = [&](double some_taps) {
    return by_tap ? some_taps * std::ceil(k / taps / kernel.tile.k) : std::ceil(k / taps * some_taps / kernel.tile.k);
  };
  int const parts = splits * kernel.cluster.k;  // a cluster's threadblocks share K
  if (shares) return {along(r.shared_pixels.positions, kernel.tile.m, 1) * tiles_n, steps_of(taps)};
  switch (r.direction) {
    case Direction::none: break;
    case Direction::fprop: return {tiles_m * tiles_n * parts, std::ceil(steps_of(taps) / parts)};
    // Pixels with the same taps fill whole tiles; there are `step` kinds of them, whose steps differ.
    case Direction::dgrad:
      if (step > 1) return {step * along(m / step, kernel.tile.m, 1) * tiles_n, steps_of(taps) / step};
      return {tiles_m * tiles_n * parts, std::ceil(steps_of(taps) / parts)};
    case Direction::wgrad: {
      double const columns = by_tap ? taps * std::ceil(n / taps / kUnit) * kUnit : n;
      return {tiles_m * along(columns, kernel.tile.n, kernel.cluster.n) * splits,
              std::ceil(std::ceil(k / kernel.tile.k) / splits)};
    }
  }
  return {tiles_m * tiles_n * r.batch * parts, std::ceil(k / parts / kernel.tile.k)};
}

double predict_us(GemmPlan const& plan, GemmRequest const& r, DeviceInfo const& device) {
  KernelDescriptor const& kernel = *plan.kernel;
  if (kernel.family == Family::thin) return predict_thin_us(plan, r, device);
  bool const is_strided = r.direction == Direction::dgrad && r.step > 1;
  Calibration const cost = calibration_of(kernel, device, is_strided);
  Limits const limits = limits_of(kernel);
  auto const [tiles, k_tiles] = count_tiles(kernel, r, plan.splits);
  double const operand_bytes = element_bytes(kernel.a);

  double const results = static_cast<double>(r.m) * r.n * plan.splits;  // each split writes its own
  // Partial sums have no epilogue yet.
  double const of_results = plan.reduce ? element_bytes(kernel.d) : epilogue_bytes(r, kernel.d);
  double const bytes = r.batch * (operand_bytes * operand_elements(r) + of_results * results);
  double const dram = bytes / (limits.dram * device.memory_gb_per_s * 1e3);
  // Clusters fetch a tile's operands once for all their members. Groups are laid out otherwise.
  auto const [lines_a, lines_b] = lines_of_l2(kernel, r);
  double const uses_of_pixels = kernel.family == Family::sm90_row_conv ? r.shared_pixels.taps : 1;
  // An operand smaller than the tile counts with its own rows: no load asks for rows beyond its end.
  bool const is_dense = r.direction == Direction::none && r.grouping == Grouping::none;
  int const rows = is_dense ? std::min(kernel.tile.m, kernel.swap_ab ? r.n : r.m) : kernel.tile.m,
            columns = is_dense ? std::min(kernel.tile.n, kernel.swap_ab ? r.m : r.n) : kernel.tile.n;
  double const fetched = is_direct_conv(kernel)
                             ? 1.5 * kernel.tile.n * kernel.tile.k / k_tiles  // a halo tile for all taps; the filters stay
                             : (rows * (kernel.swap_ab ? lines_b : lines_a) / kernel.cluster.n / uses_of_pixels +
                                columns * (kernel.swap_ab ? lines_a : lines_b) / kernel.cluster.m) *
                                   kernel.tile.k;
  double const slots = slots_of(kernel, device);
  bool const is_own = is_native_dense(kernel);
  // Our own kernels ask L2 at one rate, whether they share what they load or not, and so do CUTLASS's where rows begin
  // within lines.
  bool const on_lines = lines_a == 1 && lines_b == 1;
  bool const lone = (is_own || !on_lines || kernel.cluster.m * kernel.cluster.n == 1) && tiles > slots;
  double const l2_rate = (lone ? limits.lone_l2 : limits.l2) * device.sm_count * 1e6;
  // The planes of a volume leave L2 before the taps along the depth come back to them. Read off 3x3x3 with 128 channels at
  // 480 x 720 on an H100: 4.56 and 3.63 ms by tiles of 128x128 and 256x128, which without this would take 3.39 and 3.74.
  double const misses = r.is_volume && r.direction != Direction::wgrad ? 1.84 : 1;
  double const l2 = tiles * k_tiles * fetched * operand_bytes / l2_rate * misses;

  double tile = k_tiles * (cost.k_tile_us + beyond_us(kernel, r, limits)) + cost.tile_us;
  // Gradients of up to 64 filters at stride 1: by tiles of three or four taps they take longer than those of more filters,
  // whose tiles share pixels. Read off 14 layers of 64 channels on an H200: over 123 layers the choice takes 0.8 % longer
  // than the best plan for 1.4 %.
  bool const is_lone_row = r.direction == Direction::wgrad && r.step == 1 && r.taps > 1 && kernel.tile.m == 64 && r.m <= 64;
  if (is_lone_row && kernel.family == Family::sm90_conv)
    tile *= kernel.tile.n == 192 ? 1.5 : kernel.tile.n == 256 ? 1.25 : 1;
  // The C tile shortens the pipeline even where beta == 0, and a row that goes through it is loaded for every tile. Our own
  // kernels take 1 us more for a tile where a call leaves C out, fitted on an H100; but not those that load rows which
  // begin anywhere: 256 x 49 x 32 x 49 takes 4.9 us, and so would be predicted to take 9.6.
  bool const by_tma = is_own && kernel.family != Family::sm90_unaligned;
  if (info_of(kernel.epilogue).addend == Addend::matrix && kernel.arch == Arch::sm90a) {
    if (is_own) tile += 0.4 * area_of(kernel.tile) + (r.addend == Addend::matrix || !by_tma ? 0 : 1.0);
    if (kernel.family == Family::sm90_warpspecialized) tile *= r.addend == Addend::matrix ? 1.03 : 1.1;
  }
  // Time that an activation or a residual adds to a wave of tiles, fitted with the figures of the tiles: pingpong hides
  // most of it behind the next tile. In our own kernel it is in proportion to the area. The figures of scaled_mm's tiles
  // were measured with the scales.
  bool const is_fused = kernel.op == Op::gemm && r.addend == Addend::other && !plan.reduce;
  bool const hides = kernel.schedule == Schedule::pingpong;
  if (is_own && is_fused) {
    // With z stored besides: read off six products on an H100.
    bool const has_store = has_operand(r.epilogue, OperandKind::store);
    double const of_area = has_matrix(r.epilogue) ? (hides ? 1.6 : 1.2)
                           : has_store            ? (hides ? 2.0 : 0.8)
                           : hides                ? 0.6
                                                  : 1.5;
    tile += of_area * area_of(kernel.tile);
  }
  // A residual that the multiplying threads load, in tiles of more than 128 columns; TMA loads that of sm90_row_conv. Read
  // off 128x160 and 128x256 at four layers on an H100: 0.9 to 1.15 us for each 128x128 beyond the first. Twice as much
  // chooses best at five more, measured twice, most of which 128x128 in turns wins: 1.9 % over the best plan for 8.4 %.
  constexpr double kWideResidual = 1.8;
  bool const loads_residual = kernel.family == Family::sm90_conv || kernel.family == Family::sm90_gather_conv;
  if (loads_residual && element_bytes(kernel.a) == 2 && has_matrix(kernel.epilogue)) {
    tile += kWideResidual * std::max(0.0, area_of(kernel.tile) - 1);
  }
  // Fitted on an H100 and an H200, in microseconds of 128x128: behind a single step of K nothing hides the loads of the
  // first tile, where later ones are loaded while the one before is stored; and a few steps do not hide the epilogue of
  // CUTLASS's kernels from the second tile on.
  // Large clusters that share K take 3 us more for each later tile, by a fit on an H100: nothing overlaps their exchange of
  // sums.
  // Fewer still hide neither loads nor stores of a tile: read off 108 1x1 convolutions on an H100, most with a K of up to
  // 320, but not off gradients of weights with as few tokens.
  constexpr double kSingleStep = 1.4, kFewSteps = 0.74, kLaterSums = 3.0, kLaterTile = 1.0;
  constexpr int kHiding = 7, kHidingTile = 4;
  // A bias read as a matrix whose rows are one: all rows ask L2 for the same lines, which answer one by one. Of 64x128
  // with a place for C, 2048 x 512 x 8192 takes 42 us with a bias and 34 without, 512 x 2112 x 7168 30.5 and 28.5, which
  // is 0.004 us for a row. Less, as the best tile for a bias is predicted to be faster than it is there: 27.5 for 33
  // (H200).
  constexpr double kSameLine = 0.0035;
  bool const same_lines = by_tma && info_of(kernel.epilogue).addend == Addend::matrix && r.addend == Addend::row;
  double const first = (is_own && k_tiles <= 1 ? kSingleStep * area_of(kernel.tile) : 0) +
                       (same_lines ? kSameLine * static_cast<double>(r.batch) * r.m : 0) +
                       same_columns_us(kernel, r, device);
  double const exposed = std::max(0.0, (kHiding - k_tiles) / (kHiding - 1));
  bool const is_cutlass = kernel.family == Family::sm90_warpspecialized;
  bool const has_later = (by_tma || is_cutlass) && kernel.layout_a == Layout::row;
  double const of_tile = has_later ? kLaterTile * std::max(0.0, (kHidingTile - k_tiles) / kHidingTile) : 0;
  double const later = of_tile + (is_cutlass                       ? kFewSteps * area_of(kernel.tile) * exposed
                                  : is_own && kernel.cluster.k > 2 ? kLaterSums
                                                                   : 0);
  // Threads store an unaligned D, and of two warpgroups in turns one while the other multiplies, as long as that lasts:
  // read off 4096 x 50257 x 768 on an H100 (691 us by 128x128 and 568 in turns) and products of 577, 197 and 333 rows with
  // a K of 64 and 80 in batches on an H200 (5.2 and 4.7 us for 128x128). Rows that begin on words take less: 48 x 1500 x
  // 1500 x 64 takes 173 us by 128x160 in turns and 205 by 192x104.
  if (!r.d_aligned) {
    bool const on_words = r.n * element_bytes(kernel.d) % 4 == 0;
    double const area = rows * columns / (128.0 * 128.0);
    double const stores = (hides ? (on_words ? 4.6 : 8.0) : (on_words ? 2.4 : 2.9)) * area;
    tile = hides ? std::max(tile, (tile + stores) / 2) : tile + stores;
  }
  // Where figures come from tiles that M fills at least by half: far larger ones spend their stages on padding. Those of
  // clusters that share K come from any M: 4 x 384 x 24576 with block-wise scales takes 10.3 us (H100), and so would be
  // predicted to take 23.9, without 12.9; 12 x 1280 x 5120 takes 5.3 (H200), and would take 6.9, without 5.6.
  double const rows_of_m = kernel.swap_ab ? kernel.tile.n : kernel.tile.m, filled = 2.0 * std::max(r.m, 8);
  if (!limits.padding_counts && kernel.cluster.k == 1 && rows_of_m > filled) tile *= rows_of_m / filled;
  // The figures of convolutions by 128x256 are of 18 steps and more, which hide its epilogue: six take 7.1 us a tile at
  // 48 x 96 x 96 x 96 with 192 filters of 2x2, as patches (H200).
  constexpr double kWideEpilogue = 7;
  constexpr int kHidingWide = 12, kWide = 256;
  bool const is_wide = kernel.family == Family::sm90_conv && kernel.tile.n == kWide && element_bytes(kernel.a) == 2;
  if (is_wide && r.direction != Direction::wgrad && !is_strided)
    tile += kWideEpilogue * std::max(0.0, (kHidingWide - k_tiles) / kHidingWide);
  double const lone_tile = k_tiles * cost.lone_k_tile_us + cost.tile_us;
  double time = cost.launch_us;
  if (is_strided && kernel.family == Family::sm90_conv) {
    // Threadblocks share out the tiles evenly (scheduler/class_shares.cuh), but none is done before a tile of the class
    // with the most taps is: of a square filter and equal strides.
    double const side = std::ceil(std::sqrt(static_cast<double>(r.taps) / r.step));
    double const longest = k_tiles * r.step / r.taps * side * side * cost.k_tile_us + cost.tile_us;
    if (r.taps >= r.step) {
      time += combine(std::max(tiles / slots * tile, longest), dram, l2, limits.sharpness);
      return time * half_steps(kernel, r);
    }
    // Classes without a tap are stored as zeros, which pass while others are multiplied, and fill memory. Read off 15
    // layers of 1x1 filters, stride 2, on an H200: the choice takes 1.6 % longer than the best plan. Tiles in turns wait
    // for zeros.
    constexpr double kZerosUs = 0.9, kFull = 1.2, kInTurns = 1.1;
    double const with_taps = static_cast<double>(r.taps) / r.step;
    double const mean = tile - (cost.tile_us - kZerosUs) * (1 - with_taps);
    double const work = std::max(tiles / slots * mean, longest);
    time += combine(work, kFull * dram, l2, limits.sharpness);
    return time * half_steps(kernel, r) * (hides ? kInTurns : 1);
  }
  // Full waves and the last, partial one: a few threadblocks alone do not fill the memory system.
  double const full = std::floor(tiles / slots), rest = tiles - full * slots;
  double const share = std::max(1.0, slots / device.sm_count);  // threadblocks that share an SM share its tensor cores
  if (full > 0) {
    double const waves = full * std::max(tile * share, lone_tile) + first + (full - 1) * later;
    time += combine(waves, dram * full * slots / tiles, l2 * full * slots / tiles, limits.sharpness);
  }
  if (rest > 0) {
    double const together = std::max(1.0, rest / device.sm_count);
    double const wave = std::max(tile * together, lone_tile) + (full > 0 ? later : first);
    double const received = static_cast<double>(rows) / kernel.cluster.n + static_cast<double>(columns) / kernel.cluster.m;
    double const one_sm = is_dense ? k_tiles * received * kernel.tile.k * operand_bytes / (limits.sm * 1e6) : 0;
    // Where M is one tile, each threadblock has a part of the weight to itself, and some share a TPC.
    constexpr int kSmsOfTpc = 2;
    bool const shares_tpc = is_dense && r.batch == 1 && r.m <= rows_of_m && rest * kSmsOfTpc > device.sm_count;
    double const of_weight = k_tiles * (kernel.swap_ab ? rows : columns) * kernel.tile.k * operand_bytes;
    double const of_dram = std::max(dram * rest / tiles, shares_tpc ? of_weight / (limits.paired * 1e6) : 0);
    time += combine(wave, of_dram, std::max(l2 * rest / tiles, one_sm), limits.sharpness);
  }
  if (plan.reduce) {
    // The partial sums are written and read once more, in L2 as far as they fit; a second launch overlaps the first one's
    // end. L2 holds nothing of sums as large as itself when they are read.
    double const out = static_cast<double>(r.m) * r.n, sums = 4 * out * plan.splits;
    double const result = out * (r.addend == Addend::other ? epilogue_bytes(r, r.d) : element_bytes(r.d));
    double const missing = std::clamp(2 * sums / device.l2_bytes - 1, 0.0, 1.0);
    time += limits.reduce_us + (2 * sums + result) / (limits.reduce_tb_per_s * 1e6);
    time += missing * (sums + result) / (limits.dram * device.memory_gb_per_s * 1e3);
  }
  // Of 16 bits, clusters that share K: in one wave the figures of other tiles are 10 to 20 % too high, and theirs are not.
  // Over 964 products, most of them measured on an H100, the choice takes 1.97 % longer than the best for 2.09 %, over 28
  // of them with few tiles and a long K 5.4 % for 9.2 %.
  constexpr double kSharedK = 1.15;
  if (is_own && kernel.op == Op::gemm && kernel.cluster.k > 1) time *= kSharedK;
  // Tiles that two warpgroups share, and two threadblocks the columns of, where rows begin on lines: the best plan without
  // multicast is as fast, and faster for all of 24 products in fp8 (H100). Their figures are those of tiles without.
  constexpr double kNeedlessMulticast = 1.3;
  if (is_own && kernel.cluster.m > 1 && !hides && !kernel.swap_ab && on_lines) time *= kNeedlessMulticast;
  // Gathered tiles of gradients whose rows two threadblocks share have figures of channels that begin within lines. Of
  // whole lines TMA loads both operands: so three layers of 1280 filters are 0.98 to 1.04 of cuDNN, and like ones by these
  // tiles 0.90 to 0.91; at 128 and 256 x 256 x 14 x 14 cuDNN takes 1.25 and 1.19 times as long, and 1.13 (H200).
  constexpr int kLine = 64;
  constexpr double kNeedlessGather = 1.15;
  bool const shares_rows = kernel.family == Family::sm90_gather_conv && kernel.cluster.n > 1;
  if (shares_rows && r.n / r.taps % kLine == 0) time *= kNeedlessGather;
  return time * short_rows(kernel, r) * few_steps(kernel, r) * half_steps(kernel, r);
}

double residual_us(GemmPlan const& plan, GemmRequest const& r, DeviceInfo const& device) {
  constexpr double kTile = 0.9;  // of 128x128
  return kTile * area_of(plan.kernel->tile) * std::ceil(count_tiles(*plan.kernel, r, plan.splits).tiles / device.sm_count);
}

void choose_raster(GemmPlan& plan, GemmRequest const& r) {
  // Small M: along the shorter side, within 3 % of the best of both orders and four widths of bands (geometric mean, H200;
  // 16 % at worst). From M = 2048 on: along N, as walking along M loses 10 % with square tiles and 20 % with narrow ones,
  // whose operands no longer stay in L2; unless A as a whole stays there and B is larger, which along N is read once for
  // each band (2048 x 201088 x 1440 in fp8: up to 1.16 times as long in bands of two, up to 1.6 in bands of one). Measured
  // on H100s with 353 tiles and products of 8 and 16 bits, this is within 1.0 % of the best (17 % at worst), along N alone
  // in bands of four (8 bits: two) within 1.8 % (23 %). CUTLASS's tiles, of which 51 were measured: within 2.1 % (23 %),
  // before within 3.8 % (27 %). Those of 16 bits stay along N: of two such products along M took 1.04 and 1.11 times as
  // long. CUTLASS rounds both counts of tiles up to whole bands: 33 columns in bands of two cost as much as 34.
  constexpr int kLargeM = 2048, kFewColumns = 10;
  constexpr double kStaysInL2 = 13e6;  // bytes
  KernelDescriptor const& kernel = *plan.kernel;
  bool const large = r.m >= kLargeM, is_product = r.grouping == Grouping::none && r.op != Op::conv2d;
  bool const persistent = is_native(kernel) || is_direct_conv(kernel), is_narrow = element_bytes(kernel.a) == 1;
  bool const a_stays =
      is_product && (persistent || is_narrow) && static_cast<double>(r.m) * r.k * element_bytes(kernel.a) <= kStaysInL2;
  bool const along_m = r.m <= r.n && (!large || a_stays);
  plan.raster = along_m ? RasterOrder::along_m : RasterOrder::along_n;
  bool const few_columns = ceil_div(r.n, kernel.swap_ab ? kernel.tile.m : kernel.tile.n) <= kFewColumns;
  bool const square = kernel.tile.m == 128 && kernel.tile.n % 128 == 0;
  auto const fills = [](int extent, int tile, int cluster) { return ceil_div(extent, tile) % (2 * cluster) == 0; };
  bool const bands = persistent || (square && !few_columns && fills(r.m, kernel.tile.m, kernel.cluster.m) &&
                                    fills(r.n, kernel.tile.n, kernel.cluster.n));
  // Groups of rows as well: 8 of 4096 x 4096 x 14336 take 0.99 (128x256) and 0.91 (128x128) of their time in bands of two.
  bool const has_rows = is_product || r.grouping == Grouping::rows;
  bool const wide = persistent && has_rows && !along_m && !few_columns;
  plan.swizzle = !large || !bands ? 1 : wide ? 4 : 2;
}

}  // namespace cutwheel
