// fprop of images with up to four channels behind a stride of 2: the first layers of networks. Space-to-depth as in
// space_to_depth.cuh, but threads gather the pixels, so the image needs no copy whose pixels are whole accesses.
#pragma once

#include "sm90/direct_conv/kernel.cuh"

namespace cutwheel::conv2d {

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, template <DType> class Epilogue>
using Sm90FewChannels = Sm90DirectConv<arch, a, b, acc, d, Tile, direction, Epilogue, DirectConvForm::few_channels>;

}  // namespace cutwheel::conv2d
