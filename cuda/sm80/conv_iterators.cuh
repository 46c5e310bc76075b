// Where a thread's vectors of 16 bytes of an operand lie in global memory, tile by tile along K: the iterators of CUTLASS's
// implicit GEMM. CUTLASS's own take strides of 32 bits, at most 32 taps a side, symmetric padding and whole tiles of
// channels.
//
// An operand is contiguous either along K (rows of fprop and dgrad, filters of fprop) or across it (everything else).
#pragma once

#include <cutlass/array.h>

#include "sm80/conv_counter.cuh"

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

template <class Element_, class ThreadMap_>
struct Sm80VectorIterator {
  using Element = Element_;
  using ThreadMap = ThreadMap_;
  using AccessType = cutlass::AlignedArray<Element, ThreadMap::kElementsPerAccess>;
  static constexpr int kAccessesPerVector = 1;
  static constexpr int kContiguous = ThreadMap::Iterations::kContiguous, kStrided = ThreadMap::Iterations::kStrided;
  static constexpr int kBytes = sizeof(Element);
  static_assert(sizeof(AccessType) == kSm80VectorBytes);

  CUTLASS_DEVICE void set_iteration_index(int index) { index_ = index; }
  CUTLASS_DEVICE void operator++() { ++index_; }

 protected:
  CUTLASS_DEVICE int contiguous() const { return index_ % kContiguous; }
  CUTLASS_DEVICE int strided() const { return index_ / kContiguous; }
  CUTLASS_DEVICE static AccessType const* access(char const* pointer, std::int64_t vectors = 0) {
    return reinterpret_cast<AccessType const*>(pointer + vectors * kSm80VectorBytes);
  }
  // Conditions are joined by &, not &&: branches between copies cost more than the tests.
  CUTLASS_DEVICE static bool within(int coordinate, int extent) {
    return static_cast<unsigned>(coordinate) < static_cast<unsigned>(extent);
  }
  int index_ = 0;
};

// Rows of A, contiguous along K: a row is an output pixel of the GEMM, and K runs over the pixels that its taps read.
template <class Element, class ThreadMap, int kTileK>
class Sm80PlaceRows : public Sm80VectorIterator<Element, ThreadMap> {
  using Base = Sm80VectorIterator<Element, ThreadMap>;
  using Base::kStrided;
  static_assert(Base::kContiguous == 1);

 public:
  CUTLASS_DEVICE Sm80PlaceRows(Sm80Image const& image, Sm80Meeting const& vertical, Sm80Meeting const& horizontal,
                               Sm80Counter const& places, Sm80Taps const& taps, int first_row, int thread)
      : image_(image), taps_(taps), row_step_(vertical.step), column_step_(horizontal.step) {
    auto const at = ThreadMap::initial_offset(thread);
    Sm80Digits place = places.at(first_row + at.strided());
    int const first_image = place.high;
    pointer_ = static_cast<char const*>(image.data) + first_image * image.image_stride +
               taps.constant(at.contiguous()) * Base::kBytes;
    int const image_vectors = static_cast<int>(image.image_stride / kSm80VectorBytes);
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      int const y = place.middle * vertical.scale + vertical.first, x = place.low * horizontal.scale + horizontal.first;
      offsets_[s] = (place.high - first_image) * image_vectors + image.offset(y, x);
      rows_[s] = place.high < image.images ? y : kNoPlace;
      columns_[s] = x;
      places.advance(place);
    }
    tap_ = taps.first(at.contiguous());
    locate();
  }

  CUTLASS_DEVICE void advance() {
    taps_.counter.advance(tap_);
    locate();
  }
  CUTLASS_DEVICE auto get() const { return Base::access(pointer_, offsets_[this->strided()] + offset_); }
  CUTLASS_DEVICE bool valid() const {
    int const s = this->strided();
    return Base::within(rows_[s] + row_, image_.height) & Base::within(columns_[s] + column_, image_.width);
  }

 private:
  CUTLASS_DEVICE void locate() {
    int const row = taps_.row(tap_) * row_step_;
    column_ = taps_.column(tap_) * column_step_;
    offset_ = image_.offset(row, column_) + taps_.template channel<kTileK>(tap_) / ThreadMap::kElementsPerAccess;
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
template <class Element, class ThreadMap, int kTileK>
class Sm80FilterColumns : public Sm80VectorIterator<Element, ThreadMap> {
  using Base = Sm80VectorIterator<Element, ThreadMap>;
  using Base::kStrided;
  static_assert(Base::kContiguous == 1);

 public:
  CUTLASS_DEVICE Sm80FilterColumns(void const* data, int tap_columns, int channels, int filters, int filter_elements,
                                   Sm80Taps const& taps, int first_filter, int thread)
      : taps_(taps), tap_columns_(tap_columns), channels_(channels) {
    auto const at = ThreadMap::initial_offset(thread);
    int const filter = first_filter + at.strided();
    pitch_ = filter_elements * std::int64_t{ThreadMap::Delta::kStrided * Base::kBytes};
    pointer_ = static_cast<char const*>(data) +
               (filter * std::int64_t{filter_elements} + taps.constant(at.contiguous())) * Base::kBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      exists_ |= (filter + s * ThreadMap::Delta::kStrided < filters ? 1u : 0u) << s;
    }
    tap_ = taps.first(at.contiguous());
    locate();
  }

  CUTLASS_DEVICE void advance() {
    taps_.counter.advance(tap_);
    locate();
  }
  CUTLASS_DEVICE auto get() const { return Base::access(pointer_ + offset_ + this->strided() * pitch_); }
  CUTLASS_DEVICE bool valid() const { return taps_.valid(tap_) & bool(exists_ >> this->strided() & 1); }

 private:
  CUTLASS_DEVICE void locate() {
    int const tap = taps_.row(tap_) * tap_columns_ + taps_.column(tap_);
    offset_ = (tap * std::int64_t{channels_} + taps_.template channel<kTileK>(tap_)) * Base::kBytes;
  }

  Sm80Taps const& taps_;
  int tap_columns_, channels_;
  char const* pointer_;
  std::int64_t pitch_, offset_;
  unsigned exists_ = 0;
  Sm80Digits tap_;
};

// Rows of B across K, of dgrad: each is a tap of a filter, its elements are channels. Offsets count vectors.
template <class Element, class ThreadMap, int kTileK>
class Sm80FilterRows : public Sm80VectorIterator<Element, ThreadMap> {
  using Base = Sm80VectorIterator<Element, ThreadMap>;
  using Base::kContiguous, Base::kStrided;
  static_assert(kContiguous * kStrided <= 32);

 public:
  struct Pitches {
    int row, column, filter;  // from one tap of the residue class to the next, from filter to filter
  };
  CUTLASS_DEVICE Sm80FilterRows(void const* data, Pitches const& pitches, int channels, Sm80Taps const& taps,
                                int first_channel, int thread)
      : pitches_(pitches), taps_(taps) {
    auto const at = ThreadMap::initial_offset(thread);
    int const channel = first_channel + at.contiguous();
    pointer_ = static_cast<char const*>(data) + channel * std::int64_t{Base::kBytes} +
               taps.constant(at.strided()) * std::int64_t{pitches.filter} * kSm80VectorBytes;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kContiguous * kStrided; ++i) {
      exists_ |= (channel + i % kContiguous * ThreadMap::Delta::kContiguous < channels ? 1u : 0u) << i;
    }
    tap_ = taps.first(at.strided());
    locate();
  }

  CUTLASS_DEVICE void advance() {
    taps_.counter.advance(tap_);
    locate();
  }
  CUTLASS_DEVICE auto get() const {
    return Base::access(pointer_ + this->contiguous() * (ThreadMap::Delta::kContiguous * Base::kBytes),
                        offsets_[this->strided()]);
  }
  CUTLASS_DEVICE bool valid() const { return valid_ >> this->index_ & 1; }

 private:
  CUTLASS_DEVICE void locate() {
    Sm80Digits at = tap_;
    valid_ = exists_;
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      int const filter = taps_.template channel<kTileK>(at) + taps_.constant(s * ThreadMap::Delta::kStrided);
      int const tap = taps_.row(at) * pitches_.row + taps_.column(at) * pitches_.column;
      offsets_[s] = filter * std::int64_t{pitches_.filter} + tap;
      constexpr unsigned kRow = (1u << kContiguous) - 1;
      if (!taps_.valid(at)) valid_ &= ~(kRow << s * kContiguous);
      taps_.counter.add(at, taps_.inside);
    }
  }

  Pitches const& pitches_;
  Sm80Taps const& taps_;
  char const* pointer_;
  unsigned exists_ = 0, valid_;
  Sm80Digits tap_;
  std::int64_t offsets_[kStrided];
};

// Rows of A across K, of wgrad: each is a place of the gradient, its elements are filters.
template <class Element, class ThreadMap>
class Sm80GradientRows : public Sm80VectorIterator<Element, ThreadMap> {
  using Base = Sm80VectorIterator<Element, ThreadMap>;
  using Base::kContiguous, Base::kStrided;

 public:
  CUTLASS_DEVICE Sm80GradientRows(Sm80Image const& image, Sm80Counter const& places, int filters, int first_filter,
                                  int first_place, int thread)
      : image_(image), places_(places) {
    auto const at = ThreadMap::initial_offset(thread);
    int const filter = first_filter + at.contiguous();
    pointer_ = static_cast<char const*>(image.data) + filter * std::int64_t{Base::kBytes};
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kContiguous; ++c) {
      exists_ |= (filter + c * ThreadMap::Delta::kContiguous < filters ? 1u : 0u) << c;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      at_[s] = places.at(first_place + at.strided() + s * ThreadMap::Delta::kStrided);
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
  CUTLASS_DEVICE auto get() const {
    return Base::access(pointer_ + offsets_[this->strided()] +
                        this->contiguous() * (ThreadMap::Delta::kContiguous * Base::kBytes));
  }
  CUTLASS_DEVICE bool valid() const {
    return (at_[this->strided()].high < image_.images) & bool(exists_ >> this->contiguous() & 1);
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
template <class Element, class ThreadMap>
class Sm80MeetingRows : public Sm80VectorIterator<Element, ThreadMap> {
  using Base = Sm80VectorIterator<Element, ThreadMap>;
  using Base::kContiguous, Base::kStrided;

 public:
  CUTLASS_DEVICE Sm80MeetingRows(Sm80Image const& image, Sm80Meeting const& vertical, Sm80Meeting const& horizontal,
                                 Sm80Counter const& places, Sm80Counter const& taps, int tap_rows, int first_column,
                                 int first_place, int thread)
      : image_(image), places_(places), row_scale_(vertical.scale), column_scale_(horizontal.scale) {
    auto const at = ThreadMap::initial_offset(thread);
    CUTLASS_PRAGMA_UNROLL
    for (int c = 0; c < kContiguous; ++c) {
      Sm80Digits const tap = taps.at(first_column + at.contiguous() + c * ThreadMap::Delta::kContiguous);
      int const y = tap.high * vertical.step + vertical.first;
      columns_[c] = tap.middle * horizontal.step + horizontal.first;
      pointers_[c] = static_cast<char const*>(image.data) + tap.low * Base::kBytes +
                     image.offset(y, columns_[c]) * std::int64_t{kSm80VectorBytes};
      rows_[c] = tap.high < tap_rows ? y : kNoPlace;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int s = 0; s < kStrided; ++s) {
      at_[s] = places.at(first_place + at.strided() + s * ThreadMap::Delta::kStrided);
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
  CUTLASS_DEVICE auto get() const { return Base::access(pointers_[this->contiguous()] + offsets_[this->strided()]); }
  CUTLASS_DEVICE bool valid() const {
    int const c = this->contiguous();
    Sm80Digits const& at = at_[this->strided()];
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
