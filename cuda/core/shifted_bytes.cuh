// Unaligned reads of memory that is accessed 16 bytes at a time.
#pragma once

#include <cstdint>

namespace cutwheel {

// 16 bytes from byte `shift` on, 0 to 15, of 32: `low`, then `high`.
__device__ inline uint4 shifted_bytes(uint4 const& low, uint4 const& high, int shift) {
  bool const by_8 = shift & 8, by_4 = shift & 4;
  std::uint32_t const x[6] = {by_8 ? low.z : low.x,  by_8 ? low.w : low.y,   by_8 ? high.x : low.z,
                              by_8 ? high.y : low.w, by_8 ? high.z : high.x, by_8 ? high.w : high.y};
  std::uint32_t y[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) y[i] = by_4 ? x[i + 1] : x[i];
  std::uint32_t const bits = shift % 4 * 8;
  return {__funnelshift_r(y[0], y[1], bits), __funnelshift_r(y[1], y[2], bits), __funnelshift_r(y[2], y[3], bits),
          __funnelshift_r(y[3], y[4], bits)};
}

}  // namespace cutwheel
