#include <array>
#include <string_view>

#include "torch/scaled_request.h"

namespace cutwheel {
namespace {

// What an operand of one of scaled_mm's epilogues is, by its name in the manifest.
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

// An epilogue, and the same with a bias in float32 whatever D is. Where the two are one, such a bias takes D in float32.
struct Variants {
  Epilogue same, bias_f32;
};
constexpr Variants kScaled{Epilogue::scaled, Epilogue::scaled_bias_f32};
constexpr Variants kScaledAzp{Epilogue::scaled_azp, Epilogue::scaled_azp};
constexpr Variants kBlock{Epilogue::block_bias, Epilogue::block_bias_f32};

constexpr std::size_t kEpilogueTableSize = std::size(kEpilogues);

constexpr std::array<Roles, kEpilogueTableSize> all_roles() {
  std::array<Roles, kEpilogueTableSize> result{};
  for (Variants const& variants : {kScaled, kScaledAzp, kBlock}) {
    for (Epilogue epilogue : {variants.same, variants.bias_f32}) {
      result[static_cast<std::size_t>(epilogue)] = roles_of(epilogue);
    }
  }
  return result;
}
constexpr std::array<Roles, kEpilogueTableSize> kRoles = all_roles();

constexpr bool knows_all(Variants variants) { return knows_all(variants.same) && knows_all(variants.bias_f32); }
static_assert(knows_all(kScaled) && knows_all(kScaledAzp) && knows_all(kBlock),
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

// `pad_to`: columns of D that a kernel may read a row for; 0 where it does not read beyond N.
gemm::EpilogueValue prepare_vector(ScaledCall const& call, EpilogueOperandInfo const& operand, Tensor const& tensor,
                                   ScalarType type, std::int64_t pad_to, std::vector<Tensor>& keep) {
  gemm::EpilogueValue value;
  Matrix x = vector_of(tensor);
  // One value (or an expanded one) is read alone, wherever it lies.
  bool const is_one = operand.may_be_one && (x.cols == 1 || x.col_stride == 0);
  if (!is_one || tensor.scalar_type() != type) {
    bool const pad = operand.kind == OperandKind::row && pad_to > x.cols;
    std::int64_t const pitch = round_up(pad ? pad_to : x.cols, access_elements(type));
    x = readable(x, tensor, type, pitch, pad, call.device, keep);
  }
  value.data = x.data;
  value.leading = is_one ? 0 : 1;
  return value;
}

}  // namespace

gemm::BlockScaleOperand block_scales(Tensor const& scales, bool k_first) {
  std::int64_t const first = scales.dim() - 2, last = first + 1;
  return {static_cast<float*>(scales.data_ptr()), scales.stride(k_first ? last : first),
          scales.stride(k_first ? first : last), first > 0 ? scales.stride(0) : 0};
}

GemmRequest request_of(ScaledCall const& call, ScaledForm form) {
  GemmRequest request;
  request.op = Op::scaled_mm;
  request.device = call.device;
  request.a = dtype_of(call.type);
  request.b = dtype_of(call.b_type);
  request.d = dtype_of(form.d_type);
  // K contiguous in both operands: 8-bit tensor cores read nothing else.
  request.layout_a = Layout::row, request.layout_b = Layout::column;
  request.addend = Addend::other;
  request.epilogue = form.epilogue;
  request.fast_accum = call.use_fast_accum && !call.is_int8();
  request.scales = call.scales;
  request.m = static_cast<int>(call.m), request.n = static_cast<int>(call.n), request.k = static_cast<int>(call.k);
  return request;
}

ScaledForm choose_form(ScaledCall const& call) {
  if (call.is_unscaled()) return {Epilogue::accumulator, ScalarType::Int};
  Variants const variants = call.scales != BlockScales::none ? kBlock : call.azp ? kScaledAzp : kScaled;
  bool const bias_f32 = call.bias && call.d_type != ScalarType::Float && call.bias->scalar_type() == ScalarType::Float;
  // What has no kernel of its own is written in float32 and converted.
  std::array<ScaledForm, 2> const forms{
      {{bias_f32 ? variants.bias_f32 : variants.same, call.d_type}, {variants.same, ScalarType::Float}}};
  if (call.d_type == ScalarType::Float) return forms[0];
  if (bias_f32 && variants.bias_f32 == variants.same) return forms[1];
  DeviceInfo const& device = device_info(call.device);
  ScaledForm const* some = nullptr;
  for (ScaledForm const& form : forms) {
    std::optional<GemmPlan> const plan = choose_plan(request_of(call, form));
    if (plan && runs_native(plan->row->arch, device.major, device.minor)) return form;
    if (plan && !some) some = &form;
  }
  return some ? *some : forms[0];
}

void prepare_scaled(PreparedGemm& prepared, ScaledCall const& call, Forced forced) {
  ScaledForm const& form = call.form;
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  forced.layouts = true;
  // cp.async kernels read whole accesses along K: copies of both operands have zeros up to the next multiple.
  std::int64_t const whole_k = round_up(call.k, access_elements(call.type));
  bool const pad_k = forced.extents && call.k != whole_k;
  PreparedOperand const a =
      prepare_operand(matrix_of(*call.a), *call.a, call.type, Layout::row, forced, pad_k, call.device, keep);
  PreparedOperand const b =
      prepare_operand(matrix_of(*call.b), *call.b, call.b_type, Layout::column, forced, pad_k, call.device, keep);

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(call.m), args.n = static_cast<int>(call.n);
  args.k = static_cast<int>(pad_k ? whole_k : call.k);
  args.a = a.operand;
  args.b = b.operand;

  std::int64_t const whole_n = round_up(call.n, access_elements(form.d_type));
  bool const pad_n = forced.extents && call.n != whole_n;
  Matrix const d = prepare_output(prepared.d, matrix_of(*prepared.d.tensor), form.d_type, whole_n,
                                  pad_n || form.d_type != call.d_type, call.device);
  args.d = d.data;
  args.d_leading = leading_of(d, whole_n);

  if (call.scales != BlockScales::none) {
    args.scale_a = block_scales(*call.scale_a, /*k_first=*/false);
    args.scale_b = block_scales(*call.scale_b, /*k_first=*/true);
  }
  EpilogueInfo const& info = info_of(form.epilogue);
  Roles const& roles = kRoles[static_cast<std::size_t>(form.epilogue)];
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    Tensor const* const tensor = tensor_of(call, roles[static_cast<std::size_t>(i)]);
    args.epilogue[i] =
        tensor ? prepare_vector(call, operand, *tensor, operand_type(operand, form.d_type), pad_n ? whole_n : 0, keep)
               : gemm::EpilogueValue{};
  }
  prepared.request = request_of(call, form);
  prepared.request.k = args.k;
  prepared.request.extents_aligned = a.extent_aligned && b.extent_aligned && (forced.extents || call.n == whole_n);
}

}  // namespace cutwheel
