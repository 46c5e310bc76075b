// The epilogue of swap-AB kernels, whose accumulators hold D^T: a warpgroup has 64 columns of the user's D, all rows of a
// tile. Fragments are transposed on their way to shared memory, and the warpgroup sends the rows together.
#pragma once

#include "sm90/native/epilogue/per_warpgroup.cuh"

namespace cutwheel::gemm {

template <class Epilogue, DType d, int columns, class Operands, class Stores, RowStores row_stores, int blocks>
struct Sm90TransposedEpilogue;

// `columns` of the kernel: rows of D, of which a warpgroup has 64 columns. Unless they are stored `whole`, or a matrix lies
// in their place, a few rows are stored at a time.
template <class Epilogue, DType d, int columns, class... Operands, RowStores row_stores, int blocks>
struct Sm90TransposedEpilogue<Epilogue, d, columns, epilogue::OperandList<Operands...>, epilogue::OperandList<>, row_stores,
                              blocks> {
  using Apply = epilogue::Apply<Epilogue, d, epilogue::OperandList<Operands...>, epilogue::OperandList<>>;
  using ElementD = typename Apply::ElementD;
  using E = Element<d>;
  static_assert(columns % 8 == 0 && Apply::kWidth == Width::same);

  static constexpr int kD = static_cast<int>(sizeof(E));
  static constexpr int kRowBytes = 64 * kD, kPieces = kRowBytes / 128;  // of a row of D

  template <class Operand>
  static constexpr int kVectorLength = Operand::kKind == OperandKind::col   ? columns
                                       : Operand::kKind == OperandKind::row ? 64
                                                                            : 0;
  template <class Operand>
  static constexpr int kVectorBytes =
      round_up(kVectorLength<Operand> * static_cast<int>(sizeof(epilogue::ElementOfOperand<Operand>)), 16);
  static constexpr int kAllVectorBytes = (0 + ... + kVectorBytes<Operands>);

  // A matrix that is copied to shared memory during the mainloop: for each row of D a line of 128 bytes, swizzled
  // as `staged`.
  template <class Operand>
  static constexpr bool kIsCopied =
      Operand::kKind == OperandKind::matrix && sizeof(epilogue::ElementOfOperand<Operand>) == 2;
  // The first of them lies where results are staged, as in per_warpgroup.cuh.
  static constexpr int in_place_index() {
    int index = -1;
    ((index = index < 0 && kIsCopied<Operands> ? Operands::kIndex : index), ...);
    return index;
  }
  static constexpr bool kHasInPlace = in_place_index() >= 0;
  template <class Operand>
  static constexpr bool kIsInPlace = Operand::kIndex == in_place_index();
  template <class Operand>
  static constexpr int kMatrixBytes = kIsCopied<Operand> && !kIsInPlace<Operand> ? columns * 128 : 0;
  static constexpr int kAllMatrixBytes = (0 + ... + kMatrixBytes<Operands>);

  // Rows of D that are stored at once, in places that successive passes take by turns: of those that the threads store,
  // two, so that threads meet once in each pass. For TMA three, since the thread that sends a pass knows only at the next
  // one that the one before has been read.
  static constexpr int kMostRows = std::min(columns, 64 / kD);
  static constexpr int pass_rows() {
    for (int rows = kMostRows; rows >= 16; rows -= 8) {
      if (columns % rows == 0) return rows;
    }
    return 0;
  }
  static constexpr bool kInPasses = row_stores != RowStores::whole && !kHasInPlace;
  static constexpr bool kSendsPasses = kInPasses && row_stores == RowStores::in_lines && pass_rows() > 0;
  static constexpr bool kByThreads = kInPasses && !kSendsPasses;
  static constexpr int kPassRows = kSendsPasses ? pass_rows() : kByThreads ? kMostRows : columns;
  static constexpr int kPlaces = kSendsPasses ? 3 : kByThreads ? 2 : 1;

  // As of Sm90PerWarpgroupEpilogue.
  static constexpr bool kPrefetchesAll = !(false || ... || (Operands::kKind == OperandKind::matrix));
  struct BlockVectors {
    alignas(16) std::uint8_t vectors[kAllVectorBytes > 0 ? kAllVectorBytes : 16];
  };
  struct alignas(1024) Storage {  // of a warpgroup
    std::uint8_t staged[kPieces][kPlaces * kPassRows * 128];
    alignas(128) std::uint8_t matrices[kAllMatrixBytes > 0 ? kAllMatrixBytes : 16];
    BlockVectors of_block[kPrefetchesAll ? blocks : 1];
  };
  struct Params {
    EpilogueValue operands[sizeof...(Operands) > 0 ? sizeof...(Operands) : 1];
    std::uint8_t* data;
    std::int64_t pitch, batch_stride;
    bool by_tma;  // D is_tma_storable()
  };
  struct Maps {
    CUtensorMap result;
  };

  static Params params(GemmArgs const& args) {
    Params result{};
    ((result.operands[Operands::kIndex] = args.epilogue[Operands::kIndex]), ...);
    result.data = static_cast<std::uint8_t*>(args.d);
    result.pitch = args.d_leading * kD;
    result.batch_stride = args.d_batch_stride * kD;
    result.by_tma = is_tma_storable(args, kD);
    return result;
  }

  static void encode_maps(Maps& maps, GemmArgs const& args, int batch) {
    if (!is_tma_storable(args, kD)) return;
    encode_stored_map(maps.result, args.d, args.d_leading * kD, args.d_batch_stride * kD, args.m, std::int64_t{args.n} * kD,
                      batch, {128, kPassRows, kPieces, CU_TENSOR_MAP_SWIZZLE_128B});
  }

  static bool meets_alignment(GemmArgs const& args) {
    auto const vector_aligned = [&](EpilogueValue const& x, std::int64_t element) {
      return x.leading == 0 || (reinterpret_cast<std::uintptr_t>(x.data) % 4 == 0 && x.batch_stride * element % 4 == 0);
    };
    auto const matrix_aligned = [](EpilogueValue const& x, std::int64_t element) {
      return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && x.leading * element % 16 == 0 &&
             x.batch_stride * element % 16 == 0;
    };
    return ((kVectorBytes<Operands> == 0 ||
             vector_aligned(args.epilogue[Operands::kIndex], sizeof(epilogue::ElementOfOperand<Operands>))) &&
            ... && true) &&
           ((!kIsCopied<Operands> ||
             matrix_aligned(args.epilogue[Operands::kIndex], sizeof(epilogue::ElementOfOperand<Operands>))) &&
            ... && true);
  }

  template <class Operand>
  static constexpr int vector_offset() {
    int offset = 0;
    ((offset += Operands::kIndex < Operand::kIndex ? kVectorBytes<Operands> : 0), ...);
    return offset;
  }

  template <class Operand>
  CUTLASS_DEVICE static void prefetch_one(Params const& p, BlockVectors& into, Sm90WorkTile const& work, int thread) {
    constexpr int kLength = kVectorLength<Operand>;
    if constexpr (kLength > 0) {
      bool const along_m = Operand::kKind == OperandKind::row;  // of the kernel
      prefetch_vector<Operand, kLength>(p.operands[Operand::kIndex], into.vectors + vector_offset<Operand>(),
                                        along_m ? work.m : work.n, along_m ? work.end_m : work.end_n, work.batch, p.data,
                                        thread);
    }
  }

  template <class Operand>
  static constexpr int matrix_offset() {
    int offset = 0;
    ((offset += Operands::kIndex < Operand::kIndex ? kMatrixBytes<Operands> : 0), ...);
    return offset;
  }

  template <class Operand, class S>
  CUTLASS_DEVICE static auto* matrix_of(S& storage) {
    if constexpr (kIsInPlace<Operand>) {
      return storage.staged[0];
    } else {
      return storage.matrices + matrix_offset<Operand>();
    }
  }

  template <class Operand>
  CUTLASS_DEVICE static void prefetch_matrix(Params const& p, Storage& storage, Sm90WorkTile const& work, int thread) {
    if constexpr (kIsCopied<Operand>) {
      using V = epilogue::ElementOfOperand<Operand>;
      constexpr int kEach = 8, kChunks = 64 / kEach;
      EpilogueValue const& operand = p.operands[Operand::kIndex];
      auto const* const source = static_cast<V const*>(operand.data) + work.batch * operand.batch_stride;
      std::uint8_t* const target = matrix_of<Operand>(storage);
      auto const from = [&](int row, int chunk) {  // of D
        return source + (work.n + row) * operand.leading + work.m + chunk * kEach;
      };
      int const rows = operand.data ? work.end_n - work.n : 0, whole = (work.end_m - work.m) / kEach;
      int const part = (work.end_m - work.m) % kEach;  // of the chunk at which a row of the matrix ends
      CUTLASS_PRAGMA_UNROLL
      for (int first = 0; first < columns * kChunks; first += 128) {
        int const row = (first + thread) / kChunks, chunk = (first + thread) % kChunks;
        if (columns % 16 != 0 && row >= columns) break;
        if (chunk == whole && part > 0) continue;
        copy_ahead<16>(cute::cast_smem_ptr_to_uint(target + offset_of(row, chunk * 16)), from(row, chunk),
                       row < rows && chunk < whole, p.data);
      }
      if (part > 0 && whole < kChunks) {
        for (int row = thread; row < columns; row += 128) {
          load_part(target + offset_of(row, whole * 16), from(row, whole), row < rows ? part : 0);
        }
      }
    }
  }

  CUTLASS_DEVICE static void prefetch(Params const& p, Storage& storage, Sm90WorkTile const& work, int block, int thread) {
    if constexpr (kHasInPlace) wait_until_stored(thread);
    (prefetch_one<Operands>(p, vectors_of(storage, block), work, thread), ...);
    (prefetch_matrix<Operands>(p, storage, work, thread), ...);
  }
  CUTLASS_DEVICE static void wait_for_prefetch() { wait_for_copies_ahead(); }

  template <class S>
  CUTLASS_DEVICE static auto& vectors_of(S& storage, int block) {
    return storage.of_block[kPrefetchesAll ? block : 0];
  }

  // `row` and `column` of the kernel; two columns, rows of D.
  template <class Operand>
  CUTLASS_DEVICE static auto load(Params const& p, Storage const& storage, Sm90WorkTile const& work, int block, int row,
                                  int column) {
    using V = Element<Operand::kType>;
    EpilogueValue const& operand = p.operands[Operand::kIndex];
    cutlass::Array<float, 2> value;
    auto const* const vector = reinterpret_cast<V const*>(vectors_of(storage, block).vectors + vector_offset<Operand>());
    if constexpr (Operand::kKind == OperandKind::scalar) {
      value.fill(operand.value);
    } else if constexpr (Operand::kKind == OperandKind::col) {
      value = cutlass::NumericArrayConverter<float, V, 2>{}(
          *reinterpret_cast<cutlass::AlignedArray<V, 2> const*>(vector + column));
    } else if constexpr (Operand::kKind == OperandKind::row) {
      value.fill(cutlass::NumericConverter<float, V>{}(vector[row]));
    } else if constexpr (kIsCopied<Operand>) {
      std::uint8_t const* const copied = matrix_of<Operand>(storage);
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        value[i] = static_cast<float>(*reinterpret_cast<V const*>(copied + offset_of(column + i, row * 2)));
      }
    } else {
      static_assert(Operand::kKind == OperandKind::matrix);
      auto const* const source = static_cast<V const*>(operand.data) + work.batch * operand.batch_stride;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; ++i) {
        bool const is_there = operand.data && work.m + row < work.end_m && work.n + column + i < work.end_n;
        value[i] = is_there ? static_cast<float>(source[(work.n + column + i) * operand.leading + work.m + row]) : 0.f;
      }
    }
    return value;
  }

  // Offset of a byte of a row of D, in a warpgroup's 64 columns.
  CUTLASS_DEVICE static int offset_of(int row, int byte) {
    int const piece = byte / 128, within = byte % 128;
    return piece * kPassRows * 128 + row * 128 + (within ^ row % 8 * 16);
  }

  template <class Value, std::size_t... pass>
  CUTLASS_DEVICE static void store_in_passes(Params const& p, Maps const& maps, Storage& storage, Sm90WorkTile const& work,
                                             int block, int thread, Value const& value, std::index_sequence<pass...>) {
    (store_pass<static_cast<int>(pass) * kPassRows>(p, maps, storage, work, block, thread, value), ...);
  }
  template <int pass, class Value>
  CUTLASS_DEVICE static void store_pass(Params const& p, Maps const& maps, Storage& storage, Sm90WorkTile const& work,
                                        int block, int thread, Value const& value) {
    constexpr int kHere = std::min(kPassRows, columns - pass), kChunks = kRowBytes / 16;
    int const turn = pass / kPassRows + (kSendsPasses ? block * (columns / kPassRows) : 0);
    std::uint8_t* const staged = storage.staged[0] + turn % kPlaces * (kPassRows * kRowBytes);
    auto const at = [&](int row, int byte) { return staged + offset_of(row, byte); };
    bool const whole = kSendsPasses && p.by_tma && work.m + 64 <= work.end_m && work.n + pass + kHere <= work.end_n;
    put<pass, kHere>(p, storage, work, block, thread, value, at, [&] {
      if (kSendsPasses && turn == 0) wait_until_stored(thread);
    });
    if constexpr (kSendsPasses) {
      // The place of the next pass is free, and the others know when they have met this thread.
      if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      if (whole) cutlass::arch::fence_view_async_shared();
    }
    cutlass::arch::NamedBarrier::sync(128, thread_barrier());
    if (kSendsPasses && thread == 0) {
      if (whole) {
        cute::SM90_TMA_STORE_4D::copy(&maps.result, staged, 0, work.n + pass, work.m / (128 / kD), work.d_batch);
      }
      cute::tma_store_arrive();  // a group for each pass, if an empty one
    }
    if (whole) return;
    std::uint8_t* const first =
        p.data + work.d_batch * p.batch_stride + (work.n + pass) * p.pitch + std::int64_t{work.m} * kD;
    int const rows = work.end_n - work.n - pass, row_bytes = min(work.end_m - work.m, 64) * kD;
    if (!p.by_tma) {
      store_unaligned_rows<kHere, kRowBytes, kD, 128>(first, p.pitch, rows, row_bytes, thread, at);
    } else {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kHere * kChunks; i += 128) {
        int const row = (i + thread) / kChunks, byte = (i + thread) % kChunks * 16;
        if (row >= rows || (kHere * kChunks % 128 != 0 && row >= kHere) || byte >= row_bytes) continue;
        std::uint8_t* const to = first + row * p.pitch + byte;
        if (byte + 16 <= row_bytes) {
          *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(at(row, byte));
        } else {
          auto const* const from = reinterpret_cast<E const*>(at(row, byte));
#pragma unroll 1
          for (int e = 0; e < (row_bytes - byte) / kD; ++e) reinterpret_cast<E*>(to)[e] = from[e];
        }
      }
    }
  }

  // Puts the results of the rows of D from `pass` on into shared memory: at(row, byte).
  template <int pass, int rows, class Value, class At, class BeforePut>
  CUTLASS_DEVICE static void put(Params const& p, Storage& storage, Sm90WorkTile const& work, int block, int thread,
                                 Value const& value, At const& at, BeforePut const& before_put) {
    int const lane = thread % 32, warp = thread / 32 % 4;
    cutlass::Array<ElementD, 2> results[rows / 8][2];
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < rows / 8; ++j) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r) {
        int const row = warp * 16 + 8 * r + lane / 4, column = pass + 8 * j + 2 * (lane % 4);
        cutlass::Array<std::decay_t<decltype(value(0))>, 2> accum;
        accum[0] = value(pass / 2 + 4 * j + 2 * r);
        accum[1] = value(pass / 2 + 4 * j + 2 * r + 1);
        typename Apply::template StoreFragments<2> stores;
        std::tuple const inputs{load<Operands>(p, storage, work, block, row, column)...};
        results[j][r] = Apply::run(accum, inputs, stores);
      }
    }
    before_put();
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < rows / 8; j += 2) {
      if constexpr (kD == 2) {
        std::uint32_t words[4];
        memcpy(words, results[j], (j + 1 < rows / 8 ? 4 : 2) * sizeof(words[0]));
        // Lanes name rows of D: eight for each matrix of eight by eight, whose halves lie side by side.
        int const row = 8 * (j + lane / 16) + lane % 8;
        auto& to = *reinterpret_cast<cute::uint128_t*>(at(row, (warp * 16 + lane / 8 % 2 * 8) * kD));
        if (j + 1 < rows / 8) {
          cute::SM90_U16x8_STSM_T::copy(words[0], words[1], words[2], words[3], to);
        } else {
          cute::SM90_U16x4_STSM_T::copy(words[0], words[1], to);
        }
      } else {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < (j + 1 < rows / 8 ? 4 : 2); ++i) {
          int const byte = (warp * 16 + 8 * (i % 2) + lane / 4) * kD;
          CUTLASS_PRAGMA_UNROLL
          for (int c = 0; c < 2; ++c) {
            *reinterpret_cast<ElementD*>(at(8 * (j + i / 2) + 2 * (lane % 4) + c, byte)) = results[j + i / 2][i % 2][c];
          }
        }
      }
    }
  }

  template <class Value>
  CUTLASS_DEVICE static void store(Params const& p, Maps const& maps, Storage& storage, Sm90WorkTile const& work, int block,
                                   int thread, Value const& value, Sm90IdentityCoordinates) {
    if constexpr (kInPasses) {
      store_in_passes(p, maps, storage, work, block, thread, value,
                      std::make_index_sequence<ceil_div(columns, kPassRows)>{});
      return;
    }
    std::uint8_t* const staged = storage.staged[0];
    std::uint32_t const barrier = thread_barrier();
    put<0, columns>(
        p, storage, work, block, thread, value, [&](int row, int byte) { return staged + offset_of(row, byte); },
        [&] { wait_until_stored(thread); });
    bool const whole = p.by_tma && work.m + 64 <= work.end_m && work.n + columns <= work.end_n;
    if (whole) cutlass::arch::fence_view_async_shared();
    cutlass::arch::NamedBarrier::sync(128, barrier);
    if (!p.by_tma) {
      std::uint8_t* const first = p.data + work.d_batch * p.batch_stride + work.n * p.pitch + std::int64_t{work.m} * kD;
      int const row_bytes = min(work.end_m - work.m, 64) * kD;
      store_unaligned_rows<columns, kRowBytes, kD, 128>(first, p.pitch, work.end_n - work.n, row_bytes, thread,
                                                        [&](int row, int at) { return staged + offset_of(row, at); });
    } else if (!whole) {
      write_part(p, staged, work, thread);
    } else if (thread == 0) {
      cute::SM90_TMA_STORE_4D::copy(&maps.result, staged, 0, work.n, work.m / (128 / kD), work.d_batch);
      cute::tma_store_arrive();
    }
  }

  // Zeros instead of results.
  CUTLASS_DEVICE static void store_zeros(Params const& p, Maps const&, Storage&, Sm90WorkTile const& work, int thread,
                                         Sm90IdentityCoordinates) {
    int const left = min(work.end_m - work.m, 64);
    E* const target = reinterpret_cast<E*>(p.data + work.d_batch * p.batch_stride) + work.m;
    for (int i = thread; i < columns * 64; i += 128) {
      int const row = work.n + i / 64, column = i % 64;
      if (row < work.end_n && column < left) target[row * (p.pitch / kD) + column] = E(0);
    }
  }

  CUTLASS_DEVICE static void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

 private:
  CUTLASS_DEVICE static std::uint32_t thread_barrier() { return threadIdx.x / 128; }

  // The thread that sends waits until the rows before have been read, the others for it.
  CUTLASS_DEVICE static void wait_until_stored(int thread) {
    if (thread == 0) wait_until_read();
    cutlass::arch::NamedBarrier::sync(128, thread_barrier());
  }

  CUTLASS_DEVICE static void write_part(Params const& p, std::uint8_t const* staged, Sm90WorkTile const& work, int thread) {
    constexpr int kChunks = kRowBytes / 16;
    int const row_bytes = min(work.end_m - work.m, 64) * kD;  // a row of D may be of 2 GiB and more
    std::uint8_t* const target = p.data + work.d_batch * p.batch_stride + std::int64_t{work.m} * kD;
    for (int i = thread; i < columns * kChunks; i += 128) {
      int const row = i / kChunks, at = i % kChunks * 16, left = row_bytes - at;
      if (work.n + row >= work.end_n || left <= 0) continue;
      auto const* const from = staged + offset_of(row, at);
      std::uint8_t* const to = target + (work.n + row) * p.pitch + at;
      if (left >= 16) {
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4 const*>(from);
      } else {
        using Bits = std::conditional_t<kD == 4, std::uint32_t, std::uint16_t>;
#pragma unroll 1
        for (int b = 0; b < left; b += kD) *reinterpret_cast<Bits*>(to + b) = *reinterpret_cast<Bits const*>(from + b);
      }
    }
  }
};

}  // namespace cutwheel::gemm
