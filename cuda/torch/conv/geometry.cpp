#include "torch/conv/geometry.h"

#include <algorithm>

namespace cutwheel {
namespace {

constexpr ErrorKind kShape = ErrorKind::shape, kValue = ErrorKind::value;

// `values` of images; of volumes those along the depth come first.
void check_list(ConvCallBase const& call, char const* argument, std::initializer_list<std::int64_t> depth,
                std::initializer_list<std::int64_t> values, std::int64_t least, char const* along_depth,
                char const* along) {
  std::vector<std::int64_t> given;
  auto const add = [&](std::initializer_list<std::int64_t> some) { given.insert(given.end(), some.begin(), some.end()); };
  auto const fits = [&](std::int64_t value) { return value >= least && value <= kMaxExtent; };
  bool const good = std::all_of(values.begin(), values.end(), fits) && std::all_of(depth.begin(), depth.end(), fits);
  if (good) return;
  if (call.has_depth()) add(depth);
  add(values);
  fail(kValue, call.names.op, ": ", argument, " is ", list_text(given.data(), given.size()), "; expected ", given.size(),
       " integers from ", least, " on: ", call.has_depth() ? along_depth : "", along);
}

void check_not_empty(ConvCallBase const& call, char const* argument, Sizes const& sizes, std::int64_t depth,
                     std::size_t first) {
  bool good = depth >= 1;
  for (std::size_t i = first; i < sizes.size(); ++i) good = good && sizes[i] >= 1;
  if (good) return;
  fail(kShape, call.names.op, ": ", argument, " has shape ", call.text_of(sizes, depth), "; expected ",
       first ? "no 0 but that of an empty batch" : "no 0");
}

}  // namespace

std::string sizes_text(Sizes const& sizes) { return list_text(sizes.data(), sizes.size()); }

std::string ConvCallBase::text_of(Sizes const& s, std::int64_t depth) const {
  if (!has_depth()) return sizes_text(s);
  std::array<std::int64_t, 5> const all{s[0], s[1], depth, s[2], s[3]};
  return list_text(all.data(), all.size());
}

Sizes sizes_of(Tensor const& tensor) {
  auto const sizes = tensor.sizes();
  if (sizes.size() == 5) return {sizes[0], sizes[1], sizes[3], sizes[4]};
  return {sizes[0], sizes[1], sizes[2], sizes[3]};
}

std::int64_t depth_of(Tensor const& tensor) { return tensor.dim() == 5 ? tensor.size(2) : 1; }

void check_geometry(ConvCallBase const& call) {
  auto const& [stride, p, dilation, stride_d, padding_d, dilation_d] = call.geometry;
  check_list(call, "stride", {stride_d}, {stride[0], stride[1]}, 1, "along D, ", "along H and W");
  check_list(call, "padding", {padding_d[0], padding_d[1]}, {p[0], p[1], p[2], p[3]}, 0, "front, back, ",
             "top, bottom, left, right");
  check_list(call, "dilation", {dilation_d}, {dilation[0], dilation[1]}, 1, "along D, ", "along H and W");
}

void check_size(ConvCallBase const& call) {
  bool const is_input = call.direction == Direction::dgrad;
  auto const [h, w, d] = call.size;
  char const* const of = call.is_transposed ? "size of the result" : is_input ? "size of the input" : "size of the weight";
  check_list(call, of, {d}, {h, w}, 0, is_input ? "D, " : "T, ", is_input ? "H and W" : "R and S");
}

void check_input_size(ConvCallBase const& call, Sizes const& x, std::int64_t depth) {
  bool const is_result = call.direction == Direction::dgrad;
  check_not_empty(call, call.is_transposed ? "the result" : is_result ? "the input" : "input", x, depth, 1);
}

void check_weight_size(ConvCallBase const& call, Sizes const& w, std::int64_t depth) {
  check_not_empty(call, call.direction == Direction::wgrad ? "the weight" : "weight", w, depth, 0);
}

std::int64_t out_extent(ConvCallBase const& call, ConvSizes const& sizes, std::size_t axis) {
  ConvGeometry const& g = call.geometry;
  bool const is_depth = axis == 2;
  char const* const along = is_depth ? "D" : axis ? "W" : "H";
  std::int64_t const before = is_depth ? g.padding_d[0] : g.padding[2 * axis],
                     after = is_depth ? g.padding_d[1] : g.padding[2 * axis + 1],
                     extent = is_depth ? sizes.d : sizes.x[axis + 2], taps = is_depth ? sizes.t : sizes.w[axis + 2],
                     stride = is_depth ? g.stride_d : g.stride[axis], dilation = is_depth ? g.dilation_d : g.dilation[axis];
  std::int64_t const padded = extent + before + after;
  if (padded > kMaxExtent) {
    fail(kShape, call.names.op, ": ", along, " with its padding is ", padded, "; at most ", kMaxExtent, " is supported");
  }
  // The span of a filter; its extents are below 2^31, so this fits.
  std::int64_t const span = dilation * (taps - 1) + 1;
  if (span > padded) {
    fail(kShape, call.names.op, ": along ", along, " the filter spans ", span, " pixels (", taps, " taps, dilation ",
         dilation, ") and the ", call.is_transposed ? "result" : "input", " has ", padded, " with its padding (", before,
         " + ", extent, " + ", after, "); expected a filter that fits: pad the input");
  }
  return (padded - span) / stride + 1;
}

void check_grad_output(ConvCallBase const& call, ConvSizes const& sizes) {
  if (sizes_of(*call.a) == sizes.y && depth_of(*call.a) == sizes.o) return;
  fail_shape(call.names.op, call.names.a, *call.a, call.text_of(sizes.y, sizes.o),
             call.is_transposed ? ", which a convolution makes of the result " : ", the shape of the result for an input ",
             call.text_of(sizes.x, sizes.d), call.is_transposed ? " with a weight " : " and a weight ",
             call.text_of(sizes.w, sizes.t));
}

void check_residual(ConvCallBase const& call) {
  Tensor const& residual = *call.residual;
  check_device(call.names.op, "residual", residual, call.device, call.names.a);
  check_type(call.names.op, "residual", residual, call.d_type);
  conv2d::ConvProblem const& p = call.problem;
  Sizes const sizes{p.images, p.k_out, p.p, p.q};
  bool const fits = call.has_depth() ? has_shape(residual, {p.images, p.k_out, p.o, p.p, p.q})
                                     : has_shape(residual, {p.images, p.k_out, p.p, p.q});
  if (!fits) fail_shape(call.names.op, "residual", residual, call.text_of(sizes, p.o), ", the shape of the result");
}

void check_count(ConvCallBase const& call, char const* what, std::initializer_list<std::int64_t> extents) {
  std::int64_t product = 1;
  for (std::int64_t const extent : extents) {
    if (extent <= kMaxExtent && product * extent <= kMaxExtent) {
      product *= extent;
      continue;
    }
    std::string text;
    for (std::int64_t const each : extents) text += concat(text.empty() ? "" : " * ", each);
    fail(kShape, call.names.op, ": ", what, " is ", text, "; at most ", kMaxExtent, " is supported");
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
  p.d = number(sizes.d), p.t = number(sizes.t), p.o = number(sizes.o);
  p.pad_d = number(g.padding_d[0]), p.stride_d = number(g.stride_d), p.dilation_d = number(g.dilation_d);
  return p;
}

void check_has_bias_and_residual_only(char const* op, EpilogueInfo const& info) {
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    bool const known = is_named(operand, OperandKind::scalar, "alpha") || is_named(operand, OperandKind::row, "bias") ||
                       is_named(operand, OperandKind::matrix, "residual") || operand.kind == OperandKind::store;
    if (!known) fail_operand(op, info, i, "none but bias and residual");
  }
}

ConvGeometry geometry_of(Question const& asked) {
  std::vector<std::int64_t> const& g = asked.geometry;
  bool const has_depth = asked.names.dims == 5;
  std::size_t const own = has_depth ? 12 : 8, more = has_depth ? 3 : 2;
  bool const has_groups = !has_depth && g.size() == own + more + 1;
  if (g.size() != own && g.size() != own + more && !has_groups) {
    fail(kValue, "explain: geometry has ", g.size(), " numbers; expected ", own, ", ", more,
         " more for the size of a gradient", has_depth ? "" : ", and 1 more for its groups");
  }
  if (!has_depth) return {{g[0], g[1]}, {g[2], g[3], g[4], g[5]}, {g[6], g[7]}};
  return {{g[1], g[2]}, {g[5], g[6], g[7], g[8]}, {g[10], g[11]}, g[0], {g[3], g[4]}, g[9]};
}

Extents2d size_of(Question const& asked) {
  std::vector<std::int64_t> const& g = asked.geometry;
  if (g.size() == 10 || g.size() == 11) return {g[8], g[9]};
  if (g.size() == 15) return {g[13], g[14], g[12]};
  return {};
}

std::int64_t groups_of(Question const& asked) { return asked.geometry.size() > 10 ? asked.geometry[10] : 1; }

}  // namespace cutwheel
