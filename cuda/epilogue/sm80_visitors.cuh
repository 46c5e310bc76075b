// A generated epilogue as a visitor of CUTLASS's 2.x kernels: its operands and stores are CUTLASS's own nodes, and one node
// above them computes the whole expression and hands it to the store of D.
#pragma once

#include <cutlass/epilogue/threadblock/fusion/visitors.hpp>

#include "epilogue/apply.cuh"

namespace cutwheel::gemm {

namespace visitors = cutlass::epilogue::threadblock;

using Sm80MatrixStride = cute::Stride<std::int64_t, cute::_1, std::int64_t>;
using Sm80RowStride = cute::Stride<cute::_0, cute::_1, std::int64_t>;
using Sm80ColStride = cute::Stride<cute::_1, cute::_0, std::int64_t>;

struct Sm80Scalar : visitors::VisitorImpl2x<> {
  struct SharedStorage {};
  struct Arguments {
    float value;
  };
  using Params = Arguments;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& arguments, void*) {
    return arguments;
  }
  template <class ProblemShape>
  static std::size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }

  CUTLASS_HOST_DEVICE Sm80Scalar() {}
  CUTLASS_HOST_DEVICE Sm80Scalar(Params const& params, SharedStorage const&) : value(params.value) {}
  float value;

  struct Callbacks : visitors::EmptyCallbacks {
    CUTLASS_DEVICE explicit Callbacks(float value) : value(value) {}
    float value;
    template <class Accumulator, int N>
    CUTLASS_DEVICE cutlass::Array<float, N> visit(int, int, int, int, cutlass::Array<Accumulator, N> const&) {
      cutlass::Array<float, N> fragment;
      fragment.fill(value);
      return fragment;
    }
  };
  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord, int, ProblemShape) {
    return Callbacks(value);
  }

  CUTLASS_HOST_DEVICE static Arguments arguments(EpilogueValue const& operand) { return {operand.value}; }
};

template <class ThreadMap, class Element>
struct Sm80Row : visitors::VisitorRowBroadcast<ThreadMap, Element, Sm80RowStride> {
  using Base = visitors::VisitorRowBroadcast<ThreadMap, Element, Sm80RowStride>;
  using Base::Base;
  CUTLASS_HOST_DEVICE static typename Base::Arguments arguments(EpilogueValue const& operand) {
    return {static_cast<Element const*>(operand.data), Element(0), {{}, {}, operand.batch_stride}};
  }

  // The interface that Sm80OneOrMany expects.
  CUTLASS_DEVICE static Element const* values(typename Base::Params const& params) { return params.ptr_row; }
  CUTLASS_DEVICE static bool is_one(typename Base::Params const& params) { return cute::get<2>(params.dRow) != 0; }
  template <class Callbacks>
  CUTLASS_DEVICE static void fill(Callbacks& callbacks, Element one) {
    auto row = cute::recast<Element>(callbacks.tC_rRow);
    cute::fill(row, one);
  }
};

template <class ThreadMap, class Element>
struct Sm80Col : visitors::VisitorColBroadcast<ThreadMap, Element, Sm80ColStride> {
  using Base = visitors::VisitorColBroadcast<ThreadMap, Element, Sm80ColStride>;
  using Base::Base;
  CUTLASS_HOST_DEVICE static typename Base::Arguments arguments(EpilogueValue const& operand) {
    return {static_cast<Element const*>(operand.data), Element(0), {{}, {}, operand.batch_stride}};
  }

  CUTLASS_DEVICE static Element const* values(typename Base::Params const& params) { return params.ptr_col; }
  CUTLASS_DEVICE static bool is_one(typename Base::Params const& params) { return cute::get<2>(params.dCol) != 0; }
  template <class Callbacks>
  CUTLASS_DEVICE static void fill(Callbacks& callbacks, Element one) {
    cute::fill(callbacks.tC_rCol, one);
  }
};

// A row or column that may be one value. There is no batch here: a batch stride of 1 marks it.
template <class Base>
struct Sm80OneOrMany : Base {
  using Base::Base;

  template <class Impl, class Value>
  struct Callbacks : Impl {
    CUTLASS_DEVICE Callbacks(Impl&& impl, Value const* one) : Impl(cute::forward<Impl>(impl)), one(one) {}
    Value const* one;  // null: there are many

    CUTLASS_DEVICE void begin_epilogue() {
      if (one == nullptr) {
        Impl::begin_epilogue();
      } else {
        Base::fill(*this, *one);
      }
    }
  };

  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape problem) {
    auto impl = Base::get_callbacks(tile, thread, problem);
    auto const* const values = Base::values(*this->params_ptr);
    using Value = std::decay_t<decltype(*values)>;
    return Callbacks<decltype(impl), Value>(cute::move(impl), Base::is_one(*this->params_ptr) ? values : nullptr);
  }

  CUTLASS_HOST_DEVICE static auto arguments(EpilogueValue const& operand) {
    EpilogueValue marked = operand;
    marked.batch_stride = operand.data && operand.leading == 0 ? 1 : 0;
    return Base::arguments(marked);
  }
};

// CUTLASS's node loads from a null pointer, too: an empty problem keeps it from that, and it yields zeros.
template <class ThreadMap, class Element, int kColumns>
struct Sm80Matrix : visitors::VisitorAuxLoad<ThreadMap, Element, Sm80MatrixStride> {
  using Base = visitors::VisitorAuxLoad<ThreadMap, Element, Sm80MatrixStride>;
  using Base::Base;
  template <class ProblemShape>
  CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape problem) {
    if (this->params_ptr->ptr_aux == nullptr) problem = ProblemShape{};
    return Base::get_callbacks(tile, thread, problem);
  }
  CUTLASS_HOST_DEVICE static typename Base::Arguments arguments(EpilogueValue const& operand) {
    return {
        static_cast<Element*>(operand.data), Element(0), {operand.leading / kColumns, {}, operand.batch_stride / kColumns}};
  }
};

template <class ThreadMap, class Element>
struct Sm80Store
    : visitors::VisitorAuxStore<ThreadMap, Element, cutlass::FloatRoundStyle::round_to_nearest, Sm80MatrixStride> {
  using Base = visitors::VisitorAuxStore<ThreadMap, Element, cutlass::FloatRoundStyle::round_to_nearest, Sm80MatrixStride>;
  using Base::Base;
  CUTLASS_HOST_DEVICE static typename Base::Arguments arguments(EpilogueValue const& operand) {
    return {static_cast<Element*>(operand.data), {operand.leading, {}, operand.batch_stride}};
  }
};

template <class Epilogue, DType d, class ThreadMap, class Operands, class Stores>
struct Sm80Visitor;

template <class Epilogue, DType d, class ThreadMap, class... Operands, class... Stores>
struct Sm80Visitor<Epilogue, d, ThreadMap, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>> {
  using Apply = epilogue::Apply<Epilogue, d, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>>;
  using ElementD = typename Apply::ElementD;

  template <class Operand>
  static constexpr auto node_of() {
    using E = epilogue::ElementOfOperand<Operand>;
    if constexpr (Operand::kKind == OperandKind::scalar) {
      return epilogue::TypeIdentity<Sm80Scalar>{};
    } else if constexpr (Operand::kKind == OperandKind::row || Operand::kKind == OperandKind::col) {
      using Vector = std::conditional_t<Operand::kKind == OperandKind::row, Sm80Row<ThreadMap, E>, Sm80Col<ThreadMap, E>>;
      return epilogue::TypeIdentity<std::conditional_t<Operand::kMayBeOne, Sm80OneOrMany<Vector>, Vector>>{};
    } else if constexpr (Operand::kKind == OperandKind::store) {
      return epilogue::TypeIdentity<Sm80Store<ThreadMap, E>>{};
    } else {
      return epilogue::TypeIdentity<Sm80Matrix<ThreadMap, E, epilogue::kColumnsOf<Operand>>>{};
    }
  }
  template <class Operand>
  using Node = typename decltype(node_of<Operand>())::type;

  using Nodes = visitors::VisitorImpl2x<Node<Operands>..., Node<Stores>..., Sm80Store<ThreadMap, ElementD>>;

  struct Callbacks : Nodes {
    using Nodes::Nodes;

    template <class Impl>
    struct TileCallbacks : Impl {
      CUTLASS_DEVICE explicit TileCallbacks(Impl&& impl) : Impl(cute::forward<Impl>(impl)) {}
      using Impl::callbacks_tuple;

      template <class Accumulator, int N>
      CUTLASS_DEVICE auto visit(int iteration, int row, int column, int fragment,
                                cutlass::Array<Accumulator, N> const& accum) {
        return visit(iteration, row, column, fragment, accum, std::index_sequence_for<Operands...>{},
                     std::index_sequence_for<Stores...>{});
      }

     private:
      template <class Accumulator, int N, std::size_t... I, std::size_t... S>
      CUTLASS_DEVICE auto visit(int iteration, int row, int column, int fragment,
                                cutlass::Array<Accumulator, N> const& accum, std::index_sequence<I...>,
                                std::index_sequence<S...>) {
        std::tuple const inputs{
            epilogue::to_float<Operands>(cute::get<I>(callbacks_tuple).visit(iteration, row, column, fragment, accum))...};
        typename Apply::template StoreFragments<N> stores;
        auto const result = Apply::run(accum, inputs, stores);
        (cute::get<sizeof...(I) + S>(callbacks_tuple).visit(iteration, row, column, fragment, accum, stores[S]), ...);
        return cute::get<sizeof...(I) + sizeof...(S)>(callbacks_tuple)
            .visit(iteration, row, column, fragment, accum, result);
      }
    };

    template <class ProblemShape>
    CUTLASS_DEVICE auto get_callbacks(cutlass::gemm::GemmCoord tile, int thread, ProblemShape problem) {
      auto impl = Nodes::get_callbacks(tile, thread, problem);
      return TileCallbacks<decltype(impl)>(cute::move(impl));
    }
  };

  // Columns of D in its elements here, which are parts of them, or two.
  CUTLASS_HOST_DEVICE static std::int64_t elements(std::int64_t columns) {
    return Apply::kWidth == Width::half ? columns * 2 : Apply::kWidth == Width::twice ? columns / 2 : columns;
  }

  // Arguments, or the Params that a kernel makes itself: here they have the same members.
  template <class Result = typename Callbacks::Arguments>
  CUTLASS_HOST_DEVICE static Result arguments(EpilogueValue const* operands, void* d_data, std::int64_t d_leading,
                                              std::int64_t d_batch_stride) {
    EpilogueValue output;
    output.data = d_data;
    output.leading = elements(d_leading);
    output.batch_stride = elements(d_batch_stride);
    return {Node<Operands>::arguments(operands[Operands::kIndex])..., Node<Stores>::arguments(operands[Stores::kIndex])...,
            Sm80Store<ThreadMap, ElementD>::arguments(output)};
  }
};

}  // namespace cutwheel::gemm
