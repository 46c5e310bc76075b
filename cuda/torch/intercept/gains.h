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
    {"_grouped_mm nt", 1, true},  // 10 problems, mean 1.159, a fifth up to 1.015
    {"_grouped_mm nt", 16, false},  // 14 problems, mean 1.132, a fifth up to 0.961
    {"_grouped_mm nt", 64, true},  // 7 problems, mean 1.175, a fifth up to 1.066
    {"_grouped_mm nt", 128, true},  // 9 problems, mean 1.140, a fifth up to 1.006
    {"_grouped_mm nt", 512, false},  // 13 problems, mean 1.038, a fifth up to 0.932
    {"_grouped_mm nt", 2048, false},  // 4 problems, mean 1.020, a fifth up to 0.856
    {"_grouped_mm nt", 0, false},  // 3 problems, mean 1.011, a fifth up to 0.985
    {"_grouped_mm tn", 1, true},  // 11 problems, mean 1.170, a fifth up to 1.097
    {"_grouped_mm tn", 16, true},  // 15 problems, mean 1.167, a fifth up to 1.105
    {"_grouped_mm tn", 64, true},  // 8 problems, mean 1.210, a fifth up to 1.044
    {"_grouped_mm tn", 128, true},  // 11 problems, mean 1.157, a fifth up to 1.105
    {"_grouped_mm tn", 512, true},  // 13 problems, mean 1.058, a fifth up to 0.972
    {"_grouped_mm tn", 2048, true},  // 4 problems, mean 1.125, a fifth up to 1.052
    {"_grouped_mm tn", 0, false},  // 3 problems, mean 0.931, a fifth up to 0.835
    {"_grouped_mm tt", 1, true},  // 11 problems, mean 1.114, a fifth up to 1.079
    {"_grouped_mm tt", 16, true},  // 15 problems, mean 1.152, a fifth up to 1.066
    {"_grouped_mm tt", 64, true},  // 8 problems, mean 1.208, a fifth up to 1.081
    {"_grouped_mm tt", 128, true},  // 11 problems, mean 1.164, a fifth up to 1.072
    {"_grouped_mm tt", 512, false},  // 13 problems, mean 1.042, a fifth up to 0.970
    {"_grouped_mm tt", 2048, true},  // 4 problems, mean 1.167, a fifth up to 1.014
    {"_grouped_mm tt", 0, false},  // 3 problems, mean 0.968, a fifth up to 0.870
    {"_scaled_grouped_mm rowwise", 1, true},  // 11 problems, mean 1.275, a fifth up to 1.229
    {"_scaled_grouped_mm rowwise", 16, true},  // 15 problems, mean 1.262, a fifth up to 1.190
    {"_scaled_grouped_mm rowwise", 64, true},  // 8 problems, mean 1.366, a fifth up to 1.115
    {"_scaled_grouped_mm rowwise", 128, true},  // 11 problems, mean 1.244, a fifth up to 1.113
    {"_scaled_grouped_mm rowwise", 512, true},  // 13 problems, mean 1.599, a fifth up to 1.173
    {"_scaled_grouped_mm rowwise", 2048, true},  // 4 problems, mean 1.664, a fifth up to 1.121
    {"_scaled_grouped_mm rowwise", 0, true},  // 3 problems, mean 1.202, a fifth up to 1.131
    {"_scaled_grouped_mm rowwise fast", 1, true},  // 11 problems, mean 1.202, a fifth up to 1.143
    {"_scaled_grouped_mm rowwise fast", 16, true},  // 15 problems, mean 1.160, a fifth up to 1.111
    {"_scaled_grouped_mm rowwise fast", 64, true},  // 8 problems, mean 1.164, a fifth up to 1.066
    {"_scaled_grouped_mm rowwise fast", 128, true},  // 11 problems, mean 1.118, a fifth up to 1.065
    {"_scaled_grouped_mm rowwise fast", 512, true},  // 13 problems, mean 1.392, a fifth up to 1.118
    {"_scaled_grouped_mm rowwise fast", 2048, true},  // 4 problems, mean 1.293, a fifth up to 1.076
    {"_scaled_grouped_mm rowwise fast", 0, true},  // 3 problems, mean 1.039, a fifth up to 1.024
    {"_scaled_mm 1x128 x 128x128", 16, true},  // 24 problems, mean 1.417, a fifth up to 1.096
    {"_scaled_mm 1x128 x 128x128", 64, true},  // 16 problems, mean 1.408, a fifth up to 1.139
    {"_scaled_mm 1x128 x 128x128", 128, true},  // 17 problems, mean 1.320, a fifth up to 1.046
    {"_scaled_mm 1x128 x 128x128", 512, true},  // 35 problems, mean 1.157, a fifth up to 1.030
    {"_scaled_mm 1x128 x 128x128", 2048, true},  // 28 problems, mean 1.078, a fifth up to 1.020
    {"_scaled_mm 1x128 x 128x128", 0, false},  // 34 problems, mean 0.999, a fifth up to 0.961
    {"_scaled_mm 1x128 x 1x128", 1, true},  // 23 problems, mean 1.460, a fifth up to 1.219
    {"_scaled_mm 1x128 x 1x128", 16, true},  // 25 problems, mean 1.077, a fifth up to 1.006
    {"_scaled_mm 1x128 x 1x128", 64, false},  // 18 problems, mean 1.005, a fifth up to 0.926
    {"_scaled_mm 1x128 x 1x128", 128, false},  // 18 problems, mean 1.027, a fifth up to 0.945
    {"_scaled_mm 1x128 x 1x128", 512, false},  // 39 problems, mean 1.012, a fifth up to 0.977
    {"_scaled_mm 1x128 x 1x128", 2048, false},  // 30 problems, mean 0.999, a fifth up to 0.915
    {"_scaled_mm 1x128 x 1x128", 0, false},  // 39 problems, mean 1.002, a fifth up to 0.958
    {"_scaled_mm rowwise", 1, true},  // 23 problems, mean 1.916, a fifth up to 1.563
    {"_scaled_mm rowwise", 16, true},  // 52 problems, mean 2.120, a fifth up to 1.583
    {"_scaled_mm rowwise", 64, true},  // 26 problems, mean 1.669, a fifth up to 1.369
    {"_scaled_mm rowwise", 128, true},  // 22 problems, mean 1.508, a fifth up to 1.140
    {"_scaled_mm rowwise", 512, true},  // 48 problems, mean 1.298, a fifth up to 1.005
    {"_scaled_mm rowwise", 2048, true},  // 40 problems, mean 1.225, a fifth up to 1.010
    {"_scaled_mm rowwise", 0, true},  // 53 problems, mean 1.064, a fifth up to 0.983
    {"_scaled_mm rowwise fast", 1, true},  // 23 problems, mean 1.706, a fifth up to 1.322
    {"_scaled_mm rowwise fast", 16, true},  // 52 problems, mean 1.952, a fifth up to 1.304
    {"_scaled_mm rowwise fast", 64, true},  // 26 problems, mean 1.561, a fifth up to 1.222
    {"_scaled_mm rowwise fast", 128, true},  // 22 problems, mean 1.476, a fifth up to 1.121
    {"_scaled_mm rowwise fast", 512, true},  // 48 problems, mean 1.240, a fifth up to 1.002
    {"_scaled_mm rowwise fast", 2048, true},  // 40 problems, mean 1.190, a fifth up to 1.001
    {"_scaled_mm rowwise fast", 0, false},  // 53 problems, mean 1.018, a fifth up to 0.956
    {"_scaled_mm tensorwise", 1, true},  // 23 problems, mean 1.117, a fifth up to 1.031
    {"_scaled_mm tensorwise", 16, true},  // 52 problems, mean 1.205, a fifth up to 1.049
    {"_scaled_mm tensorwise", 64, true},  // 26 problems, mean 1.104, a fifth up to 1.034
    {"_scaled_mm tensorwise", 128, true},  // 22 problems, mean 1.042, a fifth up to 1.011
    {"_scaled_mm tensorwise", 512, false},  // 48 problems, mean 1.031, a fifth up to 0.952
    {"_scaled_mm tensorwise", 2048, false},  // 40 problems, mean 1.031, a fifth up to 0.957
    {"_scaled_mm tensorwise", 0, false},  // 53 problems, mean 0.969, a fifth up to 0.925
    {"_scaled_mm tensorwise fast", 1, true},  // 23 problems, mean 1.127, a fifth up to 1.032
    {"_scaled_mm tensorwise fast", 16, true},  // 52 problems, mean 1.214, a fifth up to 1.061
    {"_scaled_mm tensorwise fast", 64, true},  // 26 problems, mean 1.102, a fifth up to 1.029
    {"_scaled_mm tensorwise fast", 128, true},  // 22 problems, mean 1.030, a fifth up to 0.990
    {"_scaled_mm tensorwise fast", 512, false},  // 48 problems, mean 1.021, a fifth up to 0.946
    {"_scaled_mm tensorwise fast", 2048, true},  // 40 problems, mean 1.042, a fifth up to 0.978
    {"_scaled_mm tensorwise fast", 0, false},  // 53 problems, mean 1.002, a fifth up to 0.946
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
    {"mm nt", 512, true},  // 7 problems, mean 1.228, a fifth up to 1.017
    {"mm nt", 2048, false},  // 47 problems, mean 1.055, a fifth up to 0.942
    {"mm nt", 0, true},  // 98 problems, mean 1.107, a fifth up to 0.986
    {"mm tn", 1, true},  // 24 problems, mean 1.119, a fifth up to 1.040
    {"mm tn", 16, true},  // 67 problems, mean 1.171, a fifth up to 1.068
    {"mm tn", 64, true},  // 26 problems, mean 1.108, a fifth up to 1.045
    {"mm tn", 128, true},  // 26 problems, mean 1.056, a fifth up to 1.015
    {"mm tn", 512, false},  // 56 problems, mean 1.019, a fifth up to 0.963
    {"mm tn", 2048, true},  // 45 problems, mean 1.056, a fifth up to 0.986
    {"mm tn", 0, false},  // 59 problems, mean 0.995, a fifth up to 0.958
    {"mm tt", 1, true},  // 10 problems, mean 1.150, a fifth up to 1.088
    {"mm tt", 16, true},  // 46 problems, mean 1.153, a fifth up to 0.985
    {"mm tt", 64, true},  // 13 problems, mean 1.135, a fifth up to 1.042
    {"mm tt", 128, true},  // 12 problems, mean 1.039, a fifth up to 1.000
    {"mm tt", 512, false},  // 26 problems, mean 1.020, a fifth up to 0.917
    {"mm tt", 2048, false},  // 24 problems, mean 0.973, a fifth up to 0.909
    {"mm tt", 0, false},  // 27 problems, mean 0.978, a fifth up to 0.932
};

// Problems that differ from their class, or have none.
constexpr MeasuredProblem kMeasuredProblems[] = {
    {"_grouped_mm nt", {256, 7168, 2048, 256}, false},  // 0.940
    {"_grouped_mm nt", {60, 2816, 2048, 128}, true},  // 1.176
    {"_grouped_mm nt", {8, 28672, 4096, 33}, true},  // 1.039
    {"_grouped_mm nt", {32, 2880, 2880, 159}, true},  // 1.231
    {"_grouped_mm nt", {128, 2048, 768, 627}, true},  // 1.302
    {"_grouped_mm nt", {64, 2048, 1408, 432}, true},  // 1.410
    {"_grouped_mm nt", {128, 1536, 2048, 1109}, true},  // 1.199
    {"_grouped_mm nt", {16, 1024, 6144, 156}, true},  // 1.523
    {"_grouped_mm nt", {128, 1536, 2048, 1400}, true},  // 1.233
    {"_grouped_mm nt", {128, 1536, 2048, 1812}, true},  // 1.147
    {"_grouped_mm nt", {160, 3072, 5120, 11982}, false},  // 0.958
    {"_grouped_mm nt", {60, 768, 2880, 9344}, true},  // 1.135
    {"_grouped_mm nt", {32, 5760, 2880, 6296}, true},  // 1.031
    {"_grouped_mm nt", {160, 3072, 5120, 32768}, true},  // 1.109
    {"_grouped_mm nt", {8, 28672, 4096, 1681}, true},  // 1.078
    {"_grouped_mm nt", {8, 4096, 14336, 2016}, true},  // 1.026
    {"_grouped_mm nt", {64, 2048, 1408, 16615}, true},  // 1.200
    {"_grouped_mm nt", {8, 28672, 4096, 4096}, true},  // 1.102
    {"_grouped_mm nt", {32, 2880, 2880, 16384}, true},  // 1.102
    {"_grouped_mm nt", {4, 2880, 2560, 2939}, true},  // 1.145
    {"_grouped_mm nt", {16, 1408, 5120, 15309}, true},  // 1.134
    {"_grouped_mm nt", {8, 28672, 4096, 17489}, true},  // 1.046
    {"_grouped_mm tn", {8, 2048, 4096, 14336}, false},  // 0.925
    {"_grouped_mm tt", {60, 9344, 2880, 768}, true},  // 1.333
    {"_grouped_mm tt", {32, 6296, 2880, 5760}, true},  // 1.106
    {"_grouped_mm tt", {64, 14933, 1408, 2048}, true},  // 1.028
    {"_grouped_mm tt", {8, 2048, 14336, 4096}, true},  // 1.135
    {"_grouped_mm tt", {64, 16615, 1408, 2048}, true},  // 1.055
    {"_grouped_mm tt", {32, 14608, 2880, 5760}, true},  // 1.139
    {"_grouped_mm tt", {4, 32768, 7168, 4096}, true},  // 1.027
    {"_scaled_mm 1x128 x 128x128", {1, 4, 384, 24576}, false},  // 0.562
    {"_scaled_mm 1x128 x 128x128", {1, 64, 10240, 8192}, false},  // 0.963
    {"_scaled_mm 1x128 x 128x128", {1, 128, 57344, 8192}, false},  // 0.953
    {"_scaled_mm 1x128 x 128x128", {1, 256, 128256, 4096}, false},  // 0.902
    {"_scaled_mm 1x128 x 128x128", {1, 512, 2112, 7168}, false},  // 0.967
    {"_scaled_mm 1x128 x 128x128", {1, 512, 4096, 14336}, false},  // 0.955
    {"_scaled_mm 1x128 x 128x128", {1, 784, 32768, 5120}, false},  // 0.969
    {"_scaled_mm 1x128 x 128x128", {1, 3244, 7168, 18432}, true},  // 1.040
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
    {"_scaled_mm 1x128 x 1x128", {1, 4, 384, 24576}, false},  // 0.919
    {"_scaled_mm 1x128 x 1x128", {1, 16, 2112, 7168}, false},  // 0.955
    {"_scaled_mm 1x128 x 1x128", {1, 32, 1280, 5120}, true},  // 1.212
    {"_scaled_mm 1x128 x 1x128", {1, 32, 24576, 1536}, true},  // 1.027
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
    {"_scaled_mm 1x128 x 1x128", {1, 128, 9216, 3072}, true},  // 1.302
    {"_scaled_mm 1x128 x 1x128", {1, 128, 10240, 8192}, true},  // 1.290
    {"_scaled_mm 1x128 x 1x128", {1, 128, 24576, 1536}, true},  // 1.125
    {"_scaled_mm 1x128 x 1x128", {1, 208, 1024, 4096}, true},  // 1.070
    {"_scaled_mm 1x128 x 1x128", {1, 224, 5120, 1280}, true},  // 1.035
    {"_scaled_mm 1x128 x 1x128", {1, 256, 4096, 4096}, true},  // 1.059
    {"_scaled_mm 1x128 x 1x128", {1, 256, 4096, 7168}, true},  // 1.044
    {"_scaled_mm 1x128 x 1x128", {1, 256, 4096, 14336}, true},  // 1.042
    {"_scaled_mm 1x128 x 1x128", {1, 256, 6144, 4096}, true},  // 1.238
    {"_scaled_mm 1x128 x 1x128", {1, 256, 10240, 8192}, true},  // 1.361
    {"_scaled_mm 1x128 x 1x128", {1, 256, 24576, 1536}, true},  // 1.036
    {"_scaled_mm 1x128 x 1x128", {1, 512, 512, 512}, true},  // 1.408
    {"_scaled_mm 1x128 x 1x128", {1, 512, 1280, 2560}, true},  // 1.089
    {"_scaled_mm 1x128 x 1x128", {1, 512, 4096, 512}, true},  // 1.123
    {"_scaled_mm 1x128 x 1x128", {1, 512, 6144, 4096}, true},  // 1.234
    {"_scaled_mm 1x128 x 1x128", {1, 604, 1536, 4096}, true},  // 1.096
    {"_scaled_mm 1x128 x 1x128", {1, 704, 4096, 7168}, true},  // 1.319
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 1024, 1024}, true},  // 1.103
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 2304, 768}, true},  // 1.372
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 16384, 512}, true},  // 1.086
    {"_scaled_mm 1x128 x 1x128", {1, 1584, 3584, 4096}, true},  // 1.359
    {"_scaled_mm 1x128 x 1x128", {1, 2064, 32768, 5120}, true},  // 1.326
    {"_scaled_mm 1x128 x 1x128", {1, 2384, 768, 384}, true},  // 1.091
    {"_scaled_mm 1x128 x 1x128", {1, 4096, 768, 24576}, true},  // 1.266
    {"_scaled_mm 1x128 x 1x128", {1, 4128, 32768, 640}, true},  // 1.093
    {"_scaled_mm 1x128 x 1x128", {1, 5052, 6144, 4096}, true},  // 1.242
    {"_scaled_mm 1x128 x 1x128", {1, 6496, 2048, 256}, true},  // 1.334
    {"_scaled_mm rowwise", {1, 256, 128256, 4096}, false},  // 0.963
    {"_scaled_mm rowwise", {1, 512, 4096, 14336}, false},  // 0.966
    {"_scaled_mm rowwise", {1, 1024, 4096, 4096}, false},  // 0.929
    {"_scaled_mm rowwise", {1, 1024, 4096, 14336}, false},  // 0.956
    {"_scaled_mm rowwise", {1, 4096, 8192, 8192}, false},  // 0.938
    {"_scaled_mm rowwise", {1, 8192, 4096, 14336}, false},  // 0.956
    {"_scaled_mm rowwise", {1, 13047, 4096, 28672}, false},  // 0.945
    {"_scaled_mm rowwise fast", {1, 465, 8192, 8192}, false},  // 0.933
    {"_scaled_mm rowwise fast", {1, 512, 4096, 7168}, false},  // 0.888
    {"_scaled_mm rowwise fast", {1, 512, 4096, 14336}, false},  // 0.937
    {"_scaled_mm rowwise fast", {1, 880, 9216, 4608}, false},  // 0.924
    {"_scaled_mm rowwise fast", {1, 2048, 1024, 8192}, false},  // 0.941
    {"_scaled_mm rowwise fast", {1, 2102, 24576, 1536}, true},  // 1.083
    {"_scaled_mm rowwise fast", {1, 2384, 768, 384}, true},  // 1.242
    {"_scaled_mm rowwise fast", {1, 2758, 448, 2560}, true},  // 1.309
    {"_scaled_mm rowwise fast", {1, 3244, 7168, 18432}, true},  // 1.028
    {"_scaled_mm rowwise fast", {1, 4011, 1600, 24576}, true},  // 1.108
    {"_scaled_mm rowwise fast", {1, 4051, 768, 384}, true},  // 1.415
    {"_scaled_mm rowwise fast", {1, 4096, 768, 24576}, true},  // 1.322
    {"_scaled_mm rowwise fast", {1, 4096, 2112, 7168}, true},  // 1.085
    {"_scaled_mm rowwise fast", {1, 4128, 32768, 640}, true},  // 1.030
    {"_scaled_mm rowwise fast", {1, 4158, 1152, 1152}, true},  // 1.308
    {"_scaled_mm rowwise fast", {1, 5118, 4608, 448}, true},  // 1.162
    {"_scaled_mm rowwise fast", {1, 6183, 2880, 4096}, true},  // 1.222
    {"_scaled_mm rowwise fast", {1, 6496, 2048, 256}, true},  // 1.387
    {"_scaled_mm rowwise fast", {1, 8192, 2112, 7168}, true},  // 1.036
    {"_scaled_mm rowwise fast", {1, 15654, 768, 2048}, true},  // 1.054
    {"_scaled_mm tensorwise", {1, 1, 4096, 4096}, false},  // 0.915
    {"_scaled_mm tensorwise", {1, 2, 384, 24576}, false},  // 0.617
    {"_scaled_mm tensorwise", {1, 64, 1152, 4304}, false},  // 0.744
    {"_scaled_mm tensorwise", {1, 64, 4096, 4096}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 64, 4096, 14336}, false},  // 0.961
    {"_scaled_mm tensorwise", {1, 96, 1152, 4304}, false},  // 0.855
    {"_scaled_mm tensorwise", {1, 128, 1792, 18432}, false},  // 0.930
    {"_scaled_mm tensorwise", {1, 128, 8192, 28672}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 147, 1152, 1152}, true},  // 1.437
    {"_scaled_mm tensorwise", {1, 165, 32768, 640}, true},  // 1.031
    {"_scaled_mm tensorwise", {1, 200, 2880, 4096}, true},  // 1.145
    {"_scaled_mm tensorwise", {1, 206, 640, 1280}, true},  // 1.358
    {"_scaled_mm tensorwise", {1, 208, 1024, 4096}, true},  // 1.336
    {"_scaled_mm tensorwise", {1, 224, 5120, 1280}, true},  // 1.136
    {"_scaled_mm tensorwise", {1, 225, 5120, 1536}, true},  // 1.105
    {"_scaled_mm tensorwise", {1, 256, 2112, 7168}, true},  // 1.046
    {"_scaled_mm tensorwise", {1, 256, 4096, 4096}, true},  // 1.085
    {"_scaled_mm tensorwise", {1, 256, 4096, 7168}, true},  // 1.065
    {"_scaled_mm tensorwise", {1, 256, 4096, 14336}, true},  // 1.040
    {"_scaled_mm tensorwise", {1, 256, 6144, 4096}, true},  // 1.024
    {"_scaled_mm tensorwise", {1, 256, 10240, 8192}, true},  // 1.041
    {"_scaled_mm tensorwise", {1, 256, 24576, 1536}, true},  // 1.070
    {"_scaled_mm tensorwise", {1, 270, 4096, 4096}, true},  // 1.068
    {"_scaled_mm tensorwise", {1, 288, 6144, 1536}, true},  // 1.066
    {"_scaled_mm tensorwise", {1, 512, 512, 512}, true},  // 1.523
    {"_scaled_mm tensorwise", {1, 512, 1280, 2560}, true},  // 1.094
    {"_scaled_mm tensorwise", {1, 512, 4096, 512}, true},  // 1.207
    {"_scaled_mm tensorwise", {1, 512, 6144, 4096}, true},  // 1.021
    {"_scaled_mm tensorwise", {1, 512, 24576, 1536}, true},  // 1.042
    {"_scaled_mm tensorwise", {1, 539, 384, 2048}, true},  // 1.333
    {"_scaled_mm tensorwise", {1, 604, 1536, 4096}, true},  // 1.244
    {"_scaled_mm tensorwise", {1, 704, 4096, 7168}, true},  // 1.281
    {"_scaled_mm tensorwise", {1, 718, 3072, 960}, true},  // 1.067
    {"_scaled_mm tensorwise", {1, 728, 1024, 8192}, true},  // 1.110
    {"_scaled_mm tensorwise", {1, 765, 8192, 1024}, true},  // 1.102
    {"_scaled_mm tensorwise", {1, 880, 9216, 4608}, true},  // 1.025
    {"_scaled_mm tensorwise", {1, 1024, 1024, 1024}, true},  // 1.203
    {"_scaled_mm tensorwise", {1, 1024, 6144, 4096}, true},  // 1.054
    {"_scaled_mm tensorwise", {1, 1024, 7168, 2048}, true},  // 1.024
    {"_scaled_mm tensorwise", {1, 1024, 16384, 512}, true},  // 1.121
    {"_scaled_mm tensorwise", {1, 1045, 768, 3072}, true},  // 1.174
    {"_scaled_mm tensorwise", {1, 1584, 3584, 4096}, true},  // 1.210
    {"_scaled_mm tensorwise", {1, 1690, 7168, 256}, true},  // 1.208
    {"_scaled_mm tensorwise", {1, 1915, 3072, 1024}, true},  // 1.173
    {"_scaled_mm tensorwise", {1, 2384, 768, 384}, true},  // 1.168
    {"_scaled_mm tensorwise", {1, 2758, 448, 2560}, true},  // 1.110
    {"_scaled_mm tensorwise", {1, 4051, 768, 384}, true},  // 1.180
    {"_scaled_mm tensorwise", {1, 4096, 768, 24576}, true},  // 1.052
    {"_scaled_mm tensorwise", {1, 5118, 4608, 448}, true},  // 1.025
    {"_scaled_mm tensorwise", {1, 6183, 2880, 4096}, true},  // 1.028
    {"_scaled_mm tensorwise", {1, 6496, 2048, 256}, true},  // 1.268
    {"_scaled_mm tensorwise", {1, 8192, 2112, 7168}, true},  // 1.052
    {"_scaled_mm tensorwise fast", {1, 2, 384, 24576}, false},  // 0.623
    {"_scaled_mm tensorwise fast", {1, 64, 1152, 4304}, false},  // 0.762
    {"_scaled_mm tensorwise fast", {1, 64, 4096, 14336}, false},  // 0.956
    {"_scaled_mm tensorwise fast", {1, 96, 1152, 4304}, false},  // 0.873
    {"_scaled_mm tensorwise fast", {1, 128, 1792, 18432}, false},  // 0.916
    {"_scaled_mm tensorwise fast", {1, 128, 7168, 16384}, false},  // 0.941
    {"_scaled_mm tensorwise fast", {1, 128, 8192, 28672}, false},  // 0.969
    {"_scaled_mm tensorwise fast", {1, 147, 1152, 1152}, true},  // 1.429
    {"_scaled_mm tensorwise fast", {1, 200, 2880, 4096}, true},  // 1.051
    {"_scaled_mm tensorwise fast", {1, 206, 640, 1280}, true},  // 1.380
    {"_scaled_mm tensorwise fast", {1, 208, 1024, 4096}, true},  // 1.327
    {"_scaled_mm tensorwise fast", {1, 224, 5120, 1280}, true},  // 1.076
    {"_scaled_mm tensorwise fast", {1, 225, 5120, 1536}, true},  // 1.071
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 4096}, true},  // 1.099
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 7168}, true},  // 1.061
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 14336}, true},  // 1.038
    {"_scaled_mm tensorwise fast", {1, 256, 24576, 1536}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 256, 28672, 4096}, true},  // 1.074
    {"_scaled_mm tensorwise fast", {1, 256, 128256, 4096}, true},  // 1.027
    {"_scaled_mm tensorwise fast", {1, 348, 4304, 1152}, true},  // 1.113
    {"_scaled_mm tensorwise fast", {1, 512, 512, 512}, true},  // 1.497
    {"_scaled_mm tensorwise fast", {1, 512, 1280, 2560}, true},  // 1.021
    {"_scaled_mm tensorwise fast", {1, 512, 4096, 512}, true},  // 1.171
    {"_scaled_mm tensorwise fast", {1, 512, 24576, 1536}, true},  // 1.167
    {"_scaled_mm tensorwise fast", {1, 512, 57344, 8192}, true},  // 1.025
    {"_scaled_mm tensorwise fast", {1, 624, 4096, 14336}, false},  // 0.941
    {"_scaled_mm tensorwise fast", {1, 784, 32768, 5120}, false},  // 0.964
    {"_scaled_mm tensorwise fast", {1, 880, 9216, 4608}, false},  // 0.957
    {"_scaled_mm tensorwise fast", {1, 909, 5120, 16384}, false},  // 0.952
    {"_scaled_mm tensorwise fast", {1, 1584, 3584, 4096}, false},  // 0.903
    {"_scaled_mm tensorwise fast", {1, 1915, 3072, 1024}, false},  // 0.921
    {"_scaled_mm tensorwise fast", {1, 2048, 1024, 8192}, false},  // 0.945
    {"_scaled_mm tensorwise fast", {1, 2048, 5120, 720}, false},  // 0.847
    {"_scaled_mm tensorwise fast", {1, 2102, 24576, 1536}, true},  // 1.032
    {"_scaled_mm tensorwise fast", {1, 2384, 768, 384}, true},  // 1.174
    {"_scaled_mm tensorwise fast", {1, 2758, 448, 2560}, true},  // 1.068
    {"_scaled_mm tensorwise fast", {1, 4051, 768, 384}, true},  // 1.200
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
    {"_scaled_mm tensorwise fast", {1, 5052, 6144, 4096}, true},  // 1.023
    {"_scaled_mm tensorwise fast", {1, 5118, 4608, 448}, true},  // 1.125
    {"_scaled_mm tensorwise fast", {1, 6144, 3072, 3072}, true},  // 1.064
    {"_scaled_mm tensorwise fast", {1, 8192, 2112, 7168}, true},  // 1.051
    {"_scaled_mm tensorwise fast", {1, 8192, 4096, 4096}, true},  // 1.063
    {"_scaled_mm tensorwise fast", {1, 8192, 4096, 7168}, true},  // 1.027
    {"_scaled_mm tensorwise fast", {1, 8192, 7168, 2048}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 8192, 8192, 28672}, true},  // 1.024
    {"_scaled_mm tensorwise fast", {1, 8192, 24576, 1536}, true},  // 1.166
    {"_scaled_mm tensorwise fast", {1, 8192, 28672, 4096}, true},  // 1.078
    {"_scaled_mm tensorwise fast", {1, 8192, 57344, 8192}, true},  // 1.050
    {"_scaled_mm tensorwise fast", {1, 15654, 768, 2048}, true},  // 1.112
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
    {"mm nt", {1, 640, 1280, 2}, true},  // 1.062
    {"mm nt", {1, 640, 1280, 206}, true},  // 1.292
    {"mm nt", {1, 720, 4096, 4}, true},  // 1.053
    {"mm nt", {1, 720, 4096, 8}, true},  // 1.051
    {"mm nt", {1, 768, 2048, 1}, true},  // 1.255
    {"mm nt", {1, 768, 2048, 15654}, true},  // 1.198
    {"mm nt", {1, 768, 3072, 5}, true},  // 1.033
    {"mm nt", {1, 1000, 512, 4}, true},  // 1.052
    {"mm nt", {1, 1000, 512, 215}, true},  // 1.134
    {"mm nt", {1, 1000, 2048, 5}, true},  // 1.150
    {"mm nt", {1, 1024, 4096, 208}, true},  // 1.170
    {"mm nt", {1, 1024, 7168, 4}, true},  // 1.223
    {"mm nt", {1, 1024, 8192, 2048}, true},  // 1.055
    {"mm nt", {1, 1056, 7168, 1}, true},  // 1.728
    {"mm nt", {1, 1152, 1152, 2}, true},  // 1.030
    {"mm nt", {1, 1152, 1152, 147}, true},  // 1.086
    {"mm nt", {1, 1152, 4304, 13}, true},  // 1.099
    {"mm nt", {1, 1152, 4304, 64}, true},  // 1.190
    {"mm nt", {1, 1152, 4304, 96}, true},  // 1.090
    {"mm nt", {1, 1152, 4304, 212}, true},  // 1.044
    {"mm nt", {1, 1280, 2560, 1}, true},  // 1.634
    {"mm nt", {1, 1280, 2560, 512}, true},  // 1.048
    {"mm nt", {1, 1280, 5120, 32}, true},  // 1.146
    {"mm nt", {1, 1536, 3072, 236}, true},  // 1.039
    {"mm nt", {1, 1536, 6144, 66}, true},  // 1.076
    {"mm nt", {1, 1792, 18432, 128}, true},  // 1.128
    {"mm nt", {1, 2048, 8192, 4}, true},  // 1.148
    {"mm nt", {1, 2048, 8192, 9}, true},  // 1.161
    {"mm nt", {1, 2048, 8192, 621}, true},  // 1.144
    {"mm nt", {1, 2880, 4096, 6183}, false},  // 0.884
    {"mm nt", {1, 3072, 1024, 1915}, false},  // 0.843
    {"mm nt", {1, 3584, 2048, 4}, false},  // 0.959
    {"mm nt", {1, 3584, 4096, 1584}, false},  // 0.955
    {"mm nt", {1, 4304, 1152, 2}, false},  // 0.902
    {"mm nt", {1, 4304, 1152, 348}, false},  // 0.925
    {"mm nt", {1, 4608, 448, 5118}, false},  // 0.799
    {"mm nt", {1, 5120, 720, 2048}, false},  // 0.897
    {"mm nt", {1, 5120, 16384, 909}, false},  // 0.895
    {"mm nt", {1, 5120, 16384, 979}, false},  // 0.905
    {"mm nt", {1, 6144, 4096, 5052}, false},  // 0.913
    {"mm nt", {1, 7168, 18432, 3244}, false},  // 0.929
    {"mm nt", {1, 8192, 8192, 465}, false},  // 0.906
    {"mm nt", {1, 16384, 512, 1024}, false},  // 0.950
    {"mm nt", {1, 32768, 640, 4128}, false},  // 0.960
    {"mm nt", {1, 32768, 5120, 784}, false},  // 0.959
    {"mm tn", {1, 2, 384, 24576}, false},  // 0.629
    {"mm tn", {1, 2, 6144, 2584}, false},  // 0.947
    {"mm tn", {1, 64, 4096, 4096}, false},  // 0.957
    {"mm tn", {1, 96, 1152, 4304}, false},  // 0.890
    {"mm tn", {1, 128, 6144, 4096}, false},  // 0.904
    {"mm tn", {1, 128, 8192, 8192}, false},  // 0.956
    {"mm tn", {1, 147, 1152, 1152}, true},  // 1.425
    {"mm tn", {1, 206, 640, 1280}, true},  // 1.222
    {"mm tn", {1, 208, 1024, 4096}, true},  // 1.279
    {"mm tn", {1, 215, 1000, 512}, true},  // 1.368
    {"mm tn", {1, 224, 5120, 1280}, true},  // 1.049
    {"mm tn", {1, 225, 5120, 1536}, true},  // 1.057
    {"mm tn", {1, 240, 5120, 2880}, true},  // 1.034
    {"mm tn", {1, 256, 4096, 4096}, true},  // 1.068
    {"mm tn", {1, 256, 4096, 14336}, true},  // 1.153
    {"mm tn", {1, 256, 8192, 28672}, true},  // 1.069
    {"mm tn", {1, 256, 10240, 8192}, true},  // 1.057
    {"mm tn", {1, 256, 24576, 1536}, true},  // 1.095
    {"mm tn", {1, 256, 28672, 4096}, true},  // 1.115
    {"mm tn", {1, 256, 128256, 4096}, true},  // 1.028
    {"mm tn", {1, 270, 4096, 4096}, true},  // 1.037
    {"mm tn", {1, 512, 512, 512}, true},  // 1.429
    {"mm tn", {1, 512, 1000, 2048}, true},  // 1.158
    {"mm tn", {1, 512, 1280, 2560}, true},  // 1.046
    {"mm tn", {1, 512, 4096, 512}, true},  // 1.142
    {"mm tn", {1, 512, 24576, 1536}, true},  // 1.107
    {"mm tn", {1, 512, 32064, 3072}, true},  // 1.051
    {"mm tn", {1, 616, 4608, 5608}, false},  // 0.933
    {"mm tn", {1, 768, 3072, 3072}, false},  // 0.930
    {"mm tn", {1, 909, 5120, 16384}, false},  // 0.951
    {"mm tn", {1, 1024, 12288, 6144}, false},  // 0.951
    {"mm tn", {1, 1584, 3584, 4096}, false},  // 0.965
    {"mm tn", {1, 2048, 5120, 720}, false},  // 0.931
    {"mm tn", {1, 2257, 7168, 2048}, true},  // 1.036
    {"mm tn", {1, 2384, 768, 384}, true},  // 1.171
    {"mm tn", {1, 2758, 448, 2560}, true},  // 1.051
    {"mm tn", {1, 3520, 201088, 2880}, true},  // 1.029
    {"mm tn", {1, 3838, 24552, 6656}, true},  // 1.021
    {"mm tn", {1, 4051, 768, 384}, true},  // 1.073
    {"mm tn", {1, 4096, 24576, 1536}, true},  // 1.080
    {"mm tn", {1, 4096, 28672, 4096}, true},  // 1.030
    {"mm tn", {1, 4096, 57344, 8192}, true},  // 1.030
    {"mm tn", {1, 4128, 32768, 640}, true},  // 1.020
    {"mm tn", {1, 4144, 16384, 2048}, true},  // 1.027
    {"mm tn", {1, 5118, 4608, 448}, true},  // 1.226
    {"mm tn", {1, 6496, 2048, 256}, true},  // 1.152
    {"mm tn", {1, 8192, 4096, 4096}, true},  // 1.031
    {"mm tn", {1, 8192, 4304, 1152}, true},  // 1.155
    {"mm tn", {1, 8192, 7168, 2048}, true},  // 1.050
    {"mm tn", {1, 8192, 8192, 28672}, true},  // 1.030
    {"mm tn", {1, 8192, 24576, 1536}, true},  // 1.065
    {"mm tn", {1, 8192, 28672, 4096}, true},  // 1.033
    {"mm tn", {1, 15654, 768, 2048}, true},  // 1.037
    {"mm tt", {1, 1, 2048, 128256}, false},  // 0.956
    {"mm tt", {1, 1, 4096, 3072}, false},  // 0.891
    {"mm tt", {1, 2, 4096, 3072}, false},  // 0.912
    {"mm tt", {1, 2, 6144, 24576}, false},  // 0.909
    {"mm tt", {1, 2, 6144, 49152}, false},  // 0.895
    {"mm tt", {1, 3, 18432, 7168}, false},  // 0.890
    {"mm tt", {1, 6, 4096, 4096}, false},  // 0.956
    {"mm tt", {1, 6, 7168, 36864}, false},  // 0.922
    {"mm tt", {1, 12, 7168, 36864}, false},  // 0.933
    {"mm tt", {1, 128, 18432, 1792}, false},  // 0.967
    {"mm tt", {1, 147, 1152, 1152}, true},  // 1.469
    {"mm tt", {1, 200, 4096, 2880}, true},  // 1.105
    {"mm tt", {1, 206, 1280, 640}, true},  // 1.267
    {"mm tt", {1, 208, 4096, 1024}, true},  // 1.026
    {"mm tt", {1, 212, 4304, 1152}, true},  // 1.073
    {"mm tt", {1, 215, 512, 1000}, true},  // 1.313
    {"mm tt", {1, 236, 3072, 1536}, true},  // 1.094
    {"mm tt", {1, 256, 7168, 4096}, true},  // 1.055
    {"mm tt", {1, 288, 28672, 8192}, true},  // 1.226
    {"mm tt", {1, 512, 2560, 1280}, true},  // 1.071
    {"mm tt", {1, 539, 2048, 384}, true},  // 1.120
    {"mm tt", {1, 704, 7168, 4096}, true},  // 1.737
    {"mm tt", {1, 1503, 7168, 512}, true},  // 1.076
    {"mm tt", {1, 2048, 8192, 1024}, true},  // 1.021
    {"mm tt", {1, 2384, 384, 768}, true},  // 1.061
    {"mm tt", {1, 2592, 8192, 57344}, true},  // 1.066
    {"mm tt", {1, 4051, 384, 768}, true},  // 1.098
    {"mm tt", {1, 5118, 448, 4608}, true},  // 1.032
    {"mm tt", {1, 6183, 4096, 2880}, true},  // 1.024
    {"mm tt", {1, 15654, 2048, 768}, true},  // 1.047
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
