// The plans of a thread's last grouped convolutions: a choice takes microseconds.
#pragma once

#include <array>
#include <cstddef>

#include "grouped_conv/plan.h"

namespace cutwheel::conv2d::grouped {

// All that a plan depends on.
using PlanKey = std::array<int, 25>;

inline PlanKey key_of(WarpTile const& warp, GroupShape const& s, Limits const& limits, bool is_dgrad, bool stages_floats,
                      int most_images) {
  return {warp.m,     warp.n,     s.images,      s.groups,     s.channels,     s.filters,       s.in_h,
          s.in_w,     s.out_h,    s.out_w,       s.taps_h,     s.taps_w,       s.pad_h,         s.pad_w,
          s.stride_h, s.stride_w, s.dilation_h,  s.dilation_w, limits.threads, limits.sm_count, limits.shared_memory,
          s.paired,   is_dgrad,   stages_floats, most_images};
}

// Whether there is a plan: make(plan) is asked once.
template <class Plan, class Make>
bool remembered(Plan& plan, PlanKey const& key, Make const& make) {
  struct Entry {
    PlanKey key{};
    bool found = false;
    Plan plan;
  };
  thread_local std::array<Entry, 16> entries;
  std::size_t hash = 0;
  for (int each : key) hash = hash * 31 + static_cast<std::size_t>(each);
  Entry& entry = entries[(hash ^ hash >> 17) % entries.size()];
  if (entry.key != key) {
    entry.plan = Plan{};
    entry.found = make(entry.plan);
    entry.key = key;
  }
  plan = entry.plan;
  return entry.found;
}

}  // namespace cutwheel::conv2d::grouped
