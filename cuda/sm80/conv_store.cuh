// The epilogue of dgrad: rows of a residue class's GEMM lie apart in D, which CUTLASS's nodes cannot express.
#pragma once

#include "sm80/conv_counter.cuh"
#include "sm80/multistage.cuh"

namespace cutwheel::conv2d {

// Offsets of rows of D, in elements, by the digits of the GEMM's rows: image, row and column of a residue class.
struct Sm80PlacedRows {
  Sm80Counter places;
  std::int64_t first = 0, image_stride = 0, row_stride = 0, column_stride = 0;

  CUTLASS_DEVICE std::int64_t at(int row) const {
    Sm80Digits const place = places.at(row);
    return first + place.high * image_stride + place.middle * row_stride + place.low * column_stride;
  }
};

template <class Epilogue, DType d, class ThreadMap, class Operands = typename Epilogue::Operands>
struct Sm80PlacedStore;

template <class Epilogue, DType d, class ThreadMap, class... Operands>
struct Sm80PlacedStore<Epilogue, d, ThreadMap, gemm::epilogue::OperandList<Operands...>> {
  static_assert(((Operands::kKind == OperandKind::scalar) && ...) && Epilogue::Stores::kCount == 0 &&
                    Epilogue::kWidth == Width::same,
                "the gradient of the input has scalars in its epilogue only");
  using Apply = gemm::epilogue::Apply<Epilogue, d, gemm::epilogue::OperandList<Operands...>, typename Epilogue::Stores>;
  using ElementD = typename Apply::ElementD;

  struct SharedStorage {};
  struct Params {
    ElementD* data;
    Sm80PlacedRows rows;
    gemm::EpilogueValue const* operands;
  };
  using Arguments = Params;

  CUTLASS_DEVICE Sm80PlacedStore(Params const& params, SharedStorage const&) : params(params) {}
  Params params;

  template <class Coordinates>
  struct Callbacks : gemm::visitors::EmptyCallbacks {
    CUTLASS_DEVICE Callbacks(Params const& params, Coordinates const& coordinates, int rows, int columns)
        : params(params), coordinates(coordinates), rows(rows), columns(columns) {}
    Params params;
    Coordinates coordinates;  // of [vector, column, row, iteration]
    int rows, columns;

    template <class Accumulator, int N>
    CUTLASS_DEVICE void visit(int iteration, int row, int column, int, cutlass::Array<Accumulator, N> const& accum) {
      auto const at = coordinates(0, column, row, iteration);
      int const m = cute::get<0>(at), n = cute::get<1>(at);
      if (m >= rows || n >= columns) return;
      typename Apply::template StoreFragments<N> none;
      auto const result = Apply::run(accum, std::tuple{filled<N>(params.operands[Operands::kIndex].value)...}, none);
      cutlass::arch::global_store<decltype(result), sizeof(result)>(result, params.data + params.rows.at(m) + n, true);
    }

    template <int N>
    CUTLASS_DEVICE static cutlass::Array<float, N> filled(float value) {
      cutlass::Array<float, N> fragment;
      fragment.fill(value);
      return fragment;
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape problem) {
    auto const coordinates =
        cute::group_modes<3, 6>(ThreadMap::partition(cute::make_identity_tensor(problem), thread, tile));
    return Callbacks<std::decay_t<decltype(coordinates)>>(params, coordinates, cute::get<0>(problem),
                                                          cute::get<1>(problem));
  }
};

}  // namespace cutwheel::conv2d
