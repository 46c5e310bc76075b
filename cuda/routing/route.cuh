// Sorts the choices of tokens by expert: a stable counting sort, whose order does not depend on how threads run. One kernel
// where torch takes a sort by radix, a search and a scatter.
#pragma once

#include <cutlass/fast_math.h>

#include <algorithm>

#include "core/args/routing.h"
#include "core/cutlass_types.cuh"
#include "core/group_ends.cuh"
#include "core/launch.h"

namespace cutwheel::gemm {

// The GemmArgs are RouteArgs.
template <Arch arch_>
struct Route {
  static constexpr int kWarps = 8;
  static constexpr int kMaxThreads = 32 * kWarps;
  static constexpr int kMinBlocks = 2;
  static constexpr int kSharedStorageBytes = 0;
  // Those without an expert are counted behind the last one.
  static constexpr int kMaxCounts = GroupEnds::kMaxGroups + 1;
  // Each threadblock reads the counts of all others, so there are few of them.
  static constexpr int kMaxBlocks = 64, kLeastRows = 512;

  struct Params {
    void const* ids;
    std::int32_t* places;
    std::int32_t* sources;
    std::int32_t* ends;
    std::int32_t* counts;  // [blocks, experts + 1]
    cutlass::FastDivmod choices;
    int rows, experts, rows_of_warp;
    bool is_int64, only_counts;
  };

  __device__ static int expert_of(Params const& p, int row) {
    std::int64_t const id =
        p.is_int64 ? static_cast<std::int64_t const*>(p.ids)[row] : static_cast<std::int32_t const*>(p.ids)[row];
    return id >= 0 && id < p.experts ? static_cast<int>(id) : p.experts;
  }

  // Exclusive sums, by one warp, each lane a strip.
  __device__ static void scan(int (&values)[kMaxCounts], int count, int lane) {
    int const strip = (count + 31) / 32 | 1, first = lane * strip, last = min(first + strip, count);
    int sum = 0;
    for (int i = first; i < last; ++i) sum += values[i];
    int before = sum;
    for (int step = 1; step < 32; step *= 2) {
      int const other = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += other;
    }
    before -= sum;
    for (int i = first; i < last; ++i) {
      int const value = values[i];
      values[i] = before;
      before += value;
    }
  }

  __device__ static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    __shared__ int counts[kWarps][kMaxCounts];
    __shared__ int starts[kMaxCounts];
    int const thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    int const block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x), all = p.experts + 1;
    int const first = (block * kWarps + warp) * p.rows_of_warp, last = min(first + p.rows_of_warp, p.rows);

    for (int i = thread; i < kWarps * kMaxCounts; i += kMaxThreads) counts[i / kMaxCounts][i % kMaxCounts] = 0;
    __syncthreads();
    for (int row = first + lane; row < last; row += 32) atomicAdd(&counts[warp][expert_of(p, row)], 1);
    __syncthreads();

    for (int i = thread; i < all; i += kMaxThreads) {
      int total = 0, before = 0;  // of this threadblock
#pragma unroll
      for (int w = 0; w < kWarps; ++w) total += counts[w][i];
      if (p.only_counts) {
        p.counts[block * all + i] = total;
        continue;
      }
      if (blocks > 1) {
        total = 0;
#pragma unroll 8
        for (int b = 0; b < blocks; ++b) {
          int const other = p.counts[b * all + i];
          total += other;
          before += b < block ? other : 0;
        }
      }
      starts[i] = total;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        int const own = counts[w][i];
        counts[w][i] = before;
        before += own;
      }
    }
    if (p.only_counts) return;
    __syncthreads();
    if (warp == 0) scan(starts, all, lane);
    __syncthreads();
    if (block == 0) {
      for (int i = thread; i < p.experts; i += kMaxThreads) p.ends[i] = starts[i + 1];
    }

    for (int base = first; base < last; base += 32) {
      int const row = base + lane;
      bool const is_there = row < last;
      int const expert = is_there ? expert_of(p, row) : -1;
      unsigned const same = __match_any_sync(0xffffffffu, expert);
      int const rank = __popc(same & ((1u << lane) - 1));
      int const before = is_there ? counts[warp][expert] : 0;
      __syncwarp();
      if (is_there && rank == 0) counts[warp][expert] = before + __popc(same);
      __syncwarp();
      if (!is_there) continue;
      int const place = starts[expert] + before + rank;
      p.places[row] = place;
      p.sources[place] = p.choices.div(row);
    }
  }

  static int rows_of_warp(RouteArgs const& args) {
    int const blocks = std::clamp(ceil_div(args.rows, kLeastRows), 1, kMaxBlocks);
    return round_up(std::max(ceil_div(args.rows, blocks * kWarps), 1), 32);
  }
  static int blocks(RouteArgs const& args) { return std::max(ceil_div(args.rows, rows_of_warp(args) * kWarps), 1); }

  static std::int64_t workspace_bytes(GemmArgs const& given) {
    auto const& args = static_cast<RouteArgs const&>(given);
    int const count = blocks(args);
    return count > 1 ? std::int64_t{4} * count * (args.count + 1) : 0;
  }

  static Status launch(GemmArgs const& given, void const* kernel) {
    auto const& args = static_cast<RouteArgs const&>(given);
    if (args.count > GroupEnds::kMaxGroups) return {StatusCode::not_implementable, 0};
    Params p{args.ids,
             args.places,
             args.sources,
             args.ends,
             static_cast<std::int32_t*>(args.workspace),
             cutlass::FastDivmod(args.choices),
             args.rows,
             args.count,
             rows_of_warp(args),
             args.is_int64,
             false};
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(blocks(args)));
    shape.block = dim3(kMaxThreads);
    shape.dependent_launch = arch_ == Arch::sm90a;
    if (shape.grid.x > 1) {
      p.only_counts = true;
      if (Status const status = launch_kernel(kernel, shape, p, args.stream); !status.good()) return status;
      p.only_counts = false;
    }
    return launch_kernel(kernel, shape, p, args.stream);
  }
};

}  // namespace cutwheel::gemm
