// fprop of very few channels by space-to-depth: the first layers of networks. A row of a stride x stride block of pixels
// has 16 or 32 channels, a multiple of wgmma's K, where an implicit GEMM pads each tap to 64.
#pragma once

#include "sm90/direct_conv/kernel.cuh"

namespace cutwheel::conv2d {

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, template <DType> class Epilogue>
using Sm90SpaceToDepth = Sm90DirectConv<arch, a, b, acc, d, Tile, direction, Epilogue, DirectConvForm::space_to_depth>;

}  // namespace cutwheel::conv2d
