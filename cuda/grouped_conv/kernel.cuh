// Grouped convolutions of 8 channels or more a group, or of 4: the kernels of cuda/grouped_conv as kernel classes.
//
// Tile: what a warp multiplies, [M, N, 16]. M: cells of the result, for wgrad taps x channels; N: filters of a group (for
// dgrad channels). dgrad runs the kernels of fprop.
#pragma once

#include <type_traits>

#include "core/cutlass_types.cuh"
#include "depthwise/epilogues.cuh"
#include "depthwise/launch.h"
#include "grouped_conv/filter_grad.cuh"
#include "grouped_conv/gather.cuh"
#include "grouped_conv/remembered.h"

namespace cutwheel::conv2d {

template <Arch arch_, DType d_, class Tile, Direction direction_, class... Cases>
struct GroupedConv {
  using E = Element<d_>;
  using Epilogues = EpilogueSwitch<d_, Cases...>;
  static constexpr bool kWgrad = direction_ == Direction::wgrad;
  static constexpr grouped::WarpTile kWarp{Tile::kM / 16, Tile::kN / 8};
  static constexpr int kMaxThreads = 32 * grouped::kMaxWarps;
  // As many as the sums of a thread leave registers for: with few products between loads, more warps hide their latency.
  static constexpr int kMinBlocks = kWarp.m * kWarp.n <= 5 ? 3 : kWarp.m * kWarp.n <= 16 && kWarp.m * kWarp.n != 15 ? 2 : 1;
  static constexpr int kSharedStorageBytes = 0;

  using Params = std::conditional_t<kWgrad, grouped::FilterGradParams, grouped::GatherParams>;

  CUTLASS_DEVICE static void device(Params const& p) {
    if constexpr (arch_ == Arch::sm90a) asm volatile("griddepcontrol.wait;" ::: "memory");
    if constexpr (!kWgrad) {
      grouped::Gather<E, kWarp.m, kWarp.n>::template run<Epilogues>(p);
    } else if (p.stage == 1) {
      grouped::sum_parts<E>(p);
    } else {
      grouped::FilterGrad<E, kWarp.m, kWarp.n>::run(p);
    }
  }

  static depthwise::Limits limits_of(GroupedConvArgs const& args) {
    return {kMaxThreads * kMinBlocks, args.device->shared_memory_bytes, args.device->sm_count};
  }

  static Status run(GroupedConvArgs const& args, void const* kernel, std::int64_t blocks, int threads, int shared_memory,
                    Params const& params) {
    static KernelAttributes attributes;
    return depthwise::launch_blocks(attributes, args, kernel, blocks, threads, shared_memory, params, arch_ == Arch::sm90a);
  }

  static grouped::GroupShape shape_of(GroupedConvArgs const& args) {
    ConvProblem const& c = args.conv;
    bool const paired = c.c / args.groups == 4 && c.k_out / args.groups == 4;
    int const groups = paired ? args.groups / 2 : args.groups;
    return {c.images, groups,  c.c / groups, c.k_out / groups, c.h,        c.w,          c.p,          c.q,   c.r,
            c.s,      c.pad_h, c.pad_w,      c.stride_h,       c.stride_w, c.dilation_h, c.dilation_w, paired};
  }

  // Of a tile with several images offsets have to be numbers of 32 bits.
  static int most_images(std::int64_t const (&strides)[3]) { return strides[0] < (1 << 26) ? 16 : 1; }

  static Status gather(GroupedConvArgs const& args, void const* kernel) {
    grouped::GatherParams params{};
    params.is_dgrad = args.direction == Direction::dgrad;
    auto const& strides = params.is_dgrad ? args.y_strides : args.x_strides;
    params.source = {args.a.data, strides[0], strides[1], strides[2]};
    params.filter = args.b.data, params.bias = args.bias, params.residual = args.residual, params.target = args.d;
    params.shape = shape_of(args);
    params.epilogue = Epilogues::position_of(args.epilogue_name);
    if (params.epilogue < 0) return {StatusCode::not_implementable};
    for (int i = 0; i < depthwise::kMaxScalars; ++i) params.scalars[i] = args.epilogue[i].value;
    grouped::GatherPlan plan;
    bool const stages_floats = params.epilogue >= Epilogues::kSums;
    int const images = most_images(strides);
    auto const make = [&](grouped::GatherPlan& made) {
      return plan_gather(made, kWarp, params.shape, params.is_dgrad, limits_of(args), stages_floats, images);
    };
    grouped::PlanKey const key =
        grouped::key_of(kWarp, params.shape, limits_of(args), params.is_dgrad, stages_floats, images);
    if (!remembered(plan, key, make)) return {StatusCode::not_implementable};
    params.tile = plan.tile;
    return run(args, kernel, plan.blocks, plan.tile.threads, plan.shared_memory, params);
  }

  static std::int64_t elements_of(GroupedConvArgs const& args) {
    ConvProblem const& c = args.conv;
    return std::int64_t{c.k_out} * c.r * c.s * (c.c / args.groups);
  }

  static std::int64_t partial_bytes(grouped::FilterGradPlan const& plan, GroupedConvArgs const& args) {
    return plan.tile.parts == 1 ? 0 : std::int64_t{4} * plan.tile.parts * elements_of(args);
  }

  static bool plan_wgrad(grouped::FilterGradPlan& plan, GroupedConvArgs const& args, grouped::GroupShape const& shape) {
    int const images = std::min(most_images(args.x_strides), most_images(args.y_strides));
    auto const make = [&](grouped::FilterGradPlan& made) {
      return plan_filter_grad(made, kWarp, shape, limits_of(args), images);
    };
    return remembered(plan, grouped::key_of(kWarp, shape, limits_of(args), false, false, images), make);
  }

  static Status wgrad(GroupedConvArgs const& args, void const* kernel) {
    grouped::FilterGradPlan plan;
    grouped::FilterGradParams params{};
    params.shape = shape_of(args);
    if (!plan_wgrad(plan, args, params.shape)) return {StatusCode::not_implementable};
    params.tile = plan.tile;
    params.x = {args.b.data, args.x_strides[0], args.x_strides[1], args.x_strides[2]};
    params.dy = {args.a.data, args.y_strides[0], args.y_strides[1], args.y_strides[2]};
    params.result = args.d;
    params.elements = elements_of(args);
    params.partial = partial_bytes(plan, args) ? static_cast<float*>(args.workspace) : nullptr;
    Status const status = run(args, kernel, plan.blocks, plan.tile.threads, plan.shared_memory, params);
    if (!status.good() || !params.partial) return status;
    params.stage = 1;
    return run(args, kernel, ceil_div<std::int64_t>(params.elements * plan.tile.sum_parts, 4 * kMaxThreads), kMaxThreads,
               kMaxThreads * 16, params);
  }

  static std::int64_t workspace_bytes(GemmArgs const& args) {
    auto const& own = static_cast<GroupedConvArgs const&>(args);
    if constexpr (!kWgrad) return 0;
    grouped::FilterGradPlan plan;
    return plan_wgrad(plan, own, shape_of(own)) ? partial_bytes(plan, own) : 0;
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
