// Threadblocks of a cluster take parts of the K of one tile. Each adds up a part of its columns: what the others have of it
// arrives in shared memory, straight from their registers. Where tiles are few and K is long it fills the GPU, without a
// workspace and a second kernel, and sums are added in one order always.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cute/arch/cluster_sm90.hpp>

#include <cstdint>
#include <type_traits>

namespace cutwheel::gemm {

// kValues: accumulators of a thread. A part of the columns is a part of them, since columns follow each other there.
// in_stages: sums arrive where the tile's operands were, as large tiles would have too few stages beside them. Then nobody
// sends before all others have multiplied, and the next tile's loads wait until the sums have been read.
template <int splits, int warpgroups, int kValues, bool in_stages>
struct Sm90ClusterReduction {
  static constexpr int kOwn = kValues / splits, kOthers = splits - 1;
  static_assert(kOwn % 4 == 0);
  using Barrier = cutlass::arch::ClusterBarrier;

  using Parts = float4[kOthers][warpgroups][kOwn / 4][128];
  struct Apart {
    alignas(16) Parts parts;
    alignas(8) std::uint64_t arrived[warpgroups], free[warpgroups];
  };
  // free: all warpgroups of the others have multiplied. read: those of this threadblock have read their sums.
  struct InStages {
    alignas(8) std::uint64_t arrived[warpgroups], free[1], read;
  };
  using Storage = std::conditional_t<in_stages, InStages, Apart>;

  // By one thread; the cluster has to be synchronised with it.
  CUTLASS_DEVICE static void initialize(Storage& storage) {
    for (int i = 0; i < warpgroups; ++i) {
      Barrier::init(&storage.arrived[i], 1);
      if constexpr (!in_stages) Barrier::init(&storage.free[i], kOthers);
    }
    if constexpr (in_stages) {
      Barrier::init(&storage.free[0], kOthers * warpgroups);
      Barrier::init(&storage.read, warpgroups);
    }
    cutlass::arch::fence_barrier_init();
  }

  Storage& storage;
  Parts& parts;
  int rank, warpgroup, thread;
  std::uint32_t parity = 0;

  // Says that the others may write here; by all threads of the warpgroup, synchronised.
  CUTLASS_DEVICE void invite_others() const {
    if (thread >= kOthers) return;
    int const other = thread < rank ? thread : thread + 1;
    std::uint32_t const barrier = remote(&storage.free[in_stages ? 0 : warpgroup], other);
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
  }

  CUTLASS_DEVICE static std::uint32_t remote(void const* local, int rank) {
    std::uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"(cute::cast_smem_ptr_to_uint(local)), "r"(rank));
    return address;
  }

  // The sums of this threadblock's columns. `synchronize`: the threads of the warpgroup.
  template <class Fragment, class Synchronize>
  CUTLASS_DEVICE void run(Fragment const& accum, float (&own)[kOwn], Synchronize const& synchronize) {
    constexpr std::uint32_t kBytes = kOthers * kOwn * 128 * sizeof(float);
    if (thread == 0) {
      cutlass::arch::ClusterTransactionBarrier::arrive_and_expect_tx(&storage.arrived[warpgroup], kBytes);
    }
    if constexpr (in_stages) {
      invite_others();
      Barrier::wait(&storage.free[0], parity);
    } else {
      Barrier::wait(&storage.free[warpgroup], parity ^ 1);  // the others have read what this one sent before
    }
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < splits; ++part) {
      if (part == rank) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kOwn; ++i) own[i] = accum(part * kOwn + i);
      } else {
        int const slot = rank < part ? rank : rank - 1;  // among that one's others
        std::uint32_t const to = remote(&parts[slot][warpgroup][0][thread], part);
        std::uint32_t const barrier = remote(&storage.arrived[warpgroup], part);
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kOwn; i += 4) {
          int const at = part * kOwn + i;
          asm volatile(
              "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                  to + i / 4 * 128 * static_cast<std::uint32_t>(sizeof(float4))),
              "f"(accum(at)), "f"(accum(at + 1)), "f"(accum(at + 2)), "f"(accum(at + 3)), "r"(barrier)
              : "memory");
        }
      }
    }
    Barrier::wait(&storage.arrived[warpgroup], parity);
    CUTLASS_PRAGMA_UNROLL
    for (int other = 0; other < kOthers; ++other) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kOwn; i += 4) {
        float4 const values = parts[other][warpgroup][i / 4][thread];
        own[i] += values.x;
        own[i + 1] += values.y;
        own[i + 2] += values.z;
        own[i + 3] += values.w;
      }
    }
    synchronize();
    if constexpr (in_stages) {
      if (thread == 0) Barrier::arrive(&storage.read);
    } else {
      invite_others();
    }
    parity ^= 1;
  }
};

// One threadblock a tile.
template <int warpgroups, int kValues, bool in_stages>
struct Sm90ClusterReduction<1, warpgroups, kValues, in_stages> {
  struct Storage {};
};

}  // namespace cutwheel::gemm
