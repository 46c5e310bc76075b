#include "dispatch/run_conv.h"

#include <algorithm>

#include "sm90/direct_conv/shape.h"

namespace cutwheel::conv2d {
namespace {

// How the plan's kernel is to be called: with splits D is in the workspace.
ConvArgs planned(GemmPlan const& plan, ConvArgs args) {
  args.raster = plan.raster;
  args.swizzle = std::clamp(plan.swizzle, 1, kMaxSwizzle);
  args.splits = plan.splits;
  if (plan.reduce) {
    args.d = args.workspace;
    args.d_leading = args.n;
    args.d_batch_stride = std::int64_t{args.m} * args.n;
  }
  return args;
}

// Of a tensor map's bit fields: three sides have less each than two.
struct MapFields {
  int corner, offset;
};

// One side of an image: where the first tap of the first position lies, and those of the last, counted from the last pixel.
bool fits(MapFields most, int first, int last, int stride, int reach) {
  auto const is_corner = [&](int x) { return x >= -most.corner - 1 && x <= most.corner; };
  return is_corner(first) && is_corner(last) && stride <= 8 && reach <= most.offset;
}

bool fits(MapFields most, Direction direction, int x, int y, int taps, int pad, int stride, int dilation) {
  int const reach = (taps - 1) * dilation;
  if (direction != Direction::dgrad) return fits(most, -pad, (y - 1) * stride - pad - (x - 1), stride, reach);
  // The gradient's image is that of the output, and a position for each `stride` of the input's.
  int const first = (pad - reach) / stride;
  return fits(most, first, first + ceil_div(x, stride) - y, 1, ceil_div(reach, stride) + 1);
}

DirectConvTiles tiles_of(DirectConvShape const& shape) {
  return {static_cast<int>(std::min<std::int64_t>(shape.output_tiles(), DirectConvShape::kMaxOutputTiles)),
          shape.taps_h * shape.taps_w * shape.block_rows, shape.channels};
}

}  // namespace

bool fits_tensor_maps(Direction direction, ConvProblem const& p) {
  constexpr int kMaxPhases = 16;
  std::int64_t const phases =
      std::int64_t{std::min(p.stride_h, p.h)} * std::min(p.stride_w, p.w) * std::min(p.stride_d, p.d);
  if (direction == Direction::dgrad && phases > kMaxPhases) return false;
  MapFields const most = p.is_volume() ? MapFields{15, 31} : MapFields{127, 254};
  return fits(most, direction, p.h, p.p, p.r, p.pad_h, p.stride_h, p.dilation_h) &&
         fits(most, direction, p.w, p.q, p.s, p.pad_w, p.stride_w, p.dilation_w) &&
         (!p.is_volume() || fits(most, direction, p.d, p.o, p.t, p.pad_d, p.stride_d, p.dilation_d));
}

SharedPixels count_shared_pixels(Direction direction, ConvProblem const& p) {
  int const lines = (p.s - 1) * p.dilation_w;
  if (direction == Direction::wgrad || p.step() != 1 || p.s < kFewestRowTaps || lines > kMostTapLines) return {};
  bool const is_forward = direction == Direction::fprop;
  std::int64_t const rows = is_forward ? std::int64_t{p.images} * p.o * p.p : std::int64_t{p.images} * p.d * p.h;
  std::int64_t const positions = rows * ((is_forward ? p.q : p.w) + lines);
  constexpr std::int64_t kMost = 0x7fffffff - 4096;
  return positions <= kMost ? SharedPixels{static_cast<int>(positions), p.s} : SharedPixels{};
}

DirectConvTiles count_direct_conv(Direction direction, ConvProblem const& problem) {
  DirectConvShape shape;
  return !problem.is_volume() && shape.plan(direction, problem) ? tiles_of(shape) : DirectConvTiles{};
}

DirectConvTiles count_space_to_depth(Direction direction, ConvProblem const& problem) {
  DirectConvShape shape;
  bool const may = direction == Direction::fprop && !problem.is_volume();
  return may && shape.plan_space_to_depth(problem) ? tiles_of(shape) : DirectConvTiles{};
}

DirectConvTiles count_few_channels(Direction direction, ConvProblem const& problem) {
  DirectConvShape shape;
  bool const may = direction == Direction::fprop && !problem.is_volume() && problem.k_out % 8 == 0;
  return may && shape.plan_few_channels(problem) ? tiles_of(shape) : DirectConvTiles{};
}

std::int64_t workspace_bytes(GemmPlan const& plan, ConvArgs const& args) {
  std::int64_t const partial =
      plan.reduce ? std::int64_t{args.m} * args.n * plan.splits * static_cast<std::int64_t>(sizeof(float)) : 0;
  return std::max(partial, plan.kernel->workspace_bytes(planned(plan, args)));
}

gemm::Status run(GemmPlan const& plan, ConvArgs args) {
  gemm::Status const status = plan.kernel->launch(planned(plan, args));
  if (!plan.reduce || !status.good()) return status;
  gemm::GemmArgs sum = args;
  sum.a = {args.workspace, args.n, std::int64_t{args.m} * args.n};
  sum.b = {};
  sum.splits = plan.splits;
  sum.alpha = 1;
  sum.beta = 0;
  return plan.reduce->launch(sum);
}

}  // namespace cutwheel::conv2d
