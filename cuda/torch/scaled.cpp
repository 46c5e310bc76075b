#include "torch/scaled.h"

#include <array>
#include <iterator>
#include <string_view>

#include "torch/registry.h"

namespace cutwheel {

// --- Scale recipes

namespace {

constexpr char const* kRecipeNames[] = {"tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128"};
constexpr int kRecipes = static_cast<int>(std::size(kRecipeNames));

// Scales of one operand, and what the recipes make of its extents.
struct Scales {
  char const* argument;
  char const* recipe_argument;
  Tensor const& tensor;
  std::optional<ScaleRecipe> given;
  bool of_a;
  std::int64_t extent;  // M or N
  std::int64_t k_blocks, blocks;

  // Scales along M or N, and along K, for all recipes but tensorwise.
  std::int64_t along_extent(ScaleRecipe recipe) const { return recipe == ScaleRecipe::blockwise_128x128 ? blocks : extent; }
  std::int64_t along_k(ScaleRecipe recipe) const { return recipe == ScaleRecipe::rowwise ? 1 : k_blocks; }

  bool fits(ScaleRecipe recipe) const {
    if (given && recipe != *given) return false;
    if (recipe == ScaleRecipe::tensorwise) return tensor.numel() == 1;
    if (recipe == ScaleRecipe::rowwise && given && tensor.dim() == 1) return tensor.size(0) == extent;
    if (recipe == ScaleRecipe::blockwise_128x128 && of_a) return false;
    std::int64_t const rows = along_extent(recipe), cols = along_k(recipe);
    return of_a ? has_shape(tensor, {rows, cols}) : has_shape(tensor, {cols, rows});
  }

  std::string wanted(ScaleRecipe recipe) const {
    if (recipe == ScaleRecipe::tensorwise) return "one element";
    std::int64_t const rows = along_extent(recipe), cols = along_k(recipe);
    return of_a ? concat('[', rows, ", ", cols, ']') : concat('[', cols, ", ", rows, ']');
  }
};

std::optional<ScaleRecipe> recipe_of(std::optional<std::int64_t> number, char const* argument) {
  if (!number) return std::nullopt;
  if (*number < 0 || *number >= kRecipes) {
    fail(ErrorKind::value, "scaled_mm: ", argument, " is ", *number, "; expected 0 (tensorwise), 1 (rowwise), 2 ",
         "(blockwise_1x128) or 3 (blockwise_128x128)");
  }
  return static_cast<ScaleRecipe>(*number);
}

char const* name_of(ScaleRecipe recipe) { return kRecipeNames[static_cast<int>(recipe)]; }

void check_given(Scales const& scales) {
  if (!scales.given || scales.fits(*scales.given)) return;
  if (scales.of_a && *scales.given == ScaleRecipe::blockwise_128x128) {
    fail(ErrorKind::value,
         "scaled_mm: scale_recipe_a is blockwise_128x128, which is for mat_b; mat_a takes blockwise_1x128 (scale_a ",
         scales.wanted(ScaleRecipe::blockwise_1x128), "), rowwise or tensorwise");
  }
  fail(ErrorKind::shape, "scaled_mm: ", scales.argument, " has shape ", shape_text(scales.tensor), "; expected ",
       scales.wanted(*scales.given), " as ", scales.recipe_argument, " is ", name_of(*scales.given));
}

[[noreturn]] void fail_on_pair(Scales const& a, Scales const& b, bool is_int8, std::string const& problem) {
  std::string text = concat("scaled_mm: ", problem, "; expected\n  tensorwise or rowwise: scale_a of one element or ",
                            a.wanted(ScaleRecipe::rowwise), ", scale_b of one element or ", b.wanted(ScaleRecipe::rowwise));
  if (is_int8) fail(ErrorKind::shape, text, "\n(blockwise scales are for fp8)");
  for (ScaleRecipe recipe : {ScaleRecipe::blockwise_128x128, ScaleRecipe::blockwise_1x128}) {
    text += concat("\n  blockwise_1x128 for mat_a and ", name_of(recipe), " for mat_b: scale_a ",
                   a.wanted(ScaleRecipe::blockwise_1x128), ", scale_b ", b.wanted(recipe));
  }
  fail(ErrorKind::shape, text, "\n(scale_b has the orientation of mat_b, [K, N]: transpose the scales of a weight [N, K])");
}

}  // namespace

BlockScales find_scales(ScaledCall const& call) {
  std::int64_t const k_blocks = ceil_div(call.k, kScaleBlock);
  Scales const a{"scale_a", "scale_recipe_a", *call.scale_a, recipe_of(call.recipe_a, "scale_recipe_a"),
                 true,      call.m,           k_blocks,      0};
  Scales const b{"scale_b", "scale_recipe_b", *call.scale_b, recipe_of(call.recipe_b, "scale_recipe_b"),
                 false,     call.n,           k_blocks,      ceil_div(call.n, kScaleBlock)};
  check_given(a);
  check_given(b);
  auto const one_or_each = [](Scales const& scales) {
    return scales.fits(ScaleRecipe::tensorwise) || scales.fits(ScaleRecipe::rowwise);
  };
  if (one_or_each(a) && one_or_each(b)) return BlockScales::none;
  if (!call.is_int8() && a.fits(ScaleRecipe::blockwise_1x128)) {
    if (b.fits(ScaleRecipe::blockwise_128x128)) return BlockScales::a1x128_b128x128;
    if (b.fits(ScaleRecipe::blockwise_1x128)) return BlockScales::a1x128_b1x128;
  }
  std::string problem = concat("scale_a has shape ", shape_text(*call.scale_a), " and scale_b has shape ",
                               shape_text(*call.scale_b), " where M=", call.m, ", N=", call.n, ", K=", call.k);
  if (a.given && b.given) {
    problem = concat("scale_recipe_a is ", name_of(*a.given), " and scale_recipe_b is ", name_of(*b.given),
                     ", which do not combine");
  }
  fail_on_pair(a, b, call.is_int8(), problem);
}

// --- Checks

namespace {

constexpr ErrorKind kType = ErrorKind::type, kValue = ErrorKind::value, kShape = ErrorKind::shape;

ScalarType check_8_bits(GemmCallBase const& call, char const* argument, Tensor const& tensor, bool may_be_int8) {
  ScalarType const type = type_of(tensor);
  if (type == ScalarType::Float4_e2m1fn_x2) fail_on_microscaling(call.names.op, argument, type);
  if (!is_fp8(dtype_of(type)) && !(may_be_int8 && type == ScalarType::Char)) {
    fail(kType, call.names.op, ": ", argument, " has dtype ", dtype_text(type), "; expected float8_e4m3fn",
         may_be_int8 ? ", float8_e5m2 or int8" : " or float8_e5m2", " (cutwheel.quantize makes them)");
  }
  return type;
}

// Whether D is the unscaled int32 accumulators of int8 operands, and the type of D.
void check_result_type(ScaledCall& call) {
  call.d_type = call.out ? type_of(*call.out) : call.out_dtype.value_or(ScalarType::BFloat16);
  char const* const named = call.out ? "out has dtype " : "output_dtype is ";
  if (!call.scale_a != !call.scale_b) {
    fail(kValue, "scaled_mm: ", call.scale_a ? "scale_b" : "scale_a", " is None and ", call.scale_a ? "scale_a" : "scale_b",
         " is given; expected both");
  }
  bool const is_int32 = call.d_type == ScalarType::Int;
  if (call.is_unscaled()) {
    if (call.is_int8() && is_int32) return;
    fail(kValue, "scaled_mm: scale_a and scale_b are None; expected float32 tensors",
         call.is_int8() ? ", or output_dtype=torch.int32 for the unscaled sums"
                        : " (torch.ones(1) where there is no scale)");
  }
  if (is_int32) {
    fail(kType, "scaled_mm: ", named, "int32, which is for the unscaled sums of int8 operands (scale_a and scale_b None)",
         "; expected float16, bfloat16 or float32 with scales");
  }
  if (!is_supported(call.d_type)) {
    fail(kType, "scaled_mm: ", named, dtype_text(call.d_type), "; expected float16, bfloat16 or float32",
         call.is_int8() ? " (int32 without scales)" : "");
  }
}

void check_bias(ScaledCall const& call) {
  Tensor const& bias = *call.bias;
  check_device("scaled_mm", "bias", bias, call.device, "mat_a");
  ScalarType const type = type_of(bias);
  if (type != call.d_type && type != ScalarType::Float) {
    fail(kType, "scaled_mm: bias has dtype ", dtype_text(type), "; expected ", dtype_text(call.d_type),
         call.d_type == ScalarType::Float ? "" : ", the dtype of the result, or float32");
  }
  if (bias.dim() != 1 || bias.size(0) != call.n) {
    fail_shape("scaled_mm", "bias", bias, '[', call.n, ']');
  }
}

// A vector of `extent` elements: [extent], or with a dimension of 1 where the matrix has one.
bool is_vector(Tensor const& tensor, std::int64_t extent, bool is_column) {
  std::int64_t const dims = tensor.dim();
  if (dims == 1) return tensor.size(0) == extent;
  return dims == 2 && tensor.size(is_column ? 0 : 1) == extent && tensor.size(is_column ? 1 : 0) == 1;
}

void check_zero_point(ScaledCall const& call) {
  auto const check = [&](char const* argument, Tensor const& tensor) {
    check_device("scaled_mm", argument, tensor, call.device, "mat_a");
    check_type("scaled_mm", argument, tensor, ScalarType::Int);
  };
  if (!call.azp) {
    fail(kValue, "scaled_mm: azp_adj is given without azp; expected azp, the zero point of mat_a, or neither");
  }
  if (!call.is_int8()) {
    fail(kType, "scaled_mm: azp is given, and mat_a has dtype ", dtype_text(call.type), "; only int8 has a zero point");
  }
  if (!call.azp_adj) {
    fail(kValue,
         "scaled_mm: azp is given without azp_adj; expected the sums of mat_b's columns, mat_b.sum(0, dtype=torch.int32)");
  }
  check("azp", *call.azp);
  check("azp_adj", *call.azp_adj);
  if (call.azp->numel() != 1 && !is_vector(*call.azp, call.m, /*is_column=*/true)) {
    fail_shape("scaled_mm", "azp", *call.azp, "one element, [", call.m, "] or [", call.m, ", 1]");
  }
  if (!is_vector(*call.azp_adj, call.n, /*is_column=*/false)) {
    fail_shape("scaled_mm", "azp_adj", *call.azp_adj, '[', call.n, "] or [1, ", call.n, "], the sums of mat_b's columns");
  }
}

void refuse_unscaled(char const* argument, bool is_given) {
  if (is_given) {
    fail(kValue, "scaled_mm: ", argument,
         " is given, and scale_a and scale_b are None; expected nothing else with the unscaled sums");
  }
}

}  // namespace

void fail_on_microscaling(char const* op, char const* argument, ScalarType type) {
  fail(ErrorKind::not_implemented, op, ": ", argument, " has dtype ", dtype_text(type),
       ", which is of mxfp8, mxfp4 or nvfp4: they need a GPU of compute capability 10.0 or newer (B200, GB200), and no "
       "kernel of this wheel has them; expected fp8 or int8 operands with float32 scales");
}

void check_scaled_operands(GemmCallBase& call, bool may_be_int8) {
  OpNames const& names = call.names;
  call.type = check_8_bits(call, names.a, *call.a, may_be_int8);
  call.b_type = check_8_bits(call, names.b, *call.b, may_be_int8);
  if (is_fp8(dtype_of(call.type)) != is_fp8(dtype_of(call.b_type))) {
    fail(kType, names.op, ": ", names.b, " has dtype ", dtype_text(call.b_type), " and ", names.a, " has dtype ",
         dtype_text(call.type), "; expected both fp8 or both int8");
  }
  if (call.type == ScalarType::Float8_e5m2 && call.b_type == call.type) {
    fail(kType, names.op, ": ", names.a, " and ", names.b,
         " have dtype float8_e5m2; expected float8_e4m3fn for one of them or both");
  }
}

void check_scale_type(GemmCallBase const& call, char const* argument, Tensor const& scale) {
  char const* const op = call.names.op;
  check_device(op, argument, scale, call.device, call.names.a);
  ScalarType const type = type_of(scale);
  if (type == ScalarType::Float8_e8m0fnu || type == ScalarType::Float8_e4m3fn) fail_on_microscaling(op, argument, type);
  check_type(op, argument, scale, ScalarType::Float);
}

void check(ScaledCall& call) {
  check_devices(call);
  check_dims(call.names, "mat_a", *call.a, 2);
  check_dims(call.names, "mat_b", *call.b, 2);
  check_scaled_operands(call, /*may_be_int8=*/true);
  check_operands(call);
  for (std::int64_t extent : {call.m, call.n, call.k}) check_extent("scaled_mm", extent);
  check_result_type(call);
  if (call.is_unscaled()) {
    refuse_unscaled("bias", call.bias);
    refuse_unscaled("azp", call.azp);
    refuse_unscaled("azp_adj", call.azp_adj);
    refuse_unscaled("scale_recipe_a", call.recipe_a.has_value());
    refuse_unscaled("scale_recipe_b", call.recipe_b.has_value());
  } else {
    check_scale_type(call, "scale_a", *call.scale_a);
    check_scale_type(call, "scale_b", *call.scale_b);
    call.scales = find_scales(call);
    if (call.bias) check_bias(call);
    if (call.azp || call.azp_adj) check_zero_point(call);
  }
  if (!call.out) return;
  check_out(call, *call.out, "out", call.n);
  auto const check_input = [&](Tensor const* input, char const* argument) {
    if (input) check_apart(call, *call.out, "out", *input, argument);
  };
  check_input(call.scale_a, "scale_a");
  check_input(call.scale_b, "scale_b");
  check_input(call.bias, "bias");
  check_input(call.azp, "azp");
  check_input(call.azp_adj, "azp_adj");
}

// --- Operands

namespace {

// The role of an operand of scaled_mm's epilogues, by its name in the manifest.
enum class Role : int { unknown, scale_a, scale_b, bias, azp, azp_adj };

constexpr Role role_of(std::string_view name) {
  return name == "scale_a"   ? Role::scale_a
         : name == "scale_b" ? Role::scale_b
         : name == "bias"    ? Role::bias
         : name == "azp"     ? Role::azp
         : name == "azp_adj" ? Role::azp_adj
                             : Role::unknown;
}

using Roles = std::array<Role, kMaxEpilogueOperands>;

constexpr Roles roles_of(Epilogue epilogue) {
  Roles roles{};
  EpilogueInfo const& info = info_of(epilogue);
  for (int i = 0; i < info.count; ++i) roles[static_cast<std::size_t>(i)] = role_of(info.operands[i].name);
  return roles;
}

constexpr bool knows_all(Epilogue epilogue) {
  for (int i = 0; i < info_of(epilogue).count; ++i) {
    if (roles_of(epilogue)[static_cast<std::size_t>(i)] == Role::unknown) return false;
  }
  return true;
}

constexpr ScaledEpilogues kScaledAzp{Epilogue::scaled_azp, Epilogue::scaled_azp};

constexpr std::size_t kEpilogueTableSize = std::size(kEpilogues);

constexpr std::array<Roles, kEpilogueTableSize> all_roles() {
  std::array<Roles, kEpilogueTableSize> result{};
  for (ScaledEpilogues const& variants : {kScaled, kScaledAzp, kBlockScaled}) {
    for (Epilogue epilogue : {variants.same, variants.bias_f32}) {
      result[static_cast<std::size_t>(epilogue)] = roles_of(epilogue);
    }
  }
  return result;
}
constexpr std::array<Roles, kEpilogueTableSize> kRoles = all_roles();

constexpr bool knows_all(ScaledEpilogues variants) { return knows_all(variants.same) && knows_all(variants.bias_f32); }
static_assert(knows_all(kScaled) && knows_all(kScaledAzp) && knows_all(kBlockScaled),
              "an epilogue of scaled_mm has an operand that scaled_mm does not fill");
static_assert(info_of(Epilogue::accumulator).count == 0);

Tensor const* tensor_of(ScaledCall const& call, Role role) {
  switch (role) {
    case Role::scale_a: return call.scale_a;
    case Role::scale_b: return call.scale_b;
    case Role::bias: return call.bias;
    case Role::azp: return call.azp;
    case Role::azp_adj: return call.azp_adj;
    case Role::unknown: break;
  }
  return nullptr;
}

}  // namespace

gemm::BlockScaleOperand block_scales(Tensor const& scales, bool k_first) {
  std::int64_t const first = scales.dim() - 2, last = first + 1;
  return {static_cast<float*>(scales.data_ptr()), scales.stride(k_first ? last : first),
          scales.stride(k_first ? first : last), first > 0 ? scales.stride(0) : 0};
}

GemmRequest request_of(ScaledCall const& call, ScaledForm form) {
  // K contiguous in both operands: 8-bit tensor cores read nothing else.
  GemmRequest request = request_of(call, Op::scaled_mm, form.d_type);
  request.addend = Addend::other;
  request.epilogue = form.epilogue;
  request.fast_accum = call.use_fast_accum && !call.is_int8();
  request.scales = call.scales;
  return request;
}

ScaledForms scaled_forms(ScaledEpilogues epilogues, ScalarType d_type, Tensor const* bias) {
  ScaledForm const float32{epilogues.same, ScalarType::Float}, same{epilogues.same, d_type};
  if (d_type == ScalarType::Float) return {{float32}, 1};
  if (!bias || type_of(*bias) != ScalarType::Float) return {{same, float32}, 2};
  if (epilogues.bias_f32 == epilogues.same) return {{float32}, 1};
  return {{ScaledForm{epilogues.bias_f32, d_type}, float32, same}, 3};
}

ScaledForm choose_form(ScaledCall const& call) {
  if (call.is_unscaled()) return {Epilogue::accumulator, ScalarType::Int};
  ScaledEpilogues const epilogues = call.scales != BlockScales::none ? kBlockScaled : call.azp ? kScaledAzp : kScaled;
  return choose_form(scaled_forms(epilogues, call.d_type, call.bias), call.device,
                     [&](ScaledForm const& form) { return request_of(call, form); });
}

void prepare(PreparedGemm& prepared, ScaledCall const& call, CopyPolicy copy_policy) {
  ScaledForm const& form = call.form;
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  copy_policy.layouts = true;
  GemmOperands const own{{matrix_of(*call.a), *call.a}, {matrix_of(*call.b), *call.b}, call.k};
  PreparedOperands const operands = prepare_operands(call, own, kContiguousK, copy_policy, keep);

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(call.m), args.n = static_cast<int>(call.n), args.k = operands.k;
  args.a = operands.a.operand, args.b = operands.b.operand;

  std::int64_t const whole_n = round_up(call.n, access_elements(form.d_type));
  bool const pad_n = copy_policy.extents && call.n != whole_n;
  place_d(args, prepare_result(prepared.d, matrix_of(*prepared.d.tensor), form.d_type, whole_n,
                               pad_n || form.d_type != call.d_type, call.device));

  if (call.scales != BlockScales::none) {
    args.scale_a = block_scales(*call.scale_a, /*k_first=*/false);
    args.scale_b = block_scales(*call.scale_b, /*k_first=*/true);
  }
  EpilogueInfo const& info = info_of(form.epilogue);
  Roles const& roles = kRoles[static_cast<std::size_t>(form.epilogue)];
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    Tensor const* const tensor = tensor_of(call, roles[static_cast<std::size_t>(i)]);
    args.epilogue[i] = tensor ? prepare_vector(operand, *tensor, operand_type(operand, form.d_type), pad_n ? whole_n : 0,
                                               call.device, keep)
                              : gemm::EpilogueValue{};
  }
  prepared.request = request_of(call, form);
  prepared.request.k = args.k;
  prepared.request.extents_aligned = operands.extents_aligned && (copy_policy.extents || call.n == whole_n);
}

void prepare_request(PreparedGemm& prepared, ScaledCall const& call) { prepared.request = request_of(call, call.form); }

// --- Running

Work start(PreparedGemm& prepared, ScaledCall& call) {
  std::int64_t const shape[] = {call.m, call.n};
  prepared.d.tensor = call.out ? *call.out : empty_contiguous(shape, 2, call.d_type, call.device);
  call.form = choose_form(call);
  if (call.empty()) return Work::none;
  return call.k > 0 ? Work::gemm : Work::empty_k;
}

// The bias, or zeros.
void fill_empty_k(PreparedGemm& prepared, ScaledCall const& call) {
  Tensor& result = *prepared.d.tensor;
  if (!call.bias) {
    torch::stable::zero_(result);
    return;
  }
  Matrix bias = vector_of(*call.bias);
  bias.rows = call.m;
  Tensor target = view_of(result, matrix_of(result));
  torch::stable::copy_(target, view_of(*call.bias, bias));
}

// --- Ops

namespace {

constexpr OpNames kScaledMm{"scaled_mm", "_scaled_mm", nullptr, "mat_a", "mat_b", 2};

ScaledCall make_scaled_call(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                            std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias,
                            std::optional<Tensor> const& azp, std::optional<Tensor> const& azp_adj,
                            std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b,
                            bool use_fast_accum) {
  auto const pointer = [](std::optional<Tensor> const& tensor) { return tensor ? &*tensor : nullptr; };
  ScaledCall call{{kScaledMm, &a, &b}};
  call.scale_a = pointer(scale_a), call.scale_b = pointer(scale_b);
  call.bias = pointer(bias);
  call.azp = pointer(azp), call.azp_adj = pointer(azp_adj);
  call.recipe_a = recipe_a, call.recipe_b = recipe_b;
  call.use_fast_accum = use_fast_accum;
  return call;
}

// a [M, K], b [K, N]. Recipes are numbers of ScaleRecipe; without them the shapes of the scales tell.
Tensor scaled_mm(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                 std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias, std::optional<Tensor> const& azp,
                 std::optional<Tensor> const& azp_adj, std::optional<ScalarType> out_dtype,
                 std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b, bool use_fast_accum) {
  ScaledCall call = make_scaled_call(a, b, scale_a, scale_b, bias, azp, azp_adj, recipe_a, recipe_b, use_fast_accum);
  call.out_dtype = out_dtype;
  return run_call(call);
}

void scaled_mm_out(Tensor const& a, Tensor const& b, std::optional<Tensor> const& scale_a,
                   std::optional<Tensor> const& scale_b, std::optional<Tensor> const& bias,
                   std::optional<Tensor> const& azp, std::optional<Tensor> const& azp_adj,
                   std::optional<std::int64_t> recipe_a, std::optional<std::int64_t> recipe_b, bool use_fast_accum,
                   Tensor const& out) {
  ScaledCall call = make_scaled_call(a, b, scale_a, scale_b, bias, azp, azp_adj, recipe_a, recipe_b, use_fast_accum);
  call.out = &out;
  run_call(call);
}

Explanation explain_scaled(Question const& asked) {
  ScaledCall call =
      make_scaled_call(asked.tensor(0), asked.tensor(1), asked.operand(2), asked.operand(3), asked.operand(4),
                       asked.operand(5), asked.operand(6), asked.recipe_a, asked.recipe_b, asked.use_fast_accum);
  call.out_dtype = asked.out_dtype;
  return explain_call(call);
}

}  // namespace

Ops scaled_ops() {
  return {
      op<&scaled_mm, kScaledMm>(
          "scaled_mm(Tensor mat_a, Tensor mat_b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, Tensor? azp=None, "
          "Tensor? azp_adj=None, ScalarType? output_dtype=None, int? scale_recipe_a=None, int? scale_recipe_b=None, "
          "bool use_fast_accum=False) -> Tensor",
          {2, 7, explain_scaled}),
      op<&scaled_mm_out, kScaledMm>(
          "scaled_mm.out(Tensor mat_a, Tensor mat_b, Tensor? scale_a, Tensor? scale_b, Tensor? bias=None, Tensor? "
          "azp=None, "
          "Tensor? azp_adj=None, int? scale_recipe_a=None, int? scale_recipe_b=None, bool use_fast_accum=False, *, "
          "Tensor(a!) out) -> ()"),
  };
}

}  // namespace cutwheel
