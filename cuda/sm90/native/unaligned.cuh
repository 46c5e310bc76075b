// Dense GEMM of 16-bit operands whose rows begin anywhere: odd extents, slices. Two warpgroups load, since each byte goes
// through registers.
#pragma once

#include "sm90/native/dense.cuh"
#include "sm90/native/load/unaligned.cuh"

namespace cutwheel::gemm {

template <DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, class Epilogue>
struct Sm90UnalignedTypes : Sm90PersistentTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue> {
  using Base = Sm90PersistentTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue>;
  static constexpr bool kLoadsByTma = false;
  static constexpr int kProducerWarpGroups = 2;
  // Two k-tiles for wgmma, and as many on their way as there is room for.
  static constexpr int stages(int) { return 2; }
  using Loader = Sm90UnalignedLoader<typename Base::OperandA, typename Base::OperandB, Tile::kK, 128 * kProducerWarpGroups>;
  static constexpr int kStaged =
      std::min(6, (Base::kSharedMemory - 2048 - 2 * (Base::OperandA::kBytes + Base::OperandB::kBytes) -
                   Base::kWarpGroups * static_cast<int>(sizeof(typename Base::Epilogue::Storage))) /
                      Loader::kStagedBytes);
  static_assert(kStaged >= 2);
  struct LoaderStorage {
    alignas(128) std::uint8_t staged[kStaged][Loader::kStagedBytes];
  };
};

template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile,
          template <DType> class Epilogue>
using Sm90UnalignedKernel =
    Sm90PersistentKernel<Sm90UnalignedTypes<a, b, acc, d, layout_a, layout_b, Tile, Epilogue<d>>,
                         Sm90DenseScheduler<Tile, /*takes_slices=*/false>, /*promotes_accumulator=*/false>;

template <Arch arch, DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile,
          template <DType> class Epilogue>
struct Sm90Unaligned : Sm90Dense<Sm90UnalignedKernel<arch, a, b, acc, d, layout_a, layout_b, Tile, Epilogue>, Tile, a, b> {
  static_assert(arch == Arch::sm90a);
};

}  // namespace cutwheel::gemm
