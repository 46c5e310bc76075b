// GEMM on Ampere and Ada: cp.async into a multistage shared-memory pipeline, mma.sync (CUTLASS 2.x).
#pragma once

#include <cutlass/epilogue/thread/linear_combination.h>
#include <cutlass/gemm/kernel/default_gemm_universal.h>
#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>
#include <cutlass/gemm/threadblock/threadblock_swizzle.h>

#include "core/cutlass_types.cuh"
#include "core/launch.h"
#include "epilogue/sm80_visitors.cuh"

namespace cutwheel::gemm {

namespace epilogue {
template <DType>
struct linear_combination;  // generated
}

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile, class Warp,
          int stages_, template <DType> class Epilogue_, bool fast_accum = false,
          int alignment_ = 16 / static_cast<int>(sizeof(Element<a_>))>
struct Sm80Multistage {
  static_assert(arch_ == Arch::sm80 || arch_ == Arch::sm89);
  // The one epilogue that CUTLASS's own functor serves: it decides at run time whether C is read, which costs nothing here.
  static constexpr bool kClassic = std::is_same_v<Epilogue_<d_>, epilogue::linear_combination<d_>>;

  using ElementA = Element<a_>;
  using ElementB = Element<b_>;
  using ElementD = Element<d_>;
  static constexpr int kAlignmentA = alignment_;
  static constexpr int kAlignmentB = alignment_;
  // fp8 results are stored 8 bytes at a time: with 16, a row of 128 columns has too few accesses for eight warps.
  static constexpr int kAlignmentD = is_fp8(d_) ? 8 : 16 / static_cast<int>(sizeof(ElementD));
  static constexpr int kInstructionK = 32 / static_cast<int>(sizeof(ElementA));
  using ElementAccumulator = Element<acc_>;
  static constexpr bool kFp8 = is_fp8(a_);
  using ArchTag = std::conditional_t<kFp8, cutlass::arch::Sm89, cutlass::arch::Sm80>;
  // Without fast_accum, fp8 sums are promoted to float registers after each k-tile (accumulator promotion).
  using Operator = std::conditional_t<
      fast_accum, cutlass::arch::OpMultiplyAddFastAccum,
      std::conditional_t<a_ == DType::s8, cutlass::arch::OpMultiplyAddSaturate, cutlass::arch::OpMultiplyAdd>>;
  // The swizzle is up to eight columns of tiles wide, for reuse in L2.
  static constexpr int kSwizzle = 8;

  using TileShape = cutlass::gemm::GemmShape<Tile::kM, Tile::kN, Tile::kK>;
  using WarpShape = cutlass::gemm::GemmShape<Warp::kM, Warp::kN, Warp::kK>;
  using InstructionShape = cutlass::gemm::GemmShape<16, 8, kInstructionK>;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<kSwizzle>;

  template <class Visitor>
  using KernelWithVisitor = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      ElementA, CutlassLayout<layout_a_>, cutlass::ComplexTransform::kNone, kAlignmentA, ElementB, CutlassLayout<layout_b_>,
      cutlass::ComplexTransform::kNone, kAlignmentB, ElementD, cutlass::layout::RowMajor, kAlignmentD, ElementAccumulator,
      float, cutlass::arch::OpClassTensorOp, ArchTag, TileShape, WarpShape, InstructionShape, Visitor, Swizzle, stages_,
      Operator>::GemmKernel;

  static constexpr auto kernel_of() {
    if constexpr (kClassic) {
      return epilogue::TypeIdentity<typename cutlass::gemm::kernel::DefaultGemmUniversal<
          ElementA, CutlassLayout<layout_a_>, cutlass::ComplexTransform::kNone, kAlignmentA, ElementB,
          CutlassLayout<layout_b_>, cutlass::ComplexTransform::kNone, kAlignmentB, ElementD, cutlass::layout::RowMajor,
          float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, TileShape, WarpShape, InstructionShape,
          cutlass::epilogue::thread::LinearCombination<ElementD, kAlignmentD, float, float>, Swizzle, stages_,
          cutlass::arch::OpMultiplyAdd>::GemmKernel>{};
    } else {
      return epilogue::TypeIdentity<KernelWithVisitor<typename VisitorOf<Epilogue_<d_>>::Callbacks>>{};
    }
  }

  using ThreadMap = visitors::OutputTileThreadLayout<TileShape, WarpShape, ElementD, kAlignmentD, /*stages=*/1>;
  template <class Epilogue>
  using VisitorOf = Sm80Visitor<Epilogue, d_, ThreadMap, typename Epilogue::Operands, typename Epilogue::Stores>;

  using Kernel = typename decltype(kernel_of())::type;
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

  static typename Kernel::Arguments arguments_of(GemmArgs const& args) {
    // Strides, not leading dimensions: a C stride of 0 (one row for all) is meant, not missing.
    if constexpr (kClassic) {
      bool const reads_c = args.beta != 0.f;
      return {cutlass::gemm::GemmUniversalMode::kBatched,
              {args.m, args.n, args.k},
              args.batch,
              {args.alpha, args.beta},
              args.a.data,
              args.b.data,
              reads_c ? args.c.data : args.d,
              args.d,
              args.a.batch_stride,
              args.b.batch_stride,
              reads_c ? args.c.batch_stride : args.d_batch_stride,
              args.d_batch_stride,
              cutlass::make_Coord(args.a.leading),
              cutlass::make_Coord(args.b.leading),
              cutlass::make_Coord(reads_c ? args.c.leading : args.d_leading),
              cutlass::make_Coord(args.d_leading)};
    } else {
      using Visitor = VisitorOf<Epilogue_<d_>>;
      return {cutlass::gemm::GemmUniversalMode::kBatched,
              {args.m, args.n, args.k},
              args.batch,
              Visitor::arguments(args.epilogue, args.d, args.d_leading, args.d_batch_stride),
              args.a.data,
              args.b.data,
              nullptr,
              nullptr,
              args.a.batch_stride,
              args.b.batch_stride,
              0,
              0,
              cutlass::make_Coord(args.a.leading),
              cutlass::make_Coord(args.b.leading),
              cutlass::make_Coord(std::int64_t{0}),
              cutlass::make_Coord(std::int64_t{0})};
    }
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    if (cudaError_t const error = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes);
        error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    typename Kernel::Arguments const arguments = arguments_of(args);
    Params const params(arguments, args.device->sm_count, /*sm_occupancy=*/1);
    LaunchShape shape;
    shape.grid = params.get_grid_dims();
    // More than 65535 * 8 tiles along N, or a batch that the caller has not split.
    constexpr unsigned kMaxGrid = 65535;
    if (shape.grid.y > kMaxGrid || shape.grid.z > kMaxGrid) return {StatusCode::not_implementable, 0};
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
