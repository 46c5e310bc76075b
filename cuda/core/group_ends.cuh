// Ends of the groups of a grouped GEMM, and the group of each tile. Only the device knows them: every threadblock builds
// this table for itself, so there is no kernel before the GEMM, no workspace, and the host never waits.
#pragma once

#include <cstdint>

#include "core/args/gemm.h"

namespace cutwheel::gemm {

struct GroupEnds {
  static constexpr int kMaxGroups = 1024;

  // Whatever the ends are, those in here rise and lie between 0 and the total. The last entry, of index GroupArgs::count,
  // is what belongs to no group: it ends at the total.
  struct Storage {
    int end[kMaxGroups + 1];
    int tile_end[kMaxGroups + 1];  // of the tiles of this group and all before it
  };

  // To be called by all `threads` threads of a threadblock. `tile` is the rows of a tile, of which there are tiles_n side
  // by side; without it, where groups have no tiles of their own, only ends are found.
  __device__ __forceinline__ static void load(Storage& storage, GroupArgs const& groups, int total, int tile, int tiles_n,
                                              int thread, int threads) {
    for (int i = thread; i < groups.count; i += threads) {
      std::int64_t const end = groups.is_int64 ? static_cast<std::int64_t const*>(groups.ends)[i]
                                               : static_cast<std::int32_t const*>(groups.ends)[i];
      std::int64_t const value = end < groups.first ? 0 : end - groups.first;
      storage.end[i] = value > total ? total : static_cast<int>(value);
    }
    if (thread == 0) storage.end[groups.count] = total;
    __syncthreads();
    if (thread < 32) scan(storage, groups.count + 1, tile, tiles_n, thread);
    __syncthreads();
  }

  // The group of a tile. It is `from` or a later one: a threadblock's tiles have rising numbers, so that the group of the
  // one before will do. There have to be that many tiles.
  __device__ __forceinline__ static int find(Storage const& storage, int count, int tile, int from) {
    if (tile < storage.tile_end[from]) return from;
    int low = from + 1, high = count;
    while (low < high) {
      int const middle = (low + high) / 2;
      if (tile < storage.tile_end[middle]) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }

 private:
  // Over the lanes before this one; lane 0 gets 0.
  template <class Combine>
  __device__ __forceinline__ static int exclusive_scan(int value, int lane, Combine const& combine) {
    for (int step = 1; step < 32; step *= 2) {
      int const other = __shfl_up_sync(0xffffffffu, value, step);
      if (lane >= step) value = combine(value, other);
    }
    value = __shfl_up_sync(0xffffffffu, value, 1);
    return lane == 0 ? 0 : value;
  }

  // By one warp, each lane a strip. An odd length keeps the lanes in different banks.
  __device__ __forceinline__ static void scan(Storage& storage, int entries, int tile, int tiles_n, int lane) {
    int const strip = (entries + 31) / 32 | 1;
    int const first = lane * strip, last = first + strip < entries ? first + strip : entries;
    auto const higher = [](int x, int y) { return x > y ? x : y; };
    auto const sum = [](int x, int y) { return x + y; };

    int highest = 0;
    for (int i = first; i < last; ++i) highest = higher(highest, storage.end[i]);
    highest = exclusive_scan(highest, lane, higher);
    int tiles = 0;
    for (int i = first; i < last; ++i) {
      int const begin = highest;
      highest = higher(highest, storage.end[i]);
      storage.end[i] = highest;
      if (tile) storage.tile_end[i] = tiles += (highest - begin + tile - 1) / tile * tiles_n;
    }
    if (tile == 0) return;
    tiles = exclusive_scan(tiles, lane, sum);
    for (int i = first; i < last; ++i) storage.tile_end[i] += tiles;
  }
};

}  // namespace cutwheel::gemm
