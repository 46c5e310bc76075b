// Runs plans of GEMMs: workspace, launch.
#pragma once

#include "core/args/gemm.h"
#include "dispatch/select.h"

namespace cutwheel::gemm {

// Bytes of device memory the plan needs for these arguments; 0 for most plans.
std::int64_t workspace_bytes(GemmPlan const& plan, GemmArgs const& args);

// Enqueues the plan on args.stream. args.workspace holds workspace_bytes(). args.epilogue is filled for epilogues with
// Addend::other; those of mm and addmm take alpha, beta and c.
Status run(GemmPlan const& plan, GemmArgs args);

// D = beta * C, or zeros: the GEMM with an empty K, for the epilogues of mm and addmm.
Status run_empty_k(GemmArgs const& args, DType d);

}  // namespace cutwheel::gemm
