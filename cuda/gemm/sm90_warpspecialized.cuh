// GEMM on Hopper: TMA loads, wgmma, producer and consumer warp groups (CUTLASS 3.x collectives).
#pragma once

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "common/driver.h"
#include "gemm/cutlass_types.cuh"
#include "gemm/launch.h"
#include "gemm/sm90_epilogue.cuh"

namespace cutwheel::gemm {

template <Schedule schedule>
struct Sm90Schedule;
template <>
struct Sm90Schedule<Schedule::pingpong> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
  using TileScheduler = void;
};
template <>
struct Sm90Schedule<Schedule::cooperative> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
  using TileScheduler = void;
};
template <>
struct Sm90Schedule<Schedule::streamk> : Sm90Schedule<Schedule::cooperative> {
  using TileScheduler = cutlass::gemm::StreamKScheduler;
};
template <>
struct Sm90Schedule<Schedule::warpspecialized> {
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecialized;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
  using TileScheduler = void;
};

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile,
          class Cluster, Schedule schedule_, bool swap_ab, template <DType> class Epilogue_>
struct Sm90WarpSpecialized {
  static_assert(arch_ == Arch::sm90a);

  // The kernel's own frame: with swap_ab it computes D^T [N, M] = B^T [N, K] A^T [K, M], so that a small M of the user
  // meets the dimension of wgmma that may be as short as 8.
  using ElementA = Element<swap_ab ? b_ : a_>;
  using ElementB = Element<swap_ab ? a_ : b_>;
  using LayoutA = CutlassLayout<swap_ab ? transposed(layout_b_) : layout_a_>;
  using LayoutB = CutlassLayout<swap_ab ? transposed(layout_a_) : layout_b_>;
  using LayoutD = CutlassLayout<swap_ab ? Layout::column : Layout::row>;
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  using ClusterShape = cute::Shape<cute::Int<Cluster::kM>, cute::Int<Cluster::kN>, cute::Int<Cluster::kK>>;
  using Policy = Sm90Schedule<schedule_>;

  using Visitor = Sm90Visitor<Epilogue_<d_>, d_, swap_ab, TileShape, typename Policy::Epilogue, LayoutD,
                              typename Epilogue_<d_>::Operands, typename Epilogue_<d_>::Stores>;
  using ElementC = typename Visitor::ElementC;
  using ElementD = typename Visitor::ElementD;
  static constexpr int kAlignmentA = 16 / static_cast<int>(sizeof(ElementA));
  static constexpr int kAlignmentB = 16 / static_cast<int>(sizeof(ElementB));
  static constexpr int kAlignmentD = 16 / static_cast<int>(sizeof(ElementD));

  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, ElementC, LayoutD, kAlignmentD, ElementD, LayoutD,
      kAlignmentD, typename Policy::Epilogue, typename Visitor::Callbacks>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, ElementA, LayoutA, kAlignmentA, ElementB, LayoutB, kAlignmentB,
      float, TileShape, ClusterShape,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      typename Policy::Mainloop>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                                      CollectiveEpilogue, typename Policy::TileScheduler>;
  using Params = typename Kernel::Params;

  static constexpr bool kStreamK = schedule_ == Schedule::streamk;
  static constexpr int kMaxThreads = Kernel::MaxThreadsPerBlock;
  static constexpr int kMinBlocks = Kernel::MinBlocksPerMultiprocessor;
  static constexpr int kSharedStorageBytes = Kernel::SharedStorageSize;

  CUTLASS_DEVICE static void device(Params const& params) {
    extern __shared__ char shared_memory[];
    Kernel kernel;
    kernel(params, shared_memory);
  }

  static typename Kernel::Arguments arguments(GemmArgs const& args) {
    int const m = swap_ab ? args.n : args.m, n = swap_ab ? args.m : args.n;
    Operand const& a = swap_ab ? args.b : args.a;
    Operand const& b = swap_ab ? args.a : args.b;
    // Leading dimensions are counted in columns of D; the kernel counts elements that are parts of them, or two.
    constexpr std::int64_t kLeadingFactor = Visitor::Apply::kWidth == Width::half ? 2 : 1;
    constexpr std::int64_t kLeadingDivisor = Visitor::Apply::kWidth == Width::twice ? 2 : 1;
    auto const d_stride = [&](std::int64_t stride) { return stride * kLeadingFactor / kLeadingDivisor; };
    typename Kernel::Arguments result{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, args.k, args.batch},
        {static_cast<ElementA const*>(a.data), sm90_stride<typename Kernel::StrideA>(a.leading, a.batch_stride),
         static_cast<ElementB const*>(b.data), sm90_stride<typename Kernel::StrideB>(b.leading, b.batch_stride)},
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
    result.scheduler.raster_order = (args.raster == RasterOrder::along_m) != swap_ab ? Order::AlongM : Order::AlongN;
    result.scheduler.max_swizzle_size = args.swizzle;
    if constexpr (kStreamK) result.scheduler.splits = args.splits;
    return result;
  }

  static std::int64_t workspace_bytes(GemmArgs const& args) {
    if constexpr (kStreamK) return static_cast<std::int64_t>(Kernel::get_workspace_size(arguments(args)));
    return 0;
  }

  // CUTLASS's can_implement also wants every extent aligned; tensor maps need it of addresses and strides alone.
  static bool meets_tma(Operand const& operand, int alignment) {
    return reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0 && operand.leading % alignment == 0 &&
           operand.batch_stride % alignment == 0;
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelFacts facts;
    bool meets = meets_tma(args.a, kAlignmentA) && meets_tma(args.b, kAlignmentB) &&
                 meets_tma({args.d, args.d_leading, args.d_batch_stride}, 16 / static_cast<int>(sizeof(Element<d_>)));
    for (EpilogueValue const& operand : args.epilogue) {
      // Of matrices; the host aligns what else there is to 16 bytes as well.
      meets = meets && reinterpret_cast<std::uintptr_t>(operand.data) % 16 == 0;
    }
    if (!meets) return {StatusCode::not_implementable, 0};
    int const device = args.device->ordinal;
    if (cudaError_t const error = facts.prepare(kernel, device, kSharedStorageBytes); error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    typename Kernel::Arguments kernel_arguments = arguments(args);
    LaunchShape shape;
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    shape.cluster = dim3(Cluster::kM, Cluster::kN, Cluster::kK);
    shape.dependent_launch = !kStreamK;
    // Stream-K sizes its workspace by CUTLASS's own estimate, and has to launch as many clusters.
    if constexpr (Cluster::kM * Cluster::kN > 1 && !kStreamK) {
      cudaLaunchAttribute attributes[2];
      shape.grid = shape.cluster;
      kernel_arguments.hw_info.max_active_clusters =
          facts.max_active_clusters(kernel, device, launch_config(shape, args.stream, attributes));
    }
    if constexpr (kStreamK) {
      if (Kernel::initialize_workspace(kernel_arguments, args.workspace, args.stream) != cutlass::Status::kSuccess) {
        return {StatusCode::cuda_error, static_cast<int>(cudaGetLastError())};
      }
    }
    Params const params = Kernel::to_underlying_arguments(kernel_arguments, args.workspace);
    if (int const error = take_tensor_map_error()) return {StatusCode::tensor_map_error, error};
    shape.grid = Kernel::get_grid_shape(params);
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
