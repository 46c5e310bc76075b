#include <algorithm>
#include <string_view>

#include "torch/gemm_request.h"
#include "torch/grouped_request.h"

namespace cutwheel {
namespace {

// No kernel reads a K of 0, but a bias and an epilogue apply to its products: then both factors are zeros, of the shortest
// K that can be accessed. All groups have the same B.
Factors factors_of(GroupedCall const& call, std::vector<Tensor>& keep) {
  if (call.k == 0) {
    std::int64_t const k = access_elements(call.type), rows = std::max({call.m, call.n, std::int64_t{1}});
    Tensor zeros = empty_strided({rows, k}, {k, 1}, call.type, call.device);
    torch::stable::zero_(zeros);
    keep.push_back(zeros);
    void* const data = zeros.data_ptr();
    return {{{data, 1, call.m, k, 0, k, 1}, zeros}, {{data, call.batch, k, call.n, 0, 1, k}, zeros}, k};
  }
  Matrix const b = matrix_of(*call.b);
  return {{matrix_of(*call.a), *call.a}, {call.linear ? b.transposed() : b, *call.b}, call.k};
}

// The ends as a kernel reads them, one behind the other.
gemm::GroupArgs prepare_ends(GroupedCall const& call, std::vector<Tensor>& keep) {
  Tensor const& ends = *call.ends;
  ScalarType const type = ends.scalar_type();
  gemm::GroupArgs groups{ends.data_ptr(), type == ScalarType::Long, static_cast<int>(call.batch), call.first_k};
  if (call.batch > 1 && ends.stride(0) != 1) {
    Tensor copy = empty_strided({call.batch}, {1}, type, call.device);
    torch::stable::copy_(copy, ends);
    groups.ends = copy.data_ptr();
    keep.push_back(std::move(copy));
  }
  return groups;
}

// A row for each group, of [G, N] or [G, 1, N]. `whole_n`: the columns that a kernel may read.
gemm::Operand prepare_rows(GroupedCall const& call, Tensor const& tensor, ScalarType type, std::int64_t whole_n,
                           bool pad_extents, std::vector<Tensor>& keep) {
  Matrix const rows{tensor.data_ptr(), call.batch, 1, call.n, tensor.stride(0), 0, tensor.stride(tensor.dim() - 1)};
  bool const pad = pad_extents && call.n != whole_n;
  std::int64_t const pitch = round_up(whole_n, access_elements(type));
  Matrix const x = readable(rows, tensor, type, pitch, pad, call.device, keep);
  return {x.data, 0, x.batch == 1 ? 0 : x.batch_stride};
}

gemm::EpilogueValue prepare_row_operand(GroupedCall const& call, Tensor const& tensor, ScalarType type,
                                        std::int64_t whole_n, bool pad_extents, std::vector<Tensor>& keep) {
  gemm::Operand const rows = prepare_rows(call, tensor, type, whole_n, pad_extents, keep);
  return {const_cast<void*>(rows.data), /*leading=*/1, rows.batch_stride, 0};
}

// A value for each row of D.
gemm::EpilogueValue prepare_column(GroupedCall const& call, Tensor const& tensor, std::vector<Tensor>& keep) {
  Matrix x = vector_of(tensor);
  bool const is_one = x.cols == 1 || x.col_stride == 0;  // read alone, wherever it lies
  if (!is_one) {
    std::int64_t const pitch = round_up(x.cols, access_elements(ScalarType::Float));
    x = readable(x, tensor, ScalarType::Float, pitch, /*force_copy=*/false, call.device, keep);
  }
  return {x.data, is_one ? 0 : 1, 0, 0};
}

void prepare_epilogue(PreparedGemm& prepared, GroupedCall const& call, Epilogue epilogue, Forced forced) {
  EpilogueInfo const& info = info_of(epilogue);
  ScalarType const d_type = call.kernel_d_type();
  std::int64_t const whole_n = round_up(call.n, access_elements(d_type));
  auto store = prepared.stores.begin();
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    std::string_view const name = operand.name;
    gemm::EpilogueValue value;
    if (operand.kind == OperandKind::scalar) {
      value.value = 1;
    } else if (operand.kind == OperandKind::store) {
      Matrix const x = prepare_output(*store, matrix_of(*store->tensor), d_type, whole_n,
                                      forced.extents && call.n != whole_n, call.device);
      value.data = x.data;
      value.leading = leading_of(x, whole_n);
      ++store;
    } else if (name == "scale_a" && call.k > 0) {
      value = prepare_column(call, *call.scale_a, prepared.keep);
    } else if ((name == "scale_b" && call.k > 0) || (name == "bias" && call.bias)) {
      Tensor const& tensor = name == "bias" ? *call.bias : *call.scale_b;
      value = prepare_row_operand(call, tensor, operand_type(operand, d_type), whole_n, forced.extents, prepared.keep);
    }
    prepared.args.epilogue[i] = value;
  }
}

// C is D: kernels add to what lies there, also where that is a copy.
void prepare_accumulator(PreparedGemm& prepared) {
  gemm::GemmArgs& args = prepared.args;
  if (prepared.d.temporary) {
    Tensor target = view_of(*prepared.d.temporary, prepared.d.copy_from);
    torch::stable::copy_(target, view_of(*prepared.d.tensor, prepared.d.copy_to));
  }
  args.c = {args.d, args.d_leading, args.d_batch_stride};
  args.beta = 1;
}

}  // namespace

GemmRequest request_of(GroupedCall const& call) {
  GemmRequest request;
  request.op = Op::grouped_mm;
  request.device = call.device;
  request.a = call.type == ScalarType::Float ? DType::tf32 : dtype_of(call.type);
  request.b = call.b_type == ScalarType::Float ? DType::tf32 : dtype_of(call.b_type);
  request.d = dtype_of(call.kernel_d_type());
  Layouts const layouts = copied_layouts(call.grouping, request.a);
  request.layout_a = layouts.a, request.layout_b = layouts.b;
  if (std::optional<Epilogue> const epilogue = call.kernel_epilogue()) {
    request.addend = Addend::other;
    request.epilogue = *epilogue;
  } else {
    request.addend = call.accumulates ? Addend::matrix : call.bias ? Addend::row : Addend::none;
  }
  request.fast_accum = call.use_fast_accum;
  request.scales = call.scales;
  bool const rows = call.grouping == Grouping::rows;
  request.m = static_cast<int>(rows ? ceil_div(call.m, call.batch) : call.m);
  request.n = static_cast<int>(call.n);
  request.k = static_cast<int>(rows ? call.k : ceil_div(call.k, call.batch));
  request.batch = request.groups = static_cast<int>(call.batch);
  request.grouping = call.grouping;
  return request;
}

void prepare_grouped(PreparedGemm& prepared, GroupedCall const& call, Forced forced) {
  std::vector<Tensor>& keep = prepared.keep;
  keep.clear();  // of a first try; work already enqueued on them is ordered by the stream
  prepared.request = request_of(call);
  GemmRequest& request = prepared.request;
  Layouts const preferred{request.layout_a, request.layout_b};
  forced.layouts = forced.layouts || call.is_scaled;  // 8-bit tensor cores read nothing else
  Factors const factors = factors_of(call, keep);
  // cp.async kernels read whole accesses of what is contiguous. Along K copies of both operands have zeros up to the next
  // multiple, which add nothing to a group that ends there.
  bool const k_contiguous = preferred.a == Layout::row;
  std::int64_t const whole_k = round_up(factors.k, access_elements(call.type));
  bool const pad_k = forced.extents && k_contiguous && factors.k != whole_k;
  PreparedOperand const a =
      prepare_operand(factors.a.matrix, factors.a.owner, call.type, preferred.a, forced, pad_k, call.device, keep);
  PreparedOperand const b =
      prepare_operand(factors.b.matrix, factors.b.owner, call.b_type, preferred.b, forced, pad_k, call.device, keep);

  gemm::GemmArgs& args = prepared.args;
  args.m = static_cast<int>(call.m), args.n = static_cast<int>(call.n);
  args.k = static_cast<int>(pad_k ? whole_k : factors.k);
  args.batch = 1;
  args.a = a.operand, args.b = b.operand;
  args.groups = prepare_ends(call, keep);
  if (call.scales != BlockScales::none) {
    args.scale_a = block_scales(*call.scale_a, /*k_first=*/false);
    args.scale_b = block_scales(*call.scale_b, /*k_first=*/true);
  }

  ScalarType const d_type = call.kernel_d_type();
  std::int64_t const unit = access_elements(d_type), whole_n = round_up(call.n, unit);
  std::int64_t const pitch = round_up(columns_of(call.width(), whole_n), unit);
  Matrix const d = prepare_output(prepared.d, matrix_of(*prepared.d.tensor), d_type, pitch,
                                  (forced.extents && call.n != whole_n) || d_type != call.d_type, call.device);
  args.d = d.data;
  args.d_leading = leading_of(d, pitch);
  args.d_batch_stride = d.batch == 1 ? 0 : d.batch_stride;

  args.alpha = 1, args.beta = 0;
  if (std::optional<Epilogue> const epilogue = call.kernel_epilogue()) {
    prepare_epilogue(prepared, call, *epilogue, forced);
  } else if (call.accumulates) {
    prepare_accumulator(prepared);
  } else if (call.bias) {
    args.c = prepare_rows(call, *call.bias, d_type, whole_n, forced.extents, keep);
    args.beta = 1;
  }
  request.layout_a = a.layout, request.layout_b = b.layout;
  request.extents_aligned = a.extent_aligned && b.extent_aligned && (forced.extents || call.n == whole_n);
}

}  // namespace cutwheel
