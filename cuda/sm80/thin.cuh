// GEMMs of many rows by a weight that stays in shared memory, beside which matrices of the epilogue leave no room for
// strips of rows (sm90/thin/kernel.cuh): 1x1 convolutions to many channels with a residual. Each warp takes strips of 16
// rows, loads them straight into the fragments of mma.sync and stores its results from there: neither goes through shared
// memory, and no warp waits for another.
//
// Which place in K and which column of D an index of a fragment stands for is free, as long as A and B agree. In a block of
// 32 along K each thread takes eight neighbours, 16 bytes of a row of A, so a warp loads 64 bytes of each row: whole
// sectors. Likewise four accumulators hold a group of 32 columns so that each thread has eight neighbours of a row of D.
#pragma once

#include <algorithm>
#include <cute/arch/mma_sm80.hpp>
#include <tuple>

#include "core/launch.h"
#include "core/sm_limit.h"
#include "epilogue/apply.cuh"

namespace cutwheel::gemm {

// Tile: the rows of all warps, and columns and K that a warp multiplies at once. A K of one such part stays in registers
// for all columns. Of a longer one the parts follow each other, once for each part of the columns.
template <Arch arch_, DType a_, DType b_, DType acc_, DType d_, Layout layout_a_, Layout layout_b_, class Tile,
          template <DType> class Epilogue_>
struct Sm80Thin {
  static_assert(a_ == b_ && a_ == d_ && layout_a_ == Layout::row);
  using E = Element<a_>;
  using Epilogue = Epilogue_<d_>;
  using Mma =
      std::conditional_t<a_ == DType::bf16, cute::SM80_16x8x16_F32BF16BF16F32_TN, cute::SM80_16x8x16_F32F16F16F32_TN>;

  static constexpr int kWarps = 8, kVector = 8;  // elements in 16 bytes
  static constexpr int kRows = 16, kHalves = 2;
  static constexpr int kGroup = 32, kGroups = Tile::kN / kGroup;
  static constexpr int kBlock = 32, kBlocks = Tile::kK / kBlock;
  static_assert(Tile::kM == kRows * kWarps && Tile::kN % kGroup == 0 && Tile::kK % kBlock == 0);
  static constexpr int kMaxThreads = 32 * kWarps;
  static constexpr int kMinBlocks = 2;
  static constexpr int kPieceVectors = kGroup * kBlock / kVector;  // of the weight: 32 columns, 32 along K
  static constexpr int kSharedStorageBytes = kPieceVectors * 16;   // of the smallest weight

  struct Params {
    E const* a;
    E const* b;
    E* d;
    std::int64_t a_pitch, b_pitch, d_pitch;
    int m, n, k;
    int groups, blocks, parts;  // of 32 columns, of 32 along K, and of the tile's K
    int strips;
    EpilogueValue operands[kMaxEpilogueOperands];
  };

  using Rows = uint4[kHalves][kBlocks];

  // Of rows lane / 4 + 8 i the elements 32 j + 8 (lane % 4) and their neighbours of a part of K.
  CUTLASS_DEVICE static void load_rows(Rows& to, Params const& p, int strip, int part, int lane) {
    std::int64_t const first = std::int64_t{strip} * kRows + lane / 4;
    int const k = part * Tile::kK + lane % 4 * kVector;
    E const* const from = p.a + first * p.a_pitch + k;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHalves; ++i) {
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        to[i][j] = uint4{};
        if (first + 8 * i < p.m && k + j * kBlock < p.k) {
          to[i][j] = __ldg(reinterpret_cast<uint4 const*>(from + 8 * i * p.a_pitch + j * kBlock));
        }
      }
    }
  }

  // Where the eight elements of column n lie that begin at 8 * octet: in the order in which lanes read them.
  CUTLASS_DEVICE static int place_of(Params const& p, int n, int octet) {
    int const within = n % kGroup, lane = (within / 8 * 2 + within % 2) * 4 + octet % 4;
    return ((n / kGroup * p.blocks + octet / 4) * 4 + within % 8 / 2) * 32 + lane;
  }

  // The weight, with zeros up to whole groups and blocks.
  CUTLASS_DEVICE static void load_weight(uint4* weight, Params const& p) {
    int const octets = p.blocks * 4;
    if constexpr (layout_b_ == Layout::column) {
      for (int i = threadIdx.x; i < p.groups * kGroup * octets; i += kMaxThreads) {
        int const n = i / octets, octet = i % octets;
        bool const is_there = n < p.n && octet * kVector < p.k;
        weight[place_of(p, n, octet)] =
            is_there ? __ldg(reinterpret_cast<uint4 const*>(p.b + n * p.b_pitch + octet * kVector)) : uint4{};
      }
    } else {
      int const pairs = p.groups * kGroup / 2;
      for (int i = threadIdx.x; i < pairs * octets; i += kMaxThreads) {
        int const n = i % pairs * 2, octet = i / pairs;
        std::uint32_t words[kVector] = {};
        if (n < p.n && octet * kVector < p.k) {
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < kVector; ++j) {
            words[j] = __ldg(reinterpret_cast<std::uint32_t const*>(p.b + (octet * kVector + j) * p.b_pitch + n));
          }
        }
        auto const half = [&](unsigned selector) {
          return uint4{__byte_perm(words[0], words[1], selector), __byte_perm(words[2], words[3], selector),
                       __byte_perm(words[4], words[5], selector), __byte_perm(words[6], words[7], selector)};
        };
        int const place = place_of(p, n, octet);
        weight[place] = half(0x5410);
        weight[place + 4] = half(0x7632);  // of the next column
      }
    }
  }

  using Values = cutlass::Array<float, kVector>;

  // The epilogue. Its rows lie behind the weight as floats, matrices are read like A.
  template <class... Ops>
  struct Output {
    using Apply = epilogue::Apply<Epilogue, d_, epilogue::OperandList<Ops...>, typename Epilogue::Stores>;
    static_assert(Apply::kStores == 0 && Apply::kWidth == Width::same);
    static constexpr int kCount = sizeof...(Ops);
    template <class Op>
    static constexpr bool kIsRow = Op::kKind == OperandKind::row;
    template <class Op>
    static constexpr bool kIsMatrix = Op::kKind == OperandKind::matrix;
    static constexpr int kRowOperands = (0 + ... + kIsRow<Ops>);

    template <class Op>
    static constexpr int rank_of() {
      return (0 + ... + (kIsRow<Ops> && Ops::kIndex < Op::kIndex));
    }

    template <class Op>
    CUTLASS_DEVICE static void copy(float* rows, Params const& p) {
      if constexpr (kIsRow<Op>) {
        using V = Element<Op::kType>;
        auto const* const from = static_cast<V const*>(p.operands[Op::kIndex].data);
        int const columns = p.groups * kGroup;
        for (int i = threadIdx.x; i < columns; i += kMaxThreads) {
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

    // Eight columns of two rows.
    struct Matrices {
      uint4 values[kHalves][kCount > 0 ? kCount : 1];
    };
    template <class Op>
    CUTLASS_DEVICE static void load(uint4& to, Params const& p, int row, int column) {
      static_assert(!kIsMatrix<Op> || Op::kType == d_);
      if constexpr (kIsMatrix<Op>) {
        EpilogueValue const& operand = p.operands[Op::kIndex];
        to = uint4{};
        if (operand.data && row < p.m && column < p.n) {
          to = *reinterpret_cast<uint4 const*>(static_cast<E const*>(operand.data) + row * operand.leading + column);
        }
      }
    }
    template <std::size_t... I>
    CUTLASS_DEVICE static void load(Matrices& to, Params const& p, int row, int column, std::index_sequence<I...>) {
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < kHalves; ++half) (load<Ops>(to.values[half][I], p, row + 8 * half, column), ...);
    }
    CUTLASS_DEVICE static void load(Matrices& to, Params const& p, int row, int column) {
      load(to, p, row, column, std::index_sequence_for<Ops...>{});
    }

    template <class Op>
    CUTLASS_DEVICE static Values input(Params const& p, float const* rows, int column, uint4 const& matrix) {
      Values values;
      if constexpr (Op::kKind == OperandKind::scalar) {
        values.fill(p.operands[Op::kIndex].value);
      } else if constexpr (kIsRow<Op>) {
        auto const* const from = reinterpret_cast<float4 const*>(rows + rank_of<Op>() * p.groups * kGroup + column);
        float4 const both[2] = {from[0], from[1]};
        memcpy(&values, both, sizeof(values));
      } else {
        values =
            cutlass::NumericArrayConverter<float, E, kVector>{}(epilogue::bit_cast<cutlass::Array<E, kVector>>(matrix));
      }
      return values;
    }
    template <std::size_t... I>
    CUTLASS_DEVICE static uint4 run(Values const& sums, Params const& p, float const* rows, int column,
                                    Matrices const& matrices, int half, std::index_sequence<I...>) {
      typename Apply::template StoreFragments<kVector> stores;
      std::tuple const inputs{input<Ops>(p, rows, column, matrices.values[half][I])...};
      return epilogue::bit_cast<uint4>(Apply::run(sums, inputs, stores));
    }
    CUTLASS_DEVICE static uint4 run(Values const& sums, Params const& p, float const* rows, int column,
                                    Matrices const& matrices, int half) {
      return run(sums, p, rows, column, matrices, half, std::index_sequence_for<Ops...>{});
    }
  };
  template <class... Ops>
  static Output<Ops...> output_of(epilogue::OperandList<Ops...>);
  using Out = decltype(output_of(typename Epilogue::Operands{}));

  using Sums = float[kGroups][4][4];

  // Adds the products of a part of K and of as many groups as there are from the first one on.
  CUTLASS_DEVICE static void multiply(Sums& sums, Rows const& a, uint4 const* weight, Params const& p, int first, int part,
                                      int lane) {
    int const groups = p.groups - first, blocks = p.blocks - part * kBlocks;
    uint4 const* const pieces = weight + (first * p.blocks + part * kBlocks) * kPieceVectors + lane;
    CUTLASS_PRAGMA_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      if (block >= blocks) break;
      CUTLASS_PRAGMA_UNROLL
      for (int group = 0; group < kGroups; ++group) {
        if (group >= groups) break;
        CUTLASS_PRAGMA_UNROLL
        for (int j = 0; j < 4; ++j) {
          uint4 const b = pieces[(group * p.blocks + block) * kPieceVectors + j * 32];
          uint4 const &upper = a[0][block], &lower = a[1][block];
          float (&s)[4] = sums[group][j];
          Mma::fma(s[0], s[1], s[2], s[3], upper.x, lower.x, upper.y, lower.y, b.x, b.y, s[0], s[1], s[2], s[3]);
          Mma::fma(s[0], s[1], s[2], s[3], upper.z, lower.z, upper.w, lower.w, b.z, b.w, s[0], s[1], s[2], s[3]);
        }
      }
    }
  }

  CUTLASS_DEVICE static void store(Sums const& sums, typename Out::Matrices const (&matrices)[kGroups], float const* rows,
                                   Params const& p, int row, int first_column) {
    CUTLASS_PRAGMA_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      int const column = first_column + group * kGroup;
      if (column >= p.n) break;
      CUTLASS_PRAGMA_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        Values values;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kVector; ++i) values[i] = sums[group][i / 2][half * 2 + i % 2];
        uint4 const result = Out::run(values, p, rows, column, matrices[group], half);
        if (row + 8 * half < p.m) *reinterpret_cast<uint4*>(p.d + (row + 8 * half) * p.d_pitch + column) = result;
      }
    }
  }

  CUTLASS_DEVICE static void device(Params const& p) {
    extern __shared__ uint4 weight[];
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    int const lane = threadIdx.x % 32, step = gridDim.x * kWarps;
    int strip = blockIdx.x * kWarps + threadIdx.x / 32;
    Rows a, next;  // loaded while the ones before are multiplied
    load_rows(a, p, strip, 0, lane);
    load_weight(weight, p);
    auto* const rows = reinterpret_cast<float*>(weight + p.groups * p.blocks * kPieceVectors);
    Out::copy_rows(rows, p);
    __syncthreads();
    bool const stays = p.parts == 1;
    for (; strip < p.strips; strip += step) {
      if (stays) load_rows(next, p, strip + step, 0, lane);
      int const row = strip * kRows + lane / 4;
      for (int first = 0; first < p.groups; first += kGroups) {
        int const column = first * kGroup + lane % 4 * kVector;
        typename Out::Matrices matrices[kGroups];
        CUTLASS_PRAGMA_UNROLL
        for (int group = 0; group < kGroups; ++group) Out::load(matrices[group], p, row, column + group * kGroup);
        Sums sums = {};
        for (int part = 0; part < p.parts; ++part) {
          bool const is_last = part + 1 == p.parts, ends = is_last && first + kGroups >= p.groups;
          if (!stays) load_rows(next, p, ends ? strip + step : strip, is_last ? 0 : part + 1, lane);
          multiply(sums, a, weight, p, first, part, lane);
          if (!stays) memcpy(&a, &next, sizeof(a));
        }
        store(sums, matrices, rows, p, row, column);
      }
      if (stays) memcpy(&a, &next, sizeof(a));
    }
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
    params.groups = ceil_div(args.n, kGroup);
    params.blocks = ceil_div(args.k, kBlock);
    params.parts = ceil_div(params.blocks, kBlocks);
    params.strips = ceil_div(args.m, kRows);
    std::copy(std::begin(args.epilogue), std::end(args.epilogue), params.operands);
    LaunchShape shape;
    shape.shared_memory_bytes = params.groups * (params.blocks * kPieceVectors * 16 + Out::kRowOperands * kGroup * 4);
    if (args.batch != 1 || !Out::meets_alignment(args) || shape.shared_memory_bytes > device.shared_memory_bytes) {
      return {StatusCode::not_implementable};
    }
    if (Status const status = attributes.prepare(kernel, device.ordinal, device.shared_memory_bytes); !status.good()) {
      return status;
    }
    constexpr int kReserved = 1024;  // of shared memory, for each threadblock
    int const fitting = (device.shared_memory_bytes + kReserved) / (shape.shared_memory_bytes + kReserved);
    int const on_sm = leaves_sms(device.sm_count) ? 1 : std::clamp(fitting, 1, kMinBlocks);
    shape.grid = dim3(static_cast<unsigned>(std::min(ceil_div(params.strips, kWarps), device.sm_count * on_sm)));
    shape.block = dim3(kMaxThreads);
    shape.dependent_launch = arch_ == Arch::sm90a;
    return launch_kernel(kernel, shape, params, args.stream);
  }
};

}  // namespace cutwheel::gemm
