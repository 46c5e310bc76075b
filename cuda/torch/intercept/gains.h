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
    {"_grouped_mm nt", 1, true},  // 13 problems, mean 1.092, a fifth up to 1.001
    {"_grouped_mm nt", 16, true},  // 11 problems, mean 1.145, a fifth up to 1.012
    {"_grouped_mm nt", 64, true},  // 13 problems, mean 1.105, a fifth up to 1.006
    {"_grouped_mm nt", 128, false},  // 12 problems, mean 1.081, a fifth up to 0.965
    {"_grouped_mm nt", 512, false},  // 8 problems, mean 1.028, a fifth up to 0.931
    {"_grouped_mm nt", 2048, false},  // 6 problems, mean 0.972, a fifth up to 0.878
    {"_grouped_mm tn", 1, true},  // 15 problems, mean 1.118, a fifth up to 1.073
    {"_grouped_mm tn", 16, true},  // 13 problems, mean 1.175, a fifth up to 1.125
    {"_grouped_mm tn", 64, true},  // 13 problems, mean 1.166, a fifth up to 1.064
    {"_grouped_mm tn", 128, true},  // 13 problems, mean 1.131, a fifth up to 1.064
    {"_grouped_mm tn", 512, false},  // 8 problems, mean 1.023, a fifth up to 0.925
    {"_grouped_mm tn", 2048, true},  // 6 problems, mean 1.068, a fifth up to 0.978
    {"_grouped_mm tt", 1, true},  // 15 problems, mean 1.103, a fifth up to 1.074
    {"_grouped_mm tt", 16, true},  // 13 problems, mean 1.178, a fifth up to 1.098
    {"_grouped_mm tt", 64, true},  // 13 problems, mean 1.150, a fifth up to 1.051
    {"_grouped_mm tt", 128, true},  // 13 problems, mean 1.155, a fifth up to 1.079
    {"_grouped_mm tt", 512, true},  // 8 problems, mean 1.100, a fifth up to 1.005
    {"_grouped_mm tt", 2048, false},  // 6 problems, mean 1.092, a fifth up to 0.951
    {"_scaled_grouped_mm rowwise", 1, true},  // 15 problems, mean 1.220, a fifth up to 1.132
    {"_scaled_grouped_mm rowwise", 16, true},  // 13 problems, mean 1.264, a fifth up to 1.177
    {"_scaled_grouped_mm rowwise", 64, true},  // 13 problems, mean 1.301, a fifth up to 1.140
    {"_scaled_grouped_mm rowwise", 128, true},  // 13 problems, mean 1.226, a fifth up to 1.080
    {"_scaled_grouped_mm rowwise", 512, true},  // 8 problems, mean 1.544, a fifth up to 1.040
    {"_scaled_grouped_mm rowwise", 2048, true},  // 6 problems, mean 1.461, a fifth up to 1.127
    {"_scaled_grouped_mm rowwise fast", 1, true},  // 15 problems, mean 1.141, a fifth up to 1.081
    {"_scaled_grouped_mm rowwise fast", 16, true},  // 13 problems, mean 1.156, a fifth up to 1.097
    {"_scaled_grouped_mm rowwise fast", 64, true},  // 13 problems, mean 1.149, a fifth up to 1.070
    {"_scaled_grouped_mm rowwise fast", 128, true},  // 13 problems, mean 1.105, a fifth up to 1.028
    {"_scaled_grouped_mm rowwise fast", 512, true},  // 8 problems, mean 1.346, a fifth up to 1.094
    {"_scaled_grouped_mm rowwise fast", 2048, false},  // 6 problems, mean 1.143, a fifth up to 0.950
    {"_scaled_mm 1x128 x 128x128", 16, true},  // 24 problems, mean 1.444, a fifth up to 1.096
    {"_scaled_mm 1x128 x 128x128", 64, true},  // 16 problems, mean 1.431, a fifth up to 1.146
    {"_scaled_mm 1x128 x 128x128", 128, true},  // 18 problems, mean 1.349, a fifth up to 1.046
    {"_scaled_mm 1x128 x 128x128", 512, true},  // 33 problems, mean 1.163, a fifth up to 1.022
    {"_scaled_mm 1x128 x 128x128", 2048, true},  // 27 problems, mean 1.084, a fifth up to 1.024
    {"_scaled_mm 1x128 x 128x128", 0, false},  // 37 problems, mean 0.994, a fifth up to 0.965
    {"_scaled_mm 1x128 x 1x128", 1, true},  // 20 problems, mean 1.449, a fifth up to 1.219
    {"_scaled_mm 1x128 x 1x128", 16, true},  // 25 problems, mean 1.071, a fifth up to 0.999
    {"_scaled_mm 1x128 x 1x128", 64, false},  // 19 problems, mean 1.021, a fifth up to 0.943
    {"_scaled_mm 1x128 x 1x128", 128, false},  // 19 problems, mean 1.021, a fifth up to 0.944
    {"_scaled_mm 1x128 x 1x128", 512, true},  // 37 problems, mean 1.033, a fifth up to 0.978
    {"_scaled_mm 1x128 x 1x128", 2048, false},  // 30 problems, mean 0.994, a fifth up to 0.930
    {"_scaled_mm 1x128 x 1x128", 0, false},  // 40 problems, mean 1.001, a fifth up to 0.971
    {"_scaled_mm rowwise", 1, true},  // 20 problems, mean 1.926, a fifth up to 1.705
    {"_scaled_mm rowwise", 16, true},  // 47 problems, mean 2.158, a fifth up to 1.598
    {"_scaled_mm rowwise", 64, true},  // 26 problems, mean 1.693, a fifth up to 1.448
    {"_scaled_mm rowwise", 128, true},  // 20 problems, mean 1.492, a fifth up to 1.140
    {"_scaled_mm rowwise", 512, true},  // 46 problems, mean 1.303, a fifth up to 1.033
    {"_scaled_mm rowwise", 2048, true},  // 38 problems, mean 1.215, a fifth up to 1.010
    {"_scaled_mm rowwise", 0, true},  // 56 problems, mean 1.059, a fifth up to 0.980
    {"_scaled_mm rowwise fast", 1, true},  // 20 problems, mean 1.665, a fifth up to 1.322
    {"_scaled_mm rowwise fast", 16, true},  // 47 problems, mean 1.980, a fifth up to 1.317
    {"_scaled_mm rowwise fast", 64, true},  // 26 problems, mean 1.584, a fifth up to 1.281
    {"_scaled_mm rowwise fast", 128, true},  // 20 problems, mean 1.456, a fifth up to 1.121
    {"_scaled_mm rowwise fast", 512, true},  // 46 problems, mean 1.263, a fifth up to 1.006
    {"_scaled_mm rowwise fast", 2048, true},  // 38 problems, mean 1.184, a fifth up to 1.008
    {"_scaled_mm rowwise fast", 0, false},  // 56 problems, mean 1.017, a fifth up to 0.958
    {"_scaled_mm tensorwise", 1, true},  // 20 problems, mean 1.110, a fifth up to 1.031
    {"_scaled_mm tensorwise", 16, true},  // 47 problems, mean 1.199, a fifth up to 1.037
    {"_scaled_mm tensorwise", 64, true},  // 26 problems, mean 1.126, a fifth up to 1.034
    {"_scaled_mm tensorwise", 128, true},  // 20 problems, mean 1.039, a fifth up to 1.011
    {"_scaled_mm tensorwise", 512, true},  // 46 problems, mean 1.045, a fifth up to 0.976
    {"_scaled_mm tensorwise", 2048, false},  // 38 problems, mean 1.028, a fifth up to 0.955
    {"_scaled_mm tensorwise", 0, false},  // 56 problems, mean 0.965, a fifth up to 0.929
    {"_scaled_mm tensorwise fast", 1, true},  // 20 problems, mean 1.112, a fifth up to 1.032
    {"_scaled_mm tensorwise fast", 16, true},  // 47 problems, mean 1.209, a fifth up to 1.047
    {"_scaled_mm tensorwise fast", 64, true},  // 26 problems, mean 1.122, a fifth up to 1.029
    {"_scaled_mm tensorwise fast", 128, false},  // 20 problems, mean 1.022, a fifth up to 0.969
    {"_scaled_mm tensorwise fast", 512, false},  // 46 problems, mean 1.027, a fifth up to 0.950
    {"_scaled_mm tensorwise fast", 2048, false},  // 38 problems, mean 1.035, a fifth up to 0.957
    {"_scaled_mm tensorwise fast", 0, false},  // 56 problems, mean 1.006, a fifth up to 0.949
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
    {"mm nt", 512, true},  // 7 problems, mean 1.261, a fifth up to 1.017
    {"mm nt", 2048, false},  // 43 problems, mean 1.034, a fifth up to 0.933
    {"mm nt", 0, true},  // 91 problems, mean 1.099, a fifth up to 0.973
    {"mm tn", 1, true},  // 21 problems, mean 1.112, a fifth up to 1.042
    {"mm tn", 16, true},  // 58 problems, mean 1.178, a fifth up to 1.065
    {"mm tn", 64, true},  // 28 problems, mean 1.118, a fifth up to 1.047
    {"mm tn", 128, true},  // 21 problems, mean 1.047, a fifth up to 1.017
    {"mm tn", 512, false},  // 53 problems, mean 1.019, a fifth up to 0.958
    {"mm tn", 2048, true},  // 41 problems, mean 1.043, a fifth up to 0.979
    {"mm tn", 0, false},  // 64 problems, mean 0.989, a fifth up to 0.961
    {"mm tt", 1, true},  // 7 problems, mean 1.186, a fifth up to 1.096
    {"mm tt", 16, true},  // 37 problems, mean 1.189, a fifth up to 1.003
    {"mm tt", 64, true},  // 14 problems, mean 1.178, a fifth up to 1.034
    {"mm tt", 128, true},  // 7 problems, mean 1.026, a fifth up to 0.984
    {"mm tt", 512, false},  // 23 problems, mean 0.997, a fifth up to 0.886
    {"mm tt", 2048, false},  // 20 problems, mean 0.983, a fifth up to 0.909
    {"mm tt", 0, false},  // 34 problems, mean 0.983, a fifth up to 0.950
};

// Problems that differ from their class, or have none.
constexpr MeasuredProblem kMeasuredProblems[] = {
    {"_grouped_mm nt", {256, 7168, 2048, 256}, false},  // 0.969
    {"_grouped_mm nt", {64, 2048, 1408, 285}, false},  // 0.964
    {"_grouped_mm nt", {128, 2048, 768, 8480}, true},  // 1.056
    {"_grouped_mm nt", {60, 1792, 3072, 4436}, true},  // 1.397
    {"_grouped_mm nt", {16, 16384, 5120, 1342}, true},  // 1.028
    {"_grouped_mm nt", {32, 2880, 2880, 3761}, true},  // 1.041
    {"_grouped_mm nt", {64, 2048, 2048, 8192}, true},  // 1.422
    {"_grouped_mm nt", {128, 1536, 2048, 16384}, true},  // 1.031
    {"_grouped_mm nt", {128, 2048, 768, 16384}, true},  // 1.246
    {"_grouped_mm nt", {64, 2816, 2048, 8557}, true},  // 1.200
    {"_grouped_mm nt", {60, 768, 2880, 9344}, true},  // 1.135
    {"_grouped_mm nt", {16, 5120, 8192, 5886}, true},  // 1.039
    {"_grouped_mm nt", {8, 28672, 4096, 4096}, true},  // 1.102
    {"_grouped_mm nt", {4, 2880, 2560, 2939}, true},  // 1.145
    {"_grouped_mm nt", {16, 1408, 5120, 15309}, true},  // 1.134
    {"_grouped_mm nt", {8, 7168, 2048, 32768}, true},  // 1.033
    {"_grouped_mm nt", {4, 4096, 7168, 32768}, false},  // 1.002
    {"_grouped_mm tn", {8, 876, 4096, 14336}, false},  // 0.967
    {"_grouped_mm tn", {64, 8557, 2816, 2048}, true},  // 1.052
    {"_grouped_mm tn", {60, 9344, 768, 2880}, true},  // 1.201
    {"_grouped_mm tn", {64, 14933, 2048, 1408}, true},  // 1.073
    {"_grouped_mm tn", {16, 5886, 5120, 8192}, true},  // 1.070
    {"_grouped_mm tn", {8, 4096, 28672, 4096}, true},  // 1.033
    {"_grouped_mm tn", {8, 32768, 7168, 2048}, false},  // 0.945
    {"_grouped_mm tn", {4, 32768, 4096, 7168}, false},  // 1.018
    {"_grouped_mm tt", {4, 2939, 2560, 2880}, true},  // 1.550
    {"_grouped_mm tt", {16, 15309, 5120, 1408}, true},  // 1.118
    {"_grouped_mm tt", {8, 8192, 14336, 4096}, true},  // 1.024
    {"_grouped_mm tt", {8, 12114, 14336, 4096}, true},  // 1.055
    {"_grouped_mm tt", {8, 32768, 2048, 7168}, false},  // 0.993
    {"_grouped_mm tt", {4, 32768, 7168, 4096}, true},  // 1.027
    {"_scaled_grouped_mm rowwise", {8, 1569, 4096, 14336}, false},  // 0.940
    {"_scaled_grouped_mm rowwise", {8, 32768, 7168, 2048}, true},  // 1.231
    {"_scaled_grouped_mm rowwise", {4, 32768, 4096, 7168}, true},  // 1.254
    {"_scaled_grouped_mm rowwise fast", {8, 876, 4096, 14336}, false},  // 0.936
    {"_scaled_grouped_mm rowwise fast", {4, 2939, 2880, 2560}, true},  // 1.587
    {"_scaled_grouped_mm rowwise fast", {16, 15309, 1408, 5120}, true},  // 1.411
    {"_scaled_grouped_mm rowwise fast", {8, 12114, 4096, 14336}, true},  // 1.159
    {"_scaled_grouped_mm rowwise fast", {8, 32768, 7168, 2048}, false},  // 0.921
    {"_scaled_grouped_mm rowwise fast", {4, 32768, 4096, 7168}, true},  // 1.065
    {"_scaled_mm 1x128 x 128x128", {1, 4, 384, 24576}, false},  // 0.562
    {"_scaled_mm 1x128 x 128x128", {1, 64, 10240, 8192}, false},  // 0.963
    {"_scaled_mm 1x128 x 128x128", {1, 128, 57344, 8192}, false},  // 0.953
    {"_scaled_mm 1x128 x 128x128", {1, 464, 10240, 8192}, false},  // 0.960
    {"_scaled_mm 1x128 x 128x128", {1, 512, 4096, 14336}, false},  // 0.960
    {"_scaled_mm 1x128 x 128x128", {1, 784, 32768, 5120}, false},  // 0.969
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 4096, 7168}, true},  // 1.053
    {"_scaled_mm 1x128 x 128x128", {1, 4096, 6144, 4096}, true},  // 1.039
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
    {"_scaled_mm 1x128 x 1x128", {1, 32, 5120, 2880}, true},  // 1.027
    {"_scaled_mm 1x128 x 1x128", {1, 48, 5120, 640}, true},  // 1.250
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
    {"_scaled_mm 1x128 x 1x128", {1, 160, 7168, 8192}, false},  // 0.915
    {"_scaled_mm 1x128 x 1x128", {1, 200, 2880, 4096}, false},  // 0.892
    {"_scaled_mm 1x128 x 1x128", {1, 256, 2112, 7168}, false},  // 0.919
    {"_scaled_mm 1x128 x 1x128", {1, 512, 2112, 7168}, false},  // 0.841
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
    {"_scaled_mm 1x128 x 1x128", {1, 6496, 2048, 256}, true},  // 1.334
    {"_scaled_mm 1x128 x 1x128", {1, 11672, 57344, 8192}, true},  // 1.061
    {"_scaled_mm rowwise", {1, 1024, 4096, 4096}, false},  // 0.929
    {"_scaled_mm rowwise", {1, 1024, 4096, 14336}, false},  // 0.956
    {"_scaled_mm rowwise", {1, 4096, 7168, 2048}, false},  // 0.952
    {"_scaled_mm rowwise", {1, 4096, 8192, 8192}, false},  // 0.938
    {"_scaled_mm rowwise", {1, 8192, 3072, 24576}, false},  // 0.964
    {"_scaled_mm rowwise", {1, 8192, 4096, 14336}, false},  // 0.956
    {"_scaled_mm rowwise", {1, 12789, 6144, 6144}, false},  // 0.956
    {"_scaled_mm rowwise", {1, 13047, 4096, 28672}, false},  // 0.945
    {"_scaled_mm rowwise fast", {1, 465, 8192, 8192}, false},  // 0.933
    {"_scaled_mm rowwise fast", {1, 512, 4096, 7168}, false},  // 0.888
    {"_scaled_mm rowwise fast", {1, 512, 4096, 14336}, false},  // 0.937
    {"_scaled_mm rowwise fast", {1, 880, 9216, 4608}, false},  // 0.924
    {"_scaled_mm rowwise fast", {1, 2102, 24576, 1536}, true},  // 1.083
    {"_scaled_mm rowwise fast", {1, 2384, 768, 384}, true},  // 1.242
    {"_scaled_mm rowwise fast", {1, 2758, 448, 2560}, true},  // 1.309
    {"_scaled_mm rowwise fast", {1, 4011, 1600, 24576}, true},  // 1.108
    {"_scaled_mm rowwise fast", {1, 4096, 768, 24576}, true},  // 1.322
    {"_scaled_mm rowwise fast", {1, 4096, 2112, 7168}, true},  // 1.064
    {"_scaled_mm rowwise fast", {1, 4128, 32768, 640}, true},  // 1.030
    {"_scaled_mm rowwise fast", {1, 4358, 512, 7168}, true},  // 1.535
    {"_scaled_mm rowwise fast", {1, 5118, 4608, 448}, true},  // 1.162
    {"_scaled_mm rowwise fast", {1, 6496, 2048, 256}, true},  // 1.387
    {"_scaled_mm rowwise fast", {1, 8192, 2112, 7168}, true},  // 1.036
    {"_scaled_mm rowwise fast", {1, 8845, 1152, 1152}, true},  // 1.221
    {"_scaled_mm rowwise fast", {1, 11672, 57344, 8192}, true},  // 1.077
    {"_scaled_mm rowwise fast", {1, 15654, 768, 2048}, true},  // 1.054
    {"_scaled_mm tensorwise", {1, 2, 384, 24576}, false},  // 0.617
    {"_scaled_mm tensorwise", {1, 5, 4608, 3584}, false},  // 0.957
    {"_scaled_mm tensorwise", {1, 64, 4096, 4096}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 64, 4096, 14336}, false},  // 0.961
    {"_scaled_mm tensorwise", {1, 96, 1152, 4304}, false},  // 0.855
    {"_scaled_mm tensorwise", {1, 128, 1792, 18432}, false},  // 0.930
    {"_scaled_mm tensorwise", {1, 128, 8192, 28672}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 256, 8192, 8192}, false},  // 0.966
    {"_scaled_mm tensorwise", {1, 462, 32768, 1280}, false},  // 0.892
    {"_scaled_mm tensorwise", {1, 464, 10240, 8192}, false},  // 0.887
    {"_scaled_mm tensorwise", {1, 465, 8192, 8192}, false},  // 0.873
    {"_scaled_mm tensorwise", {1, 482, 4544, 3456}, false},  // 0.946
    {"_scaled_mm tensorwise", {1, 512, 2112, 7168}, false},  // 0.899
    {"_scaled_mm tensorwise", {1, 512, 4096, 4096}, false},  // 0.958
    {"_scaled_mm tensorwise", {1, 512, 4096, 14336}, false},  // 0.953
    {"_scaled_mm tensorwise", {1, 512, 7168, 2048}, false},  // 0.940
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
    {"_scaled_mm tensorwise", {1, 1488, 768, 4096}, true},  // 1.133
    {"_scaled_mm tensorwise", {1, 1584, 3584, 4096}, true},  // 1.210
    {"_scaled_mm tensorwise", {1, 1915, 3072, 1024}, true},  // 1.173
    {"_scaled_mm tensorwise", {1, 2384, 768, 384}, true},  // 1.168
    {"_scaled_mm tensorwise", {1, 2758, 448, 2560}, true},  // 1.110
    {"_scaled_mm tensorwise", {1, 4096, 768, 24576}, true},  // 1.052
    {"_scaled_mm tensorwise", {1, 5118, 4608, 448}, true},  // 1.025
    {"_scaled_mm tensorwise", {1, 6496, 2048, 256}, true},  // 1.268
    {"_scaled_mm tensorwise", {1, 8192, 2112, 7168}, true},  // 1.052
    {"_scaled_mm tensorwise", {1, 8845, 1152, 1152}, true},  // 1.086
    {"_scaled_mm tensorwise fast", {1, 2, 384, 24576}, false},  // 0.623
    {"_scaled_mm tensorwise fast", {1, 5, 4608, 3584}, false},  // 0.966
    {"_scaled_mm tensorwise fast", {1, 64, 4096, 14336}, false},  // 0.956
    {"_scaled_mm tensorwise fast", {1, 69, 2048, 1408}, true},  // 1.250
    {"_scaled_mm tensorwise fast", {1, 96, 8192, 14336}, true},  // 1.031
    {"_scaled_mm tensorwise fast", {1, 128, 2112, 7168}, true},  // 1.077
    {"_scaled_mm tensorwise fast", {1, 128, 4096, 4096}, true},  // 1.043
    {"_scaled_mm tensorwise fast", {1, 128, 4096, 7168}, true},  // 1.041
    {"_scaled_mm tensorwise fast", {1, 128, 4096, 14336}, true},  // 1.023
    {"_scaled_mm tensorwise fast", {1, 128, 7168, 2048}, true},  // 1.023
    {"_scaled_mm tensorwise fast", {1, 128, 9216, 3072}, true},  // 1.050
    {"_scaled_mm tensorwise fast", {1, 128, 24576, 1536}, true},  // 1.067
    {"_scaled_mm tensorwise fast", {1, 128, 28672, 4096}, true},  // 1.081
    {"_scaled_mm tensorwise fast", {1, 128, 32768, 5120}, true},  // 1.076
    {"_scaled_mm tensorwise fast", {1, 128, 57344, 8192}, true},  // 1.056
    {"_scaled_mm tensorwise fast", {1, 147, 1152, 1152}, true},  // 1.429
    {"_scaled_mm tensorwise fast", {1, 200, 2880, 4096}, true},  // 1.051
    {"_scaled_mm tensorwise fast", {1, 206, 640, 1280}, true},  // 1.380
    {"_scaled_mm tensorwise fast", {1, 208, 1024, 4096}, true},  // 1.327
    {"_scaled_mm tensorwise fast", {1, 224, 5120, 1280}, true},  // 1.076
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 4096}, true},  // 1.099
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 7168}, true},  // 1.061
    {"_scaled_mm tensorwise fast", {1, 256, 4096, 14336}, true},  // 1.038
    {"_scaled_mm tensorwise fast", {1, 256, 24576, 1536}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 256, 28672, 4096}, true},  // 1.074
    {"_scaled_mm tensorwise fast", {1, 348, 4304, 1152}, true},  // 1.113
    {"_scaled_mm tensorwise fast", {1, 453, 1024, 2048}, true},  // 1.143
    {"_scaled_mm tensorwise fast", {1, 512, 512, 512}, true},  // 1.497
    {"_scaled_mm tensorwise fast", {1, 512, 1152, 1152}, true},  // 1.096
    {"_scaled_mm tensorwise fast", {1, 512, 1280, 2560}, true},  // 1.021
    {"_scaled_mm tensorwise fast", {1, 512, 24576, 1536}, true},  // 1.167
    {"_scaled_mm tensorwise fast", {1, 512, 57344, 8192}, true},  // 1.025
    {"_scaled_mm tensorwise fast", {1, 539, 384, 2048}, true},  // 1.317
    {"_scaled_mm tensorwise fast", {1, 604, 1536, 4096}, true},  // 1.335
    {"_scaled_mm tensorwise fast", {1, 718, 3072, 960}, true},  // 1.073
    {"_scaled_mm tensorwise fast", {1, 728, 1024, 8192}, true},  // 1.124
    {"_scaled_mm tensorwise fast", {1, 765, 8192, 1024}, true},  // 1.095
    {"_scaled_mm tensorwise fast", {1, 880, 3840, 1280}, true},  // 1.062
    {"_scaled_mm tensorwise fast", {1, 1024, 1024, 1024}, true},  // 1.178
    {"_scaled_mm tensorwise fast", {1, 1024, 2112, 7168}, true},  // 1.056
    {"_scaled_mm tensorwise fast", {1, 1024, 2304, 768}, true},  // 1.067
    {"_scaled_mm tensorwise fast", {1, 1024, 4096, 4096}, true},  // 1.046
    {"_scaled_mm tensorwise fast", {1, 1024, 6144, 4096}, true},  // 1.061
    {"_scaled_mm tensorwise fast", {1, 1024, 7168, 2048}, true},  // 1.114
    {"_scaled_mm tensorwise fast", {1, 1024, 7168, 16384}, true},  // 1.109
    {"_scaled_mm tensorwise fast", {1, 1024, 10240, 8192}, true},  // 1.034
    {"_scaled_mm tensorwise fast", {1, 1024, 16384, 512}, true},  // 1.216
    {"_scaled_mm tensorwise fast", {1, 1024, 24576, 1536}, true},  // 1.169
    {"_scaled_mm tensorwise fast", {1, 1024, 28672, 4096}, true},  // 1.057
    {"_scaled_mm tensorwise fast", {1, 1024, 57344, 8192}, true},  // 1.020
    {"_scaled_mm tensorwise fast", {1, 1503, 512, 7168}, true},  // 1.076
    {"_scaled_mm tensorwise fast", {1, 2048, 2048, 2048}, true},  // 1.077
    {"_scaled_mm tensorwise fast", {1, 2102, 24576, 1536}, true},  // 1.032
    {"_scaled_mm tensorwise fast", {1, 2384, 768, 384}, true},  // 1.174
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
    {"_scaled_mm tensorwise fast", {1, 5118, 4608, 448}, true},  // 1.125
    {"_scaled_mm tensorwise fast", {1, 5312, 768, 3072}, true},  // 1.063
    {"_scaled_mm tensorwise fast", {1, 6144, 3072, 3072}, true},  // 1.064
    {"_scaled_mm tensorwise fast", {1, 8192, 2112, 7168}, true},  // 1.051
    {"_scaled_mm tensorwise fast", {1, 8192, 4096, 4096}, true},  // 1.063
    {"_scaled_mm tensorwise fast", {1, 8192, 4096, 7168}, true},  // 1.027
    {"_scaled_mm tensorwise fast", {1, 8192, 7168, 2048}, true},  // 1.029
    {"_scaled_mm tensorwise fast", {1, 8192, 8192, 28672}, true},  // 1.024
    {"_scaled_mm tensorwise fast", {1, 8192, 24576, 1536}, true},  // 1.166
    {"_scaled_mm tensorwise fast", {1, 8192, 28672, 4096}, true},  // 1.078
    {"_scaled_mm tensorwise fast", {1, 8192, 57344, 8192}, true},  // 1.050
    {"_scaled_mm tensorwise fast", {1, 8845, 1152, 1152}, true},  // 1.119
    {"_scaled_mm tensorwise fast", {1, 11672, 57344, 8192}, true},  // 1.028
    {"_scaled_mm tensorwise fast", {1, 12789, 6144, 6144}, true},  // 1.031
    {"_scaled_mm tensorwise fast", {1, 15654, 768, 2048}, true},  // 1.112
    {"_scaled_mm tensorwise fast", {1, 16190, 5120, 16384}, true},  // 1.024
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
    {"mm nt", {1, 768, 2048, 15654}, true},  // 1.198
    {"mm nt", {1, 768, 3072, 5}, true},  // 1.033
    {"mm nt", {1, 768, 4096, 1488}, true},  // 1.034
    {"mm nt", {1, 1000, 512, 4}, true},  // 1.052
    {"mm nt", {1, 1000, 2048, 5}, true},  // 1.150
    {"mm nt", {1, 1000, 2048, 16}, true},  // 1.181
    {"mm nt", {1, 1024, 2048, 453}, true},  // 1.071
    {"mm nt", {1, 1024, 4096, 208}, true},  // 1.170
    {"mm nt", {1, 1024, 7168, 4}, true},  // 1.223
    {"mm nt", {1, 1024, 7168, 5}, true},  // 1.224
    {"mm nt", {1, 1152, 1152, 2}, true},  // 1.030
    {"mm nt", {1, 1152, 1152, 147}, true},  // 1.086
    {"mm nt", {1, 1152, 4304, 13}, true},  // 1.099
    {"mm nt", {1, 1152, 4304, 96}, true},  // 1.090
    {"mm nt", {1, 1280, 2560, 1}, true},  // 1.634
    {"mm nt", {1, 1280, 2560, 512}, true},  // 1.048
    {"mm nt", {1, 1280, 5120, 32}, true},  // 1.146
    {"mm nt", {1, 1792, 18432, 128}, true},  // 1.128
    {"mm nt", {1, 2048, 8192, 4}, true},  // 1.148
    {"mm nt", {1, 2048, 8192, 128}, true},  // 1.156
    {"mm nt", {1, 3072, 1024, 1915}, false},  // 0.843
    {"mm nt", {1, 3584, 2048, 4}, false},  // 0.959
    {"mm nt", {1, 3584, 4096, 1584}, false},  // 0.955
    {"mm nt", {1, 3840, 1280, 880}, false},  // 0.908
    {"mm nt", {1, 4096, 14336, 2049}, false},  // 0.950
    {"mm nt", {1, 4304, 1152, 348}, false},  // 0.925
    {"mm nt", {1, 4608, 448, 5118}, false},  // 0.799
    {"mm nt", {1, 5120, 720, 2048}, false},  // 0.897
    {"mm nt", {1, 5120, 16384, 909}, false},  // 0.895
    {"mm nt", {1, 5120, 16384, 979}, false},  // 0.905
    {"mm nt", {1, 8192, 8192, 465}, false},  // 0.906
    {"mm nt", {1, 9216, 3072, 5004}, false},  // 0.911
    {"mm nt", {1, 10240, 1024, 14280}, false},  // 0.938
    {"mm nt", {1, 16384, 512, 1024}, false},  // 0.950
    {"mm nt", {1, 32768, 640, 4128}, false},  // 0.960
    {"mm nt", {1, 32768, 5120, 784}, false},  // 0.959
    {"mm nt", {1, 50272, 2880, 284}, false},  // 0.941
    {"mm tn", {1, 2, 384, 24576}, false},  // 0.629
    {"mm tn", {1, 2, 6144, 2584}, false},  // 0.947
    {"mm tn", {1, 64, 4096, 4096}, false},  // 0.957
    {"mm tn", {1, 96, 1152, 4304}, false},  // 0.890
    {"mm tn", {1, 128, 6144, 4096}, false},  // 0.904
    {"mm tn", {1, 128, 8192, 8192}, false},  // 0.956
    {"mm tn", {1, 147, 1152, 1152}, true},  // 1.425
    {"mm tn", {1, 160, 3072, 1024}, true},  // 1.061
    {"mm tn", {1, 206, 640, 1280}, true},  // 1.222
    {"mm tn", {1, 208, 1024, 4096}, true},  // 1.279
    {"mm tn", {1, 224, 5120, 1280}, true},  // 1.049
    {"mm tn", {1, 240, 5120, 2880}, true},  // 1.034
    {"mm tn", {1, 256, 4096, 4096}, true},  // 1.068
    {"mm tn", {1, 256, 4096, 14336}, true},  // 1.153
    {"mm tn", {1, 256, 8192, 28672}, true},  // 1.069
    {"mm tn", {1, 256, 10240, 8192}, true},  // 1.057
    {"mm tn", {1, 256, 24576, 1536}, true},  // 1.095
    {"mm tn", {1, 256, 28672, 4096}, true},  // 1.115
    {"mm tn", {1, 270, 4096, 4096}, true},  // 1.037
    {"mm tn", {1, 453, 1024, 2048}, true},  // 1.112
    {"mm tn", {1, 512, 512, 512}, true},  // 1.429
    {"mm tn", {1, 512, 1000, 2048}, true},  // 1.158
    {"mm tn", {1, 512, 1152, 1152}, true},  // 1.095
    {"mm tn", {1, 512, 1280, 2560}, true},  // 1.046
    {"mm tn", {1, 512, 24576, 1536}, true},  // 1.107
    {"mm tn", {1, 616, 4608, 5608}, false},  // 0.933
    {"mm tn", {1, 768, 3072, 3072}, false},  // 0.930
    {"mm tn", {1, 909, 5120, 16384}, false},  // 0.951
    {"mm tn", {1, 1076, 7168, 16384}, false},  // 0.938
    {"mm tn", {1, 1488, 768, 4096}, false},  // 0.915
    {"mm tn", {1, 1584, 3584, 4096}, false},  // 0.965
    {"mm tn", {1, 1872, 8192, 8192}, false},  // 0.923
    {"mm tn", {1, 2048, 5120, 720}, false},  // 0.931
    {"mm tn", {1, 2384, 768, 384}, true},  // 1.171
    {"mm tn", {1, 2384, 8192, 8192}, true},  // 1.029
    {"mm tn", {1, 2758, 448, 2560}, true},  // 1.051
    {"mm tn", {1, 3838, 24552, 6656}, true},  // 1.021
    {"mm tn", {1, 4096, 24576, 1536}, true},  // 1.080
    {"mm tn", {1, 4096, 28672, 4096}, true},  // 1.030
    {"mm tn", {1, 4128, 32768, 640}, true},  // 1.020
    {"mm tn", {1, 4144, 16384, 2048}, true},  // 1.027
    {"mm tn", {1, 4358, 512, 7168}, true},  // 1.065
    {"mm tn", {1, 5118, 4608, 448}, true},  // 1.226
    {"mm tn", {1, 6496, 2048, 256}, true},  // 1.152
    {"mm tn", {1, 8192, 4096, 4096}, true},  // 1.031
    {"mm tn", {1, 8192, 7168, 2048}, true},  // 1.050
    {"mm tn", {1, 8192, 8192, 28672}, true},  // 1.030
    {"mm tn", {1, 8192, 24576, 1536}, true},  // 1.065
    {"mm tn", {1, 8192, 28672, 4096}, true},  // 1.033
    {"mm tn", {1, 8204, 768, 3072}, true},  // 1.027
    {"mm tn", {1, 9494, 2048, 1024}, true},  // 1.063
    {"mm tn", {1, 15654, 768, 2048}, true},  // 1.037
    {"mm tt", {1, 1, 4096, 3072}, false},  // 0.891
    {"mm tt", {1, 2, 6144, 49152}, false},  // 0.895
    {"mm tt", {1, 4, 4096, 3072}, false},  // 0.902
    {"mm tt", {1, 6, 4096, 4096}, false},  // 0.956
    {"mm tt", {1, 63, 14336, 4096}, false},  // 0.969
    {"mm tt", {1, 128, 18432, 1792}, false},  // 0.967
    {"mm tt", {1, 147, 1152, 1152}, true},  // 1.469
    {"mm tt", {1, 160, 1024, 3072}, true},  // 1.126
    {"mm tt", {1, 200, 4096, 2880}, true},  // 1.105
    {"mm tt", {1, 206, 1280, 640}, true},  // 1.267
    {"mm tt", {1, 208, 4096, 1024}, true},  // 1.026
    {"mm tt", {1, 256, 7168, 4096}, true},  // 1.055
    {"mm tt", {1, 453, 2048, 1024}, true},  // 1.161
    {"mm tt", {1, 512, 1152, 1152}, true},  // 1.093
    {"mm tt", {1, 512, 2560, 1280}, true},  // 1.071
    {"mm tt", {1, 539, 2048, 384}, true},  // 1.120
    {"mm tt", {1, 704, 7168, 4096}, true},  // 1.737
    {"mm tt", {1, 1056, 8192, 8192}, true},  // 1.093
    {"mm tt", {1, 1488, 4096, 768}, true},  // 1.071
    {"mm tt", {1, 1503, 7168, 512}, true},  // 1.076
    {"mm tt", {1, 2384, 384, 768}, true},  // 1.061
    {"mm tt", {1, 2592, 8192, 57344}, true},  // 1.066
    {"mm tt", {1, 4358, 7168, 512}, true},  // 1.030
    {"mm tt", {1, 5118, 448, 4608}, true},  // 1.032
    {"mm tt", {1, 5312, 3072, 768}, true},  // 1.124
    {"mm tt", {1, 8204, 3072, 768}, true},  // 1.054
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
