// D = expression of matrices, without a GEMM: the backward passes of activations. On request the sums of D over its rows
// come along, the gradient of a bias: D is then read no second time. Sums are added up in float32 and always in the same
// order, so they are reproducible.
//
// In GemmArgs: m and n are rows and columns, `epilogue` has the operands, d is D (null: only the sums are wanted) and
// c.data the sums, one for each column of D and of its type (null: none are wanted). Bases and row pitches are multiples of
// 16 bytes.
#pragma once

#include <algorithm>
#include <cute/container/tuple.hpp>

#include "core/launch.h"
#include "epilogue/apply.cuh"

namespace cutwheel::gemm {

template <Arch arch_, DType d_, template <DType> class Epilogue_>
struct Elementwise {
  using Epilogue = Epilogue_<d_>;
  using E = Element<d_>;
  static constexpr bool kWide = Epilogue::kWidth == Width::twice;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(E));  // columns of a thread
  static constexpr int kValues = kWide ? 2 * kVector : kVector;     // of D, in these columns
  static constexpr int kWarps = 8;
  static constexpr int kMaxThreads = 32 * kWarps;
  static constexpr int kMinBlocks = 3;
  static constexpr int kSharedStorageBytes = 0;
  static constexpr int kRowsInFlight = kWide ? 2 : 3;  // of a thread: loads of several rows are under way together

  // Two stages of one kernel: the expression with sums over a block's rows, then the sums of these.
  struct Params {
    EpilogueValue operands[kMaxEpilogueOperands];
    E* d;
    E* sums;
    float* partial;  // [row blocks, columns of D]
    std::int64_t d_leading, d_odd;
    int m, n, rows_per_block, row_blocks, stage;
    int lanes;  // of a row: a power of two, so that a warp has one row or several
  };

  using Values = cutlass::Array<float, kValues>;

  // The last columns are told apart in loops without a variable end: else fragments would lie in local memory, and all of
  // it would take twice as long.
  template <class Operand>
  CUTLASS_DEVICE static auto load(EpilogueValue const& operand, std::int64_t row, int column, int n) {
    if constexpr (Operand::kKind == OperandKind::scalar) {
      cutlass::Array<float, kVector> value;
      value.fill(operand.value);
      return value;
    } else {
      using Source = Element<Operand::kType>;
      constexpr int kFactor = Operand::kKind == OperandKind::wide_matrix ? 2 : 1;
      using Fragment = cutlass::Array<Source, kVector * kFactor>;
      Fragment fragment;
      fragment.clear();
      if (operand.data) {
        auto const* const source = static_cast<Source const*>(operand.data) + row * operand.leading + column * kFactor;
        if (column + kVector <= n) {
          constexpr int kAccesses = static_cast<int>(sizeof(Fragment)) / 16;
          uint4 words[kAccesses];
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kAccesses; ++i) words[i] = reinterpret_cast<uint4 const*>(source)[i];
          memcpy(&fragment, words, sizeof(Fragment));
        } else {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kVector * kFactor; ++i) {
            if (i < (n - column) * kFactor) fragment[i] = source[i];
          }
        }
      }
      return fragment;
    }
  }

  CUTLASS_DEVICE static void store(E* d, Values const& values, int column, int n) {
    auto const rounded = cutlass::NumericArrayConverter<E, float, kValues>{}(values);
    constexpr int kFactor = kWide ? 2 : 1;
    d += column * kFactor;
    if (column + kVector <= n) {
      constexpr int kAccesses = static_cast<int>(sizeof(rounded)) / 16;
      uint4 words[kAccesses];
      memcpy(words, &rounded, sizeof(rounded));
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAccesses; ++i) reinterpret_cast<uint4*>(d)[i] = words[i];
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kValues; ++i) {
        if (i < (n - column) * kFactor) d[i] = rounded[i];
      }
    }
  }

  // Even columns, and odd ones behind them all; n is a multiple of kVector.
  CUTLASS_DEVICE static void store_apart(E* even, E* odd, Values const& values) {
    cutlass::Array<float, kVector> halves[2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kVector; ++i) {
      halves[0][i] = values[2 * i];
      halves[1][i] = values[2 * i + 1];
    }
    auto const first = cutlass::NumericArrayConverter<E, float, kVector>{}(halves[0]),
               second = cutlass::NumericArrayConverter<E, float, kVector>{}(halves[1]);
    *reinterpret_cast<uint4*>(even) = epilogue::bit_cast<uint4>(first);
    *reinterpret_cast<uint4*>(odd) = epilogue::bit_cast<uint4>(second);
  }

  template <class Source, int N>
  CUTLASS_DEVICE static auto to_float(cutlass::Array<Source, N> const& fragment) {
    return cutlass::NumericArrayConverter<float, Source, N>{}(fragment);
  }

  template <class... Operands, class Loaded, std::size_t... I>
  CUTLASS_DEVICE static Values compute(epilogue::OperandList<Operands...>, Loaded const& loaded,
                                       std::index_sequence<I...>) {
    auto const inputs = cute::make_tuple(to_float(cute::get<I>(loaded))...);
    Values values;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kVector; ++i) {
      if constexpr (kWide) {
        epilogue::Pair pair;
        Epilogue::compute(epilogue::unit_of<Operands, Epilogue::kWidth>(cute::get<I>(inputs), i)..., pair);
        values[2 * i] = pair.even;
        values[2 * i + 1] = pair.odd;
      } else {
        Epilogue::compute(epilogue::unit_of<Operands, Epilogue::kWidth>(cute::get<I>(inputs), i)..., values[i]);
      }
    }
    return values;
  }

  template <class Loaded, class... Operands>
  CUTLASS_DEVICE static void rows_of(epilogue::OperandList<Operands...> list, Params const& p, int column, Values& sum) {
    // 64 bits: a step from the last row may end beyond 2^31.
    std::int64_t const block = std::int64_t{blockIdx.y} * p.rows_per_block,
                       end = min(static_cast<long long>(p.m), static_cast<long long>(block + p.rows_per_block));
    unsigned const lanes = static_cast<unsigned>(p.lanes), rows = kMaxThreads / lanes;
    for (std::int64_t row = block + threadIdx.x / lanes; row < end; row += rows * kRowsInFlight) {
      Loaded inputs[kRowsInFlight];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRowsInFlight; ++i) {
        std::int64_t const at = row + i * rows;
        if (at < end) inputs[i] = Loaded{load<Operands>(p.operands[Operands::kIndex], at, column, p.n)...};
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kRowsInFlight; ++i) {
        std::int64_t const at = row + i * rows;
        if (at >= end) break;
        Values const values = compute(list, inputs[i], std::index_sequence_for<Operands...>{});
        E* const d = p.d + at * p.d_leading;
        if constexpr (kWide) {
          if (p.d && p.d_odd) store_apart(d + column, d + p.d_odd + column, values);
        }
        if (p.d && !p.d_odd) store(d, values, column, p.n);
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kValues; ++j) sum[j] += values[j];
      }
    }
  }

  template <class... Operands>
  CUTLASS_DEVICE static void expression(epilogue::OperandList<Operands...> list, Params const& p) {
    __shared__ float shared[kWarps][32][kValues + 1];  // one more, against bank conflicts
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int const column = (blockIdx.x * p.lanes + (threadIdx.x & (p.lanes - 1))) * kVector;
    Values sum;
    sum.clear();
    using Loaded = cute::tuple<decltype(load<Operands>(p.operands[0], 0, 0, 0))...>;
    if (column < p.n) rows_of<Loaded>(list, p, column, sum);
    if (!p.partial) return;
    for (int other = 16; other >= p.lanes; other /= 2) {  // rows of a warp
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kValues; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], other);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < kValues; ++j) shared[warp][lane][j] = sum[j];
    __syncthreads();
    int const columns = kWide ? 2 * p.n : p.n, first = blockIdx.x * p.lanes * kValues;
    for (int i = threadIdx.x; i < p.lanes * kValues && first + i < columns; i += kMaxThreads) {
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += shared[w][i / kValues][i % kValues];
      p.partial[static_cast<std::int64_t>(blockIdx.y) * columns + first + i] = total;
    }
  }

  CUTLASS_DEVICE static void sum_of_blocks(Params const& p) {
    __shared__ float shared[kWarps][32];
    int const lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = kWide ? 2 * p.n : p.n;
    int const column = blockIdx.x * 32 + lane;
    float sum = 0;
    if (column < columns) {
#pragma unroll 4
      for (int row = warp; row < p.row_blocks; row += kWarps) {
        sum += p.partial[static_cast<std::int64_t>(row) * columns + column];
      }
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= columns) return;
    for (int w = 1; w < kWarps; ++w) sum += shared[w][lane];
    p.sums[column] = cutlass::NumericConverter<E, float>{}(sum);
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    // Results of the preceding kernel are visible from here on.
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (p.stage == 0) {
      expression(typename Epilogue::Operands{}, p);
    } else {
      sum_of_blocks(p);
    }
  }

  // A whole warp, or a part of it where rows leave fewer of its lanes without columns so: a row of 64 columns takes eight
  // lanes, and rows of 320 columns five times as many.
  static int lanes_of(int n) {
    constexpr int kLine = 8;  // 128 bytes
    int const vectors = ceil_div(n, kVector);
    int lanes = 32;
    for (int fewer = 16; fewer >= kLine; fewer /= 2) {
      if (round_up(vectors, fewer) < round_up(vectors, lanes)) lanes = fewer;
    }
    while (lanes > 1 && lanes / 2 >= vectors) lanes /= 2;
    return lanes;
  }

  // Enough threadblocks for every SM to hold several, each with rows enough to be worth its partial sums.
  static int rows_per_block(GemmArgs const& args) {
    constexpr int kBlocksPerSm = 8;
    int const lanes = lanes_of(args.n), least_rows = round_up(kWarps * kRowsInFlight, kMaxThreads / lanes);
    int const column_blocks = ceil_div(args.n, lanes * kVector);
    int const row_blocks = std::max(1, ceil_div(kBlocksPerSm * args.device->sm_count, column_blocks));
    int const rows = round_up(ceil_div(args.m, row_blocks), least_rows);
    constexpr int kMaxGrid = 65535;
    return std::max(rows, round_up(ceil_div(args.m, kMaxGrid), least_rows));
  }

  static std::int64_t workspace_bytes(GemmArgs const& args) {
    if (!args.c.data) return 0;
    std::int64_t const columns = std::int64_t{args.n} * (kWide ? 2 : 1);
    return ceil_div(args.m, rows_per_block(args)) * columns * static_cast<std::int64_t>(sizeof(float));
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    Params params{};
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), params.operands);
    params.d = static_cast<E*>(args.d);
    params.d_leading = args.d_leading, params.d_odd = args.d_odd;
    if (params.d_odd && (!kWide || args.n % kVector != 0)) return {StatusCode::not_implementable, 0};
    params.sums = static_cast<E*>(const_cast<void*>(args.c.data));
    params.partial = params.sums ? static_cast<float*>(args.workspace) : nullptr;
    params.m = args.m;
    params.n = args.n;
    params.lanes = lanes_of(args.n);
    params.rows_per_block = rows_per_block(args);
    params.row_blocks = ceil_div(args.m, params.rows_per_block);

    LaunchShape shape;
    shape.grid =
        dim3(static_cast<unsigned>(ceil_div(args.n, params.lanes * kVector)), static_cast<unsigned>(params.row_blocks));
    shape.block = dim3(kMaxThreads);
    shape.dependent_launch = arch_ == Arch::sm90a;
    if (Status const status = launch_kernel(kernel, shape, params, args.stream); !status.good() || !params.sums)
      return status;
    params.stage = 1;
    shape.grid = dim3(static_cast<unsigned>(ceil_div(args.n * (kWide ? 2 : 1), 32)));
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
