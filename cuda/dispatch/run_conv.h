// Runs plans of convolutions: workspace, launch.
#pragma once

#include "core/args/conv.h"
#include "dispatch/select.h"

namespace cutwheel::conv2d {

// Whether tensor maps of images have bits enough for the problem. Launches know it exactly: this spares them the attempt.
bool fits_tensor_maps(Direction direction, ConvProblem const& problem);

SharedPixels count_shared_pixels(Direction direction, ConvProblem const& problem);

// Work of direct convolutions, plain or strided, by space-to-depth, and of few channels; no tiles if they cannot implement
// the problem.
DirectConvTiles count_direct_conv(Direction direction, ConvProblem const& problem);
DirectConvTiles count_space_to_depth(Direction direction, ConvProblem const& problem);
DirectConvTiles count_few_channels(Direction direction, ConvProblem const& problem);

// Bytes of device memory the plan needs for these arguments.
std::int64_t workspace_bytes(GemmPlan const& plan, ConvArgs const& args);

// Enqueues the plan on args.stream. args.workspace holds workspace_bytes().
gemm::Status run(GemmPlan const& plan, ConvArgs args);

}  // namespace cutwheel::conv2d
