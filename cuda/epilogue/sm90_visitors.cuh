// A generated epilogue as a visitor of CUTLASS's Hopper collectives: its operands and stores are CUTLASS's own nodes, and
// one node above them computes the whole expression, so that a value that is used twice is computed and loaded once.
#pragma once

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>

#include "epilogue/apply.cuh"

namespace cutwheel::gemm {

namespace fusion = cutlass::epilogue::fusion;

// The value of a scalar.
struct Sm90Scalar : fusion::Sm90VisitorImpl<> {
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
  static bool can_implement(ProblemShape const&, Arguments const&) {
    return true;
  }
  template <class ProblemShape>
  static std::size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE Sm90Scalar() {}
  CUTLASS_HOST_DEVICE Sm90Scalar(Params const& params, SharedStorage const&) : value(params.value) {}
  float value;

  struct ConsumerStoreCallbacks : fusion::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE explicit ConsumerStoreCallbacks(float value) : value(value) {}
    float value;
    template <class Accumulator, int N>
    CUTLASS_DEVICE cutlass::Array<float, N> visit(cutlass::Array<Accumulator, N> const&, int, int, int) {
      cutlass::Array<float, N> fragment;
      fragment.fill(value);
      return fragment;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::ConsumerStoreArgs<Args...> const&) {
    return ConsumerStoreCallbacks(value);
  }

  static Arguments arguments(EpilogueValue const& operand, void*) { return {operand.value}; }
};

// The matrix that goes through the collective's C tile; zeros where there is none.
template <class Element>
struct Sm90Source : fusion::Sm90VisitorImpl<> {
  struct SharedStorage {};
  struct Arguments {
    bool is_there;
  };
  using Params = Arguments;

  template <class ProblemShape>
  static constexpr Params to_underlying_arguments(ProblemShape const&, Arguments const& arguments, void*) {
    return arguments;
  }
  template <class ProblemShape>
  static bool can_implement(ProblemShape const&, Arguments const&) {
    return true;
  }
  template <class ProblemShape>
  static std::size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE Sm90Source() {}
  CUTLASS_HOST_DEVICE Sm90Source(Params const& params, SharedStorage const&) : is_there(params.is_there) {}
  bool is_there;

  CUTLASS_DEVICE bool is_producer_load_needed() const { return is_there; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return is_there; }

  template <class SourceTensor>
  struct ConsumerStoreCallbacks : fusion::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE ConsumerStoreCallbacks(SourceTensor const& source, bool is_there) : source(source), is_there(is_there) {}
    SourceTensor const& source;
    bool is_there;

    template <class Accumulator, int N>
    CUTLASS_DEVICE auto visit(cutlass::Array<Accumulator, N> const&, int epi_v, int, int) {
      using Fragment = cutlass::Array<typename SourceTensor::value_type, N>;
      Fragment fragment = cute::recast<Fragment>(source)(epi_v);
      if (!is_there) fragment.clear();
      return fragment;
    }
  };

  template <bool ReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::ConsumerStoreArgs<Args...> const& args) {
    return ConsumerStoreCallbacks<cute::remove_cvref_t<decltype(args.tCrC)>>(args.tCrC, is_there);
  }

  static Arguments arguments(EpilogueValue const& operand, void*) { return {operand.data != nullptr}; }
};

// A dynamic stride takes the leading dimension, whichever mode it is in.
template <class Stride>
Stride sm90_stride(std::int64_t leading, std::int64_t batch) {
  Stride result{};
  if constexpr (cute::is_static<std::decay_t<decltype(cute::get<0>(result))>>::value) {
    cute::get<1>(result) = leading;
  } else {
    cute::get<0>(result) = leading;
  }
  cute::get<2>(result) = batch;
  return result;
}

// Rows and columns that may be one value have a stride of 0 or 1, chosen at run time.
template <bool may_be_one, class Static>
using Sm90VectorStride = std::conditional_t<may_be_one, bool, Static>;

// CUTLASS's nodes read a single value in their constructor, to skip zeros: before the kernel has waited for the one that
// writes it (programmatic dependent launch). They do not where the batch stride is not 0; there is no batch here.
template <bool may_be_one>
constexpr std::int64_t sm90_batch_stride(EpilogueValue const& operand) {
  return may_be_one ? 1 : operand.batch_stride;
}

template <class TileShape, class Element, bool may_be_one>
struct Sm90Row : fusion::Sm90RowBroadcast<0, TileShape, Element, float,
                                          cute::Stride<cute::_0, Sm90VectorStride<may_be_one, cute::_1>, std::int64_t>> {
  using Stride = Sm90VectorStride<may_be_one, cute::_1>;
  using Base = fusion::Sm90RowBroadcast<0, TileShape, Element, float, cute::Stride<cute::_0, Stride, std::int64_t>>;
  using Base::Base;
  static typename Base::Arguments arguments(EpilogueValue const& operand, void*) {
    Stride stride{};
    if constexpr (may_be_one) stride = operand.leading != 0;
    return {static_cast<Element const*>(operand.data), Element(0), {{}, stride, sm90_batch_stride<may_be_one>(operand)}};
  }
};

template <class TileShape, class Element, bool may_be_one>
struct Sm90Col : fusion::Sm90ColBroadcast<0, TileShape, Element, float,
                                          cute::Stride<Sm90VectorStride<may_be_one, cute::_1>, cute::_0, std::int64_t>> {
  using Stride = Sm90VectorStride<may_be_one, cute::_1>;
  using Base = fusion::Sm90ColBroadcast<0, TileShape, Element, float, cute::Stride<Stride, cute::_0, std::int64_t>>;
  using Base::Base;
  static typename Base::Arguments arguments(EpilogueValue const& operand, void*) {
    Stride stride{};
    if constexpr (may_be_one) stride = operand.leading != 0;
    return {static_cast<Element const*>(operand.data), Element(0), {stride, {}, sm90_batch_stride<may_be_one>(operand)}};
  }
};

// A matrix besides the C tile, with shared memory of its own. `kColumns`: how many of the user's columns are in one
// element.
template <class Descriptor, class Layout, class Element, int kColumns>
struct Sm90AuxMatrix
    : fusion::Sm90AuxLoad<
          Descriptor::StagesC, typename Descriptor::EpilogueTile, Element, cutlass::detail::TagToStrideC_t<Layout>,
          typename cutlass::epilogue::collective::detail::AuxLoadDescriptor<Descriptor, Layout, Element>::SmemLayoutAtom,
          typename cutlass::epilogue::collective::detail::AuxLoadDescriptor<Descriptor, Layout, Element>::CopyOpS2R> {
  using Node = cutlass::epilogue::collective::detail::AuxLoadDescriptor<Descriptor, Layout, Element>;
  using Base = fusion::Sm90AuxLoad<Descriptor::StagesC, typename Descriptor::EpilogueTile, Element, typename Node::Stride,
                                   typename Node::SmemLayoutAtom, typename Node::CopyOpS2R>;
  using Base::Base;

  struct Arguments {
    Element const* data;
    typename Node::Stride stride;
    void* valid;
  };

  template <class ProblemShape>
  static constexpr typename Base::Params to_underlying_arguments(ProblemShape const& problem, Arguments const& arguments,
                                                                 void* workspace) {
    // A tensor map wants a valid address even where nothing is read.
    auto const* const data = arguments.data ? arguments.data : static_cast<Element const*>(arguments.valid);
    auto params = Base::to_underlying_arguments(problem, {data, Element(0), arguments.stride}, workspace);
    params.use_default = arguments.data == nullptr;
    return params;
  }
  template <class ProblemShape>
  static bool can_implement(ProblemShape const&, Arguments const&) {
    return true;
  }
  template <class ProblemShape>
  static std::size_t get_workspace_size(ProblemShape const&, Arguments const&) {
    return 0;
  }
  template <class ProblemShape>
  static cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  static Arguments arguments(EpilogueValue const& operand, void* valid) {
    constexpr std::int64_t kSomeAlignedStride = 16;
    std::int64_t const leading = operand.data ? operand.leading / kColumns : kSomeAlignedStride;
    return {static_cast<Element const*>(operand.data),
            sm90_stride<typename Node::Stride>(leading, operand.batch_stride / kColumns), valid};
  }
};

template <class Descriptor, class Layout, class Element>
struct Sm90Store
    : fusion::Sm90AuxStore<
          Descriptor::StagesD, typename Descriptor::EpilogueTile, Element, cutlass::FloatRoundStyle::round_to_nearest,
          cutlass::detail::TagToStrideC_t<Layout>,
          typename cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor, Layout, Element>::SmemLayoutAtom,
          typename cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor, Layout, Element>::CopyOpR2S> {
  using Node = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor, Layout, Element>;
  using Base = fusion::Sm90AuxStore<Descriptor::StagesD, typename Descriptor::EpilogueTile, Element,
                                    cutlass::FloatRoundStyle::round_to_nearest, typename Node::Stride,
                                    typename Node::SmemLayoutAtom, typename Node::CopyOpR2S>;
  using Base::Base;
  static typename Base::Arguments arguments(EpilogueValue const& operand, void*) {
    return {static_cast<Element*>(operand.data), sm90_stride<typename Node::Stride>(operand.leading, operand.batch_stride)};
  }
};

// Finds the operand of the C tile: the first matrix whose elements are as wide as those of D.
template <class ElementD, class... Operands>
constexpr int sm90_source_index() {
  int index = -1;
  ((index < 0 && (Operands::kKind == OperandKind::matrix || Operands::kKind == OperandKind::wide_matrix) &&
            std::is_same_v<epilogue::ElementOfOperand<Operands>, ElementD>
        ? index = Operands::kIndex
        : 0),
   ...);
  return index;
}

template <class Epilogue, DType d, bool swap_ab, class TileShape, class EpilogueSchedule, class Layout, class Operands,
          class Stores>
struct Sm90Visitor;

template <class Epilogue, DType d, bool swap_ab, class TileShape, class EpilogueSchedule, class Layout, class... Operands,
          class... Stores>
struct Sm90Visitor<Epilogue, d, swap_ab, TileShape, EpilogueSchedule, Layout, epilogue::OperandList<Operands...>,
                   epilogue::OperandList<Stores...>> {
  using Apply = epilogue::Apply<Epilogue, d, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>>;
  using ElementD = typename Apply::ElementD;
  static constexpr int kSource = sm90_source_index<ElementD, Operands...>();
  static constexpr int kSourceColumns =
      (1 + ... + (Operands::kIndex == kSource ? epilogue::kColumnsOf<Operands> - 1 : 0));  // of the user's, in one element
  // void keeps the C tile out of shared memory, which buys stages.
  using ElementC = std::conditional_t<(kSource >= 0), ElementD, void>;
  using Descriptor =
      cutlass::epilogue::collective::detail::EpilogueDescriptor<TileShape, cutlass::epilogue::collective::EpilogueTileAuto,
                                                                ElementC, ElementD, EpilogueSchedule>;

  // With swap_ab rows are columns.
  template <class Operand>
  static constexpr auto node_of() {
    using E = epilogue::ElementOfOperand<Operand>;
    constexpr bool is_row = (Operand::kKind == OperandKind::row) != swap_ab;
    if constexpr (Operand::kKind == OperandKind::scalar) {
      return epilogue::TypeIdentity<Sm90Scalar>{};
    } else if constexpr (Operand::kKind == OperandKind::row || Operand::kKind == OperandKind::col) {
      constexpr bool kMayBeOne = Operand::kMayBeOne;
      return epilogue::TypeIdentity<
          std::conditional_t<is_row, Sm90Row<TileShape, E, kMayBeOne>, Sm90Col<TileShape, E, kMayBeOne>>>{};
    } else if constexpr (Operand::kKind == OperandKind::store) {
      return epilogue::TypeIdentity<Sm90Store<Descriptor, Layout, E>>{};
    } else if constexpr (Operand::kIndex == kSource) {
      return epilogue::TypeIdentity<Sm90Source<E>>{};
    } else {
      return epilogue::TypeIdentity<Sm90AuxMatrix<Descriptor, Layout, E, epilogue::kColumnsOf<Operand>>>{};
    }
  }
  template <class Operand>
  using Node = typename decltype(node_of<Operand>())::type;

  using Nodes = fusion::Sm90VisitorImpl<Node<Operands>..., Node<Stores>...>;

  struct Callbacks : Nodes {
    using Params = typename Nodes::Params;
    using SharedStorage = typename Nodes::SharedStorage;
    CUTLASS_HOST_DEVICE Callbacks() {}
    CUTLASS_HOST_DEVICE Callbacks(Params const& params, SharedStorage const& storage) : Nodes(params, storage) {}

    template <class Impl>
    struct ConsumerStoreCallbacks : Impl {
      CUTLASS_DEVICE explicit ConsumerStoreCallbacks(Impl&& impl) : Impl(cute::forward<Impl>(impl)) {}
      using Impl::callbacks_tuple;

      template <class Accumulator, int N>
      CUTLASS_DEVICE auto visit(cutlass::Array<Accumulator, N> const& accum, int epi_v, int epi_m, int epi_n) {
        return visit(accum, epi_v, epi_m, epi_n, std::index_sequence_for<Operands...>{},
                     std::index_sequence_for<Stores...>{});
      }

     private:
      template <class Accumulator, int N, std::size_t... I, std::size_t... S>
      CUTLASS_DEVICE auto visit(cutlass::Array<Accumulator, N> const& accum, int epi_v, int epi_m, int epi_n,
                                std::index_sequence<I...>, std::index_sequence<S...>) {
        std::tuple const inputs{
            epilogue::to_float<Operands>(cute::get<I>(callbacks_tuple).visit(accum, epi_v, epi_m, epi_n))...};
        typename Apply::template StoreFragments<N> stores;
        auto const result = [&] {
          if constexpr (swap_ab && Apply::kWidth == Width::half) {
            return Apply::run_across_lanes(accum, inputs, stores);
          } else {
            return Apply::run(accum, inputs, stores);
          }
        }();
        (cute::get<sizeof...(I) + S>(callbacks_tuple).visit(accum, epi_v, epi_m, epi_n, stores[S]), ...);
        return result;
      }
    };

    template <bool ReferenceSrc, class... Args>
    CUTLASS_DEVICE auto get_consumer_store_callbacks(fusion::ConsumerStoreArgs<Args...> const& args) {
      auto impl = Nodes::template get_consumer_store_callbacks<ReferenceSrc>(args);
      return ConsumerStoreCallbacks<decltype(impl)>(cute::move(impl));
    }
  };

  // Checks operands that are loaded through tensor maps; rows and columns are loaded element by element.
  static bool meets_tma(EpilogueValue const* operands) {
    auto const meets = [&](OperandKind kind, int index) {
      bool const is_map = kind == OperandKind::matrix || kind == OperandKind::wide_matrix || kind == OperandKind::store;
      return !is_map || reinterpret_cast<std::uintptr_t>(operands[index].data) % 16 == 0;
    };
    return (meets(Operands::kKind, Operands::kIndex) && ... && true) &&
           (meets(Stores::kKind, Stores::kIndex) && ... && true);
  }

  // `valid`: an address that tensor maps of absent operands may name.
  static typename Callbacks::Arguments arguments(EpilogueValue const* operands, void* valid) {
    return {Node<Operands>::arguments(operands[Operands::kIndex], valid)...,
            Node<Stores>::arguments(operands[Stores::kIndex], valid)...};
  }
};

}  // namespace cutwheel::gemm
