// Convolutions as implicit GEMMs on Hopper's persistent kernel. TMA's im2col mode gathers the pixels and fills padding with
// zeros, so there is no preceding kernel and no workspace except for split-K.
#pragma once

#include <algorithm>

#include "sm90/native/kernel.cuh"
#include "sm90/native/load/conv.cuh"
#include "sm90/native/load/wgrad.cuh"

namespace cutwheel::conv2d {

// Layouts in shared memory. wgmma reads operands of other than 16 bits K-major only, as they lie in fprop.
template <DType a, DType b, DType acc, DType d, class Tile, Direction direction, class Epilogue>
struct Sm90ConvTypes
    : gemm::Sm90PersistentTypes<a, b, acc, d, direction == Direction::wgrad ? Layout::column : Layout::row,
                                direction == Direction::fprop ? Layout::column : Layout::row, Tile, Epilogue> {
  using Base = gemm::Sm90PersistentTypes<a, b, acc, d, direction == Direction::wgrad ? Layout::column : Layout::row,
                                         direction == Direction::fprop ? Layout::column : Layout::row, Tile, Epilogue>;
  static constexpr bool kIsPixels = direction == Direction::wgrad;
  using OperandA = typename Base::OperandA;
  using OperandB = typename Base::OperandB;
  using Scheduler = std::conditional_t<kIsPixels, Sm90WgradScheduler<Tile>, Sm90ConvScheduler<Tile, direction>>;
  static constexpr auto loader_type() {
    if constexpr (kIsPixels) {
      return gemm::epilogue::TypeIdentity<Sm90WgradLoader<OperandA, OperandB, Tile>>{};
    } else {
      return gemm::epilogue::TypeIdentity<Sm90ConvLoader<OperandA, OperandB, Tile, direction>>{};
    }
  }
  using Loader = typename decltype(loader_type())::type;
};

// Epilogue operands are indexed by rows and columns of the GEMM, which dgrad and wgrad permute in D: only scalars fit.
template <class... Operands>
constexpr bool is_scalars_only(gemm::epilogue::OperandList<Operands...>) {
  return ((Operands::kKind == OperandKind::scalar) && ... && true);
}

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, template <DType> class Epilogue>
struct Sm90Conv
    : gemm::Sm90PersistentKernel<Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>>,
                                 typename Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>>::Scheduler, is_fp8(a)> {
  using Types = Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>>;
  using Base = gemm::Sm90PersistentKernel<Types, typename Types::Scheduler, is_fp8(a)>;
  using Scheduler = typename Types::Scheduler;
  using SchedulerParams = typename Scheduler::Params;
  using OperandA = typename Types::OperandA;
  using OperandB = typename Types::OperandB;
  using Operands = typename Types::Loader::Params;
  static_assert(arch == Arch::sm90a && direction != Direction::none);
  static_assert(direction == Direction::fprop || element_bytes(a) == 2);
  static_assert(direction == Direction::fprop || is_scalars_only(typename Epilogue<d>::Operands{}));
  static_assert(direction == Direction::fprop || Epilogue<d>::Stores::kCount == 0);
  static constexpr int kChannelBox = OperandA::kSwizzled;

  static std::int64_t workspace_bytes(gemm::GemmArgs const& args) {
    if (direction != Direction::wgrad || args.splits <= 1) return 0;
    return std::int64_t{args.splits} * args.m * args.n * static_cast<int>(sizeof(float));
  }

  // args: a ConvArgs.
  static Status launch(gemm::GemmArgs const& args, void const* kernel) {
    static gemm::KernelAttributes attributes;
    auto const& conv = static_cast<ConvArgs const&>(args);
    auto const is_vector = [](int channels, DType type) { return channels * element_bytes(type) % 16 == 0; };
    bool const aligned = is_vector(conv.conv.c, a) && is_vector(conv.conv.k_out, a) &&
                         reinterpret_cast<std::uintptr_t>(args.b.data) % 16 == 0;
    if (!aligned) return {StatusCode::not_implementable, 0};
    if constexpr (direction == Direction::fprop) {
      return launch_fprop(conv, kernel, attributes);
    } else if constexpr (direction == Direction::dgrad) {
      return launch_dgrad(conv, kernel, attributes);
    } else {
      return launch_wgrad(conv, kernel, attributes);
    }
  }

 private:
  // Leaves room to add a grid to a tile index without overflow.
  static constexpr std::int64_t kMaxTiles = 0x7fffffff - 65536;

  static Im2colAxis axis(int extent, int positions, int taps, int pad, int stride, int dilation) {
    return {extent, -pad, positions, stride, (taps - 1) * dilation};
  }
  static Im2colAxis axis_h(ConvProblem const& x) { return axis(x.h, x.p, x.r, x.pad_h, x.stride_h, x.dilation_h); }
  static Im2colAxis axis_w(ConvProblem const& x) { return axis(x.w, x.q, x.s, x.pad_w, x.stride_w, x.dilation_w); }
  static Im2colGrid grid(Im2colAxis const& h, Im2colAxis const& w) {
    return {cutlass::FastDivmod(h.positions), cutlass::FastDivmod(w.positions), h.corner, w.corner, h.stride, w.stride};
  }

  static Status launch_taps(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes,
                            Operands& operands, SchedulerParams& scheduler, int taps) {
    // [taps, N, K of a tap]; it lies between the channels.
    std::int64_t const row = std::int64_t{taps} * args.b.leading;
    gemm::Operand const filter{args.b.data, row, args.b.leading};
    OperandB::encode_map(operands.b, b, filter, args.n, scheduler.channels, taps);
    OperandB::encode_tail_map(operands.b_tail, b, filter, args.n, scheduler.channels, taps);
    scheduler.n = args.n;
    scheduler.tiles_n = ceil_div(args.n, Tile::kN);
    scheduler.along_m = args.raster == RasterOrder::along_m;
    std::int64_t tiles = 0;
    int most_tiles_m = 1;
    for (int i = 0; i < scheduler.count; ++i) {
      ConvResidueClass& residue = scheduler.classes[i];
      residue.tiles_m = ceil_div(residue.m, Tile::kM);
      most_tiles_m = std::max(most_tiles_m, residue.tiles_m);
      tiles += std::int64_t{residue.tiles_m} * scheduler.tiles_n;
      residue.tile_end = static_cast<int>(std::min(tiles, kMaxTiles));
    }
    if (tiles > kMaxTiles) {
      take_tensor_map_error();
      return {StatusCode::not_implementable, 0};
    }
    scheduler.swizzle = gemm::swizzle_width(args.swizzle, scheduler.along_m ? scheduler.tiles_n : most_tiles_m);
    return Base::launch(args, kernel, attributes, operands, scheduler, static_cast<int>(tiles), 1);
  }

  static Status launch_fprop(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    Im2colAxis const h = axis_h(x), w = axis_w(x);
    if (!h.is_encodable() || !w.is_encodable() || !is_tma_aligned(args.a.data, args.x_strides, a)) {
      return {StatusCode::not_implementable, 0};
    }
    Operands operands;
    encode_im2col_map(operands.a[0], a, args.a.data, args.x_strides, x.images, x.c, h, w, kChannelBox, Tile::kM);
    operands.a_tail_rows = args.m % Tile::kM;
    if (operands.a_tail_rows) {
      encode_im2col_map(operands.a_tail, a, args.a.data, args.x_strides, x.images, x.c, h, w, kChannelBox,
                        operands.a_tail_rows);
    }
    SchedulerParams scheduler{};
    scheduler.count = 1;
    scheduler.channels = x.c;
    scheduler.tap_step_h = x.s;
    scheduler.tap_step_w = 1;
    scheduler.offset_step = {x.dilation_w, x.dilation_h};
    ConvResidueClass& residue = scheduler.classes[0];
    residue.grid = grid(h, w);
    residue.m = args.m;
    residue.taps_w = x.s;
    residue.k_tiles = x.r * x.s * ceil_div(x.c, Tile::kK);
    return launch_taps(args, kernel, attributes, operands, scheduler, x.r * x.s);
  }

  static Status launch_dgrad(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    DgradAxis h, w;
    if (!h.plan(x.h, x.r, x.pad_h, x.stride_h, x.dilation_h) || !w.plan(x.w, x.s, x.pad_w, x.stride_w, x.dilation_w) ||
        h.count * w.count > Scheduler::kMaxResidueClasses || !is_tma_aligned(args.a.data, args.y_strides, a)) {
      return {StatusCode::not_implementable, 0};
    }
    Operands operands{};
    SchedulerParams scheduler{};
    scheduler.count = h.count * w.count;
    scheduler.channels = x.k_out;
    scheduler.tap_step_h = h.tap_step * x.s;
    scheduler.tap_step_w = w.tap_step;
    scheduler.offset_step = {w.offset_step, h.offset_step};
    scheduler.h = x.h;
    scheduler.w = x.w;
    scheduler.stride_h = x.stride_h;
    scheduler.stride_w = x.stride_w;
    bool has_map[Scheduler::kMaps] = {};
    for (int i = 0; i < scheduler.count; ++i) {
      int const row = i / w.count, column = i % w.count;
      ConvResidueClass& residue = scheduler.classes[i];
      residue.map = 2 * h.is_shorter(row) + w.is_shorter(column);
      Im2colAxis const axis_h = h.im2col(x.p, h.is_shorter(row)), axis_w = w.im2col(x.q, w.is_shorter(column));
      if (!axis_h.is_encodable() || !axis_w.is_encodable()) {
        take_tensor_map_error();
        return {StatusCode::not_implementable, 0};
      }
      if (!has_map[residue.map]) {
        encode_im2col_map(operands.a[residue.map], a, args.a.data, args.y_strides, x.images, x.k_out, axis_h, axis_w,
                          kChannelBox, Tile::kM);
        has_map[residue.map] = true;
      }
      if (scheduler.count == 1 && args.m % Tile::kM) {
        operands.a_tail_rows = args.m % Tile::kM;
        encode_im2col_map(operands.a_tail, a, args.a.data, args.y_strides, x.images, x.k_out, axis_h, axis_w, kChannelBox,
                          operands.a_tail_rows);
      }
      DgradAxis::ResidueClass const &of_h = h.classes[row], &of_w = w.classes[column];
      residue.grid = grid(axis_h, axis_w);
      residue.m = x.images * of_h.positions * of_w.positions;
      residue.k_tiles = of_h.taps * of_w.taps * ceil_div(x.k_out, Tile::kK);
      residue.taps_w = of_w.taps;
      residue.tap = of_h.first_tap * x.s + of_w.first_tap;
      residue.offset = {of_w.offset, of_h.offset};
      residue.first_h = row;
      residue.first_w = column;
    }
    // Classes with the most taps first, so that short tiles fill the last wave.
    std::sort(scheduler.classes, scheduler.classes + scheduler.count,
              [](ConvResidueClass const& one, ConvResidueClass const& other) { return one.k_tiles > other.k_tiles; });
    return launch_taps(args, kernel, attributes, operands, scheduler, x.r * x.s);
  }

  static Status launch_wgrad(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    Im2colAxis const h = axis_h(x), w = axis_w(x);
    // A has its pixels as the rows of one matrix.
    std::int64_t const pitch = args.y_strides[2];
    bool const is_matrix = args.y_strides[1] == pitch * x.q && args.y_strides[0] == args.y_strides[1] * x.p;
    int const splits = std::max(args.splits, 1);
    SchedulerParams scheduler{};
    scheduler.columns = FilterColumns::of(x.c, x.r * x.s);
    int const tiles_m = ceil_div(args.m, Tile::kM), tiles_n = ceil_div(scheduler.columns.count(), Tile::kN);
    bool const along_m = args.raster == RasterOrder::along_m;
    scheduler.order = {tiles_m, tiles_n, splits, gemm::swizzle_width(args.swizzle, along_m ? tiles_n : tiles_m), along_m};
    std::int64_t const tiles = std::int64_t{tiles_m} * tiles_n * splits;
    if (!h.is_encodable() || !w.is_encodable() || !is_matrix || tiles > kMaxTiles || (splits > 1 && d != DType::f32) ||
        !is_tma_aligned(args.a.data, args.y_strides, a) || !is_tma_aligned(args.b.data, args.x_strides, b)) {
      return {StatusCode::not_implementable, 0};
    }
    Operands operands;
    OperandA::encode_map(operands.a, a, {args.a.data, pitch, 0}, args.m, args.k, 1);
    encode_im2col_map(operands.b, b, args.b.data, args.x_strides, x.images, x.c, h, w, FilterColumns::kUnit, Tile::kK);
    scheduler.m = args.m;
    scheduler.k_tiles = ceil_div(args.k, Tile::kK);
    scheduler.grid = grid(h, w);
    scheduler.taps_w = cutlass::FastDivmod(x.s);
    scheduler.dilation_h = x.dilation_h;
    scheduler.dilation_w = x.dilation_w;
    gemm::GemmArgs result = args;
    if (splits > 1) {
      result.d = args.workspace;
      result.d_leading = args.n;
      result.d_batch_stride = std::int64_t{args.m} * args.n;
    }
    return Base::launch(result, kernel, attributes, operands, scheduler, static_cast<int>(tiles), splits);
  }
};

}  // namespace cutwheel::conv2d
