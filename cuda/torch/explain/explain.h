// Explains what a call would run, without running it.
#pragma once

#include <algorithm>
#include <string_view>

#include "torch/launch.h"

namespace cutwheel {

using OptionalTensors = std::vector<std::optional<Tensor>>;

struct Explanation {
  GemmRequest request;
  std::size_t operand_copies = 0;  // operands that have to be copied first
  bool output_copy = false;
  char const* route = nullptr;       // of a convolution
  std::vector<GemmPlan> plans = {};  // cheapest first; the first one runs
  std::vector<Rejection> rejections = {};
  PlanSource source = {};  // of the first plan

  void rank(DeviceInfo const& device) { plans = rank_plans(request, device, &rejections, &source); }
};

// A question to explain. An op takes what its schema has; scalars do not matter, but for beta, which may be 0.
struct Question {
  OpNames const& names;
  OptionalTensors const& operands;  // those of the op in the order of its schema; the last ones may be left out
  std::optional<ScalarType> out_dtype;
  double beta;
  bool allow_tf32;
  std::string_view epilogue;
  std::optional<std::int64_t> recipe_a, recipe_b;
  bool use_fast_accum;
  std::vector<std::int64_t> const& geometry;  // of a convolution: the numbers of its schema, then the size of the result

  std::optional<Tensor> const& operand(std::size_t i) const {
    static std::optional<Tensor> const none;
    return i < operands.size() ? operands[i] : none;
  }
  Tensor const* optional(std::size_t i) const { return operand(i) ? &*operand(i) : nullptr; }
  Tensor const& tensor(std::size_t i) const {
    if (!operand(i)) fail(ErrorKind::value, "explain: tensor ", i, " of ", names.op, " is None; expected a Tensor");
    return *operand(i);
  }
};

// How explain knows an op: how many operands it takes, and what it makes of them. Runs no kernel but the copies.
struct Explained {
  std::size_t least = 0, most = 0;
  Explanation (*explain)(Question const&) = nullptr;
};

// Explains a call as the op makes it.
template <class Call>
Explanation explain_call(Call&& call) {
  check(call);
  DeviceScope const scope(call.device);
  PreparedGemm prepared;
  bool const computes = start(prepared, call) == Work::gemm;
  if (computes) {
    plan_gemm(prepared, call);
  } else {
    prepare_request(prepared, call);
  }
  bool const output_copy = prepared.d.temporary || std::any_of(prepared.stores.begin(), prepared.stores.end(),
                                                               [](Output const& x) { return x.temporary.has_value(); });
  Explanation explanation{prepared.request, prepared.keep.size(), output_copy};
  if (computes) explanation.rank(device_info(call.device));
  return explanation;
}

}  // namespace cutwheel
