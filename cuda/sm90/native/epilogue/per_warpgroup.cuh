// A generated epilogue, applied by one warpgroup of Hopper to its own rows of a tile. Each warp turns the fragment of wgmma
// into whole rows in shared memory of its own and writes these, so no warpgroup waits for another, nothing beyond D is
// written, and tiles may have any width that wgmma has.
#pragma once

#include "sm90/native/epilogue/prefetch.cuh"
#include "sm90/native/epilogue/staged_rows.cuh"

namespace cutwheel::gemm {

// How the rows of a tile are staged and stored. Whoever reads matrices stores whole rows all the same (by threads, rows
// with a matrix in their place took up to 1.1 times as long), and so does who has columns of another width that do not make
// up lines.
enum class RowStores {
  whole,     // by TMA
  in_lines,  // by TMA, 128 bytes of a row at a time, in places that take turns; by threads where lines do not make up a row
  by_threads  // 128 bytes of a row at a time
};

template <class Epilogue, DType d, int columns, class Operands, class Stores, RowStores row_stores = RowStores::whole,
          int blocks = 1>
struct Sm90PerWarpgroupEpilogue;

// blocks: of 64 rows that a warpgroup has in a tile.
template <class Epilogue, DType d, int columns, class... Operands, class... Stores, RowStores row_stores, int blocks>
struct Sm90PerWarpgroupEpilogue<Epilogue, d, columns, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>,
                                row_stores, blocks> {
  using Apply = epilogue::Apply<Epilogue, d, epilogue::OperandList<Operands...>, epilogue::OperandList<Stores...>>;
  using ElementD = typename Apply::ElementD;  // for one accumulator column
  using E = Element<d>;                       // of the stores besides D, too
  static constexpr int kStores = sizeof...(Stores);
  static_assert(columns % 8 == 0);

  static constexpr int kRows = 64;  // of a warpgroup, 16 of each warp
  // Rows of a tile are staged whole, or in passes of at most so many bytes.
  static constexpr int kMaxRowBytes = 512;
  static constexpr int kWidest = static_cast<int>(kStores > 0 ? std::max(sizeof(ElementD), sizeof(E)) : sizeof(ElementD));
  static constexpr int pass_columns() {
    int result = columns;
    while (result * kWidest > kMaxRowBytes || columns % result != 0) result -= 16;
    return result;
  }
  static constexpr bool kHasMatrix = (false || ... || (Operands::kKind == OperandKind::matrix));
  static constexpr int kLineColumns = 128 / kWidest;
  static constexpr bool kInLines = row_stores == RowStores::in_lines && !kHasMatrix && columns % kLineColumns == 0;
  static constexpr bool kByThreads =
      row_stores != RowStores::whole && !kInLines && Apply::kWidth == Width::same && !kHasMatrix;
  static constexpr int kPassColumns = kInLines     ? kLineColumns
                                      : kByThreads ? std::min(columns, kLineColumns)
                                                   : pass_columns();
  static constexpr int kPlaces = kInLines ? 2 : 1, kPlaceBytes = 16 * kPassColumns * kWidest;
  using Rows = Sm90StagedRows<kPassColumns, static_cast<int>(sizeof(ElementD)), static_cast<int>(sizeof(E))>;
  using StoreRows = Sm90StagedRows<kPassColumns, static_cast<int>(sizeof(E)), static_cast<int>(sizeof(E))>;

  // A vector along the rows or columns of the tile, as it lies in memory; 0 bytes for other operands.
  template <class Operand>
  static constexpr int kVectorLength = Operand::kKind == OperandKind::row   ? columns
                                       : Operand::kKind == OperandKind::col ? kRows
                                                                            : 0;
  template <class Operand>
  static constexpr int kVectorBytes =
      round_up(kVectorLength<Operand> * static_cast<int>(sizeof(epilogue::ElementOfOperand<Operand>)), 16);
  static constexpr int kAllVectorBytes = (0 + ... + kVectorBytes<Operands>);

  // Matrices that are copied to shared memory during the mainloop: read later, in the order of wgmma's fragments, their
  // lines would arrive in pieces of 16 bytes with nothing to hide the latency. Rows are whole lines of 128 bytes or halves
  // of these, swizzled within them.
  template <class Operand>
  static constexpr int kMatrixPitch = columns * static_cast<int>(sizeof(epilogue::ElementOfOperand<Operand>));
  template <class Operand>
  static constexpr bool kIsCopied =
      Operand::kKind == OperandKind::matrix && Apply::kWidth == Width::same && kMatrixPitch<Operand> % 64 == 0;
  // The first of them lies where results are staged: a warp has read all of it before it stages the first row, so it takes
  // no stage from the mainloop. The rows staged for the tile before have to be stored by then.
  static constexpr int in_place_index() {
    int index = -1;
    ((index = index < 0 && kIsCopied<Operands> &&
                      sizeof(epilogue::ElementOfOperand<Operands>) <= static_cast<std::size_t>(kWidest)
                  ? Operands::kIndex
                  : index),
     ...);
    return kPassColumns == columns ? index : -1;
  }
  static constexpr bool kHasInPlace = in_place_index() >= 0;
  template <class Operand>
  static constexpr bool kIsInPlace = Operand::kIndex == in_place_index();
  template <class Operand>
  static constexpr int kMatrixBytes = kIsCopied<Operand> && !kIsInPlace<Operand> ? kRows * kMatrixPitch<Operand> : 0;
  static constexpr int kAllMatrixBytes = (0 + ... + kMatrixBytes<Operands>);

  // Whether what the epilogue reads of all blocks is there at once.
  static constexpr bool kPrefetchesAll = !kHasMatrix;
  struct BlockVectors {
    alignas(16) std::uint8_t vectors[kAllVectorBytes > 0 ? kAllVectorBytes : 16];
  };
  struct alignas(1024) Storage {                    // of a warpgroup
    std::uint8_t staged[4][kPlaces * kPlaceBytes];  // for each warp
    alignas(128) std::uint8_t matrices[kAllMatrixBytes > 0 ? kAllMatrixBytes : 16];
    BlockVectors of_block[kPrefetchesAll ? blocks : 1];
  };

  struct Params {
    EpilogueValue operands[sizeof...(Operands) > 0 ? sizeof...(Operands) : 1];
    EpilogueValue stores[kStores > 0 ? kStores : 1];
    std::uint8_t* data;
    std::int64_t pitch, batch_stride;  // of D, in bytes
    bool by_tma;                       // D is_tma_storable()
  };
  struct Maps {
    CUtensorMap result, stores[kStores > 0 ? kStores : 1];
  };

  static Params params(GemmArgs const& args) {
    Params result{};
    ((result.operands[Operands::kIndex] = args.epilogue[Operands::kIndex]), ...);
    [[maybe_unused]] int store = 0;
    ((result.stores[store++] = args.epilogue[Stores::kIndex]), ...);
    result.data = static_cast<std::uint8_t*>(args.d);
    result.pitch = args.d_leading * element_bytes(d);
    result.batch_stride = args.d_batch_stride * element_bytes(d);
    result.by_tma = is_tma_storable(args, sizeof(E));
    return result;
  }

  // `batch`: how many results follow each other with the batch stride.
  static void encode_maps(Maps& maps, GemmArgs const& args, int batch) {
    constexpr int kBytes = static_cast<int>(sizeof(E));
    if (!is_tma_storable(args, kBytes)) return;
    Rows::encode_map(maps.result, args.d, args.d_leading * kBytes, args.d_batch_stride * kBytes, args.m, args.n, batch);
    auto const encode = [&](CUtensorMap& map, EpilogueValue const& x) {
      StoreRows::encode_map(map, x.data, x.leading * kBytes, x.batch_stride * kBytes, args.m, args.n, batch);
    };
    [[maybe_unused]] int store = 0;
    (encode(maps.stores[store++], args.epilogue[Stores::kIndex]), ...);
  }

  // Vectors are copied four bytes at a time, matrices in sixteen, and results besides D are written in sixteen.
  static bool meets_alignment(GemmArgs const& args) {
    auto const aligned = [](void const* data, std::int64_t leading, std::int64_t batch_stride, std::int64_t element,
                            std::int64_t access) {
      return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(access) == 0 &&
             leading * element % access == 0 && batch_stride * element % access == 0;
    };
    auto const vector_aligned = [&](EpilogueValue const& x, std::int64_t element) {
      return x.leading == 0 || aligned(x.data, 0, x.batch_stride, element, 4);
    };
    auto const store_aligned = [&](EpilogueValue const& x) {
      return aligned(x.data, x.leading, x.batch_stride, sizeof(E), 16);
    };
    return ((kStores == 0 && sizeof(E) > 1) || is_tma_storable(args, sizeof(E))) &&
           ((kVectorBytes<Operands> == 0 ||
             vector_aligned(args.epilogue[Operands::kIndex], sizeof(epilogue::ElementOfOperand<Operands>))) &&
            ... && true) &&
           ((!kIsCopied<Operands> || store_aligned(args.epilogue[Operands::kIndex])) && ... && true) &&
           (store_aligned(args.epilogue[Stores::kIndex]) && ... && true);
  }

  template <class Operand>
  static constexpr int vector_offset() {
    int offset = 0;
    ((offset += Operands::kIndex < Operand::kIndex ? kVectorBytes<Operands> : 0), ...);
    return offset;
  }

  // Starts to copy the vectors of a tile, by all threads of the warpgroup. What lies beyond the problem, or is not given,
  // becomes zeros.
  template <class Operand, class WithVectors>
  CUTLASS_DEVICE static void prefetch_one(Params const& p, WithVectors& into, Sm90WorkTile const& work, int thread) {
    constexpr int kLength = kVectorLength<Operand>;
    if constexpr (kLength > 0) {
      bool const is_row = Operand::kKind == OperandKind::row;
      prefetch_vector<Operand, kLength>(p.operands[Operand::kIndex], into.vectors + vector_offset<Operand>(),
                                        is_row ? work.n : work.m, is_row ? work.end_n : work.end_m, work.batch, p.data,
                                        thread);
    }
  }

  template <class Operand>
  static constexpr int matrix_offset() {
    int offset = 0;
    ((offset += Operands::kIndex < Operand::kIndex ? kMatrixBytes<Operands> : 0), ...);
    return offset;
  }
  // Sixteen bytes of a copied matrix, in one of a warp's 16 rows.
  template <class Operand>
  CUTLASS_DEVICE static int matrix_offset(int warp, int row, int chunk) {
    constexpr int kPitch = kMatrixPitch<Operand>;
    int const at = row * kPitch + (chunk ^ (kPitch % 128 == 0 ? row % 8 : row / 2 % 4)) * 16;
    if constexpr (kIsInPlace<Operand>) {
      return warp * static_cast<int>(sizeof(Storage::staged[0])) + at;
    } else {
      return static_cast<int>(offsetof(Storage, matrices)) + matrix_offset<Operand>() + warp * 16 * kPitch + at;
    }
  }

  // By each warp for its own rows.
  template <class Operand>
  CUTLASS_DEVICE static void prefetch_matrix(Params const& p, Storage& storage, Sm90WorkTile const& work, int thread) {
    if constexpr (kIsCopied<Operand>) {
      using V = epilogue::ElementOfOperand<Operand>;
      constexpr int kEach = 16 / static_cast<int>(sizeof(V)), kChunks = columns / kEach;
      EpilogueValue const& operand = p.operands[Operand::kIndex];
      auto const* const source = static_cast<V const*>(operand.data) + work.batch * operand.batch_stride;
      int const lane = thread % 32, warp = thread / 32 % 4, first_row = work.m + warp * 16;
      auto const from = [&](int row, int chunk) {
        return source + (first_row + row) * operand.leading + work.n + chunk * kEach;
      };
      auto const to = [&](int row, int chunk) {
        return reinterpret_cast<std::uint8_t*>(&storage) + matrix_offset<Operand>(warp, row, chunk);
      };
      int const rows = operand.data ? work.end_m - first_row : 0, whole = (work.end_n - work.n) / kEach;
      int const part = (work.end_n - work.n) % kEach;  // of the chunk at which a row of the matrix ends
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < 16 * kChunks; first += 32) {
        int const row = (first + lane) / kChunks, chunk = (first + lane) % kChunks;
        if (chunk == whole && part > 0) continue;
        copy_ahead<16>(cute::cast_smem_ptr_to_uint(to(row, chunk)), from(row, chunk), row < rows && chunk < whole, p.data);
      }
      if (part > 0 && whole < kChunks && lane < 16) load_part(to(lane, whole), from(lane, whole), lane < rows ? part : 0);
    }
  }

  CUTLASS_DEVICE static void prefetch(Params const& p, Storage& storage, Sm90WorkTile const& work, int block, int thread) {
    if constexpr (kHasInPlace) Rows::wait_until_read();
    (prefetch_one<Operands>(p, vectors_of(storage, block), work, thread), ...);
    (prefetch_matrix<Operands>(p, storage, work, thread), ...);
  }
  CUTLASS_DEVICE static void wait_for_prefetch() { wait_for_copies_ahead(); }

  template <class S>
  CUTLASS_DEVICE static auto& vectors_of(S& storage, int block) {
    return storage.of_block[kPrefetchesAll ? block : 0];
  }

  // Two neighbouring columns of an operand as floats (four of a wide matrix): `row` and `column` in the tile.
  template <class Operand, class S, class WithVectors>
  CUTLASS_DEVICE static auto load(Params const& p, S const& storage, WithVectors const& vectors, Sm90WorkTile const& work,
                                  int row, int column) {
    using V = Element<Operand::kType>;
    EpilogueValue const& operand = p.operands[Operand::kIndex];
    if constexpr (Operand::kKind == OperandKind::scalar) {
      cutlass::Array<float, 2> value;
      value.fill(operand.value);
      return value;
    } else if constexpr (Operand::kKind == OperandKind::row) {
      auto const* const vector = reinterpret_cast<V const*>(vectors.vectors + vector_offset<Operand>());
      return cutlass::NumericArrayConverter<float, V, 2>{}(
          *reinterpret_cast<cutlass::AlignedArray<V, 2> const*>(vector + column));
    } else if constexpr (Operand::kKind == OperandKind::col) {
      auto const* const vector = reinterpret_cast<V const*>(vectors.vectors + vector_offset<Operand>());
      cutlass::Array<float, 2> value;
      value.fill(cutlass::NumericConverter<float, V>{}(vector[row]));
      return value;
    } else if constexpr (kIsCopied<Operand>) {
      constexpr int kEach = 16 / static_cast<int>(sizeof(V));
      auto const* const pair = reinterpret_cast<std::uint8_t const*>(&storage) +
                               matrix_offset<Operand>(row / 16, row % 16, column / kEach) + column % kEach * sizeof(V);
      return epilogue::widen<V, 2>(*reinterpret_cast<cutlass::AlignedArray<V, 2> const*>(pair));
    } else {
      constexpr int kEach = Operand::kKind == OperandKind::wide_matrix ? 2 : 1;
      cutlass::AlignedArray<V, 2 * kEach> fragment;
      fragment.clear();
      if (operand.data && work.m + row < work.end_m) {
        auto const* const source = static_cast<V const*>(operand.data) + work.batch * operand.batch_stride +
                                   (work.m + row) * operand.leading + (work.n + column) * kEach;
        if (work.n + column + 1 < work.end_n) {
          fragment = *reinterpret_cast<cutlass::AlignedArray<V, 2 * kEach> const*>(source);
        } else if (work.n + column < work.end_n) {
          for (int i = 0; i < kEach; ++i) fragment[i] = source[i];
        }
      }
      return cutlass::NumericArrayConverter<float, V, 2 * kEach>{}(fragment);
    }
  }

  // value(c + 2 r + 4 j): the accumulator of row `lane / 4 + 8 r` of the warp's 16 and of column 8 j + 2 (lane % 4) + c.
  // Operands are indexed by the GEMM's rows and columns, whatever the coordinates in D.
  template <class Value, class Frame>
  CUTLASS_DEVICE static void store(Params const& p, Maps const& maps, Storage& storage, Sm90WorkTile const& work, int block,
                                   int thread, Value const& value, Frame const& coordinates) {
    static_assert(Frame::kAlways || kStores == 0);
    int const lane = thread % 32, warp = thread / 32 % 4, first_row = warp * 16;
    if constexpr (kByThreads) {
      store_by_threads(p, storage, work, block, first_row, lane, value,
                       std::make_index_sequence<ceil_div(columns, kPassColumns)>{});
      return;
    }
    // A tile begins with both places free, which costs nothing: its products took longer than TMA to read the rows before.
    int turn = block * (columns / kPassColumns) * (1 + kStores);
    auto const next_place = [&] {
      if (turn == 0) {
        Rows::wait_until_read();
      } else {
        Rows::template wait_until_read<kPlaces - 1>();
      }
      return storage.staged[warp] + turn++ % kPlaces * kPlaceBytes;
    };
    CUTLASS_PRAGMA_UNROLL
    for (int pass = 0; pass < columns; pass += kPassColumns) {
      // Compute before storing: loads cannot be hoisted above stores, and what they read may lie in place of the rows.
      cutlass::Array<ElementD, 2> results[kPassColumns / 8][2];
      cutlass::Array<E, 2> stored[kStores > 0 ? kStores : 1][kPassColumns / 8][2];
      compute<kPassColumns>(p, storage, vectors_of(storage, block), work, first_row, pass, lane, value, results, stored);
      int const row = work.m + first_row, column = work.n + pass;
      std::uint8_t* staged = next_place();
      Rows::put(staged, results, lane);
      Rows::send(maps.result, p.by_tma, p.data, p.pitch, p.batch_stride, staged, work, row, column, lane, coordinates);
      CUTLASS_PRAGMA_UNROLL
      for (int s = 0; s < kStores; ++s) {
        constexpr int kBytes = static_cast<int>(sizeof(E));
        EpilogueValue const& target = p.stores[s];
        staged = next_place();
        StoreRows::put(staged, stored[s], lane);
        StoreRows::send(maps.stores[s], true, static_cast<std::uint8_t*>(target.data), target.leading * kBytes,
                        target.batch_stride * kBytes, staged, work, row, column, lane, coordinates);
      }
    }
  }

  template <class Value, std::size_t... pass>
  CUTLASS_DEVICE static void store_by_threads(Params const& p, Storage& storage, Sm90WorkTile const& work, int block,
                                              int first_row, int lane, Value const& value, std::index_sequence<pass...>) {
    (store_pass<static_cast<int>(pass) * kPassColumns>(p, storage, work, block, first_row, lane, value), ...);
  }
  template <int pass, class Value>
  CUTLASS_DEVICE static void store_pass(Params const& p, Storage& storage, Sm90WorkTile const& work, int block,
                                        int first_row, int lane, Value const& value) {
    constexpr int kHere = std::min(kPassColumns, columns - pass);
    using PassRows = Sm90StagedRows<kHere, static_cast<int>(sizeof(ElementD)), static_cast<int>(sizeof(E))>;
    cutlass::Array<ElementD, 2> results[kHere / 8][2];
    constexpr int kBytes = static_cast<int>(sizeof(E));
    cutlass::Array<E, 2> stored[kStores > 0 ? kStores : 1][kHere / 8][2];
    compute<kHere>(p, storage, vectors_of(storage, block), work, first_row, pass, lane, value, results, stored);
    std::uint8_t* const staged = storage.staged[first_row / 16];
    int const row = work.m + first_row, column = work.n + pass;
    __syncwarp();  // the pass before has been read
    PassRows::put(staged, results, lane);
    PassRows::write(p.data, p.pitch, p.batch_stride, p.by_tma, staged, work, row, column, lane);
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStores; ++s) {
      using OfStore = Sm90StagedRows<kHere, kBytes, kBytes>;
      EpilogueValue const& target = p.stores[s];
      __syncwarp();
      OfStore::put(staged, stored[s], lane);
      OfStore::write(static_cast<std::uint8_t*>(target.data), target.leading * kBytes, target.batch_stride * kBytes, true,
                     staged, work, row, column, lane);
    }
  }

  // The results of a warp's rows, in columns from `first` on. `stored`: what is stored besides, if anything is.
  template <int count, class Value, class Results, class... Stored>
  CUTLASS_DEVICE static void compute(Params const& p, Storage const& storage, BlockVectors const& vectors,
                                     Sm90WorkTile const& work, int first_row, int first, int lane, Value const& value,
                                     Results& results, Stored&... stored) {
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < count / 8; ++j) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r) {
        int const row = first_row + 8 * r + lane / 4, column = first + 8 * j + 2 * (lane % 4);
        cutlass::Array<std::decay_t<decltype(value(0))>, 2> accum;
        accum[0] = value(first / 2 + 4 * j + 2 * r);
        accum[1] = value(first / 2 + 4 * j + 2 * r + 1);
        typename Apply::template StoreFragments<2> stores;
        std::tuple const inputs{load<Operands>(p, storage, vectors, work, row, column)...};
        results[j][r] = Apply::run(accum, inputs, stores);
        auto const keep = [&](auto& of_all) {
          CUTLASS_PRAGMA_UNROLL
          for (int s = 0; s < kStores; ++s) of_all[s][j][r] = cutlass::NumericArrayConverter<E, float, 2>{}(stores[s]);
        };
        (keep(stored), ...);
      }
    }
  }

  // Zeros instead of results. Where TMA knows D, from one place of a warp, for whose copies no thread waits.
  template <class Frame>
  CUTLASS_DEVICE static void store_zeros(Params const& p, Maps const& maps, Storage& storage, Sm90WorkTile const& work,
                                         int thread, Frame const& coordinates) {
    if constexpr (Frame::kHasMaps) {
      if (coordinates.map) {
        int const lane = thread % 32, warp = thread / 32 % 4, row = work.m + warp * 16;
        if (row >= work.end_m) return;
        std::uint8_t* const staged = storage.staged[warp];
        Rows::wait_until_read();
        for (int i = lane; i < Rows::kBytes / 16; i += 32) reinterpret_cast<uint4*>(staged)[i] = uint4{};
#pragma unroll 1
        for (int pass = 0; pass < columns && work.n + pass < work.end_n; pass += kPassColumns) {
          Rows::send(maps.result, p.by_tma, p.data, p.pitch, p.batch_stride, staged, work, row, work.n + pass, lane,
                     coordinates);
        }
        return;
      }
    }
    auto const clear = [&](std::uint8_t* data, std::int64_t pitch, std::int64_t batch_stride, int column_bytes) {
      std::int64_t const first = std::int64_t{work.n} * column_bytes, end = std::int64_t{work.end_n} * column_bytes;
      int const chunks = columns * column_bytes / 16;
      for (int i = thread; i < kRows * chunks; i += 128) {
        int const row = work.m + i / chunks;
        std::int64_t const at = first + i % chunks * 16;
        if (row >= work.end_m || at >= end) continue;
        std::uint8_t* const to =
            place_in_frame(coordinates, data + work.d_batch * batch_stride, pitch, row, at, column_bytes);
        if (!Frame::kAlways && !to) continue;
        if (!Frame::kAlways || at + 16 <= end) {
          *reinterpret_cast<uint4*>(to) = uint4{};
        } else {
#pragma unroll 1
          for (int b = 0; b < end - at; ++b) to[b] = 0;
        }
      }
    };
    clear(p.data, p.pitch, p.batch_stride, static_cast<int>(sizeof(ElementD)));
    for (int s = 0; s < kStores; ++s) {
      constexpr int kBytes = static_cast<int>(sizeof(E));
      clear(static_cast<std::uint8_t*>(p.stores[s].data), p.stores[s].leading * kBytes, p.stores[s].batch_stride * kBytes,
            kBytes);
    }
  }

  CUTLASS_DEVICE static void wait_until_read() { Rows::wait_until_read(); }
};

}  // namespace cutwheel::gemm
