#include "torch/tensor/shim_errors.h"

#include <dlfcn.h>

#include <limits>
#include <string>

#include "core/error.h"

namespace cutwheel {
namespace {

// Empty if torch does not tell. By name: a reference, even a weak one, would make torch 2.13 the oldest that fits.
std::string torch_text() {
  using GetWhat = char const* (*)();
  auto const get_what = reinterpret_cast<GetWhat>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
  char const* const text = get_what ? get_what() : nullptr;
  return text ? text : "";
}

// Or the largest number, as of sizes that nobody can have meant.
std::int64_t bytes_of(std::int64_t const* sizes, int dims, std::int64_t element_bytes) {
  std::int64_t bytes = element_bytes;
  for (int i = 0; i < dims; ++i) {
    if (__builtin_mul_overflow(bytes, sizes[i], &bytes)) return std::numeric_limits<std::int64_t>::max();
  }
  return bytes;
}

thread_local Refused g_refused;

}  // namespace

void fail_shim(char const* what) {
  std::string const text = torch_text();
  fail(ErrorKind::runtime, "torch could not ", what, text.empty() ? "" : ": ", text);
}

void fail_allocation(std::int64_t const* sizes, int dims, int element_bytes, int device) {
  std::int64_t const bytes = bytes_of(sizes, dims, element_bytes);
  g_refused = {bytes, device};
  std::string const text = torch_text();
  if (text.empty()) {
    fail(ErrorKind::out_of_memory, "CUDA out of memory. Tried to allocate ", bytes, " bytes on GPU ", device);
  }
  if (text.find("out of memory") != std::string::npos) fail(ErrorKind::out_of_memory, text);
  fail(ErrorKind::runtime, "torch could not allocate ", bytes, " bytes on GPU ", device, ": ", text);
}

Refused last_refused() { return g_refused; }

}  // namespace cutwheel
