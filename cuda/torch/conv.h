// One call of conv2d, of one of its gradients or of scaled_conv2d: check, choose an algorithm, prepare, run.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>
#include <array>
#include <deque>
#include <optional>
#include <string_view>

#include "torch/gemm.h"
#include "torch/image.h"
#include "torch/scaled.h"

namespace cutwheel {

// Names of the GEMM operands A and B, as kernels take them.
constexpr OpNames kConv2d{"conv2d", "nn.functional.conv2d", "bias", "input", "weight", 4};
constexpr OpNames kConvInputGrad{"conv2d_input_grad", "nn.grad.conv2d_input", nullptr, "grad_output", "weight", 4};
constexpr OpNames kConvWeightGrad{"conv2d_weight_grad", "nn.grad.conv2d_weight", nullptr, "grad_output", "input", 4};
constexpr OpNames kScaledConv2d{"scaled_conv2d", nullptr, "bias", "input", "weight", 4};

struct ConvGeometry {
  std::array<std::int64_t, 2> stride;   // along H, W
  std::array<std::int64_t, 4> padding;  // top, bottom, left, right
  std::array<std::int64_t, 2> dilation;
};

// H and W of an image, or R and S of a filter.
using Extents2d = std::array<std::int64_t, 2>;

// As in GemmCallBase, m, n and k are the extents of the implicit GEMM of the problem as the caller has it, without
// added channels.
struct ConvCall : GemmCallBase {
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
void check(ConvCall& call);

// How the result is got. implicit: by a kernel of the call's direction. flipped: the gradient of the input by fprop, of the
// gradient and the flipped filter. gemm: with a 1x1 filter it is a GEMM, which the other ops compute. unfolded:
// implicit, by a kernel that reads few channels as they lie, so that taps of a row are not made one.
enum class ConvAlgorithm : int { none, implicit, flipped, gemm, unfolded };
char const* name_of(ConvAlgorithm algorithm);

// An epilogue, and the type that the kernel writes: what is not the type of the result is converted.
struct ConvVariant {
  ConvAlgorithm algorithm = ConvAlgorithm::none;
  ScaledForm form{};
  std::optional<GemmPlan> plan = std::nullopt;  // none for a GEMM, which is planned when its operands are prepared
};

// The cheapest native variant, else one through PTX; none if no kernel serves the call.
ConvVariant choose_variant(ConvCall const& call);

// Whether the implicit GEMM copies the input so that the taps of a row become channels of one tap.
bool copies_overlapping_rows(ConvCall const& call);

// The request that selection sees; an implicit GEMM counts padded channels.
GemmRequest request_of(ConvCall const& call, ConvAlgorithm algorithm, ScaledForm const& form);

// What the op returns, uninitialised.
Tensor make_conv_result(ConvCall const& call);

// Prepares a checked call that has something to compute, and allocates its result.
void prepare_conv(PreparedConv& prepared, ConvCall const& call, ConvVariant const& variant);

// The call as a GEMM on the memory of its tensors, or on copies where rows are not evenly spaced.
struct ConvGemm {
  std::vector<Tensor> keep;              // copies
  std::deque<Tensor> views;              // the calls below point to them, and a deque does not move its elements
  std::optional<GemmOperands> operands;  // of gemm
  EpilogueCall epilogue;
  std::optional<GemmCall> gemm;
  std::optional<ScaledCall> scaled;
};
bool is_pointwise(ConvCall const& call);
// Fills `as_gemm`, which must not move afterwards.
void make_gemm_view(ConvGemm& as_gemm, ConvCall const& call);
// What the op returns for the result of a scaled GEMM.
Tensor result_of_gemm(ConvCall const& call, Tensor const& result);

// All of it.
Tensor run_conv(ConvCall& call);

// 0: no kernel of this wheel serves convolutions of this kind on the device; 1: one does through PTX; 2: a native one does.
// direction as in Direction; an empty name is that of no epilogue, of fprop. Runs nothing and looks at no extents.
std::int64_t conv_served(std::int64_t direction, std::int64_t device, ScalarType dtype, ScalarType out_dtype,
                         StringHandle epilogue, bool has_bias, bool unit_stride);

}  // namespace cutwheel
