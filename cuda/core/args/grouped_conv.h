// Arguments of kernels of depthwise and grouped convolutions.
#pragma once

#include "core/args/conv.h"
#include "epilogues.h"  // generated: enum class Epilogue

namespace cutwheel::conv2d {

// The filter is [k_out, r, s, c / groups]: the filters of a group have its channels. Depthwise: as many groups as channels
// and filters. Kernels receive this as GemmArgs const&. Source and target:
//            a                       b           d
//   fprop    activation              filter      output, contiguous
//   dgrad    gradient of the output  filter      gradient of the activation, contiguous
//   wgrad    gradient of the output  activation  gradient of the filter, contiguous
struct GroupedConvArgs : ConvArgs {
  Direction direction = Direction::fprop;
  Epilogue epilogue_name{};        // its scalars are in `epilogue`, by position
  void const* bias = nullptr;      // [k_out]; null: zeros
  void const* residual = nullptr;  // as the output lies; null: zeros
  bool whole_vectors = false;      // channels and strides are multiples of four, and every base lies on as many elements
};

}  // namespace cutwheel::conv2d
