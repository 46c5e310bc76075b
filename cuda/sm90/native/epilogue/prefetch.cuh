// Operands of an epilogue on their way to shared memory, by cp.async.
#pragma once

#include "epilogue/apply.cuh"
#include "sm90/native/scheduler/work_tile.cuh"

namespace cutwheel::gemm {

// Starts a copy of `bytes`, zeros if they are not there. `anywhere` exists, for a copy that reads nothing.
//
// cp.async could copy a part and fill up with zeros, but the low bits of the address tell how much is left out, which
// compute-sanitizer does not know: it reports a read beyond an operand that ends there. So parts are loaded.
template <int bytes>
CUTLASS_DEVICE void copy_ahead(std::uint32_t to, void const* from, bool is_there, void const* anywhere) {
  static_assert(bytes == 4 || bytes == 16);
  void const* const source = is_there ? from : anywhere;
  int const size = is_there ? bytes : 0;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(source), "r"(size));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(source), "r"(size));
  }
}

// The first `there` of sixteen bytes' elements, and zeros behind them. In a loop, as it happens once a row.
template <class V>
CUTLASS_DEVICE void load_part(std::uint8_t* to, V const* from, int there) {
  CUTLASS_PRAGMA_NO_UNROLL
  for (int e = 0; e < 16 / static_cast<int>(sizeof(V)); ++e) {
    reinterpret_cast<V*>(to)[e] = e < there ? from[e] : V(0);
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
    V const* const from = is_one ? source : source + first + i;
    if (kEach == 2 && left == 1) {
      V* const pair = reinterpret_cast<V*>(into + i * kBytes);
      pair[0] = *from;
      pair[1] = V(0);
    } else {
      copy_ahead<4>(to + i * kBytes, from, left > 0, anywhere);
    }
  }
}

CUTLASS_DEVICE void wait_for_copies_ahead() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace cutwheel::gemm
