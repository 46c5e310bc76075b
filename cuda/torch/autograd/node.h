// Linear layers and convolutions of images on an autograd node of torch's own.
//
// With a torch.autograd.Function forward and backward of mm take the CPU 36 to 41 us longer, since its backward is Python's
// (benchmarks/results/host). Ops that are differentiable in C++ are torch's alone: the stable ABI has no autograd. One pair
// of them is left to others, as torch has no kernel for it: convolution_overrideable and convolution_backward_overrideable,
// of devices that torch has no convolutions for. Kernels for CUDA stand in nobody's way there.
//
// A convolution without spatial dimensions is a linear layer: stride, padding, dilation and output_padding are empty, the
// input is [..., K] and the weight [N, K] or, transposed as that of a transposed convolution is, [K, N].
#pragma once

namespace cutwheel {

// Registers these kernels when a function first needs them (python/cutwheel/ops/_common/node.py). false: torch refused.
bool take_node();

}  // namespace cutwheel
