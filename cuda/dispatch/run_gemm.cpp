#include "dispatch/run_gemm.h"

#include <algorithm>

namespace cutwheel::gemm {
namespace {

// grid.z of the kernels that put the batch there.
constexpr int kMaxBatch = 65535;

// Rows of partial sums start on 16 bytes.
std::int64_t partial_leading(GemmArgs const& args) { return round_up<std::int64_t>(args.n, 4); }

void const* advance(void const* data, std::int64_t elements, int bytes) {
  return data ? static_cast<char const*>(data) + elements * bytes : nullptr;
}

void* advance(void* data, std::int64_t elements, int bytes) {
  return const_cast<void*>(advance(static_cast<void const*>(data), elements, bytes));
}

// Puts alpha, beta and C where the kernel's epilogue looks for them. That depends on the kernel, not on the request: a
// kernel that adds a matrix also serves GEMMs with a bias (leading 0) or without C (beta == 0).
void place_c(KernelDescriptor const& kernel, GemmArgs& args) {
  EpilogueValue c;
  if (args.beta != 0) {
    c.data = const_cast<void*>(args.c.data);
    c.leading = args.c.leading;
    c.batch_stride = args.c.batch_stride;
  }
  switch (info_of(kernel.epilogue).addend) {
    case Addend::none: args.epilogue[0].value = args.alpha; return;
    case Addend::row:
      args.epilogue[0].value = args.alpha;
      args.epilogue[1] = c;
      return;
    case Addend::matrix:
      args.epilogue[0].value = args.alpha;
      args.epilogue[1].value = args.beta;
      args.epilogue[2] = c;
      return;
    case Addend::other: return;  // the caller has filled them
  }
}

Status launch(KernelDescriptor const& kernel, GemmArgs& args) {
  place_c(kernel, args);
  return kernel.launch(args);
}

// The partial sums of slices of K. Kernels that do not take slices see a batch, whose stride runs along K, and the rest of
// a K that is not so many times a slice.
Status run_slices(KernelDescriptor const& kernel, GemmArgs partial, int slice, DType a) {
  if (takes_slices(kernel)) return launch(kernel, partial);
  int const k = partial.k, whole = k / slice;
  partial.k = slice;
  partial.batch = whole;
  partial.splits = 1;
  partial.a.batch_stride = kernel.layout_a == Layout::row ? slice : slice * partial.a.leading;
  partial.b.batch_stride = kernel.layout_b == Layout::row ? slice * partial.b.leading : slice;
  if (Status const status = launch(kernel, partial); !status.good()) return status;
  int const rest = k - whole * slice;
  if (rest == 0) return {};
  partial.k = rest;
  partial.batch = 1;
  partial.a.data = advance(partial.a.data, whole * partial.a.batch_stride, element_bytes(a));
  partial.b.data = advance(partial.b.data, whole * partial.b.batch_stride, element_bytes(a));
  partial.d = advance(partial.d, whole * partial.d_batch_stride, sizeof(float));
  return launch(kernel, partial);
}

Status run_split(GemmPlan const& plan, GemmArgs const& args, DType a) {
  std::int64_t const leading = partial_leading(args), stride = leading * args.m;
  int const slice = split_slice(*plan.kernel, args.k, plan.splits);
  GemmArgs partial = args;
  partial.c = {};
  partial.d = args.workspace;
  partial.d_leading = leading;
  partial.d_batch_stride = stride;
  partial.alpha = 1;
  partial.beta = 0;
  partial.workspace = nullptr;
  if (Status const status = run_slices(*plan.kernel, partial, slice, a); !status.good()) return status;

  GemmArgs sum = args;
  sum.a = {args.workspace, leading, stride};
  sum.b = {};
  sum.splits = ceil_div(args.k, slice);
  return plan.reduce->launch(sum);
}

// Arguments for `count` problems of a batch, from the first one on.
GemmArgs problem_of(GemmArgs const& args, EpilogueInfo const& epilogue, int first, int count, DType a, DType d) {
  GemmArgs part = args;
  part.batch = count;
  part.a.data = advance(args.a.data, first * args.a.batch_stride, element_bytes(a));
  part.b.data = advance(args.b.data, first * args.b.batch_stride, element_bytes(a));
  part.c.data = advance(args.c.data, first * args.c.batch_stride, element_bytes(d));
  part.d = advance(args.d, first * args.d_batch_stride, element_bytes(d));
  for (int i = 0; i < epilogue.count; ++i) {
    EpilogueValue const& value = args.epilogue[i];
    part.epilogue[i].data = advance(value.data, first * value.batch_stride, element_bytes(epilogue.operands[i], d));
  }
  return part;
}

}  // namespace

std::int64_t workspace_bytes(GemmPlan const& plan, GemmArgs const& args) {
  if (plan.reduce) return partial_leading(args) * args.m * plan.splits * static_cast<std::int64_t>(sizeof(float));
  GemmArgs planned = args;
  planned.raster = plan.raster;
  planned.swizzle = plan.swizzle;
  planned.splits = plan.splits;
  place_c(*plan.kernel, planned);
  return plan.kernel->workspace_bytes(planned);
}

Status run(GemmPlan const& plan, GemmArgs args) {
  args.raster = plan.raster;
  args.swizzle = std::clamp(plan.swizzle, 1, kMaxSwizzle);
  args.splits = plan.splits;
  KernelDescriptor const &kernel = *plan.kernel, &last = plan.reduce ? *plan.reduce : kernel;
  EpilogueInfo const& epilogue = info_of(last.epilogue);
  DType const a = kernel.a, d = last.d;
  if (plan.reduce) {
    // One problem after the other, in the same workspace.
    for (int i = 0; i < args.batch; ++i) {
      Status const status = run_split(plan, args.batch == 1 ? args : problem_of(args, epilogue, i, 1, a, d), a);
      if (!status.good()) return status;
    }
    return {};
  }
  if (args.batch <= kMaxBatch || is_persistent(kernel)) return launch(kernel, args);
  for (int first = 0; first < args.batch; first += kMaxBatch) {
    GemmArgs chunk = problem_of(args, epilogue, first, std::min(kMaxBatch, args.batch - first), a, d);
    if (Status const status = launch(kernel, chunk); !status.good()) return status;
  }
  return {};
}

Status run_empty_k(GemmArgs const& args, DType d) {
  KernelDescriptor const* const kernel = find_reduce_kernel(*args.device, d);
  if (!kernel) return {StatusCode::not_implementable, 0};
  GemmArgs chunk = args;
  chunk.splits = 0;
  for (int first = 0; first < args.batch; first += kMaxBatch) {
    chunk.batch = std::min(kMaxBatch, args.batch - first);
    chunk.c.data = advance(args.c.data, first * args.c.batch_stride, element_bytes(d));
    chunk.d = advance(args.d, first * args.d_batch_stride, element_bytes(d));
    if (Status const status = kernel->launch(chunk); !status.good()) return status;
  }
  return {};
}

}  // namespace cutwheel::gemm
