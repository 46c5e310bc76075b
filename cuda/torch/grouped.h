// One call of grouped_mm and its like: a GEMM for each group, where the ends of groups lie on the device and the host
// never reads them.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>
#include <optional>
#include <string_view>
#include <tuple>

#include "torch/scaled.h"

namespace cutwheel {

constexpr OpNames kGroupedMm{"grouped_mm", nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedMmAccumulate{"grouped_mm_accumulate", nullptr, "mat_a", "mat_b", 2};
constexpr OpNames kGroupedLinear{"grouped_linear", nullptr, "input", "weight", 2};
constexpr OpNames kScaledGroupedMm{"scaled_grouped_mm", nullptr, "mat_a", "mat_b", 2};

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

// The epilogue of a name, with no operands but a bias and as many stores as are asked for. Throws for any other.
Epilogue grouped_epilogue(std::string_view name, std::optional<int> stores = std::nullopt);

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

// Grouped GEMMs as torch sees them. offs has the end of each group, int32 or int64, on the device.
// a [T, K], b [G, K, N], bias [G, N]: D [T, N]. Or a [M, T], b [T, N]: D [G, M, N].
Tensor grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                  std::optional<ScalarType> out_dtype, bool allow_tf32);
// a [M, T], b [T, N]: out [G, M, N] += A @ B of each group.
void grouped_mm_accumulate(Tensor const& a, Tensor const& b, Tensor const& offs, bool allow_tf32, Tensor const& out);

// input [T, K], weight [G, N, K], bias [G, N].
Tensor grouped_linear_fused(Tensor const& input, Tensor const& weight, Tensor const& offs,
                            std::optional<Tensor> const& bias, StringHandle epilogue, bool allow_tf32);
// And what the epilogue stores, [T, N].
std::tuple<Tensor, Tensor> grouped_linear_fused_aux(Tensor const& input, Tensor const& weight, Tensor const& offs,
                                                    std::optional<Tensor> const& bias, StringHandle epilogue,
                                                    bool allow_tf32);

// a [T, K], b [G, K, N], 8 bits; scale_a [T] or [T, 1], scale_b [G, N] or [G, 1, N], bias [G, N].
Tensor scaled_grouped_mm(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b, Tensor const& offs,
                         std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype, bool use_fast_accum);

// The calls that these make, for explain, too. They name the tensors that they are given.
GroupedCall grouped_mm_call(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                            std::optional<ScalarType> out_dtype, bool allow_tf32);
GroupedCall grouped_accumulate_call(Tensor const& a, Tensor const& b, Tensor const& offs, bool allow_tf32,
                                    Tensor const& out);
GroupedCall grouped_linear_call(Tensor const& input, Tensor const& weight, Tensor const& offs,
                                std::optional<Tensor> const& bias, Epilogue epilogue, bool allow_tf32);
GroupedCall scaled_grouped_call(Tensor const& a, Tensor const& b, Tensor const& scale_a, Tensor const& scale_b,
                                Tensor const& offs, std::optional<Tensor> const& bias, std::optional<ScalarType> out_dtype,
                                bool use_fast_accum);

}  // namespace cutwheel
