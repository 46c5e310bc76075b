// GEMM on Ampere and Ada: cp.async into a multistage shared-memory pipeline, mma.sync (CUTLASS 2.x).
#pragma once

#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/kernel/default_gemm_universal.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include "epilogues.h"
#include "gemm/cutlass_types.cuh"
#include "gemm/launch.h"

namespace cutwheel::gemm {

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile, class Warp,
          int stages_, Epilogue epilogue_, int alignment_ = 16 / static_cast<int>(sizeof(Element<a_>))>
struct Sm80Multistage {
  static_assert(arch_ == Arch::sm80 || arch_ == Arch::sm89);
  // beta == 0 is decided at run time and costs nothing here, so that one kernel serves both epilogues.
  static_assert(epilogue_ == Epilogue::linear_combination || epilogue_ == Epilogue::plain);

  using ElementA = Element<a_>;
  using ElementB = Element<b_>;
  using ElementD = Element<d_>;
  static constexpr int kAlignmentA = alignment_;
  static constexpr int kAlignmentB = alignment_;
  static constexpr int kAlignmentD = 16 / static_cast<int>(sizeof(ElementD));
  static constexpr int kInstructionK = sizeof(ElementA) == 2 ? 16 : 8;
  // A band of up to eight tile columns is walked together, for reuse in L2.
  static constexpr int kSwizzle = 8;

  using Kernel = typename cutlass::gemm::kernel::DefaultGemmUniversal<
      ElementA, CutlassLayout<layout_a_>, cutlass::ComplexTransform::kNone, kAlignmentA, ElementB, CutlassLayout<layout_b_>,
      cutlass::ComplexTransform::kNone, kAlignmentB, ElementD, cutlass::layout::RowMajor, float,
      cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, cutlass::gemm::GemmShape<Tile::kM, Tile::kN, Tile::kK>,
      cutlass::gemm::GemmShape<Warp::kM, Warp::kN, Warp::kK>, cutlass::gemm::GemmShape<16, 8, kInstructionK>,
      cutlass::epilogue::thread::LinearCombination<ElementD, kAlignmentD, float, float>,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<kSwizzle>, stages_,
      cutlass::arch::OpMultiplyAdd>::GemmKernel;
  using Params = typename Kernel::Params;

  static constexpr int kMaxThreads = Kernel::kThreadCount;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(typename Kernel::SharedStorage));

  CUTLASS_DEVICE static void device(Params const& params) {
    extern __shared__ __align__(16) char shared_memory[];
    Kernel kernel;
    kernel(params, *reinterpret_cast<typename Kernel::SharedStorage*>(shared_memory));
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelFacts facts;
    if (cudaError_t const error = facts.prepare(kernel, args.device->ordinal, kSharedStorageBytes); error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    bool const reads_c = args.beta != 0.f;
    typename Kernel::Arguments arguments(
        cutlass::gemm::GemmUniversalMode::kBatched, {args.m, args.n, args.k}, args.batch, {args.alpha, args.beta},
        args.a.data, args.b.data, reads_c ? args.c.data : args.d, args.d, args.a.batch_stride, args.b.batch_stride,
        reads_c ? args.c.batch_stride : args.d_batch_stride, args.d_batch_stride,
        // Strides, not leading dimensions: a C stride of 0 (one row for all) is meant, not missing.
        cutlass::make_Coord(args.a.leading), cutlass::make_Coord(args.b.leading),
        cutlass::make_Coord(reads_c ? args.c.leading : args.d_leading), cutlass::make_Coord(args.d_leading));
    Params const params(arguments, args.device->sm_count, /*sm_occupancy=*/1);
    LaunchShape shape;
    shape.grid = params.get_grid_dims();
    // N beyond 65535 * 8 tiles, or a batch that the caller has not cut.
    constexpr unsigned kMaxGrid = 65535;
    if (shape.grid.y > kMaxGrid || shape.grid.z > kMaxGrid) return {StatusCode::not_implementable, 0};
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
