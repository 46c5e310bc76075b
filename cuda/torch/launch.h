// From a checked call to a kernel: the form of its result, the forms of its operands that selection may be offered, the
// copies that the winner needs, and the launch. GEMMs, scaled and grouped ones and convolutions say only what differs.
#pragma once

#include <optional>
#include <vector>

#include "core/error.h"
#include "dispatch/can_implement.h"
#include "dispatch/run_conv.h"
#include "dispatch/run_gemm.h"
#include "torch/gemm_call.h"

namespace cutwheel {

// Operands as kernels take them. `keep` owns the copies that had to be made.
template <class Args>
struct Prepared {
  Args args;
  GemmRequest request;
  std::vector<Tensor> keep;
  Output d;
  std::vector<Output> stores;  // in the order of their positions
};
using PreparedGemm = Prepared<gemm::GemmArgs>;
using PreparedConv = Prepared<conv2d::ConvArgs>;

inline bool is_native(GemmPlan const& plan, DeviceInfo const& device) { return has_machine_code(*plan.kernel, device); }

// Choices are offered in the order of preference: takes the first with a native kernel, else the first with any.
template <class Choice>
struct FirstNative {
  DeviceInfo const& device;
  std::optional<Choice> chosen = std::nullopt;
  bool native = false;

  void offer(Choice const& choice, std::optional<GemmPlan> const& plan) {
    if (!plan || native) return;
    native = is_native(*plan, device);
    if (native || !chosen) chosen = choice;
  }
};

// Whether there may be a better plan if operands are copied so: none yet, or one through PTX, which is worse than a copy,
// as the driver compiles it first.
bool helps(CopyPolicy copies, GemmRequest const& asked, std::optional<GemmPlan> const& plan, DeviceInfo const& device);

// Chooses the copies for a request with unaligned operands: of those that no kernel takes in place, and of A and B where
// copying is faster.
CopyPolicy copies_of_unaligned(GemmRequest const& request, DeviceInfo const& device);

// Throws the reasons that are left when operands have been copied.
[[noreturn]] void fail_without_kernel(char const* op, GemmRequest const& asked, DeviceInfo const& device);

// Prepares a call's operands, with copies if no kernel takes them as they are, and returns the plan for them. `Call` has a
// function prepare(PreparedGemm&, Call const&, CopyPolicy). Throws if no kernel serves the call.
template <class Call>
GemmPlan plan_gemm(PreparedGemm& prepared, Call const& call) {
  DeviceInfo const& device = device_info(call.device);
  prepared.args.device = &device;
  CopyPolicy first;
  first.operands = first.result = !Call::kTakesUnaligned;
  prepare(prepared, call, first);
  if (!loads_aligned(prepared.request) || !prepared.request.d_aligned) {
    first = copies_of_unaligned(prepared.request, device);
    if (first.operands || first.result) prepare(prepared, call, first);
  }
  std::optional<GemmPlan> const plan = choose_plan(prepared.request);
  if (plan && is_native(*plan, device)) return *plan;
  GemmRequest const asked = prepared.request;
  for (CopyPolicy const copies : {CopyPolicy{true, false}, CopyPolicy{false, true}, CopyPolicy{true, true}}) {
    if (!helps(copies, asked, plan, device)) continue;
    // Padding may change K and, by a copy, the layouts: the plan is that of what came of it.
    prepare(prepared, call, copies);
    if (std::optional<GemmPlan> const found = choose_plan(prepared.request)) return *found;
    prepare(prepared, call, first);
  }
  if (plan) return *plan;
  fail_without_kernel(call.names.op, asked, device);
}

// Enqueues the plan, or the next best where a kernel cannot implement the call. Returns whether one can; throws what else
// went wrong.
template <class Args>
bool launch(Prepared<Args>& prepared, char const* op, GemmPlan plan);

// The same with a kernel that is no choice between several.
bool launch_kernel(KernelDescriptor const& kernel, gemm::GemmArgs& args, char const* op);

// Throws what a launch reported, unless that is ok or not_implementable.
void check_launch(gemm::Status status, char const* op, char const* kernel);

// The work of a checked call. empty_k: the epilogue of zeros.
enum class Work { none, empty_k, gemm };

// Runs a checked call; the results are in `prepared`. `Call` also has a function start(PreparedGemm&, Call&), which
// allocates the results and returns what is to be done, and fill_empty_k(PreparedGemm&, Call const&).
template <class Call>
void run_checked(PreparedGemm& prepared, Call& call) {
  Work const work = start(prepared, call);
  if (work == Work::none) return;
  if (work == Work::empty_k) {
    fill_empty_k(prepared, call);
  } else if (!launch(prepared, call.names.op, plan_gemm(prepared, call))) {
    fail(ErrorKind::not_implemented, call.names.op,
         ": no kernel of this wheel takes a problem of these extents (M=", call.m, ", N=", call.n, ", K=", call.k,
         ", batch=", call.batch, ")");
  }
  finish_output(prepared.d);
  for (Output& store : prepared.stores) finish_output(store);
}

// Checks and runs a call.
template <class Call>
void run_call(PreparedGemm& prepared, Call& call) {
  check(call);
  DeviceScope const scope(call.device);
  run_checked(prepared, call);
}

template <class Call>
Tensor run_call(Call&& call) {
  PreparedGemm prepared;
  run_call(prepared, call);
  return *std::move(prepared.d.tensor);
}

}  // namespace cutwheel
