// GEMMs of 8-bit floats with scales along K on Ada: the mainloop of Sm89BlockScaledMma, and an epilogue that stores from
// registers. CUTLASS has no such kernel for this architecture.
#pragma once

#include <tuple>

#include "core/launch.h"
#include "epilogue/apply.cuh"
#include "sm80/sm89_block_scaled_mma.cuh"

namespace cutwheel::scaled_mm {

using namespace gemm;

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, class Tile, class Warp, int stages_, BlockScales scales_,
          template <DType> class Epilogue_>
struct Sm89Blockwise {
  static_assert(arch_ == Arch::sm89 && acc_ == DType::f32);
  using Mma = Sm89BlockScaledMma<a_, b_, Tile, Warp, stages_, scales_>;
  using Epilogue = Epilogue_<d_>;
  using E = Element<d_>;
  static constexpr int kMaxThreads = Mma::kThreads;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = Mma::kSharedBytes;
  static constexpr int kMmaM = Mma::kMmaM, kMmaN = Mma::kMmaN;

  struct Params : Mma::Operands {
    E* d;
    std::int64_t d_leading;
    EpilogueValue operands[kMaxEpilogueOperands];
    int tiles_m;
  };

  template <class Operand>
  CUTLASS_DEVICE static cutlass::Array<float, 2> operand(Params const& p, std::int64_t m, int n) {
    EpilogueValue const& value = p.operands[Operand::kIndex];
    cutlass::Array<float, 2> out;
    out.clear();
    if constexpr (Operand::kKind == OperandKind::scalar) {
      out.fill(value.value);
    } else if (value.data) {
      auto const* const data = static_cast<Element<Operand::kType> const*>(value.data);
      CUTLASS_PRAGMA_UNROLL
      for (int c = 0; c < 2; ++c) {
        std::int64_t at = n + c;
        if constexpr (Operand::kKind == OperandKind::col) at = m;
        if constexpr (Operand::kKind == OperandKind::matrix) at += m * value.leading;
        if constexpr (Operand::kMayBeOne) at *= value.leading;
        out[c] = static_cast<float>(data[at]);
      }
    }
    return out;
  }

  template <class... Operands>
  CUTLASS_DEVICE static void store(epilogue::OperandList<Operands...>, Params const& p, typename Mma::Sums const& sums,
                                   int m0, int n0) {
    using Apply = epilogue::Apply<Epilogue, d_, epilogue::OperandList<Operands...>, epilogue::OperandList<>>;
    static_assert(std::is_same_v<typename Epilogue::Stores, epilogue::OperandList<>> && Epilogue::kWidth == Width::same);
    int const lane = threadIdx.x % 32;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kMmaM; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r) {
        std::int64_t const m = m0 + i * 16 + r * 8 + lane / 4;
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kMmaN; ++j) {
          int const n = n0 + j * 8 + lane % 4 * 2;
          if (m >= p.m || n >= p.n) continue;  // N is even: rows of D are whole accesses
          cutlass::Array<float, 2> accum;
          accum[0] = sums[i][j][2 * r];
          accum[1] = sums[i][j][2 * r + 1];
          std::tuple const inputs{operand<Operands>(p, m, n)...};
          typename Apply::template StoreFragments<2> none;
          auto const result = Apply::run(accum, inputs, none);
          using Bits = std::conditional_t<sizeof(E) == 4, uint2, unsigned>;
          Bits bits;
          memcpy(&bits, &result, sizeof(bits));
          *reinterpret_cast<Bits*>(p.d + m * p.d_leading + n) = bits;
        }
      }
    }
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(128) char shared_memory[];
    unsigned const shared = static_cast<unsigned>(__cvta_generic_to_shared(shared_memory));
    int const tile_m = blockIdx.x % p.tiles_m * Tile::kM, tile_n = blockIdx.x / p.tiles_m * Tile::kN;
    typename Mma::Sums sums = {};
    Mma::run(p, shared, tile_m, tile_n, sums);
    store(typename Epilogue::Operands{}, p, sums, tile_m + Mma::warp_row(), tile_n + Mma::warp_column());
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    if (cudaError_t const error = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes);
        error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    Params params{};
    params.a = static_cast<char const*>(args.a.data);
    params.b = static_cast<char const*>(args.b.data);
    params.d = static_cast<E*>(args.d);
    params.a_leading = args.a.leading;
    params.b_leading = args.b.leading;
    params.d_leading = args.d_leading;
    params.scale_a = args.scale_a;
    params.scale_b = args.scale_b;
    for (int i = 0; i < kMaxEpilogueOperands; ++i) params.operands[i] = args.epilogue[i];
    params.m = args.m;
    params.n = args.n;
    params.k = args.k;
    params.tiles_m = ceil_div(args.m, Tile::kM);
    LaunchShape shape;
    std::int64_t const tiles = std::int64_t{params.tiles_m} * ceil_div(args.n, Tile::kN);
    if (tiles > 0x7fffffff) return {StatusCode::not_implementable, 0};
    shape.grid = dim3(static_cast<unsigned>(tiles));
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::scaled_mm
