// What the library tells about itself, as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch/fused.h"

namespace cutwheel {

std::string kernels_json();
// The epilogues of GEMMs (as gemm takes them) and of elementwise kernels, in the order of the manifests.
std::string epilogues_json();
std::string build_info_json();
std::string device_info_json(std::int64_t device);
std::string driver_status_json();
// op and operands as of explain_gemm, explain_scaled and explain_grouped; recipes and use_fast_accum are of scaled
// products.
std::string explain_json(std::int64_t op, OptionalTensors const& operands, std::optional<ScalarType> out_dtype, double beta,
                         bool allow_tf32, StringHandle epilogue, std::optional<std::int64_t> recipe_a,
                         std::optional<std::int64_t> recipe_b, bool use_fast_accum);
// op and operands as of explain_conv.
std::string explain_conv_json(std::int64_t op, OptionalTensors const& operands, std::int64_t stride_h,
                              std::int64_t stride_w, std::int64_t padding_top, std::int64_t padding_bottom,
                              std::int64_t padding_left, std::int64_t padding_right, std::int64_t dilation_h,
                              std::int64_t dilation_w, std::optional<ScalarType> out_dtype, bool allow_tf32,
                              StringHandle epilogue, std::int64_t size_h, std::int64_t size_w);
// The choice for a shape on a GPU that need not be there: no driver is asked. Layouts: 0 row, 1 column; dtypes as in DType;
// addend as in Addend. The name of an epilogue, where it is not empty, says what addend would. b is -1 where it is a;
// scales as in BlockScales. The op is scaled_mm where a has 8 bits, grouped_mm where grouping (as in Grouping) is not 0:
// then m, n and k are those of the mean group. It is conv2d where direction (as in Direction) is not 0: then they are those
// of the implicit GEMM; taps and step as in GemmRequest, rectangles: output tiles of a direct convolution.
std::string explain_for_gpu_json(std::int64_t major, std::int64_t minor, std::int64_t sm_count,
                                 std::int64_t shared_memory_bytes, double memory_gb_per_s, double sm_clock_ghz,
                                 std::int64_t a, std::int64_t d, std::int64_t layout_a, std::int64_t layout_b,
                                 std::int64_t addend, bool extents_aligned, std::int64_t m, std::int64_t n, std::int64_t k,
                                 std::int64_t batch, StringHandle epilogue, std::int64_t b, bool fast_accum,
                                 std::int64_t scales, std::int64_t grouping, std::int64_t groups, std::int64_t direction,
                                 std::int64_t taps, std::int64_t step, std::int64_t rectangles);

// As of load_tuned_table(); and what is loaded or compiled in, in the order in which it counts.
void load_tuning(StringHandle text);
void clear_tuning();
std::string tuning_json();

}  // namespace cutwheel
