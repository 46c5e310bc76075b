// Written by tools/tuning/gains.py, which has the rule, from benchmarks/results.
// clang-format off
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace cutwheel {

enum class Measured { nothing, slower, faster };

struct MeasuredClass {
  std::string_view kind;
  std::int64_t rows;  // at most; 0: any number
  bool is_faster;
};

// Batch, M, N and K; groups, M, N and K; of a convolution N, C, H, W, Ko, R, S, then
// stride, padding and dilation along H and W, and groups.
using MeasuredExtents = std::array<std::int64_t, 14>;

struct MeasuredProblem {
  std::string_view kind;
  MeasuredExtents extents;
  bool is_faster;
};

// Ratios: torch's time to ours.
constexpr MeasuredClass kMeasuredClasses[] = {
    {"_grouped_mm nt", 64, true},  // 6 problems, mean 1.195, a fifth up to 1.117
    {"_grouped_mm nt", 128, true},  // 5 problems, mean 1.201, a fifth up to 1.053
    {"_grouped_mm nt", 512, false},  // 5 problems, mean 1.002, a fifth up to 0.932
    {"_grouped_mm nt", 2048, false},  // 3 problems, mean 1.036, a fifth up to 0.856
    {"_grouped_mm tn", 64, true},  // 6 problems, mean 1.274, a fifth up to 1.267
    {"_grouped_mm tn", 128, true},  // 5 problems, mean 1.176, a fifth up to 1.149
    {"_grouped_mm tn", 512, true},  // 5 problems, mean 1.043, a fifth up to 1.005
    {"_grouped_mm tn", 2048, true},  // 3 problems, mean 1.150, a fifth up to 1.059
    {"_grouped_mm tt", 64, true},  // 6 problems, mean 1.257, a fifth up to 1.244
    {"_grouped_mm tt", 128, true},  // 5 problems, mean 1.184, a fifth up to 1.130
    {"_grouped_mm tt", 512, true},  // 5 problems, mean 1.087, a fifth up to 1.005
    {"_grouped_mm tt", 2048, true},  // 3 problems, mean 1.223, a fifth up to 1.055
    {"_scaled_grouped_mm rowwise", 64, true},  // 6 problems, mean 1.459, a fifth up to 1.477
    {"_scaled_grouped_mm rowwise", 128, true},  // 5 problems, mean 1.331, a fifth up to 1.215
    {"_scaled_grouped_mm rowwise", 512, true},  // 5 problems, mean 1.899, a fifth up to 1.225
    {"_scaled_grouped_mm rowwise", 2048, true},  // 3 problems, mean 1.899, a fifth up to 1.258
    {"_scaled_grouped_mm rowwise fast", 64, true},  // 6 problems, mean 1.200, a fifth up to 1.131
    {"_scaled_grouped_mm rowwise fast", 128, true},  // 5 problems, mean 1.183, a fifth up to 1.083
    {"_scaled_grouped_mm rowwise fast", 512, true},  // 5 problems, mean 1.257, a fifth up to 1.118
    {"_scaled_grouped_mm rowwise fast", 2048, true},  // 3 problems, mean 1.374, a fifth up to 1.159
    {"_scaled_mm 1x128 x 128x128", 16, true},  // 15 problems, mean 1.312, a fifth up to 1.096
    {"_scaled_mm 1x128 x 128x128", 64, true},  // 13 problems, mean 1.370, a fifth up to 1.139
    {"_scaled_mm 1x128 x 128x128", 128, true},  // 13 problems, mean 1.336, a fifth up to 0.982
    {"_scaled_mm 1x128 x 128x128", 512, true},  // 29 problems, mean 1.153, a fifth up to 1.039
    {"_scaled_mm 1x128 x 128x128", 2048, true},  // 18 problems, mean 1.059, a fifth up to 1.020
    {"_scaled_mm 1x128 x 128x128", 0, false},  // 28 problems, mean 1.011, a fifth up to 0.982
    {"_scaled_mm 1x128 x 1x128", 1, true},  // 16 problems, mean 1.428, a fifth up to 1.219
    {"_scaled_mm 1x128 x 1x128", 16, true},  // 16 problems, mean 1.062, a fifth up to 1.006
    {"_scaled_mm 1x128 x 1x128", 64, false},  // 14 problems, mean 1.003, a fifth up to 0.926
    {"_scaled_mm 1x128 x 1x128", 128, false},  // 13 problems, mean 1.037, a fifth up to 0.965
    {"_scaled_mm 1x128 x 1x128", 512, true},  // 29 problems, mean 1.038, a fifth up to 0.991
    {"_scaled_mm 1x128 x 1x128", 2048, false},  // 18 problems, mean 0.977, a fifth up to 0.968
    {"_scaled_mm 1x128 x 1x128", 0, false},  // 30 problems, mean 0.985, a fifth up to 0.971
    {"_scaled_mm rowwise", 1, true},  // 16 problems, mean 1.942, a fifth up to 1.563
    {"_scaled_mm rowwise", 16, true},  // 25 problems, mean 2.085, a fifth up to 1.766
    {"_scaled_mm rowwise", 64, true},  // 16 problems, mean 1.601, a fifth up to 1.369
    {"_scaled_mm rowwise", 128, true},  // 14 problems, mean 1.474, a fifth up to 1.177
    {"_scaled_mm rowwise", 512, true},  // 33 problems, mean 1.260, a fifth up to 1.005
    {"_scaled_mm rowwise", 2048, true},  // 22 problems, mean 1.099, a fifth up to 1.002
    {"_scaled_mm rowwise", 0, true},  // 35 problems, mean 1.045, a fifth up to 0.983
    {"_scaled_mm rowwise fast", 1, true},  // 16 problems, mean 1.654, a fifth up to 1.322
    {"_scaled_mm rowwise fast", 16, true},  // 25 problems, mean 1.805, a fifth up to 1.300
    {"_scaled_mm rowwise fast", 64, true},  // 16 problems, mean 1.463, a fifth up to 1.190
    {"_scaled_mm rowwise fast", 128, true},  // 14 problems, mean 1.440, a fifth up to 1.113
    {"_scaled_mm rowwise fast", 512, true},  // 33 problems, mean 1.230, a fifth up to 1.002
    {"_scaled_mm rowwise fast", 2048, true},  // 22 problems, mean 1.092, a fifth up to 0.996
    {"_scaled_mm rowwise fast", 0, false},  // 35 problems, mean 0.996, a fifth up to 0.958
    {"_scaled_mm tensorwise", 1, true},  // 16 problems, mean 1.088, a fifth up to 1.030
    {"_scaled_mm tensorwise", 16, true},  // 25 problems, mean 1.149, a fifth up to 1.034
    {"_scaled_mm tensorwise", 64, true},  // 16 problems, mean 1.081, a fifth up to 1.028
    {"_scaled_mm tensorwise", 128, true},  // 14 problems, mean 1.059, a fifth up to 1.011
    {"_scaled_mm tensorwise", 512, true},  // 33 problems, mean 1.037, a fifth up to 0.979
    {"_scaled_mm tensorwise", 2048, true},  // 22 problems, mean 1.021, a fifth up to 0.984
    {"_scaled_mm tensorwise", 0, false},  // 35 problems, mean 0.974, a fifth up to 0.938
    {"_scaled_mm tensorwise fast", 1, true},  // 16 problems, mean 1.089, a fifth up to 1.029
    {"_scaled_mm tensorwise fast", 16, true},  // 25 problems, mean 1.152, a fifth up to 1.040
    {"_scaled_mm tensorwise fast", 64, true},  // 16 problems, mean 1.073, a fifth up to 1.022
    {"_scaled_mm tensorwise fast", 128, true},  // 14 problems, mean 1.040, a fifth up to 0.990
    {"_scaled_mm tensorwise fast", 512, false},  // 33 problems, mean 1.024, a fifth up to 0.962
    {"_scaled_mm tensorwise fast", 2048, true},  // 22 problems, mean 1.050, a fifth up to 0.998
    {"_scaled_mm tensorwise fast", 0, false},  // 35 problems, mean 1.004, a fifth up to 0.961
    {"addmm tn", 1, true},  // 15 problems, mean 1.114, a fifth up to 1.031
    {"addmm tn", 16, true},  // 22 problems, mean 1.135, a fifth up to 1.024
    {"addmm tn", 64, true},  // 14 problems, mean 1.064, a fifth up to 0.993
    {"addmm tn", 128, true},  // 15 problems, mean 1.043, a fifth up to 0.975
    {"addmm tn", 512, false},  // 30 problems, mean 1.005, a fifth up to 0.985
    {"addmm tn", 2048, true},  // 21 problems, mean 1.020, a fifth up to 0.997
    {"addmm tn", 0, false},  // 32 problems, mean 0.988, a fifth up to 0.983
    {"bmm tn", 512, true},  // 5 problems, mean 1.477, a fifth up to 1.366
    {"bmm tn", 2048, true},  // 3 problems, mean 1.267, a fifth up to 1.014
    {"bmm tt", 512, true},  // 5 problems, mean 1.705, a fifth up to 1.342
    {"bmm tt", 2048, true},  // 3 problems, mean 1.094, a fifth up to 1.083
    {"convolution dgrad dense, stride 1", 0, true},  // 71 problems, mean 1.106, a fifth up to 0.979
    {"convolution dgrad dense, stride 2 or more", 0, true},  // 12 problems, mean 1.254, a fifth up to 1.090
    {"convolution dgrad depthwise, stride 1", 0, true},  // 9 problems, mean 1.745, a fifth up to 1.046
    {"convolution dgrad depthwise, stride 2 or more", 0, true},  // 3 problems, mean 3.464, a fifth up to 2.710
    {"convolution dgrad grouped, stride 1", 0, true},  // 9 problems, mean 2.223, a fifth up to 1.230
    {"convolution dgrad of few channels, stride 1", 0, true},  // 3 problems, mean 1.863, a fifth up to 1.642
    {"convolution dgrad of few channels, stride 2 or more", 0, true},  // 20 problems, mean 3.673, a fifth up to 1.522
    {"convolution dgrad pointwise, stride 1", 0, true},  // 33 problems, mean 1.091, a fifth up to 0.992
    {"convolution dgrad pointwise, stride 2 or more", 0, true},  // 3 problems, mean 1.200, a fifth up to 1.001
    {"convolution fprop dense, stride 1", 0, true},  // 71 problems, mean 1.225, a fifth up to 1.010
    {"convolution fprop dense, stride 2 or more", 0, false},  // 12 problems, mean 1.098, a fifth up to 0.967
    {"convolution fprop depthwise, stride 1", 0, true},  // 9 problems, mean 1.267, a fifth up to 1.075
    {"convolution fprop depthwise, stride 2 or more", 0, true},  // 3 problems, mean 1.071, a fifth up to 1.014
    {"convolution fprop grouped, stride 1", 0, true},  // 9 problems, mean 2.088, a fifth up to 1.215
    {"convolution fprop of few channels, stride 1", 0, true},  // 3 problems, mean 1.856, a fifth up to 1.606
    {"convolution fprop of few channels, stride 2 or more", 0, true},  // 20 problems, mean 3.813, a fifth up to 1.821
    {"convolution fprop pointwise, stride 1", 0, true},  // 33 problems, mean 1.124, a fifth up to 0.976
    {"convolution fprop pointwise, stride 2 or more", 0, true},  // 3 problems, mean 1.165, a fifth up to 1.010
    {"convolution wgrad dense, stride 1", 0, true},  // 71 problems, mean 1.214, a fifth up to 1.046
    {"convolution wgrad dense, stride 2 or more", 0, true},  // 12 problems, mean 1.251, a fifth up to 1.088
    {"convolution wgrad depthwise, stride 1", 0, true},  // 9 problems, mean 1.305, a fifth up to 1.101
    {"convolution wgrad depthwise, stride 2 or more", 0, true},  // 3 problems, mean 2.810, a fifth up to 1.243
    {"convolution wgrad grouped, stride 1", 0, false},  // 9 problems, mean 1.844, a fifth up to 0.963
    {"convolution wgrad of few channels, stride 1", 0, true},  // 3 problems, mean 1.276, a fifth up to 1.240
    {"convolution wgrad of few channels, stride 2 or more", 0, true},  // 20 problems, mean 1.856, a fifth up to 1.469
    {"convolution wgrad pointwise, stride 1", 0, false},  // 33 problems, mean 1.028, a fifth up to 0.928
    {"convolution wgrad pointwise, stride 2 or more", 0, true},  // 3 problems, mean 1.158, a fifth up to 1.055
    {"mm nt", 2048, false},  // 9 problems, mean 1.063, a fifth up to 0.880
    {"mm nt", 0, true},  // 16 problems, mean 1.184, a fifth up to 1.024
    {"mm tn", 1, true},  // 17 problems, mean 1.116, a fifth up to 1.042
    {"mm tn", 16, true},  // 28 problems, mean 1.162, a fifth up to 1.037
    {"mm tn", 64, true},  // 16 problems, mean 1.082, a fifth up to 1.031
    {"mm tn", 128, true},  // 17 problems, mean 1.041, a fifth up to 0.979
    {"mm tn", 512, true},  // 37 problems, mean 1.023, a fifth up to 0.981
    {"mm tn", 2048, true},  // 24 problems, mean 1.027, a fifth up to 0.995
    {"mm tn", 0, true},  // 38 problems, mean 1.041, a fifth up to 0.987
    {"mm tt", 16, true},  // 6 problems, mean 1.339, a fifth up to 1.148
    {"mm tt", 512, true},  // 7 problems, mean 1.097, a fifth up to 0.992
    {"mm tt", 2048, false},  // 3 problems, mean 0.981, a fifth up to 0.928
    {"mm tt", 0, false},  // 5 problems, mean 0.996, a fifth up to 0.977
};

// Problems that differ from their class, or have none.
constexpr MeasuredProblem kMeasuredProblems[] = {
    {"_grouped_mm nt", {16, 1024, 6144, 156}, true},  // 1.523
    {"_grouped_mm nt", {160, 3072, 5120, 11982}, false},  // 0.958
    {"_grouped_mm nt", {60, 768, 2880, 9344}, true},  // 1.135
    {"_grouped_mm nt", {8, 28672, 4096, 4096}, true},  // 1.102
    {"_grouped_mm nt", {4, 2880, 2560, 2939}, true},  // 1.145
    {"_grouped_mm nt", {16, 1408, 5120, 15309}, true},  // 1.134
    {"_grouped_mm nt", {8, 7168, 2048, 32768}, true},  // 1.033
    {"_grouped_mm nt", {4, 4096, 7168, 32768}, false},  // 1.002
    {"_grouped_mm tn", {256, 256, 4096, 7168}, true},  // 1.075
    {"_grouped_mm tn", {60, 138, 1280, 2816}, true},  // 1.407
    {"_grouped_mm tn", {16, 156, 1024, 6144}, true},  // 1.333
    {"_grouped_mm tn", {8, 2048, 4096, 14336}, false},  // 0.925
    {"_grouped_mm tn", {8, 32768, 7168, 2048}, false},  // 0.950
    {"_grouped_mm tn", {4, 32768, 4096, 7168}, false},  // 1.018
    {"_grouped_mm tt", {256, 256, 7168, 4096}, true},  // 1.091
    {"_grouped_mm tt", {60, 138, 2816, 1280}, true},  // 1.617
    {"_grouped_mm tt", {16, 156, 6144, 1024}, true},  // 1.555
    {"_grouped_mm tt", {8, 32768, 2048, 7168}, false},  // 1.019
    {"_grouped_mm tt", {4, 32768, 7168, 4096}, true},  // 1.027
    {"_scaled_grouped_mm rowwise", {256, 256, 4096, 7168}, true},  // 1.121
    {"_scaled_grouped_mm rowwise", {60, 138, 1280, 2816}, true},  // 1.606
    {"_scaled_grouped_mm rowwise", {16, 156, 1024, 6144}, true},  // 1.484
    {"_scaled_grouped_mm rowwise", {8, 32768, 7168, 2048}, true},  // 1.320
    {"_scaled_grouped_mm rowwise", {4, 32768, 4096, 7168}, true},  // 1.254
    {"_scaled_grouped_mm rowwise fast", {256, 256, 4096, 7168}, true},  // 1.073
    {"_scaled_grouped_mm rowwise fast", {60, 138, 1280, 2816}, true},  // 1.301
    {"_scaled_grouped_mm rowwise fast", {16, 156, 1024, 6144}, true},  // 1.251
    {"_scaled_grouped_mm rowwise fast", {8, 32768, 7168, 2048}, true},  // 1.032
    {"_scaled_grouped_mm rowwise fast", {4, 32768, 4096, 7168}, true},  // 1.065
    {"_scaled_mm 1x128 x 128x128", {1, 64, 10240, 8192}, false},  // 0.963
    {"_scaled_mm 1x128 x 128x128", {1, 128, 57344, 8192}, false},  // 0.953
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 4096, 4096}, true},  // 1.039
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 4096, 7168}, true},  // 1.053
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 6144, 4096}, true},  // 1.039
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 7168, 16384}, true},  // 1.034
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 8192, 28672}, true},  // 1.031
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 10240, 8192}, true},  // 1.038
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 28672, 4096}, true},  // 1.026
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 57344, 8192}, true},  // 1.051
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 2112, 7168}, true},  // 1.045
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 4096, 4096}, true},  // 1.045
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 4096, 7168}, true},  // 1.032
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 4096, 14336}, true},  // 1.048
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 7168, 16384}, true},  // 1.028
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 10240, 8192}, true},  // 1.041
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 28672, 4096}, true},  // 1.029
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 57344, 8192}, true},  // 1.046
    {"_scaled_mm 1x128 x 1x128", {1, 16, 2112, 7168}, false},  // 0.955
    {"_scaled_mm 1x128 x 1x128", {1, 64, 6144, 4096}, true},  // 1.060
    {"_scaled_mm 1x128 x 1x128", {1, 64, 7168, 2048}, true},  // 1.067
    {"_scaled_mm 1x128 x 1x128", {1, 64, 8192, 8192}, true},  // 1.055
    {"_scaled_mm 1x128 x 1x128", {1, 64, 10240, 8192}, true},  // 1.065
    {"_scaled_mm 1x128 x 1x128", {1, 64, 24576, 1536}, true},  // 1.129
    {"_scaled_mm 1x128 x 1x128", {1, 64, 57344, 8192}, true},  // 1.026
    {"_scaled_mm 1x128 x 1x128", {1, 128, 6144, 4096}, true},  // 1.075
    {"_scaled_mm 1x128 x 1x128", {1, 128, 7168, 2048}, true},  // 1.109
    {"_scaled_mm 1x128 x 1x128", {1, 128, 7168, 16384}, true},  // 1.058
    {"_scaled_mm 1x128 x 1x128", {1, 128, 8192, 8192}, true},  // 1.049
    {"_scaled_mm 1x128 x 1x128", {1, 128, 8192, 28672}, true},  // 1.040
    {"_scaled_mm 1x128 x 1x128", {1, 128, 10240, 8192}, true},  // 1.290
    {"_scaled_mm 1x128 x 1x128", {1, 128, 24576, 1536}, true},  // 1.125
    {"_scaled_mm 1x128 x 1x128", {1, 256, 2112, 7168}, false},  // 0.919
    {"_scaled_mm 1x128 x 1x128", {1, 512, 2112, 7168}, false},  // 0.852
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 1024, 1024}, true},  // 1.103
    {"_scaled_mm 1x128 x 1x128", {1, 4128, 32768, 640}, true},  // 1.093
    {"_scaled_mm 1x128 x 1x128", {1, 6496, 2048, 256}, true},  // 1.334
    {"_scaled_mm rowwise", {1, 1024, 4096, 4096}, false},  // 0.929
    {"_scaled_mm rowwise", {1, 1024, 4096, 14336}, false},  // 0.956
    {"_scaled_mm rowwise", {1, 4096, 8192, 8192}, false},  // 0.938
    {"_scaled_mm rowwise", {1, 8192, 4096, 14336}, false},  // 0.956
    {"_scaled_mm rowwise", {1, 13047, 4096, 28672}, false},  // 0.945
    {"_scaled_mm rowwise fast", {1, 512, 4096, 7168}, false},  // 0.888
    {"_scaled_mm rowwise fast", {1, 880, 9216, 4608}, false},  // 0.924
    {"_scaled_mm rowwise fast", {1, 2758, 448, 2560}, true},  // 1.309
    {"_scaled_mm rowwise fast", {1, 4011, 1600, 24576}, true},  // 1.108
    {"_scaled_mm rowwise fast", {1, 4096, 2112, 7168}, true},  // 1.089
    {"_scaled_mm rowwise fast", {1, 4128, 32768, 640}, true},  // 1.030
    {"_scaled_mm rowwise fast", {1, 4955, 640, 5120}, true},  // 1.030
    {"_scaled_mm rowwise fast", {1, 6496, 2048, 256}, true},  // 1.387
    {"_scaled_mm rowwise fast", {1, 8192, 2112, 7168}, true},  // 1.036
    {"_scaled_mm tensorwise", {1, 2, 384, 24576}, false},  // 0.617
    {"_scaled_mm tensorwise", {1, 64, 4096, 4096}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 64, 4096, 14336}, false},  // 0.961
    {"_scaled_mm tensorwise", {1, 128, 8192, 28672}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 256, 8192, 8192}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 482, 4544, 3456}, false},  // 0.946
    {"_scaled_mm tensorwise", {1, 512, 2112, 7168}, false},  // 0.899
    {"_scaled_mm tensorwise", {1, 512, 4096, 14336}, false},  // 0.953
    {"_scaled_mm tensorwise", {1, 512, 7168, 2048}, false},  // 0.946
    {"_scaled_mm tensorwise", {1, 1024, 2112, 7168}, false},  // 0.937
    {"_scaled_mm tensorwise", {1, 1024, 4096, 14336}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 1024, 8192, 28672}, false},  // 0.957
    {"_scaled_mm tensorwise", {1, 2758, 448, 2560}, true},  // 1.110
    {"_scaled_mm tensorwise", {1, 4096, 2112, 7168}, true},  // 1.095
    {"_scaled_mm tensorwise", {1, 6496, 2048, 256}, true},  // 1.268
    {"_scaled_mm tensorwise", {1, 8192, 2112, 7168}, true},  // 1.052
    {"_scaled_mm tensorwise", {1, 16384, 7168, 18432}, true},  // 1.021
    {"_scaled_mm tensorwise fast", {1, 2, 384, 24576}, false},  // 0.623
    {"_scaled_mm tensorwise fast", {1, 64, 4096, 14336}, false},  // 0.956
    {"_scaled_mm tensorwise fast", {1, 128, 7168, 16384}, false},  // 0.941
    {"_scaled_mm tensorwise fast", {1, 128, 8192, 28672}, false},  // 0.969
    {"_scaled_mm tensorwise fast", {1, 147, 1152, 1152}, true},  // 1.429
    {"_scaled_mm tensorwise fast", {1, 149, 4096, 7168}, true},  // 1.022
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 4096}, true},  // 1.099
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 7168}, true},  // 1.061
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 14336}, true},  // 1.038
    {"_scaled_mm tensorwise fast", {1, 256, 24576, 1536}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 256, 28672, 4096}, true},  // 1.074
    {"_scaled_mm tensorwise fast", {1, 304, 3072, 2048}, true},  // 1.179
    {"_scaled_mm tensorwise fast", {1, 512, 512, 512}, true},  // 1.497
    {"_scaled_mm tensorwise fast", {1, 512, 24576, 1536}, true},  // 1.167
    {"_scaled_mm tensorwise fast", {1, 512, 57344, 8192}, true},  // 1.025
    {"_scaled_mm tensorwise fast", {1, 880, 9216, 4608}, false},  // 0.957
    {"_scaled_mm tensorwise fast", {1, 2758, 448, 2560}, true},  // 1.068
    {"_scaled_mm tensorwise fast", {1, 4096, 4096, 4096}, true},  // 1.024
    {"_scaled_mm tensorwise fast", {1, 4096, 4096, 7168}, true},  // 1.037
    {"_scaled_mm tensorwise fast", {1, 4096, 6144, 4096}, true},  // 1.054
    {"_scaled_mm tensorwise fast", {1, 4096, 7168, 2048}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 4096, 8192, 8192}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 4096, 10240, 8192}, true},  // 1.028
    {"_scaled_mm tensorwise fast", {1, 4096, 24576, 1536}, true},  // 1.172
    {"_scaled_mm tensorwise fast", {1, 4096, 28672, 4096}, true},  // 1.071
    {"_scaled_mm tensorwise fast", {1, 4096, 57344, 8192}, true},  // 1.041
    {"_scaled_mm tensorwise fast", {1, 4144, 16384, 2048}, true},  // 1.096
    {"_scaled_mm tensorwise fast", {1, 8192, 2112, 7168}, true},  // 1.051
    {"_scaled_mm tensorwise fast", {1, 8192, 4096, 4096}, true},  // 1.063
    {"_scaled_mm tensorwise fast", {1, 8192, 4096, 7168}, true},  // 1.027
    {"_scaled_mm tensorwise fast", {1, 8192, 7168, 2048}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 8192, 8192, 28672}, true},  // 1.024
    {"_scaled_mm tensorwise fast", {1, 8192, 24576, 1536}, true},  // 1.166
    {"_scaled_mm tensorwise fast", {1, 8192, 28672, 4096}, true},  // 1.078
    {"_scaled_mm tensorwise fast", {1, 8192, 57344, 8192}, true},  // 1.050
    {"addmm tn", {1, 2, 6144, 2584}, false},  // 0.938
    {"addmm tn", {1, 128, 7168, 16384}, false},  // 0.965
    {"addmm tn", {1, 128, 8192, 8192}, false},  // 0.948
    {"addmm tn", {1, 128, 8192, 28672}, false},  // 0.962
    {"addmm tn", {1, 256, 4096, 4096}, true},  // 1.117
    {"addmm tn", {1, 256, 4096, 7168}, true},  // 1.060
    {"addmm tn", {1, 256, 4096, 14336}, true},  // 1.069
    {"addmm tn", {1, 256, 6144, 4096}, true},  // 1.043
    {"addmm tn", {1, 256, 10240, 8192}, true},  // 1.059
    {"addmm tn", {1, 256, 24576, 1536}, true},  // 1.057
    {"addmm tn", {1, 256, 28672, 4096}, true},  // 1.110
    {"addmm tn", {1, 482, 4544, 3456}, true},  // 1.021
    {"addmm tn", {1, 512, 2112, 7168}, true},  // 1.049
    {"addmm tn", {1, 512, 6144, 4096}, true},  // 1.021
    {"addmm tn", {1, 512, 10240, 8192}, true},  // 1.057
    {"addmm tn", {1, 512, 24576, 1536}, true},  // 1.062
    {"addmm tn", {1, 616, 4608, 5608}, false},  // 0.937
    {"addmm tn", {1, 765, 8192, 1024}, false},  // 0.936
    {"addmm tn", {1, 2758, 448, 2560}, true},  // 1.072
    {"addmm tn", {1, 4096, 7168, 16384}, true},  // 1.027
    {"addmm tn", {1, 4096, 28672, 4096}, true},  // 1.022
    {"addmm tn", {1, 4096, 57344, 8192}, true},  // 1.035
    {"addmm tn", {1, 8192, 24576, 1536}, true},  // 1.031
    {"addmm tn", {1, 8192, 28672, 4096}, true},  // 1.021
    {"bmm tn", {16, 1, 1023, 576}, true},  // 1.714
    {"bmm tn", {64, 1, 4096, 128}, true},  // 1.146
    {"bmm tn", {128, 16, 512, 128}, true},  // 1.190
    {"bmm tn", {256, 49, 49, 32}, true},  // 1.176
    {"bmm tn", {128, 96, 512, 128}, false},  // 0.949
    {"bmm tn", {384, 128, 128, 64}, true},  // 1.360
    {"bmm tn", {16, 4096, 77, 40}, true},  // 1.631
    {"bmm tn", {16, 4096, 4096, 40}, false},  // 0.910
    {"bmm tt", {16, 1, 576, 1023}, true},  // 1.274
    {"bmm tt", {64, 1, 128, 4096}, true},  // 1.047
    {"bmm tt", {128, 16, 128, 512}, true},  // 1.075
    {"bmm tt", {256, 49, 32, 49}, true},  // 1.055
    {"bmm tt", {128, 96, 128, 512}, true},  // 1.126
    {"bmm tt", {384, 128, 64, 128}, true},  // 1.222
    {"bmm tt", {16, 4096, 40, 77}, true},  // 1.226
    {"bmm tt", {16, 4096, 40, 4096}, true},  // 1.067
    {"convolution dgrad dense, stride 1", {1, 256, 256, 256, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.963
    {"convolution dgrad dense, stride 1", {3, 256, 293, 293, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.867
    {"convolution dgrad dense, stride 1", {3, 512, 110, 110, 512, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.940
    {"convolution dgrad dense, stride 1", {4, 1280, 16, 28, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.809
    {"convolution dgrad dense, stride 1", {5, 48, 35, 35, 64, 5, 5, 1, 1, 2, 2, 1, 1, 1}, false},  // 0.877
    {"convolution dgrad dense, stride 1", {8, 1280, 16, 16, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.796
    {"convolution dgrad dense, stride 1", {12, 256, 256, 341, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.905
    {"convolution dgrad dense, stride 1", {13, 512, 28, 28, 512, 3, 3, 1, 1, 4, 4, 4, 4, 1}, false},  // 0.952
    {"convolution dgrad dense, stride 1", {14, 640, 64, 64, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.955
    {"convolution dgrad dense, stride 1", {16, 256, 256, 256, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.903
    {"convolution dgrad dense, stride 1", {19, 256, 28, 28, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.877
    {"convolution dgrad dense, stride 1", {38, 256, 28, 28, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.910
    {"convolution dgrad dense, stride 1", {102, 640, 64, 64, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.944
    {"convolution dgrad depthwise, stride 1", {1, 480, 14, 14, 480, 5, 5, 1, 1, 2, 2, 1, 1, 480}, false},  // 0.784
    {"convolution dgrad grouped, stride 1", {64, 1024, 14, 14, 1024, 3, 3, 1, 1, 1, 1, 1, 1, 32}, false},  // 0.878
    {"convolution dgrad grouped, stride 2 or more", {64, 48, 112, 112, 48, 3, 3, 2, 2, 1, 1, 1, 1, 6}, true},  // 3.255
    {"convolution dgrad pointwise, stride 1", {3, 24, 96, 96, 144, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.792
    {"convolution dgrad pointwise, stride 1", {5, 16, 112, 112, 96, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.939
    {"convolution dgrad pointwise, stride 1", {8, 112, 24, 24, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.858
    {"convolution dgrad pointwise, stride 1", {14, 112, 14, 14, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.954
    {"convolution dgrad pointwise, stride 1", {256, 320, 14, 14, 1280, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.868
    {"convolution fprop dense, stride 1", {2, 512, 219, 219, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.959
    {"convolution fprop dense, stride 1", {11, 512, 28, 28, 512, 3, 3, 1, 1, 4, 4, 4, 4, 1}, false},  // 0.939
    {"convolution fprop dense, stride 1", {13, 512, 28, 28, 512, 3, 3, 1, 1, 4, 4, 4, 4, 1}, false},  // 0.953
    {"convolution fprop dense, stride 1", {16, 2560, 16, 21, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.908
    {"convolution fprop dense, stride 1", {64, 128, 56, 100, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.912
    {"convolution fprop dense, stride 1", {221, 256, 14, 25, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.951
    {"convolution fprop dense, stride 2 or more", {2, 320, 73, 98, 320, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.309
    {"convolution fprop dense, stride 2 or more", {4, 128, 112, 112, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.133
    {"convolution fprop dense, stride 2 or more", {5, 320, 128, 171, 320, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.132
    {"convolution fprop dense, stride 2 or more", {7, 96, 112, 112, 192, 2, 2, 2, 2, 0, 0, 1, 1, 1}, true},  // 1.431
    {"convolution fprop dense, stride 2 or more", {64, 128, 56, 56, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.022
    {"convolution fprop dense, stride 2 or more", {64, 512, 14, 14, 512, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.109
    {"convolution fprop dense, stride 2 or more", {128, 320, 64, 85, 320, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.089
    {"convolution fprop dense, stride 2 or more", {173, 96, 56, 56, 192, 2, 2, 2, 2, 0, 0, 1, 1, 1}, true},  // 1.210
    {"convolution fprop grouped, stride 1", {64, 1024, 14, 14, 1024, 3, 3, 1, 1, 1, 1, 1, 1, 32}, false},  // 0.888
    {"convolution fprop grouped, stride 2 or more", {64, 48, 112, 112, 48, 3, 3, 2, 2, 1, 1, 1, 1, 6}, true},  // 1.268
    {"convolution fprop pointwise, stride 1", {5, 24, 56, 56, 144, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.914
    {"convolution fprop pointwise, stride 1", {14, 112, 14, 14, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.960
    {"convolution fprop pointwise, stride 1", {21, 2048, 14, 25, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.891
    {"convolution fprop pointwise, stride 1", {64, 2048, 7, 7, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.958
    {"convolution fprop pointwise, stride 1", {128, 2048, 14, 14, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.943
    {"convolution fprop pointwise, stride 1", {180, 144, 64, 64, 24, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.936
    {"convolution wgrad dense, stride 1", {6, 2560, 18, 24, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.955
    {"convolution wgrad dense, stride 1", {8, 640, 32, 32, 640, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.896
    {"convolution wgrad dense, stride 1", {14, 640, 64, 64, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.859
    {"convolution wgrad dense, stride 1", {16, 2560, 16, 21, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.935
    {"convolution wgrad dense, stride 1", {77, 640, 64, 85, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.937
    {"convolution wgrad dense, stride 1", {102, 640, 64, 64, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.921
    {"convolution wgrad dense, stride 1", {128, 2560, 16, 16, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.964
    {"convolution wgrad dense, stride 1", {256, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.846
    {"convolution wgrad grouped, stride 1", {1, 224, 56, 56, 224, 3, 3, 1, 1, 1, 1, 1, 1, 4}, true},  // 2.339
    {"convolution wgrad grouped, stride 1", {64, 104, 28, 28, 104, 3, 3, 1, 1, 1, 1, 1, 1, 13}, true},  // 2.724
    {"convolution wgrad grouped, stride 1", {64, 224, 56, 56, 224, 3, 3, 1, 1, 1, 1, 1, 1, 4}, true},  // 2.883
    {"convolution wgrad grouped, stride 1", {64, 256, 56, 56, 256, 3, 3, 1, 1, 1, 1, 1, 1, 32}, true},  // 1.428
    {"convolution wgrad grouped, stride 1", {64, 448, 28, 28, 448, 3, 3, 1, 1, 1, 1, 1, 1, 8}, true},  // 2.441
    {"convolution wgrad grouped, stride 1", {64, 512, 28, 28, 512, 3, 3, 1, 1, 1, 1, 1, 1, 32}, true},  // 1.575
    {"convolution wgrad grouped, stride 1", {64, 896, 14, 14, 896, 3, 3, 1, 1, 1, 1, 1, 1, 16}, true},  // 4.184
    {"convolution wgrad grouped, stride 2 or more", {64, 48, 112, 112, 48, 3, 3, 2, 2, 1, 1, 1, 1, 6}, true},  // 1.381
    {"convolution wgrad pointwise, stride 1", {1, 320, 14, 25, 1280, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.514
    {"convolution wgrad pointwise, stride 1", {2, 64, 64, 64, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.221
    {"convolution wgrad pointwise, stride 1", {6, 2048, 8, 11, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.771
    {"convolution wgrad pointwise, stride 1", {8, 112, 24, 24, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.106
    {"convolution wgrad pointwise, stride 1", {8, 320, 14, 25, 1280, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.058
    {"convolution wgrad pointwise, stride 1", {9, 2048, 14, 14, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.102
    {"convolution wgrad pointwise, stride 1", {14, 112, 14, 14, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.180
    {"convolution wgrad pointwise, stride 1", {21, 2048, 14, 25, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.029
    {"convolution wgrad pointwise, stride 1", {32, 16, 112, 112, 96, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.376
    {"convolution wgrad pointwise, stride 1", {40, 64, 64, 114, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.027
    {"convolution wgrad pointwise, stride 1", {64, 64, 56, 56, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.173
    {"convolution wgrad pointwise, stride 1", {64, 256, 56, 56, 64, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.041
    {"convolution wgrad pointwise, stride 1", {64, 1024, 14, 14, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.118
    {"convolution wgrad pointwise, stride 1", {64, 2048, 7, 7, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.074
    {"convolution wgrad pointwise, stride 1", {128, 2048, 14, 14, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.114
    {"convolution wgrad pointwise, stride 1", {180, 144, 64, 64, 24, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.062
    {"mm nt", {1, 384, 24576, 2}, false},  // 1.017
    {"mm nt", {1, 640, 5120, 4955}, true},  // 1.791
    {"mm nt", {1, 1152, 1152, 147}, true},  // 1.086
    {"mm nt", {1, 1152, 4304, 1}, true},  // 1.480
    {"mm nt", {1, 32768, 640, 4128}, false},  // 0.960
    {"mm tn", {1, 2, 384, 24576}, false},  // 0.629
    {"mm tn", {1, 2, 6144, 2584}, false},  // 0.947
    {"mm tn", {1, 64, 4096, 4096}, false},  // 0.957
    {"mm tn", {1, 128, 1024, 7168}, false},  // 0.941
    {"mm tn", {1, 128, 6144, 4096}, false},  // 0.904
    {"mm tn", {1, 128, 8192, 8192}, false},  // 0.956
    {"mm tn", {1, 185, 9728, 3048}, false},  // 0.675
    {"mm tn", {1, 256, 2880, 4096}, false},  // 0.958
    {"mm tn", {1, 256, 4096, 7168}, false},  // 0.953
    {"mm tn", {1, 288, 6144, 1536}, false},  // 0.953
    {"mm tn", {1, 303, 768, 2440}, false},  // 0.877
    {"mm tn", {1, 512, 4096, 14336}, false},  // 0.970
    {"mm tn", {1, 512, 7168, 2048}, false},  // 0.872
    {"mm tn", {1, 610, 6144, 4096}, false},  // 0.941
    {"mm tn", {1, 616, 4608, 5608}, false},  // 0.933
    {"mm tn", {1, 4011, 1600, 24576}, false},  // 0.951
    {"mm tn", {1, 4096, 2112, 7168}, false},  // 0.965
    {"mm tn", {1, 4096, 6144, 4096}, false},  // 0.878
    {"mm tn", {1, 4096, 7168, 2048}, false},  // 0.946
    {"mm tn", {1, 8289, 1112, 3080}, false},  // 0.630
    {"mm tn", {1, 13047, 4096, 28672}, false},  // 0.968
    {"mm tt", {1, 1, 3072, 5120}, true},  // 1.271
    {"mm tt", {1, 1, 4304, 1152}, false},  // 1.005
    {"mm tt", {1, 43, 5120, 32768}, true},  // 1.092
    {"mm tt", {1, 64, 1792, 4096}, true},  // 1.303
    {"mm tt", {1, 128, 4096, 6144}, true},  // 1.083
    {"mm tt", {1, 149, 7168, 4096}, false},  // 0.968
    {"mm tt", {1, 16384, 18432, 7168}, true},  // 1.025
};

constexpr std::int64_t kClassRows[] = {1, 16, 64, 128, 512, 2048};
constexpr std::int64_t kFewChannels = 8;
constexpr int kMeasuredMajor = 9;  // compute capability of H100 and H200

// rows: that the class of the problem is found by; 0: its kind has one class.
inline Measured measured_gain(std::string_view kind, std::int64_t rows,
                              MeasuredExtents const& extents, int major) {
  if (major != kMeasuredMajor) return Measured::nothing;
  auto const verdict = [](bool is_faster) {
    return is_faster ? Measured::faster : Measured::slower;
  };
  for (MeasuredProblem const& p : kMeasuredProblems) {
    if (p.kind == kind && p.extents == extents) return verdict(p.is_faster);
  }
  std::int64_t most = 0;
  for (std::int64_t const step : kClassRows) {
    if (rows == 0 || rows > step) continue;
    most = step;
    break;
  }
  for (MeasuredClass const& c : kMeasuredClasses) {
    if (c.kind == kind && c.rows == most) return verdict(c.is_faster);
  }
  return Measured::nothing;
}

}  // namespace cutwheel
