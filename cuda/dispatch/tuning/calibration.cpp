#include "dispatch/tuning/calibration.h"

#include <algorithm>

namespace cutwheel {
namespace {

bool is_wide_grouped(KernelDescriptor const& kernel) {
  return kernel.family == Family::sm90_grouped && element_bytes(kernel.a) == 2;
}

bool is_wide_conv(KernelDescriptor const& kernel) {
  bool const is_conv = kernel.family == Family::sm90_conv || kernel.family == Family::sm90_gather_conv ||
                       kernel.family == Family::sm90_row_conv;
  return is_conv && element_bytes(kernel.a) > 1;
}

FigureKind kind_of(KernelDescriptor const& kernel) {
  if (is_wide_conv(kernel)) {
    bool const gathers = kernel.family == Family::sm90_gather_conv, shares = kernel.family == Family::sm90_row_conv;
    switch (kernel.direction) {
      case Direction::dgrad: return shares ? FigureKind::row_dgrad : FigureKind::dgrad;
      case Direction::wgrad: return gathers ? FigureKind::gather_wgrad : FigureKind::wgrad;
      default: return gathers ? FigureKind::gather_fprop : shares ? FigureKind::row_fprop : FigureKind::fprop;
    }
  }
  if (is_wide_grouped(kernel)) {
    return kernel.grouping == Grouping::rows ? FigureKind::grouped_rows : FigureKind::grouped_k;
  }
  switch (kernel.scales) {
    case BlockScales::a1x128_b128x128: return FigureKind::blocks_of_b;
    case BlockScales::a1x128_b1x128: return FigureKind::columns_of_b;
    case BlockScales::none: break;
  }
  if (kernel.family == Family::sm90_unaligned) return FigureKind::unaligned;
  if (kernel.op == Op::gemm && kernel.a == DType::tf32) return FigureKind::tf32;
  if (is_fp8(kernel.a)) return kernel.fast_accum ? FigureKind::fp8_fast : FigureKind::fp8;
  if (element_bytes(kernel.a) == 1) return FigureKind::int8;
  if (element_bytes(kernel.a) != 2) return FigureKind::wide;
  if (kernel.d == DType::f32) return FigureKind::wide_f32;
  if (kernel.layout_b == Layout::column) return FigureKind::wide;
  return kernel.layout_a == Layout::row ? FigureKind::wide_ttt : FigureKind::wide_ntt;
}

// Figures of tiles that this kind has none of its own for.
FigureKind fallback_of(FigureKind kind) {
  bool const is_wide = kind == FigureKind::wide_ttt || kind == FigureKind::wide_ntt || kind == FigureKind::wide_f32;
  return is_wide ? FigureKind::wide : kind;
}

int k_bytes_of(KernelDescriptor const& kernel) { return kernel.tile.k * element_bytes(kernel.a); }

// Dense 16-bit multiply-adds with float32 accumulation, per SM and clock (architecture white papers); 8-bit ones are twice
// as many. On newer GPUs mma.sync reaches less than their own instructions do.
double macs_per_clock(KernelDescriptor const& kernel, DeviceInfo const& device) {
  if (is_persistent(kernel)) return 2048;
  if (device.major == 8) return device.minor == 0 ? 1024 : 512;
  return 1250;
}

Calibration const* find_by_area(KernelDescriptor const& kernel) {
  if (kernel.family != Family::sm90_grouped && kernel.family != Family::sm90_conv) return nullptr;
  Calibration const& figures = kFiguresByArea[static_cast<int>(kind_of(kernel))];
  return figures.k_tile_us > 0 ? &figures : nullptr;
}

MmaFigures const* find_mma(KernelDescriptor const& kernel) {
  if (kernel.family != Family::sm80_multistage) return nullptr;
  auto const* const end = kMmaFigures + kMmaFigureCount;
  auto const* const found =
      std::find_if(kMmaFigures, end, [&](MmaFigures const& x) { return x.m == kernel.tile.m && x.n == kernel.tile.n; });
  return found != end ? found : nullptr;
}

Calibration const* find_fitted(KernelDescriptor const& kernel, FigureKind kind) {
  if (kernel.family == Family::sm90_space_to_depth)
    return kernel.tile.k == 16 ? &kSpaceToDepth16Figures : &kSpaceToDepth32Figures;
  if (kernel.family == Family::sm90_few_channels) return &kFewChannelsFigures;
  if (is_direct_conv(kernel)) return &kDirectConvFigures;
  if (find_by_area(kernel) || !is_persistent(kernel)) return nullptr;
  auto const* const end = kTileFigures + kTileFigureCount;
  auto const find = [&](int columns, int rows) {
    return std::find_if(kTileFigures, end, [&](TileFigures const& x) {
      return x.kind == kind && x.m == kernel.tile.m && x.n == kernel.tile.n && x.k_bytes == k_bytes_of(kernel) &&
             x.is_native == is_native(kernel) && x.schedule == kernel.schedule && x.swap_ab == kernel.swap_ab &&
             x.splits == kernel.cluster.k && x.columns == columns && x.rows == rows;
    });
  };
  auto const* found = find(kernel.cluster.m, kernel.cluster.n);
  if (found == end) found = find(1, 1);
  if (found != end) return &found->figures;
  return fallback_of(kind) != kind ? find_fitted(kernel, fallback_of(kind)) : nullptr;
}

}  // namespace

Limits const& limits_of(KernelDescriptor const& kernel) {
  if (find_mma(kernel)) return kMmaLimits;
  if (is_wide_conv(kernel)) return kConvLimits;
  if (is_wide_grouped(kernel)) return kGroupedLimits;
  bool const is_dense = is_native_dense(kernel) || kernel.family == Family::sm90_warpspecialized;
  return is_dense && kernel.scales == BlockScales::none && kind_of(kernel) != FigureKind::int8 ? kDenseLimits
                                                                                               : kOtherLimits;
}

Calibration calibration_of(KernelDescriptor const& kernel, DeviceInfo const& device, bool is_strided) {
  FigureKind const kind = kind_of(kernel);
  if (is_strided && kind == FigureKind::dgrad) {
    if (Calibration const* const fitted = find_fitted(kernel, FigureKind::strided_dgrad)) return *fitted;
  }
  if (Calibration const* const fitted = find_fitted(kernel, kind)) return *fitted;
  double const bytes = static_cast<double>(kernel.tile.m) * kernel.tile.n * k_bytes_of(kernel);
  if (Calibration const* const x = find_by_area(kernel)) {
    return {x->k_tile_us * (bytes / (128 * 128 * 128)), x->tile_us, x->launch_us};
  }
  // float32 halves the rate and doubles the bytes, 8 bits do the opposite: per byte of K the same.
  double const clocks = bytes / 2 / macs_per_clock(kernel, device), clocks_per_us = device.sm_clock_ghz * 1e3;
  if (MmaFigures const* x = find_mma(kernel)) {
    return {clocks / x->reached / clocks_per_us, kMmaTileUs, kMmaLaunchUs, (clocks + x->latency_clocks) / clocks_per_us};
  }
  constexpr double kReached = 0.7;  // of the paper rate, by a kernel that is not tuned for the GPU
  return {clocks / kReached / clocks_per_us, 1.0, 2.5};
}

bool is_measured(KernelDescriptor const& kernel, DeviceInfo const& device) {
  return device.major == kCalibratedGpu.cc_major && device.sm_count == kCalibratedGpu.sm_count &&
         device.memory_gb_per_s >= kCalibratedGpu.least_memory_gb_per_s &&
         (kernel.family == Family::thin || find_fitted(kernel, kind_of(kernel)));
}

}  // namespace cutwheel
