// Operands of an epilogue on their way to shared memory, by cp.async.
#pragma once

#include "epilogue/apply.cuh"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::gemm {

// Starts a copy of `bytes`, of which the first `there` exist (none if negative). The rest becomes zeros and is not read, as
// an operand may end where its memory does. `anywhere` is an address that exists, for a copy that reads nothing.
template <int bytes>
CUTLASS_DEVICE void copy_ahead(std::uint32_t to, void const* from, int there, void const* anywhere) {
  static_assert(bytes == 4 || bytes == 16);
  int const size = min(max(there, 0), bytes);
  void const* const source = size > 0 ? from : anywhere;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(size));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(source), "r"(size));
  }
}

// All threads of a warpgroup start to copy `length` elements of a vector, which begin at `first`. Elements from `end` on
// are zeros, and all are where a call gives no vector.
template <class Operand, int length>
CUTLASS_DEVICE void prefetch_vector(EpilogueValue const& operand, std::uint8_t* into, int first, int end, int batch,
                                    void const* anywhere, int thread) {
  using V = epilogue::ElementOfOperand<Operand>;
  constexpr int kBytes = static_cast<int>(sizeof(V)), kEach = 4 / kBytes;
  bool const is_one = Operand::kMayBeOne && operand.leading == 0;
  auto const* const source = static_cast<V const*>(operand.data) + batch * operand.batch_stride;
  std::uint32_t const to = cute::cast_smem_ptr_to_uint(into);
  for (int i = thread * kEach; i < length; i += 128 * kEach) {
    int const left = operand.data ? end - first - i : 0;
    copy_ahead<4>(to + i * kBytes, is_one ? source : source + first + i, min(left, kEach) * kBytes, anywhere);
  }
}

CUTLASS_DEVICE void wait_for_copies_ahead() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace cutwheel::gemm
