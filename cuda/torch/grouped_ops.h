// Grouped products as torch sees them. offs has the end of each group, int32 or int64, on the device.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "torch/grouped_request.h"

namespace cutwheel {

// a [T, K], b [G, K, N], bias [G, N]: D [T, N]. Or a [M, T], b [T, N]: D [G, M, N].
Tensor grouped_mm(Tensor const& a, Tensor const& b, Tensor const& offs, std::optional<Tensor> const& bias,
                  std::optional<ScalarType> out_dtype, bool allow_tf32);
// a [M, T], b [T, N]: out [G, M, N] += the product of each group.
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
