// Arguments of sums of columns to an image.
#pragma once

#include "core/args/conv.h"

namespace cutwheel::conv2d {

// Kernels receive this as GemmArgs const&. a: the columns, [images, p, q, r, s, channels], `leading` from position to
// position. d: the image, [images, h, w, c], contiguous.
struct Col2imArgs : ConvArgs {
  int channels = 0;  // of a tap: those of the image, and more that are not read
};

}  // namespace cutwheel::conv2d
