#include "dispatch/batch_invariance.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "dispatch/can_implement.h"
#include "dispatch/environment.h"

namespace cutwheel {
namespace {

std::atomic<bool> g_enabled{false};

// Whether the kernel serves such requests, of whatever extents, layouts and alignment.
bool serves_kind(KernelDescriptor const& kernel, GemmRequest const& r) {
  return is_gemm(kernel) && kernel.summation && kernel.op == r.op && kernel.a == r.a && kernel.b == r.b &&
         kernel.d == r.d && kernel.grouping == r.grouping && kernel.direction == r.direction && kernel.scales == r.scales &&
         has_epilogue_for(kernel, r);
}

struct Count {
  char const* summation;
  int kernels;
};

// The summation order that most of the wanted kernels have; in a tie, the one that the table has first; null if there are
// none.
template <class Wanted>
char const* most_frequent(Wanted const& wanted) {
  std::vector<Count> counts;
  for (int i = 0; i < kKernelCount; ++i) {
    KernelDescriptor const& kernel = kKernels[i];
    if (!wanted(kernel)) continue;
    auto const found = std::find_if(counts.begin(), counts.end(), [&](Count const& count) {
      return std::strcmp(count.summation, kernel.summation) == 0;
    });
    if (found == counts.end()) {
      counts.push_back({kernel.summation, 1});
    } else {
      ++found->kernels;
    }
  }
  auto const most =
      std::max_element(counts.begin(), counts.end(), [](Count const& x, Count const& y) { return x.kernels < y.kernels; });
  return most == counts.end() ? nullptr : most->summation;
}

}  // namespace

bool batch_invariant() { return g_enabled.load(std::memory_order_relaxed); }

void set_batch_invariant(bool enabled) { g_enabled.store(enabled, std::memory_order_relaxed); }

char const* invariant_order(GemmRequest const& request, DeviceInfo const& device) {
  if (request.summation || request.direction != Direction::none) return request.summation;
  Environment const allowed = environment();
  for (bool const native : {true, false}) {
    // Sums that stay in the tensor cores are what callers of use_fast_accum ask for.
    for (bool const fast : {true, false}) {
      if (fast && !request.fast_accum) continue;
      char const* const summation = most_frequent([&](KernelDescriptor const& kernel) {
        return serves_kind(kernel, request) && kernel.fast_accum == fast && allowed.admits(kernel) &&
               has_machine_code(kernel, device) == native && can_run_on(kernel, device, /*ptx=*/true) == Reason::none;
      });
      if (summation) return summation;
    }
  }
  return "none";  // nothing serves it: kernels tell why
}

}  // namespace cutwheel
