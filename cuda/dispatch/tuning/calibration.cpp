#include "dispatch/tuning/calibration.h"

#include <algorithm>

namespace cutwheel {
namespace {

FigureKind kind_of(KernelDescriptor const& row) {
  switch (row.scales) {
    case BlockScales::a1x128_b128x128: return FigureKind::blocks_of_b;
    case BlockScales::a1x128_b1x128: return FigureKind::columns_of_b;
    case BlockScales::none: break;
  }
  if (is_fp8(row.a)) return row.fast_accum ? FigureKind::fp8_fast : FigureKind::fp8;
  return element_bytes(row.a) == 1 ? FigureKind::int8 : FigureKind::wide;
}

int k_bytes_of(KernelDescriptor const& row) { return row.tile.k * element_bytes(row.a); }

// Dense 16-bit multiply-adds with float32 accumulation, per SM and clock (architecture white papers); 8-bit ones are twice
// as many. On newer GPUs mma.sync reaches less than their own instructions do.
double macs_per_clock(KernelDescriptor const& row, DeviceInfo const& device) {
  if (is_persistent(row)) return 2048;
  if (device.major == 8) return device.minor == 0 ? 1024 : 512;
  return 1250;
}

Calibration const* find_by_area(KernelDescriptor const& row) {
  if (row.family != Family::sm90_grouped && row.family != Family::sm90_conv) return nullptr;
  Calibration const& figures = kFiguresByArea[static_cast<int>(kind_of(row))];
  return figures.k_tile_us > 0 ? &figures : nullptr;
}

Calibration const* find_fitted(KernelDescriptor const& row) {
  FigureKind const kind = kind_of(row);
  if (row.family == Family::sm90_space_to_depth)
    return row.tile.k == 16 ? &kSpaceToDepth16Figures : &kSpaceToDepth32Figures;
  if (is_direct_conv(row)) return &kDirectConvFigures;
  if (row.family == Family::sm90_conv && kind == FigureKind::wide) {
    bool const is_wgrad = row.direction == Direction::wgrad;
    auto const* const end = kConvFigures + kConvFigureCount;
    auto const* const found = std::find_if(kConvFigures, end, [&](ConvFigures const& x) {
      return x.is_wgrad == is_wgrad && x.m == row.tile.m && x.n == row.tile.n;
    });
    if (found != end) return &found->figures;
  }
  if (find_by_area(row) || !is_persistent(row)) return nullptr;
  auto const* const end = kTileFigures + kTileFigureCount;
  auto const* const found = std::find_if(kTileFigures, end, [&](TileFigures const& x) {
    return x.kind == kind && x.m == row.tile.m && x.n == row.tile.n && x.k_bytes == k_bytes_of(row) &&
           x.schedule == row.schedule && x.swap_ab == row.swap_ab && x.splits == row.cluster.k;
  });
  return found != end ? &found->figures : nullptr;
}

}  // namespace

Limits const& limits_of(KernelDescriptor const& row) {
  bool const is_dense = row.family == Family::sm90_persistent || row.family == Family::sm90_warpspecialized;
  return is_dense && row.scales == BlockScales::none && kind_of(row) != FigureKind::int8 ? kDenseLimits : kOtherLimits;
}

Calibration calibration_of(KernelDescriptor const& row, DeviceInfo const& device) {
  if (Calibration const* const fitted = find_fitted(row)) return *fitted;
  double const bytes = static_cast<double>(row.tile.m) * row.tile.n * k_bytes_of(row);
  if (Calibration const* const x = find_by_area(row)) {
    return {x->k_tile_us * (bytes / (128 * 128 * 128)), x->tile_us, x->launch_us};
  }
  constexpr double kReached = 0.7;  // of the paper rate, by a kernel that is not tuned for the GPU
  // float32 halves the rate and doubles the bytes, 8 bits do the opposite: per byte of K the same.
  return {bytes / 2 / (macs_per_clock(row, device) * kReached * device.sm_clock_ghz * 1e3), 1.0, 2.5};
}

bool is_measured(KernelDescriptor const& row, DeviceInfo const& device) {
  return device.major == kCalibratedGpu.cc_major && device.sm_count == kCalibratedGpu.sm_count &&
         device.memory_gb_per_s >= kCalibratedGpu.least_memory_gb_per_s && find_fitted(row);
}

}  // namespace cutwheel
