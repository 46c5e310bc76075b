// Loaders of the implicit GEMM: where a thread's vectors of 16 bytes of an operand lie in images and filters, tile by tile
// along K.
//
// An operand is contiguous either along K (rows of fprop and dgrad, filters of fprop) or across it (everything else).
#pragma once

#include "sm80/conv_counter.cuh"
#include "sm80/operand_tile.cuh"

namespace cutwheel::conv2d {

constexpr int kSm80VectorBytes = 16;

// An image tensor, channels contiguous. Offsets inside of an image count vectors, in 32 bits; those of images count bytes.
struct Sm80Image {
  void const* data = nullptr;
  std::int64_t image_stride = 0;
  int row_stride = 0, column_stride = 0;
  int images = 0, height = 0, width = 0;

  Sm80Image() = default;
  Sm80Image(void const* data, std::int64_t const (&strides)[3], int element_bytes, int images, int height, int width)
      : data(data),
        image_stride(strides[0] * element_bytes),
        row_stride(static_cast<int>(strides[1] * element_bytes / kSm80VectorBytes)),
        column_stride(static_cast<int>(strides[2] * element_bytes / kSm80VectorBytes)),
        images(images),
        height(height),
        width(width) {}

  CUTLASS_DEVICE int offset(int row, int column) const { return row * row_stride + column * column_stride; }

  // Whether 32 bits do for these extents and this many images. 16 GiB: half of what they count.
  static bool fits(std::int64_t const (&strides)[3], int element_bytes, int images, int height, int width) {
    std::int64_t constexpr kMost = std::int64_t{1} << 34;
    return (images * strides[0] + height * strides[1] + width * strides[2]) * element_bytes < kMost;
  }
};

// The pixel that a row of the GEMM reads at a tap, in one dimension.
struct Sm80Meeting {
  int scale = 1;  // of the place
  int first = 0;  // at place 0 and tap 0
  int step = 1;   // from tap to tap
};

// Coordinates of what does not exist: no sum with another coordinate is in an image.
constexpr int kNoPlace = 1 << 29, kNoTap = 1 << 30;

// Copies the vectors of an operand's tile. Vectors, the derived class, knows where a thread's vector i lies and whether it
// exists: pointer(i), valid(i). `through_l1`: neighbouring taps read the same pixels, which L1 keeps for them.
template <class Vectors, class OperandTile, int threads, bool through_l1>
struct Sm80ConvLoader {
  using Map = gemm::Sm80CopyMap<OperandTile, threads>;
  static constexpr int kCopies = Map::kCopies, kBytes = OperandTile::kElementBytes;
  static_assert(Map::kVectorBytes == kSm80VectorBytes);

  template <int part, int parts>
  CUTLASS_DEVICE void copy(unsigned shared) const {
    auto const& vectors = static_cast<Vectors const&>(*this);
    CUTLASS_PRAGMA_UNROLL
    for (int i = kCopies * part / parts; i < kCopies * (part + 1) / parts; ++i) {
      gemm::cp_async<kSm80VectorBytes, through_l1>(shared + Map::offset_of_copy(offset_, i), vectors.pointer(i),
                                                   vectors.valid(i));
    }
  }

 protected:
  // Conditions are joined by &, not &&: branches between copies cost more than the tests.
  CUTLASS_DEVICE static bool within(int coordinate, int extent) {
    return static_cast<unsigned>(coordinate) < static_cast<unsigned>(extent);
  }
  CUTLASS_DEVICE static int thread_row() { return Map::row(threadIdx.x); }
  CUTLASS_DEVICE static int thread_element() { return Map::element(threadIdx.x); }

 private:
  int offset_ = Map::offset(threadIdx.x);
};

// Rows of A, contiguous along K: a row is an output pixel of the GEMM, and K runs over the pixels that its taps read.
template <class OperandTile, int threads>
class Sm80PlaceRows : public Sm80ConvLoader<Sm80PlaceRows<OperandTile, threads>, OperandTile, threads, true> {
  using Base = Sm80ConvLoader<Sm80PlaceRows, OperandTile, threads, true>;
  using Base::kBytes;
  using Map = typename Base::Map;
  static constexpr int kStrided = Map::kStrided;
  static_assert(Map::kContiguous == 1);
  static constexpr int kTileK = OperandTile::kK;

 public:
  CUTLASS_DEVICE Sm80PlaceRows(Sm80Image const& image, Sm80Meeting const& vertical, Sm80Meeting const& horizontal,
                               Sm80Counter const& places, Sm80Taps const& taps, int first_row)
      : image_(image), taps_(taps), row_step_(vertical.step), column_step_(horizontal.step) {
    int const at_row = Base::thread_row(), at_element = Base::thread_element();
    Sm80Digits place = places.at(first_row + at_row);
    int const first_image = place.high;
    pointer_ = static_cast<char const*>(image.data) + first_image * image.image_stride + taps.constant(at_element) * kBytes;
    int const image_vectors = static_cast<int>(image.image_stride / kSm80VectorBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      int const y = place.middle * vertical.scale + vertical.first, x = place.low * horizontal.scale + horizontal.first;
      offsets_[s] = (place.high - first_image) * image_vectors + image.offset(y, x);
      rows_[s] = place.high < image.images ? y : kNoPlace;
      columns_[s] = x;
      places.advance(place);
    }
    tap_ = taps.first(at_element);
    locate();
  }

  CUTLASS_DEVICE void advance() {
    taps_.counter.advance(tap_);
    locate();
  }
  CUTLASS_DEVICE char const* pointer(int i) const {
    return pointer_ + (offsets_[i] + offset_) * std::int64_t{kSm80VectorBytes};
  }
  CUTLASS_DEVICE bool valid(int i) const {
    return Base::within(rows_[i] + row_, image_.height) & Base::within(columns_[i] + column_, image_.width);
  }

 private:
  CUTLASS_DEVICE void locate() {
    int const row = taps_.row(tap_) * row_step_;
    column_ = taps_.column(tap_) * column_step_;
    offset_ = image_.offset(row, column_) + taps_.template channel<kTileK>(tap_) / Map::kElements;
    row_ = taps_.valid(tap_) ? row : kNoTap;
  }

  Sm80Image const& image_;
  Sm80Taps const& taps_;
  int row_step_, column_step_;
  char const* pointer_;
  int offsets_[kStrided], rows_[kStrided], columns_[kStrided];
  Sm80Digits tap_;
  int row_, column_, offset_;
};

// Columns of B along K: each is a filter, K are its taps and channels.
template <class OperandTile, int threads>
class Sm80FilterColumns : public Sm80ConvLoader<Sm80FilterColumns<OperandTile, threads>, OperandTile, threads, false> {
  using Base = Sm80ConvLoader<Sm80FilterColumns, OperandTile, threads, false>;
  using Base::kBytes;
  using Map = typename Base::Map;
  static constexpr int kStrided = Map::kStrided;
  static_assert(Map::kContiguous == 1);
  static constexpr int kTileK = OperandTile::kK;

 public:
  CUTLASS_DEVICE Sm80FilterColumns(void const* data, int tap_columns, int channels, int filters, int filter_elements,
                                   Sm80Taps const& taps, int first_filter)
      : taps_(taps), tap_columns_(tap_columns), channels_(channels) {
    int const at_row = Base::thread_row(), at_element = Base::thread_element();
    int const filter = first_filter + at_row;
    pitch_ = filter_elements * std::int64_t{Map::kRowsApart * kBytes};
    pointer_ =
        static_cast<char const*>(data) + (filter * std::int64_t{filter_elements} + taps.constant(at_element)) * kBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      exists_ |= (filter + s * Map::kRowsApart < filters ? 1u : 0u) << s;
    }
    tap_ = taps.first(at_element);
    locate();
  }

  CUTLASS_DEVICE void advance() {
    taps_.counter.advance(tap_);
    locate();
  }
  CUTLASS_DEVICE char const* pointer(int i) const { return pointer_ + offset_ + i * pitch_; }
  CUTLASS_DEVICE bool valid(int i) const { return taps_.valid(tap_) & bool(exists_ >> i & 1); }

 private:
  CUTLASS_DEVICE void locate() {
    int const tap = taps_.row(tap_) * tap_columns_ + taps_.column(tap_);
    offset_ = (tap * std::int64_t{channels_} + taps_.template channel<kTileK>(tap_)) * kBytes;
  }

  Sm80Taps const& taps_;
  int tap_columns_, channels_;
  char const* pointer_;
  std::int64_t pitch_, offset_;
  unsigned exists_ = 0;
  Sm80Digits tap_;
};

// Between taps in memory, in vectors: from one tap of the residue class to the next, from filter to filter.
struct Sm80FilterPitches {
  int row, column, filter;
};

// Rows of B across K, of dgrad: each is a tap of a filter, its elements are channels. Offsets count vectors.
template <class OperandTile, int threads>
class Sm80FilterRows : public Sm80ConvLoader<Sm80FilterRows<OperandTile, threads>, OperandTile, threads, false> {
  using Base = Sm80ConvLoader<Sm80FilterRows, OperandTile, threads, false>;
  using Base::kBytes;
  using Map = typename Base::Map;
  static constexpr int kContiguous = Map::kContiguous, kStrided = Map::kStrided;
  static constexpr int kTileK = OperandTile::kK;

 public:
  CUTLASS_DEVICE Sm80FilterRows(void const* data, Sm80FilterPitches const& pitches, int channels, Sm80Taps const& taps,
                                int first_channel)
      : pitches_(pitches), taps_(taps) {
    int const at_row = Base::thread_row(), at_element = Base::thread_element();
    int const channel = first_channel + at_element;
    pointer_ = static_cast<char const*>(data) + channel * std::int64_t{kBytes} +
               taps.constant(at_row) * std::int64_t{pitches.filter} * kSm80VectorBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kContiguous; ++c) exists_ |= (channel + c * Map::kElementsApart < channels ? 1u : 0u) << c;
    tap_ = taps.first(at_row);
    locate();
  }

  CUTLASS_DEVICE void advance() {
    taps_.counter.advance(tap_);
    locate();
  }
  CUTLASS_DEVICE char const* pointer(int i) const {
    return pointer_ + offsets_[i / kContiguous] * kSm80VectorBytes + i % kContiguous * Map::kElementsApart * kBytes;
  }
  CUTLASS_DEVICE bool valid(int i) const { return valid_ >> i & 1; }

 private:
  CUTLASS_DEVICE void locate() {
    Sm80Digits at = tap_;
    valid_ = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      int const filter = taps_.template channel<kTileK>(at) + taps_.constant(s * Map::kRowsApart);
      int const tap = taps_.row(at) * pitches_.row + taps_.column(at) * pitches_.column;
      offsets_[s] = filter * std::int64_t{pitches_.filter} + tap;
      valid_ |= (taps_.valid(at) ? exists_ : 0) << s * kContiguous;
      taps_.counter.add(at, taps_.inside);
    }
  }

  Sm80FilterPitches const& pitches_;
  Sm80Taps const& taps_;
  char const* pointer_;
  unsigned exists_ = 0, valid_;
  Sm80Digits tap_;
  std::int64_t offsets_[kStrided];
};

// Rows of A across K, of wgrad: each is a place of the gradient, its elements are filters.
template <class OperandTile, int threads>
class Sm80GradientRows : public Sm80ConvLoader<Sm80GradientRows<OperandTile, threads>, OperandTile, threads, false> {
  using Base = Sm80ConvLoader<Sm80GradientRows, OperandTile, threads, false>;
  using Base::kBytes;
  using Map = typename Base::Map;
  static constexpr int kContiguous = Map::kContiguous, kStrided = Map::kStrided;

 public:
  CUTLASS_DEVICE Sm80GradientRows(Sm80Image const& image, Sm80Counter const& places, int filters, int first_filter,
                                  int first_place)
      : image_(image), places_(places) {
    int const at_row = Base::thread_row(), at_element = Base::thread_element();
    int const filter = first_filter + at_element;
    pointer_ = static_cast<char const*>(image.data) + filter * std::int64_t{kBytes};
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kContiguous; ++c) exists_ |= (filter + c * Map::kElementsApart < filters ? 1u : 0u) << c;
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      at_[s] = places.at(first_place + at_row + s * Map::kRowsApart);
      locate(s);
    }
  }

  CUTLASS_DEVICE void advance() {
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      places_.advance(at_[s]);
      locate(s);
    }
  }
  CUTLASS_DEVICE char const* pointer(int i) const {
    return pointer_ + offsets_[i / kContiguous] + i % kContiguous * Map::kElementsApart * kBytes;
  }
  CUTLASS_DEVICE bool valid(int i) const {
    return (at_[i / kContiguous].high < image_.images) & bool(exists_ >> i % kContiguous & 1);
  }

 private:
  CUTLASS_DEVICE void locate(int s) {
    Sm80Digits const& at = at_[s];
    offsets_[s] = at.high * image_.image_stride + image_.offset(at.middle, at.low) * std::int64_t{kSm80VectorBytes};
  }

  Sm80Image const& image_;
  Sm80Counter const& places_;
  char const* pointer_;
  unsigned exists_ = 0;
  Sm80Digits at_[kStrided];
  std::int64_t offsets_[kStrided];
};

// Rows of B across K, of wgrad: each is a place of the gradient, its elements are the pixels that it meets in all taps.
template <class OperandTile, int threads>
class Sm80MeetingRows : public Sm80ConvLoader<Sm80MeetingRows<OperandTile, threads>, OperandTile, threads, true> {
  using Base = Sm80ConvLoader<Sm80MeetingRows, OperandTile, threads, true>;
  using Base::kBytes;
  using Map = typename Base::Map;
  static constexpr int kContiguous = Map::kContiguous, kStrided = Map::kStrided;

 public:
  CUTLASS_DEVICE Sm80MeetingRows(Sm80Image const& image, Sm80Meeting const& vertical, Sm80Meeting const& horizontal,
                                 Sm80Counter const& places, Sm80Counter const& taps, int tap_rows, int first_column,
                                 int first_place)
      : image_(image), places_(places), row_scale_(vertical.scale), column_scale_(horizontal.scale) {
    int const at_row = Base::thread_row(), at_element = Base::thread_element();
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kContiguous; ++c) {
      Sm80Digits const tap = taps.at(first_column + at_element + c * Map::kElementsApart);
      int const y = tap.high * vertical.step + vertical.first;
      columns_[c] = tap.middle * horizontal.step + horizontal.first;
      pointers_[c] = static_cast<char const*>(image.data) + tap.low * kBytes +
                     image.offset(y, columns_[c]) * std::int64_t{kSm80VectorBytes};
      rows_[c] = tap.high < tap_rows ? y : kNoPlace;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      at_[s] = places.at(first_place + at_row + s * Map::kRowsApart);
      locate(s);
    }
  }

  CUTLASS_DEVICE void advance() {
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      places_.advance(at_[s]);
      locate(s);
    }
  }
  CUTLASS_DEVICE char const* pointer(int i) const { return pointers_[i % kContiguous] + offsets_[i / kContiguous]; }
  CUTLASS_DEVICE bool valid(int i) const {
    Sm80Digits const& at = at_[i / kContiguous];
    int const c = i % kContiguous;
    return (at.high < image_.images) & Base::within(rows_[c] + at.middle * row_scale_, image_.height) &
           Base::within(columns_[c] + at.low * column_scale_, image_.width);
  }

 private:
  CUTLASS_DEVICE void locate(int s) {
    Sm80Digits const& at = at_[s];
    int const offset = image_.offset(at.middle * row_scale_, at.low * column_scale_);
    offsets_[s] = at.high * image_.image_stride + offset * std::int64_t{kSm80VectorBytes};
  }

  Sm80Image const& image_;
  Sm80Counter const& places_;
  int row_scale_, column_scale_;
  char const* pointers_[kContiguous];
  int rows_[kContiguous], columns_[kContiguous];
  Sm80Digits at_[kStrided];
  std::int64_t offsets_[kStrided];
};

}  // namespace cutwheel::conv2d
