// A generated epilogue of vectors along a row: for families whose threads hold the sums of neighbouring columns, and access
// global memory in pieces of 16 bytes. N is a multiple of the vector, and everything lies on 16 bytes.
#pragma once

#include <algorithm>

#include "epilogue/apply.cuh"

namespace cutwheel::gemm::epilogue {

// In pieces of 16 bytes.
template <class X, int N>
CUTLASS_DEVICE void load_vector(cutlass::Array<X, N>& values, X const* from) {
  constexpr int kEach = std::min(N, 16 / static_cast<int>(sizeof(X)));
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; i += kEach) {
    using Piece = cutlass::AlignedArray<X, kEach>;
    *reinterpret_cast<Piece*>(values.data() + i) = *reinterpret_cast<Piece const*>(from + i);
  }
}

template <class X, int N>
CUTLASS_DEVICE void save_vector(X* to, cutlass::Array<X, N> const& values) {
  constexpr int kEach = std::min(N, 16 / static_cast<int>(sizeof(X)));
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < N; i += kEach) {
    using Piece = cutlass::AlignedArray<X, kEach>;
    *reinterpret_cast<Piece*>(to + i) = *reinterpret_cast<Piece const*>(values.data() + i);
  }
}

// Part of a problem: the first row and column, and where the problem, or the group, ends.
struct VectorRegion {
  int row, column;
  int end_row, end_column;
  std::int64_t batch;  // which problem of a batch, or group
};

template <class Epilogue, DType d, int vector>
struct RowVectors {
  using ElementD = ElementPerColumn<d, Epilogue::kWidth>;  // for one accumulator column
  using E = Element<d>;                                    // of the stores besides D, too

  template <class Operand>
  using Raw = cutlass::Array<ElementOfOperand<Operand>, vector>;

  // Address in a matrix, a store or D of the element that belongs to an accumulator column.
  template <class X, class User>
  CUTLASS_DEVICE static X* element_at(EpilogueValue const& value, std::int64_t batch, std::int64_t row_offset, int column) {
    return reinterpret_cast<X*>(static_cast<User*>(value.data) + batch * value.batch_stride + row_offset) + column;
  }

  // Row operands are loaded once for all rows of D, the others for each row. Scalars stay in the kernel's parameters.
  template <class Operand>
  CUTLASS_DEVICE static auto along_row(EpilogueValue const* operands, VectorRegion const& region, int column) {
    Raw<Operand> values;
    values.clear();
    if constexpr (Operand::kKind == OperandKind::row) {
      EpilogueValue const& value = operands[Operand::kIndex];
      auto const* const data = static_cast<Element<Operand::kType> const*>(value.data) + region.batch * value.batch_stride;
      if (value.data && column < region.end_column) {
        if (Operand::kMayBeOne && value.leading == 0) {
          values.fill(*data);
        } else {
          load_vector(values, data + column);
        }
      }
    }
    return values;
  }
  template <class Operand>
  CUTLASS_DEVICE static auto of_row(EpilogueValue const* operands, VectorRegion const& region, int row, int column,
                                    Raw<Operand> const& along_row) {
    EpilogueValue const& value = operands[Operand::kIndex];
    if constexpr (Operand::kKind == OperandKind::row) {
      return along_row;
    } else if constexpr (Operand::kKind == OperandKind::scalar) {
      return value.value;
    } else {
      Raw<Operand> values;
      values.clear();
      if (value.data && row < region.end_row && column < region.end_column) {
        using User = Element<Operand::kType>;
        if constexpr (Operand::kKind == OperandKind::col) {
          bool const is_one = Operand::kMayBeOne && value.leading == 0;
          values.fill(static_cast<User const*>(value.data)[region.batch * value.batch_stride + (is_one ? 0 : row)]);
        } else {
          load_vector(values,
                      element_at<ElementOfOperand<Operand> const, User>(value, region.batch, row * value.leading, column));
        }
      }
      return values;
    }
  }
  template <class Operand>
  CUTLASS_DEVICE static auto widened(float value) {
    cutlass::Array<float, vector> values;
    values.fill(value);
    return values;
  }
  template <class Operand>
  CUTLASS_DEVICE static auto widened(Raw<Operand> const& values) {
    return to_float<Operand>(values);
  }

  template <class Operand>
  CUTLASS_DEVICE static void save_store(EpilogueValue const* operands, VectorRegion const& region, int row, int column,
                                        cutlass::Array<float, vector> const& values) {
    EpilogueValue const& value = operands[Operand::kIndex];
    save_vector(element_at<E, E>(value, region.batch, row * value.leading, column), round_to<E>(values));
  }
};

}  // namespace cutwheel::gemm::epilogue
