// The GEMM room's door: plan, ask for workspace, run.
#pragma once

#include "dispatch/select.h"
#include "gemm/params.h"

namespace cutwheel::gemm {

// Bytes of device memory the plan needs for these arguments; 0 for most plans.
std::int64_t workspace_bytes(GemmPlan const& plan, GemmArgs const& args);

// Enqueues the plan on args.stream. args.workspace holds workspace_bytes().
Status run(GemmPlan const& plan, GemmArgs args, DType a, DType d);

// D = beta * C, or zeros: the product over an empty K.
Status run_empty_k(GemmArgs const& args, DType d);

}  // namespace cutwheel::gemm
