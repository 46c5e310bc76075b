// GEMMs of 8-bit floats with scales along K on Ada.
#pragma once

#include "sm80/multistage.cuh"
#include "sm80/sm89_block_scales.cuh"

namespace cutwheel::scaled_mm {

using namespace gemm;

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, class Tile, class Warp, int stages_, BlockScales scales_,
          template <DType> class Epilogue_>
struct Sm89Blockwise
    : Sm80Multistage<arch_, a_, b_, acc_, d_, Layout::row, Layout::column, Tile, Warp, stages_, Epilogue_> {
  static_assert(arch_ == Arch::sm89 && Tile::kK == 128, "a tile of K is one block of scales");
  using Dense = Sm80Multistage<arch_, a_, b_, acc_, d_, Layout::row, Layout::column, Tile, Warp, stages_, Epilogue_>;

  struct Params : Dense::Params {
    BlockScaleOperand scale_a, scale_b;
  };

  CUTLASS_DEVICE static void device(Params const& p) {
    using Mainloop = typename Dense::Mainloop;
    Dense::compute(p, [&](int row, int column) {
      return Sm89BlockScales<Warp, scales_>{
          p.scale_a, p.scale_b, row + Mainloop::warp_row(), column + Mainloop::warp_column(), p.m, p.n};
    });
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    Params params{};
    params.scale_a = args.scale_a;
    params.scale_b = args.scale_b;
    return Dense::launch(args, kernel, attributes, params);
  }
};

}  // namespace cutwheel::scaled_mm
