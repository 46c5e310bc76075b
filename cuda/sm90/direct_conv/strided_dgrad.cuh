// dgrad of few channels behind a stride, which is also transposed convolution: the last layers of decoders. As an implicit
// GEMM it has fewer columns than any tile, and each tap reads the whole gradient of the output. A direct convolution
// computes all residue classes of the stride from one halo tile.
#pragma once

#include "sm90/direct_conv/kernel.cuh"

namespace cutwheel::conv2d {

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, template <DType> class Epilogue>
using Sm90StridedDgrad = Sm90DirectConv<arch, a, b, acc, d, Tile, direction, Epilogue, DirectConvForm::residue_classes>;

}  // namespace cutwheel::conv2d
