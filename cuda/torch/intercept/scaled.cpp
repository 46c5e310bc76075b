// _scaled_mm.
#include "torch/scaled.h"

#include "torch/intercept/operands.h"
#include "torch/intercept/ops.h"
#include "torch/intercept/torch_kernel.h"

namespace cutwheel {
namespace {

constexpr OpNames kScaledMm{"_scaled_mm", nullptr, nullptr, "self", "mat2", 2};

// Problem::variant: a recipe of both operands, with kFast for sums in the tensor cores' own precision.
enum Recipe : std::uint8_t { kTensorwise, kRowwise, kBlocksAndSquares, kBlocks };
constexpr std::uint8_t kFast = 16;
constexpr char const* kRecipes[] = {"tensorwise", "rowwise", "1x128 x 128x128", "1x128 x 1x128"};

struct Operands {
  Tensor const& a;
  Tensor const& b;
  Tensor const& scale_a;
  Tensor const& scale_b;
  std::optional<Tensor> const& bias;
  std::optional<Tensor> const& scale_result;
  // A number, as torch has it: its own conversion throws for dtypes that are newer than the torch we are built for.
  std::optional<std::int32_t> out_dtype;
  bool use_fast_accum;
  Tensor const* out = nullptr;
};

bool has_strides(Tensor const& x, std::int64_t first, std::int64_t second) {
  return (x.size(0) == 1 || x.stride(0) == first) && (x.size(1) == 1 || x.stride(1) == second);
}

// The scales that torch takes on Hopper, laid out as they were measured: others are torch's to read, or to refuse.
std::optional<Recipe> recipe_of(Problem const& p, Tensor const& a, Tensor const& b) {
  if (a.numel() == 1 && b.numel() == 1) return kTensorwise;
  std::int64_t const blocks = ceil_div(p.k, kScaleBlock);
  if (a.dim() != 2 || b.dim() != 2) return std::nullopt;
  if (has_shape(a, {p.m, 1}) && has_shape(b, {1, p.n}) && is_contiguous(a) && is_contiguous(b)) return kRowwise;
  // cuBLAS reads scales in fours.
  if (p.k % (4 * kScaleBlock) != 0 || p.m % 4 != 0 || !has_shape(a, {p.m, blocks}) || !has_strides(a, 1, p.m)) {
    return std::nullopt;
  }
  if (p.n % kScaleBlock == 0 && has_shape(b, {blocks, p.n / kScaleBlock}) && has_strides(b, 1, blocks)) {
    return kBlocksAndSquares;
  }
  if (has_shape(b, {blocks, p.n}) && has_strides(b, p.n, 1)) return kBlocks;
  return std::nullopt;
}

Problem problem_of(Taken op, Operands const& given) {
  Tensor const &a = given.a, &b = given.b;
  Problem p = begin_problem(op, a);
  if (!a.defined() || !b.defined() || a.dim() != 2 || b.dim() != 2) return p.with(Verdict::shape);
  p.batch = 1, p.m = a.size(0), p.n = b.size(1), p.k = a.size(1);
  if (b.size(0) != p.k) return p.with(Verdict::shape);
  Tensor const* const bias = or_null(given.bias);
  if (!are_on_device_of(a, {&b, &given.scale_a, &given.scale_b, bias, given.out})) return p.with(Verdict::not_cuda);
  p.device = static_cast<std::int32_t>(a.get_device_index());
  ScalarType const out_type = static_cast<ScalarType>(given.out_dtype.value_or(static_cast<std::int32_t>(p.type)));
  if (p.type != ScalarType::Float8_e4m3fn || type_of(b) != p.type || out_type != ScalarType::BFloat16 ||
      type_of(given.scale_a) != ScalarType::Float || type_of(given.scale_b) != ScalarType::Float) {
    return p.with(Verdict::dtype);
  }
  if (is_narrowed(p.type)) return p.with(Verdict::narrowed);
  if (p.m == 0 || p.n == 0 || p.k == 0) return p.with(Verdict::empty);
  p.a = letter_of(matrix_of(a), 1), p.b = letter_of(matrix_of(b), 1);
  if (p.a != 't' || p.b != 'n' || p.n % 16 != 0) return p.with(Verdict::layout);
  if (or_null(given.scale_result)) return p.with(Verdict::arguments);
  if (bias && (type_of(*bias) != out_type || bias->dim() != 1 || bias->size(0) != p.n || !is_contiguous(*bias))) {
    return p.with(Verdict::arguments);
  }
  std::optional<Recipe> const recipe = recipe_of(p, given.scale_a, given.scale_b);
  // No benchmark asks for fast sums with block-wise scales.
  if (!recipe || (*recipe >= kBlocksAndSquares && given.use_fast_accum)) return p.with(Verdict::arguments);
  p.variant = static_cast<std::uint8_t>(*recipe | (given.use_fast_accum ? kFast : 0));
  if (given.out && !is_contiguous_result(*given.out, p, out_type, 2, {&a, &b, &given.scale_a, &given.scale_b, bias})) {
    return p.with(Verdict::out);
  }
  return p;
}

ScaledCall call_of(Problem const& p, Operands const& given) {
  constexpr ScaleRecipe kOfA[] = {ScaleRecipe::tensorwise, ScaleRecipe::rowwise, ScaleRecipe::blockwise_1x128,
                                  ScaleRecipe::blockwise_1x128};
  constexpr ScaleRecipe kOfB[] = {ScaleRecipe::tensorwise, ScaleRecipe::rowwise, ScaleRecipe::blockwise_128x128,
                                  ScaleRecipe::blockwise_1x128};
  std::size_t const recipe = p.variant % kFast;
  ScaledCall call{{kScaledMm, &given.a, &given.b}};
  call.scale_a = &given.scale_a, call.scale_b = &given.scale_b;
  call.recipe_a = static_cast<std::int64_t>(kOfA[recipe]), call.recipe_b = static_cast<std::int64_t>(kOfB[recipe]);
  call.bias = or_null(given.bias);
  call.out_dtype = ScalarType::BFloat16;
  call.use_fast_accum = given.use_fast_accum;
  call.out = given.out;
  return call;
}

Tensor pass_on(Taken op, Operands const& given) {
  void const *const a = given.a.get(), *const b = given.b.get(), *const scale_a = given.scale_a.get(),
                    *const scale_b = given.scale_b.get();
  TorchOptional const bias(given.bias), scale_result(given.scale_result);
  std::optional<ScalarType> out_dtype;
  if (given.out_dtype) out_dtype = static_cast<ScalarType>(*given.out_dtype);
  if (given.out) {
    using Kernel = void*(void*, void const*, void const*, void const*, void const*, TorchOptional const*,
                         TorchOptional const*, std::optional<ScalarType>, bool);
    torch_kernel<Kernel>(op)(given.out->get(), a, b, scale_a, scale_b, &bias, &scale_result, out_dtype,
                             given.use_fast_accum);
    return *given.out;
  }
  using Kernel = TorchTensor(void const*, void const*, void const*, void const*, TorchOptional const*, TorchOptional const*,
                             std::optional<ScalarType>, bool);
  Tensor result;
  adopt(result, torch_kernel<Kernel>(op)(a, b, scale_a, scale_b, &bias, &scale_result, out_dtype, given.use_fast_accum));
  return result;
}

Tensor take(Taken op, Operands const& given) {
  Problem const p = problem_of(op, given);
  return run_either<Tensor>(
      p, [&] { return verdict_of(explain_call(call_of(p, given)), /*may_copy=*/false); },
      [&] {
        PreparedGemm prepared;
        ScaledCall call = call_of(p, given);
        run_call(prepared, call);
        return given.out ? *given.out : *std::move(prepared.d.tensor);
      },
      [&] { return pass_on(op, given); });
}

Tensor scaled_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                 std::optional<Tensor> const& bias, std::optional<Tensor> const& scale_result,
                 std::optional<std::int32_t> out_dtype, bool use_fast_accum) {
  return take(Taken::scaled_mm, {a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum});
}

Tensor scaled_mm_out(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                     std::optional<Tensor> const& bias, std::optional<Tensor> const& scale_result,
                     std::optional<std::int32_t> out_dtype, bool use_fast_accum, Tensor const& out) {
  return take(Taken::scaled_mm_out, {a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, &out});
}

}  // namespace

std::string scaled_kind(Problem const& p) {
  bool const is_grouped = p.op == Taken::scaled_grouped_mm;
  return concat(is_grouped ? "_scaled_grouped_mm " : "_scaled_mm ", is_grouped ? "rowwise" : kRecipes[p.variant % kFast],
                p.variant >= kFast ? " fast" : "");
}

std::vector<Overload> scaled_overloads() {
  return {
      {Taken::scaled_mm, TORCH_BOX(&scaled_mm),
       "10_scaled_mmERKNS_6TensorES3_S3_S3_RKSt8optionalIS1_ES7_S4_IN3c1010ScalarTypeEEb"},
      {Taken::scaled_mm_out, TORCH_BOX(&scaled_mm_out),
       "14_scaled_mm_outERNS_6TensorERKS1_S4_S4_S4_RKSt8optionalIS1_ES8_S5_IN3c1010ScalarTypeEEb"},
  };
}

}  // namespace cutwheel
