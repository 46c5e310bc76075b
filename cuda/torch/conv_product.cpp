// Convolutions with a 1x1 filter: products of matrices, whose rows are pixels.
#include <cstring>

#include "torch/conv_request.h"

namespace cutwheel {
namespace {

// [N, H, W, C] as one matrix of pixels.
View pixels_of(Tensor const& tensor, std::vector<Tensor>& keep) {
  Image const image = image_of(tensor);
  std::int64_t const pixels = image.pixels(), channels = image.channels();
  if (!is_even(image)) return flatten_rows(view_of(tensor, image), pixels, channels, keep);
  return {{image.data, 1, pixels, channels, 0, image.strides[2], image.strides[3]}, tensor};
}

// [Ko, C] of a filter [Ko, C, 1, 1].
Matrix filter_matrix(Tensor const& filter) {
  return {filter.data_ptr(), 1, filter.size(0), filter.size(1), 0, filter.stride(0), filter.stride(1)};
}

OpNames names_of(ConvCall const& call, int dims) {
  OpNames names = call.names;
  names.dims = dims;
  return names;
}

void make_gemm(ConvProduct& product, ConvCall const& call) {
  View const left = pixels_of(*call.a, product.keep);
  if (call.direction == Direction::wgrad) {
    View const y{left.matrix.transposed(), left.owner};
    product.factors.emplace(Factors{y, pixels_of(*call.b, product.keep), call.k});
  } else {
    Matrix const filter = filter_matrix(call.filter());
    View const right{call.direction == Direction::dgrad ? filter : filter.transposed(), call.filter()};
    product.factors.emplace(Factors{left, right, call.k});
  }
  product.gemm = make_call(names_of(call, 2), *call.a, *call.b, std::nullopt, call.allow_tf32);
  GemmCall& gemm = *product.gemm;
  gemm.factors = &*product.factors;
  gemm.type = call.type, gemm.d_type = call.d_type, gemm.device = call.device;
  gemm.m = call.m, gemm.n = call.n, gemm.k = call.k;
  gemm.c = call.bias;
  if (!call.epilogue) return;
  gemm.c = nullptr;
  gemm.epilogue = &product.epilogue;
  EpilogueCall& epilogue = product.epilogue;
  epilogue.id = *call.epilogue;
  EpilogueInfo const& info = epilogue.info();
  for (int i = 0; i < info.count; ++i) {
    std::size_t const position = static_cast<std::size_t>(i);
    if (info.operands[i].kind == OperandKind::scalar) epilogue.scalars[position] = 1;
    if (info.operands[i].kind == OperandKind::row) epilogue.tensors[position] = call.bias;
    if (info.operands[i].kind == OperandKind::matrix && call.residual) {
      View const residual = pixels_of(*call.residual, product.keep);
      epilogue.tensors[position] = &product.views.emplace_back(matrix_view(residual.owner, residual.matrix));
    }
  }
}

void make_scaled(ConvProduct& product, ConvCall const& call) {
  constexpr std::int64_t kTensorwise = 0, kRowwise = 1;
  View const pixels = pixels_of(*call.a, product.keep);
  Tensor const& a = product.views.emplace_back(matrix_view(pixels.owner, pixels.matrix));
  Tensor const& b = product.views.emplace_back(matrix_view(call.filter(), filter_matrix(call.filter()).transposed()));
  product.scaled = ScaledCall{{names_of(call, 2), &a, &b}};
  ScaledCall& scaled = *product.scaled;
  scaled.out_dtype = call.d_type;
  scaled.scale_a = call.scale_input, scaled.scale_b = call.scale_weight;
  scaled.bias = call.bias;
  scaled.recipe_a = kTensorwise;
  scaled.recipe_b = call.scale_weight->numel() == 1 ? kTensorwise : kRowwise;
}

}  // namespace

bool is_product(ConvCall const& call) {
  conv2d::ConvProblem const& p = call.problem;
  // The sizes tell that there is no padding behind the last row, either.
  return p.r == 1 && p.s == 1 && call.unit_stride() && p.pad_h == 0 && p.pad_w == 0 && p.p == p.h && p.q == p.w;
}

void make_product(ConvProduct& product, ConvCall const& call) {
  if (call.is_scaled) {
    make_scaled(product, call);
  } else {
    make_gemm(product, call);
  }
}

Tensor result_of_product(ConvCall const& call, Tensor const& result) {
  conv2d::ConvProblem const& p = call.problem;
  std::array<std::int64_t, 4> const sizes{p.images, p.h, p.w, call.n};
  Image image{result.data_ptr(), sizes, {}};
  image.strides = {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
  return nchw_view(result, image);
}

}  // namespace cutwheel
