#include <algorithm>
#include <cstring>

#include "torch/conv_request.h"

namespace cutwheel {
namespace {

int whole(int channels, ScalarType type) {
  return static_cast<int>(round_up<std::int64_t>(channels, access_elements(type)));
}

// The problem that a kernel is given, and how its tensors come from those of the caller.
struct Frame {
  conv2d::ConvProblem problem;
  int channels;          // of a pixel of the input, with those that are added
  int fold = 1;          // taps of a row that are one to the kernel
  bool windows = false;  // these overlap
  bool by_row = false;   // images are the rows of positions
  int crop_h = 0, crop_w = 0;
};

// The gradient of the input at stride 1 as a convolution of the output's gradient. Where the padding is more than the
// filter reaches, pixels of that are left out.
Frame flipped_frame(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  int const pad_h = (p.r - 1) * p.dilation_h - p.pad_h, pad_w = (p.s - 1) * p.dilation_w - p.pad_w;
  Frame frame{p, whole(p.k_out, call.type), 1, false, false, std::max(-pad_h, 0), std::max(-pad_w, 0)};
  conv2d::ConvProblem& f = frame.problem;
  f.h = p.p - frame.crop_h, f.w = p.q - frame.crop_w, f.c = frame.channels;
  f.p = p.h, f.q = p.w, f.k_out = whole(p.c, call.type);
  f.pad_h = std::max(pad_h, 0), f.pad_w = std::max(pad_w, 0);
  return frame;
}

// Kernels multiply whole steps of K for each tap, however few its channels are. So taps of a row become one tap, of all
// their channels: of patches, which do not overlap, as they lie; of an image that is copied anyway, as windows on the copy.
// Rows of patches become images, where they lie so, if their stride is more than tensor maps have bits for.
Frame frame_of(ConvCall const& call, bool folds) {
  constexpr int kMaxMapStride = 8;
  conv2d::ConvProblem const& own = call.problem;
  Frame frame{own, whole(own.c, call.type)};
  conv2d::ConvProblem& p = frame.problem;
  p.k_out = whole(own.k_out, call.type), p.c = frame.channels;
  bool const is_dgrad = call.direction == Direction::dgrad;
  bool const whole_rows = own.w == own.q * own.s;
  if (!folds) return frame;
  if (own.s > 1 && own.stride_w == own.s && own.dilation_w == 1 && own.pad_w == 0 && (whole_rows || !is_dgrad) &&
      own.q * own.s <= own.w) {
    std::int64_t const unit = access_elements(call.type), folded = std::int64_t{own.s} * own.c;
    // Then rows of pixels are whole accesses, too.
    if (whole_rows && folded % unit == 0) frame.channels = own.c;
    frame.fold = own.s;
    p.c = own.s * frame.channels;
    p.w = own.w / own.s, p.s = 1, p.stride_w = 1;
  }
  if (frame.fold == 1 && !is_dgrad && own.s > 1 && own.dilation_w == 1 && frame.channels != own.c) {
    frame.fold = own.s;
    frame.windows = true;
    p.c = own.s * frame.channels;
    p.w = own.q, p.s = 1, p.stride_w = 1, p.pad_w = 0;
  }
  if (!is_dgrad && own.stride_h > kMaxMapStride && own.stride_h == own.r && own.dilation_h == 1 && own.pad_h == 0 &&
      own.h == own.p * own.r) {
    frame.by_row = true;
    p.images = own.images * own.p;
    p.h = own.r, p.p = 1, p.stride_h = 1;
  }
  return frame;
}

Frame frame_of(ConvCall const& call, ConvRoute route) {
  return route == ConvRoute::flipped ? flipped_frame(call) : frame_of(call, /*folds=*/route != ConvRoute::unfolded);
}

// Each of `rows` an image of its own.
Image by_row(Image image, std::int64_t rows) {
  std::int64_t const each = image.sizes[1] / rows;
  image.sizes[0] *= rows, image.sizes[1] = each;
  image.strides[0] = image.strides[1] * each;
  return image;
}

struct Extents {
  int m, n, k;
};

Extents extents_of(Direction direction, conv2d::ConvProblem const& p) {
  int const pixels = p.images * p.h * p.w, positions = p.images * p.p * p.q, taps = p.r * p.s;
  switch (direction) {
    case Direction::dgrad: return {pixels, p.c, taps * p.k_out};
    case Direction::wgrad: return {p.k_out, taps * p.c, positions};
    default: return {positions, p.k_out, taps * p.c};
  }
}

Direction direction_of(ConvCall const& call, ConvRoute route) {
  return route == ConvRoute::flipped ? Direction::fprop : call.direction;
}

void copy_strides(std::int64_t (&to)[3], Image const& image) { std::copy_n(image.strides.begin(), 3, to); }

// The input of fprop and wgrad.
Image prepare_input(ConvCall const& call, Tensor const& input, Frame const& frame, std::vector<Tensor>& keep) {
  conv2d::ConvProblem const& own = call.problem;
  Image const x = frame.windows
                      ? windows_of(input, {frame.channels, own.s, own.stride_w, own.q, own.pad_w}, call.device, keep)
                      : readable_image(input, {frame.channels, frame.fold, frame.by_row}, call.device, keep);
  return frame.by_row ? by_row(x, own.p) : x;
}

void prepare_factors(PreparedConv& prepared, ConvCall const& call, Frame const& frame, ConvRoute route) {
  conv2d::ConvArgs& args = prepared.args;
  conv2d::ConvProblem const& p = frame.problem;
  std::vector<Tensor>& keep = prepared.keep;
  int const device = call.device;
  if (call.direction == Direction::wgrad) {
    Image const positions = readable_image(*call.a, {p.k_out, 1, /*even=*/true}, device, keep);
    Image const y = frame.by_row ? by_row(positions, call.problem.p) : positions;
    Image const x = prepare_input(call, *call.b, frame, keep);
    args.a = {y.data, p.k_out, 0}, args.b = {x.data, p.c, 0};
    copy_strides(args.y_strides, y);
    copy_strides(args.x_strides, x);
    return;
  }
  if (route == ConvRoute::flipped) {
    Image const x = readable_image(*call.a, {p.c}, device, keep);
    std::int64_t const cropped = frame.crop_h * x.strides[1] + frame.crop_w * x.strides[2];
    args.a = {static_cast<char const*>(x.data) + cropped * element_bytes_of(call.type), p.c, 0};
    args.b = {flipped_filter(call.filter(), p.c, p.k_out, device, keep).data, p.c, 0};
    copy_strides(args.x_strides, x);
    return;
  }
  args.b = {readable_filter(call.filter(), p.k_out, frame.channels, device, keep).data, p.c, 0};
  if (call.direction == Direction::dgrad) {
    Image const y = readable_image(*call.a, {p.k_out}, device, keep);
    args.a = {y.data, p.k_out, 0};
    copy_strides(args.y_strides, y);
  } else {
    Image const x = prepare_input(call, *call.a, frame, keep);
    args.a = {x.data, p.c, 0};
    copy_strides(args.x_strides, x);
  }
}

// D as the kernel writes it: the result itself, or what is copied to the result without the channels that were added.
void prepare_result(PreparedConv& prepared, ConvCall const& call, Frame const& frame, ConvRoute route, ScalarType d_type) {
  conv2d::ConvArgs& args = prepared.args;
  conv2d::ConvProblem const& own = call.problem;
  prepared.d.tensor = make_conv_result(call);
  args.d = prepared.d.tensor->data_ptr();
  args.d_leading = args.n;
  bool const is_wgrad = call.direction == Direction::wgrad, is_fprop = call.direction == Direction::fprop;
  int const filters = frame.problem.k_out, channels = is_fprop || route == ConvRoute::flipped ? filters : frame.channels;
  std::int64_t const own_channels = is_fprop ? own.k_out : own.c;
  bool const as_it_lies = channels == own_channels && (!is_wgrad || filters == own.k_out) && d_type == call.d_type;
  if (as_it_lies) return;
  // [filters, taps, channels], or [1, pixels, channels].
  std::int64_t const batch = is_wgrad ? own.k_out : 1, rows = is_wgrad ? std::int64_t{own.r} * own.s : call.m;
  prepared.d.copy_to = {args.d, batch, rows, own_channels, rows * own_channels, own_channels, 1};
  std::int64_t const pitch = channels, all = is_wgrad ? filters : 1;
  prepared.d.temporary = empty_strided({all, rows, pitch}, {rows * pitch, pitch, 1}, d_type, call.device);
  args.d = prepared.d.temporary->data_ptr();
  prepared.d.copy_from = {args.d, batch, rows, own_channels, rows * pitch, pitch, 1};
}

// A value for each column of D, or one for all.
gemm::EpilogueValue prepare_row(ConvCall const& call, EpilogueOperandInfo const& operand, Tensor const& tensor,
                                ScalarType type, int columns, std::vector<Tensor>& keep) {
  Matrix x = vector_of(tensor);
  bool const is_one = operand.may_be_one && (x.cols == 1 || x.col_stride == 0);
  if (!is_one || tensor.scalar_type() != type) {
    std::int64_t const pitch = round_up<std::int64_t>(is_one ? 1 : columns, access_elements(type));
    x = readable(x, tensor, type, pitch, !is_one && columns != x.cols, call.device, keep);
  }
  return {x.data, /*leading=*/is_one ? 0 : 1, 0, 0};
}

gemm::EpilogueValue prepare_residual(ConvCall const& call, Tensor const& residual, int columns, std::vector<Tensor>& keep) {
  View const rows = flatten_rows(view_of(residual, image_of(residual)), call.m, call.n, keep);
  Matrix const x =
      readable(rows.matrix, rows.owner, call.d_type, columns, /*force_copy=*/columns != call.n, call.device, keep);
  return {x.data, leading_of(x, columns), 0, 0};
}

void prepare_epilogue(PreparedConv& prepared, ConvCall const& call, ScaledForm const& form) {
  EpilogueInfo const& info = info_of(form.epilogue);
  int const columns = prepared.args.n;
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    auto const is = [&](char const* name) { return std::strcmp(operand.name, name) == 0; };
    ScalarType const type = operand_type(operand, form.d_type);
    gemm::EpilogueValue value;
    if (operand.kind == OperandKind::scalar) {
      value.value = 1;
    } else if (is("bias") && call.bias) {
      value = prepare_row(call, operand, *call.bias, type, columns, prepared.keep);
    } else if (is("residual") && call.residual) {
      value = prepare_residual(call, *call.residual, columns, prepared.keep);
    } else if (is("scale_a")) {
      value = {call.scale_input->data_ptr(), /*leading=*/0, 0, 0};
    } else if (is("scale_b")) {
      value = prepare_row(call, operand, *call.scale_weight, type, columns, prepared.keep);
    }
    prepared.args.epilogue[i] = value;
  }
}

}  // namespace

bool copies_windows(ConvCall const& call) { return frame_of(call, ConvRoute::implicit).windows; }

GemmRequest request_of(ConvCall const& call, ConvRoute route, ScaledForm const& form) {
  conv2d::ConvProblem const problem = frame_of(call, route).problem;
  GemmRequest request;
  request.op = Op::conv2d;
  request.device = call.device;
  request.a = request.b = call.type == ScalarType::Float ? DType::tf32 : dtype_of(call.type);
  request.d = dtype_of(form.d_type);
  request.epilogue = form.epilogue;
  request.addend = info_of(form.epilogue).addend;
  request.direction = direction_of(call, route);
  auto const [m, n, k] = extents_of(request.direction, problem);
  request.m = m, request.n = n, request.k = k;
  request.taps = problem.r * problem.s;
  request.step = problem.step();
  request.tensor_maps = conv2d::fits_tensor_maps(request.direction, problem);
  request.direct_conv = conv2d::count_direct_conv(request.direction, problem);
  request.space_to_depth = conv2d::count_space_to_depth(request.direction, problem);
  return request;
}

Tensor make_conv_result(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  switch (call.direction) {
    case Direction::dgrad: return empty_channels_last({p.images, p.c, p.h, p.w}, call.d_type, call.device);
    case Direction::wgrad: return empty_channels_last({p.k_out, p.c, p.r, p.s}, call.d_type, call.device);
    default: return empty_channels_last({p.images, p.k_out, p.p, p.q}, call.d_type, call.device);
  }
}

void prepare_conv(PreparedConv& prepared, ConvCall const& call, ConvWay const& way) {
  prepared.request = request_of(call, way.route, way.form);
  conv2d::ConvArgs& args = prepared.args;
  Frame const frame = frame_of(call, way.route);
  args.conv = frame.problem;
  args.m = prepared.request.m, args.n = prepared.request.n, args.k = prepared.request.k;
  prepare_factors(prepared, call, frame, way.route);
  prepare_result(prepared, call, frame, way.route, way.form.d_type);
  prepare_epilogue(prepared, call, way.form);
}

}  // namespace cutwheel
