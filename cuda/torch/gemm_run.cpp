#include "core/error.h"
#include "torch/cuda_shims.h"
#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

void run_product(PreparedGemm& prepared, GemmCall const& call) {
  prepare(prepared, call, {});
  gemm::GemmArgs& args = prepared.args;
  args.device = &device_info(call.device);
  args.stream = current_stream(call.device);
  if (call.k == 0 && !call.epilogue) {
    gemm::Status const status = gemm::run_empty_k(args, prepared.request.d);
    check_launch(status, call.names.op, "splitk_reduce");
    if (!status.good()) fail(ErrorKind::not_implemented, call.names.op, ": ", explain_miss(prepared.request, *args.device));
    return;
  }
  launch_product(prepared, call, plan_call(prepared, call));
}

}  // namespace

void run_call(PreparedGemm& prepared, GemmCall& call) {
  check_call(call);
  DeviceScope const scope(call.device);
  if (call.empty()) {
    make_results(prepared, call);
    return;
  }
  run_product(prepared, call);
  finish_output(prepared.d);
  for (Output& store : prepared.stores) finish_output(store);
}

}  // namespace cutwheel
