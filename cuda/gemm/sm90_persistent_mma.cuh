// What follows from a persistent kernel's tile: layouts in shared memory, the instruction, how many stages fit; and the
// consumer whose sums stay in the tensor cores.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

#include "gemm/cutlass_types.cuh"
#include "gemm/sm90_pipeline.cuh"
#include "gemm/sm90_swapped_epilogue.cuh"
#include "gemm/sm90_tensor_map.cuh"
#include "gemm/sm90_wgmma.cuh"

namespace cutwheel::gemm {

// 32-bit operands are multiplied as TF32.
template <DType type>
using Sm90MmaElement = std::conditional_t<type == DType::tf32, cutlass::tfloat32_t, Element<type>>;

// An operand of a tile in shared memory. A swizzle spans 128 bytes along K, or along M or N where K is not contiguous, and
// there are as many boxes as the tile takes.
template <class E, int extent, int k, cute::GMMA::Major major>
struct Sm90TileOperand {
  static constexpr bool kIsK = major == cute::GMMA::Major::K;
  static constexpr int kSwizzled = 128 / static_cast<int>(sizeof(E));  // elements
  static constexpr int kBoxes = (kIsK ? k : extent) / kSwizzled;
  static constexpr int kBoxElements = extent * k / kBoxes;
  static constexpr int kBytes = extent * k * static_cast<int>(sizeof(E));
  static_assert(k % kSwizzled == 0 && (kIsK || (extent % kSwizzled == 0 && sizeof(E) == 2)));

  using Atom = std::conditional_t<kIsK, cute::GMMA::Layout_K_SW128_Atom<E>, cute::GMMA::Layout_MN_SW128_Atom<E>>;
  using Order =
      std::conditional_t<kIsK, cute::Step<cute::_1, cute::_2, cute::_3>, cute::Step<cute::_2, cute::_1, cute::_3>>;
  template <int stages>
  using Layout =
      decltype(cute::tile_to_shape(Atom{}, cute::Shape<cute::Int<extent>, cute::Int<k>, cute::Int<stages>>{}, Order{}));

  static void encode_map(CUtensorMap& map, DType type, Operand const& x, int rows, int k_extent, int batch) {
    if constexpr (kIsK) {
      encode_tensor_map(map, type, x, k_extent, rows, batch, kSwizzled, extent);
    } else {
      encode_tensor_map(map, type, x, rows, k_extent, batch, kSwizzled, k);
    }
  }

  // Rows of the last tile, if a map of its own is worth having: 0 where there is none. TMA takes longer for a row of zeros
  // beyond the end than for one of memory: on an H200 303 rows took 1.65 times as long as 384, and nobody needs those
  // zeros, since a row of an operand is a row or column of D. (Zeros beyond the end of K are needed.)
  CUTLASS_HOST_DEVICE static int tail_of(int rows) { return kIsK ? rows % extent : 0; }

  static void encode_tail_map(CUtensorMap& map, DType type, Operand const& x, int rows, int k_extent, int batch) {
    if (int const tail = tail_of(rows)) encode_tensor_map(map, type, x, k_extent, rows, batch, kSwizzled, tail);
  }

  // What a tile of K loads of the rows from `row` on.
  struct Part {
    bool is_tail;
    int boxes, bytes;
  };
  CUTLASS_DEVICE static Part part_of(int row, int rows) {
    int const left = rows - row;
    if constexpr (kIsK) {
      bool const is_tail = left < extent && left == tail_of(rows);
      return {is_tail, kBoxes, is_tail ? left * k * static_cast<int>(sizeof(E)) : kBytes};
    } else {
      int const boxes = min(kBoxes, (left + kSwizzled - 1) / kSwizzled);
      return {false, boxes, boxes * kBoxElements * static_cast<int>(sizeof(E))};
    }
  }

  CUTLASS_DEVICE static void load(CUtensorMap const& map, std::uint64_t* barrier, E* stage, int row, int k_at, int batch,
                                  int boxes = kBoxes) {
    constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kBoxes; ++i) {
      if (!kIsK && i >= boxes) break;
      cute::SM90_TMA_LOAD_3D::copy(&map, barrier, kHint, stage + i * kBoxElements, (kIsK ? k_at : row) + i * kSwizzled,
                                   kIsK ? row : k_at, batch);
    }
  }

  // TMA begins a box at a multiple of 16 bytes only: K, where it is contiguous, at a multiple of so many elements.
  static constexpr int kStepOfK = kIsK ? 16 / static_cast<int>(sizeof(E)) : 1;

  // Clears elements of K before `begin` and from `end` on, in the rows from `first` on, by a warpgroup.
  CUTLASS_DEVICE static void keep_only(E* stage, int first, int rows, int begin, int end, int thread) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(E)), kVectors = 8;  // in 128 bytes
    auto* const vectors = reinterpret_cast<uint4*>(stage);
    if constexpr (kIsK) {
      for (int i = thread; i < rows * kVectors * kBoxes; i += 128) {
        int const row = first + i / (kVectors * kBoxes), vector = i % (kVectors * kBoxes);
        int const at = (vector / kVectors * extent + row) * kVectors + (vector % kVectors ^ row % 8);
        int const from = begin - vector * kVector, to = end - vector * kVector;  // in this vector
        if (from <= 0 && to >= kVector) continue;
        auto* const elements = reinterpret_cast<E*>(vectors + at);
        for (int e = 0; e < kVector; ++e) {
          if (e < from || e >= to) elements[e] = E(0);
        }
      }
    } else {
      // Boxes have a line of 128 bytes for each element of K. Threads take 16 of these at once, without a division: this
      // stands between the arrival of a tile and its products.
      int const lines = begin + k - end, own_line = thread / kVectors;
      for (int i = own_line; i < lines; i += 128 / kVectors) {
        uint4* const line = vectors + (i < begin ? i : i + end - begin) * kVectors + thread % kVectors;
        CUTLASS_PRAGMA_UNROLL
        for (int box = first / kSwizzled; box < (first + rows) / kSwizzled; ++box) line[box * k * kVectors] = uint4{};
      }
    }
  }
};

// What the producer does for a tile of K: both operands are batches of matrices. begin(place) comes before the tiles of K
// of a place, which load() then takes in order.
template <class OperandA, class OperandB, int k>
struct Sm90MatrixLoader {
  struct Params {
    CUtensorMap a, b, a_tail, b_tail;
    int a_rows, b_rows;

    void encode_a(DType type, Operand const& x, int rows, int k_extent, int batch) {
      OperandA::encode_map(a, type, x, a_rows = rows, k_extent, batch);
      OperandA::encode_tail_map(a_tail, type, x, rows, k_extent, batch);
    }
    void encode_b(DType type, Operand const& x, int rows, int k_extent, int batch) {
      OperandB::encode_map(b, type, x, b_rows = rows, k_extent, batch);
      OperandB::encode_tail_map(b_tail, type, x, rows, k_extent, batch);
    }
  };
  Params const& p;
  typename OperandA::Part part_a{};
  typename OperandB::Part part_b{};

  template <class Walk>
  CUTLASS_DEVICE Sm90MatrixLoader(Params const& params, Walk const&) : p(params) {}

  CUTLASS_DEVICE static void prefetch(Params const& p) {
    for (CUtensorMap const* map : {&p.a, &p.b}) {
      cute::prefetch_tma_descriptor(reinterpret_cast<cute::TmaDescriptor const*>(map));
    }
  }
  CUTLASS_DEVICE void begin(Sm90TilePlace const& place) {
    part_a = OperandA::part_of(place.m, p.a_rows);
    part_b = OperandB::part_of(place.n, p.b_rows);
  }
  // How many arrive on the barrier for each tile of K, zeros beyond the ends of operands included.
  CUTLASS_DEVICE std::uint32_t bytes() const { return static_cast<std::uint32_t>(part_a.bytes + part_b.bytes); }

  template <class A, class B>
  CUTLASS_DEVICE void load(std::uint64_t* barrier, A* stage_a, B* stage_b, Sm90TilePlace const& place, int tile) const {
    int const first_k = place.k + tile * k;
    OperandA::load(part_a.is_tail ? p.a_tail : p.a, barrier, stage_a, place.m, first_k, place.a_batch, part_a.boxes);
    OperandB::load(part_b.is_tail ? p.b_tail : p.b, barrier, stage_b, place.n, first_k, place.b_batch, part_b.boxes);
  }
};

// swap_ab: the kernel computes D^T [N, M] = B^T [N, K] A^T [K, M], so that a small M of the user meets the dimension of
// wgmma that may be as short as 8. Tile is the kernel's; layouts are the user's. splits: threadblocks that share the K of a
// tile, each of which finishes its part of the columns.
template <DType a, DType b, DType acc, DType d, Layout layout_a, Layout layout_b, class Tile, class Epilogue_,
          bool swap_ab = false, int splits = 1>
struct Sm90PersistentTypes {
  static constexpr bool kSwapAB = swap_ab;
  static constexpr int kSplits = splits;
  static constexpr int kOwnColumns = Tile::kN / splits;
  static_assert(Tile::kN % splits == 0);
  using ElementA = Sm90MmaElement<swap_ab ? b : a>;
  using ElementB = Sm90MmaElement<swap_ab ? a : b>;
  using ElementAccumulator = Element<acc>;
  static constexpr int kWarpGroups = Tile::kM / 64;
  static_assert(Tile::kM == 64 || Tile::kM == 128);
  using TileShape = cute::Shape<cute::Int<Tile::kM>, cute::Int<Tile::kN>, cute::Int<Tile::kK>>;
  // Lazily: the one's static assertions do not hold for the other's tiles.
  static constexpr auto epilogue_type() {
    using Operands = typename Epilogue_::Operands;
    using Stores = typename Epilogue_::Stores;
    if constexpr (swap_ab) {
      return epilogue::TypeIdentity<Sm90SwappedEpilogue<Epilogue_, d, kOwnColumns, Operands, Stores>>{};
    } else {
      return epilogue::TypeIdentity<Sm90WarpEpilogue<Epilogue_, d, kOwnColumns, Operands, Stores>>{};
    }
  }
  using Epilogue = typename decltype(epilogue_type())::type;

  static constexpr auto kMajorA =
      (swap_ab ? layout_b == Layout::column : layout_a == Layout::row) ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  static constexpr auto kMajorB =
      (swap_ab ? layout_a == Layout::row : layout_b == Layout::column) ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  using OperandA = Sm90TileOperand<ElementA, Tile::kM, Tile::kK, kMajorA>;
  using OperandB = Sm90TileOperand<ElementB, Tile::kN, Tile::kK, kMajorB>;
  using Loader = Sm90MatrixLoader<OperandA, OperandB, Tile::kK>;

  static constexpr int kSharedMemory = 227 * 1024;
  // `others`: bytes that the kernel wants besides.
  static constexpr int stages(int others) {
    constexpr int kBarriers = 1024;  // and what alignment takes
    return (kSharedMemory - kBarriers - others - kWarpGroups * static_cast<int>(sizeof(typename Epilogue::Storage))) /
           (OperandA::kBytes + OperandB::kBytes);
  }

  using TiledMma =
      decltype(cute::make_tiled_mma(sm90_wgmma<ElementA, ElementB, ElementAccumulator, TileShape, kMajorA, kMajorB>(),
                                    cute::Layout<cute::Shape<cute::Int<kWarpGroups>, cute::_1, cute::_1>>{}));
};

// The part that depends on how many stages there are: what consumers see.
template <class Types, int stages>
struct Sm90PersistentStages : Types {
  using SmemLayoutA = typename Types::OperandA::template Layout<stages>;
  using SmemLayoutB = typename Types::OperandB::template Layout<stages>;
  struct TensorStorage {
    cute::array_aligned<typename Types::ElementA, cute::cosize_v<SmemLayoutA>, 1024> smem_A;
    cute::array_aligned<typename Types::ElementB, cute::cosize_v<SmemLayoutB>, 1024> smem_B;
  };
  using MainloopPipeline = Sm90Pipeline<stages, Types::kWarpGroups>;
  using PipelineState = typename MainloopPipeline::State;
  struct Params {};
};

template <class Base>
struct Sm90PlainMma : Base {
  using typename Base::MainloopPipeline;
  using typename Base::PipelineState;
  using typename Base::TensorStorage;
  using typename Base::TiledMma;

  // `prepare(stage, tile)`: before the products of a tile of K.
  template <class Fragment, class Prepare>
  CUTLASS_DEVICE void mma(MainloopPipeline pipeline, PipelineState read, Fragment& accum, int k_tiles, int thread,
                          TensorStorage& shared, Prepare const& prepare) {
    using namespace cute;
    if (k_tiles == 0) {
      clear(accum);
      return;
    }
    TiledMma tiled_mma;
    auto const slice = tiled_mma.get_slice(__shfl_sync(0xffffffff, thread / 128, 0) * 128);
    Tensor a = slice.make_fragment_A(
        slice.partition_A(make_tensor(make_smem_ptr(shared.smem_A.data()), typename Base::SmemLayoutA{})));
    Tensor b = slice.make_fragment_B(
        slice.partition_B(make_tensor(make_smem_ptr(shared.smem_B.data()), typename Base::SmemLayoutB{})));
    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;
    PipelineState release = read;
    warpgroup_fence_operand(accum);
    // A stage is released once the products of the next one are under way.
    CUTLASS_PRAGMA_NO_UNROLL
    for (int tile = 0; tile < k_tiles; ++tile) {
      pipeline.consumer_wait(read);
      prepare(read.index(), tile);
      warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int k = 0; k < size<2>(a); ++k) {
        cute::gemm(tiled_mma, a(_, _, k, read.index()), b(_, _, k, read.index()), accum);
        tiled_mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
      ++read;
      if (tile > 0) {
        warpgroup_wait<1>();
        pipeline.consumer_release(release);
        ++release;
      }
    }
    warpgroup_wait<0>();
    pipeline.consumer_release(release);
    warpgroup_fence_operand(accum);
  }
};

}  // namespace cutwheel::gemm
