// The ring of stages between the thread that loads operands and the warpgroups that multiply them.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute/arch/cluster_sm90.hpp>

#include <cstdint>

namespace cutwheel::gemm {

// Where in the ring one side is. The parity tells a stage's rounds apart.
template <int stages>
struct Sm90PipelineState {
  int stage = 0;
  std::uint32_t parity = 0;

  CUTLASS_DEVICE int index() const { return stage; }
  CUTLASS_DEVICE void operator++() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  CUTLASS_DEVICE void advance(int count) {
    int const next = stage + count;
    parity ^= next / stages & 1;
    stage = next % stages;
  }
};

// kConsumers: warpgroups of a threadblock that read a stage. kBelow, kBeside: threadblocks of a cluster that load parts of
// each other's stages, so that all of them have to be done with a stage before one of them fills it.
template <int stages, int kConsumers, int kBelow = 1, int kBeside = 1>
struct Sm90Pipeline {
  static constexpr int kSharing = kBelow + kBeside - 1;
  using State = Sm90PipelineState<stages>;
  using Barrier = cutlass::arch::ClusterBarrier;
  struct Storage {
    alignas(8) std::uint64_t full[stages], empty[stages];
  };
  Storage& storage;

  // By one thread; the others have to be synchronised with it. `producers`: arrivals that make a stage full.
  CUTLASS_DEVICE void initialize(int producers) const {
    for (int i = 0; i < stages; ++i) {
      Barrier::init(&storage.full[i], static_cast<std::uint32_t>(producers));
      Barrier::init(&storage.empty[i], kConsumers * kSharing);
    }
    cutlass::arch::fence_barrier_init();
  }

  // Waits until nobody reads the stage any more.
  CUTLASS_DEVICE void producer_wait(State state) const { Barrier::wait(&storage.empty[state.stage], state.parity ^ 1); }

  // By each producer that wrote its part of the stage itself.
  CUTLASS_DEVICE void producer_commit(State state) const { Barrier::arrive(&storage.full[state.stage]); }

  // By each thread that has started cp.async: it arrives when these have, without waiting for them.
  CUTLASS_DEVICE void producer_commit_copies(State state) const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                     cute::cast_smem_ptr_to_uint(&storage.full[state.stage]))
                 : "memory");
  }

  // Waits as well. Returns the barrier on which `bytes` are to arrive.
  CUTLASS_DEVICE std::uint64_t* producer_acquire(State state, std::uint32_t bytes) const {
    producer_wait(state);
    return producer_expect(state, bytes);
  }
  // By one thread, after producer_wait().
  CUTLASS_DEVICE std::uint64_t* producer_expect(State state, std::uint32_t bytes) const {
    std::uint64_t* const barrier = &storage.full[state.stage];
    cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(barrier, bytes);
    return barrier;
  }

  CUTLASS_DEVICE void consumer_wait(State state) const { Barrier::wait(&storage.full[state.stage], state.parity); }

  // By all threads of a warpgroup.
  CUTLASS_DEVICE void consumer_release(State state) const {
    if (threadIdx.x % 128 != 0) return;
    if constexpr (kSharing == 1) {
      Barrier::arrive(&storage.empty[state.stage]);
    } else {
      // Its own barrier first: another threadblock, for which this one has nothing to load, may begin its next round with
      // the arrival at its barrier, and then arrives here again.
      std::uint32_t const own = cute::block_rank_in_cluster(), row = own % kBelow, column = own / kBelow;
      CUTLASS_PRAGMA_UNROLL
      for (std::uint32_t i = 0; i < kBelow; ++i) {
        Barrier::arrive(&storage.empty[state.stage], column * kBelow + (row + i) % kBelow, 1);
      }
      CUTLASS_PRAGMA_UNROLL
      for (std::uint32_t i = 1; i < kBeside; ++i) {
        Barrier::arrive(&storage.empty[state.stage], (column + i) % kBeside * kBelow + row, 1);
      }
    }
  }
};

}  // namespace cutwheel::gemm
