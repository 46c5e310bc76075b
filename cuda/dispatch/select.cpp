#include "dispatch/select.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "common/error.h"
#include "dispatch/cost_model.h"

namespace cutwheel {
namespace {

constexpr char const* kExcludedByEnvironment = "CUTWHEEL_ARCH or CUTWHEEL_KERNEL excludes it";

struct Environment {
  std::optional<Arch> arch;
  std::string kernel;
};

std::mutex g_environment_mutex;
Environment g_environment;
std::atomic<unsigned> g_generation{0};  // 0: not read yet; a change empties the plan caches

Environment read_environment() {
  Environment environment;
  if (char const* value = std::getenv("CUTWHEEL_ARCH"); value && *value) {
    for (Arch arch : {Arch::sm80, Arch::sm89, Arch::sm90a}) {
      if (std::strcmp(value, name_of(arch)) == 0) environment.arch = arch;
    }
    if (!environment.arch) {
      fail(ErrorKind::value, "CUTWHEEL_ARCH is \"", value, "\"; expected sm80, sm89 or sm90a, or leave it unset");
    }
  }
  if (char const* value = std::getenv("CUTWHEEL_KERNEL")) environment.kernel = value;
  bool const known =
      environment.kernel.empty() || std::any_of(kKernelRows, kKernelRows + kKernelRowCount, [&](KernelRow const& row) {
        return row.family != Family::splitk_reduce && environment.kernel == row.name;
      });
  if (!known) {
    fail(ErrorKind::value, "CUTWHEEL_KERNEL is \"", environment.kernel,
         "\", and this wheel has no such kernel; cutwheel.kernels() lists them");
  }
  return environment;
}

Environment environment() {
  std::lock_guard<std::mutex> lock(g_environment_mutex);
  if (g_generation.load() == 0) {
    g_environment = read_environment();
    g_generation.store(1);
  }
  return g_environment;
}

// Why the device cannot run the row at all; empty when it can. PTX rows count only when `ptx`.
std::string device_reason(KernelRow const& row, DeviceInfo const& device, bool ptx) {
  bool const native = runs_native(row.arch, device.major, device.minor);
  if (!native && !(row.has_ptx && runs_ptx(row.arch, device.major, device.minor))) {
    return concat("built for ", name_of(row.arch), ", the device is compute capability ", device.major, '.', device.minor);
  }
  if (!native && !ptx) return "would run through PTX, and native kernels are there";
  if (*row.shared_memory_bytes > device.shared_memory_bytes) {
    return concat("needs ", *row.shared_memory_bytes, " bytes of shared memory, the device offers ",
                  device.shared_memory_bytes);
  }
  return {};
}

// Why the row cannot do what is asked, as the whole of it or (partial) as the first half of split-K.
std::string request_reason(KernelRow const& row, GemmRequest const& request, bool partial) {
  if (row.a != request.a || row.b != request.a) return concat("operands are ", name_of(request.a));
  if (row.d != (partial ? DType::f32 : request.d)) return concat("the output is ", name_of(request.d));
  if (row.layout_a != request.layout_a || row.layout_b != request.layout_b) {
    return concat("the operands' layouts are ", letter_of(request.layout_a), letter_of(request.layout_b));
  }
  // A matrix addend also does for a row (stride 0 between its rows), and for none (beta == 0).
  Addend const adds = kEpilogueAddend[static_cast<int>(row.epilogue)];
  if (!partial && adds != request.addend && adds != Addend::matrix) {
    return concat("the addend is ", name_of(request.addend), ", its epilogue adds ", name_of(adds));
  }
  if (row.family == Family::sm80_multistage && !request.extents_aligned) {
    return "a contiguous extent is no multiple of 16 bytes";
  }
  return {};
}

struct Scope {
  Environment environment;
  DeviceInfo const& device;
  bool ptx = false;  // nothing runs natively, or the environment asks for another architecture
};

bool in_environment(KernelRow const& row, Environment const& environment) {
  if (environment.arch && row.arch != *environment.arch) return false;
  return environment.kernel.empty() || row.family == Family::splitk_reduce || environment.kernel == row.name;
}

Scope scope_of(GemmRequest const& request, DeviceInfo const& device) {
  Scope scope{environment(), device};
  bool const forced = scope.environment.arch.has_value() || !scope.environment.kernel.empty();
  scope.ptx = forced || std::none_of(kKernelRows, kKernelRows + kKernelRowCount, [&](KernelRow const& row) {
                return row.family != Family::splitk_reduce &&
                       runs_native(row.arch, scope.device.major, scope.device.minor) &&
                       request_reason(row, request, false).empty();
              });
  return scope;
}

// Splits that leave whole 16-byte, and better whole k tiles, in each slice.
void add_split_plans(std::vector<GemmPlan>& plans, KernelRow const& row, GemmRequest const& request, Scope const& scope) {
  constexpr int kShortestSlice = 512;
  if (request.batch != 1 || row.d != DType::f32 || row.schedule == Schedule::streamk) return;
  int const tile_m = row.swap_ab ? row.tile.n : row.tile.m, tile_n = row.swap_ab ? row.tile.m : row.tile.n;
  std::int64_t const tiles = ceil_div<std::int64_t>(request.m, tile_m) * ceil_div(request.n, tile_n);
  if (tiles > scope.device.sm_count) return;
  KernelRow const* const reduce = find_reduce_row(scope.device, request.d, row.arch);
  if (!reduce) return;
  for (int splits : {2, 3, 4, 6, 8}) {
    if (request.k % (splits * row.tile.k) || request.k / splits < kShortestSlice ||
        tiles * splits > 3 * scope.device.sm_count) {
      continue;
    }
    GemmPlan plan;
    plan.row = &row;
    plan.reduce = reduce;
    plan.splits = splits;
    plans.push_back(plan);
  }
}

struct CacheEntry {
  unsigned generation = 0;
  GemmRequest request;
  std::optional<GemmPlan> plan;
};

std::size_t hash_of(GemmRequest const& r) {
  std::uint64_t h = 0x9e3779b97f4a7c15ull;
  auto const mix = [&h](std::uint64_t v) { h = (h ^ v) * 0xff51afd7ed558ccdull, h ^= h >> 32; };
  mix(static_cast<std::uint64_t>(r.m) << 32 | static_cast<unsigned>(r.n));
  mix(static_cast<std::uint64_t>(r.k) << 32 | static_cast<unsigned>(r.batch));
  mix(static_cast<std::uint64_t>(r.device) << 16 | static_cast<unsigned>(r.a) << 12 | static_cast<unsigned>(r.d) << 8 |
      static_cast<unsigned>(r.layout_a) << 4 | static_cast<unsigned>(r.layout_b) << 3 |
      static_cast<unsigned>(r.addend) << 1 | static_cast<unsigned>(r.extents_aligned));
  return static_cast<std::size_t>(h);
}

}  // namespace

KernelRow const* find_reduce_row(DeviceInfo const& device, DType d, std::optional<Arch> arch) {
  for (bool ptx : {false, true}) {
    for (int i = 0; i < kKernelRowCount; ++i) {
      KernelRow const& row = kKernelRows[i];
      if (row.family == Family::splitk_reduce && row.d == d && (!arch || row.arch == *arch) &&
          device_reason(row, device, ptx).empty()) {
        return &row;
      }
    }
  }
  return nullptr;
}

void reload_environment() {
  std::lock_guard<std::mutex> lock(g_environment_mutex);
  g_environment = read_environment();
  g_generation.fetch_add(g_generation.load() == 0 ? 2 : 1);
}

std::vector<GemmPlan> rank_plans(GemmRequest const& request, DeviceInfo const& device, std::vector<Rejection>* rejections) {
  Scope const scope = scope_of(request, device);
  std::vector<GemmPlan> plans;
  for (int i = 0; i < kKernelRowCount; ++i) {
    KernelRow const& row = kKernelRows[i];
    if (row.family == Family::splitk_reduce) continue;
    std::string reason;
    if (!in_environment(row, scope.environment)) reason = kExcludedByEnvironment;
    if (reason.empty()) reason = device_reason(row, scope.device, scope.ptx);
    if (reason.empty()) {
      if (request_reason(row, request, /*partial=*/true).empty()) add_split_plans(plans, row, request, scope);
      reason = request_reason(row, request, /*partial=*/false);
    }
    if (!reason.empty()) {
      if (rejections) rejections->push_back({&row, reason});
      continue;
    }
    GemmPlan plan;
    plan.row = &row;
    plans.push_back(plan);
  }
  for (GemmPlan& plan : plans) {
    choose_raster(plan, request);
    plan.predicted_us = predict_us(plan, request, scope.device);
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](GemmPlan const& x, GemmPlan const& y) { return x.predicted_us < y.predicted_us; });
  return plans;
}

std::optional<GemmPlan> choose_plan(GemmRequest const& request) {
  // Direct-mapped: a model calls with far fewer shapes than this, and a miss costs microseconds.
  thread_local std::array<CacheEntry, 512> cache;
  if (g_generation.load(std::memory_order_acquire) == 0) environment();
  unsigned const generation = g_generation.load(std::memory_order_acquire);
  CacheEntry& entry = cache[hash_of(request) % cache.size()];
  if (entry.generation != generation || !(entry.request == request)) {
    std::vector<GemmPlan> const plans = rank_plans(request, device_info(request.device));
    entry.plan = plans.empty() ? std::nullopt : std::optional<GemmPlan>(plans.front());
    entry.request = request;
    entry.generation = generation;
  }
  return entry.plan;
}

std::string explain_miss(GemmRequest const& request, DeviceInfo const& device) {
  std::vector<Rejection> rejections;
  rank_plans(request, device, &rejections);
  std::string text =
      concat("no kernel in this wheel serves ", name_of(request.a), " operands (layouts ", letter_of(request.layout_a),
             letter_of(request.layout_b), ") with ", name_of(request.d), " output and addend ", name_of(request.addend),
             " on ", device.name, " (compute capability ", device.major, '.', device.minor, "). ");
  if (archs_served(device.major, device.minor).empty()) {
    return text + "The wheel needs a GPU of compute capability 8.0 or newer.";
  }
  auto const excluded = std::stable_partition(rejections.begin(), rejections.end(),
                                              [](Rejection const& r) { return r.reason != kExcludedByEnvironment; });
  auto const shown = std::min<std::ptrdiff_t>(8, excluded - rejections.begin());
  text += concat("Rows considered: ", excluded - rejections.begin());
  for (auto row = rejections.begin(); row != rejections.begin() + shown; ++row)
    text += concat("\n  ", row->row->name, ": ", row->reason);
  if (excluded != rejections.end()) text += concat("\n  ", rejections.end() - excluded, " more: ", kExcludedByEnvironment);
  return text;
}

std::vector<std::string> archs_served(int major, int minor) {
  std::vector<std::string> served;
  for (bool native : {true, false}) {
    for (Arch arch : {Arch::sm90a, Arch::sm89, Arch::sm80}) {
      bool const present = std::any_of(kKernelRows, kKernelRows + kKernelRowCount,
                                       [&](KernelRow const& row) { return row.arch == arch && (native || row.has_ptx); });
      if (!present) continue;
      if (native && runs_native(arch, major, minor)) served.emplace_back(name_of(arch));
      if (!native && !runs_native(arch, major, minor) && runs_ptx(arch, major, minor)) {
        served.push_back(concat(name_of(arch), " (PTX)"));
      }
    }
  }
  return served;
}

}  // namespace cutwheel
