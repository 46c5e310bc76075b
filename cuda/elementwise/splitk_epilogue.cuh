// D = epilogue(sum over splits of partial): the second half of split-K where the epilogue is more than alpha, beta and C.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>

#include "elementwise/partial_sums.cuh"
#include "epilogue/row_vectors.cuh"

namespace cutwheel::gemm {

// In GemmArgs: a is the partial sums, [splits, M, N] float32, a.batch_stride from split to split, a.leading from row to
// row; the batch is 1. N is a multiple of four columns, which a thread takes at once.
template <Arch arch_, DType d_, template <DType> class Epilogue_, class Operands = typename Epilogue_<d_>::Operands,
          class Stores = typename Epilogue_<d_>::Stores>
struct SplitkEpilogue;

template <Arch arch_, DType d_, template <DType> class Epilogue_, class... Operands, class... Stores>
struct SplitkEpilogue<arch_, d_, Epilogue_, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>>
    : PartialSums {
  static constexpr int kSharedStorageBytes = 0;
  using Apply = epilogue::Apply<Epilogue_<d_>, d_, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>>;
  using Vectors = epilogue::RowVectors<Epilogue_<d_>, d_, kVector>;
  using ElementD = typename Vectors::ElementD;

  struct Params {
    EpilogueValue operands[kMaxEpilogueOperands];
    EpilogueValue result;
    float const* partial;
    std::int64_t split_stride, leading;
    int m, n, splits;
  };

  CUTLASS_DEVICE static void device(Params const& p) {
    device(p, std::index_sequence_for<Operands...>{}, std::index_sequence_for<Stores...>{});
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    Params params{};
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), params.operands);
    params.result = {args.d, args.d_leading, 0, 0};
    params.partial = static_cast<float const*>(args.a.data);
    params.split_stride = args.a.batch_stride;
    params.leading = args.a.leading;
    params.m = args.m;
    params.n = args.n;
    params.splits = args.splits;
    return launch_kernel(kernel, shape(args, /*batch=*/1, arch_), params, args.stream);
  }

 private:
  template <std::size_t... I, std::size_t... S>
  CUTLASS_DEVICE static void device(Params const& p, std::index_sequence<I...>, std::index_sequence<S...>) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    epilogue::VectorRegion const whole{0, 0, p.m, p.n, 0};
    auto const store = [&](std::int64_t from, int column, cutlass::Array<float, kVector> const& sum) {
      int const row = static_cast<int>(from);
      std::tuple const along_row{Vectors::template along_row<Operands>(p.operands, whole, column)...};
      std::tuple const inputs{Vectors::template widened<Operands>(
          Vectors::template of_row<Operands>(p.operands, whole, row, column, std::get<I>(along_row)))...};
      typename Apply::template StoreFragments<kVector> stores;
      auto const d_fragment = Apply::run(sum, inputs, stores);
      auto* const to =
          Vectors::template element_at<ElementD, typename Vectors::E>(p.result, 0, row * p.result.leading, column);
      epilogue::save_vector(to, d_fragment);
      (Vectors::template save_store<Stores>(p.operands, whole, row, column, stores[S]), ...);
    };
    for_each_sum<cutlass::Array<float, kVector>>(p.partial, p.leading, p.split_stride, p.m, p.n, p.splits, store);
  }
};

}  // namespace cutwheel::gemm
