#include "torch/launch.h"

#include <algorithm>

#include "torch/explain/choice_log.h"
#include "torch/tensor/cuda_shims.h"

namespace cutwheel {

bool helps(CopyPolicy copies, GemmRequest const& asked, std::optional<GemmPlan> const& plan, DeviceInfo const& device) {
  Layouts const copied = copied_layouts(asked.grouping, asked.a);
  // Either may take from an operand what it had of the other, so both are tried in the end.
  bool const both = copies.layouts && copies.extents;
  bool const changes_nothing = copies.layouts ? copied == Layouts{asked.layout_a, asked.layout_b} : asked.extents_aligned;
  if (!both && changes_nothing) return false;
  GemmRequest other = asked;
  if (copies.layouts) other.layout_a = copied.a, other.layout_b = copied.b;
  other.extents_aligned = other.extents_aligned || copies.extents;
  std::optional<GemmPlan> const found = choose_plan(other);
  return found && (!plan || is_native(*found, device));
}

namespace {

// Time to copy A or B, of so many elements of 16 bits, which are read and written. The constants are estimates: the kernel
// was not timed alone.
double copy_us(std::int64_t elements, DeviceInfo const& device) {
  constexpr double kLaunch = 3, kReached = 0.8;
  return kLaunch + 4 * static_cast<double>(elements) / (kReached * device.memory_gb_per_s * 1e3);
}

}  // namespace

CopyPolicy copies_of_unaligned(GemmRequest const& request, DeviceInfo const& device) {
  CopyPolicy copies;
  copies.operands = copies.result = false;
  GemmRequest aligned = request;
  aligned.a_aligned = aligned.b_aligned = true;
  // Split-K reads float32 by aligned kernels only, and writes aligned rows.
  bool const is_long = request.k > kLongestSum;
  std::optional<GemmPlan> plan = is_long ? std::nullopt : choose_plan(aligned);
  copies.result = !request.d_aligned && (!plan || !is_native(*plan, device));
  if (loads_aligned(request)) return copies;
  if (copies.result) aligned.d_aligned = true, plan = choose_plan(aligned);
  GemmRequest as_they_lie = request;
  as_they_lie.d_aligned = aligned.d_aligned;
  std::optional<GemmPlan> const direct = is_long ? std::nullopt : choose_plan(as_they_lie);
  double copied_us = plan ? plan->predicted_us : 0;
  if (!request.a_aligned) copied_us += copy_us(std::int64_t{request.batch} * request.m * request.k, device);
  if (!request.b_aligned) copied_us += copy_us(std::int64_t{request.batch} * request.k * request.n, device);
  copies.operands = !direct || !is_native(*direct, device) || (plan && copied_us < direct->predicted_us);
  return copies;
}

void fail_without_kernel(char const* op, GemmRequest const& asked, DeviceInfo const& device) {
  Layouts const copied = copied_layouts(asked.grouping, asked.a);
  GemmRequest easiest = asked;
  easiest.layout_a = copied.a, easiest.layout_b = copied.b, easiest.extents_aligned = true;
  easiest.a_aligned = easiest.b_aligned = easiest.d_aligned = true;
  fail(ErrorKind::not_implemented, op, ": ", explain_miss(easiest, device));
}

namespace {

// Freed after the launch is enqueued: torch's allocator is ordered by stream.
using Workspace = std::optional<Tensor>;

void allocate(Workspace& workspace, std::int64_t bytes, gemm::GemmArgs& args) {
  if (bytes <= 0) return;
  workspace = empty_bytes(bytes, args.device->ordinal);
  args.workspace = workspace->data_ptr();
}

}  // namespace

template <class Args>
bool launch(Prepared<Args>& prepared, char const* op, GemmPlan plan) {
  Args& args = prepared.args;
  args.stream = current_stream(args.device->ordinal);
  Workspace workspace;
  auto const attempt = [&] {
    allocate(workspace, workspace_bytes(plan, args), args);
    return run(plan, args);
  };
  gemm::Status status = attempt();
  if (status.good() && !choices_are_told()) return true;
  auto const refused = [&] { return status.code == gemm::StatusCode::not_implementable; };
  for (bool const tensor_maps : {true, false}) {
    if (!refused()) break;
    GemmRequest request = prepared.request;
    // Kernels of convolutions refuse what tensor maps have no bits for: then those without, through PTX if need be.
    if (!tensor_maps && (request.direction == Direction::none || !request.tensor_maps)) break;
    request.tensor_maps = request.tensor_maps && tensor_maps;
    for (GemmPlan const& next : rank_plans(request, *args.device)) {
      if (next.kernel == plan.kernel) continue;
      plan = next;
      status = attempt();
      if (!refused()) break;
    }
  }
  check_launch(status, op, plan.kernel->name);
  if (status.good()) tell_choice(op, prepared.request, plan, *args.device);
  return status.good();
}

template bool launch(PreparedGemm& prepared, char const* op, GemmPlan plan);
template bool launch(PreparedConv& prepared, char const* op, GemmPlan plan);

bool launch_kernel(KernelDescriptor const& kernel, gemm::GemmArgs& args, char const* op) {
  args.stream = current_stream(args.device->ordinal);
  Workspace workspace;
  allocate(workspace, kernel.workspace_bytes(args), args);
  gemm::Status const status = kernel.launch(args);
  if (status.good() && !choices_are_told()) return true;
  check_launch(status, op, kernel.name);
  if (status.good()) tell_kernel(op, kernel, args.m, args.n, args.k);
  return status.good();
}

void check_launch(gemm::Status status, char const* op, char const* kernel) {
  if (status.code == gemm::StatusCode::cuda_error) {
    fail(ErrorKind::runtime, op, ": launching ", kernel,
         " failed: ", cudaGetErrorString(static_cast<cudaError_t>(status.detail)));
  }
  if (status.code == gemm::StatusCode::tensor_map_error) {
    fail(ErrorKind::runtime, op, ": ", kernel, ": the driver refused a tensor map (CUresult ", status.detail, ")");
  }
}

}  // namespace cutwheel
