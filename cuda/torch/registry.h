// An op is one declaration: its schema, its implementation, what a call with CPU tensors is told, and what explain, and
// with it the tuner, makes of it under the op's name. Each file of ops declares its own.
#pragma once

#include <torch/csrc/stable/library.h>

#include <string_view>
#include <vector>

#include "torch/explain/explain.h"
#include "torch/tensor/text_argument.h"

namespace cutwheel {

using Boxed = void (*)(StableIValue*, std::uint64_t, std::uint64_t);

struct OpEntry {
  char const* schema;
  Boxed cuda;
  Boxed cpu;  // refuses
  OpNames const* names;
  Explained explained;  // {}: explain does not know it
};
using Ops = std::vector<OpEntry>;

Ops gemm_ops();
Ops fused_ops();
Ops elementwise_ops();
Ops scaled_ops();
Ops quantize_ops();
Ops grouped_ops();
Ops routing_ops();
Ops conv_ops();
Ops grouped_conv_ops();
Ops const& all_ops();

inline std::string_view name_in(std::string_view schema) { return schema.substr(0, schema.find('(')); }

// Strings are ours to free; tensors and lists free themselves.
inline void release(StringHandle handle) { TextArgument const owned(handle); }
template <class T>
void release(T const&) {}

// Stands in for the implementation where tensors are on the CPU: one sentence instead of the dispatcher's list of
// backends.
template <OpNames const& names, class Function>
struct Refusal;
template <OpNames const& names, class Result, class... Arguments>
struct Refusal<names, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    (release(arguments), ...);
    fail(ErrorKind::not_implemented, names.op,
         ": the tensors are on the CPU; cutwheel's kernels run on CUDA devices: move them with .to(\"cuda\")",
         names.torch_op ? ", or use torch." : "", names.torch_op ? names.torch_op : "");
  }
};

template <auto function, OpNames const& names>
OpEntry op(char const* schema, Explained explained = {}) {
  using Function = std::remove_pointer_t<decltype(function)>;
  return {schema, TORCH_BOX(function), TORCH_BOX((&Refusal<names, Function>::call)), &names, explained};
}

}  // namespace cutwheel
