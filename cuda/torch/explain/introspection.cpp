#include "torch/explain/introspection.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>

#include "build_info.h"  // generated
#include "core/driver.h"
#include "core/sm_limit.h"
#include "dispatch/batch_invariance.h"
#include "dispatch/cost_model.h"
#include "dispatch/epilogue_names.h"
#include "dispatch/tuning/table.h"
#include "torch/registry.h"

namespace cutwheel {
namespace {

std::string quoted(std::string const& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string boolean(bool value) { return value ? "true" : "false"; }

template <class Items, class Write>
std::string list(Items const& items, Write write) {
  std::string out = "[";
  bool first = true;
  for (auto const& item : items) {
    out += first ? "" : ", ";
    out += write(item);
    first = false;
  }
  return out + "]";
}

std::string extent(Extent3 e) { return concat('[', e.m, ", ", e.n, ", ", e.k, ']'); }

char const* kind_name(OperandKind kind) {
  switch (kind) {
    case OperandKind::scalar: return "scalar";
    case OperandKind::row: return "row";
    case OperandKind::col: return "col";
    case OperandKind::matrix: return "matrix";
    case OperandKind::wide_matrix: return "wide_matrix";
    case OperandKind::store: return "store";
  }
  return "?";
}

char const* type_name(OperandType type) {
  switch (type) {
    case OperandType::d: return "d";
    case OperandType::f32: return "f32";
    case OperandType::s32: return "s32";
  }
  return "?";
}

char const* width_name(Width width) {
  switch (width) {
    case Width::same: return "same";
    case Width::half: return "half";
    case Width::twice: return "twice";
  }
  return "?";
}

std::string epilogue_json(EpilogueInfo const& info) {
  std::vector<EpilogueOperandInfo> const operands(info.operands, info.operands + info.count);
  return concat("{\"name\": ", quoted(info.name), ", \"expr\": ", quoted(info.expr),
                ", \"addend\": ", quoted(name_of(info.addend)), ", \"width\": ", quoted(width_name(info.width)),
                ", \"has_accum\": ", boolean(info.has_accum), ", \"operands\": ",
                list(operands,
                     [](EpilogueOperandInfo const& operand) {
                       return concat("{\"name\": ", quoted(operand.name), ", \"kind\": ", quoted(kind_name(operand.kind)),
                                     ", \"float32\": ", boolean(operand.type == OperandType::f32),
                                     ", \"type\": ", quoted(type_name(operand.type)),
                                     ", \"may_be_one\": ", boolean(operand.may_be_one), "}");
                     }),
                "}");
}

std::string row_json(KernelDescriptor const& kernel) {
  bool const is_conv = kernel.direction != Direction::none;
  std::string const layout = is_conv ? "null" : quoted({letter_of(kernel.layout_a), letter_of(kernel.layout_b), 't'});
  bool const has_epilogue = is_gemm(kernel) || kernel.family == Family::elementwise;
  std::string const epilogue = has_epilogue ? quoted(info_of(kernel.epilogue).name) : "null";
  return concat("{\"name\": ", quoted(kernel.name), ", \"op\": ", quoted(name_of(kernel.op)),
                ", \"family\": ", quoted(kFamilyNames[static_cast<int>(kernel.family)]),
                ", \"arch\": ", quoted(name_of(kernel.arch)), ", \"ptx\": ", boolean(kernel.has_ptx),
                ", \"a\": ", quoted(name_of(kernel.a)), ", \"b\": ", quoted(name_of(kernel.b)),
                ", \"acc\": ", quoted(name_of(kernel.acc)), ", \"d\": ", quoted(name_of(kernel.d)),
                ", \"layout\": ", layout, ", \"epilogue\": ", epilogue, ", \"tile\": ", extent(kernel.tile),
                ", \"cluster\": ", extent(kernel.cluster), ", \"stages\": ", kernel.stages,
                ", \"schedule\": ", quoted(name_of(kernel.schedule)), ", \"swap_ab\": ", boolean(kernel.swap_ab),
                ", \"fast_accum\": ", boolean(kernel.fast_accum),
                ", \"scales\": ", kernel.scales == BlockScales::none ? "null" : quoted(name_of(kernel.scales)),
                ", \"recipe\": ", kernel.recipe == QuantizeRecipe::none ? "null" : quoted(name_of(kernel.recipe)),
                ", \"grouping\": ", kernel.grouping == Grouping::none ? "null" : quoted(name_of(kernel.grouping)),
                ", \"direction\": ", kernel.direction == Direction::none ? "null" : quoted(name_of(kernel.direction)),
                ", \"summation\": ", kernel.summation ? quoted(kernel.summation) : "null",
                ", \"shared_memory_bytes\": ", *kernel.shared_memory_bytes, "}");
}

std::string plan_json(GemmPlan const& plan) {
  return concat("{\"row\": ", quoted(plan.kernel->name), ", \"raster\": ", quoted(name_of(plan.raster)),
                ", \"swizzle\": ", plan.swizzle, ", \"splits\": ", plan.splits,
                ", \"reduce\": ", plan.reduce ? quoted(plan.reduce->name) : "null",
                ", \"summation\": ", plan.kernel->summation ? quoted(plan.kernel->summation) : "null",
                ", \"predicted_us\": ", plan.predicted_us, "}");
}

bool is_scaled(GemmRequest const& r) { return r.op != Op::gemm && element_bytes(r.a) == 1; }

// The operands that do not lie on 16 bytes.
std::string unaligned_operands(GemmRequest const& r) {
  return concat(r.a_aligned ? "" : "a", r.b_aligned ? "" : "b", r.d_aligned ? "" : "d");
}

std::string request_json(GemmRequest const& r) {
  bool const is_conv = r.op == Op::conv2d;
  return concat(
      "{\"m\": ", r.m, ", \"n\": ", r.n, ", \"k\": ", r.k, ", \"batch\": ", r.batch, ", \"dtype\": ", quoted(name_of(r.a)),
      ", \"out_dtype\": ", quoted(name_of(r.d)),
      ", \"layout\": ", is_conv ? "null" : quoted({letter_of(r.layout_a), letter_of(r.layout_b), 't'}),
      ", \"addend\": ", quoted(name_of(r.addend)),
      r.addend == Addend::other || is_conv ? concat(", \"epilogue\": ", quoted(info_of(r.epilogue).name)) : "",
      ", \"extents_aligned\": ", boolean(r.extents_aligned), ", \"unaligned\": ", quoted(unaligned_operands(r)),
      r.op == Op::grouped_mm ? concat(", \"grouping\": ", quoted(name_of(r.grouping)), ", \"groups\": ", r.groups) : "",
      is_conv ? concat(", \"direction\": ", quoted(name_of(r.direction)), ", \"taps\": ", r.taps, ", \"step\": ", r.step,
                       ", \"tensor_maps\": ", boolean(r.tensor_maps),
                       ", \"padded_filter\": ", quoted(name_of(r.padded_filter)), ", \"rectangles\": ",
                       std::max({r.direct_conv.output_tiles, r.space_to_depth.output_tiles, r.few_channels.output_tiles}),
                       ", \"shared_pixels\": ", r.shared_pixels.positions)
              : "",
      r.batch_invariant ? ", \"batch_invariant\": true" : "",
      is_scaled(r) ? concat(", \"b\": ", quoted(name_of(r.b)), ", \"fast_accum\": ", boolean(r.fast_accum),
                            ", \"scales\": ", quoted(name_of(r.scales)))
                   : "",
      "}");
}

// All that a table of measurements says of a request.
std::string tuning_request_json(GemmRequest const& r) {
  bool const named = r.addend == Addend::other || r.direction != Direction::none;
  return concat(
      "{\"op\": ", quoted(name_of(r.op)), ", \"a\": ", quoted(name_of(r.a)), ", \"b\": ", quoted(name_of(r.b)),
      ", \"d\": ", quoted(name_of(r.d)), ", \"layouts\": ", quoted({letter_of(r.layout_a), letter_of(r.layout_b)}),
      ", \"addend\": ", quoted(name_of(r.addend)), ", \"epilogue\": ", named ? quoted(info_of(r.epilogue).name) : "null",
      ", \"fast_accum\": ", boolean(r.fast_accum), ", \"scales\": ", quoted(name_of(r.scales)),
      ", \"extents_aligned\": ", boolean(r.extents_aligned), ", \"m\": ", r.m, ", \"n\": ", r.n, ", \"k\": ", r.k,
      ", \"batch\": ", r.batch, ", \"grouping\": ", quoted(name_of(r.grouping)), ", \"groups\": ", r.groups,
      ", \"direction\": ", quoted(name_of(r.direction)), ", \"taps\": ", r.taps, ", \"step\": ", r.step,
      ", \"tensor_maps\": ", boolean(r.tensor_maps), ", \"padded_filter\": ", quoted(name_of(r.padded_filter)),
      ", \"unaligned\": ", quoted(unaligned_operands(r)), "}");
}

std::string explanation_json(Explanation const& e, DeviceInfo const& device) {
  std::string const choice = e.plans.empty()
                                 ? ""
                                 : concat(", \"choice\": ", quoted(text_of(e.source)),
                                          e.source.table.empty() ? "" : concat(", \"table\": ", quoted(e.source.table)));
  return concat("{\"device\": ", quoted(device.name), ", \"request\": ", request_json(e.request),
                ", \"tuning_request\": ", tuning_request_json(e.request), choice,
                e.route ? concat(", \"route\": ", quoted(e.route)) : "", ", \"operand_copies\": ", e.operand_copies,
                ", \"output_copy\": ", boolean(e.output_copy), ", \"plans\": ", list(e.plans, plan_json),
                ", \"rejected\": ",
                list(e.rejections,
                     [](Rejection const& r) {
                       return concat("{\"row\": ", quoted(r.kernel->name), ", \"reason\": ", quoted(r.reason), "}");
                     }),
                "}");
}

}  // namespace

std::string kernels_json() {
  std::vector<KernelDescriptor const*> rows;
  for (int i = 0; i < kKernelCount; ++i) rows.push_back(&kKernels[i]);
  return list(rows, [](KernelDescriptor const* kernel) { return row_json(*kernel); });
}

std::string epilogues_json() {
  std::vector<EpilogueInfo> offered;
  for (int i = 0; i < kEpilogueCount; ++i) {
    if (is_for_gemm(static_cast<Epilogue>(i))) offered.push_back(kEpilogues[i]);
  }
  return list(offered, epilogue_json);
}

std::string build_info_json() {
  return concat("{\"version\": ", quoted(kVersion), ", \"cutlass\": ", quoted(kCutlassVersion),
                ", \"nvcc\": ", quoted(kNvccVersion), ", \"ptxas\": ", quoted(kPtxasVersion),
                ", \"compiler\": ", quoted(kCompiler), ", \"torch_headers\": ", quoted(kTorchHeadersVersion),
                ", \"cuda\": ", quoted(kCudaVersion), ", \"archs\": ", quoted(kArchs),
                ", \"assembled\": ", quoted(kAssembledArchs), ", \"cudart\": ", kCudartVersion,
                ", \"kernels\": ", kKernelCount, "}");
}

std::string device_info_json(std::int64_t device) {
  DeviceInfo const& info = device_info(static_cast<int>(device));
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  return concat("{\"name\": ", quoted(info.name), ", \"cc\": [", info.major, ", ", info.minor,
                "], \"sm_count\": ", info.sm_count, ", \"smem_optin\": ", info.shared_memory_bytes,
                ", \"l2_bytes\": ", info.l2_bytes, ", \"memory_gb_per_s\": ", info.memory_gb_per_s,
                ", \"sm_clock_ghz\": ", info.sm_clock_ghz, ", \"driver_version\": ", driver,
                ", \"runtime_version\": ", runtime,
                ", \"archs_served\": ", list(archs_served(info.major, info.minor), quoted), "}");
}

std::string driver_status_json() {
  DriverStatus const status = driver_status();
  return concat("{\"ok\": ", boolean(status.ok), ", \"driver_version\": ", status.driver_version,
                ", \"required\": ", status.required, ", \"required_driver\": ", quoted(kRequiredDriver),
                ", \"message\": ", quoted(status.message), "}");
}

std::string explain_json(StringHandle op_name, OptionalTensors const& operands, std::optional<ScalarType> out_dtype,
                         double beta, bool allow_tf32, StringHandle epilogue_name, std::optional<std::int64_t> recipe_a,
                         std::optional<std::int64_t> recipe_b, bool use_fast_accum,
                         std::vector<std::int64_t> const& geometry) {
  TextArgument const name(op_name), epilogue(epilogue_name);
  auto const op = std::find_if(all_ops().begin(), all_ops().end(), [&](OpEntry const& entry) {
    return entry.explained.explain && name_in(entry.schema) == name.view();
  });
  if (op == all_ops().end()) fail(ErrorKind::value, "explain: op ", name.view(), " is not known");
  auto const [least, most, explain] = op->explained;
  if (operands.size() < least || operands.size() > most) {
    fail(ErrorKind::value, "explain: ", name.view(), " takes ", least, least == most ? "" : concat(" to ", most),
         " tensors, got ", operands.size());
  }
  Explanation const found = explain(
      {*op->names, operands, out_dtype, beta, allow_tf32, epilogue.view(), recipe_a, recipe_b, use_fast_accum, geometry});
  return explanation_json(found, device_info(found.request.device));
}

std::string choice_json(char const* op, GemmRequest const& request, GemmPlan const& plan) {
  return concat("{\"op\": ", quoted(op), ", \"request\": ", request_json(request), ", \"plan\": ", plan_json(plan), "}");
}

std::string explain_for_gpu_json(std::int64_t major, std::int64_t minor, std::int64_t sm_count,
                                 std::int64_t shared_memory_bytes, double memory_gb_per_s, double sm_clock_ghz,
                                 StringHandle request, std::int64_t output_tiles, std::int64_t shared_pixels,
                                 std::int64_t row_taps) {
  TextArgument const text(request);
  DeviceInfo device;
  device.name = "a GPU described by the caller";
  device.major = static_cast<int>(major), device.minor = static_cast<int>(minor);
  device.sm_count = left_of(static_cast<int>(sm_count));
  device.shared_memory_bytes = static_cast<int>(shared_memory_bytes);
  device.memory_gb_per_s = memory_gb_per_s;
  device.l2_bytes = 50 << 20;  // of an H100: only sums of split-K that are larger ask
  device.sm_clock_ghz = sm_clock_ghz;
  Explanation explanation{parse_request(text.view())};
  explanation.request.direct_conv.output_tiles = static_cast<int>(output_tiles);
  explanation.request.shared_pixels = {static_cast<int>(shared_pixels), static_cast<int>(row_taps)};
  explanation.request.batch_invariant = batch_invariant();
  explanation.rank(device);
  return explanation_json(explanation, device);
}

void load_tuning(StringHandle text) {
  TextArgument const table(text);
  load_tuned_table(table.view());
}

std::string tuning_json() {
  return list(tuned_tables(), [](TunedTableInfo const& table) {
    return concat("{\"name\": ", quoted(table.name), ", \"gpu\": ", quoted(table.gpu), ", \"entries\": ", table.entries,
                  ", \"built_in\": ", boolean(table.is_built_in), "}");
  });
}

}  // namespace cutwheel
