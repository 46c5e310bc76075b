// The partial sums of split-K, [splits, batch, M, N] float32: what the kernels that add them up have in common.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/launch.h"

namespace cutwheel::gemm {

// Threads take four columns of a row at once. Where there are many slices, threads of a warp share them: filters' gradients
// have few elements and up to a slice for each SM, and one thread would wait for one load after the other. 144 x 24 of 66
// slices has 864 fours of columns.
struct PartialSums {
  static constexpr int kVector = 4;
  static constexpr int kMaxThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kWarp = 32;

  // How many threads share the slices. It depends on their number alone, as the order of the sums is to do.
  static constexpr int sharers(int splits) { return splits <= 8 ? 1 : splits <= 16 ? 2 : splits <= 32 ? 4 : 8; }

  // Calls store(row, column, sum) with the sums of four columns of all slices, for the part of M x N that a thread has.
  // `first`: those of row 0 and column 0 of slice 0.
  template <class Sum, class Store>
  __device__ static void for_each_sum(float const* first, std::int64_t leading, std::int64_t split_stride, int m, int n,
                                      int splits, Store store) {
    int const together = kWarp / sharers(splits), lane = static_cast<int>(threadIdx.x) % kWarp, share = lane / together;
    int const each = ceil_div(splits, sharers(splits)), begin = share * each;
    int const end = begin + each < splits ? begin + each : splits;
    int const of_row = ceil_div(n, kVector);
    std::int64_t const count = std::int64_t{m} * of_row;
    std::int64_t const warps = std::int64_t{gridDim.x} * (kMaxThreads / kWarp);
    std::int64_t const warp = std::int64_t{blockIdx.x} * (kMaxThreads / kWarp) + threadIdx.x / kWarp;
    for (std::int64_t start = warp * together; start < count; start += warps * together) {
      std::int64_t const index = start + lane % together;
      bool const is_short = count <= 0x7fffffff;  // then the division is a short one, too
      std::int64_t const row = is_short ? static_cast<int>(index) / of_row : index / of_row;
      int const column = static_cast<int>(index - row * of_row) * kVector;
      Sum sum{};
      if (index < count) {
        // Slices come from L2: eight loads are under way at once, or as many as there are.
        constexpr int kAtOnce = 8;
        float const* const from = first + row * leading + column;
        for (int s = begin; s < end; s += kAtOnce) {
          float4 of_slice[kAtOnce];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            if (s + i < end) of_slice[i] = *reinterpret_cast<float4 const*>(from + (s + i) * split_stride);
          }
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            if (s + i >= end) break;
            sum[0] += of_slice[i].x;
            sum[1] += of_slice[i].y;
            sum[2] += of_slice[i].z;
            sum[3] += of_slice[i].w;
          }
        }
      }
      for (int distance = together; distance < kWarp; distance *= 2) {
#pragma unroll
        for (int i = 0; i < kVector; ++i) sum[i] += __shfl_xor_sync(0xffffffff, sum[i], distance);
      }
      if (share == 0 && index < count) store(row, column, sum);
    }
  }

  static LaunchShape shape(GemmArgs const& args, int batch, Arch arch) {
    constexpr std::int64_t kMostBlocks = 1 << 20;
    std::int64_t const threads = std::int64_t{args.m} * ceil_div(args.n, kVector) * sharers(args.splits);
    LaunchShape found;
    found.grid = dim3(static_cast<unsigned>(std::min((threads + kMaxThreads - 1) / kMaxThreads, kMostBlocks)), 1,
                      static_cast<unsigned>(batch));
    found.block = dim3(kMaxThreads);
    found.dependent_launch = arch == Arch::sm90a;
    return found;
  }
};

}  // namespace cutwheel::gemm
