// Checks of the operands of intercepted ops.
#pragma once

#include <atomic>
#include <optional>

#include "dispatch/batch_invariance.h"
#include "torch/explain/explain.h"
#include "torch/intercept/account.h"

namespace cutwheel {

// dtypes= of enable(), as a set of bits, 1 << ScalarType.
inline std::atomic<std::uint64_t> g_dtypes{0};

inline bool is_narrowed(ScalarType type) {
  return (g_dtypes.load(std::memory_order_relaxed) >> static_cast<int>(type) & 1) == 0;
}

// An optional operand, or null. Composite ops, as conv2d, hand None on as an undefined tensor.
inline Tensor const* or_null(std::optional<Tensor> const& x) { return x && x->defined() ? &*x : nullptr; }

bool is_cuda(Tensor const& x);
// Whether all are on the CUDA device of the first. Undefined tensors are on none.
bool are_on_device_of(Tensor const& first, std::initializer_list<Tensor const*> others);

inline bool is_16_bit(ScalarType type) { return type == ScalarType::Half || type == ScalarType::BFloat16; }

// The letter of a matrix that kernels read as it lies, '?' of any other.
char letter_of(Matrix const& x, int element_bytes);

// A row-major result of these extents, with no strides but those that follow from them, apart from the operands.
bool is_contiguous_result(Tensor const& out, Problem const& p, ScalarType type, int dims,
                          std::initializer_list<Tensor const*> operands);

bool is_contiguous(Tensor const& x);

Problem begin_problem(Taken op, Tensor const& a);

// Verdict on the kernel that a call would run: without a native one it is not taken.
Verdict verdict_of(Explanation const& explanation, bool may_copy);

// Plans a call without running it.
template <class Plan>
Verdict try_plan(Plan const& plan) {
  try {
    return plan();
  } catch (Error const& error) {
    return error.kind() == ErrorKind::out_of_memory ? Verdict::failed : Verdict::no_kernel;
  }
}

// Runs `ours` if the problem is to be taken. torch has other kernels, and raises its own error where memory is short:
// whatever goes wrong, the call goes on.
template <class Result, class Plan, class Ours, class Theirs>
Result run_either(Problem const& problem, Plan const& plan, Ours const& ours, Theirs const& theirs) {
  if (!is_taken(problem, [&] { return try_plan(plan); })) return theirs();
  try {
    return ours();
  } catch (Error const&) {
    count_failure(problem);
  }
  return theirs();
}

}  // namespace cutwheel
