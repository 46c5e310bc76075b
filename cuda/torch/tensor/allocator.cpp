#include "torch/tensor/allocator.h"

#include <dlfcn.h>

#include <cstdint>
#include <optional>

#include "torch/tensor/cuda_shims.h"
#include "torch/tensor/shim_errors.h"
#include "torch/tensor/torch_abi.h"

namespace cutwheel {
namespace {

// A c10::Device and a c10::MemoryFormat, as torch_abi.h has others.
struct TorchDevice {
  std::int8_t type, index;
};
enum class TorchMemoryFormat : std::int8_t {};

}  // namespace

void ask_allocator_again() {
  // at::detail::empty_cuda: what a shim calls, which would turn the exception into a code.
  using EmptyCuda = TorchTensor(TorchList, std::int8_t, std::optional<TorchDevice>, std::optional<TorchMemoryFormat>);
  static auto* const empty_cuda = reinterpret_cast<EmptyCuda*>(dlsym(
      RTLD_DEFAULT,
      "_ZN2at6detail10empty_cudaEN3c108ArrayRefIlEENS1_10ScalarTypeESt8optionalINS1_6DeviceEES5_INS1_12MemoryFormatEE"));
  Refused const refused = last_refused();
  auto status = cudaStreamCaptureStatusNone;
  if (!empty_cuda || cudaStreamIsCapturing(current_stream(refused.device), &status) != cudaSuccess ||
      status != cudaStreamCaptureStatusNone) {
    return;
  }
  constexpr std::int8_t kByte = 0, kCuda = 1;
  Tensor const freed;
  adopt(freed,
        empty_cuda({&refused.bytes, 1}, kByte, TorchDevice{kCuda, static_cast<std::int8_t>(refused.device)}, std::nullopt));
}

}  // namespace cutwheel
