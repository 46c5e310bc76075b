// Turns the error codes of torch's shims into exceptions. Shims catch every exception and return a code; from torch 2.13 on
// they also tell its text.
#pragma once

#include <cstdint>

namespace cutwheel {

// Throws RuntimeError: torch could not <what>.
[[noreturn]] void fail_shim(char const* what);

// Throws OutOfMemoryError with the allocator's text. Where torch does not tell it, the text says how many
// bytes of which GPU it was about, for whoever is able to ask the allocator again (python/cutwheel/ops/_errors.py).
[[noreturn]] void fail_allocation(std::int64_t const* sizes, int dims, int element_bytes, int device);

// The memory that fail_allocation() was last about in this thread.
struct Refused {
  std::int64_t bytes = 0;
  int device = 0;
};
Refused last_refused();

}  // namespace cutwheel
