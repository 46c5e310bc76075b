// One call of grouped_mm and its like: a product for each group, where the ends of groups lie on the device and the host
// never reads them.
#pragma once

#include <string_view>

#include "torch/scaled_request.h"

namespace cutwheel {

constexpr OpNames kGroupedMm{"grouped_mm", nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedMmAccumulate{"grouped_mm_accumulate", nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedLinear{"grouped_linear", nullptr, "input", "weight", 2};
constexpr OpNames kScaledGroupedMm{"scaled_grouped_mm", nullptr, "mat_a", "mat_b", 2};

// A kernel keeps the places of all groups in shared memory.
constexpr std::int64_t kMaxGroups = 1024;

// In terms of ProductCall, with groups of rows M is T, the rows of all groups; with groups of K, K is that of all groups.
// batch counts the groups.
struct GroupedCall : ProductCall {
  Tensor const* ends = nullptr;  // offs, [G]
  // Null: not given.
  Tensor const* bias = nullptr;  // [G, N]
  Tensor const* scale_a = nullptr;
  Tensor const* scale_b = nullptr;
  bool allow_tf32 = false;
  bool use_fast_accum = false;
  bool is_scaled = false;
  bool linear = false;                              // b is [G, N, K]
  bool accumulates = false;                         // out += A @ B
  std::int64_t first_k = 0;                         // of groups along K: that of the operands, from which ends are counted
  std::optional<Epilogue> epilogue = std::nullopt;  // asked for by its name; else a bias is added, or nothing

  ScalarType b_type = ScalarType::BFloat16;
  Grouping grouping = Grouping::rows;
  BlockScales scales = BlockScales::none;  // of a scaled product: as in ScaledCall
  ScaledForm form{};                       // of a scaled product

  // Of the kernel that runs; nothing where it is chosen by what is added.
  std::optional<Epilogue> kernel_epilogue() const { return is_scaled ? std::optional<Epilogue>(form.epilogue) : epilogue; }
  ScalarType kernel_d_type() const { return is_scaled ? form.d_type : d_type; }
  Width width() const { return epilogue ? info_of(*epilogue).width : Width::same; }
};

inline GroupedCall make_grouped_call(OpNames const& names, Tensor const& a, Tensor const& b, Tensor const& ends) {
  GroupedCall call{{names, &a, &b}};
  call.ends = &ends;
  return call;
}

// The epilogue of a name, with no operands but a bias and as many stores as are asked for. Throws for any other.
Epilogue grouped_epilogue(std::string_view name, std::optional<int> stores = std::nullopt);

// Shapes, dtypes, devices, scales, out: throws the error that names the argument; fills types, extents and the grouping.
void check_grouped(GroupedCall& call);

// The part of it for the scales; fills what they are.
void check_grouped_scales(GroupedCall& call);

// The first way for which there is a kernel, native if there is one. Of a scaled product.
ScaledForm choose_grouped_form(GroupedCall const& call);

// What selection looks at, if operands are as aligned as they can be, and lie as they are copied.
GemmRequest request_of(GroupedCall const& call);

// Of a checked call, with results in prepared.
void prepare_grouped(PreparedGemm& prepared, GroupedCall const& call, Forced forced);

// Makes the results of a checked call. Says whether there is anything to multiply.
bool start_grouped(PreparedGemm& prepared, GroupedCall const& call);

// Prepares the call for the kernel of the plan.
GemmPlan plan_grouped(PreparedGemm& prepared, GroupedCall& call);

// All of it: the results are in prepared.d and prepared.stores.
void run_grouped(PreparedGemm& prepared, GroupedCall& call);

}  // namespace cutwheel
