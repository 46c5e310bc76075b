#include "dispatch/select.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/sm_limit.h"
#include "dispatch/batch_invariance.h"
#include "dispatch/can_implement.h"
#include "dispatch/cost_model.h"
#include "dispatch/environment.h"
#include "dispatch/tuning/calibration.h"
#include "dispatch/tuning/table.h"

namespace cutwheel {
namespace {

struct Scope {
  Environment environment;
  DeviceInfo const& device;
  bool ptx = false;  // nothing runs natively, or the environment asks for another architecture
};

Scope scope_of(GemmRequest const& request, DeviceInfo const& device) {
  Scope scope{environment(), device};
  bool const forced = scope.environment.arch.has_value() || !scope.environment.kernel.empty();
  scope.ptx = forced || std::none_of(kKernels, kKernels + kKernelCount, [&](KernelDescriptor const& kernel) {
                return is_gemm(kernel) && kernel.op == request.op && has_machine_code(kernel, device) &&
                       can_implement(kernel, request, false) == Reason::none;
              });
  return scope;
}

// The reduce kernels that one ranking needs: looked up once for each architecture, not for each kernel.
class ReduceKernels {
 public:
  ReduceKernels(DeviceInfo const& device, GemmRequest const& request) : device_(device), d_(request.d) {
    bool const is_product = request.direction == Direction::none;
    if (is_product && request.addend == Addend::other) epilogue_ = request.epilogue;
  }

  KernelDescriptor const* of(Arch arch) {
    for (Entry& entry : entries_) {
      if (entry.arch == arch) return entry.kernel;
      if (entry.arch) continue;
      entry = {arch, find_reduce_kernel(device_, d_, arch, epilogue_)};
      return entry.kernel;
    }
    return find_reduce_kernel(device_, d_, arch, epilogue_);
  }

 private:
  struct Entry {
    std::optional<Arch> arch;
    KernelDescriptor const* kernel = nullptr;
  };
  DeviceInfo const& device_;
  DType d_;
  std::optional<Epilogue> epilogue_;
  std::array<Entry, 3> entries_;
};

// How many parts of K the request needs at least. fp8 and block-wise kernels leave the tensor cores every few additions, or
// are asked to truncate; int8 adds exactly; K of a forward convolution and of its dgrad are channels.
int fewest_splits(GemmRequest const& request) {
  bool const truncates = request.a == DType::f16 || request.a == DType::bf16 || request.a == DType::tf32;
  bool const is_long = request.direction == Direction::none || request.direction == Direction::wgrad;
  return truncates && is_long && request.grouping == Grouping::none ? ceil_div(request.k, kLongestSum) : 1;
}

GemmPlan split_plan(KernelDescriptor const& kernel, KernelDescriptor const& reduce, int splits) {
  GemmPlan plan;
  plan.kernel = &kernel;
  plan.reduce = &reduce;
  plan.splits = splits;
  return plan;
}

// The gradient of a filter: few tiles, and a K of all pixels. Splits that fill the SMs once, twice or three times, none of
// which is empty; and one, for the reduction to convert.
void add_wgrad_split_plans(std::vector<GemmPlan>& plans, KernelDescriptor const& kernel, KernelDescriptor const& reduce,
                           GemmRequest const& request, DeviceInfo const& device) {
  constexpr int kFewestSteps = 8;
  constexpr std::int64_t kMaxPartialBytes = 256 << 20;
  int const fewest = fewest_splits(request);
  auto const [tiles, steps] = count_tiles(kernel, request, 1);
  std::int64_t const split_bytes = std::int64_t{request.m} * request.n * static_cast<std::int64_t>(sizeof(float));
  int const k_tiles = static_cast<int>(steps),
            most = std::min<std::int64_t>(k_tiles / kFewestSteps, kMaxPartialBytes / split_bytes);
  if (kernel.d != request.d && fewest == 1) plans.push_back(split_plan(kernel, reduce, 1));
  int last = 1;
  for (int waves : {1, 2, 3}) {
    int const wanted = std::max(std::min(static_cast<int>(waves * device.sm_count / tiles), most), fewest);
    if (wanted < 2) continue;
    int const splits = ceil_div(k_tiles, ceil_div(k_tiles, wanted));
    if (splits != last) plans.push_back(split_plan(kernel, reduce, splits));
    last = splits;
  }
}

// Splits that leave whole tiles of K in each slice, and those that a long K needs, where the last slice takes the rest.
void add_split_plans(std::vector<GemmPlan>& plans, KernelDescriptor const& kernel, GemmRequest const& request,
                     DeviceInfo const& device, ReduceKernels& reduce_kernels) {
  constexpr int kShortestSlice = 512;
  if (request.grouping != Grouping::none || !request.d_aligned) return;
  if (request.addend == Addend::other) {
    // An epilogue takes four columns at once. Rows of another N lie on 16 bytes only where the caller has padded them.
    if (request.op != Op::gemm || request.n % 4 != 0) return;
    // Of 16 bits in float32: nothing serves them unsplit, and K is not to decide whether they are served.
    if (request.d == DType::f32 && request.a != DType::tf32) return;
  }
  int const fewest = fewest_splits(request);
  if (request.batch != 1 && fewest == 1) return;
  if (kernel.d != DType::f32) return;
  if (can_implement(kernel, request, /*partial=*/true) != Reason::none) return;
  if (request.direction != Direction::none) {
    if (request.direction != Direction::wgrad) return;
    if (KernelDescriptor const* const reduce = reduce_kernels.of(kernel.arch)) {
      add_wgrad_split_plans(plans, kernel, *reduce, request, device);
    }
    return;
  }
  int const tile_m = kernel.swap_ab ? kernel.tile.n : kernel.tile.m,
            tile_n = kernel.swap_ab ? kernel.tile.m : kernel.tile.n;
  std::int64_t const tiles = ceil_div<std::int64_t>(request.m, tile_m) * ceil_div(request.n, tile_n);
  if (tiles > device.sm_count && fewest == 1) return;
  KernelDescriptor const* const reduce = reduce_kernels.of(kernel.arch);
  if (!reduce) return;
  if (request.batch_invariant) {
    // Slices of the same length in every kernel.
    constexpr int kBytes = 128;
    if (fewest > 1 && kernel.tile.k * element_bytes(kernel.a) == kBytes) {
      plans.push_back(split_plan(kernel, *reduce, ceil_div(request.k, split_slice(kernel, request.k, fewest))));
    }
    return;
  }
  if (fewest > 1) {
    // As few as there have to be, and those that fill the SMs.
    int last = 0;
    for (std::int64_t wanted : {std::int64_t{fewest}, device.sm_count / tiles}) {
      if (wanted <= last) continue;
      int const slice = split_slice(kernel, request.k, static_cast<int>(wanted));
      if (kernel.cluster.k > 1 && request.k % slice) continue;  // what is left may be too short for a cluster
      last = ceil_div(request.k, slice);
      plans.push_back(split_plan(kernel, *reduce, last));
    }
    return;
  }
  // Slices of any length, and as many as fill the SMs once, twice or three times, by kernels that take them.
  if (takes_slices(kernel)) {
    int const k_tiles = ceil_div(request.k, kernel.tile.k), most = std::max(1, request.k / kShortestSlice);
    int const filling = static_cast<int>(device.sm_count / tiles);
    int const filling_thrice = static_cast<int>(3 * device.sm_count / tiles);  // 23 tiles: 17 slices, 391 of 396
    std::array<int, 8> counts{2, 3, 4, 6, 8, filling, 2 * filling, filling_thrice};
    std::sort(counts.begin(), counts.end());
    int last = 1;
    for (int const wanted : counts) {
      if (wanted < 2) continue;
      int const splits = ceil_div(k_tiles, ceil_div(k_tiles, std::min(wanted, most)));
      if (splits <= last || tiles * splits > 3 * device.sm_count) continue;
      plans.push_back(split_plan(kernel, *reduce, splits));
      last = splits;
    }
    return;
  }
  for (int splits : {2, 3, 4, 6, 8}) {
    if (request.k % (splits * kernel.tile.k) || request.k / splits < kShortestSlice ||
        tiles * splits > 3 * device.sm_count) {
      continue;
    }
    plans.push_back(split_plan(kernel, *reduce, splits));
  }
}

struct CacheEntry {
  unsigned generation = 0;
  int sm_count = 0;
  bool leaves_sms = false;
  GemmRequest request;
  std::optional<GemmPlan> plan;
};

std::size_t hash_of(GemmRequest const& r, int sm_count) {
  std::uint64_t h = 0x9e3779b97f4a7c15ull;
  auto const mix = [&h](std::uint64_t v) { h = (h ^ v) * 0xff51afd7ed558ccdull, h ^= h >> 32; };
  mix(static_cast<std::uint64_t>(r.m) << 32 | static_cast<unsigned>(r.n));
  mix(static_cast<std::uint64_t>(sm_count));
  mix(static_cast<std::uint64_t>(r.k) << 32 | static_cast<unsigned>(r.batch));
  mix(static_cast<std::uint64_t>(r.epilogue) << 32 | static_cast<std::uint64_t>(r.device) << 16 |
      static_cast<unsigned>(r.a) << 12 | static_cast<unsigned>(r.d) << 8 | static_cast<unsigned>(r.layout_a) << 4 |
      static_cast<unsigned>(r.layout_b) << 3 | static_cast<unsigned>(r.addend) << 1 |
      static_cast<unsigned>(r.extents_aligned));
  mix(static_cast<std::uint64_t>(r.pairs_apart) << 3 | static_cast<std::uint64_t>(r.a_aligned) << 2 |
      static_cast<std::uint64_t>(r.b_aligned) << 1 | static_cast<std::uint64_t>(r.d_aligned));
  mix(static_cast<std::uint64_t>(r.groups) << 32 | static_cast<std::uint64_t>(r.grouping) << 24 |
      static_cast<std::uint64_t>(r.op) << 16 | static_cast<std::uint64_t>(r.b) << 8 |
      static_cast<std::uint64_t>(r.scales) << 1 | static_cast<std::uint64_t>(r.fast_accum));
  mix(static_cast<std::uint64_t>(r.taps) << 32 | static_cast<std::uint64_t>(r.step) << 7 |
      static_cast<std::uint64_t>(r.padded_filter) << 5 | static_cast<std::uint64_t>(r.batch_invariant) << 4 |
      static_cast<std::uint64_t>(r.is_volume) << 3 | static_cast<std::uint64_t>(r.direction) << 1 |
      static_cast<std::uint64_t>(r.tensor_maps));
  for (DirectConvTiles const& x : {r.direct_conv, r.space_to_depth, r.few_channels}) {
    mix(static_cast<std::uint64_t>(x.output_tiles) << 16 | static_cast<std::uint64_t>(x.steps) << 8 |
        static_cast<std::uint64_t>(x.channels));
  }
  mix(static_cast<std::uint64_t>(r.shared_pixels.positions) << 16 | static_cast<std::uint64_t>(r.shared_pixels.taps));
  return static_cast<std::size_t>(h);
}

}  // namespace

std::vector<GemmPlan> rank_plans(GemmRequest const& asked, DeviceInfo const& device, std::vector<Rejection>* rejections,
                                 PlanSource* source) {
  Scope const scope = scope_of(asked, device);
  GemmRequest request = asked;
  if (request.batch_invariant) request.summation = invariant_order(asked, device);
  ReduceKernels reduce_kernels(device, request);
  std::vector<GemmPlan> plans;
  for (int i = 0; i < kKernelCount; ++i) {
    KernelDescriptor const& kernel = kKernels[i];
    if (!is_gemm(kernel) || kernel.op != request.op) continue;
    Reason reason = scope.environment.admits(kernel) ? can_run_on(kernel, device, scope.ptx) : Reason::environment;
    if (reason == Reason::none) {
      bool const is_in_order = !request.summation || has_summation_of(kernel, request);
      if (is_in_order) add_split_plans(plans, kernel, request, device, reduce_kernels);
      reason = can_implement(kernel, request, /*partial=*/false);
      if (reason == Reason::none && !is_in_order) reason = Reason::summation;
    }
    if (reason != Reason::none) {
      if (rejections) rejections->push_back({&kernel, text_of(reason, kernel, request, device)});
      continue;
    }
    GemmPlan plan;
    plan.kernel = &kernel;
    plans.push_back(plan);
  }
  // Where a kernel splits a long K, none is taken that does not.
  bool const is_long = fewest_splits(request) > 1;
  if (is_long && std::any_of(plans.begin(), plans.end(), [](GemmPlan const& plan) { return plan.splits > 1; })) {
    plans.erase(std::remove_if(plans.begin(), plans.end(), [](GemmPlan const& plan) { return plan.splits == 1; }),
                plans.end());
  }
  for (GemmPlan& plan : plans) {
    choose_raster(plan, request);
    plan.predicted_us = predict_us(plan, request, device);
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](GemmPlan const& x, GemmPlan const& y) { return x.predicted_us < y.predicted_us; });
  std::optional<PlanSource> const tuned = apply_tuning(plans, request, device);
  if (source && !plans.empty()) {
    bool const measured = is_measured(*plans.front().kernel, device);
    *source = tuned.value_or(PlanSource{measured ? Basis::cost_model : Basis::estimate, 0, 0, 0, {}});
  }
  return plans;
}

std::string text_of(PlanSource const& source) {
  switch (source.basis) {
    case Basis::cost_model: break;
    case Basis::estimate: return "cost model (estimated)";
    case Basis::measured: return "tuned (exact)";
    case Basis::near: return concat("tuned (near ", source.m, 'x', source.n, 'x', source.k, ')');
  }
  return "cost model";
}

std::optional<GemmPlan> choose_plan(GemmRequest const& request) {
  // Direct-mapped: a model calls with far fewer shapes than this, and a miss costs microseconds.
  thread_local std::array<CacheEntry, 512> cache;
  unsigned const generation = environment_generation();
  DeviceInfo const& device = device_info(request.device);
  bool const leaves = leaves_sms(device.sm_count);
  CacheEntry& entry = cache[hash_of(request, device.sm_count) % cache.size()];
  if (entry.generation != generation || entry.sm_count != device.sm_count || entry.leaves_sms != leaves ||
      !(entry.request == request)) {
    std::vector<GemmPlan> const plans = rank_plans(request, device);
    entry.plan = plans.empty() ? std::nullopt : std::optional<GemmPlan>(plans.front());
    entry.request = request;
    entry.sm_count = device.sm_count;
    entry.leaves_sms = leaves;
    entry.generation = generation;
  }
  return entry.plan;
}

std::string operands_text(GemmRequest const& request) {
  return request.a == request.b ? name_of(request.a) : concat(name_of(request.a), " x ", name_of(request.b));
}

std::string fp8_miss(DeviceInfo const& device) {
  return concat(device.name, " (compute capability ", device.major, '.', device.minor,
                ") has no fp8 tensor cores. GPUs of compute capability 8.9 (Ada: L4, L40S, RTX 40xx), 9.0 (Hopper: H100, "
                "H200) and newer (through PTX) have them; int8 operands run from 8.0 on");
}

std::string explain_miss(GemmRequest const& request, DeviceInfo const& device) {
  if ((is_fp8(request.a) || is_fp8(request.b)) && !has_fp8(device.major, device.minor)) return fp8_miss(device);
  std::vector<Rejection> rejections;
  rank_plans(request, device, &rejections);
  bool const named = request.addend == Addend::other, blockwise = request.scales != BlockScales::none,
             grouped = request.grouping != Grouping::none, conv = request.direction != Direction::none;
  std::string const what = conv ? concat("direction ", name_of(request.direction))
                                : concat("layouts ", letter_of(request.layout_a), letter_of(request.layout_b));
  std::string text = concat("no kernel in this wheel serves ", operands_text(request), " operands (", what, ")",
                            grouped ? concat(" in groups along ", name_of(request.grouping)) : "",
                            blockwise ? concat(" with scales ", name_of(request.scales)) : "", " with ", name_of(request.d),
                            " output and ", named || conv ? "epilogue " : "addend ",
                            named || conv ? info_of(request.epilogue).name : name_of(request.addend), " on ", device.name,
                            " (compute capability ", device.major, '.', device.minor, "). ");
  if (archs_served(device.major, device.minor).empty()) {
    return text + "The wheel needs a GPU of compute capability 8.0 or newer.";
  }
  Scope const scope = scope_of(request, device);
  auto const excluded = std::stable_partition(rejections.begin(), rejections.end(),
                                              [&](Rejection const& r) { return scope.environment.admits(*r.kernel); });
  // Most kernels have another epilogue or are for another GPU, which says little: first those that come near.
  std::stable_partition(rejections.begin(), excluded, [&](Rejection const& r) {
    return has_epilogue_for(*r.kernel, request) && can_run_on(*r.kernel, device, /*ptx=*/true) == Reason::none;
  });
  auto const shown = std::min<std::ptrdiff_t>(8, excluded - rejections.begin());
  text += concat("Rows considered: ", excluded - rejections.begin());
  for (auto kernel = rejections.begin(); kernel != rejections.begin() + shown; ++kernel)
    text += concat("\n  ", kernel->kernel->name, ": ", kernel->reason);
  if (excluded != rejections.end()) {
    text += concat("\n  ", rejections.end() - excluded, " more: ", excluded->reason);
  }
  return text;
}

std::vector<std::string> archs_served(int major, int minor) {
  std::vector<std::string> served;
  for (bool native : {true, false}) {
    for (Arch arch : {Arch::sm90a, Arch::sm89, Arch::sm80}) {
      bool const present = std::any_of(kKernels, kKernels + kKernelCount, [&](KernelDescriptor const& kernel) {
        return kernel.arch == arch && (native || kernel.has_ptx);
      });
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
