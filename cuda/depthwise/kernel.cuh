// Depthwise convolutions: the kernels of cuda/depthwise as kernel classes.
//
// Tile: the filter and the stride that a kernel is made for, [R, S, stride]. With R = 1 it takes filters of any number of
// rows, and of taps in them, S at once; [1, 1, 1] takes anything, with any stride and dilation, too.
//
// fprop gathers, and so does dgrad where the stride is 1 (the kernels of fprop, with the flipped filter) or 2.
#pragma once

#include <limits>
#include <type_traits>

#include "core/args/grouped_conv.h"
#include "core/cutlass_types.cuh"
#include "depthwise/any.cuh"
#include "depthwise/epilogues.cuh"
#include "depthwise/launch.h"

namespace cutwheel::conv2d {

using namespace gemm;

template <Arch arch_, DType d_, class Tile, Direction direction_, class... Cases>
struct Depthwise {
  using E = Element<d_>;
  using Epilogues = EpilogueSwitch<d_, Cases...>;
  static constexpr bool kWgrad = direction_ == Direction::wgrad, kTransposed = direction_ == Direction::dgrad;
  static constexpr bool kAny = Tile::kN == 1, kUnrolled = Tile::kM == Tile::kN && !kAny;
  static constexpr int kTaps = Tile::kN, kStride = Tile::kK;
  static constexpr int kMaxThreads = 256;
  static constexpr int kMinBlocks = 1;
  static constexpr int kSharedStorageBytes = 0;

  // The outputs of a thread. 7 divides the rows of images that networks of 224 pixels have; an even number for the two
  // parities of a stride. Two channels where more would not leave registers for the filter.
  static constexpr bool kNarrow = kUnrolled && kTaps > 3 && !kTransposed;
  static constexpr depthwise::GatherKernel kGather{kTaps,
                                                   kStride,
                                                   kTransposed,
                                                   kUnrolled,
                                                   /*rows=*/kNarrow || kTransposed ? 2 : 1,
                                                   /*columns=*/kTransposed ? 8 : 7,
                                                   /*vector=*/kNarrow ? 2 : 4,
                                                   static_cast<int>(sizeof(E))};
  using Gather =
      depthwise::Gather<E, kTaps, kStride, kTransposed, kGather.rows, kGather.columns, kGather.vector, kUnrolled>;
  using Params = std::conditional_t<kWgrad, depthwise::FilterGradParams, depthwise::GatherParams>;

  CUTLASS_DEVICE static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    if constexpr (!kWgrad) {
      if constexpr (kAny) {
        depthwise::gather_any<E, Epilogues>(p);
      } else {
        Gather::template run<Epilogues>(p);
      }
    } else if (p.stage == 1) {
      depthwise::sum_parts<E>(p);
    } else if constexpr (kAny) {
      depthwise::sum_places_any<E>(p);
    } else {
      depthwise::FilterGrad<E, kTaps, kStride>::sum_places(p);
    }
  }

  static depthwise::Limits limits_of(GroupedConvArgs const& args) {
    return {kMaxThreads, args.device->shared_memory_bytes, args.device->sm_count};
  }

  static Status run(GroupedConvArgs const& args, void const* kernel, std::int64_t blocks, int threads, int shared_memory,
                    Params const& params) {
    static KernelAttributes attributes;
    return depthwise::launch_blocks(attributes, args, kernel, blocks, threads, shared_memory, params, arch_ == Arch::sm90a);
  }

  // Fours of channels, of which each lies on as many elements or not.
  template <class AnyTile>
  static void plan_any(AnyTile& tile, GroupedConvArgs const& args) {
    tile.threads = 128;
    tile.vectors = ceil_div(args.conv.c, depthwise::kAnyVector);
    tile.channels = args.whole_vectors ? depthwise::kAnyVector : 0;
  }

  static Status gather(GroupedConvArgs const& args, void const* kernel) {
    ConvProblem const& c = args.conv;
    bool const is_dgrad = args.direction == Direction::dgrad;
    depthwise::GatherParams params{args.a.data, args.b.data, args.bias, args.residual, args.d};
    auto const& strides = is_dgrad ? args.y_strides : args.x_strides;
    params.x_image = strides[0], params.x_row = strides[1], params.x_column = strides[2];
    params.shape = {c.images, c.c,     c.h,     c.w,        c.p,        c.q,          c.r,
                    c.s,      c.pad_h, c.pad_w, c.stride_h, c.stride_w, c.dilation_h, c.dilation_w};
    depthwise::GatherShape& s = params.shape;
    if (is_dgrad) {
      s.in_h = c.p, s.in_w = c.q, s.out_h = c.h, s.out_w = c.w;
      s.transposed = kAny;
      if (!kAny && !kTransposed) {
        s.flipped = true;
        s.pad_h = c.r - 1 - c.pad_h, s.pad_w = c.s - 1 - c.pad_w;
      }
    }
    params.epilogue = kTransposed ? 0 : Epilogues::position_of(args.epilogue_name);
    if (params.epilogue < 0) return {StatusCode::not_implementable};
    for (int i = 0; i < depthwise::kMaxScalars; ++i) params.scalars[i] = args.epilogue[i].value;
    if constexpr (kAny) {
      plan_any(params.tile, args);
      std::int64_t const outputs = std::int64_t{s.images} * s.out_h * s.out_w;
      if (outputs > std::numeric_limits<std::int64_t>::max() / params.tile.vectors) return {StatusCode::not_implementable};
      return run(args, kernel, ceil_div<std::int64_t>(outputs * params.tile.vectors, params.tile.threads),
                 params.tile.threads, 0, params);
    } else {
      depthwise::GatherPlan plan;
      int const staged = params.epilogue < Epilogues::kSums ? 0 : 4 + (args.residual ? static_cast<int>(sizeof(E)) : 0);
      if (!depthwise::plan_gather(plan, kGather, s, limits_of(args), staged)) return {StatusCode::not_implementable};
      params.tile = plan.tile;
      return run(args, kernel, plan.blocks, plan.tile.threads, plan.shared_memory, params);
    }
  }

  static bool plan_wgrad(depthwise::FilterGradPlan& plan, depthwise::FilterGradShape& s, GroupedConvArgs const& args) {
    ConvProblem const& c = args.conv;
    s = {c.images, c.c, c.h, c.w, c.p, c.q, c.r, c.s, c.pad_h, c.pad_w, c.stride_h, c.stride_w, c.dilation_h, c.dilation_w};
    if constexpr (kAny) {
      plan_any(plan.tile, args);
      std::int64_t const sums = std::int64_t{plan.tile.vectors} * c.r * c.s, rows = std::int64_t{c.images} * c.p;
      std::int64_t const wanted = std::int64_t{2048} * args.device->sm_count;
      plan.tile.parts =
          static_cast<int>(std::clamp<std::int64_t>(wanted / sums, 1, std::min<std::int64_t>(rows, kAnyParts)));
      plan.blocks = ceil_div<std::int64_t>(sums * plan.tile.parts, plan.tile.threads);
      return true;
    } else {
      return depthwise::plan_filter_grad(plan, kTaps, kStride, s, limits_of(args));
    }
  }

  static constexpr int kAnyParts = 256;

  static std::int64_t partial_bytes(depthwise::FilterGradPlan const& plan, GroupedConvArgs const& args) {
    ConvProblem const& c = args.conv;
    return plan.tile.parts == 1 ? 0 : std::int64_t{4} * plan.tile.parts * c.c * c.r * c.s;
  }

  static Status wgrad(GroupedConvArgs const& args, void const* kernel) {
    depthwise::FilterGradPlan plan;
    depthwise::FilterGradParams params{args.b.data, args.a.data, args.d};
    if (!plan_wgrad(plan, params.shape, args)) return {StatusCode::not_implementable};
    params.tile = plan.tile;
    params.x_image = args.x_strides[0], params.x_row = args.x_strides[1], params.x_column = args.x_strides[2];
    params.dy_image = args.y_strides[0], params.dy_row = args.y_strides[1], params.dy_column = args.y_strides[2];
    params.partial = partial_bytes(plan, args) ? static_cast<float*>(args.workspace) : nullptr;
    Status const status = run(args, kernel, plan.blocks, plan.tile.threads, plan.shared_memory, params);
    if (!status.good() || !params.partial) return status;
    params.stage = 1;
    std::int64_t const sums = std::int64_t{args.conv.r} * args.conv.s * ceil_div(args.conv.c, 32);
    return run(args, kernel, sums, 32 * depthwise::kSumWarps, 32 * depthwise::kSumWarps * 4, params);
  }

  static std::int64_t workspace_bytes(GemmArgs const& args) {
    auto const& own = static_cast<GroupedConvArgs const&>(args);
    depthwise::FilterGradPlan plan;
    depthwise::FilterGradShape shape;
    if constexpr (!kWgrad) return 0;
    return plan_wgrad(plan, shape, own) ? partial_bytes(plan, own) : 0;
  }

  static Status launch(GemmArgs const& args, void const* kernel) {
    auto const& own = static_cast<GroupedConvArgs const&>(args);
    if constexpr (kWgrad) {
      return wgrad(own, kernel);
    } else {
      return gather(own, kernel);
    }
  }
};

}  // namespace cutwheel::conv2d
