// D = alpha * sum over splits of partial + beta * C: the second half of split-K, whose first half is any kernel with
// float32 output run as a batch over slices of K. With no splits at all it is the GEMM of K = 0.
#pragma once

#include "core/cutlass_types.cuh"
#include "elementwise/partial_sums.cuh"

namespace cutwheel::gemm {

// In GemmArgs: a is the partial sums, [splits, batch, M, N] float32, a.batch_stride from split to split,
// b.batch_stride from batch item to batch item, a.leading from row to row (a multiple of 4).
template <Arch arch_, DType partial_, DType d_>
struct SplitkReduce : PartialSums {
  static_assert(partial_ == DType::f32);
  using ElementD = Element<d_>;
  static constexpr int kSharedStorageBytes = 0;

  struct Params {
    float const* partial;
    ElementD const* c;
    ElementD* d;
    std::int64_t split_stride, batch_stride, leading;
    std::int64_t c_batch_stride, c_leading, d_batch_stride, d_leading;
    int m, n, splits;
    float alpha, beta;
  };

  struct alignas(sizeof(ElementD) * kVector) Vector {
    ElementD value[kVector];
  };

  __device__ static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    int const column = (blockIdx.x * kMaxThreads + threadIdx.x) * kVector;
    if (column >= p.n) return;
    float const* const partial = p.partial + blockIdx.z * p.batch_stride + column;
    ElementD const* const c = p.c + blockIdx.z * p.c_batch_stride + column;
    ElementD* const d = p.d + blockIdx.z * p.d_batch_stride + column;
    bool const whole = column + kVector <= p.n;
    for (std::int64_t row = blockIdx.y; row < p.m; row += gridDim.y) {
      float sum[kVector] = {};
      add(partial + row * p.leading, p.split_stride, p.splits, sum);
      Vector out;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float value = p.alpha * sum[i];
        if (p.beta != 0.f && column + i < p.n) value += p.beta * static_cast<float>(c[row * p.c_leading + i]);
        out.value[i] = static_cast<ElementD>(value);
      }
      if (whole) {
        *reinterpret_cast<Vector*>(d + row * p.d_leading) = out;
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (column + i < p.n) d[row * p.d_leading + i] = out.value[i];
        }
      }
    }
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    Params const params{static_cast<float const*>(args.a.data),
                        static_cast<ElementD const*>(args.c.data),
                        static_cast<ElementD*>(args.d),
                        args.a.batch_stride,
                        args.b.batch_stride,
                        args.a.leading,
                        args.c.batch_stride,
                        args.c.leading,
                        args.d_batch_stride,
                        args.d_leading,
                        args.m,
                        args.n,
                        args.splits,
                        args.alpha,
                        args.beta};
    return launch_kernel(kernel, shape(args, args.batch, arch_), params, args.stream);
  }
};

}  // namespace cutwheel::gemm
