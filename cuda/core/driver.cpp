#include "core/driver.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>

#include "build_info.h"  // generated
#include "core/error.h"

namespace cutwheel {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);
using EncodeIm2col = decltype(&cuTensorMapEncodeIm2col);

// cuTensorMapEncode* have had the signatures that CUTLASS calls since CUDA 12.
constexpr int kDriverVersion = 12000;

// Once the first is there, the second is, too.
std::atomic<EncodeTiled> g_encode_tiled{nullptr};
std::atomic<EncodeIm2col> g_encode_im2col{nullptr};
thread_local int t_tensor_map_error = 0;

template <class Function>
Function resolve(char const* name, cudaError_t* error) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  *error = cudaGetDriverEntryPointByVersion(name, &entry, kDriverVersion, cudaEnableDefault, &found);
#else  // asks for what the runtime's own version has, which is the same signature throughout CUDA 12
  static_assert(CUDART_VERSION >= kDriverVersion);
  *error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  if (*error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Function>(entry);
}

// For the launcher, which then does not launch.
CUresult keep(CUresult result) {
  if (result != CUDA_SUCCESS) t_tensor_map_error = static_cast<int>(result);
  return CUDA_SUCCESS;
}

std::string cuda_version(int version) { return concat(version / 1000, '.', version % 1000 / 10); }

}  // namespace

DriverStatus driver_status() {
  DriverStatus status;
  status.required = kRequiredDriverCuda;
  cudaError_t error = cudaDriverGetVersion(&status.driver_version);
  if (error != cudaSuccess || status.driver_version == 0) {
    cudaGetLastError();
    status.driver_version = 0;
    status.message = concat("no CUDA driver is installed (libcuda.so.1 was not found); this wheel needs ", kRequiredDriver);
    return status;
  }
  if (status.driver_version < status.required) {
    status.message = concat("the installed CUDA driver supports CUDA ", cuda_version(status.driver_version),
                            ", but this wheel needs ", kRequiredDriver, ": update the driver");
    return status;
  }
  if (!g_encode_tiled.load(std::memory_order_acquire)) {
    char const* name = "cuTensorMapEncodeTiled";
    auto const tiled = resolve<EncodeTiled>(name, &error);
    EncodeIm2col im2col = nullptr;
    if (tiled) {
      name = "cuTensorMapEncodeIm2col";
      im2col = resolve<EncodeIm2col>(name, &error);
    }
    if (!im2col) {
      status.message = concat("the CUDA driver (CUDA ", cuda_version(status.driver_version), ") has no ", name,
                              error == cudaSuccess ? "" : ": ", error == cudaSuccess ? "" : cudaGetErrorString(error),
                              "; reinstall ", kRequiredDriver);
      cudaGetLastError();
      return status;
    }
    g_encode_im2col.store(im2col, std::memory_order_relaxed);
    g_encode_tiled.store(tiled, std::memory_order_release);
  }
  status.ok = true;
  return status;
}

void require_driver() {
  if (g_encode_tiled.load(std::memory_order_acquire)) return;
  if (DriverStatus status = driver_status(); !status.ok) fail(ErrorKind::runtime, status.message);
}

void* find_driver_function(char const* name) {
  require_driver();
  cudaError_t error = cudaSuccess;
  auto const found = resolve<void*>(name, &error);
  if (!found) {
    cudaGetLastError();
    fail(ErrorKind::runtime, "the CUDA driver has no ", name, "; reinstall ", kRequiredDriver);
  }
  return found;
}

int take_tensor_map_error() {
  int const error = t_tensor_map_error;
  t_tensor_map_error = 0;
  return error;
}

}  // namespace cutwheel

// CUTLASS calls the driver by this name (CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL). This hidden function is what the call
// finds inside our library: the real one was looked up once, instead of once for each descriptor as CUTLASS would. A
// failure is kept for the launcher, which then does not launch: CUTLASS itself would print, and launch with a bad
// descriptor.
extern "C" __attribute__((visibility("hidden"))) CUresult CUDAAPI cuTensorMapEncodeTiled(
    CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, cuuint64_t const* dims,
    cuuint64_t const* strides, cuuint32_t const* box, cuuint32_t const* element_strides, CUtensorMapInterleave interleave,
    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  auto const encode = cutwheel::g_encode_tiled.load(std::memory_order_acquire);
  return cutwheel::keep(
      encode ? encode(map, type, rank, address, dims, strides, box, element_strides, interleave, swizzle, promotion, fill)
             : CUDA_ERROR_NOT_INITIALIZED);
}

// The same for convolutions, whose kernels are our own.
extern "C" __attribute__((visibility("hidden"))) CUresult CUDAAPI
cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, cuuint64_t const* dims,
                        cuuint64_t const* strides, int const* lower_corner, int const* upper_corner, cuuint32_t channels,
                        cuuint32_t pixels, cuuint32_t const* element_strides, CUtensorMapInterleave interleave,
                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  auto const encode = cutwheel::g_encode_im2col.load(std::memory_order_acquire);
  return cutwheel::keep(encode ? encode(map, type, rank, address, dims, strides, lower_corner, upper_corner, channels,
                                        pixels, element_strides, interleave, swizzle, promotion, fill)
                               : CUDA_ERROR_NOT_INITIALIZED);
}
