// Written by tools/tuning/gains.py, which has the rule, from benchmarks/results.
// clang-format off
#pragma once

#include <cstdint>

namespace cutwheel {

enum class Measured { nothing, slower, faster };

struct MeasuredClass {
  char a, b;
  bool is_batched;
  std::int64_t rows;  // at most; 0: any number
  bool is_faster;
};

struct MeasuredProblem {
  char a, b;
  std::int64_t batch, m, n, k;
  bool is_faster;
};

// The first that holds a problem is its class. Ratios: torch's time to ours.
constexpr MeasuredClass kMeasuredClasses[] = {
    {'n', 't', false, 2048, false},  // 9 problems, mean 1.063, a fifth up to 0.880
    {'n', 't', false, 0, true},  // 16 problems, mean 1.184, a fifth up to 1.024
    {'t', 'n', false, 1, true},  // 17 problems, mean 1.116, a fifth up to 1.042
    {'t', 'n', false, 16, true},  // 28 problems, mean 1.162, a fifth up to 1.037
    {'t', 'n', false, 64, true},  // 16 problems, mean 1.082, a fifth up to 1.031
    {'t', 'n', false, 128, true},  // 17 problems, mean 1.041, a fifth up to 0.979
    {'t', 'n', false, 512, true},  // 37 problems, mean 1.023, a fifth up to 0.981
    {'t', 'n', false, 2048, true},  // 24 problems, mean 1.027, a fifth up to 0.995
    {'t', 'n', false, 0, true},  // 38 problems, mean 1.041, a fifth up to 0.987
    {'t', 'n', true, 512, true},  // 5 problems, mean 1.477, a fifth up to 1.366
    {'t', 'n', true, 2048, true},  // 3 problems, mean 1.267, a fifth up to 1.014
    {'t', 't', false, 16, true},  // 6 problems, mean 1.339, a fifth up to 1.148
    {'t', 't', false, 512, true},  // 7 problems, mean 1.097, a fifth up to 0.992
    {'t', 't', false, 2048, false},  // 3 problems, mean 0.981, a fifth up to 0.928
    {'t', 't', false, 0, false},  // 5 problems, mean 0.996, a fifth up to 0.977
    {'t', 't', true, 512, true},  // 5 problems, mean 1.705, a fifth up to 1.342
    {'t', 't', true, 2048, true},  // 3 problems, mean 1.094, a fifth up to 1.083
};

// Problems that differ from their class, or have none.
constexpr MeasuredProblem kMeasuredProblems[] = {
    {'n', 't', 1, 384, 24576, 2, false},  // 1.017
    {'n', 't', 1, 640, 5120, 4955, true},  // 1.791
    {'n', 't', 1, 1152, 1152, 147, true},  // 1.086
    {'n', 't', 1, 1152, 4304, 1, true},  // 1.480
    {'n', 't', 1, 32768, 640, 4128, false},  // 0.960
    {'t', 'n', 1, 2, 384, 24576, false},  // 0.629
    {'t', 'n', 1, 2, 6144, 2584, false},  // 0.947
    {'t', 'n', 1, 64, 4096, 4096, false},  // 0.957
    {'t', 'n', 1, 128, 1024, 7168, false},  // 0.941
    {'t', 'n', 1, 128, 6144, 4096, false},  // 0.904
    {'t', 'n', 1, 128, 8192, 8192, false},  // 0.956
    {'t', 'n', 1, 185, 9728, 3048, false},  // 0.675
    {'t', 'n', 1, 256, 2880, 4096, false},  // 0.958
    {'t', 'n', 1, 256, 4096, 7168, false},  // 0.953
    {'t', 'n', 1, 288, 6144, 1536, false},  // 0.953
    {'t', 'n', 1, 303, 768, 2440, false},  // 0.877
    {'t', 'n', 1, 512, 4096, 14336, false},  // 0.970
    {'t', 'n', 1, 512, 7168, 2048, false},  // 0.872
    {'t', 'n', 1, 610, 6144, 4096, false},  // 0.941
    {'t', 'n', 1, 616, 4608, 5608, false},  // 0.933
    {'t', 'n', 1, 4011, 1600, 24576, false},  // 0.951
    {'t', 'n', 1, 4096, 2112, 7168, false},  // 0.965
    {'t', 'n', 1, 4096, 6144, 4096, false},  // 0.878
    {'t', 'n', 1, 4096, 7168, 2048, false},  // 0.946
    {'t', 'n', 1, 8289, 1112, 3080, false},  // 0.630
    {'t', 'n', 1, 13047, 4096, 28672, false},  // 0.968
    {'t', 'n', 16, 1, 1023, 576, true},  // 1.714
    {'t', 'n', 16, 4096, 77, 40, true},  // 1.631
    {'t', 'n', 16, 4096, 4096, 40, false},  // 0.910
    {'t', 'n', 64, 1, 4096, 128, true},  // 1.146
    {'t', 'n', 128, 16, 512, 128, true},  // 1.190
    {'t', 'n', 128, 96, 512, 128, false},  // 0.949
    {'t', 'n', 256, 49, 49, 32, true},  // 1.176
    {'t', 'n', 384, 128, 128, 64, true},  // 1.360
    {'t', 't', 1, 1, 3072, 5120, true},  // 1.271
    {'t', 't', 1, 1, 4304, 1152, false},  // 1.005
    {'t', 't', 1, 43, 5120, 32768, true},  // 1.092
    {'t', 't', 1, 64, 1792, 4096, true},  // 1.303
    {'t', 't', 1, 128, 4096, 6144, true},  // 1.083
    {'t', 't', 1, 149, 7168, 4096, false},  // 0.968
    {'t', 't', 1, 16384, 18432, 7168, true},  // 1.025
    {'t', 't', 16, 1, 576, 1023, true},  // 1.274
    {'t', 't', 16, 4096, 40, 77, true},  // 1.226
    {'t', 't', 16, 4096, 40, 4096, true},  // 1.067
    {'t', 't', 64, 1, 128, 4096, true},  // 1.047
    {'t', 't', 128, 16, 128, 512, true},  // 1.075
    {'t', 't', 128, 96, 128, 512, true},  // 1.126
    {'t', 't', 256, 49, 32, 49, true},  // 1.055
    {'t', 't', 384, 128, 64, 128, true},  // 1.222
};

constexpr std::int64_t kClassRows[] = {1, 16, 64, 128, 512, 2048};
constexpr int kMeasuredMajor = 9;  // compute capability of H100 and H200

inline Measured measured_gain(char a, char b, std::int64_t batch, std::int64_t m,
                              std::int64_t n, std::int64_t k, int major) {
  if (major != kMeasuredMajor) return Measured::nothing;
  for (MeasuredProblem const& p : kMeasuredProblems) {
    if (p.m == m && p.n == n && p.k == k && p.batch == batch &&
        p.a == a && p.b == b) {
      return p.is_faster ? Measured::faster : Measured::slower;
    }
  }
  std::int64_t rows = 0;
  for (std::int64_t const most : kClassRows) {
    if (m <= most) {
      rows = most;
      break;
    }
  }
  for (MeasuredClass const& c : kMeasuredClasses) {
    if (c.a == a && c.b == b && c.is_batched == (batch > 1) && c.rows == rows) {
      return c.is_faster ? Measured::faster : Measured::slower;
    }
  }
  return Measured::nothing;
}

}  // namespace cutwheel
