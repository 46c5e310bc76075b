// cutwheel.enable(): kernels of ours in place of torch's behind aten's ops, and an account of what went where.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <string>
#include <vector>

#include "torch/tensor/text_argument.h"

namespace cutwheel {

// Takes exactly these overloads of aten ("mm,mm.out") at a dispatch key, in place of those taken before; none: torch is as
// it was. `dtypes` is a set of bits, 1 << ScalarType. Returns the overloads, as a list of JSON, that this torch keeps to
// itself.
std::string intercept(StringHandle overloads, std::int64_t dtypes, StringHandle key);

// The calls since the last clear, as JSON: each problem with its count and where it went.
std::string intercepted_json();
void clear_intercepted();

// Where a problem would go by what was measured, on a GPU that need not be there. Kinds, rows and extents are those of
// gains.h.
std::string interception_verdict(StringHandle kind, std::int64_t rows, std::vector<std::int64_t> extents,
                                 std::int64_t major);

}  // namespace cutwheel
