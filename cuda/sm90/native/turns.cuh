// Turns of two warpgroups that take whole tiles: each multiplies while the other stores. A turn ends when all operands of
// the tile have arrived, not before: a parity tells a stage's rounds apart only if those before have been waited for. And
// it ends when all four warps say so: one that is still kept from its turn (by rows that are being stored, say) would else
// find that two more have passed, which the parity of `begins` does not tell from none, and wait for ever.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>

namespace cutwheel::gemm {

template <bool pingpong>
struct Sm90Turns {
  using Barrier = cutlass::arch::ClusterBarrier;
  struct Storage {
    alignas(8) std::uint64_t begins[2];
  };
  Storage& storage;
  int warpgroup;
  std::uint32_t parity;

  // The first warpgroup's first turn begins at once.
  CUTLASS_DEVICE Sm90Turns(Storage& shared, int own) : storage(shared), warpgroup(own), parity(own == 0 ? 1 : 0) {}

  // By one thread; the others have to be synchronised with it.
  CUTLASS_DEVICE static void initialize(Storage& storage) {
    for (std::uint64_t& barrier : storage.begins) Barrier::init(&barrier, 4);
    cutlass::arch::fence_barrier_init();
  }
  CUTLASS_DEVICE void begin() {
    Barrier::wait(&storage.begins[warpgroup], parity);
    parity ^= 1;
  }
  // By all threads of the warpgroup.
  CUTLASS_DEVICE void end() const {
    if (threadIdx.x % 32 == 0) Barrier::arrive(&storage.begins[warpgroup ^ 1]);
  }
};

// Every warpgroup has a part of every tile.
template <>
struct Sm90Turns<false> {
  struct Storage {};
  CUTLASS_DEVICE Sm90Turns(Storage&, int) {}
  CUTLASS_DEVICE static void initialize(Storage&) {}
  CUTLASS_DEVICE void begin() const {}
  CUTLASS_DEVICE void end() const {}
};

}  // namespace cutwheel::gemm
