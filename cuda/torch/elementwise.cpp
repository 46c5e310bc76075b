#include "torch/elementwise.h"

#include <algorithm>

#include "torch/registry.h"

namespace cutwheel {

namespace {

struct Problem {
  EpilogueInfo const& info;
  ScalarType type = ScalarType::Float;  // of the result
  int device = 0;
  std::int64_t rows = 1, n = 0;                               // n counts pairs where the result is twice as wide
  std::array<Tensor const*, kMaxEpilogueOperands> tensors{};  // by position
};

std::int64_t columns(OperandKind kind, std::int64_t n) { return kind == OperandKind::wide_matrix ? 2 * n : n; }

void place_operands(Problem& problem, std::vector<Tensor> const& operands) {
  EpilogueInfo const& info = problem.info;
  std::size_t next = 0;
  for (int i = 0; i < info.count; ++i) {
    EpilogueOperandInfo const& operand = info.operands[i];
    bool const takes_tensor = is_matrix(operand.kind);
    if (!takes_tensor && !is_neutral(operand)) fail_operand("elementwise", info, i, "matrices only");
    if (takes_tensor && next < operands.size()) problem.tensors[static_cast<std::size_t>(i)] = &operands[next];
    next += takes_tensor;
  }
  if (next != operands.size() || next == 0) {
    fail(ErrorKind::value, "elementwise: operands has ", operands.size(), " tensors; epilogue \"", info.name, "\" takes ",
         next);
  }
}

void check_problem(Problem& problem) {
  EpilogueInfo const& info = problem.info;
  Tensor const* first = nullptr;
  char const* first_name = "";
  bool has_type = false;  // of an operand that has the result's
  for (int i = 0; i < info.count; ++i) {
    Tensor const* const tensor = problem.tensors[static_cast<std::size_t>(i)];
    if (!tensor) continue;
    EpilogueOperandInfo const& operand = info.operands[i];
    if (!first) {
      if (!tensor->is_cuda()) {
        fail(ErrorKind::device, "elementwise: ", operand.name, " is not on a CUDA device; all tensors must be");
      }
      std::int64_t const dims = tensor->dim();
      if (dims < 1 || dims > kMaxDims) {
        fail(ErrorKind::shape, "elementwise: ", operand.name, " has ", dims, " dimensions; expected 1 to ", kMaxDims);
      }
      first = tensor;
      first_name = operand.name;
      problem.device = tensor->get_device_index();
      auto const sizes = tensor->sizes();
      std::int64_t const last = sizes[sizes.size() - 1];
      if (operand.kind == OperandKind::wide_matrix && last % 2 != 0) {
        fail(ErrorKind::shape, "elementwise: ", operand.name, " has shape ", shape_text(*tensor),
             "; expected an even number of columns");
      }
      problem.n = operand.kind == OperandKind::wide_matrix ? last / 2 : last;
      for (std::size_t j = 0; j + 1 < sizes.size(); ++j) problem.rows *= sizes[j];
    }
    check_device("elementwise", operand.name, *tensor, problem.device, first_name);
    ScalarType const type = type_of(*tensor);
    if (operand.type == OperandType::d && !has_type) {
      check_supported("elementwise", operand.name, " has dtype ", type);
      problem.type = type;
      has_type = true;
    }
    check_type("elementwise", operand.name, *tensor, operand_type(operand, problem.type));
    std::int64_t const cols = columns(operand.kind, problem.n);
    if (!has_rows_of(*tensor, *first, cols)) {
      fail_shape("elementwise", operand.name, *tensor, rows_text(*first, cols), " for epilogue \"", info.name, '"');
    }
  }
  for (std::int64_t extent : {problem.rows, 2 * problem.n}) check_extent("elementwise", extent);
}

Tensor make_result(Problem const& problem, std::int64_t cols) {
  auto const& tensors = problem.tensors;
  Tensor const& like = **std::find_if(tensors.begin(), tensors.end(), [](Tensor const* x) { return x != nullptr; });
  return empty_like_rows(like, cols, problem.type, problem.device);
}

void run(Problem const& problem, Epilogue epilogue, Output& result, std::optional<Tensor>& sums, bool in_halves) {
  EpilogueInfo const& info = problem.info;
  DeviceInfo const& device = device_info(problem.device);
  DType const d = dtype_of(problem.type);
  KernelDescriptor const* const kernel = choose_elementwise_kernel(device, d, epilogue);
  if (!kernel) {
    fail(ErrorKind::not_implemented, "elementwise: no kernel in this wheel serves epilogue \"", info.name, "\" with ",
         name_of(d), " output on ", device.name, " (compute capability ", device.major, '.', device.minor, ")");
  }
  gemm::GemmArgs args;
  args.m = static_cast<int>(problem.rows), args.n = static_cast<int>(problem.n);
  std::vector<Tensor> keep;
  for (int i = 0; i < info.count; ++i) {
    Tensor const* const tensor = problem.tensors[static_cast<std::size_t>(i)];
    gemm::EpilogueValue& value = args.epilogue[i];
    value.value = 1;
    if (!tensor) continue;
    std::int64_t const cols = columns(info.operands[i].kind, problem.n);
    Matrix const x = readable_rows(*tensor, problem.rows, cols, problem.device, keep);
    value.data = x.data;
    value.leading = x.row_stride;
  }
  if (result.tensor) {
    std::int64_t const cols = columns_of(info.width, problem.n), pitch = round_up(cols, access_elements(problem.type));
    Matrix const target{result.tensor->data_ptr(), 1, problem.rows, cols, 0, cols, 1};
    place_d(args, prepare_result(result, target, problem.type, pitch, /*force_temporary=*/false, problem.device));
  }
  if (in_halves) args.d_odd = problem.n;
  if (sums) args.c.data = sums->data_ptr();
  args.device = &device;
  if (!launch_kernel(*kernel, args, "elementwise")) {
    fail(ErrorKind::not_implemented, "elementwise: ", kernel->name, " does not take operands of ", problem.rows,
         " rows and ", problem.n, " columns");
  }
  finish_output(result);
}

std::tuple<Tensor, Tensor> compute(Epilogue epilogue, std::vector<Tensor> const& operands, bool with_result, bool with_sums,
                                   bool in_halves = false) {
  Problem problem{info_of(epilogue)};
  place_operands(problem, operands);
  check_problem(problem);
  if (in_halves && problem.info.width != Width::twice) {
    fail(ErrorKind::value, "elementwise: in_halves is given, and epilogue \"", problem.info.name, "\" makes no pairs");
  }
  if (in_halves && problem.n % access_elements(problem.type) != 0) {
    fail(ErrorKind::value, "elementwise: in_halves is given for ", problem.n, " pairs of columns; expected a multiple of ",
         access_elements(problem.type));
  }
  DeviceScope const scope(problem.device);
  std::int64_t const cols = columns_of(problem.info.width, problem.n), none = 0;
  Output result;
  std::optional<Tensor> sums;
  if (with_result) result.tensor = make_result(problem, cols);
  if (with_sums) sums = empty_strided({cols}, {1}, problem.type, problem.device);
  if (problem.rows == 0 || problem.n == 0) {
    if (sums) torch::stable::zero_(*sums);
  } else if (with_result || with_sums) {
    run(problem, epilogue, result, sums, in_halves);
  }
  auto const or_empty = [&](std::optional<Tensor>& tensor) {
    return tensor ? *std::move(tensor) : empty_contiguous(&none, 1, problem.type, problem.device);
  };
  Tensor first = or_empty(result.tensor);
  return {std::move(first), or_empty(sums)};
}

// operands [..., N] or [..., 2N], by position. Returns the result and its sums over all but the last dimension; what was
// not asked for is empty, [0]. in_halves: of a result [..., 2N], even columns are followed by odd ones, those of the sums
// alternate.
std::tuple<Tensor, Tensor> elementwise(std::vector<Tensor> const& operands, StringHandle epilogue_name, bool with_result,
                                       bool with_sums, bool in_halves) {
  TextArgument const name(epilogue_name);
  Epilogue const epilogue = named_epilogue("elementwise", name.view(), /*has_accum=*/false);
  return compute(epilogue, operands, with_result, with_sums, in_halves);
}

constexpr OpNames kElementwise{"elementwise", "nn.functional", nullptr, nullptr, nullptr, 0};

}  // namespace

Tensor sum_rows(Tensor const& rows) {
  return std::get<1>(compute(Epilogue::identity_backward, {rows}, /*with_result=*/false, /*with_sums=*/true));
}

Tensor apply_elementwise(Epilogue epilogue, Tensor const& rows) {
  return std::get<0>(compute(epilogue, {rows}, /*with_result=*/true, /*with_sums=*/false));
}

Ops elementwise_ops() {
  return {
      op<&elementwise, kElementwise>(
          "elementwise(Tensor[] operands, str epilogue, bool with_result=True, bool with_sums=False, bool in_halves=False) "
          "-> (Tensor, Tensor)"),
  };
}

}  // namespace cutwheel
