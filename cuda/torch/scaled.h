// One call of scaled_mm: D = scale_a * scale_b * (A @ B) + bias, of 8-bit operands.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "torch/launch.h"

namespace cutwheel {

// How the scales of one operand lie over it; Python passes the number.
enum class ScaleRecipe : int { tensorwise, rowwise, blockwise_1x128, blockwise_128x128 };

constexpr std::int64_t kScaleBlock = 128;

// One of the forms in which the result can be computed: an epilogue, and the type of D that its kernel writes. If that is
// not the type of the result, it is converted.
struct ScaledForm {
  Epilogue epilogue{};
  ScalarType d_type = ScalarType::BFloat16;
};

struct ScaledCall : GemmCallBase {
  // Null: not given.
  Tensor const* scale_a = nullptr;
  Tensor const* scale_b = nullptr;
  Tensor const* bias = nullptr;
  Tensor const* azp = nullptr;      // zero point of A, int32
  Tensor const* azp_adj = nullptr;  // sums of B's columns, int32
  std::optional<std::int64_t> recipe_a = std::nullopt, recipe_b = std::nullopt;
  bool use_fast_accum = false;

  // none: the scales are operands of the epilogue, one for all or one for each row of A and column of B.
  BlockScales scales = BlockScales::none;
  ScaledForm form{};

  bool is_int8() const { return !is_fp8(dtype_of(type)); }
  bool is_unscaled() const { return !scale_a; }
};

// Refuses mxfp8, mxfp4 and nvfp4.
[[noreturn]] void fail_on_microscaling(char const* op, char const* argument, ScalarType type);

// Checks the types of 8-bit operands, and fills them.
void check_scaled_operands(GemmCallBase& call, bool may_be_int8);
// float32 on the call's device.
void check_scale_type(GemmCallBase const& call, char const* argument, Tensor const& scale);

// Shapes, dtypes, devices, recipes, out=: throws the error that names the argument; fills types, extents and scales.
void check(ScaledCall& call);

// Where the scales are applied, from the recipes that were given and the shapes. Throws where they do not fit.
BlockScales find_scales(ScaledCall const& call);

// Scales [M, K] or, with K first, [K, N] or [G, K, N], counted in blocks.
gemm::BlockScaleOperand block_scales(Tensor const& scales, bool k_first);

// An epilogue, and the same with a bias in float32 whatever D is. Where the two are one, such a bias takes D in float32.
struct ScaledEpilogues {
  Epilogue same, bias_f32;
};
constexpr ScaledEpilogues kScaled{Epilogue::scaled, Epilogue::scaled_bias_f32};
constexpr ScaledEpilogues kBlockScaled{Epilogue::block_bias, Epilogue::block_bias_f32};

struct ScaledForms {
  std::array<ScaledForm, 3> forms;
  std::size_t count;
};

// Forms of D, the best first. A type without a kernel of its own is computed in float32 and converted; if float32 has no
// kernel either, a float32 bias is rounded to the type of the result.
ScaledForms scaled_forms(ScaledEpilogues epilogues, ScalarType d_type, Tensor const* bias);

// The first form with a native kernel, else with any, else the first. `request_of` makes the request of a form.
template <class RequestOf>
ScaledForm choose_form(ScaledForms const& forms, int device, RequestOf const& request_of) {
  if (forms.count == 1) return forms.forms[0];
  FirstNative<ScaledForm> choice{device_info(device)};
  for (std::size_t i = 0; i < forms.count && !choice.native; ++i) {
    choice.offer(forms.forms[i], choose_plan(request_of(forms.forms[i])));
  }
  return choice.chosen.value_or(forms.forms[0]);
}
ScaledForm choose_form(ScaledCall const& call);

// The request that selection sees if operands are fully aligned.
GemmRequest request_of(ScaledCall const& call, ScaledForm form);

// As launch.h has them.
Work start(PreparedGemm& prepared, ScaledCall& call);
void prepare(PreparedGemm& prepared, ScaledCall const& call, CopyPolicy copy_policy);
void prepare_request(PreparedGemm& prepared, ScaledCall const& call);
void fill_empty_k(PreparedGemm& prepared, ScaledCall const& call);

}  // namespace cutwheel
