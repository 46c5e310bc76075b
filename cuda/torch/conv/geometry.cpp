#include "torch/conv/geometry.h"

namespace cutwheel {
namespace {

constexpr ErrorKind kShape = ErrorKind::shape, kValue = ErrorKind::value;

template <std::size_t kCount>
void check_list(ConvCallBase const& call, char const* argument, std::array<std::int64_t, kCount> const& values,
                std::int64_t least, char const* what) {
  for (std::int64_t value : values) {
    if (value >= least && value <= kMaxExtent) continue;
    fail(kValue, call.names.op, ": ", argument, " is ", list_text(values.data(), kCount), "; expected ", kCount,
         " integers from ", least, " on: ", what);
  }
}

void check_not_empty(ConvCallBase const& call, char const* argument, Sizes const& sizes, std::size_t first) {
  for (std::size_t i = first; i < sizes.size(); ++i) {
    if (sizes[i] >= 1) continue;
    fail(kShape, call.names.op, ": ", argument, " has shape ", sizes_text(sizes), "; expected ",
         first ? "no 0 but that of an empty batch" : "no 0");
  }
}

}  // namespace

std::string sizes_text(Sizes const& sizes) { return list_text(sizes.data(), sizes.size()); }

Sizes sizes_of(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

void check_geometry(ConvCallBase const& call) {
  check_list(call, "stride", call.geometry.stride, 1, "along H and W");
  check_list(call, "padding", call.geometry.padding, 0, "top, bottom, left, right");
  check_list(call, "dilation", call.geometry.dilation, 1, "along H and W");
}

void check_size(ConvCallBase const& call) {
  bool const is_input = call.direction == Direction::dgrad;
  check_list(call, is_input ? "size of the input" : "size of the weight", call.size, 0, is_input ? "H and W" : "R and S");
}

void check_input_size(ConvCallBase const& call, Sizes const& x) {
  check_not_empty(call, call.direction == Direction::dgrad ? "the input" : "input", x, 1);
}

void check_weight_size(ConvCallBase const& call, Sizes const& w) {
  check_not_empty(call, call.direction == Direction::wgrad ? "the weight" : "weight", w, 0);
}

std::int64_t out_extent(ConvCallBase const& call, ConvSizes const& sizes, std::size_t axis) {
  ConvGeometry const& g = call.geometry;
  char const* const along = axis ? "W" : "H";
  std::int64_t const before = g.padding[2 * axis], after = g.padding[2 * axis + 1];
  std::int64_t const padded = sizes.x[axis + 2] + before + after;
  if (padded > kMaxExtent) {
    fail(kShape, call.names.op, ": ", along, " with its padding is ", padded, "; at most ", kMaxExtent, " is supported");
  }
  std::int64_t const taps = sizes.w[axis + 2];
  // The span of a filter; its extents are below 2^31, so this fits.
  std::int64_t const span = g.dilation[axis] * (taps - 1) + 1;
  if (span > padded) {
    fail(kShape, call.names.op, ": along ", along, " the filter spans ", span, " pixels (", taps, " taps, dilation ",
         g.dilation[axis], ") and the input has ", padded, " with its padding (", before, " + ", sizes.x[axis + 2], " + ",
         after, "); expected a filter that fits: pad the input");
  }
  return (padded - span) / g.stride[axis] + 1;
}

void check_grad_output(ConvCallBase const& call, ConvSizes const& sizes) {
  if (sizes_of(*call.a) == sizes.y) return;
  fail_shape(call.names.op, "grad_output", *call.a, sizes_text(sizes.y), ", the shape of the result for an input ",
             sizes_text(sizes.x), " and a weight ", sizes_text(sizes.w));
}

void check_residual(ConvCallBase const& call) {
  Tensor const& residual = *call.residual;
  check_device(call.names.op, "residual", residual, call.device, call.names.a);
  check_type(call.names.op, "residual", residual, call.d_type);
  conv2d::ConvProblem const& p = call.problem;
  if (!has_shape(residual, {p.images, p.k_out, p.p, p.q})) {
    fail_shape(call.names.op, "residual", residual, sizes_text({p.images, p.k_out, p.p, p.q}), ", the shape of the result");
  }
}

void check_count(ConvCallBase const& call, char const* what, std::int64_t a, std::int64_t b, std::int64_t c) {
  bool const fits = a <= kMaxExtent && b <= kMaxExtent && c <= kMaxExtent && a * b <= kMaxExtent && a * b * c <= kMaxExtent;
  if (!fits) {
    fail(kShape, call.names.op, ": ", what, " is ", a, " * ", b, " * ", c, "; at most ", kMaxExtent, " is supported");
  }
}

conv2d::ConvProblem problem_of(ConvGeometry const& g, ConvSizes const& sizes) {
  auto const number = [](std::int64_t x) { return static_cast<int>(x); };
  conv2d::ConvProblem p;
  p.images = number(sizes.x[0]), p.c = number(sizes.x[1]), p.h = number(sizes.x[2]), p.w = number(sizes.x[3]);
  p.k_out = number(sizes.w[0]), p.r = number(sizes.w[2]), p.s = number(sizes.w[3]);
  p.p = number(sizes.y[2]), p.q = number(sizes.y[3]);
  p.pad_h = number(g.padding[0]), p.pad_w = number(g.padding[2]);
  p.stride_h = number(g.stride[0]), p.stride_w = number(g.stride[1]);
  p.dilation_h = number(g.dilation[0]), p.dilation_w = number(g.dilation[1]);
  return p;
}

void check_has_bias_and_residual_only(char const* op, EpilogueInfo const& info) {
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    bool const known = is_named(operand, OperandKind::scalar, "alpha") || is_named(operand, OperandKind::row, "bias") ||
                       is_named(operand, OperandKind::matrix, "residual");
    if (!known) fail_operand(op, info, i, "none but bias and residual");
  }
}

ConvGeometry geometry_of(Question const& asked) {
  std::vector<std::int64_t> const& g = asked.geometry;
  if (g.size() != 8 && g.size() != 10 && g.size() != 11) {
    fail(kValue, "explain: geometry has ", g.size(),
         " numbers; expected 8, 2 more for the size of a gradient, and 1 more for its groups");
  }
  return {{g[0], g[1]}, {g[2], g[3], g[4], g[5]}, {g[6], g[7]}};
}

Extents2d size_of(Question const& asked) {
  if (asked.geometry.size() < 10) return {};
  return {asked.geometry[8], asked.geometry[9]};
}

std::int64_t groups_of(Question const& asked) { return asked.geometry.size() > 10 ? asked.geometry[10] : 1; }

}  // namespace cutwheel
