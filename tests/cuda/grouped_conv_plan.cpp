// The program of test_grouped_conv.py.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "grouped_conv/remembered.h"

using namespace cutwheel::conv2d::grouped;

namespace {

[[noreturn]] void fail(char const* what, GroupShape const& s, bool is_dgrad, int memory) {
  std::printf(
      "%s: %d groups of %d, %d; %d x %d to %d x %d; %d x %d taps, stride %d %d, dilation %d %d, dgrad %d, memory %d\n",
      what, s.groups, s.channels, s.filters, s.in_h, s.in_w, s.out_h, s.out_w, s.taps_h, s.taps_w, s.stride_h, s.stride_w,
      s.dilation_h, s.dilation_w, is_dgrad, memory);
  std::exit(1);
}

int drawn(int least, int most) { return least + std::rand() % (most - least + 1); }

int extent(int in, int before, int after, int taps, int stride, int dilation) {
  int const room = in + before + after - (taps - 1) * dilation - 1;
  return room < 0 ? 0 : room / stride + 1;
}

// What python/cutwheel/ops/conv/_grouped.py hands over.
bool is_served(GroupShape const& s) {
  int const span_h = (s.taps_h - 1) * s.dilation_h + 1, span_w = (s.taps_w - 1) * s.dilation_w + 1;
  return s.taps_h <= 7 && s.taps_w <= 7 && span_h <= 11 && span_w <= 11 &&
         s.taps_h * s.taps_w * std::max(s.channels, s.filters) <= 49 * 64;
}

// The tile of a warp, as cuda/torch/conv/grouped.cpp chooses it.
int eights_of(int width) {
  int best = 0, least = 0;
  for (int eights : {1, 2, 3, 4, 7}) {
    int const cost = (width + 8 * eights - 1) / (8 * eights) * (eights + 1);
    if (best == 0 || cost < least) best = eights, least = cost;
  }
  return best;
}

// Every tap of every cell finds its pixel where the copy of the tile has put it.
void check_addresses(GatherTile const& t, GroupShape const& s, bool is_dgrad, int memory) {
  auto const place = [&](int row, int column) {
    int const at = t.step_w == 2 ? (column & 1) * t.plane + (column >> 1) : column;
    return row * t.row_pitch + at * t.pixel_pitch;
  };
  std::vector<int> seen(static_cast<std::size_t>(s.taps_h * s.taps_w), 0);
  for (int phase = 0; phase < t.spread_h * t.spread_w; ++phase) {
    int const y = phase / t.spread_w, x = phase % t.spread_w;
    for (int k = t.phase_taps[phase]; k < t.phase_taps[phase + 1]; ++k) {
      int const tap = t.taps[k].index, r = tap / s.taps_w, c = tap % s.taps_w;
      ++seen[static_cast<std::size_t>(tap)];
      for (int row = 0; row < t.rows; row += std::max(1, t.rows - 1)) {
        for (int column = 0; column < t.columns; column += std::max(1, t.columns - 1)) {
          // The source's pixel by the definition of the convolution.
          int h = row * s.stride_h + r * s.dilation_h - s.pad_h, w = column * s.stride_w + c * s.dilation_w - s.pad_w;
          if (is_dgrad) {
            h = row * s.stride_h + y + s.pad_h - r * s.dilation_h, w = column * s.stride_w + x + s.pad_w - c * s.dilation_w;
            if (h % s.stride_h != 0 || w % s.stride_w != 0) fail("a tap of another residue", s, is_dgrad, memory);
            h /= s.stride_h, w /= s.stride_w;
          }
          int const x_row = h - t.first_h, x_column = w - t.first_w;
          if (x_row < 0 || x_row >= t.x_rows || x_column < 0 || x_column >= t.x_columns) {
            fail("a pixel beyond the tile", s, is_dgrad, memory);
          }
          int const cell = row * t.step_h * t.row_pitch + column * t.pixel_pitch;
          if (cell + t.taps[k].offset != place(x_row, x_column)) fail("another pixel", s, is_dgrad, memory);
        }
      }
    }
  }
  for (int count : seen) {
    if (count != 1) fail("taps", s, is_dgrad, memory);
  }
  // Eight cells of a row lie in different banks.
  if (t.pixel_pitch / 16 % 2 == 0 || t.filter_pitch / 16 % 2 == 0) fail("banks", s, is_dgrad, memory);
}

void check(GroupShape const& s, int memory) {
  Limits const limits{drawn(1, 3) * 256, memory, drawn(1, 132)};
  for (bool is_dgrad : {false, true}) {
    int const eights = eights_of(is_dgrad ? s.channels : s.filters);
    WarpTile const warp{eights == 7 ? 2 : 4, eights};
    bool const floats = drawn(0, 1);
    GatherPlan plan, again;
    auto const make = [&](GatherPlan& made) { return plan_gather(made, warp, s, is_dgrad, limits, floats, 16); };
    PlanKey const key = key_of(warp, s, limits, is_dgrad, floats, 16);
    if (!remembered(plan, key, make) || !remembered(again, key, make)) fail("no plan", s, is_dgrad, memory);
    GatherTile const& t = plan.tile;
    if (again.blocks != plan.blocks || again.shared_memory != plan.shared_memory) fail("memory", s, is_dgrad, memory);
    if (plan.shared_memory > memory || plan.shared_memory < t.cells_offset + t.cells * 8)
      fail("bytes", s, is_dgrad, memory);
    std::int64_t const tiles = std::int64_t{up(s.images, t.images)} * t.down * t.across;
    if (t.parts < 1 || t.parts > tiles || t.threads > 256) fail("parts", s, is_dgrad, memory);
    if (t.x_columns > 255 || t.x_rows > 1023 || t.stage_bytes / 16 >= 1 << 14) fail("table", s, is_dgrad, memory);
    if (t.images > 1 && (t.down > 1 || t.across > 1)) fail("images", s, is_dgrad, memory);
    check_addresses(t, s, is_dgrad, memory);
  }
  FilterGradPlan plan;
  if (!plan_filter_grad(plan, {5, eights_of(s.filters)}, s, limits, 16)) fail("no plan of wgrad", s, false, memory);
  FilterGradTile const& t = plan.tile;
  if (plan.shared_memory > memory || t.threads > 256 || t.cells % 16 != 0) fail("wgrad", s, false, memory);
  if (t.m_slices * t.m_parts * 10 < t.chunks) fail("taps of wgrad", s, false, memory);
  if (t.x_columns > 255 || t.x_rows > 1023 || t.stage_bytes / 16 >= 1 << 14) fail("table of wgrad", s, false, memory);
}

}  // namespace

int main() {
  std::srand(11);
  int const widths[] = {8, 16, 24, 32, 40, 48, 56, 64, 72, 96, 112, 128};
  for (int count = 0; count < 6000;) {
    GroupShape s{};
    s.images = drawn(1, 70), s.groups = drawn(1, 40);
    s.channels = widths[drawn(0, 11)], s.filters = drawn(0, 2) ? s.channels : widths[drawn(0, 11)];
    s.taps_h = drawn(1, 7), s.taps_w = drawn(0, 1) ? s.taps_h : drawn(1, 7);
    s.stride_h = drawn(1, 2), s.stride_w = drawn(0, 3) ? s.stride_h : drawn(1, 2);
    s.dilation_h = drawn(1, 5), s.dilation_w = drawn(1, 5);
    s.pad_h = drawn(0, s.taps_h), s.pad_w = drawn(0, s.taps_w);
    s.in_h = drawn(1, drawn(0, 3) ? 60 : 500), s.in_w = drawn(1, drawn(0, 3) ? 60 : 500);
    s.out_h = extent(s.in_h, s.pad_h, drawn(0, 3), s.taps_h, s.stride_h, s.dilation_h);
    s.out_w = extent(s.in_w, s.pad_w, drawn(0, 3), s.taps_w, s.stride_w, s.dilation_w);
    if (!is_served(s) || s.out_h < 1 || s.out_w < 1) continue;
    ++count;
    for (int kibibytes : {99, 163, 227}) check(s, kibibytes * 1024);
  }
}
