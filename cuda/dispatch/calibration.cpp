#include "dispatch/calibration.h"

namespace cutwheel {
namespace {

struct Measured {
  int m, n, k_bytes;
  Schedule schedule;
  bool swap_ab;
  Calibration figures;
};

// Fitted to 204 shapes (M 1 to 16384, the [N, K] of benchmarks/shapes.toml and others), bfloat16, on an H200 (132 SMs),
// then set by hand where the benchmark showed a wrong choice: the swapped tile of 96 rows.
// The mainloop is bound by bytes moved and by wgmma's rate, both per byte of K: float16 and TF32 tiles of as many bytes
// share the figures.
constexpr Measured kMeasured[] = {
    {128, 256, 128, Schedule::cooperative, false, {0.7459, 2.086, 0.001}},
    {128, 128, 128, Schedule::pingpong, false, {0.3556, 0.001, 1.807}},
    {128, 192, 128, Schedule::cooperative, false, {0.5333, 2.286, 0.001}},
    {128, 192, 128, Schedule::cooperative, true, {0.5420, 1.200, 0.001}},
    {128, 128, 128, Schedule::streamk, false, {0.4201, 7.175, 0.034}},
    {128, 96, 128, Schedule::pingpong, false, {0.3055, 0.000, 1.989}},
    {64, 16, 256, Schedule::pingpong, true, {0.0713, 0.001, 2.559}},
    {64, 32, 256, Schedule::pingpong, true, {0.1042, 0.001, 2.476}},
    {64, 64, 256, Schedule::pingpong, true, {0.2627, 0.001, 2.159}},
    {64, 96, 256, Schedule::pingpong, true, {0.3200, 0.800, 1.500}},
    {64, 128, 256, Schedule::pingpong, true, {0.3745, 0.951, 1.595}},
    {64, 192, 128, Schedule::pingpong, true, {0.2883, 0.197, 2.038}},
};

// Dense 16-bit multiply-adds with float32 accumulation, per SM and clock (architecture white papers). What mma.sync reaches
// on newer GPUs is less than their own instructions do.
double macs_per_clock(KernelRow const& row, DeviceInfo const& device) {
  if (row.family == Family::sm90_warpspecialized) return 2048;
  if (device.major == 8) return device.minor == 0 ? 1024 : 512;
  return 1250;
}

}  // namespace

Calibration calibration_of(KernelRow const& row, DeviceInfo const& device) {
  int const k_bytes = row.tile.k * element_bytes(row.a);
  for (Measured const& x : kMeasured) {
    if (x.m == row.tile.m && x.n == row.tile.n && x.k_bytes == k_bytes && x.schedule == row.schedule &&
        x.swap_ab == row.swap_ab && row.family == Family::sm90_warpspecialized) {
      return x.figures;
    }
  }
  constexpr double kReached = 0.7;  // of the paper rate, by a kernel that is not tuned for the GPU
  // float32 halves the rate and doubles the bytes: per byte of K the same.
  double const macs = static_cast<double>(row.tile.m) * row.tile.n * k_bytes / 2;
  return {macs / (macs_per_clock(row, device) * kReached * device.sm_clock_ghz * 1e3), 1.0, 2.5};
}

}  // namespace cutwheel
