// Arguments of sums of columns to an image.
#pragma once

#include "core/args/conv.h"

namespace cutwheel::conv2d {

// Kernels receive this as GemmArgs const&. a: the columns, [images, p, q, r, s, channels], `leading` from position to
// position. d: the image, [images, h, w, c], contiguous.
struct Col2imArgs : ConvArgs {
  int channels = 0;         // of a tap: those of the image, and more that are not read
  bool is_patches = false;  // unpadded, with a stride as long as the filter: `channels` are those of the image
};

}  // namespace cutwheel::conv2d
