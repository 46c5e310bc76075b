#include "gemm/gemm.h"

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

Status run_split(GemmPlan const& plan, GemmArgs const& args) {
  std::int64_t const leading = partial_leading(args), stride = leading * args.m;
  int const slice = args.k / plan.splits;

  // Slices of K become a batch: the stride from one to the next runs along K.
  GemmArgs partial = args;
  partial.k = slice;
  partial.batch = plan.splits;
  partial.a.batch_stride = plan.row->layout_a == Layout::row ? slice : slice * args.a.leading;
  partial.b.batch_stride = plan.row->layout_b == Layout::row ? slice * args.b.leading : slice;
  partial.c = {};
  partial.d = args.workspace;
  partial.d_leading = leading;
  partial.d_batch_stride = stride;
  partial.alpha = 1;
  partial.beta = 0;
  partial.splits = 1;
  partial.workspace = nullptr;
  if (Status const status = plan.row->launch(partial); !status.good()) return status;

  GemmArgs sum = args;
  sum.a = {args.workspace, leading, stride};
  sum.b = {};
  sum.splits = plan.splits;
  return plan.reduce->launch(sum);
}

}  // namespace

std::int64_t workspace_bytes(GemmPlan const& plan, GemmArgs const& args) {
  if (plan.reduce) return partial_leading(args) * args.m * plan.splits * static_cast<std::int64_t>(sizeof(float));
  GemmArgs planned = args;
  planned.raster = plan.raster;
  planned.swizzle = plan.swizzle;
  planned.splits = plan.splits;
  return plan.row->workspace_bytes(planned);
}

Status run(GemmPlan const& plan, GemmArgs args, DType a, DType d) {
  args.raster = plan.raster;
  args.swizzle = plan.swizzle;
  args.splits = plan.splits;
  if (plan.reduce) return run_split(plan, args);
  if (args.batch <= kMaxBatch || plan.row->family == Family::sm90_warpspecialized) return plan.row->launch(args);
  GemmArgs chunk = args;
  for (int first = 0; first < args.batch; first += kMaxBatch) {
    chunk.batch = std::min(kMaxBatch, args.batch - first);
    chunk.a.data = advance(args.a.data, first * args.a.batch_stride, element_bytes(a));
    chunk.b.data = advance(args.b.data, first * args.b.batch_stride, element_bytes(a));
    chunk.c.data = advance(args.c.data, first * args.c.batch_stride, element_bytes(d));
    chunk.d = const_cast<void*>(advance(args.d, first * args.d_batch_stride, element_bytes(d)));
    if (Status const status = plan.row->launch(chunk); !status.good()) return status;
  }
  return {};
}

Status run_empty_k(GemmArgs const& args, DType d) {
  KernelRow const* const row = find_reduce_row(*args.device, d);
  if (!row) return {StatusCode::not_implementable, 0};
  GemmArgs chunk = args;
  chunk.splits = 0;
  for (int first = 0; first < args.batch; first += kMaxBatch) {
    chunk.batch = std::min(kMaxBatch, args.batch - first);
    chunk.c.data = advance(args.c.data, first * args.c.batch_stride, element_bytes(d));
    chunk.d = const_cast<void*>(advance(args.d, first * args.d_batch_stride, element_bytes(d)));
    if (Status const status = row->launch(chunk); !status.good()) return status;
  }
  return {};
}

}  // namespace cutwheel::gemm
