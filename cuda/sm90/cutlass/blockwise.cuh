// GEMMs of 8-bit floats with scales along K on Hopper: sums over 128 of K are scaled as they are accumulated (CUTLASS's
// collective for block-wise scaling).
#pragma once

#include "sm90/cutlass/kernel.cuh"
#include "sm90/native/mainloop_fp8.cuh"

namespace cutwheel::scaled_mm {

using namespace gemm;

// Granularity `rows` by 128, any strides: then CUTLASS copies scales one by one, which asks for no alignment of theirs, and
// none of M.
template <int rows>
using Sm90ScaleLayout = cute::Layout<cute::Shape<cute::Shape<cute::Int<rows>, int>, cute::Shape<cute::Int<128>, int>, int>,
                                     cute::Stride<cute::Stride<cute::_0, int>, cute::Stride<cute::_0, int>, int>>;

template <Schedule schedule>
using Sm90BlockwiseSchedule =
    std::conditional_t<schedule == Schedule::pingpong, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8Blockwise,
                       cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8Blockwise>;

template <class Types, Schedule schedule, BlockScales scales>
struct Sm90BlockwiseMainloop {
  static_assert(schedule == Schedule::pingpong || schedule == Schedule::cooperative);
  static_assert(scales != BlockScales::none);
  static constexpr bool kSwapAB = Types::kSwapAB;

  static constexpr int kRowsOfB = scales == BlockScales::a1x128_b128x128 ? 128 : 1;
  using LayoutSFA = Sm90ScaleLayout<kSwapAB ? kRowsOfB : 1>;
  using LayoutSFB = Sm90ScaleLayout<kSwapAB ? 1 : kRowsOfB>;
  using Builder = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Types::ElementA,
      cute::tuple<typename Types::LayoutA, LayoutSFA>, Types::kAlignmentA, typename Types::ElementB,
      cute::tuple<typename Types::LayoutB, LayoutSFB>, Types::kAlignmentB, float, typename Types::TileShape,
      typename Types::ClusterShape, typename Types::Stages, Sm90BlockwiseSchedule<schedule>>::CollectiveOp;
  using Collective = Sm90AccumulatorPromotionMma<Builder, /*scaled=*/true>;

  template <class Layout>
  static Layout scale_layout(BlockScaleOperand const& operand, int rows, int k) {
    constexpr int kRows = decltype(cute::size<0, 0>(Layout{}))::value;
    return cute::make_layout(cute::make_shape(cute::make_shape(cute::Int<kRows>{}, ceil_div(rows, kRows)),
                                              cute::make_shape(cute::Int<128>{}, ceil_div(k, 128)), 1),
                             cute::make_stride(cute::make_stride(cute::_0{}, static_cast<int>(operand.stride)),
                                               cute::make_stride(cute::_0{}, static_cast<int>(operand.k_stride)), 0));
  }

  static typename Collective::Arguments arguments(GemmArgs const& args, Operand const& a, Operand const& b) {
    BlockScaleOperand const& scale_a = kSwapAB ? args.scale_b : args.scale_a;
    BlockScaleOperand const& scale_b = kSwapAB ? args.scale_a : args.scale_b;
    int const m = kSwapAB ? args.n : args.m, n = kSwapAB ? args.m : args.n;
    return {static_cast<typename Types::ElementA const*>(a.data),
            sm90_stride<typename Collective::StrideA>(a.leading, a.batch_stride),
            static_cast<typename Types::ElementB const*>(b.data),
            sm90_stride<typename Collective::StrideB>(b.leading, b.batch_stride),
            scale_a.data,
            scale_layout<LayoutSFA>(scale_a, m, args.k),
            scale_b.data,
            scale_layout<LayoutSFB>(scale_b, n, args.k)};
  }
};

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, class Cluster, Schedule schedule, bool swap_ab,
          BlockScales scales, template <DType> class Epilogue>
struct Sm90Blockwise
    : Sm90Kernel<Sm90Types<arch, a, b, acc, d, Layout::row, Layout::column, Tile, Cluster, schedule, swap_ab, Epilogue<d>>,
                 Sm90BlockwiseMainloop<Sm90Types<arch, a, b, acc, d, Layout::row, Layout::column, Tile, Cluster, schedule,
                                                 swap_ab, Epilogue<d>>,
                                       schedule, scales>> {};

}  // namespace cutwheel::scaled_mm
