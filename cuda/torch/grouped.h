// One call of grouped_mm and its like: a GEMM for each group, where the ends of groups lie on the device and the host
// never reads them.
#pragma once

#include <optional>

#include "torch/scaled.h"

namespace cutwheel {

constexpr OpNames kGroupedMm{"grouped_mm", "nn.functional.grouped_mm", nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedMmAccumulate{"grouped_mm_accumulate", nullptr, nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedLinear{"grouped_linear", nullptr, nullptr, "input", "weight", 2};
constexpr OpNames kScaledGroupedMm{"scaled_grouped_mm", nullptr, nullptr, "mat_a", "mat_b", 2};

// A kernel keeps the places of all groups in shared memory.
constexpr std::int64_t kMaxGroups = 1024;

// In terms of GemmCallBase, with groups of rows M is T, the rows of all groups; with groups of K, K is that of all groups.
// batch counts the groups.
struct GroupedCall : GemmCallBase {
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

  Grouping grouping = Grouping::rows;
  BlockScales scales = BlockScales::none;  // of a scaled GEMM: as in ScaledCall
  ScaledForm form{};                       // of a scaled GEMM

  // The epilogue of the kernel that runs; nothing if the operands decide it.
  std::optional<Epilogue> kernel_epilogue() const { return is_scaled ? std::optional<Epilogue>(form.epilogue) : epilogue; }
  ScalarType kernel_d_type() const { return is_scaled ? form.d_type : d_type; }
  Width width() const { return epilogue ? info_of(*epilogue).width : Width::same; }
};

inline GroupedCall make_grouped_call(OpNames const& names, Tensor const& a, Tensor const& b, Tensor const& ends) {
  GroupedCall call{{names, &a, &b}};
  call.ends = &ends;
  return call;
}

// Shapes, dtypes, devices, scales, out: throws the error that names the argument; fills types, extents and the grouping.
void check(GroupedCall& call);

// The part of it for the scales; fills what they are.
void check_grouped_scales(GroupedCall& call);

// The request that selection sees if operands are fully aligned and in the layouts of copies.
GemmRequest request_of(GroupedCall const& call);

// As launch.h has them.
Work start(PreparedGemm& prepared, GroupedCall& call);
void prepare(PreparedGemm& prepared, GroupedCall const& call, CopyPolicy copy_policy);
void prepare_request(PreparedGemm& prepared, GroupedCall const& call);
void fill_empty_k(PreparedGemm& prepared, GroupedCall const& call);

}  // namespace cutwheel
