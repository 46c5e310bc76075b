// The gradient of a convolution's input from the products of each position with each tap: a pixel is the sum over its taps,
// in their order. Caffe's name for it is col2im.
#pragma once

#include <cutlass/fast_math.h>

#include <algorithm>

#include "core/args/col2im.h"
#include "core/col2im_axis.h"
#include "core/cutlass_types.cuh"
#include "core/launch.h"

namespace cutwheel::conv2d {

using gemm::Element;
using gemm::LaunchShape;
using gemm::Status;

// The GemmArgs are Col2imArgs.
template <Arch arch_, DType columns_, DType d_>
struct Col2im {
  using ElementC = Element<columns_>;
  using ElementD = Element<d_>;
  static constexpr int kVector = 16 / sizeof(ElementC);
  static constexpr int kMaxThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSharedStorageBytes = 0;

  struct Params {
    ElementC const* columns;
    ElementD* image;
    Col2imAxis h, w;
    cutlass::FastDivmod stride_h, stride_w, vectors, width, height;
    std::int64_t leading;
    int items, channels, own_channels;
    // Patches are copied, not summed: elements of a copy (0: pixels are sums of taps), elements of a row of a patch, and
    // copies of a row of the image.
    int patch_vector;
    cutlass::FastDivmod patch_row, row_vectors;
  };
  template <class E, int count>
  struct alignas(sizeof(E) * count) Vector {
    E value[count];
  };

  struct Tap {
    int tap, position;
  };

  __device__ static Tap first_of(Col2imAxis const& axis, cutlass::FastDivmod const& stride, int pixel) {
    int quotient, residue;
    stride(quotient, residue, pixel + axis.pad);
    int const tap = axis.first[residue];
    if (tap < 0) return {axis.taps, 0};
    return {tap, (pixel + axis.pad - tap * axis.dilation) / axis.stride};
  }

  template <int vector>
  __device__ static void sum(Params const& p, int item) {
    int pixel, piece, line, column, image, row;
    p.vectors(pixel, piece, item);
    p.width(line, column, pixel);
    p.height(image, row, line);
    float sums[vector] = {};
    Tap const first = first_of(p.w, p.stride_w, column);
    ElementC const* const from = p.columns + piece * vector;
    for (Tap h = first_of(p.h, p.stride_h, row); h.tap < p.h.taps; h.tap += p.h.step, h.position -= p.h.positions_step) {
      if (static_cast<unsigned>(h.position) >= static_cast<unsigned>(p.h.positions)) continue;
      std::int64_t const line_of_positions = (std::int64_t{image} * p.h.positions + h.position) * p.w.positions;
      for (Tap w = first; w.tap < p.w.taps; w.tap += p.w.step, w.position -= p.w.positions_step) {
        if (static_cast<unsigned>(w.position) >= static_cast<unsigned>(p.w.positions)) continue;
        auto const x = *reinterpret_cast<Vector<ElementC, vector> const*>(
            from + (line_of_positions + w.position) * p.leading + (h.tap * p.w.taps + w.tap) * p.channels);
#pragma unroll
        for (int i = 0; i < vector; ++i) sums[i] += static_cast<float>(x.value[i]);
      }
    }
    ElementD* const to = p.image + std::int64_t{pixel} * p.own_channels + piece * vector;
#pragma unroll
    for (int i = 0; i < vector; ++i) {
      if (piece * vector + i < p.own_channels) to[i] = static_cast<ElementD>(sums[i]);
    }
  }

  // Copies rows of patches, which are contiguous in the columns and in the image, since patches do not overlap. Pixels
  // behind the last patch become zeros.
  template <int vector>
  __device__ static void copy_patches(Params const& p, int item) {
    int line, piece, image, row, patch, tap, column, within;
    p.row_vectors(line, piece, item);
    p.height(image, row, line);
    p.stride_h(patch, tap, row);
    p.patch_row(column, within, piece * vector);
    Vector<ElementC, vector> from{};
    if (patch < p.h.positions && column < p.w.positions) {
      std::int64_t const position = (std::int64_t{image} * p.h.positions + patch) * p.w.positions + column;
      from = *reinterpret_cast<Vector<ElementC, vector> const*>(p.columns + position * p.leading +
                                                                tap * p.patch_row.divisor + within);
    }
    Vector<ElementD, vector> to;
#pragma unroll
    for (int i = 0; i < vector; ++i) to.value[i] = static_cast<ElementD>(static_cast<float>(from.value[i]));
    *reinterpret_cast<Vector<ElementD, vector>*>(p.image + std::int64_t{item} * vector) = to;
  }

  __device__ static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    int const item = static_cast<int>(blockIdx.x * kMaxThreads + threadIdx.x);
    if (item >= p.items) return;
    if (p.patch_vector == kVector) {
      copy_patches<kVector>(p, item);
    } else if (p.patch_vector == 4) {
      copy_patches<4>(p, item);
    } else if (p.patch_vector == 2) {
      copy_patches<2>(p, item);
    } else if (p.patch_vector == 1) {
      copy_patches<1>(p, item);
    } else if (p.channels % kVector == 0) {
      sum<kVector>(p, item);
    } else {
      sum<1>(p, item);
    }
  }

  // The longest vectors of which both are whole numbers.
  static int patch_vector_of(int patch_row, int row) {
    int vector = kVector;
    while (patch_row % vector || row % vector) vector /= 2;
    return vector;
  }

  static std::int64_t workspace_bytes(gemm::GemmArgs const&) { return 0; }

  static Status launch(gemm::GemmArgs const& given, void const* kernel) {
    auto const& args = static_cast<Col2imArgs const&>(given);
    ConvProblem const& x = args.conv;
    int const vector = args.channels % kVector == 0 ? kVector : 1, pieces = ceil_div(x.c, vector);
    int const patch_row = x.s * x.c, row = x.w * x.c, patch_vector = args.is_patches ? patch_vector_of(patch_row, row) : 0;
    Params const p{static_cast<ElementC const*>(args.a.data),
                   static_cast<ElementD*>(args.d),
                   {x.stride_h, x.pad_h, x.dilation_h, x.r, x.p},
                   {x.stride_w, x.pad_w, x.dilation_w, x.s, x.q},
                   cutlass::FastDivmod(x.stride_h),
                   cutlass::FastDivmod(x.stride_w),
                   cutlass::FastDivmod(pieces),
                   cutlass::FastDivmod(x.w),
                   cutlass::FastDivmod(x.h),
                   args.a.leading,
                   args.is_patches ? x.images * x.h * (row / patch_vector) : x.images * x.h * x.w * pieces,
                   args.channels,
                   x.c,
                   patch_vector,
                   cutlass::FastDivmod(patch_row),
                   cutlass::FastDivmod(row / std::max(patch_vector, 1))};
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(ceil_div(p.items, kMaxThreads)));
    shape.block = dim3(kMaxThreads);
    shape.dependent_launch = arch_ == Arch::sm90a;
    return launch_kernel(kernel, shape, p, args.stream);
  }
};

}  // namespace cutwheel::conv2d
