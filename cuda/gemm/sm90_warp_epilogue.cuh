// A generated epilogue, applied by one warpgroup of Hopper to its own rows of a tile. Each warp turns the fragment of wgmma
// into whole rows in shared memory of its own and writes these, so no warpgroup waits for another, nothing beyond D is
// written, and tiles may have any width that wgmma has.
#pragma once

#include <cuda.h>
#include <cutlass/arch/barrier.h>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>

#include <algorithm>

#include "gemm/epilogue.cuh"
#include "gemm/sm90_tile_order.cuh"

namespace cutwheel::gemm {

template <class Epilogue, DType d, int columns, class Operands, class Stores>
struct Sm90WarpEpilogue;

template <class Epilogue, DType d, int columns, class... Operands, class... Stores>
struct Sm90WarpEpilogue<Epilogue, d, columns, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>> {
  using Apply = epilogue::Apply<Epilogue, d, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>>;
  using ElementD = typename Apply::ElementD;  // for one column of the product
  static_assert(sizeof...(Stores) == 0 && columns % 16 == 0);

  static constexpr int kRows = 64;  // of a warpgroup, 16 of each warp
  // Rows of a tile are staged whole, or in passes of at most so many bytes.
  static constexpr int kMaxRowBytes = 512;
  static constexpr int pass_columns() {
    int result = columns;
    while (result * static_cast<int>(sizeof(ElementD)) > kMaxRowBytes || columns % result != 0) result -= 16;
    return result;
  }
  static constexpr int kPassColumns = pass_columns();
  static constexpr int kRowBytes = kPassColumns * static_cast<int>(sizeof(ElementD));
  // A warp's 16 rows lie in shared memory as TMA wants them: one below the other in pieces of so many bytes, swizzled over
  // them against bank conflicts.
  static constexpr int kPieceBytes = kRowBytes % 128 == 0 ? 128 : kRowBytes % 64 == 0 ? 64 : 32;
  static constexpr int kPieces = kRowBytes / kPieceBytes;
  static_assert(kRowBytes % kPieceBytes == 0);

  // A vector along the rows or columns of the tile, as it lies in memory; 0 bytes for other operands.
  template <class Operand>
  static constexpr int kVectorLength = Operand::kKind == OperandKind::row   ? columns
                                       : Operand::kKind == OperandKind::col ? kRows
                                                                            : 0;
  template <class Operand>
  static constexpr int kVectorBytes =
      round_up(kVectorLength<Operand> * static_cast<int>(sizeof(epilogue::ElementOfOperand<Operand>)), 16);
  static constexpr int kAllVectorBytes = (0 + ... + kVectorBytes<Operands>);

  struct alignas(1024) Storage {             // of a warpgroup
    std::uint8_t staged[4][16 * kRowBytes];  // rows of D, for each warp
    std::uint8_t vectors[kAllVectorBytes > 0 ? kAllVectorBytes : 16];
  };

  struct Params {
    EpilogueValue operands[sizeof...(Operands) > 0 ? sizeof...(Operands) : 1];
    std::uint8_t* data;
    std::int64_t pitch, batch_stride;  // of D, in bytes
  };

  static Params params(GemmArgs const& args) {
    Params result{};
    ((result.operands[Operands::kIndex] = args.epilogue[Operands::kIndex]), ...);
    result.data = static_cast<std::uint8_t*>(args.d);
    result.pitch = args.d_leading * element_bytes(d);
    result.batch_stride = args.d_batch_stride * element_bytes(d);
    return result;
  }

  // Vectors are copied four bytes at a time, D is written in sixteen.
  static bool meets_alignment(GemmArgs const& args) {
    auto const aligned = [&](int index, int bytes) {
      return reinterpret_cast<std::uintptr_t>(args.epilogue[index].data) % static_cast<unsigned>(bytes) == 0;
    };
    return reinterpret_cast<std::uintptr_t>(args.d) % 16 == 0 && (args.d_leading * element_bytes(d)) % 16 == 0 &&
           (args.d_batch_stride * element_bytes(d)) % 16 == 0 &&
           ((kVectorBytes<Operands> == 0 || args.epilogue[Operands::kIndex].leading == 0 || aligned(Operands::kIndex, 4)) &&
            ... && true);
  }

  template <class Operand>
  static constexpr int vector_offset() {
    int offset = 0;
    ((offset += Operands::kIndex < Operand::kIndex ? kVectorBytes<Operands> : 0), ...);
    return offset;
  }

  // Starts to copy the vectors of a tile, by all threads of the warpgroup. What lies beyond the problem, or is not given,
  // becomes zeros.
  template <class Operand>
  CUTLASS_DEVICE static void prefetch_one(Params const& p, Storage& storage, Sm90TilePlace const& place, int thread) {
    constexpr int kLength = kVectorLength<Operand>;
    if constexpr (kLength > 0) {
      using E = epilogue::ElementOfOperand<Operand>;
      constexpr int kEach = 4 / static_cast<int>(sizeof(E));
      EpilogueValue const& operand = p.operands[Operand::kIndex];
      bool const is_row = Operand::kKind == OperandKind::row;
      int const first = is_row ? place.n : place.m, end = is_row ? place.end_n : place.end_m;
      bool const is_one = Operand::kMayBeOne && operand.leading == 0;
      auto const* const source = static_cast<E const*>(operand.data) + place.batch * operand.batch_stride;
      std::uint32_t const target = cute::cast_smem_ptr_to_uint(storage.vectors + vector_offset<Operand>());
      for (int i = thread * kEach; i < kLength; i += 128 * kEach) {
        int const left = operand.data ? min(max(end - first - i, 0), kEach) : 0;
        E const* const from = left > 0 ? (is_one ? source : source + first + i) : reinterpret_cast<E const*>(p.data);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target + i * static_cast<int>(sizeof(E))),
                     "l"(from), "r"(left * static_cast<int>(sizeof(E))));
      }
    }
  }

  CUTLASS_DEVICE static void prefetch(Params const& p, Storage& storage, Sm90TilePlace const& place, int thread) {
    (prefetch_one<Operands>(p, storage, place, thread), ...);
  }
  CUTLASS_DEVICE static void wait_for_prefetch() { asm volatile("cp.async.wait_all;" ::: "memory"); }

  // Two neighbouring columns of an operand as floats (four of a wide matrix): `row` and `column` in the tile.
  template <class Operand>
  CUTLASS_DEVICE static auto load(Params const& p, Storage const& storage, Sm90TilePlace const& place, int row,
                                  int column) {
    using E = Element<Operand::kType>;
    EpilogueValue const& operand = p.operands[Operand::kIndex];
    if constexpr (Operand::kKind == OperandKind::scalar) {
      cutlass::Array<float, 2> value;
      value.fill(operand.value);
      return value;
    } else if constexpr (Operand::kKind == OperandKind::row) {
      auto const* const vector = reinterpret_cast<E const*>(storage.vectors + vector_offset<Operand>());
      return cutlass::NumericArrayConverter<float, E, 2>{}(
          *reinterpret_cast<cutlass::AlignedArray<E, 2> const*>(vector + column));
    } else if constexpr (Operand::kKind == OperandKind::col) {
      auto const* const vector = reinterpret_cast<E const*>(storage.vectors + vector_offset<Operand>());
      cutlass::Array<float, 2> value;
      value.fill(cutlass::NumericConverter<float, E>{}(vector[row]));
      return value;
    } else {
      constexpr int kEach = Operand::kKind == OperandKind::wide_matrix ? 2 : 1;
      cutlass::AlignedArray<E, 2 * kEach> fragment;
      fragment.clear();
      if (operand.data && place.m + row < place.end_m) {
        auto const* const source = static_cast<E const*>(operand.data) + place.batch * operand.batch_stride +
                                   (place.m + row) * operand.leading + (place.n + column) * kEach;
        if (place.n + column + 1 < place.end_n) {
          fragment = *reinterpret_cast<cutlass::AlignedArray<E, 2 * kEach> const*>(source);
        } else if (place.n + column < place.end_n) {
          for (int i = 0; i < kEach; ++i) fragment[i] = source[i];
        }
      }
      return cutlass::NumericArrayConverter<float, E, 2 * kEach>{}(fragment);
    }
  }

  // value(c + 2 r + 4 j): the accumulator of row `lane / 4 + 8 r` of the warp's 16 and of column 8 j + 2 (lane % 4) + c.
  template <class Value>
  CUTLASS_DEVICE static void store(Params const& p, CUtensorMap const& map, Storage& storage, Sm90TilePlace const& place,
                                   int thread, Value const& value) {
    int const lane = thread % 32, warp = thread / 32 % 4, first_row = warp * 16;
    std::uint8_t* const staged = storage.staged[warp];
    constexpr int kD = static_cast<int>(sizeof(ElementD));
    CUTLASS_PRAGMA_UNROLL
    for (int pass = 0; pass < columns; pass += kPassColumns) {
      // First all results, then all stores: loads of operands would not pass a store.
      cutlass::Array<ElementD, 2> results[kPassColumns / 8][2];
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kPassColumns / 8; ++j) {
        CUTLASS_PRAGMA_UNROLL
        for (int r = 0; r < 2; ++r) {
          int const row = first_row + 8 * r + lane / 4, column = pass + 8 * j + 2 * (lane % 4);
          cutlass::Array<std::decay_t<decltype(value(0))>, 2> accum;
          accum[0] = value(pass / 2 + 4 * j + 2 * r);
          accum[1] = value(pass / 2 + 4 * j + 2 * r + 1);
          typename Apply::template StoreFragments<2> stores;
          std::tuple const inputs{load<Operands>(p, storage, place, row, column)...};
          results[j][r] = Apply::run(accum, inputs, stores);
        }
      }
      wait_until_read();
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kPassColumns / 8; j += 2) {
        if constexpr (kD == 2) {
          std::uint32_t words[4];
          memcpy(words, results[j], sizeof(words));
          // Lanes name rows: 0 to 15 those of the first 8 columns, 16 to 31 of the next 8.
          auto* const to = staged + offset_of(lane % 16, 16 * j, lane / 16 * 16);
          cute::SM90_U32x4_STSM_N::copy(words[0], words[1], words[2], words[3], *reinterpret_cast<cute::uint128_t*>(to));
        } else {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < 4; ++i) {
            auto* const to = staged + offset_of(8 * (i % 2) + lane / 4, 8 * (j + i / 2) * kD, 2 * (lane % 4) * kD);
            memcpy(__builtin_assume_aligned(to, 2 * kD), &results[j + i / 2][i % 2], 2 * kD);
          }
        }
      }
      bool const whole = place.m + first_row + 16 <= place.end_m && place.n + pass + kPassColumns <= place.end_n;
      if (whole) cutlass::arch::fence_view_async_shared();
      __syncwarp();
      if (whole) {
        send(p, map, staged, place, first_row, pass, lane);
      } else {
        write_part(p, staged, place, first_row, pass, lane);
      }
    }
  }

  // Until the copies of this warp have read its rows, so that others may take their place.
  CUTLASS_DEVICE static void wait_until_read() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    __syncwarp();
  }

  // D as bytes: [batch, pieces of a row, rows, bytes of a piece].
  static void encode_map(CUtensorMap& map, GemmArgs const& args) {
    constexpr int kD = static_cast<int>(sizeof(ElementD)), kPieceColumns = kPieceBytes / kD;
    auto const positive = [](std::int64_t x) { return static_cast<cuuint64_t>(std::max<std::int64_t>(x, 1)); };
    auto const bytes = [](std::int64_t x) { return static_cast<cuuint64_t>(x * element_bytes(d)); };
    cuuint64_t const extents[] = {kPieceBytes, positive(args.m), positive(args.n / kPieceColumns), positive(args.batch)};
    cuuint64_t const strides[] = {bytes(args.d_leading), kPieceBytes, bytes(args.d_batch_stride)};
    cuuint32_t const box[] = {kPieceBytes, 16, kPieces, 1}, steps[] = {1, 1, 1, 1};
    cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, args.d, extents, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE,
                           kPieceBytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                           : kPieceBytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                               : CU_TENSOR_MAP_SWIZZLE_32B,
                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }

 private:
  // Of byte `first + rest` of a row of a warp's 16, where `first` is known to the compiler.
  CUTLASS_DEVICE static int offset_of(int row, int first, int rest) {
    int const at = first + rest, piece = first / kPieceBytes;
    int const swizzle = row * kPieceBytes / 128 % (kPieceBytes / 16) * 16;
    return (piece * 16 + row) * kPieceBytes + ((at - piece * kPieceBytes) ^ swizzle);
  }

  // One copy for all rows and columns; nothing waits for its arrival.
  CUTLASS_DEVICE static void send(Params const& p, CUtensorMap const& map, std::uint8_t const* staged,
                                  Sm90TilePlace const& place, int first_row, int first_column, int lane) {
    constexpr int kPieceColumns = kPieceBytes / static_cast<int>(sizeof(ElementD));
    if (lane == 0) {
      cute::SM90_TMA_STORE_4D::copy(&map, staged, 0, place.m + first_row, (place.n + first_column) / kPieceColumns,
                                    place.batch);
      cute::tma_store_arrive();
    }
  }

  // Rows and columns that the problem has, and not a byte more.
  CUTLASS_DEVICE static void write_part(Params const& p, std::uint8_t const* staged, Sm90TilePlace const& place,
                                        int first_row, int first_column, int lane) {
    constexpr int kD = static_cast<int>(sizeof(ElementD)), kChunks = kRowBytes / 16;
    std::int64_t const first_byte = std::int64_t{place.n + first_column} * kD;
    std::uint8_t* const target = p.data + place.batch * p.batch_stride + first_byte;
    int const row_bytes = static_cast<int>(std::min<std::int64_t>(std::int64_t{place.end_n} * kD - first_byte, kRowBytes));
    for (int i = lane; i < 16 * kChunks; i += 32) {
      int const row = i / kChunks, at = i % kChunks * 16, left = row_bytes - at;
      if (place.m + first_row + row >= place.end_m || left <= 0) continue;
      int const piece = at / kPieceBytes * kPieceBytes;
      auto const* const from = staged + offset_of(row, piece, at - piece);
      std::uint8_t* const to = target + (place.m + first_row + row) * p.pitch + at;
      if (left >= 16) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
      } else {
        using Bits = typename epilogue::UnsignedOf<sizeof(Element<d>)>::type;
        for (int b = 0; b < left; b += static_cast<int>(sizeof(Bits))) {
          *reinterpret_cast<Bits*>(to + b) = *reinterpret_cast<Bits const*>(from + b);
        }
      }
    }
  }
};

}  // namespace cutwheel::gemm
