// Rows of a mixture of experts: sorted by expert, moved there and back. No group size is read on the host.
#include "torch/routing.h"

#include "core/args/routing.h"
#include "torch/registry.h"

namespace cutwheel {

namespace {

constexpr ErrorKind kShape = ErrorKind::shape, kType = ErrorKind::type, kValue = ErrorKind::value;
constexpr OpNames kRoute{"moe_route", nullptr, nullptr, "expert_ids", nullptr, 0};
constexpr OpNames kPermute{"moe_permute", nullptr, nullptr, "tokens", nullptr, 0};
constexpr OpNames kUnpermute{"moe_unpermute", nullptr, nullptr, "rows", nullptr, 0};
constexpr OpNames kPermuteDots{"moe_permute_dots", nullptr, nullptr, "rows", nullptr, 0};
constexpr std::int64_t kMaxExperts = 1024;  // as many groups as a grouped GEMM takes

void check_on_gpu(char const* op, char const* argument, Tensor const& tensor) {
  check_defined(op, argument, tensor);
  if (!tensor.is_cuda()) {
    fail(ErrorKind::not_implemented, op, ": ", argument,
         " is not on a CUDA device; cutwheel's kernels run on CUDA devices");
  }
}

void check_contiguous(char const* op, char const* argument, Tensor const& tensor) {
  if (!tensor.is_contiguous()) {
    fail(kValue, op, ": ", argument, " is not contiguous (shape ", shape_text(tensor), "); pass ", argument,
         ".contiguous()");
  }
}

// Runs the only kernel that there is of a family.
void run(OpNames const& names, Family family, DType type, gemm::GemmArgs& args, int ordinal) {
  DeviceInfo const& device = device_info(ordinal);
  KernelDescriptor const* const kernel = choose_routing_kernel(device, family, type);
  if (!kernel) {
    fail(ErrorKind::not_implemented, names.op, ": no kernel in this wheel serves it on ", device.name,
         " (compute capability ", device.major, '.', device.minor, ")");
  }
  args.device = &device;
  if (!launch_kernel(*kernel, args, names.op)) {
    fail(ErrorKind::not_implemented, names.op, ": ", kernel->name, " does not take this many rows or experts");
  }
}

// expert_ids [..., k]. Returns the place of each choice, [..., k], the token of each place, [T k], and the ends of the
// experts' rows, [num_experts]; all int32.
std::tuple<Tensor, Tensor, Tensor> moe_route(Tensor const& expert_ids, std::int64_t num_experts) {
  char const* const op = kRoute.op;
  check_on_gpu(op, "expert_ids", expert_ids);
  ScalarType const type = type_of(expert_ids);
  if (type != ScalarType::Int && type != ScalarType::Long) {
    fail(kType, op, ": expert_ids has dtype ", dtype_text(type), "; expected int32 or int64");
  }
  if (expert_ids.dim() < 1 || expert_ids.dim() > kMaxDims) {
    fail(kShape, op, ": expert_ids has ", expert_ids.dim(), " dimensions; expected [..., k]");
  }
  check_contiguous(op, "expert_ids", expert_ids);
  if (num_experts < 1 || num_experts > kMaxExperts) {
    fail(kValue, op, ": num_experts is ", num_experts, "; expected 1 to ", kMaxExperts);
  }
  std::int64_t const rows = expert_ids.numel();
  check_extent(op, rows);
  int const ordinal = expert_ids.get_device_index();
  DeviceScope const scope(ordinal);
  auto const sizes = expert_ids.sizes();
  Tensor places = empty_contiguous(sizes.data(), static_cast<int>(sizes.size()), ScalarType::Int, ordinal);
  Tensor sources = empty_strided({rows}, {1}, ScalarType::Int, ordinal);
  Tensor ends = empty_strided({num_experts}, {1}, ScalarType::Int, ordinal);
  gemm::RouteArgs args;
  args.ids = expert_ids.data_ptr();
  args.is_int64 = type == ScalarType::Long;
  args.rows = static_cast<int>(rows);
  args.choices = static_cast<int>(std::max<std::int64_t>(sizes[sizes.size() - 1], 1));
  args.count = static_cast<int>(num_experts);
  args.places = static_cast<std::int32_t*>(places.data_ptr());
  args.sources = static_cast<std::int32_t*>(sources.data_ptr());
  args.ends = static_cast<std::int32_t*>(ends.data_ptr());
  run(kRoute, Family::route, DType::s8, args, ordinal);
  return {std::move(places), std::move(sources), std::move(ends)};
}

void check_matrix(char const* op, char const* argument, Tensor const& x) {
  if (x.dim() != 2) {
    fail(kShape, op, ": ", argument, " has ", x.dim(), " dimensions (shape ", shape_text(x), "); expected 2");
  }
  check_supported(op, argument, " has dtype ", type_of(x));
  for (int i = 0; i < 2; ++i) check_extent(op, x.size(i));
}

// As it lies, or a copy where the elements of a row do not follow each other.
Matrix with_rows(Tensor const& x, std::vector<Tensor>& keep) {
  Matrix const lying = matrix_of(x);
  if (lying.col_stride == 1 || lying.cols == 1) return lying;
  return readable_rows(x, lying.rows, lying.cols, x.get_device_index(), keep);
}

// Fills what the three ops share. `x`: the tokens or the rows.
void check_places(OpNames const& names, gemm::PermuteArgs& args, Tensor const& x, Tensor const& places,
                  std::optional<Tensor> const& weights, std::optional<Tensor> const& offs) {
  char const* const op = names.op;
  int const device = x.get_device_index();
  check_device(op, "places", places, device, names.a);
  check_type(op, "places", places, ScalarType::Int);
  if (places.dim() != 2) {
    fail(kShape, op, ": places has ", places.dim(), " dimensions (shape ", shape_text(places), "); expected [T, k]");
  }
  check_contiguous(op, "places", places);
  check_extent(op, places.numel());
  if (weights) {
    check_device(op, "weights", *weights, device, names.a);
    check_supported(op, "weights", " has dtype ", type_of(*weights));
    if (weights->dim() != 2 || weights->size(0) != places.size(0) || weights->size(1) != places.size(1)) {
      fail_shape(op, "weights", *weights, '[', places.size(0), ", ", places.size(1), "] as places has");
    }
    check_contiguous(op, "weights", *weights);
    args.weights = weights->data_ptr();
    args.weight_type = dtype_of(type_of(*weights));
  }
  if (offs) {
    check_device(op, "offs", *offs, device, names.a);
    check_type(op, "offs", *offs, ScalarType::Int);
    if (offs->dim() != 1 || offs->size(0) < 1) {
      fail(kShape, op, ": offs has shape ", shape_text(*offs), "; expected [G], the end of each expert's rows");
    }
    check_contiguous(op, "offs", *offs);
    args.end = static_cast<std::int32_t const*>(offs->data_ptr()) + offs->size(0) - 1;
  }
  args.tokens = static_cast<int>(places.size(0));
  args.choices = static_cast<int>(places.size(1));
  args.rows = static_cast<int>(places.numel());
  args.columns = static_cast<int>(x.size(1));
  args.places = static_cast<std::int32_t const*>(places.data_ptr());
}

void set_tokens(gemm::PermuteArgs& args, Matrix const& x) {
  args.token_data = x.data;
  args.token_stride = x.row_stride;
}
void set_rows(gemm::PermuteArgs& args, Matrix const& x) {
  args.row_data = x.data;
  args.row_stride = x.row_stride;
}

void check_tokens(OpNames const& names, Tensor const& tokens, Tensor const& places) {
  check_matrix(names.op, "tokens", tokens);
  if (places.dim() == 2 && tokens.size(0) != places.size(0)) {
    fail_shape(names.op, "tokens", tokens, '[', places.size(0), ", H] as places has shape ", shape_text(places));
  }
}
void check_rows(OpNames const& names, Tensor const& rows, Tensor const& places) {
  check_matrix(names.op, "rows", rows);
  if (rows.size(0) != places.numel()) {
    fail_shape(names.op, "rows", rows, '[', places.numel(), ", H], a row for each element of places, of shape ",
               shape_text(places));
  }
}

// rows [T k, H], places and weights [T, k], offs [G]. Returns [T, H].
Tensor moe_unpermute(Tensor const& rows, Tensor const& places, std::optional<Tensor> const& weights,
                     std::optional<Tensor> const& offs) {
  check_on_gpu(kUnpermute.op, "rows", rows);
  gemm::PermuteArgs args;
  check_places(kUnpermute, args, rows, places, weights, offs);
  check_rows(kUnpermute, rows, places);
  int const device = rows.get_device_index();
  DeviceScope const scope(device);
  Tensor result = empty_strided({args.tokens, args.columns}, {args.columns, 1}, type_of(rows), device);
  std::vector<Tensor> keep;
  set_tokens(args, matrix_of(result)), set_rows(args, with_rows(rows, keep));
  if (result.numel() > 0) run(kUnpermute, Family::unpermute, dtype_of(type_of(rows)), args, device);
  return result;
}

// rows [T k, H], tokens [T, H], places [T, k], offs [G]. Returns [T, k] in float32.
Tensor moe_permute_dots(Tensor const& rows, Tensor const& tokens, Tensor const& places, std::optional<Tensor> const& offs) {
  OpNames const& names = kPermuteDots;
  check_on_gpu(names.op, "rows", rows);
  gemm::PermuteArgs args;
  check_places(names, args, rows, places, std::nullopt, offs);
  check_rows(names, rows, places);
  int const device = rows.get_device_index();
  check_device(names.op, "tokens", tokens, device, "rows");
  check_tokens(names, tokens, places);
  check_type(names.op, "tokens", tokens, type_of(rows));
  if (tokens.size(1) != rows.size(1)) fail_shape(names.op, "tokens", tokens, "[T, ", rows.size(1), "] as rows has");
  DeviceScope const scope(device);
  Tensor result = empty_strided({args.tokens, args.choices}, {args.choices, 1}, ScalarType::Float, device);
  std::vector<Tensor> keep;
  set_tokens(args, with_rows(tokens, keep)), set_rows(args, with_rows(rows, keep));
  args.dots = static_cast<float*>(result.data_ptr());
  if (result.numel() > 0) run(names, Family::permute_dots, dtype_of(type_of(rows)), args, device);
  return result;
}

}  // namespace

Tensor moe_permute(Tensor const& tokens, Tensor const& places, std::optional<Tensor> const& weights,
                   std::optional<Tensor> const& offs) {
  check_on_gpu(kPermute.op, "tokens", tokens);
  gemm::PermuteArgs args;
  check_tokens(kPermute, tokens, places);
  check_places(kPermute, args, tokens, places, weights, offs);
  int const device = tokens.get_device_index();
  DeviceScope const scope(device);
  Tensor result = empty_strided({args.rows, args.columns}, {args.columns, 1}, type_of(tokens), device);
  std::vector<Tensor> keep;
  set_tokens(args, with_rows(tokens, keep)), set_rows(args, matrix_of(result));
  if (result.numel() > 0) run(kPermute, Family::permute, dtype_of(type_of(tokens)), args, device);
  return result;
}

Ops routing_ops() {
  return {
      op<&moe_route, kRoute>("moe_route(Tensor expert_ids, int num_experts) -> (Tensor, Tensor, Tensor)"),
      op<&moe_permute, kPermute>(
          "moe_permute(Tensor tokens, Tensor places, Tensor? weights=None, Tensor? offs=None) -> Tensor"),
      op<&moe_unpermute, kUnpermute>(
          "moe_unpermute(Tensor rows, Tensor places, Tensor? weights=None, Tensor? offs=None) -> Tensor"),
      op<&moe_permute_dots, kPermuteDots>(
          "moe_permute_dots(Tensor rows, Tensor tokens, Tensor places, Tensor? offs=None) -> Tensor"),
  };
}

}  // namespace cutwheel
