#include "core/sm_limit.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace cutwheel {
namespace {

std::atomic<int> g_limit{0};

// at::Context::_SMCarveout_EXPERIMENTAL, which the stable ABI lacks. Python looks it up.
using ReadCarveout = std::optional<int> (*)(void const* context);
std::atomic<void const*> g_torch_context{nullptr};
std::atomic<ReadCarveout> g_read_carveout{nullptr};

int carveout() {
  ReadCarveout const read = g_read_carveout.load(std::memory_order_acquire);
  return read ? std::max(read(g_torch_context.load(std::memory_order_relaxed)).value_or(0), 0) : 0;
}

// Null where the driver is older than the function.
template <class Signature>
Signature* find(char const* name, int version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  cudaError_t const error =
      cudaGetDriverEntryPointByVersion(name, &entry, static_cast<unsigned>(version), cudaEnableDefault, &found);
#else
  static_cast<void>(version);
  cudaError_t const error = cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Signature*>(entry) : nullptr;
}

struct Functions {
  CUresult (*get_current)(CUcontext*) = find<CUresult(CUcontext*)>("cuCtxGetCurrent", 12000);
  CUresult (*get_device)(CUdevice*) = find<CUresult(CUdevice*)>("cuCtxGetDevice", 12000);
  CUresult (*get_id)(CUcontext, unsigned long long*) = find<CUresult(CUcontext, unsigned long long*)>("cuCtxGetId", 12000);
  CUresult (*get_affinity)(CUexecAffinityParam*, CUexecAffinityType) =
      find<CUresult(CUexecAffinityParam*, CUexecAffinityType)>("cuCtxGetExecAffinity", 12000);
  CUresult (*get_resource)(CUcontext, CUdevResource*, CUdevResourceType) =
      find<CUresult(CUcontext, CUdevResource*, CUdevResourceType)>("cuCtxGetDevResource", 12040);
};

struct ContextSms {
  CUcontext context = nullptr;
  unsigned long long id = 0;
  int device = -1;
  int sms = 0;  // 0: all
};

// Green contexts tell their SMs as a resource, contexts under MPS as their affinity.
int sms_of_current(Functions const& driver, CUcontext context, int all) {
  int sms = all;
  // A driver may know a longer struct than the header has.
  struct {
    CUdevResource known;
    unsigned char more[512];
  } resource{};
  if (driver.get_resource && driver.get_resource(context, &resource.known, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS &&
      resource.known.sm.smCount > 0) {
    sms = std::min(sms, static_cast<int>(resource.known.sm.smCount));
  }
  CUexecAffinityParam affinity{};
  if (driver.get_affinity && driver.get_affinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT) == CUDA_SUCCESS &&
      affinity.param.smCount.val > 0) {
    sms = std::min(sms, static_cast<int>(affinity.param.smCount.val));
  }
  return sms < all ? sms : 0;
}

// The SMs of the context that is current on this thread, asked once for each context that a thread changes to. The id
// tells a context with fewer SMs from another that has got its address; the primary context keeps its own.
int sms_of_context(DeviceInfo const& whole) {
  static Functions const driver;
  thread_local ContextSms known;
  CUcontext context = nullptr;
  if (!driver.get_current || driver.get_current(&context) != CUDA_SUCCESS || !context) return whole.sm_count;
  unsigned long long id = 0;
  bool is_known = context == known.context;
  if (!is_known || known.sms) {
    if (driver.get_id) driver.get_id(context, &id);
    is_known = is_known && id == known.id;
  }
  if (!is_known) {
    CUdevice device = -1;
    if (!driver.get_device || driver.get_device(&device) != CUDA_SUCCESS || device != whole.ordinal) return whole.sm_count;
    known = {context, id, device, sms_of_current(driver, context, whole.sm_count)};
  }
  return known.device == whole.ordinal && known.sms ? known.sms : whole.sm_count;
}

}  // namespace

int sm_limit() { return g_limit.load(std::memory_order_relaxed); }

void set_sm_limit(std::int64_t sms) {
  g_limit.store(static_cast<int>(std::clamp<std::int64_t>(sms, 0, 1 << 20)), std::memory_order_relaxed);
}

void set_sm_carveout_source(std::int64_t context, std::int64_t getter) {
  g_torch_context.store(reinterpret_cast<void const*>(context), std::memory_order_relaxed);
  g_read_carveout.store(reinterpret_cast<ReadCarveout>(getter), std::memory_order_release);
}

bool leaves_sms(int sm_count) { return (sm_limit() && sm_count == sm_limit()) || carveout() > 0; }

bool leaves_sms() { return sm_limit() > 0 || carveout() > 0; }

int left_of(int sm_count) {
  int const left = sm_count - carveout(), limit = sm_limit();
  return std::max(1, limit ? std::min(left, limit) : left);
}

DeviceInfo const& limited_device_info(DeviceInfo const& whole) {
  int const sms = left_of(sms_of_context(whole));
  if (sms >= whole.sm_count) return whole;
  thread_local DeviceInfo const* last = nullptr;
  if (last && last->ordinal == whole.ordinal && last->sm_count == sms) return *last;
  static std::mutex mutex;
  static std::map<std::pair<int, int>, std::unique_ptr<DeviceInfo>> limited;
  std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<DeviceInfo>& info = limited[{whole.ordinal, sms}];
  if (!info) {
    info = std::make_unique<DeviceInfo>(whole);
    info->sm_count = sms;
  }
  last = info.get();
  return *info;
}

}  // namespace cutwheel
