#include <iterator>

#include "core/error.h"
#include "torch/scaled_request.h"

namespace cutwheel {
namespace {

constexpr char const* kRecipeNames[] = {"tensorwise", "rowwise", "blockwise_1x128", "blockwise_128x128"};
constexpr int kRecipes = static_cast<int>(std::size(kRecipeNames));

bool has_shape(Tensor const& tensor, std::int64_t rows, std::int64_t cols) {
  return tensor.dim() == 2 && tensor.size(0) == rows && tensor.size(1) == cols;
}

// Scales of one operand, and what the recipes make of its extents.
struct Scales {
  char const* argument;
  char const* recipe_argument;
  Tensor const& tensor;
  std::optional<ScaleRecipe> given;
  bool of_a;
  std::int64_t extent;  // M or N
  std::int64_t k_blocks, blocks;

  bool fits(ScaleRecipe recipe) const {
    if (given && recipe != *given) return false;
    switch (recipe) {
      case ScaleRecipe::tensorwise: return tensor.numel() == 1;
      case ScaleRecipe::rowwise:
        if (given && tensor.dim() == 1) return tensor.size(0) == extent;
        return of_a ? has_shape(tensor, extent, 1) : has_shape(tensor, 1, extent);
      case ScaleRecipe::blockwise_1x128:
        return of_a ? has_shape(tensor, extent, k_blocks) : has_shape(tensor, k_blocks, extent);
      case ScaleRecipe::blockwise_128x128: return !of_a && has_shape(tensor, k_blocks, blocks);
    }
    return false;
  }

  std::string wanted(ScaleRecipe recipe) const {
    auto const shape = [&](std::int64_t along_k, std::int64_t along_extent) {
      return of_a ? concat('[', along_extent, ", ", along_k, ']') : concat('[', along_k, ", ", along_extent, ']');
    };
    switch (recipe) {
      case ScaleRecipe::tensorwise: return "one element";
      case ScaleRecipe::rowwise: return shape(1, extent);
      case ScaleRecipe::blockwise_1x128: return shape(k_blocks, extent);
      case ScaleRecipe::blockwise_128x128: return shape(k_blocks, blocks);
    }
    return {};
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

}  // namespace cutwheel
