// Rows of tokens to their places and back: bound by memory, each row is read once and written once. Sums are taken in
// float32 in the order of a token's choices, and rounded once.
#pragma once

#include <cutlass/array.h>
#include <cutlass/numeric_conversion.h>

#include "core/args/routing.h"
#include "core/cutlass_types.cuh"
#include "core/launch.h"

namespace cutwheel::gemm {

// Base of the three kernels below. The GemmArgs are PermuteArgs.
template <Arch arch_, DType d_>
struct PermuteBase {
  using E = Element<d_>;
  static constexpr int kPiece = 16 / static_cast<int>(sizeof(E));  // elements of an access
  static constexpr int kMaxThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSharedStorageBytes = 0;
  static constexpr int kAtOnce = 8;  // rows that a thread has on their way

  struct Params {
    E* token_data;
    E* row_data;
    std::int64_t token_stride, row_stride;
    std::int32_t const* places;
    void const* weights;
    float* dots;
    std::int32_t const* end;
    DType weight_type;
    int tokens, rows, choices, columns;
    int log_lanes;  // threads of a token
    bool is_aligned;
  };

  template <int length>
  using Vector = cutlass::AlignedArray<E, length, length* static_cast<int>(sizeof(E))>;
  template <int length>
  using Floats = cutlass::Array<float, length>;

  template <int length>
  CUTLASS_DEVICE static Floats<length> widen(Vector<length> const& x) {
    return cutlass::NumericArrayConverter<float, E, length>{}(x);
  }
  template <int length>
  CUTLASS_DEVICE static void store(E* to, Floats<length> const& x) {
    Vector<length> rounded;
    static_cast<cutlass::Array<E, length>&>(rounded) = cutlass::NumericArrayConverter<E, float, length>{}(x);
    *reinterpret_cast<Vector<length>*>(to) = rounded;
  }

  CUTLASS_DEVICE static float weight_of(Params const& p, std::int64_t choice) {
    if (!p.weights) return 1;
    switch (p.weight_type) {
      case DType::bf16: return static_cast<float>(static_cast<cutlass::bfloat16_t const*>(p.weights)[choice]);
      case DType::f16: return static_cast<float>(static_cast<cutlass::half_t const*>(p.weights)[choice]);
      default: return static_cast<float const*>(p.weights)[choice];
    }
  }
  CUTLASS_DEVICE static int end_of(Params const& p) { return p.end ? min(max(*p.end, 0), p.rows) : p.rows; }
  // The place of a choice; negative where there is no such row.
  CUTLASS_DEVICE static int place_of(Params const& p, std::int64_t choice, int end) {
    int const place = p.places[choice];
    return static_cast<unsigned>(place) < static_cast<unsigned>(end) ? place : -1;
  }

  // Calls own(token, column) for this thread's pieces.
  template <int length, class Own>
  CUTLASS_DEVICE static void each_piece(Params const& p, Own const& own) {
    int const lanes = 1 << p.log_lanes, thread = static_cast<int>(threadIdx.x);
    int const token = static_cast<int>(blockIdx.x) * (kMaxThreads >> p.log_lanes) + (thread >> p.log_lanes);
    if (token >= p.tokens) return;
    for (int column = (thread & (lanes - 1)) * length; column < p.columns; column += lanes * length) own(token, column);
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& given, void const* kernel) {
    auto const& args = static_cast<PermuteArgs const&>(given);
    auto const aligned = [](void const* data, std::int64_t stride, int rows) {
      return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && (rows == 1 || stride % kPiece == 0);
    };
    Params p{const_cast<E*>(static_cast<E const*>(args.token_data)),
             const_cast<E*>(static_cast<E const*>(args.row_data)),
             args.token_stride,
             args.row_stride,
             args.places,
             args.weights,
             args.dots,
             args.end,
             args.weight_type,
             args.tokens,
             args.rows,
             args.choices,
             args.columns,
             5,
             args.columns % kPiece == 0 && aligned(args.token_data, args.token_stride, args.tokens) &&
                 aligned(args.row_data, args.row_stride, args.rows)};
    // A warp has the scalar products of a token.
    int const pieces = ceil_div(p.columns, p.is_aligned ? kPiece : 1);
    while (!p.dots && p.log_lanes < 8 && 1 << p.log_lanes < pieces) ++p.log_lanes;
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(ceil_div(p.tokens, kMaxThreads >> p.log_lanes)));
    shape.block = dim3(kMaxThreads);
    shape.dependent_launch = arch_ == Arch::sm90a;
    return launch_kernel(kernel, shape, p, args.stream);
  }
};

// Rows are tokens times weights: those of no expert are as their tokens, or zeros if there are weights.
template <Arch arch_, DType d_>
struct Permute : PermuteBase<arch_, d_> {
  using Base = PermuteBase<arch_, d_>;
  using typename Base::E;
  using typename Base::Params;

  template <int length>
  CUTLASS_DEVICE static void move(Params const& p) {
    int const end = Base::end_of(p);
    Base::template each_piece<length>(p, [&](int token, int column) {
      using Vector = typename Base::template Vector<length>;
      auto const x = *reinterpret_cast<Vector const*>(p.token_data + token * p.token_stride + column);
      auto const wide = Base::template widen<length>(x);
#pragma unroll 4
      for (int i = 0; i < p.choices; ++i) {
        std::int64_t const choice = std::int64_t{token} * p.choices + i;
        int const place = Base::place_of(p, choice, p.rows);
        if (place < 0) continue;
        E* const to = p.row_data + place * p.row_stride + column;
        if (!p.weights) {
          *reinterpret_cast<Vector*>(to) = x;
          continue;
        }
        auto scaled = wide;
        float const weight = Base::weight_of(p, choice);
#pragma unroll
        for (int e = 0; e < length; ++e) scaled[e] = place < end ? scaled[e] * weight : 0;
        Base::template store<length>(to, scaled);
      }
    });
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (p.is_aligned) {
      move<Base::kPiece>(p);
    } else {
      move<1>(p);
    }
  }
};

// Tokens are sums of their rows times weights. Rows of no expert add nothing, whatever is in them.
template <Arch arch_, DType d_>
struct Unpermute : PermuteBase<arch_, d_> {
  using Base = PermuteBase<arch_, d_>;
  using typename Base::Params;

  template <int length>
  CUTLASS_DEVICE static void sum(Params const& p) {
    int const end = Base::end_of(p);
    Base::template each_piece<length>(p, [&](int token, int column) {
      using Vector = typename Base::template Vector<length>;
      typename Base::template Floats<length> total;
      total.clear();
      for (int first = 0; first < p.choices; first += Base::kAtOnce) {
        Vector x[Base::kAtOnce];
        float weights[Base::kAtOnce];
        bool is_there[Base::kAtOnce];
#pragma unroll
        for (int i = 0; i < Base::kAtOnce; ++i) {
          std::int64_t const choice = std::int64_t{token} * p.choices + first + i;
          int const place = first + i < p.choices ? Base::place_of(p, choice, end) : -1;
          is_there[i] = place >= 0;
          if (!is_there[i]) continue;
          x[i] = *reinterpret_cast<Vector const*>(p.row_data + place * p.row_stride + column);
          weights[i] = Base::weight_of(p, choice);
        }
#pragma unroll
        for (int i = 0; i < Base::kAtOnce; ++i) {
          if (!is_there[i]) continue;
          auto const wide = Base::template widen<length>(x[i]);
#pragma unroll
          for (int e = 0; e < length; ++e) total[e] = fmaf(wide[e], weights[i], total[e]);
        }
      }
      Base::template store<length>(p.token_data + token * p.token_stride + column, total);
    });
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (p.is_aligned) {
      sum<Base::kPiece>(p);
    } else {
      sum<1>(p);
    }
  }
};

// Scalar products of tokens with their rows: the gradient of the weights of either kernel. 0 for rows of no expert.
template <Arch arch_, DType d_>
struct PermuteDots : PermuteBase<arch_, d_> {
  using Base = PermuteBase<arch_, d_>;
  using typename Base::Params;

  template <int length>
  CUTLASS_DEVICE static void multiply(Params const& p) {
    int const token = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (token >= p.tokens) return;
    int const end = Base::end_of(p);
    using Vector = typename Base::template Vector<length>;
    for (int first = 0; first < p.choices; first += Base::kAtOnce) {
      std::int64_t const choice = std::int64_t{token} * p.choices + first;
      int places[Base::kAtOnce];
      float sums[Base::kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < Base::kAtOnce; ++i) {
        places[i] = first + i < p.choices ? Base::place_of(p, choice + i, end) : -1;
      }
      for (int column = lane * length; column < p.columns; column += 32 * length) {
        auto const x =
            Base::template widen<length>(*reinterpret_cast<Vector const*>(p.token_data + token * p.token_stride + column));
#pragma unroll
        for (int i = 0; i < Base::kAtOnce; ++i) {
          if (places[i] < 0) continue;
          auto const y = Base::template widen<length>(
              *reinterpret_cast<Vector const*>(p.row_data + places[i] * p.row_stride + column));
#pragma unroll
          for (int e = 0; e < length; ++e) sums[i] = fmaf(x[e], y[e], sums[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < Base::kAtOnce; ++i) {
        for (int distance = 16; distance > 0; distance /= 2) {
          sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], distance);
        }
        if (lane == i && first + i < p.choices) p.dots[choice + i] = sums[i];
      }
    }
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (p.is_aligned) {
      multiply<Base::kPiece>(p);
    } else {
      multiply<1>(p);
    }
  }
};

}  // namespace cutwheel::gemm
