#include "dispatch/cost_model.h"

#include <algorithm>
#include <cmath>

#include "dispatch/calibration.h"

namespace cutwheel {
namespace {

// Threadblocks of one kernel that are in flight at once.
double slots_of(KernelRow const& row, DeviceInfo const& device) {
  // The Hopper kernels are persistent, one threadblock on an SM; of the others as many as shared memory holds.
  if (row.family == Family::sm90_warpspecialized) return device.sm_count;
  int const resident = *row.shared_memory_bytes > 0 ? device.shared_memory_bytes / *row.shared_memory_bytes : 1;
  return static_cast<double>(device.sm_count) * std::clamp(resident, 1, 2);
}

// Three limits of which the slowest rules, rounded off where two are close.
double combine(double compute, double dram, double l2) {
  return std::pow(std::pow(compute, kSharpness) + std::pow(dram, kSharpness) + std::pow(l2, kSharpness), 1 / kSharpness);
}

}  // namespace

double predict_us(GemmPlan const& plan, GemmRequest const& r, DeviceInfo const& device) {
  KernelRow const& row = *plan.row;
  Calibration const cost = calibration_of(row, device);
  // In the kernel's own frame from here on.
  double const m = row.swap_ab ? r.n : r.m, n = row.swap_ab ? r.m : r.n;
  double const k = static_cast<double>(r.k) / plan.splits,
               batch = static_cast<double>(r.batch) * (plan.reduce ? plan.splits : 1);
  double const tiles = std::ceil(std::ceil(m / row.tile.m) / row.cluster.m) * row.cluster.m *
                       std::ceil(std::ceil(n / row.tile.n) / row.cluster.n) * row.cluster.n * batch;
  double const k_tiles = std::ceil(k / row.tile.k);
  double const operand_bytes = element_bytes(row.a), d_bytes = element_bytes(row.d);

  double const bytes =
      batch * (operand_bytes * (m * k + n * k) + d_bytes * m * n * (r.addend == Addend::matrix && !plan.reduce ? 2 : 1));
  double const dram = bytes / (kDramEfficiency * device.memory_gb_per_s * 1e3);
  // Clusters fetch a tile's operands once for all their members.
  double const fetched =
      (static_cast<double>(row.tile.m) / row.cluster.n + static_cast<double>(row.tile.n) / row.cluster.m) * row.tile.k;
  double const slots = slots_of(row, device);
  bool const lone = row.cluster.m * row.cluster.n == 1 && tiles > slots;
  double const l2_rate = (lone ? kL2LoneTbPerSecondPerSm : kL2TbPerSecondPerSm) * device.sm_count * 1e6;
  double const l2 = tiles * k_tiles * fetched * operand_bytes / l2_rate;

  double tile = k_tiles * cost.k_tile_us + cost.tile_us;
  // The C tile shortens the pipeline even where beta == 0, and a row that goes through it is loaded for every tile.
  if (row.family == Family::sm90_warpspecialized && kEpilogueAddend[static_cast<int>(row.epilogue)] == Addend::matrix) {
    tile *= r.addend == Addend::row ? 1.1 : 1.03;
  }
  // The figures come from tiles that M fills at least by half. Far larger ones spend their stages on padding.
  double const rows_of_m = row.swap_ab ? row.tile.n : row.tile.m, filled = 2.0 * std::max(r.m, 8);
  if (rows_of_m > filled) tile *= rows_of_m / filled;
  double time = cost.launch_us;
  if (row.schedule == Schedule::streamk && tiles < slots) {
    // The threadblocks that share a tile add their parts up one after the other.
    time += combine(tiles / slots * k_tiles * cost.k_tile_us + std::ceil(slots / tiles) * cost.tile_us, dram, l2);
  } else {
    // Full waves and the last, partial one: a few threadblocks alone do not fill the memory system.
    double const full = std::floor(tiles / slots), rest = tiles - full * slots;
    double const share = slots / device.sm_count;  // threadblocks that share an SM share its tensor cores
    if (full > 0) time += combine(full * tile * share, dram * full * slots / tiles, l2 * full * slots / tiles);
    if (rest > 0) {
      double const together = std::max(1.0, rest / device.sm_count);
      time += combine(tile * together, dram * rest / tiles, l2 * rest / tiles);
    }
  }
  if (plan.reduce) {
    // The partial sums are written and read once more, mostly in L2; a second launch overlaps the first one's end.
    constexpr double kReduceLaunchUs = 3.5, kReduceTbPerSecond = 6.0;
    double const out = static_cast<double>(r.m) * r.n;
    time += kReduceLaunchUs + out * (2 * 4 * plan.splits + element_bytes(r.d)) / (kReduceTbPerSecond * 1e6);
  }
  return time;
}

void choose_raster(GemmPlan& plan, GemmRequest const& r) {
  // Measured on an H200 over M 256 to 8192: walking along the shorter side is within 3 % of the best order (geometric mean;
  // 16 % at worst). Wider swizzles lose more, because they round the number of tiles up.
  plan.raster = r.m <= r.n ? RasterOrder::along_m : RasterOrder::along_n;
  plan.swizzle = 1;
}

}  // namespace cutwheel
