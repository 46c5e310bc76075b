// The ops that ask for an epilogue by its name, as torch sees them.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "torch/gemm.h"

namespace cutwheel {

using OptionalTensors = std::vector<std::optional<Tensor>>;

// a [M, K] or [B, M, K], b [K, N] or [B, K, N]; operands and scalars by position. Returns D and what the epilogue stores.
std::vector<Tensor> gemm_named(Tensor const& a, Tensor const& b, StringHandle epilogue, OptionalTensors const& operands,
                               std::vector<double> const& scalars, std::optional<ScalarType> out_dtype, bool allow_tf32);
void gemm_named_out(Tensor const& a, Tensor const& b, StringHandle epilogue, OptionalTensors const& operands,
                    std::vector<double> const& scalars, bool allow_tf32, std::vector<Tensor> const& out);

// input [..., K], weight [N, K], bias [N], residual [..., N].
Tensor linear_fused(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                    std::optional<Tensor> const& residual, StringHandle epilogue, bool allow_tf32);
// And what the epilogue stores, [..., N].
std::tuple<Tensor, Tensor> linear_fused_aux(Tensor const& input, Tensor const& weight, std::optional<Tensor> const& bias,
                                            std::optional<Tensor> const& residual, StringHandle epilogue, bool allow_tf32);

// operands [..., N] or [..., 2N], by position. Returns the result and its sums over all but the last dimension; what was
// not asked for is empty, [0].
std::tuple<Tensor, Tensor> elementwise(std::vector<Tensor> const& operands, StringHandle epilogue, bool with_result,
                                       bool with_sums);

// The names of gemm's arguments, by the rank of a; throws for any other rank.
OpNames const& gemm_names(Tensor const& a);

// Fill a call's epilogue; throw where what is given is not what the epilogue takes.
void bind_gemm(EpilogueCall& epilogue, OptionalTensors const& operands, std::vector<double> const& scalars);
void bind_linear(EpilogueCall& epilogue, Tensor const* bias, Tensor const* residual);

}  // namespace cutwheel
