// The partial sums of split-K, [splits, batch, M, N] float32: what the kernels that add them up have in common.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/launch.h"

namespace cutwheel::gemm {

// Threads take four columns of a row at once, threadblocks every so many rows.
struct PartialSums {
  static constexpr int kVector = 4;
  static constexpr int kMaxThreads = 256;
  static constexpr int kMinBlocks = 4;

  // Adds four columns of all slices, in the order of the slices; `first` is those of slice 0.
  template <class Sum>
  __device__ static void add(float const* first, std::int64_t split_stride, int splits, Sum& sum) {
    // The sums of a slice come from L2: eight loads are under way at once.
#pragma unroll 8
    for (int s = 0; s < splits; ++s) {
      float4 const v = *reinterpret_cast<float4 const*>(first + s * split_stride);
      sum[0] += v.x;
      sum[1] += v.y;
      sum[2] += v.z;
      sum[3] += v.w;
    }
  }

  static LaunchShape shape(GemmArgs const& args, int batch, Arch arch) {
    LaunchShape found;
    found.grid = dim3(static_cast<unsigned>(ceil_div(args.n, kMaxThreads * kVector)),
                      static_cast<unsigned>(std::min(args.m, 65535)), static_cast<unsigned>(batch));
    found.block = dim3(kMaxThreads);
    found.dependent_launch = arch == Arch::sm90a;
    return found;
  }
};

}  // namespace cutwheel::gemm
