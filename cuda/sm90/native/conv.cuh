// Convolutions as implicit GEMMs on Hopper's persistent kernel. TMA's im2col mode gathers the pixels and fills padding with
// zeros, so there is no preceding kernel and no workspace except for split-K.
#pragma once

#include <algorithm>

#include "sm90/native/kernel.cuh"
#include "sm90/native/load/conv.cuh"
#include "sm90/native/load/wgrad.cuh"

namespace cutwheel::conv2d {

// Layouts in shared memory. wgmma reads operands of other than 16 bits K-major only, as they lie in fprop.
template <Direction direction>
constexpr Layout kPixelLayout = direction == Direction::wgrad ? Layout::column : Layout::row;
template <Direction direction>
constexpr Layout kFilterLayout = direction == Direction::fprop ? Layout::column : Layout::row;

// splits: threadblocks of a cluster that share the K of a tile. stores_by_tma, beside: of Sm90PersistentTypes.
template <DType a, DType b, DType acc, DType d, class Tile, Direction direction, class Epilogue, int splits = 1,
          bool pingpong = false, bool stores_by_tma = true, int beside = 1>
struct Sm90ConvTypes
    : gemm::Sm90PersistentTypes<a, b, acc, d, kPixelLayout<direction>, kFilterLayout<direction>, Tile, Epilogue,
                                /*swap_ab=*/false, splits, pingpong, stores_by_tma, /*below=*/1, beside> {
  using Base = gemm::Sm90PersistentTypes<a, b, acc, d, kPixelLayout<direction>, kFilterLayout<direction>, Tile, Epilogue,
                                         /*swap_ab=*/false, splits, pingpong, stores_by_tma, /*below=*/1, beside>;
  static constexpr bool kIsPixels = direction == Direction::wgrad;
  using OperandA = typename Base::OperandA;
  using OperandB = typename Base::OperandB;
  using Scheduler = std::conditional_t<kIsPixels, Sm90WgradScheduler<Tile>, Sm90ConvScheduler<Tile, direction>>;
  static constexpr auto loader_type() {
    if constexpr (kIsPixels) {
      return gemm::epilogue::TypeIdentity<Sm90WgradLoader<OperandA, OperandB, Tile>>{};
    } else {
      return gemm::epilogue::TypeIdentity<Sm90ConvLoader<OperandA, OperandB, Tile, direction, (splits > 1)>>{};
    }
  }
  using Loader = typename decltype(loader_type())::type;
};

// Epilogue operands are indexed by rows and columns of the GEMM. wgrad permutes both in D: only scalars fit. dgrad permutes
// rows: a vector along columns fits, too.
template <class... Operands>
constexpr bool has_only(bool rows, gemm::epilogue::OperandList<Operands...>) {
  return ((Operands::kKind == OperandKind::scalar || (rows && Operands::kKind == OperandKind::row)) && ... && true);
}

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, Schedule schedule, int splits,
          template <DType> class Epilogue>
struct Sm90Conv : gemm::Sm90PersistentKernel<
                      Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>, splits, schedule == Schedule::pingpong>,
                      typename Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>, splits>::Scheduler, is_fp8(a)> {
  using Types = Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue<d>, splits, schedule == Schedule::pingpong>;
  using Base = gemm::Sm90PersistentKernel<Types, typename Types::Scheduler, is_fp8(a)>;
  using Scheduler = typename Types::Scheduler;
  using SchedulerParams = typename Scheduler::Params;
  using OperandA = typename Types::OperandA;
  using OperandB = typename Types::OperandB;
  using Operands = typename Types::Loader::Params;
  static_assert(arch == Arch::sm90a && direction != Direction::none);
  static_assert(direction == Direction::fprop || element_bytes(a) == 2);
  static_assert(direction != Direction::wgrad || splits == 1);
  static_assert(direction == Direction::fprop || has_only(direction == Direction::dgrad, typename Epilogue<d>::Operands{}));
  // Whether zeros would be wrong where no tap reaches.
  static constexpr bool kHasBias = !has_only(/*rows=*/false, typename Epilogue<d>::Operands{});
  static_assert(direction == Direction::fprop || Epilogue<d>::Stores::kCount == 0);

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
  static Status launch_taps(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes,
                            Operands& operands, SchedulerParams& scheduler, int taps) {
    // [taps, N, K of a tap]; it lies between the channels.
    gemm::Operand const filter{args.b.data, args.filter_pitch, args.b.leading};
    constexpr bool kIsDgrad = direction == Direction::dgrad;
    int const n = kIsDgrad ? args.n / args.groups : args.n, channels = scheduler.channels * (kIsDgrad ? args.groups : 1);
    OperandB::encode_map(operands.b, b, filter, n, channels, taps);
    OperandB::encode_tail_map(operands.b_tail, b, filter, n, channels, taps);
    std::int64_t const tiles = scheduler.count_tiles(args, Tile::kM, Tile::kN);
    if (tiles > kMaxTiles || (splits > 1 && scheduler.classes[0].k_tiles < splits)) {
      take_tensor_map_error();
      return {StatusCode::not_implementable, 0};
    }
    return Base::launch(args, kernel, attributes, operands, scheduler, static_cast<int>(tiles), 1);
  }

  static Status launch_fprop(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    Im2colAxes const axes = im2col_axes(x);
    if (!axes.is_encodable() || !is_tma_aligned(args.a.data, args.x_strides, a)) return {StatusCode::not_implementable, 0};
    Operands operands;
    auto const encode = [&](CUtensorMap& map, int pixels) {
      encode_im2col_map(map, a, args.a.data, args.x_strides, args.x_depth_stride, x.images, x.c, axes, OperandA::kSwizzled,
                        pixels, OperandA::kSwizzleBytes);
    };
    encode(operands.a[0], Tile::kM);
    operands.a_tail_rows = args.m % Tile::kM;
    if (operands.a_tail_rows) encode(operands.a_tail, operands.a_tail_rows);
    SchedulerParams scheduler{};
    plan_fprop(scheduler, x, args.groups);
    scheduler.classes[0].k_tiles = x.taps() * ceil_div(scheduler.channels, Tile::kK);
    return launch_taps(args, kernel, attributes, operands, scheduler, x.taps());
  }

  static Status launch_dgrad(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    DgradAxes sides;
    Operands operands{};
    SchedulerParams scheduler{};
    if (!plan_dgrad(scheduler, x, sides, args.groups) || !is_tma_aligned(args.a.data, args.y_strides, a)) {
      return {StatusCode::not_implementable, 0};
    }
    // Residue classes may have fewer k-tiles than a cluster has threadblocks.
    if (splits > 1 && scheduler.count > 1) return {StatusCode::not_implementable, 0};
    bool const encoded = encode_dgrad_pixels(scheduler, args, sides, a, OperandA::kSwizzled, Tile::kM, Tile::kK, kHasBias,
                                             operands.a, operands.a_tail, operands.a_tail_rows);
    if (!encoded) return {StatusCode::not_implementable, 0};
    sort_classes(scheduler);
    encode_results(scheduler, args, sides, d, Base::Epilogue::Rows::kImageBox);
    return launch_taps(args, kernel, attributes, operands, scheduler, x.taps());
  }

  static Status launch_wgrad(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    Im2colAxes const axes = im2col_axes(x);
    int const parts = std::max(args.splits, 1);
    SchedulerParams scheduler{};
    scheduler.columns = FilterColumns::of(x.c / args.groups, x.taps());
    std::int64_t const tiles = scheduler.plan(args, Tile::kM, Tile::kN, Tile::kK, parts);
    if (!axes.is_encodable() || !is_matrix(args) || tiles > kMaxTiles || (parts > 1 && d != DType::f32) ||
        !is_tma_aligned(args.a.data, args.y_strides, a) || !is_tma_aligned(args.b.data, args.x_strides, b)) {
      return {StatusCode::not_implementable, 0};
    }
    Operands operands;
    OperandA::encode_map(operands.a, a, {args.a.data, args.y_strides[2], 0}, args.m, args.k, 1);
    encode_im2col_map(operands.b, b, args.b.data, args.x_strides, args.x_depth_stride, x.images, x.c, axes,
                      FilterColumns::kUnit, Tile::kK, OperandB::kSwizzleBytes);
    return Base::launch(args_of_splits(args, parts), kernel, attributes, operands, scheduler, static_cast<int>(tiles),
                        parts);
  }
};

}  // namespace cutwheel::conv2d
