"""The work of convolutions on Hopper's persistent kernel, as the host lays it out for the GPU.

A program prints, for problems at random, which tiles threadblocks find, and for each row of the
implicit GEMM its row of D with the taps that add to it and the pixels they read. Python says what
has to come out: every tile once, every pixel once, and the sums of a convolution.
"""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

PROGRAM = r"""
#include <cstdio>
#include "sm90/native/load/im2col.cuh"
#include "sm90/native/scheduler/conv.cuh"
using namespace cutwheel;
using namespace cutwheel::conv2d;
int cutwheel::take_tensor_map_error() { return 0; }
extern "C" CUresult cuTensorMapEncodeIm2col(
    CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
    const int*, const int*, cuuint32_t, cuuint32_t, const cuuint32_t*, CUtensorMapInterleave,
    CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  return CUDA_SUCCESS;
}
void gemm::encode_image_map(CUtensorMap&, DType, void*, int, int const (&)[4],
                            std::int64_t const (&)[4], StoredBox const&) {}
bool gemm::is_tma_storable(gemm::GemmArgs const&, int) { return false; }

struct Tile {
  static constexpr int kM = 64, kN = 32, kK = 16;
};

// As the loader goes from tap to tap: rows of D, then "tap pixel" of each, -1 outside of the image.
template <class Tiles, class Place>
void print_rows(Tiles const& tiles, int const (&image)[3], Place const& place) {
  for (int i = 0; i < tiles.count; ++i) {
    ConvResidueClass const& residue = tiles.classes[i];
    int const per_row = std::max(residue.taps_w, 1);
    int const per_slice = per_row * std::max(residue.taps_h, 1);
    for (int m = 0; m < residue.m; ++m) {
      Im2colPixel const at = residue.grid.at(m);
      std::printf("row %d:", place(i, m));
      for (int t = 0; t < residue.taps; ++t) {
        int const w = t % per_row, h = t % per_slice / per_row, d = t / per_slice;
        auto const& step = tiles.offset_step;
        int const tap =
            residue.tap + d * tiles.tap_step_d + h * tiles.tap_step_h + w * tiles.tap_step_w;
        int const x = at.w + residue.offset.w + w * step.w;
        int const y = at.h + residue.offset.h + h * step.h;
        int const z = at.d + residue.offset.d + d * step.d;
        bool const inside =
            x >= 0 && x < image[2] && y >= 0 && y < image[1] && z >= 0 && z < image[0];
        int const pixel = ((at.image * image[0] + z) * image[1] + y) * image[2] + x;
        std::printf(" %d %d", tap, inside ? pixel : -1);
      }
      std::puts("");
    }
  }
}

template <Direction direction, class Tiles>
void print_tiles(Tiles& tiles, ConvArgs const& args) {
  using Scheduler = Sm90ConvScheduler<Tile, direction>;
  std::int64_t const count = tiles.count_tiles(args, Tile::kM, Tile::kN);
  int const grid = static_cast<int>(std::min<std::int64_t>(count, args.device->sm_count));
  for (int i = 0; i < tiles.count; ++i) std::printf("class %d\n", tiles.classes[i].m);
  for (int threadblock = 0; threadblock < grid; ++threadblock) {
    Scheduler scheduler(tiles, {});
    gemm::Sm90WorkTile work;
    for (int index = threadblock; scheduler.at(index, work); index += grid) {
      if (work.end_m > 0) std::printf("tile %d %d %d\n", work.a_batch, work.m, work.n);
    }
  }
}

int main() {
  ConvArgs args;
  DeviceInfo device;
  args.device = &device;
  ConvProblem& x = args.conv;
  int is_dgrad;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d",
                    &is_dgrad, &device.sm_count, &args.swizzle, &x.images, &x.d, &x.h, &x.w, &x.c,
                    &x.k_out, &x.t, &x.r, &x.s, &x.o, &x.p, &x.q, &x.pad_d, &x.pad_h, &x.pad_w,
                    &x.stride_d, &x.stride_h, &x.stride_w, &x.dilation_d, &x.dilation_h,
                    &x.dilation_w) == 24) {
    args.m = is_dgrad ? x.pixels() : x.positions();
    args.n = is_dgrad ? x.c : x.k_out;
    std::puts("problem");
    if (is_dgrad) {
      Sm90DgradTiles tiles{};
      DgradAxes sides;
      CUtensorMap maps[Sm90DgradTiles::kMaps], tail;
      int tail_rows;
      if (!plan_dgrad(tiles, x, sides) ||
          !encode_dgrad_pixels(tiles, args, sides, DType::bf16, 64, Tile::kM, Tile::kK,
                               /*has_bias=*/false, maps, tail, tail_rows)) {
        std::puts("refused");
        continue;
      }
      sort_classes(tiles);
      print_tiles<Direction::dgrad>(tiles, args);
      Sm90ConvScheduler<Tile, Direction::dgrad> scheduler(tiles, {});
      print_rows(tiles, {x.o, x.p, x.q}, [&](int of, int m) {
        gemm::Sm90WorkTile work;
        work.a_batch = of;
        return scheduler.coordinates(work).row(m);
      });
    } else {
      Sm90FpropTiles tiles{};
      plan_fprop(tiles, x);
      tiles.classes[0].k_tiles = x.taps() * ceil_div(x.c, Tile::kK);
      print_tiles<Direction::fprop>(tiles, args);
      print_rows(tiles, {x.d, x.h, x.w}, [](int, int m) { return m; });
    }
  }
}
"""

Extents = tuple[int, int, int]


def output(
    extents: Extents, taps: Extents, pads: Extents, strides: Extents, steps: Extents
) -> tuple[int, ...]:
    return tuple(
        (extent + 2 * pad - (tap - 1) * step - 1) // stride + 1
        for extent, tap, pad, stride, step in zip(extents, taps, pads, strides, steps, strict=True)
    )


def drawn(random: Random) -> dict[str, tuple[int, ...]]:
    """A convolution whose output has pixels."""
    while True:
        depth = random.random() < 0.3

        def sides(low: int, high: int, flat: int, depth: bool = depth) -> Extents:
            first = random.randint(low, high) if depth else flat
            return first, random.randint(low, high), random.randint(low, high)

        problem = {
            "extents": sides(1, 9, 1),
            "taps": sides(1, 4, 1),
            "pads": sides(0, 2, 0),
            "strides": sides(1, 3, 1),
            "steps": sides(1, 2, 1),
        }
        problem["outputs"] = output(*problem.values())
        if min(problem["outputs"]) > 0:
            channels = random.choice((8, 40, 72)), random.choice((8, 40, 72))
            return {"images": (random.randint(1, 3),), "channels": channels, **problem}


def sums(problem: dict[str, tuple[int, ...]], is_dgrad: bool) -> dict[int, set[tuple[int, int]]]:
    """From each row of D to the taps that add to it, each with the pixel it reads."""
    (images,) = problem["images"]
    extents, outputs, taps = problem["extents"], problem["outputs"], problem["taps"]
    found: dict[int, set[tuple[int, int]]] = defaultdict(set)

    def number(at: tuple[int, ...], of: tuple[int, ...]) -> int:
        return (at[0] * of[1] + at[1]) * of[2] + at[2]

    def every(of: tuple[int, ...]) -> list[Extents]:
        return [(d, h, w) for d in range(of[0]) for h in range(of[1]) for w in range(of[2])]

    pixels, positions = len(every(extents)), len(every(outputs))
    for image in range(images):
        for position in every(outputs):
            row = image * positions + number(position, outputs)
            for tap in every(taps):
                sides = zip(
                    *(position, problem["strides"], problem["pads"], tap, problem["steps"]),
                    strict=True,
                )
                read = tuple(at * stride - pad + t * step for at, stride, pad, t, step in sides)
                if all(0 <= x < end for x, end in zip(read, extents, strict=True)):
                    pixel = image * pixels + number(read, extents)
                    key, value = (pixel, row) if is_dgrad else (row, pixel)
                    found[key].add((number(tap, taps), value))
    return found


@pytest.fixture(scope="module")
def program(
    repository: Path,
    compiled_with_cutlass: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    native = repository / "cuda" / "sm90" / "native"
    others = native / "load" / "im2col.cpp", native / "scheduler" / "conv.cpp"
    return compiled_with_cutlass(PROGRAM, tmp_path_factory.mktemp("conv_tiles"), *others)


@pytest.mark.slow
def test_every_tile_and_every_sum_is_there_once(program: Path, seed: int) -> None:
    random = Random(seed)
    problems = [(drawn(random), index % 2 == 1) for index in range(300)]
    lines = []
    for problem, is_dgrad in problems:
        sides = ("extents", "channels", "taps", "outputs", "pads", "strides", "steps")
        numbers = [int(is_dgrad), random.choice((1, 5, 132)), random.choice((1, 2, 8))]
        numbers += [*problem["images"], *(x for side in sides for x in problem[side])]
        lines.append(" ".join(map(str, numbers)))
    done = subprocess.run(
        [program], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    answers = done.stdout.split("problem\n")[1:]
    assert len(answers) == len(problems)
    refused = 0
    for (problem, is_dgrad), answer in zip(problems, answers, strict=True):
        if answer == "refused\n":
            # The bit fields of a tensor map hold less of a volume.
            assert is_dgrad
            refused += 1
            continue
        told: dict[str, list[str]] = defaultdict(list)
        for line in answer.splitlines():
            kind, _, rest = line.partition(" ")
            told[kind].append(rest)
        columns = problem["channels"][0 if is_dgrad else 1]
        tiles = [
            f"{of} {m} {n}"
            for of, rows in enumerate(map(int, told["class"]))
            for m in range(0, rows, 64)
            for n in range(0, columns, 32)
        ]
        assert sorted(told["tile"]) == sorted(tiles), problem
        expected = sums(problem, is_dgrad)
        rows = {}
        for row, _, taps in (line.partition(":") for line in told["row"]):
            numbers = list(map(int, taps.split()))
            pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
            inside = [pair for pair in pairs if pair[1] >= 0]
            assert int(row) not in rows, problem
            assert len(set(inside)) == len(inside), problem
            rows[int(row)] = set(inside)
        (images,) = problem["images"]
        d, h, w = problem["extents" if is_dgrad else "outputs"]
        assert sorted(rows) == list(range(images * d * h * w)), problem
        assert rows == {row: expected.get(row, set()) for row in rows}, problem
    assert refused < len(problems) / 20
