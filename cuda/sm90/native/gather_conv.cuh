// Convolutions as implicit GEMMs whose pixels a warpgroup gathers with cp.async: for images that TMA reads slowly, and for
// few channels.
#pragma once

#include "sm90/native/conv.cuh"
#include "sm90/native/gathering_kernel.cuh"
#include "sm90/native/load/gather.cuh"

namespace cutwheel::conv2d {

// The rows of D of wgrad are those of a matrix, which threads may store: that leaves 256 rows four stages. sharing: of
// Sm90GatherWgradLoader.
template <DType a, DType b, DType acc, DType d, class Tile, Direction direction, int sharing, class Epilogue>
struct Sm90GatherConvTypes : Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue, /*splits=*/1, /*pingpong=*/false,
                                           /*stores_by_tma=*/direction != Direction::wgrad, sharing> {
  using Base = Sm90ConvTypes<a, b, acc, d, Tile, direction, Epilogue, /*splits=*/1, /*pingpong=*/false,
                             /*stores_by_tma=*/direction != Direction::wgrad, sharing>;
  static constexpr bool kLoadsByTma = false, kLoadsByCopies = true;
  static constexpr int kProducerWarpGroups = kGatherThreads<Tile, direction> / 128;
  using Scheduler = std::conditional_t<Base::kIsPixels, Sm90WgradScheduler<Tile, PackedColumns>,
                                       Sm90ConvScheduler<Tile, Direction::fprop>>;
  static constexpr auto loader_type() {
    using A = typename Base::OperandA;
    using B = typename Base::OperandB;
    if constexpr (Base::kIsPixels) {
      return gemm::epilogue::TypeIdentity<Sm90GatherWgradLoader<A, B, Tile, sharing>>{};
    } else {
      return gemm::epilogue::TypeIdentity<Sm90GatherFpropLoader<A, B, Tile>>{};
    }
  }
  using Loader = typename decltype(loader_type())::type;
};

template <class Types>
using Sm90GatherConvKernel = gemm::Sm90GatheringKernel<Types, typename Types::Scheduler>;

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, int sharing,
          template <DType> class Epilogue>
struct Sm90GatherConv : Sm90GatherConvKernel<Sm90GatherConvTypes<a, b, acc, d, Tile, direction, sharing, Epilogue<d>>> {
  using Base = Sm90GatherConvKernel<Sm90GatherConvTypes<a, b, acc, d, Tile, direction, sharing, Epilogue<d>>>;
  using Scheduler = typename Base::Scheduler;
  using SchedulerParams = typename Scheduler::Params;
  using Operands = typename Base::Loader::Params;
  static_assert(arch == Arch::sm90a && element_bytes(a) == 2);
  static_assert(direction == Direction::wgrad || (direction == Direction::fprop && sharing == 1));
  static_assert(direction == Direction::fprop || has_only(/*rows=*/false, typename Epilogue<d>::Operands{}));
  static_assert(direction == Direction::fprop || Epilogue<d>::Stores::kCount == 0);
  static std::int64_t workspace_bytes(gemm::GemmArgs const& args) {
    if (direction != Direction::wgrad || args.splits <= 1) return 0;
    return std::int64_t{args.splits} * args.m * args.n * static_cast<int>(sizeof(float));
  }

  // args: a ConvArgs.
  static Status launch(gemm::GemmArgs const& args, void const* kernel) {
    static gemm::KernelAttributes attributes;
    auto const& conv = static_cast<ConvArgs const&>(args);
    bool const aligned = conv.conv.c % kPieceElements == 0 && conv.conv.k_out % kPieceElements == 0 &&
                         (direction == Direction::fprop || !conv.conv.is_volume()) &&
                         reinterpret_cast<std::uintptr_t>(args.b.data) % 16 == 0;
    if (!aligned) return {StatusCode::not_implementable, 0};
    if constexpr (direction == Direction::wgrad) {
      return launch_wgrad(conv, kernel, attributes);
    } else {
      return launch_fprop(conv, kernel, attributes);
    }
  }

 private:
  static Status launch_fprop(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    SchedulerParams scheduler{};
    plan_fprop(scheduler, x);
    scheduler.classes[0].k_tiles = ceil_div(args.k, Tile::kK);
    Operands operands{};
    operands.taps_d = x.t, operands.taps_h = x.r, operands.taps_w = x.s;
    bool const fits = has_bits(x) && is_tma_aligned(args.a.data, args.x_strides, a) &&
                      operands.a.encode(args.a.data, args.x_strides, args.x_depth_stride, x);
    std::int64_t const tiles = fits ? scheduler.count_tiles(args, Tile::kM, Tile::kN) : 0;
    if (!fits || tiles > kMaxTiles) return {StatusCode::not_implementable, 0};
    gemm::Operand const filter{args.b.data, args.filter_pitch, 0};
    Base::OperandB::encode_map(operands.b, b, filter, args.n, args.k, 1);
    Base::OperandB::encode_tail_map(operands.b_tail, b, filter, args.n, args.k, 1);
    return Base::launch(args, kernel, attributes, operands, scheduler, static_cast<int>(tiles), 1);
  }

  static Status launch_wgrad(ConvArgs const& args, void const* kernel, gemm::KernelAttributes& attributes) {
    ConvProblem const& x = args.conv;
    int const splits = std::max(args.splits, 1);
    SchedulerParams scheduler{};
    scheduler.columns = {args.n};
    std::int64_t const tiles = scheduler.plan(args, Tile::kM, Tile::kN * sharing, Tile::kK, splits);
    Operands operands{};
    bool const fits = is_matrix(args) && tiles <= kMaxTiles && (splits == 1 || d == DType::f32) &&
                      is_tma_aligned(args.a.data, args.y_strides, a) && is_tma_aligned(args.b.data, args.x_strides, b) &&
                      operands.b.encode(args.b.data, args.x_strides, args.x_depth_stride, x);
    if (!fits) return {StatusCode::not_implementable, 0};
    if constexpr (Base::Loader::kLoadsByTma) {
      gemm::Operand const gradient{args.a.data, args.y_strides[2], 0};
      Base::OperandA::encode_map(operands.a, a, gradient, args.m, args.k, 1);
      Base::OperandA::encode_tail_map(operands.a_tail, a, gradient, args.m, args.k, 1);
    }
    operands.a_data = static_cast<uint4 const*>(args.a.data);
    operands.a_pixel = args.y_strides[2] / kPieceElements;
    operands.pixels = args.k;
    operands.channels = x.c;
    return Base::launch(args_of_splits(args, splits), kernel, attributes, operands, scheduler, static_cast<int>(tiles),
                        splits);
  }
};

}  // namespace cutwheel::conv2d
