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

// On an H200 (132 SMs). 16-bit operands: fitted to the times of all plans of 343 shapes in bfloat16, 103 of them those of
// benchmarks/shapes.toml and 240 drawn at random (M 1 to 8192, N 64 to 32768, K 64 to 16384, a fourth of M powers of two, a
// seventh of K no multiple of 64), with the limits of limits_of(): plans within 12 % of the best are predicted with a
// standard deviation of 9 %, and what is predicted to be the fastest takes 1.6 % longer than the best (geometric mean).
// The mainloop is bound by bytes moved and by wgmma's rate, both per byte of K: float16 and TF32 tiles of as many bytes
// share the figures. fp8: likewise, of 220 shapes, 144 with fast accumulation, half of them at random: 1.3 %. With int8 and
// block-wise scales: fitted so that among the tiles of one kind the fastest is chosen for as many of 193 and 119 shapes as
// can be.
constexpr Measured kMeasured[] = {
    {Kind::wide, 128, 256, 128, kCooperative, false, {0.7023, 1.744, 1.408}},
    {Kind::wide, 128, 128, 128, kPingpong, false, {0.3297, 0.183, 2.429}},
    {Kind::wide, 128, 192, 128, kCooperative, false, {0.5020, 1.900, 1.000}},
    {Kind::wide, 128, 96, 128, kPingpong, false, {0.2830, 0.150, 2.400}},
    {Kind::wide, 64, 16, 256, kPingpong, true, {0.1224, 0.730, 1.370}},
    {Kind::wide, 64, 32, 256, kPingpong, true, {0.1522, 0.250, 1.924}},
    {Kind::wide, 64, 64, 256, kPingpong, true, {0.2381, 0.320, 1.869}},
    {Kind::wide, 64, 128, 256, kPingpong, true, {0.3704, 0.216, 2.148}},

    {Kind::wide, 128, 64, 128, kPersistent, false, {0.1758, 0.509, 2.365}},
    {Kind::wide, 128, 80, 128, kPersistent, false, {0.2059, 0.765, 2.698}},
    {Kind::wide, 128, 96, 128, kPersistent, false, {0.2386, 1.017, 1.920}},
    {Kind::wide, 128, 112, 128, kPersistent, false, {0.2852, 0.921, 2.312}},
    {Kind::wide, 128, 128, 128, kPersistent, false, {0.3250, 0.643, 2.625}},
    {Kind::wide, 128, 144, 128, kPersistent, false, {0.3754, 1.215, 1.592}},
    {Kind::wide, 128, 160, 128, kPersistent, false, {0.3773, 1.732, 1.502}},
    {Kind::wide, 128, 176, 128, kPersistent, false, {0.4380, 1.450, 2.546}},
    {Kind::wide, 128, 192, 128, kPersistent, false, {0.4971, 0.105, 3.709}},
    {Kind::wide, 128, 224, 128, kPersistent, false, {0.5785, 1.516, 2.397}},
    {Kind::wide, 128, 256, 128, kPersistent, false, {0.6440, 1.779, 2.527}},
    {Kind::wide, 64, 64, 128, kPersistent, false, {0.1056, 0.427, 2.324}},
    {Kind::wide, 64, 128, 128, kPersistent, false, {0.1478, 0.545, 3.101}},
    {Kind::wide, 64, 32, 256, kPersistent, false, {0.1260, 1.252, 1.371}},
    {Kind::wide, 64, 48, 256, kPersistent, false, {0.1705, 0.765, 1.766}},
    {Kind::wide, 64, 80, 128, kPersistent, false, {0.1331, 0.473, 2.058}},
    {Kind::wide, 64, 96, 128, kPersistent, false, {0.1318, 0.468, 2.632}},
    {Kind::wide, 64, 112, 128, kPersistent, false, {0.1348, 0.529, 3.056}},
    {Kind::wide, 64, 224, 128, kPersistent, false, {0.2602, 0.824, 3.340}},
    {Kind::wide, 128, 48, 128, kPersistent, false, {0.1328, 0.791, 2.003}},
    {Kind::wide, 64, 16, 256, kPersistent, true, {0.1233, 0.070, 2.288}},
    {Kind::wide, 64, 32, 256, kPersistent, true, {0.1002, 0.059, 2.673}},
    {Kind::wide, 64, 64, 256, kPersistent, true, {0.1692, 0.469, 2.337}},
    {Kind::wide, 64, 96, 128, kPersistent, true, {0.1331, 0.596, 2.496}},
    {Kind::wide, 64, 128, 128, kPersistent, true, {0.1478, 0.670, 2.645}},
    {Kind::wide, 128, 16, 128, kPersistent, true, {0.0953, 0.317, 2.445}},
    {Kind::wide, 128, 96, 128, kPersistent, true, {0.2502, 0.837, 1.835}},
    {Kind::wide, 64, 96, 128, kPersistent, false, {0.1914, 1.607, 2.373}, 2},
    {Kind::wide, 64, 32, 256, kPersistent, true, {0.0764, 0.017, 3.800}, 2},
    {Kind::wide, 64, 64, 256, kPersistent, true, {0.2633, 2.448, 1.733}, 2},
    {Kind::wide, 64, 128, 128, kPersistent, true, {0.2478, 1.174, 2.445}, 2},
    {Kind::wide, 128, 64, 128, kPersistent, true, {0.3154, 0.228, 2.902}, 4},

    {Kind::fp8, 64, 80, 128, kPersistent, false, {0.1137, 1.590, 1.423}},
    {Kind::fp8, 64, 128, 128, kPersistent, false, {0.1795, 1.218, 2.313}},
    {Kind::fp8, 128, 80, 128, kPersistent, false, {0.2256, 1.285, 1.805}},
    {Kind::fp8, 128, 112, 128, kPersistent, false, {0.3139, 1.454, 2.055}},
    {Kind::fp8, 128, 128, 128, kPersistent, false, {0.3536, 1.790, 1.646}},
    {Kind::fp8, 128, 160, 128, kPersistent, false, {0.4420, 1.791, 2.031}},
    {Kind::fp8, 128, 176, 128, kPersistent, false, {0.5121, 1.599, 2.213}},
    {Kind::fp8, 128, 192, 128, kPersistent, false, {0.5492, 1.677, 2.718}},
    {Kind::fp8, 128, 256, 128, kPersistent, false, {0.7941, 1.376, 2.936}},
    {Kind::fp8, 64, 128, 128, kPingpong, true, {0.1866, 0.655, 2.520}},
    {Kind::fp8, 64, 16, 256, kPingpong, true, {0.1323, 0.738, 1.608}},
    {Kind::fp8, 64, 64, 256, kPingpong, true, {0.2371, 0.491, 2.363}},
    {Kind::fp8, 64, 32, 256, kPersistent, true, {0.1623, 0.900, 1.298}},
    {Kind::fp8, 64, 48, 256, kPersistent, false, {0.2372, 0.981, 1.248}},
    {Kind::fp8, 64, 112, 128, kPersistent, false, {0.1614, 1.064, 2.179}},
    {Kind::fp8, 64, 160, 128, kPersistent, false, {0.3160, 2.123, 1.998}, 2},
    {Kind::fp8, 64, 192, 128, kPersistent, false, {0.2666, 1.405, 2.555}},
    {Kind::fp8, 128, 48, 128, kPersistent, false, {0.1372, 1.469, 1.520}},
    {Kind::fp8, 128, 96, 128, kPersistent, false, {0.2824, 1.382, 1.583}},

    {Kind::fp8_fast, 128, 112, 128, kPersistent, false, {0.3067, 1.336, 2.007}},
    {Kind::fp8_fast, 64, 128, 128, kPersistent, true, {0.1618, 1.267, 1.827}},
    {Kind::fp8_fast, 128, 128, 128, kPingpong, false, {0.3489, 0.384, 2.443}},
    {Kind::fp8_fast, 64, 96, 128, kPersistent, false, {0.1395, 0.787, 2.197}},
    {Kind::fp8_fast, 64, 112, 128, kPersistent, false, {0.1358, 1.177, 2.290}},
    {Kind::fp8_fast, 64, 192, 128, kPersistent, false, {0.2239, 1.860, 2.401}},
    {Kind::fp8_fast, 128, 160, 128, kPersistent, false, {0.4217, 1.761, 1.877}},

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

// Convolutions by windows, for each tap: of four layers on an H200.
constexpr Calibration kWindow{0.3250, 0.100, 3.200};

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
  if (row.family == Family::sm90_conv_window) return &kWindow;
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

Limits limits_of(KernelRow const& row) {
  constexpr Limits kDense{0.1187, 0.1330, 0.852, 2.70, 2.95, 3.05, 5.79, true};
  constexpr Limits kOthers{15.2 / 132, 12.8 / 132, 1.03, 2.8, 2, 3.5, 6.0, false};
  bool const is_dense = row.family == Family::sm90_persistent || row.family == Family::sm90_warpspecialized;
  return is_dense && row.scales == BlockScales::none && row.a != DType::s8 ? kDense : kOthers;
}

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
