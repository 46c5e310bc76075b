// One call of conv2d, of one of its gradients or of scaled_conv2d: check, choose a way, prepare, run.
#pragma once

#include <array>
#include <deque>
#include <string_view>

#include "dispatch/run_conv.h"
#include "torch/gemm_request.h"
#include "torch/image.h"
#include "torch/scaled_request.h"

namespace cutwheel {

// Of products whose factors the names are: A and B, as the kernels take them.
constexpr OpNames kConv2d{"conv2d", "bias", "input", "weight", 4};
constexpr OpNames kConvInputGrad{"conv2d_input_grad", nullptr, "grad_output", "weight", 4};
constexpr OpNames kConvWeightGrad{"conv2d_weight_grad", nullptr, "grad_output", "input", 4};
constexpr OpNames kScaledConv2d{"scaled_conv2d", "bias", "input", "weight", 4};

struct ConvGeometry {
  std::array<std::int64_t, 2> stride;   // along H, W
  std::array<std::int64_t, 4> padding;  // top, bottom, left, right
  std::array<std::int64_t, 2> dilation;
};

// H and W of an image, or R and S of a filter.
using Extents2d = std::array<std::int64_t, 2>;

// In terms of ProductCall, m, n and k are the extents of the implicit product of the problem as the caller has it, without
// added channels.
struct ConvCall : ProductCall {
  Direction direction = Direction::fprop;
  ConvGeometry geometry;
  Extents2d size = {};  // of the result of a gradient
  // Null: not given.
  Tensor const* bias = nullptr;      // [Ko]
  Tensor const* residual = nullptr;  // [N, Ko, P, Q]
  Tensor const* scale_input = nullptr;
  Tensor const* scale_weight = nullptr;
  std::optional<Epilogue> epilogue = std::nullopt;  // asked for by its name; else a bias is added, or nothing
  bool allow_tf32 = false;
  bool is_scaled = false;

  conv2d::ConvProblem problem = {};

  Tensor const& filter() const { return *b; }  // of fprop and dgrad
  bool unit_stride() const { return problem.stride_h == 1 && problem.stride_w == 1; }
};

inline ConvCall make_conv_call(OpNames const& names, Direction direction, Tensor const& a, Tensor const& b,
                               ConvGeometry const& geometry, bool allow_tf32) {
  ConvCall call{{names, &a, &b}, direction, geometry};
  call.allow_tf32 = allow_tf32;
  return call;
}

// The epilogue of a name, with no tensors but a bias and a residual. Throws for any other.
Epilogue conv_epilogue(std::string_view name);

// Shapes, dtypes, devices, geometry: throws the error that names the argument; fills types, extents and the problem.
void check_conv(ConvCall& call);

// How the result is got. implicit: by a kernel of the call's direction. flipped: the gradient of the input by fprop, of the
// gradient and the flipped filter. product: a 1x1 filter makes it a matrix product, which the other ops have. unfolded:
// implicit, by a kernel that reads few channels as they lie, so that taps of a row are not made one.
enum class ConvRoute : int { none, implicit, flipped, product, unfolded };
char const* name_of(ConvRoute route);

// An epilogue, and the type that the kernel writes: what is not the type of the result is converted.
struct ConvWay {
  ConvRoute route = ConvRoute::none;
  ScaledForm form{};
  std::optional<GemmPlan> plan = std::nullopt;  // not of a product, which is planned when its operands are prepared
};

// The cheapest native way, else one through PTX; none where no kernel serves the call.
ConvWay choose_way(ConvCall const& call);

// Whether the implicit route copies the input, so that the taps of a row are one.
bool copies_windows(ConvCall const& call);

// What selection looks at: of an implicit route, with the channels that are added.
GemmRequest request_of(ConvCall const& call, ConvRoute route, ScaledForm const& form);

// Operands as kernels take them. `keep` owns the copies that had to be made.
struct PreparedConv {
  conv2d::ConvArgs args;
  GemmRequest request;
  std::vector<Tensor> keep;
  Output d;
};

// What the op returns, uninitialised.
Tensor make_conv_result(ConvCall const& call);

// Of a checked call that has something to compute. Makes the result.
void prepare_conv(PreparedConv& prepared, ConvCall const& call, ConvWay const& way);

// Enqueues it, or the next best plan where a kernel refuses. Throws what went wrong.
void launch_conv(PreparedConv& prepared, ConvCall const& call, GemmPlan plan);

// The call as a product of matrices in the memory of its tensors, or in copies where rows do not follow each other evenly.
struct ConvProduct {
  std::vector<Tensor> keep;        // copies
  std::deque<Tensor> views;        // the calls below point to them, and a deque does not move its elements
  std::optional<Factors> factors;  // of gemm
  EpilogueCall epilogue;
  std::optional<GemmCall> gemm;
  std::optional<ScaledCall> scaled;
};
bool is_product(ConvCall const& call);
// Fills `product`, which must stay where it is.
void make_product(ConvProduct& product, ConvCall const& call);
// Of a scaled product's result, what the op returns.
Tensor result_of_product(ConvCall const& call, Tensor const& result);

// The result where nothing is computed: none, or zeros.
Tensor empty_result(ConvCall const& call);

// All of it.
Tensor run_conv(ConvCall& call);

// For the error where choose_way finds none.
std::string explain_conv_miss(ConvCall const& call);

}  // namespace cutwheel
