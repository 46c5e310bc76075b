// The epilogue of direct convolutions. Accumulators are D^T of an output tile with gaps, [64 filters, positions]. They are
// transposed on the way to shared memory, where the gaps are dropped, and one TMA copy stores the output tile.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include "epilogue/apply.cuh"
#include "sm90/direct_conv/scheduler.cuh"

namespace cutwheel::conv2d {

template <class Epilogue, DType d, int positions, bool residues, class Operands>
struct Sm90DirectConvEpilogue;

template <class Epilogue, DType d, int positions, bool residues, class... Operands>
struct Sm90DirectConvEpilogue<Epilogue, d, positions, residues, gemm::epilogue::OperandList<Operands...>> {
  using Apply = gemm::epilogue::Apply<Epilogue, d, gemm::epilogue::OperandList<Operands...>, gemm::epilogue::OperandList<>>;
  using E = gemm::Element<d>;
  static_assert(sizeof(E) == 2 && Apply::kWidth == Width::same);
  template <class Operand>
  static constexpr bool kIsMatrix = Operand::kKind == OperandKind::matrix;
  static constexpr bool kHasMatrix = (kIsMatrix<Operands> || ... || false);
  static_assert((kIsMatrix<Operands> + ... + 0) <= (residues ? 0 : 1));

  struct Params {
    gemm::EpilogueValue operands[sizeof...(Operands) > 0 ? sizeof...(Operands) : 1];
    CUtensorMap result, matrix;
    bool has_matrix;
    int rows, columns, pitch, filters;
    int line_bytes, swizzle;  // of a pixel of every residue class
  };

  static Params params(gemm::GemmArgs const& args, DirectConvShape const& shape, ConvProblem const& x) {
    Params result{};
    result.rows = shape.rows, result.columns = shape.columns, result.pitch = shape.pitch, result.filters = shape.filters;
    ((result.operands[Operands::kIndex] = args.epilogue[Operands::kIndex]), ...);
    auto const encode = [&](CUtensorMap& map, void* data, std::int64_t pixel) {
      encode_halo_map(map, d, data, {pixel * shape.width * shape.height, pixel * shape.width, pixel}, shape.images,
                      shape.height, shape.width, shape.filters, shape.rows, shape.columns);
    };
    if constexpr (residues) {
      result.line_bytes = shape.filters * 2;
      result.swizzle = encode_residue_classes_map(result.result, d, args.d, x, shape);
    } else {
      encode(result.result, args.d, args.d_leading);
    }
    auto const encode_matrix = [&](gemm::EpilogueValue const& x) {
      result.has_matrix = x.data != nullptr;
      if (x.data) encode(result.matrix, x.data, x.leading);
    };
    ((kIsMatrix<Operands> ? encode_matrix(args.epilogue[Operands::kIndex]) : void()), ...);
    return result;
  }

  static bool meets_alignment(gemm::GemmArgs const& args) {
    auto const aligned = [](void const* data, std::int64_t leading) {
      return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && leading % 8 == 0;
    };
    return aligned(args.d, args.d_leading) && ((!kIsMatrix<Operands> || aligned(args.epilogue[Operands::kIndex].data,
                                                                                args.epilogue[Operands::kIndex].leading)) &&
                                               ... && true);
  }

  // Byte offset of 16 bytes, eight filters, of a pixel.
  CUTLASS_DEVICE static int offset_of(int line, int chunk) { return line * 128 + (chunk ^ line % 8) * 16; }
  // The same for pixels shorter than a line. Dropped positions go past the last pixel.
  CUTLASS_DEVICE static int phases_offset_of(Params const& p, bool is_pixel, int line, int chunk) {
    int const offset = line * p.line_bytes + chunk * 16;
    return is_pixel && chunk * 8 < p.filters ? offset ^ (offset >> 3 & p.swizzle)
                                             : round_up(p.rows * p.columns * p.line_bytes, 128);
  }

  // The two filters of a thread, the same for all positions.
  template <class Operand>
  CUTLASS_DEVICE static float vector_value(Params const& p, int filter, int filters) {
    gemm::EpilogueValue const& operand = p.operands[Operand::kIndex];
    if constexpr (Operand::kKind == OperandKind::scalar) {
      return operand.value;
    } else if constexpr (Operand::kKind == OperandKind::row) {
      auto const* const data = static_cast<gemm::Element<Operand::kType> const*>(operand.data);
      bool const is_one = Operand::kMayBeOne && operand.leading == 0;
      return data && filter < filters ? static_cast<float>(data[is_one ? 0 : filter]) : 0.f;
    } else {
      static_assert(kIsMatrix<Operand>);
      return 0;
    }
  }

  // `area`: kLines of 128 bytes that are free to overwrite. `arrived`: a barrier of this warpgroup, and its parity.
  template <class Fragment, class Synchronize>
  CUTLASS_DEVICE static void store(Params const& p, DirectConvWorkTile const& work, Fragment const& accum,
                                   std::uint8_t* area, std::uint64_t* arrived, std::uint32_t parity, int thread,
                                   Synchronize const& synchronize) {
    int const lane = thread % 32, warp = thread / 32 % 4;
    if (kHasMatrix && p.has_matrix) {
      if (thread == 0) {
        cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(
            arrived, static_cast<std::uint32_t>(p.rows * p.columns * 128));
        cute::SM90_TMA_LOAD_4D::copy(&p.matrix, arrived, static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                     area, work.filter, work.column, work.row, work.image);
      }
    }
    // For rows 8 r + lane / 4 of the warp's sixteen.
    float vectors[2][sizeof...(Operands) > 0 ? sizeof...(Operands) : 1];
    CUTLASS_PRAGMA_UNROLL
    for (int r = 0; r < 2; ++r) {
      int const filter = work.filter + warp * 16 + 8 * r + lane / 4;
      ((vectors[r][Operands::kIndex] = vector_value<Operands>(p, filter, p.filters)), ...);
    }
    if (kHasMatrix && p.has_matrix) cutlass::arch::ClusterBarrier::wait(arrived, parity);
    // Lanes address positions: eight for each 8x8 matrix, two of which are adjacent.
    int const chunk = warp * 2 + lane / 8 % 2;
    int row = 0, column = lane / 16 * 8 + lane % 8;          // the pitch is at least 16
    bool const stores = !residues || warp * 16 < p.filters;  // some warps may have no filters
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < positions / 8; j += 2) {
      if (!stores) break;
      // Positions outside the output tile go to a line of their own.
      bool const is_pixel = row < p.rows && column < p.columns;
      int const line = row * p.columns + column;
      auto* const at =
          reinterpret_cast<cute::uint128_t*>(area + (residues ? phases_offset_of(p, is_pixel, line, chunk)
                                                              : offset_of(is_pixel ? line : p.rows * p.columns, chunk)));
      std::uint32_t words[4] = {};
      if constexpr (kHasMatrix) {
        if (p.has_matrix) cute::SM75_U16x8_LDSM_T::copy(*at, words[0], words[1], words[2], words[3]);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 4; ++i) {
        int const r = i % 2, first = 4 * (j + i / 2) + 2 * r;
        cutlass::Array<float, 2> values;
        values[0] = accum(first);
        values[1] = accum(first + 1);
        auto const matrix =
            cutlass::NumericArrayConverter<float, E, 2>{}(gemm::epilogue::bit_cast<cutlass::Array<E, 2>>(words[i]));
        auto const input = [&](auto operand) {
          using Operand = decltype(operand);
          if constexpr (kIsMatrix<Operand>) {
            return matrix;
          } else {
            cutlass::Array<float, 2> value;
            value.fill(vectors[r][Operand::kIndex]);
            return value;
          }
        };
        typename Apply::template StoreFragments<2> stores;
        std::tuple const inputs{input(Operands{})...};
        auto const result = Apply::run(values, inputs, stores);
        memcpy(&words[i], &result, sizeof(words[i]));
      }
      __syncwarp();
      cute::SM90_U16x8_STSM_T::copy(words[0], words[1], words[2], words[3], *at);
      column += 16;
      if (column >= p.pitch) column -= p.pitch, ++row;
    }
    cutlass::arch::fence_view_async_shared();
    synchronize();
    if (thread == 0) {
      if constexpr (residues) {
        cute::SM90_TMA_STORE_5D::copy(&p.result, area, 0, 0, work.column, work.row, work.image);
      } else {
        cute::SM90_TMA_STORE_4D::copy(&p.result, area, work.filter, work.column, work.row, work.image);
      }
      cute::tma_store_arrive();
    }
  }

  // Called by the thread that stored.
  CUTLASS_DEVICE static void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
};

}  // namespace cutwheel::conv2d
