// A generated epilogue on Ampere and Ada: each warp turns its sums, 32 rows at a time, into whole rows in shared memory of
// its own, and finishes these in vectors, so that no warp waits for another and all accesses are of whole lines.
#pragma once

#include <algorithm>
#include <tuple>

#include "epilogue/row_vectors.cuh"

namespace cutwheel::gemm {

// A warp's part of a problem.
using Sm80WarpPart = epilogue::VectorRegion;

// Rows of D follow each other with its leading dimension.
struct Sm80FollowingRows {
  CUTLASS_DEVICE std::int64_t at(int row, std::int64_t leading) const { return row * leading; }
};

template <class Epilogue, DType d, class Warp, class Operands = typename Epilogue::Operands,
          class Stores = typename Epilogue::Stores>
struct Sm80Epilogue;

template <class Epilogue, DType d, class Warp, class... Operands, class... Stores>
struct Sm80Epilogue<Epilogue, d, Warp, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>> {
  using Apply = epilogue::Apply<Epilogue, d, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>>;
  using ElementD = typename Apply::ElementD;  // for one accumulator column
  using E = Element<d>;                       // of the stores besides D, too

  // Accumulator columns that a thread takes at once, and the vectors of a row of the warp's. N is a multiple of 16 bytes of
  // D's elements, however many columns these stand for.
  static constexpr int kVector = std::clamp(16 / static_cast<int>(std::max(sizeof(ElementD), sizeof(E))), 4, 8);
  static constexpr int kVectors = Warp::kN / kVector;
  static constexpr int kRowsAtOnce = 32 / kVectors;
  static_assert(32 % kVectors == 0 && kRowsAtOnce <= 16);
  // Rows that go through shared memory at once: of two mma.sync, one below the other.
  static constexpr int kMmasAtOnce = Warp::kM % 32 == 0 ? 2 : 1, kRows = 16 * kMmasAtOnce;
  // The second four columns of each eight lie apart where a thread takes eight: lanes read 16 bytes beside each other, and
  // write eight bytes of four rows to different banks.
  static constexpr int kPitch = Warp::kN * 4 + 32, kSecondHalf = Warp::kN * 2 + 16;
  static constexpr int kBytesPerWarp = kRows * kPitch;
  static constexpr int kPasses = kRows / kRowsAtOnce;

  using Vectors = epilogue::RowVectors<Epilogue, d, kVector>;

  // `shared`: kBytesPerWarp of the warp's own; `d_rows`: where rows of D lie. Overwrites the sums.
  template <class Sums, class Rows = Sm80FollowingRows>
  CUTLASS_DEVICE static void store(EpilogueValue const* operands, EpilogueValue const& result, char* shared, Sums& sums,
                                   Sm80WarpPart const& part, Rows const& d_rows = {}) {
    store(operands, result, shared, sums, part, d_rows, std::index_sequence_for<Operands...>{},
          std::index_sequence_for<Stores...>{});
  }

 private:
  template <class Accumulator, int kMmaM, int kMmaN, class Rows, std::size_t... I, std::size_t... S>
  CUTLASS_DEVICE static void store(EpilogueValue const* operands, EpilogueValue const& result, char* shared,
                                   Accumulator (&sums)[kMmaM][kMmaN][4], Sm80WarpPart const& part, Rows const& d_rows,
                                   std::index_sequence<I...>, std::index_sequence<S...>) {
    static_assert(kMmaM * 16 == Warp::kM && kMmaN * 8 == Warp::kN && sizeof(Accumulator) == 4);
    int const lane = threadIdx.x % 32, vector = lane % kVectors, column = part.column + vector * kVector;
    std::tuple const row_values{Vectors::template along_row<Operands>(operands, part, column)...};
    int first = part.row;
    // Not unrolled: the sums move up, so that there is one copy of an epilogue that may be long.
#pragma unroll 1
    for (int i = 0; i < kMmaM && first < part.end_row; i += kMmasAtOnce, first += kRows) {
      // Loads are under way while sums go through shared memory.
      std::tuple<decltype(Vectors::template of_row<Operands>(operands, part, 0, 0, std::get<I>(row_values)))...>
          values[kPasses];
      CUTLASS_PRAGMA_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) {
        int const row = first + pass * kRowsAtOnce + lane / kVectors;
        ((std::get<I>(values[pass]) =
              Vectors::template of_row<Operands>(operands, part, row, column, std::get<I>(row_values))),
         ...);
      }

      __syncwarp();
      put(sums, shared, lane);
      __syncwarp();
      CUTLASS_PRAGMA_UNROLL
      for (int pass = 0; pass < kPasses; ++pass) {
        int const in_part = pass * kRowsAtOnce + lane / kVectors, row = first + in_part;
        if (row >= part.end_row || column >= part.end_column) continue;
        cutlass::Array<Accumulator, kVector> accum;
        get(accum, shared + in_part * kPitch, vector);
        typename Apply::template StoreFragments<kVector> stores;
        std::tuple const inputs{Vectors::template widened<Operands>(std::get<I>(values[pass]))...};
        auto const d_fragment = Apply::run(accum, inputs, stores);
        epilogue::save_vector(
            Vectors::template element_at<ElementD, E>(result, part.batch, d_rows.at(row, result.leading), column),
            d_fragment);
        (Vectors::template save_store<Stores>(operands, part, row, column, stores[S]), ...);
      }
      CUTLASS_PRAGMA_UNROLL
      for (int next = kMmasAtOnce; next < kMmaM; ++next) {
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kMmaN; ++j) {
          CUTLASS_PRAGMA_UNROLL
          for (int v = 0; v < 4; ++v) sums[next - kMmasAtOnce][j][v] = sums[next][j][v];
        }
      }
    }
  }

  // Writes the first kRows rows of the sums to shared memory.
  template <class Accumulator, int kMmaM, int kMmaN>
  CUTLASS_DEVICE static void put(Accumulator const (&sums)[kMmaM][kMmaN][4], char* shared, int lane) {
    int const pair = lane % 4;
    char* const to = shared + lane / 4 * kPitch + (kVector == 8 ? pair / 2 * kSecondHalf + pair % 2 * 8 : pair * 8);
    CUTLASS_PRAGMA_UNROLL
    for (int m = 0; m < kMmasAtOnce; ++m) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kMmaN; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < 2; ++r) {
          cutlass::AlignedArray<Accumulator, 2> values;
          values[0] = sums[m][j][2 * r];
          values[1] = sums[m][j][2 * r + 1];
          *reinterpret_cast<decltype(values)*>(to + (16 * m + 8 * r) * kPitch + j * (kVector == 8 ? 16 : 32)) = values;
        }
      }
    }
  }

  // Reads a vector of a row from shared memory.
  template <class Accumulator>
  CUTLASS_DEVICE static void get(cutlass::Array<Accumulator, kVector>& accum, char const* row, int vector) {
    using Four = cutlass::AlignedArray<Accumulator, 4>;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kVector; i += 4) {
      *reinterpret_cast<Four*>(accum.data() + i) = *reinterpret_cast<Four const*>(row + vector * 16 + i / 4 * kSecondHalf);
    }
  }
};

}  // namespace cutwheel::gemm
