// What all convolutions have in common: strides, padding and sizes as calls give them, and their checks.
#pragma once

#include <array>
#include <string>

#include "core/args/conv.h"
#include "torch/explain/explain.h"
#include "torch/gemm_call.h"

namespace cutwheel {

struct ConvGeometry {
  std::array<std::int64_t, 2> stride;   // along H, W
  std::array<std::int64_t, 4> padding;  // top, bottom, left, right
  std::array<std::int64_t, 2> dilation;
  // Along the depth of volumes. padding_d: front, back.
  std::int64_t stride_d = 1;
  std::array<std::int64_t, 2> padding_d = {};
  std::int64_t dilation_d = 1;
};

// H and W of an image, or R and S of a filter; the depth of a volume or of its filter.
struct Extents2d {
  std::int64_t h = 0, w = 0, d = 1;
};

// [N, C, H, W], or of a filter [Ko, C, R, S].
using Sizes = std::array<std::int64_t, 4>;

std::string sizes_text(Sizes const& sizes);
// Those of a volume [N, C, D, H, W] but its depth.
Sizes sizes_of(Tensor const& tensor);
// 1 for an image.
std::int64_t depth_of(Tensor const& tensor);

// Sizes of the three tensors, of which two were given, and their depths.
struct ConvSizes {
  Sizes x, w, y;
  std::int64_t d = 1, t = 1, o = 1;
};

// As in GemmCallBase, m, n and k are the extents of the problem as the caller has it.
struct ConvCallBase : GemmCallBase {
  Direction direction = Direction::fprop;
  ConvGeometry geometry{};
  Extents2d size{};            // of the result of a gradient
  bool is_transposed = false;  // a gradient of the input that is called a convolution
  // Null: not given.
  Tensor const* bias = nullptr;      // [Ko]
  Tensor const* residual = nullptr;  // [N, Ko, P, Q]
  conv2d::ConvProblem problem{};

  bool has_depth() const { return names.dims == 5; }
  // As the caller knows them.
  std::string text_of(Sizes const& sizes, std::int64_t depth) const;
};

// Strides, padding and dilation.
void check_geometry(ConvCallBase const& call);

// The size that a gradient is given.
void check_size(ConvCallBase const& call);

// Only the batch of an input may be empty.
void check_input_size(ConvCallBase const& call, Sizes const& x, std::int64_t depth = 1);
void check_weight_size(ConvCallBase const& call, Sizes const& w, std::int64_t depth = 1);

// Along H (axis 0), W (1) or D (2) of the result. Throws for a filter that does not fit into its input.
std::int64_t out_extent(ConvCallBase const& call, ConvSizes const& sizes, std::size_t axis);

void check_grad_output(ConvCallBase const& call, ConvSizes const& sizes);
void check_residual(ConvCallBase const& call);

// That the product of extents is one that kernels count to.
void check_count(ConvCallBase const& call, char const* what, std::initializer_list<std::int64_t> extents);

// Of sizes that have been checked.
conv2d::ConvProblem problem_of(ConvGeometry const& geometry, ConvSizes const& sizes);

// Throws for an epilogue with other tensors than a bias and a residual.
void check_has_bias_and_residual_only(char const* op, EpilogueInfo const& info);

// What `explain` asks about: eight numbers, for a gradient two more, and its groups where there are any; of volumes twelve,
// and three.
ConvGeometry geometry_of(Question const& asked);
Extents2d size_of(Question const& asked);
std::int64_t groups_of(Question const& asked);

// Geometry in the schemas of ops. SymInt, not int: torch.compile keeps numbers of a graph symbolic then, and torch reads it
// faster.
#define CUTWHEEL_GEOMETRY                                                         \
  "SymInt stride_h, SymInt stride_w, SymInt padding_top, SymInt padding_bottom, " \
  "SymInt padding_left, SymInt padding_right, SymInt dilation_h, SymInt dilation_w"
#define CUTWHEEL_GEOMETRY_3D                                                                                           \
  "SymInt stride_d, SymInt stride_h, SymInt stride_w, SymInt padding_front, SymInt padding_back, SymInt padding_top, " \
  "SymInt padding_bottom, SymInt padding_left, SymInt padding_right, SymInt dilation_d, SymInt dilation_h, "           \
  "SymInt dilation_w"

}  // namespace cutwheel
