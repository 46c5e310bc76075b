// The library about itself, as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include "torch/explain/explain.h"

namespace cutwheel {

std::string kernels_json();
// The epilogues of GEMMs (as gemm takes them) and of elementwise kernels, in the order of the manifests.
std::string epilogues_json();
std::string build_info_json();
std::string device_info_json(std::int64_t device);
std::string driver_status_json();
// The plans of a call of the op, which the registry knows by this name.
std::string explain_json(StringHandle op, OptionalTensors const& operands, std::optional<ScalarType> out_dtype, double beta,
                         bool allow_tf32, StringHandle epilogue, std::optional<std::int64_t> recipe_a,
                         std::optional<std::int64_t> recipe_b, bool use_fast_accum,
                         std::vector<std::int64_t> const& geometry);
// A plan that runs.
std::string choice_json(char const* op, GemmRequest const& request, GemmPlan const& plan);
// The choice for a request on a GPU that need not be there: no driver is asked. The request is written as in a table of
// measurements (load_tuned_table); output_tiles are those of a direct convolution, shared_pixels and row_taps as of
// SharedPixels.
std::string explain_for_gpu_json(std::int64_t major, std::int64_t minor, std::int64_t sm_count,
                                 std::int64_t shared_memory_bytes, double memory_gb_per_s, double sm_clock_ghz,
                                 StringHandle request, std::int64_t output_tiles, std::int64_t shared_pixels,
                                 std::int64_t row_taps);

// As of load_tuned_table(); and what is loaded or compiled in, in the order in which it counts.
void load_tuning(StringHandle text);
std::string tuning_json();

}  // namespace cutwheel
