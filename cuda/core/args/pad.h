// Arguments of copies that add zeros.
#pragma once

#include <cstdint>

#include "core/args/gemm.h"

namespace cutwheel::gemm {

// Source: [images, lines, rows] of row_bytes each. Target: [images, target_lines, target_rows] of target_pitch bytes, a
// multiple of 16. It is zero where the source has nothing. The pixels of an image are rows; a batch of matrices has one
// line each.
struct PadArgs : GemmArgs {
  std::uint8_t const* source = nullptr;
  std::uint8_t* target = nullptr;
  int images = 1, lines = 1, rows = 0, row_bytes = 0;
  std::int64_t image_stride = 0, line_stride = 0, row_stride = 0;  // of the source, in bytes
  int target_lines = 1, target_rows = 0;
  std::int64_t target_pitch = 0;
  int first_row = 0;  // of the target's lines that has a source
};

}  // namespace cutwheel::gemm
