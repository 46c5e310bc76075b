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
  using Sum = cutlass::Array<float, kVector>;

  __device__ static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    float const* const partial = p.partial + blockIdx.z * p.batch_stride;
    auto const store = [&](std::int64_t row, int column, Sum const& sum) {
      ElementD const* const c = p.c + blockIdx.z * p.c_batch_stride + row * p.c_leading + column;
      ElementD* const d = p.d + blockIdx.z * p.d_batch_stride + row * p.d_leading + column;
      Vector out;
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        float value = p.alpha * sum[i];
        if (p.beta != 0.f && column + i < p.n) value += p.beta * static_cast<float>(c[i]);
        out.value[i] = static_cast<ElementD>(value);
      }
      if (column + kVector <= p.n) {
        *reinterpret_cast<Vector*>(d) = out;
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (column + i < p.n) d[i] = out.value[i];
        }
      }
    };
    for_each_sum<Sum>(partial, p.leading, p.split_stride, p.m, p.n, p.splits, store);
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
