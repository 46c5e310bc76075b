#include "dispatch/calibration.h"

namespace cutwheel {
namespace {

// Rows whose figures are alike: tiles of one size cost something else with operands or scales of another kind.
enum class Kind : int { wide, fp8, fp8_fast, int8, blocks_of_b, columns_of_b };

Kind kind_of(KernelRow const& row) {
  switch (row.scales) {
    case BlockScales::a1x128_b128x128: return Kind::blocks_of_b;
    case BlockScales::a1x128_b1x128: return Kind::columns_of_b;
    case BlockScales::none: break;
  }
  if (is_fp8(row.a)) return row.fast_accum ? Kind::fp8_fast : Kind::fp8;
  return row.a == DType::s8 ? Kind::int8 : Kind::wide;
}

struct Measured {
  Kind kind;
  int m, n, k_bytes;
  Schedule schedule;
  bool swap_ab;
  Calibration figures;
  int splits = 1;  // of K, by the threadblocks of a cluster
};

constexpr Schedule kPingpong = Schedule::pingpong, kCooperative = Schedule::cooperative, kPersistent = Schedule::persistent;

// On an H200 (132 SMs). 16-bit operands: CUTLASS's tiles fitted to 204 shapes (M 1 to 16384, the [N, K] of
// benchmarks/shapes.toml and others), bfloat16; the persistent ones so that among them the fastest is chosen for as many of
// 249 shapes as can be, and what is chosen takes 0.9 % longer. The mainloop is bound by bytes moved and by wgmma's rate,
// both per byte of K: float16 and TF32 tiles of as many bytes share the figures. 8-bit operands: fitted so that among the
// tiles of one kind the fastest is chosen for as many of 193 shapes as can be (M 1 to 8192, the [N, K] of
// benchmarks/shapes.toml and others), of 119 with block-wise scales; what is chosen takes 0.8 % longer, with
// block-wise scales 0.6 % and less (geometric mean).
constexpr Measured kMeasured[] = {
    {Kind::wide, 128, 256, 128, kCooperative, false, {0.7459, 2.086, 0.001}},
    {Kind::wide, 128, 128, 128, kPingpong, false, {0.3556, 0.001, 1.807}},
    {Kind::wide, 128, 192, 128, kCooperative, false, {0.5333, 2.286, 0.001}},
    {Kind::wide, 128, 96, 128, kPingpong, false, {0.3055, 0.000, 1.989}},
    {Kind::wide, 64, 16, 256, kPingpong, true, {0.0713, 0.001, 2.559}},
    {Kind::wide, 64, 32, 256, kPingpong, true, {0.1042, 0.001, 2.476}},
    {Kind::wide, 64, 64, 256, kPingpong, true, {0.2627, 0.001, 2.159}},
    {Kind::wide, 64, 128, 256, kPingpong, true, {0.3745, 0.951, 1.595}},

    {Kind::wide, 128, 64, 128, kPersistent, false, {0.1027, 0.386, 2.763}},
    {Kind::wide, 128, 80, 128, kPersistent, false, {0.1458, 0.439, 3.426}},
    {Kind::wide, 128, 96, 128, kPersistent, false, {0.1859, 0.833, 3.276}},
    {Kind::wide, 128, 112, 128, kPersistent, false, {0.2182, 1.227, 2.716}},
    {Kind::wide, 128, 128, 128, kPersistent, false, {0.2793, 1.580, 2.307}},
    {Kind::wide, 128, 144, 128, kPersistent, false, {0.3380, 1.921, 0.992}},
    {Kind::wide, 128, 160, 128, kPersistent, false, {0.3855, 1.595, 1.153}},
    {Kind::wide, 128, 176, 128, kPersistent, false, {0.4370, 1.554, 0.893}},
    {Kind::wide, 128, 192, 128, kPersistent, false, {0.4877, 1.659, 2.245}},
    {Kind::wide, 128, 224, 128, kPersistent, false, {0.6002, 1.702, 4.363}},
    {Kind::wide, 128, 256, 128, kPersistent, false, {0.6886, 2.027, 1.572}},
    {Kind::wide, 64, 64, 128, kPersistent, false, {0.0602, 0.462, 3.581}},
    {Kind::wide, 64, 128, 128, kPersistent, false, {0.0918, 0.673, 5.165}},
    {Kind::wide, 64, 32, 256, kPersistent, false, {0.1324, 0.558, 1.291}},
    {Kind::wide, 64, 48, 256, kPersistent, false, {0.1441, 0.216, 2.435}},
    {Kind::wide, 64, 80, 128, kPersistent, false, {0.0727, 0.171, 3.562}},
    {Kind::wide, 64, 96, 128, kPersistent, false, {0.0607, 0.127, 4.631}},
    {Kind::wide, 64, 112, 128, kPersistent, false, {0.0818, 0.340, 4.914}},
    {Kind::wide, 64, 224, 128, kPersistent, false, {0.1362, 0.470, 5.514}},
    {Kind::wide, 128, 48, 128, kPersistent, false, {0.1256, 0.032, 0.703}},
    {Kind::wide, 64, 16, 256, kPersistent, true, {0.0484, 0.117, 4.535}},
    {Kind::wide, 64, 32, 256, kPersistent, true, {0.0920, 0.079, 4.078}},
    {Kind::wide, 64, 64, 256, kPersistent, true, {0.1569, 0.378, 2.778}},
    {Kind::wide, 64, 96, 128, kPersistent, true, {0.0851, 0.928, 2.403}},
    {Kind::wide, 64, 128, 128, kPersistent, true, {0.0996, 0.782, 2.676}},
    {Kind::wide, 128, 16, 128, kPersistent, true, {0.0873, 0.150, 3.718}},
    {Kind::wide, 128, 96, 128, kPersistent, true, {0.1765, 0.845, 4.214}},
    {Kind::wide, 64, 96, 128, kPersistent, false, {0.0414, 0.058, 7.267}, 2},
    {Kind::wide, 64, 32, 256, kPersistent, true, {0.0345, 1.912, 5.086}, 2},
    {Kind::wide, 64, 64, 256, kPersistent, true, {0.1327, 2.156, 4.508}, 2},
    {Kind::wide, 64, 128, 128, kPersistent, true, {0.1693, 1.110, 3.281}, 2},
    {Kind::wide, 128, 64, 128, kPersistent, true, {0.0882, 0.308, 7.055}, 4},

    {Kind::fp8, 64, 80, 128, kPersistent, false, {0.0687, 1.007, 2.949}},
    {Kind::fp8, 64, 128, 128, kPersistent, false, {0.1135, 0.971, 3.382}},
    {Kind::fp8, 128, 80, 128, kPersistent, false, {0.1712, 1.234, 2.922}},
    {Kind::fp8, 128, 112, 128, kPersistent, false, {0.2728, 1.604, 2.179}},
    {Kind::fp8, 128, 128, 128, kPersistent, false, {0.3323, 1.784, 1.678}},
    {Kind::fp8, 128, 160, 128, kPersistent, false, {0.4322, 1.840, 2.813}},
    {Kind::fp8, 128, 176, 128, kPersistent, false, {0.4868, 2.042, 1.849}},
    {Kind::fp8, 128, 192, 128, kPersistent, false, {0.5370, 2.328, 1.535}},
    {Kind::fp8, 128, 256, 128, kPersistent, false, {0.8163, 0.391, 3.845}},
    {Kind::fp8, 64, 128, 128, kPingpong, true, {0.1047, 0.195, 4.047}},
    {Kind::fp8, 64, 16, 256, kPingpong, true, {0.0878, 0.170, 3.252}},
    {Kind::fp8, 64, 64, 256, kPingpong, true, {0.1557, 0.140, 3.067}},
    {Kind::fp8, 64, 32, 256, kPersistent, true, {0.0789, 0.495, 3.194}},
    {Kind::fp8, 64, 48, 256, kPersistent, false, {0.1199, 0.996, 2.613}},
    {Kind::fp8, 64, 112, 128, kPersistent, false, {0.0895, 0.590, 3.454}},
    {Kind::fp8, 64, 160, 128, kPersistent, false, {0.0807, 0.170, 6.762}, 2},
    {Kind::fp8, 64, 192, 128, kPersistent, false, {0.1620, 0.478, 3.750}},
    {Kind::fp8, 128, 48, 128, kPersistent, false, {0.1068, 0.398, 2.667}},
    {Kind::fp8, 128, 96, 128, kPersistent, false, {0.2088, 1.444, 2.549}},

    {Kind::fp8_fast, 128, 112, 128, kPersistent, false, {0.2546, 1.950, 1.937}},
    {Kind::fp8_fast, 64, 128, 128, kPersistent, true, {0.1138, 0.791, 3.298}},
    {Kind::fp8_fast, 128, 128, 128, kPingpong, false, {0.3700, 0.922, 1.625}},
    {Kind::fp8_fast, 64, 96, 128, kPersistent, false, {0.0776, 0.635, 3.188}},
    {Kind::fp8_fast, 64, 112, 128, kPersistent, false, {0.0818, 0.617, 3.521}},
    {Kind::fp8_fast, 64, 192, 128, kPersistent, false, {0.1569, 0.513, 3.765}},
    {Kind::fp8_fast, 128, 160, 128, kPersistent, false, {0.4442, 1.366, 2.115}},

    {Kind::int8, 128, 128, 128, kPingpong, false, {0.3716, 0.457, 3.851}},
    {Kind::int8, 64, 128, 128, kPingpong, true, {0.1133, 0.095, 4.805}},
    {Kind::int8, 64, 16, 256, kPingpong, true, {0.0390, 0.177, 2.389}},
    {Kind::int8, 64, 64, 256, kPingpong, true, {0.1362, 0.130, 4.408}},

    {Kind::blocks_of_b, 128, 128, 128, kCooperative, false, {0.3632, 1.598, 1.507}},
    {Kind::blocks_of_b, 64, 64, 128, kPersistent, false, {0.1176, 1.036, 3.168}},
    {Kind::blocks_of_b, 64, 128, 128, kPersistent, false, {0.1562, 1.099, 2.844}},
    {Kind::blocks_of_b, 64, 16, 128, kPersistent, true, {0.0983, 0.684, 3.555}},
    {Kind::blocks_of_b, 128, 16, 128, kPersistent, true, {0.1543, 0.571, 2.387}},

    {Kind::columns_of_b, 128, 128, 128, kCooperative, false, {0.5062, 1.569, 1.774}},
    {Kind::columns_of_b, 64, 128, 128, kPingpong, true, {0.3214, 0.235, 3.016}},
    {Kind::columns_of_b, 64, 16, 128, kPingpong, true, {0.1547, 0.244, 2.771}},
    {Kind::columns_of_b, 64, 64, 128, kPingpong, true, {0.1204, 0.094, 3.700}},
    {Kind::columns_of_b, 64, 32, 128, kPersistent, false, {0.0794, 0.579, 3.751}},
    {Kind::columns_of_b, 64, 80, 128, kPersistent, false, {0.1896, 0.176, 5.090}},
    {Kind::columns_of_b, 128, 144, 128, kPersistent, false, {0.7031, 1.481, 2.348}},
};

// The persistent kernels of groups, and of convolutions of other than 16-bit images: tiles of one kind are taken to cost in
// proportion to their area. Estimated from the figures above, of tiles of 128 rows.
struct EstimatedByArea {
  Kind kind;
  Calibration figures;  // of a tile of 128x128 and 128 bytes of K
};
constexpr EstimatedByArea kByArea[] = {
    {Kind::wide, {0.3712, 1.6, 3.0}},        {Kind::fp8, {0.3500, 2.0, 2.2}},  {Kind::fp8_fast, {0.3200, 2.0, 1.3}},
    {Kind::blocks_of_b, {0.3700, 2.0, 2.2}}, {Kind::int8, {0.3400, 2.0, 2.2}},
};

// Convolutions of 16-bit images on an H200, fitted so that the fastest tile is chosen for as many as can be of 18 layers
// (of [conv] in benchmarks/shapes.toml) in all directions: what is chosen takes 0.1 % longer, and 1.4 % for gradients of
// filters. The square of 64, never the fastest forward, has the figure of its gradient of filters there.
struct MeasuredConv {
  bool is_wgrad;
  int m, n;
  Calibration figures;
};
constexpr MeasuredConv kConv[] = {
    {false, 64, 64, {0.0578, 0.800, 2.000}},   {false, 64, 128, {0.0561, 0.791, 2.484}},
    {false, 128, 64, {0.0926, 0.981, 1.973}},  {false, 128, 128, {0.3460, 0.900, 2.099}},
    {false, 128, 192, {0.5451, 1.492, 1.277}}, {true, 64, 64, {0.0578, 0.357, 0.978}},
    {true, 64, 128, {0.1576, 0.743, 1.213}},   {true, 64, 192, {0.2532, 0.794, 1.620}},
    {true, 128, 128, {0.3262, 1.483, 2.430}},  {true, 128, 192, {0.5039, 1.665, 3.820}},
};

// Dense 16-bit multiply-adds with float32 accumulation, per SM and clock (architecture white papers); 8-bit ones are twice
// as many. What mma.sync reaches on newer GPUs is less than their own instructions do.
double macs_per_clock(KernelRow const& row, DeviceInfo const& device) {
  if (is_persistent(row)) return 2048;
  if (device.major == 8) return device.minor == 0 ? 1024 : 512;
  return 1250;
}

EstimatedByArea const* find_by_area(KernelRow const& row, Kind kind) {
  if (row.family != Family::sm90_grouped && row.family != Family::sm90_conv) return nullptr;
  for (EstimatedByArea const& x : kByArea) {
    if (x.kind == kind) return &x;
  }
  return nullptr;
}

Calibration const* find_fitted(KernelRow const& row, Kind kind) {
  int const k_bytes = row.tile.k * element_bytes(row.a);
  if (row.family == Family::sm90_conv && kind == Kind::wide) {
    for (MeasuredConv const& x : kConv) {
      bool const is_wgrad = row.direction == Direction::wgrad;
      if (x.is_wgrad == is_wgrad && x.m == row.tile.m && x.n == row.tile.n) return &x.figures;
    }
  }
  if (find_by_area(row, kind) || !is_persistent(row)) return nullptr;
  for (Measured const& x : kMeasured) {
    if (x.kind == kind && x.m == row.tile.m && x.n == row.tile.n && x.k_bytes == k_bytes && x.schedule == row.schedule &&
        x.swap_ab == row.swap_ab && x.splits == row.cluster.k) {
      return &x.figures;
    }
  }
  return nullptr;
}

}  // namespace

Calibration calibration_of(KernelRow const& row, DeviceInfo const& device) {
  Kind const kind = kind_of(row);
  if (Calibration const* const fitted = find_fitted(row, kind)) return *fitted;
  int const k_bytes = row.tile.k * element_bytes(row.a);
  if (EstimatedByArea const* const x = find_by_area(row, kind)) {
    double const area = static_cast<double>(row.tile.m) * row.tile.n * k_bytes / (128 * 128 * 128);
    return {x->figures.k_tile_us * area, x->figures.tile_us, x->figures.launch_us};
  }
  constexpr double kReached = 0.7;  // of the paper rate, by a kernel that is not tuned for the GPU
  // float32 halves the rate and doubles the bytes, 8 bits do the opposite: per byte of K the same.
  double const macs = static_cast<double>(row.tile.m) * row.tile.n * k_bytes / 2;
  return {macs / (macs_per_clock(row, device) * kReached * device.sm_clock_ghz * 1e3), 1.0, 2.5};
}

bool is_measured(KernelRow const& row, DeviceInfo const& device) {
  constexpr int kSms = 132;
  constexpr double kLeastGbPerSecond = 4500;  // an H100 has as many SMs and less bandwidth
  return device.major == 9 && device.sm_count == kSms && device.memory_gb_per_s >= kLeastGbPerSecond &&
         find_fitted(row, kind_of(row));
}

}  // namespace cutwheel
