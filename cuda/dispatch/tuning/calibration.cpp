#include "dispatch/tuning/calibration.h"

namespace cutwheel {
namespace {

// Rows whose figures are alike: tiles of one size cost something else with operands or scales of another kind.
enum class Kind : int { wide, fp8, fp8_fast, int8, blocks_of_b, columns_of_b };

Kind kind_of(KernelDescriptor const& row) {
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

// On an H200 (132 SMs). 16-bit operands: fitted to the times of all plans of 420 shapes in bfloat16, 119 of them those of
// benchmarks/shapes.toml and 301 drawn at random (M 1 to 8192, N 64 to 32768, K 64 to 16384, a fourth of M powers of two, a
// third of K no multiple of 64), with the limits of limits_of(): plans within 12 % of the best are predicted with a
// standard deviation of 8 %, and what is predicted to be the fastest takes 1.5 % longer than the best (geometric mean).
// The mainloop is bound by bytes moved and by wgmma's rate, both per byte of K: float16 and TF32 tiles of as many bytes
// share the figures. fp8: likewise, of 249 shapes, and 199 with fast accumulation: 1.2 %. With int8 and block-wise scales:
// fitted so that among the tiles of one kind the fastest is chosen for as many of 193 and 119 shapes as can be.
constexpr Measured kMeasured[] = {
    {Kind::wide, 128, 256, 128, kCooperative, false, {0.6906, 1.423, 1.145}},
    {Kind::wide, 128, 128, 128, kPingpong, false, {0.3219, 0.015, 2.425}},
    {Kind::wide, 128, 192, 128, kCooperative, false, {0.5050, 1.900, 1.000}},
    {Kind::wide, 128, 96, 128, kPingpong, false, {0.2830, 0.150, 2.400}},
    {Kind::wide, 64, 16, 256, kPingpong, true, {0.1074, 0.444, 1.743}},
    {Kind::wide, 64, 32, 256, kPingpong, true, {0.1392, 0.259, 1.904}},
    {Kind::wide, 64, 64, 256, kPingpong, true, {0.2140, 0.390, 1.760}},
    {Kind::wide, 64, 128, 256, kPingpong, true, {0.3611, 0.110, 2.058}},

    {Kind::wide, 128, 64, 128, kPersistent, false, {0.1618, 0.602, 2.330}},
    {Kind::wide, 128, 80, 128, kPersistent, false, {0.2009, 0.544, 2.335}},
    {Kind::wide, 128, 96, 128, kPersistent, false, {0.2424, 1.012, 1.807}},
    {Kind::wide, 128, 112, 128, kPersistent, false, {0.2602, 1.070, 2.217}},
    {Kind::wide, 128, 128, 128, kPersistent, false, {0.3094, 0.672, 2.349}},
    {Kind::wide, 128, 144, 128, kPersistent, false, {0.3521, 1.156, 2.196}},
    {Kind::wide, 128, 160, 128, kPersistent, false, {0.3850, 0.946, 2.900}},
    {Kind::wide, 128, 176, 128, kPersistent, false, {0.4139, 1.538, 3.219}},
    {Kind::wide, 128, 192, 128, kPersistent, false, {0.4732, 0.266, 3.890}},
    {Kind::wide, 128, 224, 128, kPersistent, false, {0.5742, 1.531, 2.508}},
    {Kind::wide, 128, 256, 128, kPersistent, false, {0.6273, 2.544, 1.992}},
    {Kind::wide, 64, 64, 128, kPersistent, false, {0.0989, 0.549, 2.174}},
    {Kind::wide, 64, 128, 128, kPersistent, false, {0.1309, 0.650, 2.916}},
    {Kind::wide, 64, 32, 256, kPersistent, false, {0.0928, 1.133, 1.611}},
    {Kind::wide, 64, 48, 256, kPersistent, false, {0.1409, 0.971, 1.631}},
    {Kind::wide, 64, 80, 128, kPersistent, false, {0.1078, 0.883, 1.791}},
    {Kind::wide, 64, 96, 128, kPersistent, false, {0.1118, 0.527, 2.502}},
    {Kind::wide, 64, 112, 128, kPersistent, false, {0.1384, 0.506, 2.467}},
    {Kind::wide, 64, 224, 128, kPersistent, false, {0.2391, 0.994, 3.249}},
    {Kind::wide, 128, 48, 128, kPersistent, false, {0.1019, 0.999, 1.957}},
    {Kind::wide, 64, 16, 256, kPersistent, true, {0.1277, 0.033, 2.453}},
    {Kind::wide, 64, 32, 256, kPersistent, true, {0.1371, 0.056, 2.529}},
    {Kind::wide, 64, 64, 256, kPersistent, true, {0.1865, 0.461, 2.131}},
    {Kind::wide, 64, 96, 128, kPersistent, true, {0.1211, 0.611, 2.249}},
    {Kind::wide, 64, 128, 128, kPersistent, true, {0.1387, 0.614, 2.749}},
    {Kind::wide, 128, 16, 128, kPersistent, true, {0.1202, 0.029, 2.737}},
    {Kind::wide, 128, 96, 128, kPersistent, true, {0.2204, 0.979, 2.403}},
    {Kind::wide, 64, 96, 128, kPersistent, false, {0.1968, 1.611, 1.804}, 2},
    {Kind::wide, 64, 32, 256, kPersistent, true, {0.0676, 0.021, 3.664}, 2},
    {Kind::wide, 64, 64, 256, kPersistent, true, {0.2657, 2.519, 0.966}, 2},
    {Kind::wide, 64, 128, 128, kPersistent, true, {0.1981, 2.600, 0.558}, 2},
    {Kind::wide, 128, 64, 128, kPersistent, true, {0.2877, 0.683, 2.474}, 4},

    {Kind::fp8, 64, 80, 128, kPersistent, false, {0.1123, 1.761, 1.141}},
    {Kind::fp8, 64, 128, 128, kPersistent, false, {0.1812, 1.119, 2.412}},
    {Kind::fp8, 128, 80, 128, kPersistent, false, {0.2135, 1.406, 1.695}},
    {Kind::fp8, 128, 112, 128, kPersistent, false, {0.3005, 1.934, 1.655}},
    {Kind::fp8, 128, 128, 128, kPersistent, false, {0.3497, 1.754, 1.644}},
    {Kind::fp8, 128, 160, 128, kPersistent, false, {0.4336, 1.987, 1.788}},
    {Kind::fp8, 128, 176, 128, kPersistent, false, {0.4977, 1.864, 1.914}},
    {Kind::fp8, 128, 192, 128, kPersistent, false, {0.5395, 1.863, 2.622}},
    {Kind::fp8, 128, 256, 128, kPersistent, false, {0.7794, 1.534, 3.435}},
    {Kind::fp8, 64, 128, 128, kPingpong, true, {0.1755, 0.713, 2.526}},
    {Kind::fp8, 64, 16, 256, kPingpong, true, {0.1502, 0.231, 2.203}},
    {Kind::fp8, 64, 64, 256, kPingpong, true, {0.2197, 0.553, 2.200}},
    {Kind::fp8, 64, 32, 256, kPersistent, true, {0.1472, 1.586, 0.768}},
    {Kind::fp8, 64, 48, 256, kPersistent, false, {0.1797, 1.201, 1.249}},
    {Kind::fp8, 64, 112, 128, kPersistent, false, {0.1522, 1.164, 2.136}},
    {Kind::fp8, 64, 160, 128, kPersistent, false, {0.3087, 2.127, 2.064}, 2},
    {Kind::fp8, 64, 192, 128, kPersistent, false, {0.2644, 1.249, 2.693}},
    {Kind::fp8, 128, 48, 128, kPersistent, false, {0.1275, 1.501, 1.407}},
    {Kind::fp8, 128, 96, 128, kPersistent, false, {0.2576, 1.652, 1.521}},

    {Kind::fp8_fast, 128, 112, 128, kPersistent, false, {0.2829, 1.651, 1.746}},
    {Kind::fp8_fast, 64, 128, 128, kPersistent, true, {0.1407, 1.294, 1.905}},
    {Kind::fp8_fast, 128, 128, 128, kPingpong, false, {0.3458, 0.188, 2.690}},
    {Kind::fp8_fast, 64, 96, 128, kPersistent, false, {0.1311, 0.954, 2.010}},
    {Kind::fp8_fast, 64, 112, 128, kPersistent, false, {0.1326, 1.152, 2.248}},
    {Kind::fp8_fast, 64, 192, 128, kPersistent, false, {0.2404, 1.104, 3.110}},
    {Kind::fp8_fast, 128, 160, 128, kPersistent, false, {0.4284, 1.712, 1.488}},

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

// Direct convolutions, per tap: fitted to four layers on an H200. Strided dgrad is assumed to cost as much.
constexpr Calibration kDirectConv{0.3250, 0.100, 3.200};
// Space-to-depth, per step of 16 or 32 channels: eight layers are predicted within 26 %. Filters are rearranged first.
constexpr Calibration kSpaceToDepth16{0.0810, 0.500, 5.000}, kSpaceToDepth32{0.1625, 0.500, 5.000};

// Dense 16-bit multiply-adds with float32 accumulation, per SM and clock (architecture white papers); 8-bit ones are twice
// as many. What mma.sync reaches on newer GPUs is less than their own instructions do.
double macs_per_clock(KernelDescriptor const& row, DeviceInfo const& device) {
  if (is_persistent(row)) return 2048;
  if (device.major == 8) return device.minor == 0 ? 1024 : 512;
  return 1250;
}

EstimatedByArea const* find_by_area(KernelDescriptor const& row, Kind kind) {
  if (row.family != Family::sm90_grouped && row.family != Family::sm90_conv) return nullptr;
  for (EstimatedByArea const& x : kByArea) {
    if (x.kind == kind) return &x;
  }
  return nullptr;
}

Calibration const* find_fitted(KernelDescriptor const& row, Kind kind) {
  int const k_bytes = row.tile.k * element_bytes(row.a);
  if (row.family == Family::sm90_space_to_depth) return row.tile.k == 16 ? &kSpaceToDepth16 : &kSpaceToDepth32;
  if (is_direct_conv(row)) return &kDirectConv;
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

Limits limits_of(KernelDescriptor const& row) {
  constexpr Limits kDense{0.1157, 0.1231, 0.897, 2.85, {1.28, 1.59, 2.69}, 2.94, 5.56, 0.00040, true};
  constexpr Limits kOthers{15.2 / 132, 12.8 / 132, 1.03, 2.8, {1.28, 1.59, 2.69}, 3.5, 6.0, 0, false};
  bool const is_dense = row.family == Family::sm90_persistent || row.family == Family::sm90_warpspecialized;
  return is_dense && row.scales == BlockScales::none && row.a != DType::s8 ? kDense : kOthers;
}

Calibration calibration_of(KernelDescriptor const& row, DeviceInfo const& device) {
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

bool is_measured(KernelDescriptor const& row, DeviceInfo const& device) {
  constexpr int kSms = 132;
  constexpr double kLeastGbPerSecond = 4500;  // an H100 has as many SMs and less bandwidth
  return device.major == 9 && device.sm_count == kSms && device.memory_gb_per_s >= kLeastGbPerSecond &&
         find_fitted(row, kind_of(row));
}

}  // namespace cutwheel
