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
    {"_grouped_mm nt", 1, true},  // 20 problems, mean 1.070, a fifth up to 0.994
    {"_grouped_mm nt", 16, true},  // 26 problems, mean 1.119, a fifth up to 1.015
    {"_grouped_mm nt", 64, true},  // 19 problems, mean 1.138, a fifth up to 1.028
    {"_grouped_mm nt", 128, true},  // 9 problems, mean 1.046, a fifth up to 1.012
    {"_grouped_mm nt", 512, true},  // 17 problems, mean 1.134, a fifth up to 1.065
    {"_grouped_mm nt", 2048, true},  // 4 problems, mean 1.027, a fifth up to 1.010
    {"_grouped_mm tn", 1, true},  // 20 problems, mean 1.211, a fifth up to 1.098
    {"_grouped_mm tn", 16, true},  // 29 problems, mean 1.289, a fifth up to 1.111
    {"_grouped_mm tn", 64, true},  // 20 problems, mean 1.215, a fifth up to 1.075
    {"_grouped_mm tn", 128, true},  // 9 problems, mean 1.112, a fifth up to 1.048
    {"_grouped_mm tn", 512, true},  // 17 problems, mean 1.141, a fifth up to 1.026
    {"_grouped_mm tn", 2048, true},  // 4 problems, mean 1.087, a fifth up to 1.047
    {"_grouped_mm tt", 1, true},  // 20 problems, mean 1.158, a fifth up to 1.073
    {"_grouped_mm tt", 16, true},  // 29 problems, mean 1.272, a fifth up to 1.095
    {"_grouped_mm tt", 64, true},  // 20 problems, mean 1.182, a fifth up to 1.073
    {"_grouped_mm tt", 128, true},  // 9 problems, mean 1.094, a fifth up to 1.027
    {"_grouped_mm tt", 512, true},  // 17 problems, mean 1.127, a fifth up to 1.035
    {"_grouped_mm tt", 2048, true},  // 4 problems, mean 1.073, a fifth up to 0.985
    {"_scaled_grouped_mm rowwise", 1, true},  // 20 problems, mean 1.281, a fifth up to 1.197
    {"_scaled_grouped_mm rowwise", 16, true},  // 29 problems, mean 1.411, a fifth up to 1.181
    {"_scaled_grouped_mm rowwise", 64, true},  // 20 problems, mean 1.353, a fifth up to 1.129
    {"_scaled_grouped_mm rowwise", 128, true},  // 9 problems, mean 1.183, a fifth up to 1.101
    {"_scaled_grouped_mm rowwise", 512, true},  // 17 problems, mean 1.806, a fifth up to 1.244
    {"_scaled_grouped_mm rowwise", 2048, true},  // 4 problems, mean 1.244, a fifth up to 1.178
    {"_scaled_grouped_mm rowwise fast", 1, true},  // 20 problems, mean 1.176, a fifth up to 1.115
    {"_scaled_grouped_mm rowwise fast", 16, true},  // 29 problems, mean 1.227, a fifth up to 1.094
    {"_scaled_grouped_mm rowwise fast", 64, true},  // 20 problems, mean 1.195, a fifth up to 1.066
    {"_scaled_grouped_mm rowwise fast", 128, true},  // 9 problems, mean 1.088, a fifth up to 1.046
    {"_scaled_grouped_mm rowwise fast", 512, true},  // 17 problems, mean 1.427, a fifth up to 1.142
    {"_scaled_grouped_mm rowwise fast", 2048, true},  // 4 problems, mean 1.223, a fifth up to 1.133
    {"_scaled_mm 1x128 x 128x128", 16, true},  // 22 problems, mean 1.344, a fifth up to 1.137
    {"_scaled_mm 1x128 x 128x128", 64, true},  // 20 problems, mean 1.354, a fifth up to 1.129
    {"_scaled_mm 1x128 x 128x128", 128, true},  // 14 problems, mean 1.244, a fifth up to 0.983
    {"_scaled_mm 1x128 x 128x128", 512, false},  // 32 problems, mean 1.079, a fifth up to 0.959
    {"_scaled_mm 1x128 x 128x128", 2048, true},  // 25 problems, mean 1.043, a fifth up to 0.970
    {"_scaled_mm 1x128 x 128x128", 0, false},  // 36 problems, mean 0.963, a fifth up to 0.943
    {"_scaled_mm 1x128 x 1x128", 1, true},  // 16 problems, mean 1.305, a fifth up to 1.141
    {"_scaled_mm 1x128 x 1x128", 16, true},  // 25 problems, mean 1.070, a fifth up to 0.974
    {"_scaled_mm 1x128 x 1x128", 64, false},  // 22 problems, mean 1.047, a fifth up to 0.949
    {"_scaled_mm 1x128 x 1x128", 128, false},  // 17 problems, mean 1.044, a fifth up to 0.897
    {"_scaled_mm 1x128 x 1x128", 512, false},  // 42 problems, mean 1.038, a fifth up to 0.969
    {"_scaled_mm 1x128 x 1x128", 2048, false},  // 30 problems, mean 0.978, a fifth up to 0.950
    {"_scaled_mm 1x128 x 1x128", 0, false},  // 38 problems, mean 0.977, a fifth up to 0.961
    {"_scaled_mm rowwise", 1, true},  // 16 problems, mean 1.719, a fifth up to 1.380
    {"_scaled_mm rowwise", 16, true},  // 50 problems, mean 1.728, a fifth up to 1.312
    {"_scaled_mm rowwise", 64, true},  // 30 problems, mean 1.634, a fifth up to 1.277
    {"_scaled_mm rowwise", 128, true},  // 25 problems, mean 1.427, a fifth up to 1.092
    {"_scaled_mm rowwise", 512, true},  // 54 problems, mean 1.300, a fifth up to 1.018
    {"_scaled_mm rowwise", 2048, true},  // 35 problems, mean 1.182, a fifth up to 1.008
    {"_scaled_mm rowwise", 0, false},  // 64 problems, mean 1.026, a fifth up to 0.946
    {"_scaled_mm rowwise fast", 1, true},  // 16 problems, mean 1.514, a fifth up to 1.212
    {"_scaled_mm rowwise fast", 16, true},  // 50 problems, mean 1.586, a fifth up to 1.208
    {"_scaled_mm rowwise fast", 64, true},  // 30 problems, mean 1.573, a fifth up to 1.138
    {"_scaled_mm rowwise fast", 128, true},  // 25 problems, mean 1.391, a fifth up to 1.095
    {"_scaled_mm rowwise fast", 512, true},  // 54 problems, mean 1.275, a fifth up to 1.015
    {"_scaled_mm rowwise fast", 2048, true},  // 35 problems, mean 1.161, a fifth up to 0.994
    {"_scaled_mm rowwise fast", 0, false},  // 64 problems, mean 1.009, a fifth up to 0.954
    {"_scaled_mm tensorwise", 1, true},  // 16 problems, mean 1.127, a fifth up to 1.040
    {"_scaled_mm tensorwise", 16, true},  // 50 problems, mean 1.156, a fifth up to 1.032
    {"_scaled_mm tensorwise", 64, true},  // 30 problems, mean 1.162, a fifth up to 1.047
    {"_scaled_mm tensorwise", 128, true},  // 25 problems, mean 1.074, a fifth up to 1.020
    {"_scaled_mm tensorwise", 512, false},  // 54 problems, mean 1.059, a fifth up to 0.952
    {"_scaled_mm tensorwise", 2048, false},  // 35 problems, mean 0.993, a fifth up to 0.944
    {"_scaled_mm tensorwise", 0, false},  // 64 problems, mean 0.949, a fifth up to 0.910
    {"_scaled_mm tensorwise fast", 1, true},  // 16 problems, mean 1.132, a fifth up to 1.056
    {"_scaled_mm tensorwise fast", 16, true},  // 50 problems, mean 1.175, a fifth up to 1.053
    {"_scaled_mm tensorwise fast", 64, true},  // 30 problems, mean 1.157, a fifth up to 1.030
    {"_scaled_mm tensorwise fast", 128, true},  // 25 problems, mean 1.056, a fifth up to 0.994
    {"_scaled_mm tensorwise fast", 512, true},  // 54 problems, mean 1.061, a fifth up to 0.984
    {"_scaled_mm tensorwise fast", 2048, true},  // 35 problems, mean 1.033, a fifth up to 1.001
    {"_scaled_mm tensorwise fast", 0, false},  // 64 problems, mean 0.999, a fifth up to 0.941
    {"addmm tn", 1, true},  // 16 problems, mean 1.106, a fifth up to 1.060
    {"addmm tn", 16, true},  // 44 problems, mean 1.177, a fifth up to 1.041
    {"addmm tn", 64, true},  // 33 problems, mean 1.163, a fifth up to 1.007
    {"addmm tn", 128, true},  // 22 problems, mean 1.053, a fifth up to 0.996
    {"addmm tn", 512, true},  // 48 problems, mean 1.044, a fifth up to 0.986
    {"addmm tn", 2048, true},  // 24 problems, mean 1.041, a fifth up to 0.998
    {"addmm tn", 0, true},  // 58 problems, mean 1.029, a fifth up to 0.996
    {"bmm tn", 512, true},  // 5 problems, mean 1.383, a fifth up to 1.243
    {"bmm tn", 2048, true},  // 3 problems, mean 1.022, a fifth up to 0.981
    {"bmm tt", 512, true},  // 5 problems, mean 1.609, a fifth up to 1.277
    {"bmm tt", 2048, false},  // 3 problems, mean 1.003, a fifth up to 0.915
    {"convolution dgrad dense, stride 1", 0, true},  // 101 problems, mean 1.141, a fifth up to 0.984
    {"convolution dgrad dense, stride 2 or more", 0, true},  // 20 problems, mean 1.270, a fifth up to 1.079
    {"convolution dgrad depthwise, stride 1", 0, true},  // 9 problems, mean 1.745, a fifth up to 1.043
    {"convolution dgrad depthwise, stride 2 or more", 0, true},  // 3 problems, mean 3.319, a fifth up to 2.724
    {"convolution dgrad grouped, stride 1", 0, true},  // 12 problems, mean 2.019, a fifth up to 1.305
    {"convolution dgrad of few channels, stride 1", 0, true},  // 5 problems, mean 1.747, a fifth up to 1.661
    {"convolution dgrad of few channels, stride 2 or more", 0, true},  // 29 problems, mean 2.800, a fifth up to 1.427
    {"convolution dgrad pointwise, stride 1", 0, true},  // 48 problems, mean 1.162, a fifth up to 1.004
    {"convolution dgrad pointwise, stride 2 or more", 0, true},  // 6 problems, mean 1.421, a fifth up to 1.228
    {"convolution fprop dense, stride 1", 0, true},  // 101 problems, mean 1.262, a fifth up to 0.997
    {"convolution fprop dense, stride 2 or more", 0, false},  // 20 problems, mean 1.179, a fifth up to 0.960
    {"convolution fprop depthwise, stride 1", 0, true},  // 9 problems, mean 1.274, a fifth up to 1.051
    {"convolution fprop depthwise, stride 2 or more", 0, true},  // 3 problems, mean 1.078, a fifth up to 1.011
    {"convolution fprop grouped, stride 1", 0, true},  // 12 problems, mean 1.785, a fifth up to 1.089
    {"convolution fprop of few channels, stride 1", 0, true},  // 5 problems, mean 2.145, a fifth up to 2.090
    {"convolution fprop of few channels, stride 2 or more", 0, true},  // 29 problems, mean 2.735, a fifth up to 1.448
    {"convolution fprop pointwise, stride 1", 0, true},  // 48 problems, mean 1.233, a fifth up to 1.008
    {"convolution fprop pointwise, stride 2 or more", 0, true},  // 6 problems, mean 1.434, a fifth up to 1.398
    {"convolution wgrad dense, stride 1", 0, true},  // 101 problems, mean 1.228, a fifth up to 1.034
    {"convolution wgrad dense, stride 2 or more", 0, true},  // 20 problems, mean 1.204, a fifth up to 0.998
    {"convolution wgrad depthwise, stride 1", 0, true},  // 9 problems, mean 1.294, a fifth up to 1.036
    {"convolution wgrad depthwise, stride 2 or more", 0, true},  // 3 problems, mean 2.716, a fifth up to 1.243
    {"convolution wgrad grouped, stride 1", 0, true},  // 12 problems, mean 1.709, a fifth up to 1.086
    {"convolution wgrad of few channels, stride 1", 0, true},  // 5 problems, mean 1.372, a fifth up to 1.312
    {"convolution wgrad of few channels, stride 2 or more", 0, true},  // 29 problems, mean 1.897, a fifth up to 1.427
    {"convolution wgrad pointwise, stride 1", 0, false},  // 47 problems, mean 1.104, a fifth up to 0.957
    {"convolution wgrad pointwise, stride 2 or more", 0, true},  // 6 problems, mean 1.358, a fifth up to 1.127
    {"mm nt", 512, true},  // 6 problems, mean 1.130, a fifth up to 1.091
    {"mm nt", 2048, true},  // 54 problems, mean 1.099, a fifth up to 0.998
    {"mm nt", 0, true},  // 165 problems, mean 1.118, a fifth up to 1.010
    {"mm tn", 1, true},  // 21 problems, mean 1.101, a fifth up to 1.034
    {"mm tn", 16, true},  // 68 problems, mean 1.137, a fifth up to 1.060
    {"mm tn", 64, true},  // 45 problems, mean 1.154, a fifth up to 1.052
    {"mm tn", 128, true},  // 34 problems, mean 1.067, a fifth up to 1.004
    {"mm tn", 512, true},  // 64 problems, mean 1.047, a fifth up to 0.976
    {"mm tn", 2048, true},  // 40 problems, mean 1.055, a fifth up to 1.001
    {"mm tn", 0, false},  // 77 problems, mean 1.020, a fifth up to 0.969
    {"mm tt", 1, false},  // 11 problems, mean 1.111, a fifth up to 0.953
    {"mm tt", 16, true},  // 55 problems, mean 1.126, a fifth up to 1.009
    {"mm tt", 64, true},  // 32 problems, mean 1.128, a fifth up to 0.998
    {"mm tt", 128, true},  // 21 problems, mean 1.061, a fifth up to 0.999
    {"mm tt", 512, false},  // 40 problems, mean 1.071, a fifth up to 0.948
    {"mm tt", 2048, false},  // 25 problems, mean 0.984, a fifth up to 0.955
    {"mm tt", 0, false},  // 53 problems, mean 1.010, a fifth up to 0.974
};

// Problems that differ from their class, or have none.
constexpr MeasuredProblem kMeasuredProblems[] = {
    {"_grouped_mm nt", {160, 3072, 5120, 160}, false},  // 0.967
    {"_grouped_mm nt", {256, 7168, 2048, 256}, false},  // 0.959
    {"_grouped_mm nt", {256, 7168, 2048, 338}, false},  // 0.947
    {"_grouped_mm nt", {256, 7168, 2048, 3178}, false},  // 0.935
    {"_grouped_mm nt", {8, 4096, 14336, 164}, false},  // 0.946
    {"_grouped_mm nt", {160, 3072, 5120, 4096}, false},  // 0.965
    {"_grouped_mm nt", {8, 4096, 14336, 4096}, false},  // 0.940
    {"_grouped_mm nt", {8, 7168, 2048, 32768}, false},  // 1.017
    {"_grouped_mm nt", {4, 4096, 7168, 32768}, false},  // 1.001
    {"_grouped_mm tn", {8, 32768, 7168, 2048}, false},  // 0.945
    {"_grouped_mm tn", {4, 32768, 4096, 7168}, false},  // 0.999
    {"_grouped_mm tt", {8, 696, 4096, 28672}, false},  // 0.880
    {"_grouped_mm tt", {8, 4096, 4096, 28672}, false},  // 0.960
    {"_grouped_mm tt", {8, 32768, 2048, 7168}, true},  // 1.027
    {"_grouped_mm tt", {4, 32768, 7168, 4096}, true},  // 1.023
    {"_scaled_grouped_mm rowwise", {8, 32768, 7168, 2048}, true},  // 1.239
    {"_scaled_grouped_mm rowwise", {4, 32768, 4096, 7168}, true},  // 1.253
    {"_scaled_grouped_mm rowwise fast", {8, 4096, 28672, 4096}, false},  // 0.940
    {"_scaled_grouped_mm rowwise fast", {8, 32768, 7168, 2048}, true},  // 1.032
    {"_scaled_grouped_mm rowwise fast", {4, 32768, 4096, 7168}, true},  // 1.022
    {"_scaled_mm 1x128 x 128x128", {1, 256, 2112, 7168}, true},  // 1.783
    {"_scaled_mm 1x128 x 128x128", {1, 256, 3072, 3072}, true},  // 1.438
    {"_scaled_mm 1x128 x 128x128", {1, 256, 4096, 4096}, true},  // 1.270
    {"_scaled_mm 1x128 x 128x128", {1, 256, 4096, 7168}, true},  // 1.335
    {"_scaled_mm 1x128 x 128x128", {1, 256, 4096, 14336}, true},  // 1.384
    {"_scaled_mm 1x128 x 128x128", {1, 256, 6144, 4096}, true},  // 1.053
    {"_scaled_mm 1x128 x 128x128", {1, 256, 7168, 2048}, true},  // 1.048
    {"_scaled_mm 1x128 x 128x128", {1, 256, 10240, 8192}, true},  // 1.112
    {"_scaled_mm 1x128 x 128x128", {1, 328, 8192, 2048}, true},  // 1.034
    {"_scaled_mm 1x128 x 128x128", {1, 448, 32768, 512}, true},  // 1.123
    {"_scaled_mm 1x128 x 128x128", {1, 460, 256, 2048}, true},  // 2.379
    {"_scaled_mm 1x128 x 128x128", {1, 512, 4096, 4096}, true},  // 1.032
    {"_scaled_mm 1x128 x 128x128", {1, 512, 6144, 4096}, true},  // 1.026
    {"_scaled_mm 1x128 x 128x128", {1, 1024, 2112, 7168}, false},  // 0.959
    {"_scaled_mm 1x128 x 128x128", {1, 1024, 4096, 7168}, false},  // 0.963
    {"_scaled_mm 1x128 x 128x128", {1, 1024, 8192, 28672}, false},  // 0.967
    {"_scaled_mm 1x128 x 128x128", {1, 1024, 24576, 1536}, false},  // 0.968
    {"_scaled_mm 1x128 x 128x128", {1, 1408, 24576, 1536}, false},  // 0.962
    {"_scaled_mm 1x128 x 128x128", {1, 7088, 1024, 28672}, true},  // 1.022
    {"_scaled_mm 1x128 x 128x128", {1, 8128, 7168, 8192}, true},  // 1.022
    {"_scaled_mm 1x128 x 128x128", {1, 8192, 768, 3072}, true},  // 1.044
    {"_scaled_mm 1x128 x 1x128", {1, 16, 4096, 14336}, false},  // 0.911
    {"_scaled_mm 1x128 x 1x128", {1, 16, 5120, 16384}, false},  // 0.880
    {"_scaled_mm 1x128 x 1x128", {1, 16, 6144, 4096}, false},  // 0.911
    {"_scaled_mm 1x128 x 1x128", {1, 16, 24576, 1536}, false},  // 0.928
    {"_scaled_mm 1x128 x 1x128", {1, 32, 384, 3072}, true},  // 1.409
    {"_scaled_mm 1x128 x 1x128", {1, 32, 768, 384}, true},  // 1.491
    {"_scaled_mm 1x128 x 1x128", {1, 32, 4304, 1152}, true},  // 1.150
    {"_scaled_mm 1x128 x 1x128", {1, 48, 2048, 1024}, true},  // 1.315
    {"_scaled_mm 1x128 x 1x128", {1, 64, 6144, 4096}, true},  // 1.027
    {"_scaled_mm 1x128 x 1x128", {1, 64, 7168, 2048}, true},  // 1.051
    {"_scaled_mm 1x128 x 1x128", {1, 64, 10240, 8192}, true},  // 1.076
    {"_scaled_mm 1x128 x 1x128", {1, 64, 16032, 3072}, true},  // 1.166
    {"_scaled_mm 1x128 x 1x128", {1, 64, 28672, 4096}, true},  // 1.028
    {"_scaled_mm 1x128 x 1x128", {1, 64, 128256, 4096}, true},  // 1.066
    {"_scaled_mm 1x128 x 1x128", {1, 96, 4304, 1152}, true},  // 1.287
    {"_scaled_mm 1x128 x 1x128", {1, 128, 5120, 1280}, true},  // 1.170
    {"_scaled_mm 1x128 x 1x128", {1, 128, 6144, 4096}, true},  // 1.116
    {"_scaled_mm 1x128 x 1x128", {1, 128, 6144, 6144}, true},  // 1.226
    {"_scaled_mm 1x128 x 1x128", {1, 128, 7168, 2048}, true},  // 1.114
    {"_scaled_mm 1x128 x 1x128", {1, 128, 7168, 16384}, true},  // 1.033
    {"_scaled_mm 1x128 x 1x128", {1, 128, 8192, 8192}, true},  // 1.038
    {"_scaled_mm 1x128 x 1x128", {1, 128, 10240, 8192}, true},  // 1.254
    {"_scaled_mm 1x128 x 1x128", {1, 128, 16384, 256}, true},  // 1.180
    {"_scaled_mm 1x128 x 1x128", {1, 128, 24576, 1536}, true},  // 1.057
    {"_scaled_mm 1x128 x 1x128", {1, 160, 5120, 320}, true},  // 1.404
    {"_scaled_mm 1x128 x 1x128", {1, 188, 2304, 768}, true},  // 1.484
    {"_scaled_mm 1x128 x 1x128", {1, 240, 4608, 1792}, true},  // 1.044
    {"_scaled_mm 1x128 x 1x128", {1, 256, 3072, 3072}, true},  // 1.025
    {"_scaled_mm 1x128 x 1x128", {1, 256, 6144, 4096}, true},  // 1.304
    {"_scaled_mm 1x128 x 1x128", {1, 256, 10240, 8192}, true},  // 1.325
    {"_scaled_mm 1x128 x 1x128", {1, 256, 24576, 1536}, true},  // 1.033
    {"_scaled_mm 1x128 x 1x128", {1, 336, 1920, 1280}, true},  // 1.055
    {"_scaled_mm 1x128 x 1x128", {1, 352, 576, 768}, true},  // 1.268
    {"_scaled_mm 1x128 x 1x128", {1, 388, 3840, 320}, true},  // 1.071
    {"_scaled_mm 1x128 x 1x128", {1, 400, 288, 768}, true},  // 1.405
    {"_scaled_mm 1x128 x 1x128", {1, 448, 32768, 512}, true},  // 1.073
    {"_scaled_mm 1x128 x 1x128", {1, 460, 256, 2048}, true},  // 1.243
    {"_scaled_mm 1x128 x 1x128", {1, 512, 6144, 4096}, true},  // 1.294
    {"_scaled_mm 1x128 x 1x128", {1, 944, 5120, 1440}, true},  // 1.061
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 1024, 1024}, true},  // 1.109
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 2048, 256}, true},  // 1.157
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 2304, 768}, true},  // 1.385
    {"_scaled_mm 1x128 x 1x128", {1, 1024, 24576, 384}, true},  // 1.078
    {"_scaled_mm 1x128 x 1x128", {1, 1984, 2880, 1024}, true},  // 1.042
    {"_scaled_mm 1x128 x 1x128", {1, 8192, 768, 3072}, true},  // 1.025
    {"_scaled_mm 1x128 x 1x128", {1, 8480, 36864, 7168}, true},  // 1.345
    {"_scaled_mm rowwise", {1, 256, 8192, 28672}, false},  // 0.950
    {"_scaled_mm rowwise", {1, 512, 8192, 28672}, false},  // 0.963
    {"_scaled_mm rowwise", {1, 1024, 28672, 4096}, false},  // 0.951
    {"_scaled_mm rowwise", {1, 1024, 57344, 8192}, false},  // 0.947
    {"_scaled_mm rowwise", {1, 2313, 2048, 2048}, true},  // 1.291
    {"_scaled_mm rowwise", {1, 2317, 4304, 288}, true},  // 1.328
    {"_scaled_mm rowwise", {1, 2432, 36864, 896}, true},  // 1.148
    {"_scaled_mm rowwise", {1, 2496, 24576, 384}, true},  // 1.138
    {"_scaled_mm rowwise", {1, 2510, 3072, 2048}, true},  // 1.142
    {"_scaled_mm rowwise", {1, 2971, 12288, 1536}, true},  // 1.046
    {"_scaled_mm rowwise", {1, 3010, 1152, 3072}, true},  // 1.166
    {"_scaled_mm rowwise", {1, 3635, 4304, 1152}, true},  // 1.043
    {"_scaled_mm rowwise", {1, 3706, 1536, 4096}, true},  // 1.064
    {"_scaled_mm rowwise", {1, 4096, 2112, 7168}, true},  // 1.180
    {"_scaled_mm rowwise", {1, 6001, 1440, 4096}, true},  // 1.136
    {"_scaled_mm rowwise", {1, 6082, 49152, 6144}, true},  // 1.081
    {"_scaled_mm rowwise", {1, 6155, 4304, 1152}, true},  // 1.116
    {"_scaled_mm rowwise", {1, 7025, 768, 6144}, true},  // 1.099
    {"_scaled_mm rowwise", {1, 7088, 1024, 28672}, true},  // 1.083
    {"_scaled_mm rowwise", {1, 7965, 36864, 7168}, true},  // 1.124
    {"_scaled_mm rowwise", {1, 8192, 768, 3072}, true},  // 1.079
    {"_scaled_mm rowwise", {1, 8192, 1056, 7168}, true},  // 1.425
    {"_scaled_mm rowwise", {1, 8192, 2112, 7168}, true},  // 1.057
    {"_scaled_mm rowwise", {1, 8192, 24576, 1536}, true},  // 1.023
    {"_scaled_mm rowwise", {1, 10891, 1152, 4304}, true},  // 1.128
    {"_scaled_mm rowwise", {1, 13214, 24576, 1536}, true},  // 1.063
    {"_scaled_mm rowwise", {1, 13429, 528, 7168}, true},  // 1.389
    {"_scaled_mm rowwise fast", {1, 256, 8192, 28672}, false},  // 0.959
    {"_scaled_mm rowwise fast", {1, 1897, 24576, 6144}, false},  // 0.970
    {"_scaled_mm rowwise fast", {1, 2313, 2048, 2048}, true},  // 1.272
    {"_scaled_mm rowwise fast", {1, 2317, 4304, 288}, true},  // 1.373
    {"_scaled_mm rowwise fast", {1, 2432, 36864, 896}, true},  // 1.039
    {"_scaled_mm rowwise fast", {1, 2510, 3072, 2048}, true},  // 1.040
    {"_scaled_mm rowwise fast", {1, 2971, 12288, 1536}, true},  // 1.055
    {"_scaled_mm rowwise fast", {1, 3010, 1152, 3072}, true},  // 1.148
    {"_scaled_mm rowwise fast", {1, 3635, 4304, 1152}, true},  // 1.130
    {"_scaled_mm rowwise fast", {1, 4096, 2112, 7168}, true},  // 1.090
    {"_scaled_mm rowwise fast", {1, 6001, 1440, 4096}, true},  // 1.051
    {"_scaled_mm rowwise fast", {1, 6082, 49152, 6144}, true},  // 1.034
    {"_scaled_mm rowwise fast", {1, 6155, 4304, 1152}, true},  // 1.071
    {"_scaled_mm rowwise fast", {1, 7025, 768, 6144}, true},  // 1.185
    {"_scaled_mm rowwise fast", {1, 7088, 1024, 28672}, true},  // 1.065
    {"_scaled_mm rowwise fast", {1, 8192, 768, 3072}, true},  // 1.040
    {"_scaled_mm rowwise fast", {1, 8192, 1056, 7168}, true},  // 1.029
    {"_scaled_mm rowwise fast", {1, 8192, 2112, 7168}, true},  // 1.057
    {"_scaled_mm rowwise fast", {1, 13429, 528, 7168}, true},  // 1.444
    {"_scaled_mm tensorwise", {1, 1, 4096, 7168}, false},  // 0.940
    {"_scaled_mm tensorwise", {1, 2, 4096, 4096}, false},  // 0.962
    {"_scaled_mm tensorwise", {1, 2, 4608, 3584}, false},  // 0.958
    {"_scaled_mm tensorwise", {1, 11, 4096, 4096}, false},  // 0.942
    {"_scaled_mm tensorwise", {1, 16, 4096, 4096}, false},  // 0.945
    {"_scaled_mm tensorwise", {1, 64, 4096, 7168}, false},  // 0.963
    {"_scaled_mm tensorwise", {1, 64, 4096, 14336}, false},  // 0.923
    {"_scaled_mm tensorwise", {1, 128, 8192, 8192}, false},  // 0.944
    {"_scaled_mm tensorwise", {1, 128, 57344, 8192}, false},  // 0.961
    {"_scaled_mm tensorwise", {1, 134, 5120, 3072}, true},  // 1.049
    {"_scaled_mm tensorwise", {1, 146, 4608, 3584}, true},  // 1.101
    {"_scaled_mm tensorwise", {1, 160, 5120, 320}, true},  // 1.383
    {"_scaled_mm tensorwise", {1, 165, 4096, 28672}, true},  // 1.063
    {"_scaled_mm tensorwise", {1, 169, 3072, 512}, true},  // 1.397
    {"_scaled_mm tensorwise", {1, 182, 3072, 2048}, true},  // 1.206
    {"_scaled_mm tensorwise", {1, 188, 2304, 768}, true},  // 1.385
    {"_scaled_mm tensorwise", {1, 211, 2560, 3072}, true},  // 1.128
    {"_scaled_mm tensorwise", {1, 240, 4608, 1792}, true},  // 1.056
    {"_scaled_mm tensorwise", {1, 256, 3072, 3072}, true},  // 1.090
    {"_scaled_mm tensorwise", {1, 256, 24576, 1536}, true},  // 1.072
    {"_scaled_mm tensorwise", {1, 304, 1920, 1280}, true},  // 1.362
    {"_scaled_mm tensorwise", {1, 336, 1920, 1280}, true},  // 1.311
    {"_scaled_mm tensorwise", {1, 352, 576, 768}, true},  // 1.361
    {"_scaled_mm tensorwise", {1, 352, 9216, 3072}, true},  // 1.057
    {"_scaled_mm tensorwise", {1, 354, 4096, 7168}, true},  // 1.147
    {"_scaled_mm tensorwise", {1, 358, 8192, 3584}, true},  // 1.103
    {"_scaled_mm tensorwise", {1, 388, 3840, 320}, true},  // 1.255
    {"_scaled_mm tensorwise", {1, 400, 288, 768}, true},  // 1.456
    {"_scaled_mm tensorwise", {1, 400, 6144, 768}, true},  // 1.085
    {"_scaled_mm tensorwise", {1, 427, 3840, 1280}, true},  // 1.033
    {"_scaled_mm tensorwise", {1, 446, 2112, 3584}, true},  // 1.104
    {"_scaled_mm tensorwise", {1, 448, 32768, 512}, true},  // 1.090
    {"_scaled_mm tensorwise", {1, 460, 256, 2048}, true},  // 1.384
    {"_scaled_mm tensorwise", {1, 512, 24576, 1536}, true},  // 1.042
    {"_scaled_mm tensorwise", {1, 730, 384, 4096}, true},  // 1.269
    {"_scaled_mm tensorwise", {1, 1024, 768, 3072}, true},  // 1.167
    {"_scaled_mm tensorwise", {1, 1024, 1024, 1024}, true},  // 1.080
    {"_scaled_mm tensorwise", {1, 1024, 2048, 256}, true},  // 1.251
    {"_scaled_mm tensorwise", {1, 1024, 2304, 768}, true},  // 1.026
    {"_scaled_mm tensorwise", {1, 1024, 24576, 384}, true},  // 1.119
    {"_scaled_mm tensorwise", {1, 1024, 32768, 640}, true},  // 1.115
    {"_scaled_mm tensorwise", {1, 1936, 2304, 768}, true},  // 1.042
    {"_scaled_mm tensorwise", {1, 1984, 2880, 1024}, true},  // 1.221
    {"_scaled_mm tensorwise", {1, 2317, 4304, 288}, true},  // 1.176
    {"_scaled_mm tensorwise", {1, 2432, 36864, 896}, true},  // 1.048
    {"_scaled_mm tensorwise", {1, 3706, 1536, 4096}, true},  // 1.051
    {"_scaled_mm tensorwise", {1, 8192, 768, 3072}, true},  // 1.051
    {"_scaled_mm tensorwise", {1, 8192, 1056, 7168}, true},  // 1.227
    {"_scaled_mm tensorwise", {1, 9508, 896, 16384}, true},  // 1.044
    {"_scaled_mm tensorwise fast", {1, 2, 4608, 3584}, false},  // 0.968
    {"_scaled_mm tensorwise fast", {1, 64, 4096, 7168}, false},  // 0.947
    {"_scaled_mm tensorwise fast", {1, 64, 4096, 14336}, false},  // 0.921
    {"_scaled_mm tensorwise fast", {1, 128, 6144, 4096}, false},  // 0.959
    {"_scaled_mm tensorwise fast", {1, 128, 6144, 6144}, false},  // 0.929
    {"_scaled_mm tensorwise fast", {1, 128, 7168, 16384}, false},  // 0.943
    {"_scaled_mm tensorwise fast", {1, 208, 50272, 2880}, false},  // 0.905
    {"_scaled_mm tensorwise fast", {1, 256, 7168, 2048}, false},  // 0.964
    {"_scaled_mm tensorwise fast", {1, 305, 36864, 7168}, false},  // 0.945
    {"_scaled_mm tensorwise fast", {1, 358, 8192, 3584}, false},  // 0.931
    {"_scaled_mm tensorwise fast", {1, 512, 4096, 7168}, false},  // 0.912
    {"_scaled_mm tensorwise fast", {1, 512, 7168, 2048}, false},  // 0.901
    {"_scaled_mm tensorwise fast", {1, 712, 3072, 8192}, false},  // 0.950
    {"_scaled_mm tensorwise fast", {1, 940, 4608, 7168}, false},  // 0.881
    {"_scaled_mm tensorwise fast", {1, 1024, 2112, 7168}, false},  // 0.949
    {"_scaled_mm tensorwise fast", {1, 2048, 32768, 512}, false},  // 0.871
    {"_scaled_mm tensorwise fast", {1, 2317, 4304, 288}, true},  // 1.024
    {"_scaled_mm tensorwise fast", {1, 2432, 36864, 896}, true},  // 1.099
    {"_scaled_mm tensorwise fast", {1, 2971, 12288, 1536}, true},  // 1.102
    {"_scaled_mm tensorwise fast", {1, 3635, 4304, 1152}, true},  // 1.059
    {"_scaled_mm tensorwise fast", {1, 4096, 4096, 4096}, true},  // 1.042
    {"_scaled_mm tensorwise fast", {1, 4096, 4096, 7168}, true},  // 1.042
    {"_scaled_mm tensorwise fast", {1, 4096, 7168, 2048}, true},  // 1.096
    {"_scaled_mm tensorwise fast", {1, 4096, 7168, 16384}, true},  // 1.030
    {"_scaled_mm tensorwise fast", {1, 4096, 10240, 8192}, true},  // 1.030
    {"_scaled_mm tensorwise fast", {1, 4096, 24576, 1536}, true},  // 1.070
    {"_scaled_mm tensorwise fast", {1, 4096, 57344, 8192}, true},  // 1.036
    {"_scaled_mm tensorwise fast", {1, 5567, 4096, 3584}, true},  // 1.030
    {"_scaled_mm tensorwise fast", {1, 5648, 9216, 3072}, true},  // 1.111
    {"_scaled_mm tensorwise fast", {1, 6649, 10240, 8192}, true},  // 1.034
    {"_scaled_mm tensorwise fast", {1, 8192, 768, 3072}, true},  // 1.026
    {"_scaled_mm tensorwise fast", {1, 8192, 2112, 7168}, true},  // 1.061
    {"_scaled_mm tensorwise fast", {1, 8192, 6144, 4096}, true},  // 1.072
    {"_scaled_mm tensorwise fast", {1, 8192, 7168, 2048}, true},  // 1.104
    {"_scaled_mm tensorwise fast", {1, 8192, 7168, 16384}, true},  // 1.025
    {"_scaled_mm tensorwise fast", {1, 8192, 8192, 8192}, true},  // 1.026
    {"_scaled_mm tensorwise fast", {1, 8192, 9216, 3072}, true},  // 1.083
    {"_scaled_mm tensorwise fast", {1, 8192, 10240, 2048}, true},  // 1.030
    {"_scaled_mm tensorwise fast", {1, 8192, 24576, 1536}, true},  // 1.073
    {"_scaled_mm tensorwise fast", {1, 8192, 28672, 4096}, true},  // 1.062
    {"_scaled_mm tensorwise fast", {1, 8192, 57344, 8192}, true},  // 1.036
    {"_scaled_mm tensorwise fast", {1, 9508, 896, 16384}, true},  // 1.070
    {"_scaled_mm tensorwise fast", {1, 10739, 32064, 3072}, true},  // 1.088
    {"_scaled_mm tensorwise fast", {1, 11623, 3072, 4096}, true},  // 1.078
    {"_scaled_mm tensorwise fast", {1, 12592, 12288, 6144}, true},  // 1.049
    {"_scaled_mm tensorwise fast", {1, 13214, 24576, 1536}, true},  // 1.152
    {"_scaled_mm tensorwise fast", {1, 15469, 3072, 1536}, true},  // 1.037
    {"addmm tn", {1, 128, 8192, 28672}, false},  // 0.962
    {"addmm tn", {1, 256, 4096, 7168}, false},  // 0.967
    {"addmm tn", {1, 256, 8192, 28672}, false},  // 0.967
    {"addmm tn", {1, 328, 8192, 2048}, false},  // 0.926
    {"addmm tn", {1, 512, 2112, 7168}, false},  // 0.880
    {"addmm tn", {1, 821, 1024, 14336}, false},  // 0.907
    {"addmm tn", {1, 6612, 2048, 28672}, false},  // 0.966
    {"addmm tn", {1, 6676, 1024, 2048}, false},  // 0.950
    {"addmm tn", {1, 10891, 1152, 4304}, false},  // 0.728
    {"bmm tn", {16, 1, 1023, 576}, true},  // 1.610
    {"bmm tn", {64, 1, 4096, 128}, false},  // 0.961
    {"bmm tn", {128, 16, 512, 128}, true},  // 1.075
    {"bmm tn", {256, 49, 49, 32}, false},  // 0.791
    {"bmm tn", {128, 96, 512, 128}, true},  // 1.052
    {"bmm tn", {384, 128, 128, 64}, true},  // 1.324
    {"bmm tn", {16, 4096, 77, 40}, true},  // 1.252
    {"bmm tn", {16, 4096, 4096, 40}, false},  // 0.794
    {"bmm tt", {16, 1, 576, 1023}, true},  // 1.268
    {"bmm tt", {64, 1, 128, 4096}, false},  // 1.019
    {"bmm tt", {128, 16, 128, 512}, true},  // 1.121
    {"bmm tt", {256, 49, 32, 49}, false},  // 0.562
    {"bmm tt", {128, 96, 128, 512}, true},  // 1.124
    {"bmm tt", {384, 128, 64, 128}, true},  // 1.298
    {"bmm tt", {32, 1024, 80, 1024}, true},  // 1.037
    {"bmm tt", {40, 1024, 128, 1024}, true},  // 1.064
    {"bmm tt", {16, 4096, 40, 77}, false},  // 0.862
    {"bmm tt", {16, 4096, 40, 4096}, true},  // 1.044
    {"convolution dgrad dense, stride 1", {4, 128, 112, 149, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.908
    {"convolution dgrad dense, stride 1", {4, 256, 293, 293, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.908
    {"convolution dgrad dense, stride 1", {4, 256, 512, 512, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.906
    {"convolution dgrad dense, stride 1", {8, 1280, 16, 16, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.770
    {"convolution dgrad dense, stride 1", {9, 256, 256, 455, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.895
    {"convolution dgrad dense, stride 1", {9, 512, 48, 85, 512, 3, 3, 1, 1, 4, 4, 4, 4, 1}, false},  // 0.969
    {"convolution dgrad dense, stride 1", {11, 512, 56, 56, 512, 3, 3, 1, 1, 2, 2, 2, 2, 1}, false},  // 0.912
    {"convolution dgrad dense, stride 1", {12, 256, 293, 293, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.959
    {"convolution dgrad dense, stride 1", {14, 640, 128, 128, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.947
    {"convolution dgrad dense, stride 1", {15, 2560, 32, 32, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.926
    {"convolution dgrad dense, stride 1", {16, 256, 256, 256, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.910
    {"convolution dgrad dense, stride 1", {16, 2560, 16, 16, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.960
    {"convolution dgrad dense, stride 1", {32, 128, 56, 56, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.900
    {"convolution dgrad dense, stride 1", {32, 320, 64, 64, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.959
    {"convolution dgrad dense, stride 1", {34, 640, 110, 110, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.900
    {"convolution dgrad dense, stride 1", {38, 128, 96, 96, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.959
    {"convolution dgrad dense, stride 1", {40, 256, 56, 56, 32, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.844
    {"convolution dgrad dense, stride 1", {83, 128, 112, 112, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.945
    {"convolution dgrad dense, stride 1", {116, 512, 56, 56, 512, 3, 3, 1, 1, 2, 2, 2, 2, 1}, false},  // 0.923
    {"convolution dgrad dense, stride 2 or more", {14, 232, 56, 100, 232, 3, 3, 2, 2, 1, 1, 1, 1, 1}, false},  // 0.894
    {"convolution dgrad dense, stride 2 or more", {88, 320, 73, 130, 320, 3, 3, 2, 2, 1, 1, 1, 1, 1}, false},  // 0.930
    {"convolution dgrad depthwise, stride 1", {1, 480, 14, 14, 480, 5, 5, 1, 1, 2, 2, 1, 1, 480}, false},  // 0.788
    {"convolution dgrad grouped, stride 1", {64, 1024, 14, 14, 1024, 3, 3, 1, 1, 1, 1, 1, 1, 32}, false},  // 0.857
    {"convolution dgrad grouped, stride 2 or more", {64, 48, 112, 112, 48, 3, 3, 2, 2, 1, 1, 1, 1, 6}, true},  // 3.213
    {"convolution dgrad of few channels, stride 2 or more", {16, 3, 224, 299, 64, 7, 7, 2, 2, 3, 3, 1, 1, 1}, false},  // 0.918
    {"convolution dgrad pointwise, stride 1", {2, 24, 56, 56, 144, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.593
    {"convolution dgrad pointwise, stride 1", {2, 40, 32, 43, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.851
    {"convolution dgrad pointwise, stride 1", {4, 144, 56, 75, 24, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.880
    {"convolution dgrad pointwise, stride 1", {16, 24, 56, 56, 144, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.935
    {"convolution dgrad pointwise, stride 1", {26, 40, 48, 48, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.874
    {"convolution dgrad pointwise, stride 1", {58, 40, 28, 50, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.834
    {"convolution dgrad pointwise, stride 2 or more", {62, 256, 112, 149, 512, 1, 1, 2, 2, 0, 0, 1, 1, 1}, false},  // 0.909
    {"convolution fprop dense, stride 1", {2, 512, 128, 128, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.961
    {"convolution fprop dense, stride 1", {4, 128, 112, 149, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.951
    {"convolution fprop dense, stride 1", {11, 512, 56, 56, 512, 3, 3, 1, 1, 2, 2, 2, 2, 1}, false},  // 0.968
    {"convolution fprop dense, stride 1", {12, 256, 293, 293, 128, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.963
    {"convolution fprop dense, stride 1", {16, 2560, 18, 18, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.937
    {"convolution fprop dense, stride 1", {23, 512, 128, 171, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.966
    {"convolution fprop dense, stride 1", {24, 512, 146, 146, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.908
    {"convolution fprop dense, stride 1", {32, 512, 128, 128, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.927
    {"convolution fprop dense, stride 1", {35, 1280, 16, 28, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.949
    {"convolution fprop dense, stride 1", {83, 128, 112, 112, 256, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.945
    {"convolution fprop dense, stride 1", {116, 512, 56, 56, 512, 3, 3, 1, 1, 2, 2, 2, 2, 1}, false},  // 0.950
    {"convolution fprop dense, stride 2 or more", {1, 128, 64, 114, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.697
    {"convolution fprop dense, stride 2 or more", {2, 232, 64, 64, 232, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.147
    {"convolution fprop dense, stride 2 or more", {3, 320, 73, 73, 320, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.347
    {"convolution fprop dense, stride 2 or more", {7, 96, 56, 56, 192, 2, 2, 2, 2, 0, 0, 1, 1, 1}, true},  // 1.695
    {"convolution fprop dense, stride 2 or more", {7, 320, 128, 128, 320, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.154
    {"convolution fprop dense, stride 2 or more", {11, 96, 96, 96, 192, 2, 2, 2, 2, 0, 0, 1, 1, 1}, true},  // 1.445
    {"convolution fprop dense, stride 2 or more", {15, 96, 64, 85, 192, 2, 2, 2, 2, 0, 0, 1, 1, 1}, true},  // 1.641
    {"convolution fprop dense, stride 2 or more", {16, 96, 64, 64, 192, 2, 2, 2, 2, 0, 0, 1, 1, 1}, true},  // 1.729
    {"convolution fprop dense, stride 2 or more", {17, 96, 56, 56, 192, 2, 2, 2, 2, 0, 0, 1, 1, 1}, true},  // 1.807
    {"convolution fprop dense, stride 2 or more", {64, 128, 56, 56, 128, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.027
    {"convolution fprop dense, stride 2 or more", {64, 512, 14, 14, 512, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.138
    {"convolution fprop dense, stride 2 or more", {88, 320, 73, 130, 320, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.137
    {"convolution fprop dense, stride 2 or more", {112, 232, 56, 100, 232, 3, 3, 2, 2, 1, 1, 1, 1, 1}, true},  // 1.028
    {"convolution fprop grouped, stride 1", {64, 896, 14, 14, 896, 3, 3, 1, 1, 1, 1, 1, 1, 7}, false},  // 0.964
    {"convolution fprop grouped, stride 1", {64, 1024, 14, 14, 1024, 3, 3, 1, 1, 1, 1, 1, 1, 32}, false},  // 0.886
    {"convolution fprop grouped, stride 2 or more", {64, 48, 112, 112, 48, 3, 3, 2, 2, 1, 1, 1, 1, 6}, true},  // 1.272
    {"convolution fprop of few channels, stride 2 or more", {1, 3, 224, 224, 96, 4, 4, 4, 4, 0, 0, 1, 1, 1}, false},  // 0.831
    {"convolution fprop pointwise, stride 1", {54, 112, 28, 28, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.966
    {"convolution fprop pointwise, stride 1", {112, 112, 28, 28, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.936
    {"convolution fprop pointwise, stride 1", {200, 112, 24, 24, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, false},  // 0.783
    {"convolution wgrad dense, stride 1", {2, 512, 64, 85, 512, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.963
    {"convolution wgrad dense, stride 1", {8, 640, 32, 32, 640, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.913
    {"convolution wgrad dense, stride 1", {14, 640, 128, 128, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.902
    {"convolution wgrad dense, stride 1", {16, 2560, 16, 16, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.945
    {"convolution wgrad dense, stride 1", {57, 640, 64, 114, 320, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.961
    {"convolution wgrad dense, stride 1", {132, 2560, 16, 21, 1280, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.953
    {"convolution wgrad dense, stride 1", {136, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.907
    {"convolution wgrad dense, stride 1", {169, 512, 32, 32, 512, 3, 3, 1, 1, 2, 2, 2, 2, 1}, false},  // 0.901
    {"convolution wgrad dense, stride 1", {256, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1}, false},  // 0.855
    {"convolution wgrad dense, stride 2 or more", {2, 232, 56, 56, 232, 3, 3, 2, 2, 1, 1, 1, 1, 1}, false},  // 0.723
    {"convolution wgrad dense, stride 2 or more", {2, 232, 64, 64, 232, 3, 3, 2, 2, 1, 1, 1, 1, 1}, false},  // 0.872
    {"convolution wgrad dense, stride 2 or more", {3, 232, 56, 56, 232, 3, 3, 2, 2, 1, 1, 1, 1, 1}, false},  // 0.720
    {"convolution wgrad dense, stride 2 or more", {112, 232, 56, 100, 232, 3, 3, 2, 2, 1, 1, 1, 1, 1}, false},  // 0.960
    {"convolution wgrad grouped, stride 1", {1, 896, 14, 14, 896, 3, 3, 1, 1, 1, 1, 1, 1, 16}, false},  // 0.602
    {"convolution wgrad grouped, stride 1", {64, 1024, 14, 14, 1024, 3, 3, 1, 1, 1, 1, 1, 1, 32}, false},  // 0.951
    {"convolution wgrad grouped, stride 2 or more", {64, 48, 112, 112, 48, 3, 3, 2, 2, 1, 1, 1, 1, 6}, true},  // 1.381
    {"convolution wgrad pointwise, stride 1", {1, 112, 16, 16, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.696
    {"convolution wgrad pointwise, stride 1", {2, 40, 32, 43, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.058
    {"convolution wgrad pointwise, stride 1", {2, 112, 14, 14, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.800
    {"convolution wgrad pointwise, stride 1", {4, 40, 32, 32, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.206
    {"convolution wgrad pointwise, stride 1", {4, 112, 14, 14, 672, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.481
    {"convolution wgrad pointwise, stride 1", {4, 2048, 8, 8, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.922
    {"convolution wgrad pointwise, stride 1", {5, 64, 56, 75, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.077
    {"convolution wgrad pointwise, stride 1", {6, 40, 28, 28, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.171
    {"convolution wgrad pointwise, stride 1", {7, 320, 7, 9, 1280, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.670
    {"convolution wgrad pointwise, stride 1", {9, 64, 64, 85, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.036
    {"convolution wgrad pointwise, stride 1", {13, 40, 56, 100, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.405
    {"convolution wgrad pointwise, stride 1", {14, 24, 56, 56, 144, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.150
    {"convolution wgrad pointwise, stride 1", {16, 2048, 8, 11, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.369
    {"convolution wgrad pointwise, stride 1", {19, 16, 112, 199, 96, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.211
    {"convolution wgrad pointwise, stride 1", {26, 40, 48, 48, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.090
    {"convolution wgrad pointwise, stride 1", {32, 64, 56, 56, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.030
    {"convolution wgrad pointwise, stride 1", {32, 320, 7, 12, 1280, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.043
    {"convolution wgrad pointwise, stride 1", {32, 2048, 7, 7, 512, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.406
    {"convolution wgrad pointwise, stride 1", {36, 144, 96, 171, 24, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.281
    {"convolution wgrad pointwise, stride 1", {58, 40, 28, 50, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.167
    {"convolution wgrad pointwise, stride 1", {64, 64, 56, 56, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.181
    {"convolution wgrad pointwise, stride 1", {64, 256, 56, 56, 64, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.050
    {"convolution wgrad pointwise, stride 1", {64, 1024, 14, 14, 256, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.096
    {"convolution wgrad pointwise, stride 1", {88, 40, 32, 32, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.443
    {"convolution wgrad pointwise, stride 1", {95, 144, 56, 100, 24, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.108
    {"convolution wgrad pointwise, stride 1", {128, 24, 56, 75, 144, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.315
    {"convolution wgrad pointwise, stride 1", {199, 40, 56, 100, 240, 1, 1, 1, 1, 0, 0, 1, 1, 1}, true},  // 1.029
    {"mm nt", {1, 384, 3072, 6102}, false},  // 0.907
    {"mm nt", {1, 528, 7168, 13429}, false},  // 0.942
    {"mm nt", {1, 768, 3072, 8192}, false},  // 0.834
    {"mm nt", {1, 1024, 8192, 2256}, false},  // 0.956
    {"mm nt", {1, 1152, 4304, 10891}, false},  // 0.640
    {"mm nt", {1, 1536, 4096, 3706}, false},  // 0.968
    {"mm nt", {1, 2880, 1024, 1984}, false},  // 0.842
    {"mm nt", {1, 3072, 1536, 15469}, false},  // 0.942
    {"mm nt", {1, 3072, 8192, 5343}, false},  // 0.963
    {"mm nt", {1, 3840, 320, 388}, false},  // 0.914
    {"mm nt", {1, 3840, 1280, 2}, false},  // 0.859
    {"mm nt", {1, 4304, 1152, 7}, false},  // 0.873
    {"mm nt", {1, 4304, 1152, 3635}, false},  // 0.921
    {"mm nt", {1, 6144, 768, 400}, false},  // 0.935
    {"mm nt", {1, 6144, 4096, 1413}, false},  // 0.806
    {"mm nt", {1, 9216, 3072, 8192}, false},  // 0.969
    {"mm nt", {1, 10240, 8192, 1113}, false},  // 0.909
    {"mm nt", {1, 57344, 8192, 62}, false},  // 0.942
    {"mm tn", {1, 64, 10240, 8192}, false},  // 0.961
    {"mm tn", {1, 98, 7168, 2048}, false},  // 0.967
    {"mm tn", {1, 128, 8192, 8192}, false},  // 0.969
    {"mm tn", {1, 165, 4096, 28672}, false},  // 0.957
    {"mm tn", {1, 214, 1792, 18432}, false},  // 0.938
    {"mm tn", {1, 245, 32768, 5120}, false},  // 0.965
    {"mm tn", {1, 256, 7168, 16384}, false},  // 0.965
    {"mm tn", {1, 256, 57344, 8192}, false},  // 0.970
    {"mm tn", {1, 328, 8192, 2048}, false},  // 0.914
    {"mm tn", {1, 358, 8192, 3584}, false},  // 0.913
    {"mm tn", {1, 505, 3072, 4096}, false},  // 0.934
    {"mm tn", {1, 512, 2112, 7168}, false},  // 0.962
    {"mm tn", {1, 512, 7168, 2048}, false},  // 0.914
    {"mm tn", {1, 1024, 1440, 4096}, false},  // 0.949
    {"mm tn", {1, 1136, 128256, 4096}, false},  // 0.928
    {"mm tn", {1, 1413, 6144, 4096}, false},  // 0.959
    {"mm tn", {1, 2174, 201088, 2880}, true},  // 1.022
    {"mm tn", {1, 2453, 5120, 8192}, true},  // 1.025
    {"mm tn", {1, 2496, 24576, 384}, true},  // 1.135
    {"mm tn", {1, 2510, 3072, 2048}, true},  // 1.020
    {"mm tn", {1, 2784, 7168, 4096}, true},  // 1.043
    {"mm tn", {1, 2789, 768, 3072}, true},  // 1.023
    {"mm tn", {1, 2958, 24576, 384}, true},  // 1.259
    {"mm tn", {1, 3635, 4304, 1152}, true},  // 1.024
    {"mm tn", {1, 4016, 10240, 1024}, true},  // 1.147
    {"mm tn", {1, 4096, 6144, 4096}, true},  // 1.021
    {"mm tn", {1, 4096, 24576, 1536}, true},  // 1.075
    {"mm tn", {1, 4096, 28672, 4096}, true},  // 1.030
    {"mm tn", {1, 4096, 57344, 8192}, true},  // 1.027
    {"mm tn", {1, 5095, 1920, 1280}, true},  // 1.098
    {"mm tn", {1, 5544, 3072, 3072}, true},  // 1.065
    {"mm tn", {1, 6000, 32064, 768}, true},  // 1.199
    {"mm tn", {1, 6026, 24576, 768}, true},  // 1.182
    {"mm tn", {1, 6483, 128256, 4096}, true},  // 1.032
    {"mm tn", {1, 7396, 50272, 2880}, true},  // 1.033
    {"mm tn", {1, 7811, 201088, 2880}, true},  // 1.083
    {"mm tn", {1, 8192, 768, 3072}, true},  // 1.049
    {"mm tn", {1, 8192, 768, 4096}, true},  // 1.052
    {"mm tn", {1, 8192, 6144, 4096}, true},  // 1.042
    {"mm tn", {1, 8192, 7168, 2048}, true},  // 1.040
    {"mm tn", {1, 8192, 9216, 3072}, true},  // 1.043
    {"mm tn", {1, 8192, 10240, 8192}, true},  // 1.042
    {"mm tn", {1, 8192, 24576, 1536}, true},  // 1.051
    {"mm tn", {1, 8192, 57344, 8192}, true},  // 1.023
    {"mm tn", {1, 9479, 4304, 1152}, true},  // 1.194
    {"mm tn", {1, 9508, 896, 16384}, true},  // 1.093
    {"mm tn", {1, 10594, 5120, 3072}, true},  // 1.026
    {"mm tn", {1, 11111, 32768, 512}, true},  // 1.123
    {"mm tn", {1, 14361, 128256, 2048}, true},  // 1.078
    {"mm tn", {1, 14754, 2048, 256}, true},  // 1.141
    {"mm tn", {1, 15095, 2048, 512}, true},  // 1.290
    {"mm tn", {1, 15469, 3072, 1536}, true},  // 1.078
    {"mm tn", {1, 16169, 5120, 1280}, true},  // 1.039
    {"mm tt", {1, 1, 448, 4608}, true},  // 1.507
    {"mm tt", {1, 1, 768, 2304}, true},  // 1.318
    {"mm tt", {1, 1, 1152, 1152}, true},  // 1.330
    {"mm tt", {1, 1, 2048, 3072}, true},  // 1.471
    {"mm tt", {1, 1, 6144, 24576}, true},  // 1.020
    {"mm tt", {1, 3, 512, 32768}, false},  // 0.918
    {"mm tt", {1, 9, 6144, 12288}, false},  // 0.958
    {"mm tt", {1, 10, 1792, 36864}, false},  // 0.964
    {"mm tt", {1, 16, 16384, 5120}, false},  // 0.967
    {"mm tt", {1, 102, 4096, 128256}, false},  // 0.969
    {"mm tt", {1, 136, 4096, 14336}, true},  // 1.079
    {"mm tt", {1, 160, 320, 5120}, true},  // 1.279
    {"mm tt", {1, 169, 512, 3072}, true},  // 1.166
    {"mm tt", {1, 182, 2048, 3072}, true},  // 1.128
    {"mm tt", {1, 206, 768, 2304}, true},  // 1.426
    {"mm tt", {1, 208, 768, 2304}, true},  // 1.462
    {"mm tt", {1, 240, 1792, 4608}, true},  // 1.029
    {"mm tt", {1, 248, 4096, 768}, true},  // 1.088
    {"mm tt", {1, 252, 768, 32064}, true},  // 1.031
    {"mm tt", {1, 256, 512, 1000}, true},  // 1.275
    {"mm tt", {1, 256, 3072, 3072}, true},  // 1.055
    {"mm tt", {1, 256, 4096, 4096}, true},  // 1.027
    {"mm tt", {1, 315, 8192, 384}, true},  // 1.063
    {"mm tt", {1, 352, 768, 576}, true},  // 1.179
    {"mm tt", {1, 352, 3072, 9216}, true},  // 1.426
    {"mm tt", {1, 358, 3584, 8192}, true},  // 1.139
    {"mm tt", {1, 388, 320, 3840}, true},  // 1.142
    {"mm tt", {1, 400, 768, 288}, true},  // 1.210
    {"mm tt", {1, 400, 768, 6144}, true},  // 1.307
    {"mm tt", {1, 410, 768, 1152}, true},  // 1.224
    {"mm tt", {1, 448, 384, 9216}, true},  // 1.057
    {"mm tt", {1, 448, 512, 32768}, true},  // 1.165
    {"mm tt", {1, 483, 2048, 768}, true},  // 1.121
    {"mm tt", {1, 512, 2048, 768}, true},  // 1.169
    {"mm tt", {1, 609, 1024, 10240}, true},  // 1.025
    {"mm tt", {1, 940, 7168, 4608}, true},  // 1.038
    {"mm tt", {1, 1024, 256, 2048}, true},  // 1.140
    {"mm tt", {1, 1024, 2048, 2880}, true},  // 1.047
    {"mm tt", {1, 1984, 1024, 2880}, true},  // 1.028
    {"mm tt", {1, 2219, 3072, 3072}, true},  // 1.021
    {"mm tt", {1, 2256, 8192, 1024}, true},  // 1.102
    {"mm tt", {1, 2453, 8192, 5120}, true},  // 1.036
    {"mm tt", {1, 2789, 3072, 768}, true},  // 1.114
    {"mm tt", {1, 4096, 8192, 3072}, true},  // 1.029
    {"mm tt", {1, 4840, 768, 1152}, true},  // 1.020
    {"mm tt", {1, 6102, 3072, 384}, true},  // 1.201
    {"mm tt", {1, 7811, 2880, 201088}, true},  // 1.022
    {"mm tt", {1, 8192, 3072, 768}, true},  // 1.155
    {"mm tt", {1, 8192, 4096, 768}, true},  // 1.171
    {"mm tt", {1, 8192, 4304, 1152}, true},  // 1.144
    {"mm tt", {1, 9508, 16384, 896}, true},  // 1.089
    {"mm tt", {1, 10891, 4304, 1152}, true},  // 1.038
    {"mm tt", {1, 12886, 4304, 1152}, true},  // 1.161
    {"mm tt", {1, 15095, 512, 2048}, true},  // 1.026
    {"mm tt", {1, 15469, 1536, 3072}, true},  // 1.046
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
