// Everything but the mainloop of CUTLASS's GEMM kernels on Hopper: types that follow from a manifest entry, the epilogue,
// arguments and launch.
#pragma once

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "core/cutlass_types.cuh"
#include "core/driver.h"
#include "core/launch.h"
#include "epilogue/sm90_visitors.cuh"

namespace cutwheel::gemm {

template <Arch arch, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile_,
          class Cluster_, Schedule schedule_, bool swap_ab, class Epilogue>
struct Sm90Types {
  static_assert(arch == Arch::sm90a);
  static constexpr bool kSwapAB = swap_ab;
  static constexpr DType kA = a_;
  static constexpr DType kD = d_;
  using Tile = Tile_;
  using Cluster = Cluster_;

  // With swap_ab the kernel computes D^T [N, M] = B^T [N, K] A^T [K, M]: a small M then takes wgmma's N, which may be as
  // short as 8.
  using ElementA = Element<swap_ab ? b_ : a_>;
  using ElementB = Element<swap_ab ? a_ : b_>;
  using LayoutA = CutlassLayout<swap_ab ? transposed(layout_b_) : layout_a_>;
  using LayoutB = CutlassLayout<swap_ab ? transposed(layout_a_) : layout_b_>;
  using LayoutD = CutlassLayout<swap_ab ? Layout::column : Layout::row>;
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  using ClusterShape = cute::Shape<cute::Int<Cluster::kM>, cute::Int<Cluster::kN>, cute::Int<Cluster::kK>>;

  static_assert(schedule_ == Schedule::cooperative || schedule_ == Schedule::pingpong);
  // Pingpong has one warpgroup on a tile.
  using EpilogueSchedule =
      std::conditional_t<schedule_ == Schedule::cooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                         cutlass::epilogue::TmaWarpSpecialized>;

  using Visitor = Sm90Visitor<Epilogue, d_, swap_ab, TileShape, EpilogueSchedule, LayoutD, typename Epilogue::Operands,
                              typename Epilogue::Stores>;
  using ElementC = typename Visitor::ElementC;
  using ElementD = typename Visitor::ElementD;
  static constexpr int kAlignmentA = 16 / static_cast<int>(sizeof(ElementA));
  static constexpr int kAlignmentB = 16 / static_cast<int>(sizeof(ElementB));
  static constexpr int kAlignmentD = 16 / static_cast<int>(sizeof(ElementD));

  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
      cutlass::epilogue::collective::EpilogueTileAuto, Element<acc_>, float, ElementC, LayoutD, kAlignmentD, ElementD,
      LayoutD, kAlignmentD, EpilogueSchedule, typename Visitor::Callbacks>::CollectiveOp;
  // The mainloop takes the shared memory that is left.
  using Stages = cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
      sizeof(typename CollectiveEpilogue::SharedStorage))>;
};

// Mainloop: its Collective, and arguments(args, a, b) with a and b as the kernel names them (swapped with swap_ab).
template <class Types, class Mainloop>
struct Sm90Kernel {
  using Tile = typename Types::Tile;
  using Cluster = typename Types::Cluster;
  using Visitor = typename Types::Visitor;
  using ElementC = typename Types::ElementC;
  using ElementD = typename Types::ElementD;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, typename Mainloop::Collective,
                                                      typename Types::CollectiveEpilogue, /*TileScheduler=*/void>;
  using Params = typename Kernel::Params;

  static constexpr bool kSwapAB = Types::kSwapAB;
  static constexpr int kMaxThreads = Kernel::MaxThreadsPerBlock;
  static constexpr int kMinBlocks = Kernel::MinBlocksPerMultiprocessor;
  static constexpr int kSharedStorageBytes = Kernel::SharedStorageSize;

  CUTLASS_DEVICE static void device(Params const& params) {
    extern __shared__ char shared_memory[];
    Kernel kernel;
    kernel(params, shared_memory);
  }

  static typename Kernel::Arguments arguments(GemmArgs const& args) {
    int const m = kSwapAB ? args.n : args.m, n = kSwapAB ? args.m : args.n;
    Operand const& a = kSwapAB ? args.b : args.a;
    Operand const& b = kSwapAB ? args.a : args.b;
    // Leading dimensions are counted in columns of D; the kernel counts elements that are parts of them, or two.
    constexpr std::int64_t kLeadingFactor = Visitor::Apply::kWidth == Width::half ? 2 : 1;
    constexpr std::int64_t kLeadingDivisor = Visitor::Apply::kWidth == Width::twice ? 2 : 1;
    auto const d_stride = [&](std::int64_t stride) { return stride * kLeadingFactor / kLeadingDivisor; };
    typename Kernel::Arguments result{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, args.k, args.batch},
        Mainloop::arguments(args, a, b),
        {Visitor::arguments(args.epilogue, args.d),
         nullptr,
         {},
         static_cast<ElementD*>(args.d),
         sm90_stride<typename Kernel::StrideD>(d_stride(args.d_leading), d_stride(args.d_batch_stride))}};
    if constexpr (Visitor::kSource >= 0) {
      // A tensor map wants a valid address even where nothing is read.
      EpilogueValue const& source = args.epilogue[Visitor::kSource];
      constexpr std::int64_t kWide = Visitor::kSourceColumns;
      result.epilogue.ptr_C = static_cast<ElementC const*>(source.data ? source.data : args.d);
      result.epilogue.dC =
          source.data ? sm90_stride<typename Kernel::StrideC>(source.leading / kWide, source.batch_stride / kWide)
                      : sm90_stride<typename Kernel::StrideC>(d_stride(args.d_leading), d_stride(args.d_batch_stride));
    }
    result.hw_info.device_id = args.device->ordinal;
    result.hw_info.sm_count = args.device->sm_count;
    using Order = cutlass::gemm::kernel::detail::RasterOrderOptions;
    result.scheduler.raster_order = (args.raster == RasterOrder::along_m) != kSwapAB ? Order::AlongM : Order::AlongN;
    result.scheduler.max_swizzle_size = args.swizzle;
    return result;
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  // CUTLASS's can_implement also wants every extent aligned; tensor maps need it of addresses and strides alone.
  static bool meets_tma(Operand const& operand, int alignment) {
    return reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0 && operand.leading % alignment == 0 &&
           operand.batch_stride % alignment == 0;
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    bool meets =
        meets_tma(args.a, kSwapAB ? Types::kAlignmentB : Types::kAlignmentA) &&
        meets_tma(args.b, kSwapAB ? Types::kAlignmentA : Types::kAlignmentB) &&
        meets_tma({args.d, args.d_leading, args.d_batch_stride}, 16 / static_cast<int>(sizeof(Element<Types::kD>)));
    if (!meets || !Visitor::meets_tma(args.epilogue)) return {StatusCode::not_implementable, 0};
    int const device = args.device->ordinal;
    if (Status const status = attributes.prepare(kernel, device, kSharedStorageBytes); !status.good()) return status;
    typename Kernel::Arguments kernel_arguments = arguments(args);
    LaunchShape shape;
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    shape.cluster = dim3(Cluster::kM, Cluster::kN, Cluster::kK);
    shape.dependent_launch = true;
    if constexpr (Cluster::kM * Cluster::kN > 1) {
      cudaLaunchAttribute launch_attributes[2];
      shape.grid = shape.cluster;
      kernel_arguments.hw_info.max_active_clusters =
          attributes.max_active_clusters(kernel, device, launch_config(shape, args.stream, launch_attributes));
    }
    Params const params = Kernel::to_underlying_arguments(kernel_arguments, args.workspace);
    if (int const error = take_tensor_map_error()) return {StatusCode::tensor_map_error, error};
    shape.grid = Kernel::get_grid_shape(params);
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
