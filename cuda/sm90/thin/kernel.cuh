// GEMMs of many rows by a weight that stays in shared memory: 1x1 convolutions of few channels and their dgrad, which
// memory bounds. Each warpgroup takes strips of 64 rows through stages of its own and waits for no other. Rows that follow
// each other are one piece of memory, whatever their length: a bulk copy brings them, and another one takes the results
// away.
//
// Such rows are no layout that wgmma reads, so A goes through registers. Which place in K and which column of D an index of
// a fragment stands for is free, as long as A and B agree. In a block of 32 along K each thread has eight neighbours, 16
// bytes of a row of A. Likewise the accumulators of a group of 32 columns are, in each thread, eight neighbours of two rows
// of D.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cutlass/arch/memory_sm80.h>

#include <algorithm>
#include <cute/arch/copy_sm90_tma.hpp>
#include <tuple>
#include <utility>

#include "core/launch.h"
#include "epilogue/apply.cuh"
#include "sm90/dependent_grids.cuh"
#include "sm90/native/load/tiles.cuh"
#include "sm90/native/wgmma.cuh"
#include "sm90/thin/shape.h"

namespace cutwheel::gemm {

// Tile: the rows of a strip; the columns, and the part of K, that are multiplied at once.
template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile,
          template <DType> class Epilogue_>
struct Thin {
  static_assert(a_ == b_ && a_ == d_ && layout_a_ == Layout::row);
  using E = Element<a_>;
  using Epilogue = Epilogue_<d_>;
  using Barrier = cutlass::arch::ClusterTransactionBarrier;
  using Weight = Sm90TileOperand<E, Tile::kN, ThinShape::kLineK, cute::SM90::GMMA::Major::K>;
  using Instruction =
      decltype(cute::SM90::GMMA::rs_op_selector<E, E, float, cute::Shape<cute::_64, cute::Int<Tile::kN>, cute::_64>,
                                                cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>());

  static constexpr int kVector = 8;  // elements in 16 bytes
  static constexpr int kRows = ThinShape::kRows, kColumns = Tile::kN;
  static constexpr int kGroup = 32, kGroups = kColumns / kGroup;
  static constexpr int kBlock = 32, kAtOnce = Tile::kK / kBlock;  // blocks of K
  static_assert(Tile::kM == kRows && kColumns % kGroup == 0 && (Tile::kK == kBlock || Tile::kK == ThinShape::kLineK));
  static constexpr int kMaxThreads = 128 * ThinShape::kMostWarpgroups;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = Weight::kBytes + ThinShape::kBarrierBytes;  // of the smallest weight

  struct Params {
    E const* a;
    E const* b;
    E* d;
    std::int64_t a_pitch, b_pitch, d_pitch;
    int m, n, k;
    int strips;
    ThinShape shape;
    bool is_in_pieces;  // some rows do not follow each other: threads load them
    EpilogueValue operands[kMaxEpilogueOperands];
  };

  // Writes eight elements of column n, from 8 * octet on, to where wgmma finds them beside A. They meet one thread's part
  // of a block of 32: four words, of which each instruction takes two, one in each half of its K.
  CUTLASS_DEVICE static void put(uint4* weight, Params const& p, int n, int octet, uint4 const& values) {
    int const within = n % kGroup, place = within % 8 / 2 * 8 + within / 8 * 2 + within % 2;
    int const column = n % kColumns / kGroup * kGroup + place;
    int const line = n / kColumns * p.shape.lines + octet / 8;
    auto* const words = reinterpret_cast<std::uint32_t*>(weight + Weight::offset(column, 0, line));
    std::uint32_t const four[] = {values.x, values.y, values.z, values.w};
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; ++i) words[((octet % 8 / 4 * 4 + i) ^ (column % 8)) * 4 + octet % 4] = four[i];
  }

  // A load of the weight, which nobody writes meanwhile. It is volatile so that the compiler leaves it before the loads of
  // rows: behind them it would wait until they are done.
  template <class Word>
  CUTLASS_DEVICE static Word load_first(E const* from) {
    if constexpr (sizeof(Word) == 16) {
      uint4 x;
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
      return x;
    } else {
      std::uint32_t x;
      asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(x) : "l"(from));
      return x;
    }
  }

  // The weight, with zeros up to whole passes and lines. then(): what follows the first loads.
  template <class Then>
  CUTLASS_DEVICE static void load_weight(uint4* weight, Params const& p, Then const& then) {
    // Whose loads are on their way together, in 32 registers.
    constexpr bool kIsK = layout_b_ == Layout::column;
    constexpr int kAtOnce = kIsK ? 8 : 4;
    int const octets = p.shape.lines * (ThinShape::kLineK / kVector), columns = p.shape.passes * kColumns;
    int const count = octets * (kIsK ? columns : columns / 2);
    bool is_first = true;
    for (int start = threadIdx.x; start < count; start += kAtOnce * blockDim.x) {
      auto const begin = [&] {
        if (is_first) then();
        is_first = false;
      };
      if constexpr (kIsK) {
        uint4 values[kAtOnce];
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          int const at = start + i * blockDim.x, n = at / octets, octet = at - n * octets;
          values[i] = uint4{};
          if (n < p.n && octet * kVector < p.k) values[i] = load_first<uint4>(p.b + n * p.b_pitch + octet * kVector);
        }
        begin();
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          int const at = start + i * blockDim.x, n = at / octets;
          if (at < count) put(weight, p, n, at - n * octets, values[i]);
        }
      } else {
        int const pairs = columns / 2;
        std::uint32_t words[kAtOnce][kVector] = {};
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          int const at = start + i * blockDim.x, octet = at / pairs, n = (at - octet * pairs) * 2;
          if (n >= p.n || octet * kVector >= p.k) continue;
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kVector; ++j) {
            words[i][j] = load_first<std::uint32_t>(p.b + (octet * kVector + j) * p.b_pitch + n);
          }
        }
        begin();
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          int const at = start + i * blockDim.x, octet = at / pairs, n = (at - octet * pairs) * 2;
          if (at >= count) break;
          auto const half = [&](unsigned selector) {
            return uint4{__byte_perm(words[i][0], words[i][1], selector), __byte_perm(words[i][2], words[i][3], selector),
                         __byte_perm(words[i][4], words[i][5], selector), __byte_perm(words[i][6], words[i][7], selector)};
          };
          put(weight, p, n, octet, half(0x5410));
          put(weight, p, n + 1, octet, half(0x7632));
        }
      }
    }
    if (is_first) then();
  }

  using Values = cutlass::Array<float, kVector>;

  // The epilogue. Its rows lie behind the weight as floats, strips of its matrices in the stages.
  template <class... Ops>
  struct Output {
    using Apply = epilogue::Apply<Epilogue, d_, epilogue::OperandList<Ops...>, typename Epilogue::Stores>;
    static_assert(Apply::kStores == 0 && Apply::kWidth == Width::same);
    template <class Op>
    static constexpr bool kIsRow = Op::kKind == OperandKind::row;
    template <class Op>
    static constexpr bool kIsMatrix = Op::kKind == OperandKind::matrix;
    static constexpr int kRowOperands = (0 + ... + kIsRow<Ops>), kMatrices = (0 + ... + kIsMatrix<Ops>);

    template <class Op>
    static constexpr int rank_of() {
      return (0 + ... + (Op::kKind == Ops::kKind && Ops::kIndex < Op::kIndex));
    }

    template <class Op>
    CUTLASS_DEVICE static void copy(float* rows, Params const& p) {
      if constexpr (kIsRow<Op>) {
        using V = Element<Op::kType>;
        auto const* const from = static_cast<V const*>(p.operands[Op::kIndex].data);
        int const columns = p.shape.passes * kColumns;
        for (int i = threadIdx.x; i < columns; i += blockDim.x) {
          rows[rank_of<Op>() * columns + i] = from && i < p.n ? cutlass::NumericConverter<float, V>{}(from[i]) : 0.f;
        }
      }
    }
    CUTLASS_DEVICE static void copy_rows(float* rows, Params const& p) { (copy<Ops>(rows, p), ...); }

    static bool is_aligned(EpilogueValue const& x) {
      return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.leading % kVector == 0;
    }
    static bool meets_alignment(GemmArgs const& args) {
      return ((!kIsMatrix<Ops> || is_aligned(args.epilogue[Ops::kIndex])) && ... && true);
    }

    template <class Op, class Visit>
    CUTLASS_HOST_DEVICE static void visit_one(Visit const& visit, EpilogueValue const* operands) {
      if constexpr (kIsMatrix<Op>) {
        static_assert(Op::kType == d_);
        EpilogueValue const& operand = operands[Op::kIndex];
        if (operand.data) visit(static_cast<E const*>(operand.data), operand.leading, rank_of<Op>());
      }
    }
    // Matrices that are given: where they lie, their pitch, and which strip of a stage is theirs.
    template <class Visit>
    CUTLASS_HOST_DEVICE static void visit_matrices(Visit const& visit, EpilogueValue const* operands) {
      (visit_one<Ops>(visit, operands), ...);
    }

    // Eight columns of a row of a strip, the first of which is element `at` of it.
    template <class Op>
    CUTLASS_DEVICE static Values input(Params const& p, float const* rows, std::uint8_t const* matrices, int column,
                                       int at) {
      Values values;
      if constexpr (Op::kKind == OperandKind::scalar) {
        values.fill(p.operands[Op::kIndex].value);
      } else if constexpr (kIsRow<Op>) {
        auto const* const from = reinterpret_cast<float4 const*>(rows + rank_of<Op>() * p.shape.passes * kColumns + column);
        float4 const both[2] = {from[0], from[1]};
        memcpy(&values, both, sizeof(values));
      } else {
        uint4 packed{};
        if (p.operands[Op::kIndex].data && column < p.n) {
          auto const* const strip = reinterpret_cast<E const*>(matrices + rank_of<Op>() * p.shape.matrix_bytes);
          packed = *reinterpret_cast<uint4 const*>(strip + at);
        }
        values =
            cutlass::NumericArrayConverter<float, E, kVector>{}(epilogue::bit_cast<cutlass::Array<E, kVector>>(packed));
      }
      return values;
    }
    CUTLASS_DEVICE static uint4 run(Values const& sums, Params const& p, float const* rows, std::uint8_t const* matrices,
                                    int column, int at) {
      typename Apply::template StoreFragments<kVector> stores;
      std::tuple const inputs{input<Ops>(p, rows, matrices, column, at)...};
      return epilogue::bit_cast<uint4>(Apply::run(sums, inputs, stores));
    }
  };
  template <class... Ops>
  static Output<Ops...> output_of(epilogue::OperandList<Ops...>);
  using Out = decltype(output_of(typename Epilogue::Operands{}));
  // Results take the place of what the epilogue read.
  static constexpr bool kInPlace = Out::kMatrices > 0;

  // `rows` rows of a matrix one behind the other, by a warpgroup. Those that follow each other in memory, too, by one copy.
  CUTLASS_DEVICE static void load_rows(std::uint8_t* to, E const* from, std::int64_t pitch, int columns, int rows,
                                       std::uint64_t* full, int thread) {
    if (pitch == columns) {
      if (thread == 0) cute::SM90_BULK_COPY_G2S::copy(from, full, to, rows * columns * 2);
      return;
    }
    for (int row = thread / 32; row < rows; row += 4) {
      for (int column = thread % 32 * kVector; column < columns; column += 32 * kVector) {
        cutlass::arch::cp_async<16, cutlass::arch::CacheOperation::Global>(to + (row * columns + column) * 2,
                                                                           from + row * pitch + column);
      }
    }
  }

  CUTLASS_DEVICE static void load_strip(std::uint8_t* stage, std::uint64_t* full, Params const& p, int strip, int thread) {
    std::int64_t const first = std::int64_t{strip} * kRows;
    int const rows = static_cast<int>(std::min<std::int64_t>(kRows, p.m - first));
    if (thread == 0) {
      int bytes = p.a_pitch == p.k ? rows * p.k * 2 : 0;
      Out::visit_matrices([&](E const*, std::int64_t pitch, int) { bytes += pitch == p.n ? rows * p.n * 2 : 0; },
                          p.operands);
      Barrier::arrive_and_expect_tx(full, bytes);
    }
    load_rows(stage, p.a + first * p.a_pitch, p.a_pitch, p.k, rows, full, thread);
    Out::visit_matrices(
        [&](E const* from, std::int64_t pitch, int rank) {
          load_rows(stage + p.shape.a_bytes + rank * p.shape.matrix_bytes, from + first * pitch, pitch, p.n, rows, full,
                    thread);
        },
        p.operands);
    if (p.is_in_pieces) cutlass::arch::cpasync_barrier_arrive_noinc(full);
  }

  static constexpr int kValues = kColumns / 2;
  using Sums = Sm90Accumulator<float, kValues>;

  template <std::size_t... i>
  CUTLASS_DEVICE static void multiply(std::uint32_t const (&a)[4], cute::GmmaDescriptor b, Sums& sums,
                                      cute::SM90::GMMA::ScaleOut scale, std::index_sequence<i...>) {
    Instruction::fma(a[0], a[1], a[2], a[3], b, sums(static_cast<int>(i))..., scale);
  }

  // A strip by the columns of a pass. Ends when all is read.
  CUTLASS_DEVICE static void multiply(Sums& sums, std::uint8_t const* strip, uint4 const* weight, Params const& p, int pass,
                                      int thread) {
    int const lane = thread % 32, row = thread / 32 * 16 + lane / 4;
    E const* const rows = reinterpret_cast<E const*>(strip) + row * p.k + lane % 4 * kVector;
    int const last = p.k - lane % 4 * kVector;  // elements from there on belong to the next row
    cute::GmmaDescriptor const b =
        sm90_advance(Weight::template descriptor<kColumns>(reinterpret_cast<E const*>(weight), 0),
                     Weight::offset(0, 0, pass * p.shape.lines));
    using Blocks = uint4[kAtOnce][2];
    auto const load = [&](Blocks& a, int k) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        int const at = k + i / 2 * kBlock;
        a[i / 2][i % 2] = uint4{};
        if (at < last) a[i / 2][i % 2] = *reinterpret_cast<uint4 const*>(rows + i % 2 * 8 * p.k + at);
      }
    };
    Blocks next;
    load(next, 0);
    auto scale = cute::SM90::GMMA::ScaleOut::Zero;
    sm90_fence<kValues>(sums);
    CUTLASS_PRAGMA_NO_UNROLL
    for (int k = 0; k < p.k; k += Tile::kK) {
      std::uint32_t a[2 * kAtOnce][4];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        uint4 const &upper = next[i][0], &lower = next[i][1];
        a[2 * i][0] = upper.x, a[2 * i][1] = lower.x, a[2 * i][2] = upper.y, a[2 * i][3] = lower.y;
        a[2 * i + 1][0] = upper.z, a[2 * i + 1][1] = lower.z, a[2 * i + 1][2] = upper.w, a[2 * i + 1][3] = lower.w;
      }
      load(next, k + Tile::kK);
      // Nothing may move these behind the fence, or wgmmas wait for each other (C7513).
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 8 * kAtOnce; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
      cute::warpgroup_arrive();
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2 * kAtOnce; ++i) {
        int const at = k + i * 16;
        multiply(a[i], sm90_advance(b, Weight::offset(0, at % ThinShape::kLineK, at / ThinShape::kLineK)), sums, scale,
                 std::make_index_sequence<kValues>{});
        scale = cute::SM90::GMMA::ScaleOut::One;
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<0>();
    }
    sm90_fence<kValues>(sums);
  }

  // Results of a strip: to `staged`, from where a copy takes them, or to D where its rows do not follow each other.
  CUTLASS_DEVICE static void store(Sums const& sums, std::uint8_t const* matrices, float const* rows, E* staged,
                                   Params const& p, std::int64_t first_row, int first_column, int thread) {
    int const lane = thread % 32, warp_row = thread / 32 * 16 + lane / 4;
    bool const is_staged = p.d_pitch == p.n;
    CUTLASS_PRAGMA_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      int const column = first_column + group * kGroup + lane % 4 * kVector;
      if (first_column + group * kGroup >= p.n) break;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        int const row = warp_row + 8 * i;
        Values values;
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < kVector; ++j) values[j] = sums((group * 4 + j / 2) * 4 + i * 2 + j % 2);
        uint4 const result = Out::run(values, p, rows, matrices, column, row * p.n + column);
        if (column >= p.n) continue;
        if (is_staged) {
          *reinterpret_cast<uint4*>(staged + row * p.n + column) = result;
        } else if (first_row + row < p.m) {
          *reinterpret_cast<uint4*>(p.d + (first_row + row) * p.d_pitch + column) = result;
        }
      }
    }
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ __align__(1024) std::uint8_t shared_memory[];
    ThinShape const& shape = p.shape;
    int const warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
    auto* const weight = reinterpret_cast<uint4*>(shared_memory);
    std::uint8_t* const behind = shared_memory + shape.weight_bytes;
    std::uint64_t* const full = reinterpret_cast<std::uint64_t*>(behind) + warpgroup * ThinShape::kMostStages;
    auto* const rows = reinterpret_cast<float*>(behind + ThinShape::kBarrierBytes);
    std::uint8_t* const stages = behind + ThinShape::kBarrierBytes + shape.row_bytes + warpgroup * shape.warpgroup_bytes();
    auto const synchronize = [&] { cutlass::arch::NamedBarrier::sync(128, static_cast<std::uint32_t>(warpgroup)); };
    if (thread == 0) {
      for (int i = 0; i < shape.stages; ++i) Barrier::init(full + i, p.is_in_pieces ? 129 : 1);
      cutlass::arch::fence_barrier_init();
    }
    wait_on_dependent_grids();
    if (p.is_in_pieces) synchronize();
    int const step = gridDim.x * shape.warpgroups;
    int strip = warpgroup * gridDim.x + blockIdx.x, next = strip;
    load_weight(weight, p, [&] {
      for (int i = 0; i < shape.stages; ++i, next += step) {
        if (next < p.strips) load_strip(stages + i * shape.stage_bytes, full + i, p, next, thread);
      }
    });
    Out::copy_rows(rows, p);
    cutlass::arch::fence_view_async_shared();
    __syncthreads();
    launch_dependent_grids();
    int stage = 0, parity = 0;
    for (; strip < p.strips; strip += step, next += step) {
      std::uint8_t* const at = stages + stage * shape.stage_bytes;
      std::uint8_t* const matrices = at + shape.a_bytes;
      auto* const staged = reinterpret_cast<E*>(kInPlace ? matrices : stages + shape.stages * shape.stage_bytes);
      std::int64_t const first_row = std::int64_t{strip} * kRows;
      Barrier::wait(full + stage, parity);
      for (int pass = 0; pass < shape.passes; ++pass) {
        Sums sums{};
        multiply(sums, at, weight, p, pass, thread);
        if (pass == 0 && !kInPlace) {
          if (thread == 0) cute::tma_store_wait<0>();  // of the strip before
          synchronize();
        }
        store(sums, matrices, rows, staged, p, first_row, pass * kColumns, thread);
      }
      cutlass::arch::fence_view_async_shared();
      synchronize();
      if (thread == 0 && p.d_pitch == p.n) {
        int const count = static_cast<int>(std::min<std::int64_t>(kRows, p.m - first_row));
        cute::SM90_BULK_COPY_S2G::copy(staged, p.d + first_row * p.n, count * p.n * 2);
        cute::tma_store_arrive();
        if (kInPlace) cute::tma_store_wait<0>();  // the stage is loaded again
      }
      if (kInPlace && p.is_in_pieces) synchronize();  // by all threads
      if (next < p.strips) load_strip(at, full + stage, p, next, thread);
      if (++stage == shape.stages) stage = 0, parity ^= 1;
    }
    if (thread == 0) cute::tma_store_wait<0>();
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    static KernelAttributes attributes;
    DeviceInfo const& device = *args.device;
    Params params{static_cast<E const*>(args.a.data),
                  static_cast<E const*>(args.b.data),
                  static_cast<E*>(args.d),
                  args.a.leading,
                  args.b.leading,
                  args.d_leading,
                  args.m,
                  args.n,
                  args.k};
    params.strips = ceil_div(args.m, kRows);
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), params.operands);
    params.is_in_pieces = params.a_pitch != args.k;
    Out::visit_matrices([&](E const*, std::int64_t pitch, int) { params.is_in_pieces |= pitch != args.n; },
                        params.operands);
    bool const fits = ThinShape::plan(params.shape, args.n, args.k, kColumns, Out::kMatrices, Out::kRowOperands,
                                      device.shared_memory_bytes);
    if (args.batch != 1 || !Out::meets_alignment(args) || !fits) return {StatusCode::not_implementable};
    if (Status const status = attributes.prepare(kernel, device.ordinal, device.shared_memory_bytes); !status.good()) {
      return status;
    }
    LaunchShape shape;
    shape.shared_memory_bytes = params.shape.total_bytes();
    shape.grid = dim3(static_cast<unsigned>(std::min(params.strips, device.sm_count)));
    shape.block = dim3(static_cast<unsigned>(128 * params.shape.warpgroups));
    shape.dependent_launch = true;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
