// Convolutions of few channels, with or without a stride: the first layers of networks. Rows of blocks of stride x stride
// pixels have 16 or 32 channels, as many as wgmma multiplies, where an implicit GEMM fills 64 for each tap.
#pragma once

#include "conv2d/sm90_conv_window.cuh"

namespace cutwheel::conv2d {

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, template <DType> class Epilogue>
using Sm90ConvBlocks = Sm90ConvWindow<arch, a, b, acc, d, Tile, direction, Epilogue, WindowForm::blocks>;

}  // namespace cutwheel::conv2d
