// Who computes which tiles of residue classes, the ones with the most k-tiles first. First there are rounds, in which every
// threadblock has a tile of each class: so what they read of the gradient, and what lies side by side in D, stays in L2,
// and zeros of classes without taps are stored while others are multiplied.
// The other tiles of each class go to the threadblocks with the least work, the longest processing time first: dealt out in
// turn, they left some threadblocks with a third more than the mean.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/fast_math.h>

#include <algorithm>

namespace cutwheel::conv2d {

struct Sm90ClassShares {
  static constexpr int kClasses = 4, kGroups = kClasses + 1, kEntries = 12;
  // A tile counts for so many k-tiles more, for its epilogue, and zeros for so many: an estimate.
  static constexpr int kTileCost = 3, kZerosCost = 1;

  int end = 0;  // indices before it are of shares
  int classes = 0, rounds_end = 0, first[kGroups] = {};
  int entries[kGroups][kEntries] = {};  // first tile * kClasses + class; -1: nothing
  cutlass::FastDivmod turn, round;      // threadblocks, and tiles of a round

  // Classes are sorted by k-tiles. Where there are more than kClasses, shares are of those that have taps, if as many as
  // that. Nothing is planned for more, for one alone, and where zeros need more entries than a threadblock has.
  void plan(int count, int const* k_tiles, int const* tiles, int threadblocks) {
    end = rounds_end = classes = 0;
    turn = round = cutlass::FastDivmod(1);
    while (classes < count && (count <= kClasses || k_tiles[classes] > 0)) ++classes;
    if (classes < 2 || classes > kClasses) return;
    int const least = *std::min_element(tiles, tiles + classes), rounds = std::max(least / threadblocks - 1, 0);
    turn = cutlass::FastDivmod(threadblocks);
    round = cutlass::FastDivmod(threadblocks * classes);
    struct Group {
      int size, load, count;
    } groups[kGroups] = {{threadblocks, 0, 0}};
    int groups_count = 1;
    for (auto& of_group : entries) std::fill(of_group, of_group + kEntries, -1);
    int most = 0;
    for (int i = 0; i < classes; ++i) {
      for (int tile = rounds * threadblocks; tile < tiles[i];) {
        int at = 0;
        for (int g = 1; g < groups_count; ++g) at = groups[g].load < groups[at].load ? g : at;
        int const left = tiles[i] - tile;
        if (left < groups[at].size) {
          // The rest of this group is one of its own.
          for (int g = groups_count++; g > at; --g) {
            groups[g] = groups[g - 1];
            std::copy(entries[g - 1], entries[g - 1] + kEntries, entries[g]);
          }
          groups[at].size = left;
          groups[at + 1].size -= left;
          for (int e = 0; e < groups[at].count; ++e) entries[at + 1][e] += left * kClasses;
        }
        if (groups[at].count == kEntries) return;
        entries[at][groups[at].count++] = tile * kClasses + i;
        most = std::max(most, groups[at].count);
        groups[at].load += k_tiles[i] > 0 ? k_tiles[i] + kTileCost : kZerosCost;
        tile += groups[at].size;
      }
    }
    for (int g = 0, before = 0; g < kGroups; before += groups[g++].size)
      first[g] = g < groups_count ? before : threadblocks;
    rounds_end = rounds * threadblocks * classes;
    end = rounds_end + most * threadblocks;
  }

  // From the index of a tile to its class, or -1, and its number there.
  CUTLASS_DEVICE void find(int& of, int& index) const {
    int number, threadblock;
    if (index < rounds_end) {
      round(number, index, index);
      turn(of, index, index);
      index += number * turn.divisor;
      return;
    }
    turn(number, threadblock, index - rounds_end);
    int group = 0;
    while (group + 1 < kGroups && threadblock >= first[group + 1]) ++group;
    int const entry = entries[group][number];
    of = entry < 0 ? -1 : entry % kClasses;
    index = entry / kClasses + threadblock - first[group];
  }
};

}  // namespace cutwheel::conv2d
