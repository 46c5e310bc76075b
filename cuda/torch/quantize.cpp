#include <algorithm>
#include <array>

#include "torch/registry.h"
#include "torch/scaled.h"

namespace cutwheel {

namespace {

struct Problem {
  Tensor const& x;
  ScalarType type;  // of the values
  QuantizeRecipe recipe = QuantizeRecipe::none;
  int device = 0;
  std::int64_t m = 1, k = 0;  // x is [..., k], m rows of it
};

bool is_asymmetric(QuantizeRecipe recipe) {
  return recipe == QuantizeRecipe::tensorwise_asymmetric || recipe == QuantizeRecipe::rowwise_asymmetric;
}

QuantizeRecipe recipe_of(std::int64_t number, ScalarType type, bool symmetric) {
  bool const is_int8 = type == ScalarType::Char;
  if (!is_int8 && type != ScalarType::Float8_e4m3fn && type != ScalarType::Float8_e5m2) {
    fail(ErrorKind::type, "quantize: dtype is ", dtype_text(type), "; expected float8_e4m3fn, float8_e5m2 or int8");
  }
  if (!symmetric && !is_int8) {
    fail(ErrorKind::value, "quantize: symmetric is False and dtype is ", dtype_text(type), "; only int8 has a zero point");
  }
  if (number < 0 || number > static_cast<std::int64_t>(ScaleRecipe::blockwise_128x128)) {
    fail(ErrorKind::value, "quantize: recipe is ", number,
         "; expected 0 (tensorwise), 1 (rowwise), 2 (blockwise_1x128) or ", "3 (blockwise_128x128)");
  }
  auto const recipe = static_cast<ScaleRecipe>(number);
  if (recipe == ScaleRecipe::tensorwise) {
    return symmetric ? QuantizeRecipe::tensorwise : QuantizeRecipe::tensorwise_asymmetric;
  }
  if (recipe == ScaleRecipe::rowwise) return symmetric ? QuantizeRecipe::rowwise : QuantizeRecipe::rowwise_asymmetric;
  if (is_int8) {
    fail(ErrorKind::value, "quantize: recipe is blockwise and dtype is int8; expected tensorwise or rowwise for int8, or ",
         "float8_e4m3fn or float8_e5m2");
  }
  return recipe == ScaleRecipe::blockwise_1x128 ? QuantizeRecipe::blockwise_1x128 : QuantizeRecipe::blockwise_128x128;
}

void check_input(Problem& problem) {
  Tensor const& x = problem.x;
  check_defined("quantize", "x", x);
  if (!x.is_cuda()) {
    fail(ErrorKind::not_implemented, "quantize: x is not on a CUDA device; cutwheel's kernels run on CUDA devices");
  }
  problem.device = x.get_device_index();
  check_supported("quantize", "x", " has dtype ", type_of(x));
  auto const sizes = x.sizes();
  std::int64_t const dims = x.dim();
  bool const only_2d = problem.recipe == QuantizeRecipe::blockwise_128x128;
  if (dims < 2 || dims > (only_2d ? 2 : kMaxDims)) {
    fail(ErrorKind::shape, "quantize: x has ", dims, " dimensions (shape ", shape_text(x), "); expected ",
         only_2d ? "[M, K] for blockwise_128x128" : "[..., K], at least 2");
  }
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) problem.m *= sizes[i];
  problem.k = sizes[sizes.size() - 1];
  for (std::int64_t extent : {problem.m, problem.k}) check_extent("quantize", extent);
}

// Scales lie as scaled_mm and torch want them.
Tensor make_scales(Problem const& problem, gemm::BlockScaleOperand& operand) {
  std::int64_t const m = problem.m, k_blocks = ceil_div(problem.k, kScaleBlock);
  auto const make = [&](std::int64_t rows, std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride) {
    Tensor scales = empty_strided({rows, cols}, {row_stride, col_stride}, ScalarType::Float, problem.device);
    operand = {static_cast<float*>(scales.data_ptr()), row_stride, col_stride};
    return scales;
  };
  switch (problem.recipe) {
    case QuantizeRecipe::rowwise:
    case QuantizeRecipe::rowwise_asymmetric: return make(m, 1, 1, 1);
    // The blocks of one K side by side.
    case QuantizeRecipe::blockwise_1x128: return make(m, k_blocks, 1, round_up<std::int64_t>(m, 4));
    case QuantizeRecipe::blockwise_128x128:
      return make(ceil_div(m, kScaleBlock), k_blocks, std::max<std::int64_t>(k_blocks, 1), 1);
    default: {
      Tensor scale = empty_strided({1}, {1}, ScalarType::Float, problem.device);
      operand = {static_cast<float*>(scale.data_ptr()), 0, 0};
      return scale;
    }
  }
}

Tensor make_zero_points(Problem const& problem) {
  switch (problem.recipe) {
    case QuantizeRecipe::tensorwise_asymmetric: return empty_strided({1}, {1}, ScalarType::Int, problem.device);
    case QuantizeRecipe::rowwise_asymmetric: return empty_strided({problem.m, 1}, {1, 1}, ScalarType::Int, problem.device);
    default: return empty_strided({0}, {1}, ScalarType::Int, problem.device);
  }
}

void run(Problem const& problem, gemm::GemmArgs& args, Output& values) {
  DeviceInfo const& device = device_info(problem.device);
  ScalarType const in = type_of(problem.x);
  KernelDescriptor const* const kernel =
      choose_quantize_kernel(device, dtype_of(in), dtype_of(problem.type), problem.recipe);
  if (!kernel) {
    if (problem.type != ScalarType::Char && !has_fp8(device.major, device.minor)) {
      fail(ErrorKind::not_implemented, "quantize: ", fp8_miss(device));
    }
    fail(ErrorKind::not_implemented, "quantize: no kernel in this wheel quantizes ", dtype_text(in), " to ",
         dtype_text(problem.type), " by recipe ", name_of(problem.recipe), " on ", device.name, " (compute capability ",
         device.major, '.', device.minor, ")");
  }
  args.m = static_cast<int>(problem.m), args.n = 1, args.k = static_cast<int>(problem.k);
  args.device = &device;
  std::vector<Tensor> keep;
  Matrix const x = readable_rows(problem.x, problem.m, problem.k, problem.device, keep);
  args.a = {x.data, x.row_stride, 0};
  std::int64_t const pitch = round_up(problem.k, access_elements(problem.type));
  Matrix const target{values.tensor->data_ptr(), 1, problem.m, problem.k, 0, problem.k, 1};
  place_d(args, prepare_result(values, target, problem.type, pitch, /*force_temporary=*/false, problem.device));
  if (!launch_kernel(*kernel, args, "quantize")) {
    fail(ErrorKind::not_implemented, "quantize: ", kernel->name, " does not take ", problem.m, " rows of ", problem.k,
         " elements");
  }
  finish_output(values);
}

// x [..., K]. Returns values, scales and zero points; the latter are empty, [0], if symmetric.
std::tuple<Tensor, Tensor, Tensor> quantize(Tensor const& x, std::int64_t recipe, ScalarType dtype, bool symmetric) {
  Problem problem{x, dtype};
  problem.recipe = recipe_of(recipe, dtype, symmetric);
  check_input(problem);
  DeviceScope const scope(problem.device);
  gemm::GemmArgs args;
  Output values;
  auto const sizes = x.sizes();
  values.tensor = empty_contiguous(sizes.data(), static_cast<int>(sizes.size()), dtype, problem.device);
  Tensor scales = make_scales(problem, args.scale_a), azp = make_zero_points(problem);
  if (is_asymmetric(problem.recipe)) args.epilogue[0].data = azp.data_ptr();
  if (problem.m > 0 && problem.k > 0) {
    run(problem, args, values);
  } else {
    // As of zeros.
    torch::stable::fill_(scales, 1);
    torch::stable::zero_(azp);
  }
  return {*std::move(values.tensor), std::move(scales), std::move(azp)};
}

constexpr OpNames kQuantize{"quantize", nullptr, nullptr, "x", nullptr, 0};

}  // namespace

Ops quantize_ops() {
  return {
      op<&quantize, kQuantize>(
          "quantize(Tensor x, int recipe, ScalarType dtype, bool symmetric=True) -> (Tensor, Tensor, Tensor)"),
  };
}

}  // namespace cutwheel
