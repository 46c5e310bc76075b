// 8-bit values and float scales of a matrix: values * scale is the matrix, up to rounding. Bound by memory: each element is
// read once where its group of one scale fits into registers, else twice.
//
// In GemmArgs: a is x [m, k] and d the values, both with rows on 16 bytes; scale_a the scales, epilogue[0].data the zero
// points.
#pragma once

#include <cutlass/array.h>
#include <cutlass/numeric_conversion.h>

#include <cfloat>
#include <type_traits>

#include "core/cutlass_types.cuh"
#include "core/launch.h"

namespace cutwheel::scaled_mm {

using namespace gemm;

// The largest magnitudes of a group, as bits of non-negative floats: these are ordered as integers are, NaN above infinity.
struct Extremes {
  unsigned high = 0;  // of the values, or with `asymmetric` of those above 0
  unsigned low = 0;   // of those below 0

  template <bool asymmetric>
  CUTLASS_DEVICE void add(float x) {
    unsigned const bits = __float_as_uint(x), magnitude = bits & 0x7fffffffu;
    if constexpr (!asymmetric) {
      high = max(high, magnitude);
    } else {
      bool const is_nan = magnitude > 0x7f800000u, negative = bits >> 31;
      if (!negative || is_nan) high = max(high, magnitude);
      if (negative || is_nan) low = max(low, magnitude);
    }
  }
  CUTLASS_DEVICE void add(Extremes const& other) {
    high = max(high, other.high);
    low = max(low, other.low);
  }
  // Over `lanes` neighbouring lanes.
  template <int lanes>
  CUTLASS_DEVICE void reduce() {
    CUTLASS_PRAGMA_UNROLL
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      add(Extremes{__shfl_xor_sync(0xffffffffu, high, distance), __shfl_xor_sync(0xffffffffu, low, distance)});
    }
  }
};

template <Arch arch_, DType in_, DType out_, QuantizeRecipe recipe_>
struct Quantize {
  using In = Element<in_>;
  using Out = Element<out_>;
  static constexpr bool kInteger = out_ == DType::s8;
  static constexpr bool kAsymmetric =
      recipe_ == QuantizeRecipe::tensorwise_asymmetric || recipe_ == QuantizeRecipe::rowwise_asymmetric;
  static constexpr bool kTensorwise =
      recipe_ == QuantizeRecipe::tensorwise || recipe_ == QuantizeRecipe::tensorwise_asymmetric;
  static constexpr bool kRowwise = recipe_ == QuantizeRecipe::rowwise || recipe_ == QuantizeRecipe::rowwise_asymmetric;
  static constexpr float kMax = kInteger ? 127.f : out_ == DType::e4m3 ? 448.f : 57344.f;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(In));  // elements of a load
  static constexpr int kLanes = 128 / kVector;                       // that read 128 columns
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kMaxThreads = kThreads;
  static constexpr int kMinBlocks = 2;
  static constexpr int kSharedStorageBytes = 0;
  static constexpr int kCached = 8;  // loads that a thread keeps
  static constexpr int kSteps = 4;   // blockwise_1x128: of a warp along K

  struct Params {
    In const* x;
    Out* values;
    float* scales;
    std::int32_t* zero_points;
    Extremes* partial;  // tensorwise: one for each threadblock of the first stage
    std::int64_t x_leading, values_leading, scale_stride, scale_k_stride;
    int m, k, partials, stage;
  };

  using Vector = cutlass::Array<In, kVector>;

  // `whole`: rows are whole vectors, as they nearly always are. Then a load is one predicated instruction, of which many
  // are under way at once. Elements of the last vector of other rows are indexed by constants: vectors that are not would
  // lie in local memory.
  template <bool whole>
  CUTLASS_DEVICE static Vector load(Params const& p, std::int64_t row, int column) {
    Vector vector;
    vector.clear();
    if (row >= p.m || column >= p.k) return vector;
    In const* const source = p.x + row * p.x_leading + column;
    if (whole || column + kVector <= p.k) {
      uint4 const bits = *reinterpret_cast<uint4 const*>(source);
      memcpy(&vector, &bits, sizeof(vector));
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVector; ++i) {
        if (column + i < p.k) vector[i] = source[i];
      }
    }
    return vector;
  }

  CUTLASS_DEVICE static void add(Extremes& extremes, Vector const& vector) {
    auto const x = cutlass::NumericArrayConverter<float, In, kVector>{}(vector);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kVector; ++i) extremes.template add<kAsymmetric>(x[i]);
  }

  struct Scale {
    float scale, inverse;
    int zero_point;

    CUTLASS_DEVICE explicit Scale(Extremes const& extremes) : zero_point(0) {
      float const high = __uint_as_float(extremes.high), low = __uint_as_float(extremes.low);
      constexpr float kLargest = kAsymmetric ? 255.f : kMax;
      float const range = kAsymmetric ? high + low : high;
      bool const finite = max(extremes.high, extremes.low) < 0x7f800000u;
      float part = range / kLargest;
      // The only sum that overflows where its terms do not.
      if (kAsymmetric && range > FLT_MAX) part = high / kLargest + low / kLargest;
      // Never below the smallest normal float, whose inverse is finite.
      scale = range == 0 ? 1.f : fmaxf(part, FLT_MIN);
      if (!finite) scale = __uint_as_float(0x7fffffffu);
      inverse = 1.f / scale;
      if constexpr (kAsymmetric) {
        if (finite && range > 0) zero_point = min(max(-128 - __float2int_rn(-low / scale), -128), 127);
      }
    }

    // x / scale, rounded once: x * inverse misrounds quotients halfway between two values. One step of Newton's method, as
    // in the compiler's own division.
    CUTLASS_DEVICE float divide(float x) const {
      float const quotient = x * inverse;
      return fmaf(fmaf(-quotient, scale, x), inverse, quotient);
    }
  };

  template <bool whole>
  CUTLASS_DEVICE static void store(Params const& p, std::int64_t row, int column, Vector const& vector,
                                   Scale const& scale) {
    if (row >= p.m || column >= p.k) return;
    auto const x = cutlass::NumericArrayConverter<float, In, kVector>{}(vector);
    cutlass::Array<Out, kVector> values;
    if constexpr (kInteger) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVector; ++i) {
        // cvt makes NaN 0, and saturates far outside of what is clamped here.
        int const value = __float2int_rn(scale.divide(x[i])) + scale.zero_point;
        values[i] = static_cast<Out>(min(max(value, kAsymmetric ? -128 : -127), 127));
      }
    } else {
      cutlass::Array<float, kVector> scaled;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVector; ++i) scaled[i] = scale.divide(x[i]);
      values = cutlass::NumericArrayConverter<Out, float, kVector>{}(scaled);  // saturates
    }
    Out* const target = p.values + row * p.values_leading + column;
    if (whole || column + kVector <= p.k) {
      using Bits = std::conditional_t<kVector == 8, uint2, unsigned>;
      Bits bits;
      memcpy(&bits, &values, sizeof(bits));
      *reinterpret_cast<Bits*>(target) = bits;
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kVector; ++i) {
        if (column + i < p.k) target[i] = values[i];
      }
    }
  }

  CUTLASS_DEVICE static void write_scale(Params const& p, std::int64_t at, Scale const& scale) {
    p.scales[at] = scale.scale;
    if constexpr (kAsymmetric) p.zero_points[at] = scale.zero_point;
  }

  // Reduces over the threadblock; every thread gets the result.
  CUTLASS_DEVICE static Extremes reduce_block(Extremes extremes) {
    __shared__ Extremes shared[kWarps];
    extremes.template reduce<32>();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = extremes;
    __syncthreads();
    Extremes all = shared[0];
    CUTLASS_PRAGMA_UNROLL
    for (int warp = 1; warp < kWarps; ++warp) all.add(shared[warp]);
    return all;
  }

  // A threadblock takes a row.
  template <bool whole>
  CUTLASS_DEVICE static void rowwise(Params const& p) {
    std::int64_t const row = blockIdx.x;
    constexpr int kStride = kThreads * kVector;
    int const first = threadIdx.x * kVector;
    Vector cached[kCached];
    Extremes extremes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCached; ++i) cached[i] = load<whole>(p, row, first + i * kStride);
    // Iterations past the end of the row are skipped by all threads alike, so they take no time.
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCached; ++i) {
      if (i * kStride < p.k) add(extremes, cached[i]);
    }
    for (int column = first + kCached * kStride; column < p.k; column += kStride) {
      add(extremes, load<whole>(p, row, column));
    }
    Scale const scale(reduce_block(extremes));
    if (threadIdx.x == 0) write_scale(p, row, scale);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCached; ++i) {
      if (i * kStride < p.k) store<whole>(p, row, first + i * kStride, cached[i], scale);
    }
    for (int column = first + kCached * kStride; column < p.k; column += kStride) {
      store<whole>(p, row, column, load<whole>(p, row, column), scale);
    }
  }

  // A warp takes some groups of a row, the warps of a threadblock neighbouring rows: their scales are neighbours in memory.
  template <bool whole>
  CUTLASS_DEVICE static void blockwise_1x128(Params const& p) {
    std::int64_t const row = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
    constexpr int kGroups = 32 / kLanes;
    int const lane = threadIdx.x % 32, first = blockIdx.y * kSteps * kGroups + lane / kLanes;
    Vector vectors[kSteps];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSteps; ++i)
      vectors[i] = load<whole>(p, row, (first + i * kGroups) * 128 + lane % kLanes * kVector);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kSteps; ++i) {
      int const group = first + i * kGroups, column = group * 128 + lane % kLanes * kVector;
      Extremes extremes;
      add(extremes, vectors[i]);
      extremes.template reduce<kLanes>();
      Scale const scale(extremes);
      store<whole>(p, row, column, vectors[i], scale);
      if (lane % kLanes == 0 && row < p.m && group * 128 < p.k) {
        write_scale(p, row * p.scale_stride + group * p.scale_k_stride, scale);
      }
    }
  }

  // A threadblock takes 128 rows and columns.
  template <bool whole>
  CUTLASS_DEVICE static void blockwise_128x128(Params const& p) {
    constexpr int kRows = kThreads / kLanes, kLoads = 128 / kRows;
    std::int64_t const first = std::int64_t{blockIdx.x} * 128 + threadIdx.x / kLanes;
    int const column = blockIdx.y * 128 + threadIdx.x % kLanes * kVector;
    Vector vectors[kLoads];
    Extremes extremes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLoads; ++i) vectors[i] = load<whole>(p, first + i * kRows, column);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLoads; ++i) add(extremes, vectors[i]);
    Scale const scale(reduce_block(extremes));
    if (threadIdx.x == 0) write_scale(p, blockIdx.x * p.scale_stride + blockIdx.y * p.scale_k_stride, scale);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kLoads; ++i) store<whole>(p, first + i * kRows, column, vectors[i], scale);
  }

  // The vectors of a matrix in the order of its rows, those of a thread `stride` apart. One division, at the beginning:
  // dividing at each vector takes longer than reading it.
  class Walk {
   public:
    CUTLASS_DEVICE explicit Walk(Params const& p) : columns_((static_cast<unsigned>(p.k) + kVector - 1) / kVector) {
      unsigned const first = blockIdx.x * kThreads + threadIdx.x, stride = gridDim.x * kThreads;
      row_ = first / columns_, column_ = first % columns_;
      row_step_ = stride / columns_, column_step_ = stride % columns_;
    }

    CUTLASS_DEVICE std::int64_t row() const { return row_; }
    CUTLASS_DEVICE int column() const { return static_cast<int>(column_) * kVector; }  // of its first element
    CUTLASS_DEVICE void next() {
      row_ += row_step_, column_ += column_step_;
      if (column_ >= columns_) column_ -= columns_, ++row_;
    }

   private:
    unsigned columns_, column_, column_step_, row_step_;
    std::int64_t row_;
  };

  // Two stages of one kernel: the extremes of each threadblock's share, then from all of them the scale, and the values.
  template <bool whole>
  CUTLASS_DEVICE static void tensorwise(Params const& p) {
    constexpr int kUnroll = 4;
    Extremes extremes;
    Walk walk(p);
    if (p.stage == 0) {
      while (walk.row() < p.m) {
        Vector loaded[kUnroll];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kUnroll; ++i, walk.next()) loaded[i] = load<whole>(p, walk.row(), walk.column());
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kUnroll; ++i) add(extremes, loaded[i]);
      }
      Extremes const all = reduce_block(extremes);
      if (threadIdx.x == 0) p.partial[blockIdx.x] = all;
      return;
    }
    for (int i = threadIdx.x; i < p.partials; i += kThreads) extremes.add(p.partial[i]);
    Scale const scale(reduce_block(extremes));
    if (blockIdx.x == 0 && threadIdx.x == 0) write_scale(p, 0, scale);
    while (walk.row() < p.m) {
      Vector loaded[kUnroll];
      Walk behind = walk;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kUnroll; ++i, walk.next()) loaded[i] = load<whole>(p, walk.row(), walk.column());
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kUnroll; ++i, behind.next()) store<whole>(p, behind.row(), behind.column(), loaded[i], scale);
    }
  }

  template <bool whole>
  CUTLASS_DEVICE static void run(Params const& p) {
    if constexpr (kTensorwise) {
      tensorwise<whole>(p);
    } else if constexpr (kRowwise) {
      rowwise<whole>(p);
    } else if constexpr (recipe_ == QuantizeRecipe::blockwise_1x128) {
      blockwise_1x128<whole>(p);
    } else {
      blockwise_128x128<whole>(p);
    }
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    // Results of the preceding kernel are visible from here on.
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    if (p.k % kVector == 0) {
      run<true>(p);
    } else {
      run<false>(p);
    }
  }

  static int tensorwise_blocks(GemmArgs const& args) {
    constexpr int kBlocksPerSm = 6;
    std::int64_t const vectors = ceil_div<std::int64_t>(args.k, kVector) * args.m;
    std::int64_t const most = kBlocksPerSm * args.device->sm_count, needed = ceil_div<std::int64_t>(vectors, kThreads);
    return static_cast<int>(needed < most ? needed : most);
  }

  static std::int64_t workspace_bytes(GemmArgs const& args) {
    return kTensorwise ? tensorwise_blocks(args) * static_cast<std::int64_t>(sizeof(Extremes)) : 0;
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    Params params{};
    params.x = static_cast<In const*>(args.a.data);
    params.values = static_cast<Out*>(args.d);
    params.scales = args.scale_a.data;
    params.zero_points = static_cast<std::int32_t*>(args.epilogue[0].data);
    params.partial = static_cast<Extremes*>(args.workspace);
    params.x_leading = args.a.leading;
    params.values_leading = args.d_leading;
    params.scale_stride = args.scale_a.stride;
    params.scale_k_stride = args.scale_a.k_stride;
    params.m = args.m;
    params.k = args.k;

    LaunchShape shape;
    shape.block = dim3(kThreads);
    shape.dependent_launch = arch_ == Arch::sm90a;
    if constexpr (kTensorwise) {
      params.partials = tensorwise_blocks(args);
      shape.grid = dim3(static_cast<unsigned>(params.partials));
      if (Status const status = launch_kernel(kernel, shape, params, args.stream); !status.good()) return status;
      params.stage = 1;
    } else if constexpr (kRowwise) {
      shape.grid = dim3(static_cast<unsigned>(args.m));
    } else if constexpr (recipe_ == QuantizeRecipe::blockwise_1x128) {
      constexpr int kColumns = kSteps * (32 / kLanes) * 128;
      shape.grid = dim3(static_cast<unsigned>(ceil_div(args.m, kWarps)), static_cast<unsigned>(ceil_div(args.k, kColumns)));
    } else {
      shape.grid = dim3(static_cast<unsigned>(ceil_div(args.m, 128)), static_cast<unsigned>(ceil_div(args.k, 128)));
    }
    constexpr unsigned kMaxGrid = 65535;
    if (shape.grid.y > kMaxGrid) return {StatusCode::not_implementable, 0};
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::scaled_mm
