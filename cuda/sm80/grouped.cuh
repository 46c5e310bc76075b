// Grouped GEMM on Ampere and Ada: the mainloop and the epilogue of Sm80Multistage in persistent threadblocks, which visit
// the tiles of all groups as CUTLASS's GemmGrouped does. Its arrays of problems and pointers in memory are not needed,
// because both follow from where the groups end. Block-wise scales come with the mainloop of Sm89BlockScaledMma.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/group_ends.cuh"
#include "core/tile_raster.cuh"
#include "sm80/multistage.cuh"
#include "sm80/sm89_block_scaled_mma.cuh"

namespace cutwheel::gemm {

template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile, class Warp,
          int stages_, Grouping grouping_, template <DType> class Epilogue_, bool fast_accum = false,
          BlockScales scales_ = BlockScales::none>
struct Sm80Grouped {
  static_assert(grouping_ == Grouping::rows || grouping_ == Grouping::k);
  static constexpr bool kRows = grouping_ == Grouping::rows;
  static constexpr bool kContiguousK = layout_a_ == Layout::row || layout_b_ == Layout::column;
  static_assert(!kRows || layout_a_ == Layout::row, "groups of rows start anywhere, so that rows have to be whole");
  // A group of K starts at any element. Where K is contiguous each is a copy of its own, of at least four bytes.
  static constexpr int kAlignment = !kRows && kContiguousK ? 1 : 16 / element_bytes(a_);
  static_assert(kAlignment * element_bytes(a_) >= 4, "groups of a contiguous K take 32-bit operands");
  static constexpr bool kBlockwise = scales_ != BlockScales::none;
  static_assert(!kBlockwise || (kRows && is_fp8(a_) && !fast_accum));

  using Epilogue = Epilogue_<d_>;
  // With block-wise scales this is for the epilogue alone. CUTLASS's multistage mainloop has three stages at least.
  using Dense = Sm80Multistage<arch_, a_, b_, acc_, d_, layout_a_, layout_b_, Tile, Warp, kBlockwise ? 3 : stages_,
                               Epilogue_, fast_accum, kAlignment>;
  using BlockMma = Sm89BlockScaledMma<a_, b_, Tile, Warp, stages_, scales_>;
  using Visitor = typename Dense::template VisitorOf<Epilogue>;
  using Kernel = typename Dense::template KernelWithVisitor<typename Visitor::Callbacks>;
  using Mma = typename Kernel::Mma;
  using CollectiveEpilogue = typename Kernel::Epilogue;
  using ElementA = typename Dense::ElementA;
  using ElementB = typename Dense::ElementB;

  template <class Mainloop>
  union BlockStorage {
    alignas(16) char main_loop[Mainloop::kSharedBytes];
    typename CollectiveEpilogue::SharedStorage epilogue;
  };
  struct SharedStorage {
    std::conditional_t<kBlockwise, BlockStorage<BlockMma>, typename Kernel::SharedStorage> tile;
    GroupEnds::Storage ends;
  };
  struct Params {
    typename Mma::IteratorA::Params iterator_a;
    typename Mma::IteratorB::Params iterator_b;
    Operand a, b;
    BlockScaleOperand scale_a, scale_b;
    EpilogueValue d;
    EpilogueValue operands[kMaxEpilogueOperands];
    GroupArgs groups;
    int m, n, k;
  };
  // A and D are counted from the tile's first row on.
  struct WorkTile {
    std::int64_t row;
    int rows;  // from there to the end of the group
    int first_k, k;
    int group, tile_n;
  };

  static constexpr int kMaxThreads = Kernel::kThreadCount;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = static_cast<int>(sizeof(SharedStorage));

  CUTLASS_DEVICE static int tiles_of(int extent, int tile) { return (extent + tile - 1) / tile; }

  // False past the last tile. Rows past the last group form one with the index GroupArgs::count.
  CUTLASS_DEVICE static bool work_tile_at(Params const& p, GroupEnds::Storage const& ends, int index, WorkTile& work) {
    int const count = p.groups.count;
    TileRaster order{tiles_of(p.m, Tile::kM), tiles_of(p.n, Tile::kN), count, Dense::kSwizzle, true};
    int tile_m, first = 0, end = p.m, unused;
    if constexpr (kRows) {
      if (index >= ends.tile_end[count]) return false;
      int const group = work.group = GroupEnds::find(ends, count, index, work.group);
      if (group > 0) {
        first = ends.end[group - 1];
        index -= ends.tile_end[group - 1];
      }
      end = ends.end[group];
      order.tiles_m = tiles_of(end - first, Tile::kM);
      order.at(index, tile_m, work.tile_n, unused);
      work.first_k = 0;
      work.k = p.k;
    } else {
      if (index >= order.count()) return false;
      order.at(index, tile_m, work.tile_n, work.group);
      work.first_k = work.group > 0 ? ends.end[work.group - 1] : 0;
      work.k = ends.end[work.group] - work.first_k;
    }
    int const row = first + tile_m * Tile::kM;
    work.row = row;
    work.rows = end - row;
    return true;
  }

  // Iterators take what is left of a K that is no multiple of the tile first, by copies that write zeros for the rest; so
  // all tiles after it are whole, and nothing of the next group is read.
  CUTLASS_DEVICE static void multiply(Params const& p, typename Mma::SharedStorage& shared, WorkTile const& work,
                                      typename Mma::FragmentC& accum) {
    std::int64_t const n = std::int64_t{work.tile_n} * Tile::kN, k = work.first_k;
    auto const* a = static_cast<ElementA const*>(p.a.data);
    auto const* b = static_cast<ElementB const*>(p.b.data);
    a += layout_a_ == Layout::row ? work.row * p.a.leading + k : k * p.a.leading + work.row;
    b += layout_b_ == Layout::row ? k * p.b.leading + n : n * p.b.leading + k;
    if constexpr (kRows) b += work.group * p.b.batch_stride;
    int const thread = threadIdx.x;
    typename Mma::IteratorA iterator_a(p.iterator_a, const_cast<ElementA*>(a), {work.rows, work.k}, thread, {0, 0});
    typename Mma::IteratorB iterator_b(p.iterator_b, const_cast<ElementB*>(b), {work.k, p.n - static_cast<int>(n)}, thread,
                                       {0, 0});
    Mma mma(shared, thread, cutlass::canonical_warp_idx_sync(), thread % 32);
    mma(tiles_of(work.k, Tile::kK), accum, iterator_a, iterator_b, accum);
  }

  // The same with block-wise scales. The group is a problem of its own, whose rows begin where those of A do.
  CUTLASS_DEVICE static void multiply(Params const& p, char* shared, WorkTile const& work, typename Mma::FragmentC& accum) {
    static_assert(BlockMma::kThreads == kMaxThreads);
    typename BlockMma::Operands group;
    group.a = static_cast<char const*>(p.a.data);
    group.b = static_cast<char const*>(p.b.data) + work.group * p.b.batch_stride;
    group.a_leading = p.a.leading;
    group.b_leading = p.b.leading;
    group.scale_a = p.scale_a;
    group.scale_b = p.scale_b;
    group.scale_b.data += work.group * p.scale_b.batch_stride;
    int const row = static_cast<int>(work.row);
    group.m = row + work.rows;
    group.n = p.n;
    group.k = p.k;
    typename BlockMma::Sums sums = {};
    BlockMma::run(group, static_cast<unsigned>(__cvta_generic_to_shared(shared)), row, work.tile_n * Tile::kN, sums);
    // CUTLASS's epilogue takes the sums of one mma.sync behind those of the one above it.
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < static_cast<int>(Mma::FragmentC::kElements); ++i) {
      accum[i] = sums[i / 4 % BlockMma::kMmaM][i / 4 / BlockMma::kMmaM][i % 4];
    }
    __syncthreads();  // the epilogue writes where other warps still read operands
  }

  // The operand as it is for this group, from the tile's first row on.
  template <class Operand_>
  CUTLASS_DEVICE static EpilogueValue shifted(EpilogueValue value, WorkTile const& work) {
    constexpr OperandKind kKind = Operand_::kKind;
    std::int64_t elements = work.group * value.batch_stride;
    if constexpr (kKind == OperandKind::col) {
      elements += Operand_::kMayBeOne ? work.row * value.leading : work.row;
    } else if constexpr (kKind != OperandKind::scalar && kKind != OperandKind::row) {
      elements += work.row * value.leading;
    }
    if (value.data) value.data = static_cast<Element<Operand_::kType>*>(value.data) + elements;
    value.batch_stride = 0;
    return value;
  }
  using D = epilogue::Matrix<-1, d_>;

  template <class... Operands, class... Stores>
  CUTLASS_DEVICE static void store(epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>, Params const& p,
                                   typename CollectiveEpilogue::SharedStorage& shared, WorkTile const& work,
                                   typename Mma::FragmentC const& accum) {
    EpilogueValue values[kMaxEpilogueOperands];
    ((values[Operands::kIndex] = shifted<Operands>(p.operands[Operands::kIndex], work)), ...);
    ((values[Stores::kIndex] = shifted<Stores>(p.operands[Stores::kIndex], work)), ...);
    EpilogueValue const d = shifted<D>(p.d, work);
    using VisitorParams = typename Visitor::Callbacks::Params;
    VisitorParams const params = Visitor::template arguments<VisitorParams>(values, d.data, d.leading, 0);
    int const thread = threadIdx.x;
    CollectiveEpilogue epilogue(params, shared, thread, cutlass::canonical_warp_idx_sync(), thread % 32);
    epilogue(accum, {0, work.tile_n, 0}, cute::make_shape(work.rows, p.n, 1), thread);
  }

  // E stands for one accumulator column, as in the visitor's stores.
  template <class E>
  CUTLASS_DEVICE static void zero(void* data, std::int64_t leading, Params const& p, WorkTile const& work) {
    constexpr int kVector = std::min(Dense::kAlignmentD, 16 / static_cast<int>(sizeof(E))), kVectors = Tile::kN / kVector;
    cutlass::AlignedArray<E, kVector> zeros;
    zeros.clear();
    for (int i = threadIdx.x; i < Tile::kM * kVectors; i += kMaxThreads) {
      int const row = i / kVectors, column = work.tile_n * Tile::kN + i % kVectors * kVector;
      if (row < work.rows && column < p.n) {
        *reinterpret_cast<decltype(zeros)*>(static_cast<E*>(data) + row * leading + column) = zeros;
      }
    }
  }

  template <class... Stores>
  CUTLASS_DEVICE static void store_zeros(epilogue::OperandList<Stores...>, Params const& p, WorkTile const& work) {
    EpilogueValue const d = shifted<D>(p.d, work);
    zero<typename Visitor::ElementD>(d.data, Visitor::elements(d.leading), p, work);
    (zero<Element<Stores::kType>>(shifted<Stores>(p.operands[Stores::kIndex], work).data,
                                  p.operands[Stores::kIndex].leading, p, work),
     ...);
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(16) char shared_memory[];
    auto& shared = *reinterpret_cast<SharedStorage*>(shared_memory);
    GroupEnds::load(shared.ends, p.groups, kRows ? p.m : p.k, kRows ? Tile::kM : 0, tiles_of(p.n, Tile::kN), threadIdx.x,
                    kMaxThreads);
    WorkTile work{};
    for (int index = blockIdx.x; work_tile_at(p, shared.ends, index, work); index += gridDim.x) {
      if (kRows && work.group == p.groups.count) {
        store_zeros(typename Epilogue::Stores{}, p, work);
        continue;
      }
      __syncthreads();  // the tile before has been read out of shared memory
      typename Mma::FragmentC accum;
      accum.clear();
      // CUTLASS's mainloop reads beyond a K of 0.
      if (work.k > 0) multiply(p, shared.tile.main_loop, work, accum);
      store(typename Epilogue::Operands{}, typename Epilogue::Stores{}, p, shared.tile.epilogue, work, accum);
    }
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  // At most: each group of rows, and the rest, may have one tile that is not full.
  static std::int64_t max_tiles(GemmArgs const& args) {
    std::int64_t const groups = args.groups.count;
    std::int64_t const full = (args.m + (groups + 1) * (Tile::kM - 1)) / Tile::kM;
    std::int64_t const tiles_m = kRows ? std::min<std::int64_t>(full, args.m) : groups * ceil_div(args.m, Tile::kM);
    return tiles_m * ceil_div(args.n, Tile::kN);
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    std::int64_t const tiles = max_tiles(args);
    if (tiles == 0) return {};
    if (cudaError_t const error = attributes.prepare(kernel, args.device->ordinal, kSharedStorageBytes);
        error != cudaSuccess) {
      cudaGetLastError();
      return {StatusCode::cuda_error, static_cast<int>(error)};
    }
    LaunchShape shape;
    shape.block = dim3(kMaxThreads);
    shape.shared_memory_bytes = kSharedStorageBytes;
    int const blocks = attributes.max_active_blocks(kernel, args.device->ordinal, shape);
    std::int64_t const grid = std::min<std::int64_t>(tiles, std::int64_t{blocks} * args.device->sm_count);
    // The index of a tile, and of the one that would follow the last.
    if (args.groups.count > GroupEnds::kMaxGroups || tiles + grid > std::numeric_limits<int>::max()) {
      return {StatusCode::not_implementable, 0};
    }
    Params params{};
    params.iterator_a = typename Mma::IteratorA::Params(typename Mma::IteratorA::Layout(args.a.leading));
    params.iterator_b = typename Mma::IteratorB::Params(typename Mma::IteratorB::Layout(args.b.leading));
    params.a = args.a;
    params.b = args.b;
    params.scale_a = args.scale_a;
    params.scale_b = args.scale_b;
    params.d.data = args.d;
    params.d.leading = args.d_leading;
    params.d.batch_stride = args.d_batch_stride;
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), params.operands);
    params.groups = args.groups;
    params.m = args.m;
    params.n = args.n;
    params.k = args.k;
    shape.grid = dim3(static_cast<unsigned>(grid));
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
