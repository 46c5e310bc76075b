#include "dispatch/environment.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/error.h"

namespace cutwheel {
namespace {

std::mutex g_mutex;
Environment g_environment;
std::atomic<unsigned> g_generation{0};  // 0: not read yet

Environment read_environment() {
  Environment environment;
  if (char const* value = std::getenv("CUTWHEEL_ARCH"); value && *value) {
    for (Arch arch : {Arch::sm80, Arch::sm89, Arch::sm90a}) {
      if (std::strcmp(value, name_of(arch)) == 0) environment.arch = arch;
    }
    if (!environment.arch) {
      fail(ErrorKind::value, "CUTWHEEL_ARCH is \"", value, "\"; expected sm80, sm89 or sm90a, or leave it unset");
    }
  }
  if (char const* value = std::getenv("CUTWHEEL_KERNEL")) environment.kernel = value;
  bool const known =
      environment.kernel.empty() || std::any_of(kKernels, kKernels + kKernelCount, [&](KernelDescriptor const& descriptor) {
        return is_gemm(descriptor) && environment.kernel == descriptor.name;
      });
  if (!known) {
    fail(ErrorKind::value, "CUTWHEEL_KERNEL is \"", environment.kernel,
         "\", and this wheel has no such kernel to choose for a product; cutwheel.kernels() lists them");
  }
  return environment;
}

}  // namespace

Environment environment() {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_generation.load() == 0) {
    g_environment = read_environment();
    g_generation.store(1);
  }
  return g_environment;
}

void reload_environment() {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_environment = read_environment();
  g_generation.fetch_add(g_generation.load() == 0 ? 2 : 1);
}

void forget_choices() {
  std::lock_guard<std::mutex> lock(g_mutex);
  // Before the environment was read there is nothing to forget, and 0 has to go on saying so.
  if (g_generation.load() != 0) g_generation.fetch_add(1);
}

unsigned environment_generation() {
  if (g_generation.load(std::memory_order_acquire) == 0) environment();
  return g_generation.load(std::memory_order_acquire);
}

}  // namespace cutwheel
