// A generated epilogue for tiles whose rows are positions of an image's rows, with some between these that no pixel has.
#pragma once

#include <cuda.h>
#include <cutlass/arch/barrier.h>
#include <cute/arch/copy_sm90.hpp>

#include "sm90/native/epilogue/per_warpgroup.cuh"
#include "sm90/native/load/im2col.cuh"

namespace cutwheel::conv2d {

// Where positions lie in D: its rows are `more` positions longer than the image's.
struct PaddedImage {
  int channels, width, height, images, more;
};

template <class Epilogue, DType d, int columns, class Operands, class Stores>
struct Sm90ImageEpilogue;

// By one warpgroup for its own 64 rows. The residual lies where results are staged: a warp has read all of it before it
// stages the first row.
template <class Epilogue, DType d, int columns, class... Operands>
struct Sm90ImageEpilogue<Epilogue, d, columns, gemm::epilogue::OperandList<Operands...>, gemm::epilogue::OperandList<>> {
  using Vectors = gemm::Sm90PerWarpgroupEpilogue<Epilogue, d, columns, gemm::epilogue::OperandList<Operands...>,
                                                 gemm::epilogue::OperandList<>>;
  using Apply = typename Vectors::Apply;
  using E = gemm::Element<d>;
  static constexpr int kResiduals = (0 + ... + (Operands::kKind == OperandKind::matrix));
  static_assert(kResiduals <= 1 && sizeof(E) == 2 && columns % 32 == 0);
  static_assert(((Operands::kKind == OperandKind::matrix || Operands::kKind == OperandKind::row ||
                  Operands::kKind == OperandKind::scalar) &&
                 ... && true));
  static constexpr bool kHasResidual = kResiduals > 0;

  // Pieces of a row, one position below the other, swizzled as TMA has it.
  static constexpr int kRows = 64, kRowBytes = columns * 2, kPieceBytes = kRowBytes % 128 == 0 ? 128 : 64;
  static constexpr int kPieces = kRowBytes / kPieceBytes, kPieceColumns = kPieceBytes / 2;

  struct alignas(1024) Storage {
    std::uint8_t staged[kPieces][kRows * kPieceBytes];
  };
  struct VectorStorage {
    alignas(16) std::uint8_t vectors[Vectors::kAllVectorBytes > 0 ? Vectors::kAllVectorBytes : 16];
  };
  struct Params {
    typename Vectors::Params vectors;
    cutlass::FastDivmod positions, rows;  // of a row, of an image
    int width, height;                    // of D, all images below each other
    bool has_residual;
  };
  struct Maps {
    CUtensorMap result, residual;
  };

  static void encode(Params& params, Maps& maps, gemm::GemmArgs const& args, PaddedImage const& image) {
    params.vectors = Vectors::params(args);
    params.positions = cutlass::FastDivmod(image.width + image.more);
    params.rows = cutlass::FastDivmod(image.height);
    params.width = image.width;
    params.height = image.height * image.images;
    encode_result_map(maps.result, args, params);
    params.has_residual = false;
    auto const encode_residual = [&](bool is_residual, gemm::EpilogueValue const& x) {
      if (!is_residual || !x.data) return;
      params.has_residual = true;
      encode_residual_map(maps.residual, x, image);
    };
    (encode_residual(Operands::kKind == OperandKind::matrix, args.epilogue[Operands::kIndex]), ...);
  }

  // Whether TMA reaches D and the residual.
  static bool meets_alignment(gemm::GemmArgs const& args) {
    auto const aligned = [](void const* data, std::int64_t leading) {
      return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && leading % 8 == 0;
    };
    auto const is_aligned = [&](bool is_residual, gemm::EpilogueValue const& x) {
      return !is_residual || !x.data || aligned(x.data, x.leading);
    };
    return aligned(args.d, args.d_leading) && Vectors::meets_alignment(args) &&
           (is_aligned(Operands::kKind == OperandKind::matrix, args.epilogue[Operands::kIndex]) && ... && true);
  }

  // By all threads of the warpgroup.
  CUTLASS_DEVICE static void prefetch_vectors(Params const& p, VectorStorage& storage, gemm::Sm90WorkTile const& work,
                                              int thread) {
    (Vectors::template prefetch_one<Operands>(p.vectors, storage, work, thread), ...);
  }
  CUTLASS_DEVICE static void wait_for_vectors() { Vectors::wait_for_prefetch(); }

  // By one thread. `barrier` receives kResidualBytes.
  static constexpr int kResidualBytes = kRows * kRowBytes;
  CUTLASS_DEVICE static void load_residual(Params const& p, Maps const& maps, std::uint64_t* barrier, Storage& storage,
                                           int m, int n) {
    Place const place(p, m);
    int image, row;
    p.rows(image, row, place.row);
    CUTLASS_PRAGMA_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      cute::SM90_TMA_LOAD_IM2COL_4D::copy(&maps.residual, barrier, storage.staged[piece], n + piece * kPieceColumns,
                                          place.column, row, image, 0, 0);
    }
  }

  // Until the copies of this thread have read what they store, so that something else may take its place.
  CUTLASS_DEVICE static void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

  // value(c + 2 r + 4 j): as of Sm90PerWarpgroupEpilogue.
  template <class Value>
  CUTLASS_DEVICE static void store(Params const& p, Maps const& maps, Storage& storage, VectorStorage const& vectors,
                                   gemm::Sm90WorkTile const& work, int thread, Value const& value) {
    int const lane = thread % 32, first_row = thread / 32 % 4 * 16;
    cutlass::Array<E, 2> results[columns / 8][2];
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      CUTLASS_PRAGMA_UNROLL
      for (int r = 0; r < 2; ++r) {
        int const row = first_row + 8 * r + lane / 4;
        cutlass::Array<float, 2> accum;
        accum[0] = value(4 * j + 2 * r);
        accum[1] = value(4 * j + 2 * r + 1);
        typename Apply::template StoreFragments<2> stores;
        std::tuple const inputs{load<Operands>(p, storage, vectors, work, row, j, 2 * (lane % 4))...};
        results[j][r] = Apply::run(accum, inputs, stores);
      }
    }
    if (!p.has_residual && lane == 0) wait_until_read();
    __syncwarp();
    CUTLASS_PRAGMA_UNROLL
    for (int j = 0; j < columns / 8; j += 2) {
      std::uint32_t words[4];
      memcpy(words, results[j], sizeof(words));
      // Lanes name rows: 0 to 15 those of the first 8 columns, 16 to 31 of the next 8.
      auto* const to = storage.staged[0] + offset_of(first_row + lane % 16, 16 * j, lane / 16 * 16);
      cute::SM90_U32x4_STSM_N::copy(words[0], words[1], words[2], words[3], *reinterpret_cast<cute::uint128_t*>(to));
    }
    // TMA stores what D has of positions in one row. Others would begin in front of the next row, and it takes no box that
    // begins at a negative index: on an H100 that is an illegal instruction, and so is a store in its im2col mode.
    Place const place(p, work.m + first_row);
    if (place.column + 16 > p.positions.divisor) {
      __syncwarp();
      store_part(p, storage, work, first_row, lane);
      return;
    }
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    if (lane != 0 || place.column >= p.width) return;
    CUTLASS_PRAGMA_UNROLL
    for (int piece = 0; piece < kPieces; ++piece) {
      cute::SM90_TMA_STORE_3D::copy(&maps.result, storage.staged[piece] + first_row * kPieceBytes,
                                    work.n + piece * kPieceColumns, place.column, place.row);
    }
    cute::tma_store_arrive();
  }

 private:
  struct Place {
    int column, row;

    CUTLASS_DEVICE Place(Params const& p, int m) { p.positions(row, column, m); }
  };

  // By a warp, sixteen bytes at a time.
  CUTLASS_DEVICE static void store_part(Params const& p, Storage const& storage, gemm::Sm90WorkTile const& work,
                                        int first_row, int lane) {
    constexpr int kChunks = kRowBytes / 16;
    for (int i = lane; i < 16 * kChunks; i += 32) {
      int const row = first_row + i / kChunks, chunk = i % kChunks, column = work.n + chunk * 8;
      Place const place(p, work.m + row);
      if (place.column >= p.width || place.row >= p.height || column >= work.end_n) continue;
      std::int64_t const pixel = std::int64_t{place.row} * p.width + place.column;
      auto* const to = p.vectors.data + pixel * p.vectors.pitch + std::int64_t{column} * 2;
      int const piece = chunk * 16 / kPieceBytes * kPieceBytes;
      *reinterpret_cast<uint4*>(to) =
          *reinterpret_cast<uint4 const*>(storage.staged[0] + offset_of(row, piece, chunk * 16 - piece));
    }
  }

  static constexpr auto kSwizzle = kPieceBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
  static cuuint64_t extent(int x) { return static_cast<cuuint64_t>(x); }
  static cuuint64_t bytes(std::int64_t x) { return static_cast<cuuint64_t>(x) * 2; }

  // [rows of all images, w, channels], in boxes of sixteen positions and a piece of their channels.
  static void encode_result_map(CUtensorMap& map, gemm::GemmArgs const& args, Params const& params) {
    cuuint64_t const extents[] = {extent(args.n), extent(params.width), extent(params.height)};
    cuuint64_t const strides[] = {bytes(args.d_leading), bytes(args.d_leading * params.width)};
    cuuint32_t const box[] = {kPieceColumns, 16, 1}, steps[] = {1, 1, 1};
    cuTensorMapEncodeTiled(&map, gemm::tensor_map_type(d), 3, args.d, extents, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }

  // [images, h, w, channels], in boxes of the positions of a block, which go from row to row.
  static void encode_residual_map(CUtensorMap& map, gemm::EpilogueValue const& x, PaddedImage const& image) {
    cuuint64_t const extents[] = {extent(image.channels), extent(image.width), extent(image.height), extent(image.images)};
    cuuint64_t const strides[] = {bytes(x.leading), bytes(x.leading * image.width),
                                  bytes(x.leading * image.width * image.height)};
    cuuint32_t const steps[] = {1, 1, 1, 1};
    int const lower[] = {0, 0}, upper[] = {image.more, 0};
    cuTensorMapEncodeIm2col(&map, gemm::tensor_map_type(d), 4, const_cast<void*>(x.data), extents, strides, lower, upper,
                            kPieceColumns, kRows, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzle,
                            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }

  // Offset of byte `first + rest` of a row, where `first` is known to the compiler.
  CUTLASS_DEVICE static int offset_of(int row, int first, int rest) {
    int const at = first + rest, piece = first / kPieceBytes;
    int const swizzle = row * kPieceBytes / 128 % (kPieceBytes / 16) * 16;
    return (piece * kRows + row) * kPieceBytes + ((at - piece * kPieceBytes) ^ swizzle);
  }

  // Columns 8 j + column and the next one.
  template <class Operand>
  CUTLASS_DEVICE static auto load(Params const& p, Storage const& storage, VectorStorage const& vectors,
                                  gemm::Sm90WorkTile const& work, int row, int j, int column) {
    if constexpr (Operand::kKind == OperandKind::matrix) {
      using V = gemm::Element<Operand::kType>;
      static_assert(sizeof(V) == 2);
      cutlass::AlignedArray<V, 2> pair;
      pair.clear();
      if (p.has_residual) {
        pair =
            *reinterpret_cast<cutlass::AlignedArray<V, 2> const*>(storage.staged[0] + offset_of(row, 16 * j, 2 * column));
      }
      return gemm::epilogue::widen<V, 2>(pair);
    } else {
      return Vectors::template load<Operand>(p.vectors, storage, vectors, work, row, 8 * j + column);
    }
  }
};

}  // namespace cutwheel::conv2d
