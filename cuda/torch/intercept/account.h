// Problems of the ops that enable() takes, where each goes, and the count of their calls.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "torch/intercept/gains.h"
#include "torch/tensor/tensor.h"

namespace cutwheel {

// Overloads of aten that can be taken.
enum class Taken : std::uint8_t {
  mm,
  mm_out,
  bmm,
  bmm_out,
  addmm,
  addmm_out,
  scaled_mm,
  scaled_mm_out,
  grouped_mm,
  scaled_grouped_mm,
  convolution,
  convolution_backward,
};
constexpr std::size_t kTakenCount = static_cast<std::size_t>(Taken::convolution_backward) + 1;

char const* name_of(Taken op);

enum class Verdict : std::uint8_t {
  taken,
  not_cuda,
  narrowed,
  dtype,
  shape,
  empty,
  layout,
  out,
  arguments,
  unmeasured,
  slower,
  no_kernel,
  copies,
  failed,
};
constexpr std::size_t kVerdictCount = static_cast<std::size_t>(Verdict::failed) + 1;

char const* text_of(Verdict verdict);

// The decision depends on these.
struct Problem {
  // A convolution has those of its implicit GEMM.
  std::int64_t batch = 0, m = 0, n = 0, k = 0;
  MeasuredExtents conv{};  // of a convolution, as gains.h has them
  std::int32_t device = -1;
  Taken op{};
  ScalarType type{};
  char a = '?', b = '?';     // t: contiguous along the last dimension, n: along the one before
  std::uint8_t variant = 0;  // of the op: its recipe, or its direction
  bool batch_invariant = false;
  // Known of the tensors before anything is looked up; taken: nothing speaks against it.
  Verdict first = Verdict::taken;

  bool operator==(Problem const& o) const {
    return batch == o.batch && m == o.m && n == o.n && k == o.k && conv == o.conv && device == o.device && op == o.op &&
           type == o.type && a == o.a && b == o.b && variant == o.variant && batch_invariant == o.batch_invariant &&
           first == o.first;
  }
  Problem with(Verdict verdict) const {
    Problem other = *this;
    other.first = verdict;
    return other;
  }
};

// The kind of the problem, as gains.h has it.
std::string kind_of(Problem const& problem);
std::string scaled_kind(Problem const& problem);
std::string conv_kind(Problem const& problem);

// Whether a problem is to be taken, counted as a call of it. What is not known yet is told by the measurements, and if
// they speak for it, by `plan`, which returns a Verdict.
template <class Plan>
bool is_taken(Problem const& problem, Plan const& plan);

// A call that was counted as taken has failed: the next one with this problem is tried again.
void count_failure(Problem const& problem);

// By what was measured on GPUs of this compute capability.
Verdict predict(std::string_view kind, std::int64_t rows, MeasuredExtents const& extents, int major);

// The calls since the last clear, as JSON.
std::string account_json();
void clear_account();

// --- Parts of is_taken

bool find_verdict(Problem const& problem, Verdict& verdict);
void add_verdict(Problem const& problem, Verdict verdict);
Verdict predict_on_device(Problem const& problem);

template <class Plan>
bool is_taken(Problem const& problem, Plan const& plan) {
  Verdict verdict = problem.first;
  if (!find_verdict(problem, verdict)) {
    // The number of rows decides which is faster, and in this mode it must not choose the kernel.
    if (verdict == Verdict::taken && !problem.batch_invariant) verdict = predict_on_device(problem);
    if (verdict == Verdict::taken) verdict = plan();
    if (verdict == Verdict::failed) {
      add_verdict(problem.with(Verdict::failed), verdict);
    } else {
      add_verdict(problem, verdict);
    }
  }
  return verdict == Verdict::taken;
}

}  // namespace cutwheel
