#include "dispatch/tuning/table.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "dispatch/cost_model.h"
#include "dispatch/float_math.h"
#include "dispatch/tuning/store.h"

namespace cutwheel {
namespace {

// Whether K is a whole number of 128-byte lines: other tiles are the best where it is not, however near its extent is.
bool has_whole_lines(GemmRequest const& x) { return std::int64_t{x.k} * element_bytes(x.a) % 128 == 0; }

// Besides extents and device. Tables know images only. An epilogue has a meaning only where it was asked for by name.
bool same_kind(GemmRequest const& x, GemmRequest const& y) {
  bool const named = x.addend == Addend::other || x.direction != Direction::none;
  return x.op == y.op && x.a == y.a && x.b == y.b && x.d == y.d && x.layout_a == y.layout_a && x.layout_b == y.layout_b &&
         x.addend == y.addend && (!named || x.epilogue == y.epilogue) && x.fast_accum == y.fast_accum &&
         x.scales == y.scales && x.extents_aligned == y.extents_aligned && x.a_aligned == y.a_aligned &&
         x.b_aligned == y.b_aligned && x.d_aligned == y.d_aligned && x.batch == y.batch && x.grouping == y.grouping &&
         x.groups == y.groups && x.direction == y.direction && x.taps == y.taps && x.step == y.step &&
         x.is_volume == y.is_volume && x.tensor_maps == y.tensor_maps && x.padded_filter == y.padded_filter &&
         (x.direction != Direction::none || has_whole_lines(x) == has_whole_lines(y));
}

double distance(GemmRequest const& x, GemmRequest const& y) {
  auto const along = [](int a, int b) { return a == b ? 0. : std::abs(float_log2(static_cast<double>(a) / b)); };
  return std::max({along(x.m, y.m), along(x.n, y.n), along(x.k, y.k)});
}

// 2: the GPU itself; 1: one with as many SMs of the same architecture and as much bandwidth; 0: another.
int likeness(TunedGpu const& gpu, DeviceInfo const& device) {
  constexpr double kSameBandwidth = 0.05;
  if (gpu.major != device.major || gpu.minor != device.minor || gpu.sm_count != device.sm_count) return 0;
  if (device.name == gpu.name) return 2;
  return std::abs(gpu.memory_gb_per_s / device.memory_gb_per_s - 1) <= kSameBandwidth ? 1 : 0;
}

struct Hit {
  TunedTable const* table = nullptr;
  TunedEntry const* entry = nullptr;
  double distance = kNearLimit;
};

// The nearest entry that is nearer than `hit`; the first one of several.
void search(Hit& hit, std::vector<TunedTable const*> const& tables, GemmRequest const& request, DeviceInfo const& device) {
  int most = 1;
  for (TunedTable const* table : tables) most = std::max(most, likeness(table->gpu, device));
  for (TunedTable const* table : tables) {
    if (likeness(table->gpu, device) < most) continue;
    for (TunedEntry const* entry = table->entries; entry != table->entries + table->count; ++entry) {
      if (!same_kind(entry->request, request)) continue;
      double const d = distance(entry->request, request);
      if (d < hit.distance) hit = {table, entry, d};
    }
  }
}

// The entry's plan of the same kernel and splits; at other extents a kernel may be split otherwise.
TunedPlan const* find_plan(Hit const& hit, GemmPlan const& plan) {
  TunedPlan const *const first = hit.table->plans + hit.entry->first, *const last = first + hit.entry->count;
  auto const same_row = [&](TunedPlan const& x) { return &kKernels[x.kernel] == plan.kernel; };
  auto const found = std::find_if(first, last, [&](TunedPlan const& x) { return same_row(x) && x.splits == plan.splits; });
  if (found != last) return found;
  if (hit.distance == 0 || plan.splits == 1) return nullptr;
  auto const alike = std::find_if(first, last, [&](TunedPlan const& x) { return same_row(x) && x.splits > 1; });
  return alike == last ? nullptr : alike;
}

void take_parameters(GemmPlan& plan, TunedPlan const& tuned) {
  plan.raster = tuned.raster;
  plan.swizzle = tuned.swizzle;
}

bool apply_measured(std::vector<GemmPlan>& plans, Hit const& hit) {
  double best = 0;
  for (GemmPlan& plan : plans) {
    TunedPlan const* const tuned = find_plan(hit, plan);
    if (!tuned) continue;
    take_parameters(plan, *tuned);
    plan.predicted_us = tuned->us;
    best = best > 0 ? std::min<double>(best, tuned->us) : tuned->us;
  }
  if (best == 0) return false;
  for (GemmPlan& plan : plans) {
    if (!find_plan(hit, plan)) plan.predicted_us = std::max(plan.predicted_us, kKeptWithin * best);
  }
  return true;
}

bool apply_correction(std::vector<GemmPlan>& plans, Hit const& hit, DeviceInfo const& device) {
  auto const predicted_there = [&](GemmPlan plan, int splits) {
    plan.splits = splits;
    return predict_us(plan, hit.entry->request, device);
  };
  double best = 0, logs = 0;
  int count = 0;
  for (GemmPlan const& plan : plans) {
    TunedPlan const* const tuned = find_plan(hit, plan);
    if (!tuned) continue;
    best = best > 0 ? std::min<double>(best, tuned->us) : tuned->us;
    logs += float_log(tuned->us / predicted_there(plan, tuned->splits));
    ++count;
  }
  if (count == 0) return false;
  double const mean = float_exp(logs / count), share = 1 - hit.distance / kNearLimit;
  for (GemmPlan& plan : plans) {
    TunedPlan const* const tuned = find_plan(hit, plan);
    double const there = predicted_there(plan, tuned ? tuned->splits : plan.splits);
    double const correction = tuned ? tuned->us / there : std::max(mean, kKeptWithin * best / there);
    plan.predicted_us *= float_pow(correction, share);
  }
  return true;
}

}  // namespace

std::optional<PlanSource> apply_tuning(std::vector<GemmPlan>& plans, GemmRequest const& request, DeviceInfo const& device) {
  if (plans.empty()) return std::nullopt;
  std::shared_ptr<UserTables const> const user = user_tables();
  std::vector<TunedTable const*> own, built_in;
  for (auto const& table : *user) own.push_back(&table->view);
  for (int i = 0; i < kTunedTableCount; ++i) built_in.push_back(&kTunedTables[i]);
  // The user's table wins where two are equally near.
  Hit hit;
  search(hit, own, request, device);
  if (!hit.entry || hit.distance > 0) {
    Hit other;
    search(other, built_in, request, device);
    // The model is fitted to such products and convolutions, drawn at random: a neighbour would say less than the model,
    // and nothing of tiles that are younger than its entry.
    bool const is_fitted = request.grouping == Grouping::none && request.a != DType::s8 && request.a != DType::tf32;
    if (other.entry && (other.distance == 0 || (!hit.entry && !is_fitted))) hit = other;
  }
  if (!hit.entry) return std::nullopt;
  bool const is_exact = hit.distance == 0;
  if (!(is_exact ? apply_measured(plans, hit) : apply_correction(plans, hit, device))) return std::nullopt;
  std::stable_sort(plans.begin(), plans.end(),
                   [](GemmPlan const& x, GemmPlan const& y) { return x.predicted_us < y.predicted_us; });
  GemmRequest const& there = hit.entry->request;
  return PlanSource{is_exact ? Basis::measured : Basis::near, there.m, there.n, there.k, hit.table->name};
}

}  // namespace cutwheel
