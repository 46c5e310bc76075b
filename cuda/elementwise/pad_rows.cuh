// A copy of rows that begin anywhere to rows on 16 bytes, with zeros behind each, and of images with zeros around their
// pixels: what kernels that read 16 bytes at a time want of an operand that does not lie so. torch reads and writes memory
// in two kernels for it, a fill and a copy.
#pragma once

#include <cutlass/fast_math.h>

#include <algorithm>

#include "core/args/pad.h"
#include "core/cutlass_types.cuh"
#include "core/launch.h"
#include "core/shifted_bytes.cuh"

namespace cutwheel::gemm {

// The GemmArgs are PadArgs.
template <Arch arch_, DType a_>
struct PadRows {
  static_assert(a_ == DType::s8, "bytes");
  static constexpr int kMaxThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSharedStorageBytes = 0;
  static constexpr int kAtOnce = 4;  // pieces of 16 bytes that a thread has on their way

  struct Params {
    std::uint8_t const* source;
    std::uint8_t const* end;  // of the last row
    std::uint8_t* target;
    std::int64_t image_stride, line_stride, row_stride, target_pitch;
    cutlass::FastDivmod target_rows, target_lines;
    int all_rows, row_bytes;
    int lines, rows, first_row;
    int log_lanes;  // threads of a row
  };

  struct Piece {
    uint4 low, high;
    uint4* to;
    int shift, left;
  };

  // 16 bytes of which one is the matrix's lie in its page, but behind its end they may belong to nobody: tools that check
  // accesses would report them.
  __device__ static uint4 aligned_bytes(Params const& p, std::uint8_t const* from) {
    if (from + 16 <= p.end) return *reinterpret_cast<uint4 const*>(from);
    std::uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (from + i < p.end) words[i / 4] |= std::uint32_t{from[i]} << (8 * (i % 4));
    }
    return {words[0], words[1], words[2], words[3]};
  }

  __device__ static Piece piece(Params const& p, int row, int at) {
    Piece x{};
    if (row >= p.all_rows || at >= p.target_pitch) return x;
    x.to = reinterpret_cast<uint4*>(p.target + row * p.target_pitch + at);
    int image, line, own;
    p.target_rows(line, own, row);
    p.target_lines(image, line, line);
    own -= p.first_row;
    if (line >= p.lines || own < 0 || own >= p.rows) return x;
    std::uint8_t const* const from = p.source + image * p.image_stride + line * p.line_stride + own * p.row_stride + at;
    x.shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 16);
    x.left = min(max(p.row_bytes - at, 0), 16);
    if (x.left > 0) x.low = aligned_bytes(p, from - x.shift);
    if (x.shift + x.left > 16) x.high = aligned_bytes(p, from - x.shift + 16);
    return x;
  }

  __device__ static void store(Piece const& x) {
    if (!x.to) return;
    uint4 const shifted = shifted_bytes(x.low, x.high, x.shift);
    std::uint32_t words[4] = {shifted.x, shifted.y, shifted.z, shifted.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int const left = x.left - 4 * i;
      if (left < 4) words[i] = left > 0 ? words[i] & (0xffffffffu >> (32 - 8 * left)) : 0;
    }
    *x.to = {words[0], words[1], words[2], words[3]};
  }

  __device__ static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    int const lanes = 1 << p.log_lanes, at_once = kMaxThreads >> p.log_lanes;  // rows
    int const first_row = static_cast<int>(blockIdx.x) * at_once * kAtOnce + (static_cast<int>(threadIdx.x) >> p.log_lanes);
    for (int at = (static_cast<int>(threadIdx.x) & (lanes - 1)) * 16; at < p.target_pitch; at += lanes * 16) {
      Piece pieces[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) pieces[i] = piece(p, first_row + i * at_once, at);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) store(pieces[i]);
    }
  }

  static std::int64_t workspace_bytes(GemmArgs const&) { return 0; }

  static Status launch(GemmArgs const& args, void const* kernel) {
    auto const& pad = static_cast<PadArgs const&>(args);
    std::int64_t const last_row =
        (pad.images - 1) * pad.image_stride + (pad.lines - 1) * pad.line_stride + (pad.rows - 1) * pad.row_stride;
    Params p{pad.source,
             pad.source + last_row + pad.row_bytes,
             pad.target,
             pad.image_stride,
             pad.line_stride,
             pad.row_stride,
             pad.target_pitch,
             cutlass::FastDivmod(pad.target_rows),
             cutlass::FastDivmod(pad.target_lines),
             pad.images * pad.target_lines * pad.target_rows,
             pad.row_bytes,
             pad.lines,
             pad.rows,
             pad.first_row,
             0};
    while (p.log_lanes < 8 && (std::int64_t{16} << p.log_lanes) < p.target_pitch) ++p.log_lanes;
    LaunchShape shape;
    shape.grid = dim3(static_cast<unsigned>(ceil_div(p.all_rows, (kMaxThreads >> p.log_lanes) * kAtOnce)));
    shape.block = dim3(kMaxThreads);
    shape.dependent_launch = arch_ == Arch::sm90a;
    return launch_kernel(kernel, shape, p, args.stream);
  }
};

}  // namespace cutwheel::gemm
