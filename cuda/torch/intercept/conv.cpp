// convolution and convolution_backward, of images. Both are taken behind autograd, whose formula for the first is the
// second, and in front of the choice between cuDNN and torch's own kernels.
#include "torch/conv/conv.h"

#include "torch/intercept/operands.h"
#include "torch/intercept/ops.h"
#include "torch/intercept/torch_kernel.h"
#include "torch/tensor/numbers.h"

namespace cutwheel {
namespace {

TorchList list_of(Numbers const& numbers) { return {numbers.data(), numbers.size()}; }

struct Geometry {
  Numbers const& stride;
  Numbers const& padding;
  Numbers const& dilation;
  bool transposed;
  Numbers const& output_padding;
  std::int64_t groups;

  ConvGeometry ours() const {
    return {{stride.h(), stride.w()}, {padding.h(), padding.h(), padding.w(), padding.w()}, {dilation.h(), dilation.w()}};
  }
};

// Problem::variant is a Direction.
Direction direction_of(Problem const& p) { return static_cast<Direction>(p.variant); }

// Where the numbers of a convolution are in Problem::conv.
enum Place : std::size_t { kN, kC, kH, kW, kKo, kR, kS, kStrideH, kStrideW, kPadH, kPadW, kDilationH, kDilationW, kGroups };
static_assert(kGroups + 1 == std::tuple_size_v<MeasuredExtents>);

bool has_channels_last(Tensor const& x) {
  std::int64_t const c = x.size(1), h = x.size(2), w = x.size(3);
  return x.stride(1) == 1 && x.stride(3) == c && x.stride(2) == w * c && x.stride(0) == h * w * c &&
         reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0;
}

// Filters as they were measured. Sizes of 1 have no order.
bool is_filter(Tensor const& x) {
  std::int64_t const c = x.size(1), r = x.size(2), s = x.size(3);
  if (reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 != 0 || x.stride(0) != r * s * c) return false;
  return (c == 1 || x.stride(1) == 1) && (s == 1 || x.stride(3) == c) && (r == 1 || x.stride(2) == s * c);
}

std::int64_t outputs(std::int64_t size, std::int64_t taps, std::int64_t stride, std::int64_t padding,
                     std::int64_t dilation) {
  std::int64_t const room = size + 2 * padding - dilation * (taps - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// Operands of fprop; gradients take the same tensors, with `grad`.
Problem problem_of(Taken op, Tensor const& x, Tensor const& w, Geometry const& geometry, Tensor const* bias,
                   Tensor const* grad) {
  Problem p = begin_problem(op, x);
  p.variant = static_cast<std::uint8_t>(Direction::fprop);
  if (!x.defined() || !w.defined() || x.dim() != 4 || w.dim() != 4 || (grad && (!grad->defined() || grad->dim() != 4))) {
    return p.with(Verdict::shape);
  }
  if (!are_on_device_of(x, {&w, bias, grad})) return p.with(Verdict::not_cuda);
  p.device = static_cast<std::int32_t>(x.get_device_index());
  if (geometry.transposed || !geometry.output_padding.is_zero() || !geometry.stride.is_pair(1) ||
      !geometry.padding.is_pair(0) || !geometry.dilation.is_pair(1) || geometry.groups < 1) {
    return p.with(Verdict::arguments);
  }
  MeasuredExtents& c = p.conv;
  c = {x.size(0),
       x.size(1),
       x.size(2),
       x.size(3),
       w.size(0),
       w.size(2),
       w.size(3),
       geometry.stride.h(),
       geometry.stride.w(),
       geometry.padding.h(),
       geometry.padding.w(),
       geometry.dilation.h(),
       geometry.dilation.w(),
       geometry.groups};
  if (x.numel() == 0 || w.numel() == 0) return p.with(Verdict::empty);
  std::int64_t const rows = outputs(c[kH], c[kR], c[kStrideH], c[kPadH], c[kDilationH]),
                     cols = outputs(c[kW], c[kS], c[kStrideW], c[kPadW], c[kDilationW]);
  if (rows == 0 || cols == 0 || w.size(1) * geometry.groups != c[kC] || c[kKo] % geometry.groups != 0 ||
      (grad && !has_shape(*grad, {c[kN], c[kKo], rows, cols}))) {
    return p.with(Verdict::shape);
  }
  p.batch = 1, p.m = c[kN] * rows * cols, p.n = c[kKo], p.k = c[kR] * c[kS] * w.size(1);
  if (!is_16_bit(p.type) || type_of(w) != p.type || (bias && type_of(*bias) != p.type) ||
      (grad && type_of(*grad) != p.type)) {
    return p.with(Verdict::dtype);
  }
  if (is_narrowed(p.type)) return p.with(Verdict::narrowed);
  if (bias && (bias->dim() != 1 || bias->size(0) != p.n || !is_contiguous(*bias))) return p.with(Verdict::arguments);
  // One channel does not tell the memory format, and torch's result follows its own guess.
  bool const is_read = c[kC] > 1 && has_channels_last(x) && is_filter(w) && (!grad || has_channels_last(*grad));
  return is_read ? p : p.with(Verdict::layout);
}

// The same of a gradient.
Problem gradient_of(Problem p, Direction direction) {
  p.variant = static_cast<std::uint8_t>(direction);
  MeasuredExtents const& c = p.conv;
  if (p.first != Verdict::taken) return p;
  std::int64_t const positions = p.m, taps = c[kR] * c[kS];
  if (direction == Direction::dgrad) {
    p.m = c[kN] * c[kH] * c[kW], p.n = c[kC], p.k = taps * c[kKo] / c[kGroups];
  } else {
    p.m = c[kKo], p.n = p.k, p.k = positions;
  }
  return p;
}

// Kernels may copy few channels, or filters: what was measured has it.
Verdict plan(Conv2d const& conv) { return verdict_of(explain_conv2d(conv), /*may_copy=*/true); }

Tensor convolution(Tensor const& x, Tensor const& w, std::optional<Tensor> const& bias, StableListHandle stride_list,
                   StableListHandle padding_list, StableListHandle dilation_list, bool transposed,
                   StableListHandle output_padding_list, std::int64_t groups) {
  Numbers const stride(stride_list), padding(padding_list), dilation(dilation_list), output_padding(output_padding_list);
  Geometry const geometry{stride, padding, dilation, transposed, output_padding, groups};
  Tensor const* const row = or_null(bias);
  Problem const p = problem_of(Taken::convolution, x, w, geometry, row, nullptr);
  auto const ours = [&] { return Conv2d{Direction::fprop, x, w, row, {}, geometry.ours(), groups}; };
  return run_either<Tensor>(
      p, [&] { return plan(ours()); }, [&] { return run_conv2d(ours()); },
      [&] {
        using Kernel = TorchTensor(void const*, void const*, TorchOptional const*, TorchList, TorchList, TorchList, bool,
                                   TorchList, std::int64_t);
        TorchOptional const optional_row(bias);
        Tensor result;
        adopt(result,
              torch_kernel<Kernel>(Taken::convolution)(x.get(), w.get(), &optional_row, list_of(stride), list_of(padding),
                                                       list_of(dilation), transposed, list_of(output_padding), groups));
        return result;
      });
}

// Each gradient goes its own way; the bias's is torch's.
std::tuple<Tensor, Tensor, Tensor> convolution_backward(Tensor const& grad, Tensor const& x, Tensor const& w,
                                                        std::optional<StableListHandle> bias_sizes_list,
                                                        StableListHandle stride_list, StableListHandle padding_list,
                                                        StableListHandle dilation_list, bool transposed,
                                                        StableListHandle output_padding_list, std::int64_t groups,
                                                        StableListHandle mask_list) {
  std::optional<Numbers> bias_sizes;
  if (bias_sizes_list) bias_sizes.emplace(*bias_sizes_list);
  Numbers const stride(stride_list), padding(padding_list), dilation(dilation_list), output_padding(output_padding_list),
      mask(mask_list);
  Geometry const geometry{stride, padding, dilation, transposed, output_padding, groups};
  std::array<bool, 3> theirs{mask.flag(0), mask.flag(1), mask.flag(2)};
  std::array<bool, 3> is_ours{};
  std::array<Tensor, 3> results;
  Problem const forward = problem_of(Taken::convolution_backward, x, w, geometry, nullptr, &grad);
  auto const take = [&](Direction direction, std::size_t place) {
    if (!theirs[place]) return;
    Tensor const& size = direction == Direction::dgrad ? x : w;
    auto const ours = [&] {
      Tensor const& other = direction == Direction::dgrad ? w : x;
      return Conv2d{direction, grad, other, nullptr, {size.size(2), size.size(3)}, geometry.ours(), groups};
    };
    results[place] = run_either<Tensor>(
        gradient_of(forward, direction), [&] { return plan(ours()); },
        [&] {
          Tensor result = run_conv2d(ours());
          is_ours[place] = true, theirs[place] = false;
          return result;
        },
        [] { return Tensor(); });
  };
  take(Direction::dgrad, 0);
  take(Direction::wgrad, 1);
  if (!mask.flag(0) && !mask.flag(1)) {
    Problem const other = forward.first == Verdict::taken ? forward.with(Verdict::arguments) : forward;
    is_taken(other, [] { return Verdict::arguments; });
  }
  bool const is_all_ours = (is_ours[0] || is_ours[1]) && !theirs[0] && !theirs[1] && !theirs[2];
  if (!is_all_ours) {
    using Kernel = std::tuple<TorchTensor, TorchTensor, TorchTensor>(void const*, void const*, void const*,
                                                                     TorchOptionalList, TorchList, TorchList, TorchList,
                                                                     bool, TorchList, std::int64_t, std::array<bool, 3>);
    TorchOptionalList sizes;
    if (bias_sizes) sizes = {list_of(*bias_sizes), true};
    auto [of_x, of_w, of_bias] = torch_kernel<Kernel>(Taken::convolution_backward)(
        grad.get(), x.get(), w.get(), sizes, list_of(stride), list_of(padding), list_of(dilation), transposed,
        list_of(output_padding), groups, theirs);
    // Some of torch's kernels return a gradient unasked.
    std::array<TorchTensor*, 3> const returned{&of_x, &of_w, &of_bias};
    for (std::size_t i = 0; i < returned.size(); ++i) {
      Tensor const dropped;
      adopt(is_ours[i] ? dropped : results[i], std::move(*returned[i]));
    }
  }
  return {std::move(results[0]), std::move(results[1]), std::move(results[2])};
}

}  // namespace

std::string conv_kind(Problem const& p) {
  MeasuredExtents const& c = p.conv;
  Direction const direction = direction_of(p);
  char const* const name = direction == Direction::fprop ? "fprop" : direction == Direction::dgrad ? "dgrad" : "wgrad";
  char const* const what = c[kGroups] > 1          ? c[kGroups] == c[kC] && c[kC] == c[kKo] ? "depthwise" : "grouped"
                           : c[kR] * c[kS] == 1    ? "pointwise"
                           : c[kC] <= kFewChannels ? "of few channels"
                                                   : "dense";
  return concat("convolution ", name, ' ', what, ", stride ", c[kStrideH] == 1 && c[kStrideW] == 1 ? "1" : "2 or more");
}

std::vector<Overload> conv_overloads() {
  return {
      {Taken::convolution, TORCH_BOX(&convolution),
       "11convolutionERKNS_6TensorES3_RKSt8optionalIS1_EN3c108ArrayRefIlEESA_SA_bSA_l"},
      {Taken::convolution_backward, TORCH_BOX(&convolution_backward),
       "20convolution_backwardERKNS_6TensorES3_S3_N3c1016OptionalArrayRefIlEENS4_8ArrayRefIlEES8_S8_bS8_lSt5arrayIbLm3EE"},
  };
}

}  // namespace cutwheel
