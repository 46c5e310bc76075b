// cutwheel.enable(): kernels of ours in place of torch's behind aten's ops, and an account of what went where.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <string>

#include "torch/text_argument.h"

namespace cutwheel {

// Takes exactly these overloads of aten ("mm,mm.out") at a dispatch key, in place of those taken before; none: torch is as
// it was. `dtypes` is a set of bits, 1 << ScalarType. Returns the overloads, as a list of JSON, that this torch keeps to
// itself.
std::string intercept(StringHandle overloads, std::int64_t dtypes, StringHandle key);

// The calls since the last clear, as JSON: each problem with its count and where it went.
std::string intercepted_json();
void clear_intercepted();

// Where a problem would go by its dtype and by what was measured, on a GPU that need not be there. Layout: letters of A and
// B as in names of kernels.
std::string interception_verdict(std::int64_t dtype, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k,
                                 StringHandle layout, std::int64_t major);

}  // namespace cutwheel
