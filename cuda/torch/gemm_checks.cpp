#include <algorithm>

#include "core/error.h"
#include "torch/gemm_request.h"

namespace cutwheel {
namespace {

void check_same_device(GemmCall const& call, char const* argument, Tensor const& tensor) {
  check_device(call.names.op, argument, tensor, call.device, call.names.a);
}

// The sizes of c line up with the last dimensions of [batch, M, N], each equal or 1.
void check_broadcast(GemmCall const& call) {
  Tensor const& c = *call.c;
  std::int64_t const want[] = {call.batch, call.m, call.n};
  auto const sizes = c.sizes();
  int const dims = call.names.dims;
  bool fits = static_cast<int>(sizes.size()) <= dims;
  for (int i = 1; fits && i <= static_cast<int>(sizes.size()); ++i) {
    std::int64_t const size = sizes[sizes.size() - static_cast<std::size_t>(i)];
    fits = size == want[3 - i] || size == 1;
  }
  if (!fits) {
    fail(ErrorKind::shape, call.names.op, ": ", call.names.c, " has shape ", shape_text(c),
         "; expected one that broadcasts to [", dims == 3 ? concat(call.batch, ", ") : "", call.m, ", ", call.n, "]");
  }
}

void check_c(GemmCall const& call) {
  OpNames const& names = call.names;
  check_same_device(call, names.c, *call.c);
  ScalarType const c_type = call.c->scalar_type();
  if (c_type != call.type && c_type != call.d_type) {
    fail(ErrorKind::type, names.op, ": ", names.c, " has dtype ", dtype_text(c_type), "; expected ", dtype_text(call.type));
  }
  if (call.linear && (call.c->dim() != 1 || call.c->size(0) != call.n)) {
    fail(ErrorKind::shape, names.op, ": ", names.c, " has shape ", shape_text(*call.c), "; expected [", call.n, "]");
  }
  check_broadcast(call);
}

void check_out_against_c(GemmCall const& call) {
  if (!call.c || call.beta == 0) return;
  // The very same view is fine: each element of C is read before its D is written, by the same thread block. A broadcast
  // C is not: other thread blocks still read what one has overwritten.
  Matrix const c = matrix_of(*call.c), target = matrix_of(*call.out);
  ScalarType const c_type = call.c->scalar_type();
  if (c_type == call.d_type && same_view(c, target)) return;
  if (overlaps(c, element_bytes_of(c_type), target, element_bytes_of(call.d_type))) {
    fail(ErrorKind::value, call.names.op, ": out overlaps ", call.names.c, " in memory; expected separate tensors");
  }
}

void check_extents(GemmCall& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  if (call.linear) {
    auto const sizes = a.sizes();
    call.m = 1;
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) call.m *= sizes[i];
    call.k = sizes[sizes.size() - 1];
    call.n = b.size(0);
    if (b.size(1) != call.k) {
      fail(ErrorKind::shape, names.op, ": ", names.b, " has shape ", shape_text(b), "; expected [N, ", call.k, "] as ",
           names.a, " has shape ", shape_text(a));
    }
  } else {
    check_factors(call);
  }
  std::int64_t const widest = std::max(call.n, columns_of(call.width(), call.n));
  for (std::int64_t extent : {call.batch, call.m, widest, call.k}) check_extent(names.op, extent);
}

void check_product(GemmCall& call) {
  OpNames const& names = call.names;
  Tensor const &a = *call.a, &b = *call.b;
  check_devices(call);
  if (call.linear) {
    if (a.dim() > kMaxDims) {
      fail(ErrorKind::shape, names.op, ": ", names.a, " has ", a.dim(), " dimensions; at most ", kMaxDims,
           " are supported");
    }
    if (a.dim() < 1) fail(ErrorKind::shape, names.op, ": ", names.a, " has no dimensions; expected [..., K]");
  } else {
    check_dims(names, names.a, a, names.dims);
  }
  check_dims(names, names.b, b, names.dims);
  check_float_types(call, call.allow_tf32);
  check_extents(call);
}

}  // namespace

void check_call(GemmCall& call) {
  if (!call.factors) check_product(call);
  if (call.epilogue) check_epilogue(call);
  if (call.epilogue) {
    if (call.out) check_epilogue_outs(call);
    return;
  }
  if (call.c) check_c(call);
  if (call.out) {
    check_out(call, *call.out, "out", call.n);
    check_out_against_c(call);
  }
}

}  // namespace cutwheel
