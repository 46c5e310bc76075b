// What the kernels of grouped convolutions have in common: copies of tiles to shared memory.
#pragma once

#include "depthwise/mma.cuh"
#include "grouped_conv/plan.h"

#ifdef __CUDACC__
namespace cutwheel::conv2d::grouped {

using depthwise::block_index;
using depthwise::commit_copies;
using depthwise::copy_async_16;
using depthwise::divide;
using depthwise::Divided;
using depthwise::load_matrices;
using depthwise::min_of;
using depthwise::Mma;
using depthwise::synchronize;
using depthwise::thread_index;
using depthwise::wait_for_groups;

// An image of a batch, of which channels are contiguous.
struct Pixels {
  void const* data;
  std::int64_t image, row, column;  // strides, in elements
};

// A pixel of a tile, in a table in shared memory: the same for all tiles, so that none of them takes a division. How far it
// is from the tile's corner in memory, and its place: in shared memory (in 16 bytes), and row and column from the corner
// on.
struct Pixel {
  int offset;
  unsigned place;

  DEPTHWISE_DEVICE static Pixel of(std::int64_t offset, int bytes, int row, int column) {
    return {static_cast<int>(offset),
            static_cast<unsigned>(bytes) / 16 | static_cast<unsigned>(row) << 14 | static_cast<unsigned>(column) << 24};
  }
  DEPTHWISE_DEVICE unsigned bytes() const { return (place & 0x3fff) * 16; }
  DEPTHWISE_DEVICE int row() const { return static_cast<int>(place >> 14 & 0x3ff); }
  DEPTHWISE_DEVICE int column() const { return static_cast<int>(place >> 24); }
};

DEPTHWISE_DEVICE Pixel load_pixel(Pixel const* from) {
  uint2 const both = *reinterpret_cast<uint2 const*>(from);
  return {static_cast<int>(both.x), both.y};
}
DEPTHWISE_DEVICE void store_pixel(Pixel* to, Pixel const& pixel) {
  *reinterpret_cast<uint2*>(to) = make_uint2(static_cast<unsigned>(pixel.offset), pixel.place);
}

// Which of a tile's pixels a thread copies: every lanes-th, and the same piece of channels of each.
struct Lane {
  int piece, first, count;

  DEPTHWISE_DEVICE static Lane of(int pieces, int threads) {
    int const thread = thread_index(), lane = thread / pieces, count = threads / pieces;
    return {thread - lane * pieces, lane < count ? lane : 1 << 30, count};
  }
};

// 16 bytes to an address in shared memory, or zeros: then nothing is read, wherever `from` is.
DEPTHWISE_DEVICE void copy_async_to(unsigned to, void const* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// Tiles of all images, one after the other: the place of one, and its first image.
struct TileIndex {
  int across, down, image;

  template <class Tile>
  DEPTHWISE_DEVICE static TileIndex of(Tile const& t, int index) {
    return {index % t.across, index / t.across % t.down, index / t.across / t.down * t.images};
  }
  template <class Tile>
  DEPTHWISE_DEVICE void advance(Tile const& t) {
    if (++across < t.across) return;
    across = 0;
    if (++down < t.down) return;
    down = 0;
    image += t.images;
  }
};

// Columns are in the order of their residues modulo step_w (1 or 2), so that neighbouring cells have neighbouring pixels.
template <class Tile>
DEPTHWISE_DEVICE int place_of(Tile const& t, int step_w, int row, int column) {
  int const at = step_w == 2 ? (column & 1) * t.plane + (column >> 1) : column;
  return row * t.row_pitch + at * t.pixel_pitch;
}

// The table of a tile's source.
template <class Tile>
DEPTHWISE_DEVICE void make_pixels(Tile const& t, int step_w, Pixels const& x, Pixel* to) {
  for (int i = thread_index(); i < t.images * t.x_rows * t.x_columns; i += t.threads) {
    Divided const line = divide(i, t.by_x_columns), image = divide(line.quotient, t.by_x_rows);
    store_pixel(to + i, Pixel::of(image.quotient * x.image + image.rest * x.row + line.rest * x.column,
                                  place_of(t, step_w, line.quotient, line.rest), image.rest, line.rest));
  }
}

// The table of a tile's cells, or places: their first pixels in shared memory, and where theirs of the target are, whose
// rows and columns are `spread` pixels apart. Those that fill up the last 16 have the first one's.
template <class Tile>
DEPTHWISE_DEVICE void make_cells(Tile const& t, int step_h, int spread_h, int spread_w, Pixels const& target, Pixel* to) {
  for (int i = thread_index(); i < t.cells; i += t.threads) {
    Divided const line = divide(i, t.by_columns), image = divide(line.quotient, t.by_rows);
    Pixel cell{0, 0};
    if (image.quotient < t.images) {
      int const h = image.rest * spread_h, w = line.rest * spread_w;
      cell = Pixel::of(image.quotient * target.image + h * target.row + w * target.column,
                       (image.quotient * t.x_rows + image.rest * step_h) * t.row_pitch + line.rest * t.pixel_pitch, h, w);
    }
    store_pixel(to + i, cell);
  }
}

// Starts the copies of a tile's source, whose corner is (row, column) of an image: zeros where it has no pixels.
template <class E, class Tile>
DEPTHWISE_DEVICE void load_pixels(Tile const& t, Lane const& lane, Pixel const* table, Pixels const& x, int image,
                                  int images, int first_row, int first_column, int height, int width, int channel,
                                  bool has_channels, unsigned to) {
  E const* const corner =
      static_cast<E const*>(x.data) + (image * x.image + first_row * x.row + first_column * x.column + channel);
  int const each = t.x_rows * t.x_columns, all = t.images * each;
  int const there = has_channels ? min_of(images - image, t.images) * each : 0;
  to += lane.piece * 16;
#pragma unroll 4
  for (int i = lane.first; i < all; i += lane.count) {
    Pixel const pixel = load_pixel(table + i);
    bool const inside = (i < there) & (static_cast<unsigned>(first_row + pixel.row()) < static_cast<unsigned>(height)) &
                        (static_cast<unsigned>(first_column + pixel.column()) < static_cast<unsigned>(width));
    copy_async_to(to + pixel.bytes(), corner + pixel.offset, inside);
  }
}

}  // namespace cutwheel::conv2d::grouped
#endif
