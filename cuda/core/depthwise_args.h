// Arguments of kernels of depthwise convolutions.
#pragma once

#include "core/conv_args.h"
#include "epilogues.h"  // generated: enum class Epilogue

namespace cutwheel::conv2d {

// The problem has as many filters as channels, each of one channel: the filter is [c, r, s]. Kernels receive this as
// GemmArgs const&. Source and target:
//            a                       b           d
//   fprop    activation              filter      output, contiguous
//   dgrad    gradient of the output  filter      gradient of the activation, contiguous
//   wgrad    gradient of the output  activation  gradient of the filter, contiguous
struct DepthwiseArgs : ConvArgs {
  Direction direction = Direction::fprop;
  Epilogue epilogue_name{};        // its scalars are in `epilogue`, by position
  void const* bias = nullptr;      // [c]; null: zeros
  void const* residual = nullptr;  // as the output lies; null: zeros
  bool whole_vectors = false;      // channels and strides are multiples of four, and every base lies on as many elements
};

}  // namespace cutwheel::conv2d
