// GEMM on Hopper: TMA loads, wgmma, producer and consumer warp groups (CUTLASS 3.x collectives).
#pragma once

#include <cutlass/gemm/collective/collective_builder.hpp>

#include "sm90/cutlass/kernel.cuh"
#include "sm90/native/mainloop_fp8.cuh"

namespace cutwheel::gemm {

// Tensor cores accumulate 8-bit floats with fewer bits than float has. Unless `fast_accum`, accumulators are promoted to
// float registers every 128 of K.
template <Schedule schedule, bool fast_accum>
struct Sm90Schedule {  // cooperative
  using Mainloop = std::conditional_t<fast_accum, cutlass::gemm::KernelTmaWarpSpecializedCooperativeFP8FastAccum,
                                      cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
};
template <bool fast_accum>
struct Sm90Schedule<Schedule::pingpong, fast_accum> {
  using Mainloop = std::conditional_t<fast_accum, cutlass::gemm::KernelTmaWarpSpecializedPingpongFP8FastAccum,
                                      cutlass::gemm::KernelTmaWarpSpecializedPingpong>;
};

template <class Types, DType acc, Schedule schedule, bool fast_accum>
struct Sm90Mainloop {
  using Accumulator = Element<acc>;
  using Builder = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename Types::ElementA, typename Types::LayoutA,
      Types::kAlignmentA, typename Types::ElementB, typename Types::LayoutB, Types::kAlignmentB, Accumulator,
      typename Types::TileShape, typename Types::ClusterShape, typename Types::Stages,
      typename Sm90Schedule<schedule, fast_accum>::Mainloop>::CollectiveOp;
  static constexpr bool kPromotesAccumulator = is_fp8(Types::kA) && !fast_accum;
  // Lazily: the one's static assertions do not hold for the other's tiles.
  static constexpr auto collective() {
    if constexpr (kPromotesAccumulator) {
      return epilogue::TypeIdentity<Sm90AccumulatorPromotionMma<Builder, /*scaled=*/false>>{};
    } else {
      return epilogue::TypeIdentity<Builder>{};
    }
  }
  using Collective = typename decltype(collective())::type;

  static typename Collective::Arguments arguments(GemmArgs const&, Operand const& a, Operand const& b) {
    return {static_cast<typename Types::ElementA const*>(a.data),
            sm90_stride<typename Collective::StrideA>(a.leading, a.batch_stride),
            static_cast<typename Types::ElementB const*>(b.data),
            sm90_stride<typename Collective::StrideB>(b.leading, b.batch_stride)};
  }
};

template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, class Cluster,
          Schedule schedule, bool swap_ab, template <DType> class Epilogue, bool fast_accum = false>
struct Sm90WarpSpecialized
    : Sm90Kernel<
          Sm90Types<arch, a, b, acc, d, layout_a, layout_b, Tile, Cluster, schedule, swap_ab, Epilogue<d>>,
          Sm90Mainloop<Sm90Types<arch, a, b, acc, d, layout_a, layout_b, Tile, Cluster, schedule, swap_ab, Epilogue<d>>,
                       acc, schedule, fast_accum>> {};

}  // namespace cutwheel::gemm
