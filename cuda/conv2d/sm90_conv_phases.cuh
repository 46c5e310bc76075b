// Gradients of inputs with few channels whose convolution has a stride, and so transposed convolutions: the last layers of
// decoders. As implicit GEMMs their columns are fewer than those of any tile, and each tap reads all of the output's
// gradient. By windows the phases of the stride are computed together, from one patch.
#pragma once

#include "conv2d/sm90_conv_window.cuh"

namespace cutwheel::conv2d {

template <Arch arch, DType a, DType b, DType acc, DType d, class Tile, Direction direction, template <DType> class Epilogue>
using Sm90ConvPhases = Sm90ConvWindow<arch, a, b, acc, d, Tile, direction, Epilogue, WindowForm::phases>;

}  // namespace cutwheel::conv2d
