"""How direct convolutions divide their output: a halo tile holds all that its outputs read, and
rearranged filters are those of its taps.

The headers of cuda/sm90/direct_conv are compiled into programs that answer for many convolutions;
what they say is compared with the definition of a convolution.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path

import pytest

# Reads the numbers of a convolution, those of Conv behind that of a form, and what follows them.
READING = r"""
template <int count>
bool read(int (&v)[count]) {
  for (int& one : v) {
    if (std::scanf("%d", &one) != 1) return false;
  }
  return true;
}
cutwheel::conv2d::ConvProblem conv_of(int const* v) {
  return {v[1], v[2],  v[3],  v[4],  v[5],  v[6],  v[7], v[8],
          v[9], v[10], v[11], v[12], v[13], v[14], v[15]};
}
"""
# What device code of a header needs.
ON_THE_HOST = r"""
#include <cstdint>
#include <cstdio>
#include <vector>
struct uint4 { unsigned x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
"""
PROGRAM = (
    r"""
#include <cstdio>
#include "sm90/direct_conv/shape.h"
"""
    + READING
    + r"""
using namespace cutwheel;
int main() {
  int v[16];
  while (read(v)) {
    conv2d::ConvProblem const x = conv_of(v);
    conv2d::DirectConvShape y;
    Direction const direction = v[0] == 1 ? Direction::dgrad : Direction::fprop;
    bool const taken = v[0] == 3   ? y.plan_few_channels(x)
                       : v[0] == 2 ? y.plan_space_to_depth(x)
                                   : y.plan(direction, x);
    long long const output_tiles = taken ? y.output_tiles() : 0;
    for (long long one : {static_cast<long long>(taken), output_tiles}) std::printf("%lld ", one);
    for (int one : {y.height, y.width, y.filters, y.channels, y.first_row, y.first_column,
                    y.taps_h, y.taps_w, y.dilation_h, y.dilation_w, y.residues, y.block_rows,
                    y.rows, y.columns, y.pitch, y.halo_rows, y.halo_lines(), x.step()}) {
      std::printf("%d ", one);
    }
    std::puts("");
  }
}
"""
)
# The functions that fill shared memory, thread by thread, with the number of each element of the
# filter instead of its value. Prints them as they lie, the swizzle undone.
GATHERING = (
    ON_THE_HOST
    + r"""
#include "sm90/direct_conv/filters.cuh"
"""
    + READING
    + r"""
using namespace cutwheel::conv2d;
int main() {
  int v[16];
  while (read(v)) {
    ConvProblem const x = conv_of(v);
    DirectConvShape y;
    bool const blocks = v[0] == 2;
    bool const strided = !blocks && y.plan(cutwheel::Direction::dgrad, x) && y.residues > 1;
    if (!(blocks ? y.plan_space_to_depth(x) : strided)) {
      std::puts("");
      continue;
    }
    std::vector<std::uint16_t> filter(static_cast<std::size_t>(x.k_out) * x.r * x.s * x.c);
    for (std::size_t i = 0; i < filter.size(); ++i) filter[i] = static_cast<std::uint16_t>(i + 1);
    DirectConvFilter const p = DirectConvFilter::of(filter.data(), x, y);
    int const line = blocks ? y.channels * 2 : 128, lines = 64 * y.taps_h * y.taps_w * y.block_rows;
    alignas(16) static std::uint8_t to[1 << 18];
    for (std::uint8_t& one : to) one = 0xff;
    for (int thread = 0; thread < 256; ++thread) {
      if (!blocks) gather_strided_dgrad(p, to, thread);
      if (blocks && y.channels == 16) gather_space_to_depth<16>(p, to, 0, thread);
      if (blocks && y.channels == 32) gather_space_to_depth<32>(p, to, 0, thread);
    }
    int const swizzle = line == 32 ? 0x10 : line == 64 ? 0x30 : 0x70;
    for (int byte = 0; byte < lines * line; byte += 2) {
      int const at = byte ^ (byte >> 3 & swizzle);
      std::printf("%d ", to[at] | to[at + 1] << 8);
    }
    std::puts("");
  }
}
"""
)
# Images and filters of few channels, thread by thread likewise: for each convolution the filters,
# then the halo tile whose first block is at the numbers that follow.
FEW_CHANNELS = (
    ON_THE_HOST
    + r"""
#include "sm90/direct_conv/gather.cuh"
"""
    + READING
    + r"""
using namespace cutwheel::conv2d;
void print(std::uint8_t const* to, int bytes) {
  for (int byte = 0; byte < bytes; byte += 2) {
    int const at = byte ^ (byte >> 3 & 0x10);
    std::printf("%d ", to[at] | to[at + 1] << 8);
  }
  std::puts("");
}
int main() {
  int v[20];
  while (read(v)) {
    ConvProblem const x = conv_of(v);
    DirectConvShape y;
    if (!y.plan_few_channels(x)) return 1;
    auto const numbers = [](int count) {
      std::vector<std::uint16_t> all(static_cast<std::size_t>(count));
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i + 1);
      return all;
    };
    auto const image = numbers(x.images * x.h * x.w * x.c);
    auto const filter = numbers(x.k_out * x.r * x.s * x.c);
    ConvArgs args;
    args.conv = x;
    args.a.data = image.data(), args.b.data = filter.data();
    // Channels last, or first.
    std::int64_t const size = x.h * x.w, taps = x.r * x.s;
    std::int64_t const last[] = {size * x.c, x.w * x.c, x.c, 1, taps * x.c, x.s * x.c, x.c, 1};
    std::int64_t const first[] = {size * x.c, x.w, 1, size, taps * x.c, x.s, 1, taps};
    std::int64_t const* const strides = v[19] ? first : last;
    for (int i = 0; i < 3; ++i) args.x_strides[i] = strides[i];
    args.x_channel_stride = strides[3];
    for (int i = 0; i < 4; ++i) args.filter_strides[i] = strides[4 + i];
    FewChannels const p = FewChannels::of(args, y);
    alignas(16) static std::uint8_t to[1 << 18];
    for (std::uint8_t& one : to) one = 0xff;
    for (int thread = 0; thread < 256; ++thread) p.load_filters(to, 0, thread);
    print(to, 64 * 32 * y.taps_h * y.taps_w);
    for (int thread = 0; thread < 128; ++thread) p.load_image<128>(to, v[16], v[17], v[18], thread);
    print(to, y.halo_lines() * 32);
  }
}
"""
)
FORMS = FPROP, DGRAD, SPACE_TO_DEPTH, FEW = range(4)
NAMES = ["fprop", "dgrad", "space_to_depth", "few_channels"]
BLOCKS = (SPACE_TO_DEPTH, FEW)
POSITIONS, MIN_PITCH, MAX_BOX = 240, 16, 256
LINES = {FPROP: 352, DGRAD: 352, SPACE_TO_DEPTH: 704, FEW: 704}


@dataclass(frozen=True)
class Conv:
    images: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    p: int
    q: int
    pad_h: int
    pad_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int

    def axes(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Along H and W: extents of input and output, taps, padding, stride, dilation."""
        yield self.h, self.p, self.r, self.pad_h, self.stride_h, self.dilation_h
        yield self.w, self.q, self.s, self.pad_w, self.stride_w, self.dilation_w


@dataclass(frozen=True)
class Shape:
    taken: int
    output_tiles: int
    height: int
    width: int
    filters: int
    channels: int
    first_row: int
    first_column: int
    taps_h: int
    taps_w: int
    dilation_h: int
    dilation_w: int
    residues: int
    block_rows: int
    rows: int
    columns: int
    pitch: int
    halo_rows: int
    halo_lines: int
    step: int


def random_conv(form: int) -> Conv | None:
    strided = form in BLOCKS or random.random() < 0.5
    axes = []
    for _ in range(2):
        stride = 2 if form == FEW else random.choice((1, 2, 2, 3, 4)) if strided else 1
        taps, dilation = random.randint(1, 7), random.choice((1, 1, 2))
        x = random.randint(1, 120) if form == FEW else stride * random.randint(1, 60)
        pad, behind = random.randint(0, 4), random.randint(0, 4)
        y = (x + pad + behind - (taps - 1) * dilation - 1) // stride + 1
        if x + pad + behind <= (taps - 1) * dilation:
            return None
        axes.append((x, taps, y, pad, stride, dilation))
    columns = zip(*axes, strict=True)
    (h, w), (r, s), (p, q), (pad_h, pad_w), (sh, sw), (dh, dw) = columns
    c, k = 8 * random.randint(1, 8), 8 * random.randint(1, 10)
    if form == FEW:
        c = random.randint(1, 4)
    return Conv(random.randint(1, 3), h, w, c, k, r, s, p, q, pad_h, pad_w, sh, sw, dh, dw)


@pytest.fixture(scope="module")
def planner(compiled: Callable[[str], Path]) -> Path:
    return compiled(PROGRAM)


@pytest.fixture(scope="module")
def gatherer(compiled: Callable[[str], Path]) -> Path:
    return compiled(GATHERING)


def answers(program: Path, form: int, convs: list[Conv]) -> list[list[int]]:
    lines = "".join(f"{form} {' '.join(map(str, astuple(conv)))}\n" for conv in convs)
    done = subprocess.run(
        [program], input=lines, capture_output=True, text=True, check=True, timeout=60
    )
    return [list(map(int, line.split())) for line in done.stdout.splitlines()]


def planned(planner: Path, form: int, count: int) -> list[tuple[Conv, Shape]]:
    """Those of `count` convolutions at random that the kernel takes."""
    convs = [conv for _ in range(count) if (conv := random_conv(form))]
    shapes = [Shape(*numbers) for numbers in answers(planner, form, convs)]
    return [pair for pair in zip(convs, shapes, strict=True) if pair[1].taken]


def reads(form: int, output: int, axis: tuple[int, ...], strided: bool) -> set[int]:
    """Pixels that an output of the kernel needs, along one dimension."""
    _, _, taps, pad, stride, dilation = axis
    offsets = [tap * dilation - pad for tap in range(taps)]
    if form == FPROP:
        return {output * stride + offset for offset in offsets}
    if form in BLOCKS:
        return {(output * stride + offset) // stride for offset in offsets}
    # Row i of the gradient is read by output row (i - offset) / stride, where that is whole.
    pixels = range(output * stride, output * stride + stride) if strided else [output]
    return {(i - o) // stride for i in pixels for o in offsets if (i - o) % stride == 0}


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_halo_tiles_hold_what_their_outputs_read(planner: Path, form: int) -> None:
    pairs = planned(planner, form, 3000)
    assert len(pairs) > 100
    for conv, shape in pairs:
        sides = (
            (shape.first_row, shape.taps_h, shape.dilation_h),
            (shape.first_column, shape.taps_w, shape.dilation_w),
        )
        for axis, (first, taps, dilation) in zip(conv.axes(), sides, strict=True):
            held = {first + tap * dilation for tap in range(taps)}
            for output in (0, 1, 7):
                needed = {line - output for line in reads(form, output, axis, shape.residues > 1)}
                assert needed <= held, (conv, shape)


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_output_tiles_cover_the_output_and_fit(planner: Path, form: int) -> None:
    for conv, shape in planned(planner, form, 3000):
        around_h = (shape.taps_h - 1) * shape.dilation_h
        around_w = (shape.taps_w - 1) * shape.dilation_w
        down, across = -(-shape.height // shape.rows), -(-shape.width // shape.columns)
        assert shape.output_tiles == conv.images * down * across
        assert shape.pitch >= max(shape.columns + around_w, MIN_PITCH)
        assert shape.halo_rows == shape.rows + around_h
        assert max(shape.pitch, shape.halo_rows) <= MAX_BOX
        # Positions of a tile, and one more line for dropped positions.
        assert (shape.rows - 1) * shape.pitch + shape.columns <= POSITIONS
        assert shape.rows * shape.columns < LINES[form]
        assert shape.block_rows * shape.halo_lines <= LINES[form]
        assert shape.halo_lines == shape.halo_rows * shape.pitch


def test_rearranged_channels_fit(planner: Path) -> None:
    for conv, shape in planned(planner, DGRAD, 3000):
        assert shape.channels == conv.k <= 64
        assert shape.filters == conv.c * shape.residues
        if shape.residues > 1:
            assert shape.filters <= 64
            assert shape.taps_h * shape.taps_w <= 16
            assert shape.height * conv.stride_h == conv.h
            assert shape.width * conv.stride_w == conv.w
    for conv, shape in planned(planner, SPACE_TO_DEPTH, 3000):
        assert shape.channels == conv.stride_w * conv.c
        assert shape.channels in (16, 32)
        assert shape.block_rows == conv.stride_h
        assert shape.block_rows * shape.taps_h * shape.taps_w * shape.channels <= 512
    for _, shape in planned(planner, FEW, 3000):
        assert (shape.channels, shape.block_rows) == (16, 1)
        assert shape.taps_h * shape.taps_w * shape.channels <= 512


# Extents and strides up to 2^31 - 2^16 are accepted; products of them take 64 bits.
HUGE = 2**31 - 2**16
WIDE = 2**28 + 1  # times 16 channels, 16 more than 2^32


@pytest.mark.parametrize(
    ("form", "conv"),
    [
        (FPROP, Conv(1, 8, 8, 64, 64, 3, 3, 1, 1, 0, 0, 65536, 65536, 1, 1)),
        (FPROP, Conv(1, 8, 8, 64, 64, 3, 3, 1, 1, 0, 0, HUGE, HUGE, 1, 1)),
        (DGRAD, Conv(1, 8, 8, 64, 64, 3, 3, 1, 1, 0, 0, HUGE, 2, 1, 1)),
        (DGRAD, Conv(1, 1, WIDE, 16, 64, 1, 1, 1, 1, 0, 0, 1, WIDE, 1, 1)),
        (SPACE_TO_DEPTH, Conv(1, 1, WIDE, 16, 64, 1, 1, 1, 1, 0, 0, 1, WIDE, 1, 1)),
        (SPACE_TO_DEPTH, Conv(1, 8, 8, 65536, 64, 3, 3, 1, 1, 0, 0, 65536, 65536, 1, 1)),
    ],
    ids=lambda value: None if isinstance(value, int) else f"{value.stride_h}x{value.stride_w}",
)
def test_large_strides_do_not_overflow(planner: Path, form: int, conv: Conv) -> None:
    shape = Shape(*answers(planner, form, [conv])[0])
    assert not shape.taken
    assert shape.step == min(conv.stride_h * conv.stride_w, 2**31 - 1)


def tap_of(reach: int, dilation: int, taps: int) -> int | None:
    """Number of the caller's tap that lies `reach` pixels behind the first one."""
    tap, rest = divmod(reach, dilation)
    return tap if rest == 0 and 0 <= tap < taps else None


def element(conv: Conv, filter_: int, row: int | None, column: int | None, channel: int) -> int:
    """Number of an element of the filter, 0 where there is none; filters have two bytes for it."""
    if row is None or column is None or filter_ >= conv.k:
        return 0
    return (((filter_ * conv.r + row) * conv.s + column) * conv.c + channel + 1) % 65536


def expected(conv: Conv, shape: Shape, form: int, step: int, line: int, place: int) -> int:
    """Value that wgmma reads: element `place` of line `line`, for a tap and a row of the blocks."""
    tap, block_row = divmod(step, shape.block_rows)
    i, j = divmod(tap, shape.taps_w)
    above, left = (shape.first_row + i) * conv.stride_h, (shape.first_column + j) * conv.stride_w
    pixel, channel = divmod(place, conv.c)
    if form == SPACE_TO_DEPTH:
        row = tap_of(above + block_row + conv.pad_h, conv.dilation_h, conv.r)
        column = tap_of(left + pixel + conv.pad_w, conv.dilation_w, conv.s)
    else:
        # Residue class `pixel` of the gradient reads through tap j what lies here.
        class_h, class_w = divmod(pixel, conv.stride_w)
        if class_h >= conv.stride_h:
            return 0
        row = tap_of(class_h - above + conv.pad_h, conv.dilation_h, conv.r)
        column = tap_of(class_w - left + conv.pad_w, conv.dilation_w, conv.s)
    return element(conv, line, row, column, channel)


@pytest.mark.parametrize("form", [DGRAD, SPACE_TO_DEPTH], ids=["strided_dgrad", "space_to_depth"])
def test_filters_are_rearranged_by_taps(planner: Path, gatherer: Path, form: int) -> None:
    pairs = planned(planner, form, 3000)
    if form == DGRAD:
        pairs = [pair for pair in pairs if pair[1].residues > 1]
    pairs = pairs[:40]
    assert len(pairs) > 20
    gathered = answers(gatherer, form, [conv for conv, _ in pairs])
    for (conv, shape), found in zip(pairs, gathered, strict=True):
        width = shape.channels if form == SPACE_TO_DEPTH else 64
        steps = shape.taps_h * shape.taps_w * shape.block_rows
        assert len(found) == steps * 64 * width
        assert found == [
            expected(conv, shape, form, step, line, place)
            for step in range(steps)
            for line in range(64)
            for place in range(width)
        ], (conv, shape)


def pixel_of(conv: Conv, image: int, row: int, column: int, channel: int, first: bool) -> int:
    """Number of an element of an image, 0 where there is none."""
    if not (0 <= row < conv.h and 0 <= column < conv.w and channel < conv.c):
        return 0
    inner = (channel * conv.h + row) * conv.w + column
    last = (row * conv.w + column) * conv.c + channel
    return (image * conv.h * conv.w * conv.c + (inner if first else last) + 1) % 65536


def tap_number(conv: Conv, filter_: int, row: int, column: int, channel: int, first: bool) -> int:
    i = tap_of(row + conv.pad_h, conv.dilation_h, conv.r)
    j = tap_of(column + conv.pad_w, conv.dilation_w, conv.s)
    if i is None or j is None or channel >= conv.c:
        return 0
    if not first or filter_ >= conv.k:
        return element(conv, filter_, i, j, channel)
    return (((filter_ * conv.c + channel) * conv.r + i) * conv.s + j + 1) % 65536


@pytest.mark.parametrize("first", [False, True], ids=["channels_last", "channels_first"])
def test_few_channels_are_gathered(
    planner: Path, compiled: Callable[[str], Path], first: bool
) -> None:
    random.seed(7)
    program = compiled(FEW_CHANNELS)
    pairs = planned(planner, FEW, 200)[:40]
    assert len(pairs) > 20
    lines, corners = "", []
    for conv, shape in pairs:
        row = random.choice((shape.first_row, shape.first_row + shape.rows))
        corners.append((random.randrange(conv.images), row, shape.first_column))
        numbers = (FEW, *astuple(conv), *corners[-1], int(first))
        lines += " ".join(map(str, numbers)) + "\n"
    done = subprocess.run(
        [program], input=lines, capture_output=True, text=True, check=True, timeout=60
    )
    printed = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(printed) == 2 * len(pairs)
    block = [(i, j, c) for i in range(2) for j in range(2) for c in range(4)]
    for n, ((conv, shape), (image, row, column)) in enumerate(zip(pairs, corners, strict=True)):
        filters, pixels = printed[2 * n : 2 * n + 2]
        steps = [(i, j) for i in range(shape.taps_h) for j in range(shape.taps_w)]
        above, left = 2 * shape.first_row, 2 * shape.first_column
        assert filters == [
            tap_number(conv, line, above + 2 * i + y, left + 2 * j + x, c, first)
            for i, j in steps
            for line in range(64)
            for y, x, c in block
        ], (conv, shape)
        assert pixels == [
            pixel_of(conv, image, 2 * (row + i) + y, 2 * (column + j) + x, c, first)
            for i in range(shape.halo_rows)
            for j in range(shape.pitch)
            for y, x, c in block
        ], (conv, shape)
