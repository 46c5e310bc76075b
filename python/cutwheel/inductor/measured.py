"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 68 problems, mean 1.072, a fifth up to 0.999
    ("activation", 2048): True,  # 32 problems, mean 1.101, a fifth up to 1.023
    ("activation", 512): True,  # 46 problems, mean 1.088, a fifth up to 1.014
    ("activation", 64): True,  # 35 problems, mean 1.097, a fifth up to 1.006
    ("activation, goes on", 0): False,  # 68 problems, mean 0.972, a fifth up to 0.934
    ("activation, goes on", 2048): False,  # 32 problems, mean 1.002, a fifth up to 0.967
    ("activation, goes on", 512): False,  # 46 problems, mean 1.003, a fifth up to 0.953
    ("activation, goes on", 64): True,  # 35 problems, mean 1.091, a fifth up to 0.998
    ("activation, shared", 0): False,  # 68 problems, mean 1.024, a fifth up to 0.966
    ("activation, shared", 2048): True,  # 32 problems, mean 1.053, a fifth up to 0.998
    ("activation, shared", 512): True,  # 46 problems, mean 1.046, a fifth up to 0.990
    ("activation, shared", 64): True,  # 35 problems, mean 1.094, a fifth up to 1.002
    ("bias", 0): False,  # 70 problems, mean 1.007, a fifth up to 0.996
    ("bias", 2048): True,  # 42 problems, mean 1.035, a fifth up to 0.998
    ("bias", 512): True,  # 99 problems, mean 1.032, a fifth up to 0.996
    ("bias", 64): True,  # 115 problems, mean 1.108, a fifth up to 1.027
    ("gated", 0): True,  # 68 problems, mean 1.138, a fifth up to 1.031
    ("gated", 2048): True,  # 32 problems, mean 1.189, a fifth up to 1.049
    ("gated", 512): True,  # 46 problems, mean 1.268, a fifth up to 1.083
    ("gated", 64): True,  # 35 problems, mean 1.353, a fifth up to 1.065
    ("gated, goes on", 0): True,  # 68 problems, mean 1.083, a fifth up to 1.007
    ("gated, goes on", 2048): True,  # 32 problems, mean 1.133, a fifth up to 1.032
    ("gated, goes on", 512): True,  # 46 problems, mean 1.217, a fifth up to 1.063
    ("gated, goes on", 64): True,  # 35 problems, mean 1.349, a fifth up to 1.063
    ("gated, shared", 0): True,  # 68 problems, mean 1.111, a fifth up to 1.017
    ("gated, shared", 2048): True,  # 32 problems, mean 1.161, a fifth up to 1.041
    ("gated, shared", 512): True,  # 46 problems, mean 1.243, a fifth up to 1.070
    ("gated, shared", 64): True,  # 35 problems, mean 1.351, a fifth up to 1.063
    ("residual", 0): True,  # 68 problems, mean 1.106, a fifth up to 1.011
    ("residual", 2048): True,  # 32 problems, mean 1.112, a fifth up to 1.030
    ("residual", 512): True,  # 46 problems, mean 1.088, a fifth up to 1.005
    ("residual", 64): True,  # 35 problems, mean 1.092, a fifth up to 1.009
    ("residual, goes on", 0): False,  # 68 problems, mean 1.009, a fifth up to 0.965
    ("residual, goes on", 2048): False,  # 32 problems, mean 1.017, a fifth up to 0.994
    ("residual, goes on", 512): False,  # 46 problems, mean 1.007, a fifth up to 0.940
    ("residual, goes on", 64): True,  # 35 problems, mean 1.087, a fifth up to 1.005
    ("residual, shared", 0): True,  # 68 problems, mean 1.058, a fifth up to 0.987
    ("residual, shared", 2048): True,  # 32 problems, mean 1.065, a fifth up to 1.012
    ("residual, shared", 512): True,  # 46 problems, mean 1.048, a fifth up to 0.984
    ("residual, shared", 64): True,  # 35 problems, mean 1.090, a fifth up to 1.008
    ("rowwise", 0): False,  # 84 problems, mean 1.027, a fifth up to 0.961
    ("rowwise", 2048): True,  # 48 problems, mean 1.125, a fifth up to 0.992
    ("rowwise", 512): True,  # 114 problems, mean 1.280, a fifth up to 1.038
    ("rowwise", 64): True,  # 139 problems, mean 1.745, a fifth up to 1.367
    ("rowwise, fast", 0): False,  # 84 problems, mean 1.001, a fifth up to 0.964
    ("rowwise, fast", 2048): True,  # 48 problems, mean 1.111, a fifth up to 0.989
    ("rowwise, fast", 512): True,  # 114 problems, mean 1.255, a fifth up to 1.014
    ("rowwise, fast", 64): True,  # 139 problems, mean 1.571, a fifth up to 1.197
    ("tensorwise", 0): False,  # 84 problems, mean 0.959, a fifth up to 0.916
    ("tensorwise", 2048): False,  # 48 problems, mean 0.996, a fifth up to 0.957
    ("tensorwise", 512): True,  # 114 problems, mean 1.045, a fifth up to 0.980
    ("tensorwise", 64): True,  # 139 problems, mean 1.127, a fifth up to 1.029
    ("tensorwise, fast", 0): False,  # 84 problems, mean 1.009, a fifth up to 0.967
    ("tensorwise, fast", 2048): True,  # 48 problems, mean 1.037, a fifth up to 0.998
    ("tensorwise, fast", 512): True,  # 114 problems, mean 1.041, a fifth up to 0.986
    ("tensorwise, fast", 64): True,  # 139 problems, mean 1.127, a fifth up to 1.030
}

# Kind, filter, and whether it is strided.
CONVOLUTIONS = {
    ("convolution", "1x1", False): True,  # 35 problems, mean 1.326, a fifth up to 1.152
    ("convolution", "1x1", True): True,  # 4 problems, mean 1.747, a fifth up to 1.552
    ("convolution", "3x3", False): True,  # 80 problems, mean 1.339, a fifth up to 1.083
    ("convolution", "3x3", True): True,  # 19 problems, mean 1.246, a fifth up to 1.011
    ("convolution", "other", False): True,  # 4 problems, mean 1.849, a fifth up to 1.600
    ("convolution", "other", True): True,  # 16 problems, mean 2.990, a fifth up to 1.749
    ("convolution, goes on", "1x1", False): False,  # 35 problems, mean 0.984, a fifth up to 0.875
    ("convolution, goes on", "1x1", True): True,  # 4 problems, mean 1.375, a fifth up to 1.088
    ("convolution, goes on", "3x3", False): True,  # 80 problems, mean 1.189, a fifth up to 0.983
    ("convolution, goes on", "3x3", True): False,  # 19 problems, mean 1.088, a fifth up to 0.924
    ("convolution, goes on", "other", False): True,  # 4 problems, mean 1.707, a fifth up to 1.562
    ("convolution, goes on", "other", True): True,  # 16 problems, mean 2.721, a fifth up to 1.552
    ("convolution, shared", "1x1", False): True,  # 35 problems, mean 1.160, a fifth up to 1.067
    ("convolution, shared", "1x1", True): True,  # 4 problems, mean 1.562, a fifth up to 1.320
    ("convolution, shared", "3x3", False): True,  # 80 problems, mean 1.266, a fifth up to 1.038
    ("convolution, shared", "3x3", True): False,  # 19 problems, mean 1.167, a fifth up to 0.967
    ("convolution, shared", "other", False): True,  # 4 problems, mean 1.778, a fifth up to 1.581
    ("convolution, shared", "other", True): True,  # 16 problems, mean 2.856, a fifth up to 1.651
    ("dgrad", "1x1", False): True,  # 35 problems, mean 1.174, a fifth up to 1.004
    ("dgrad", "1x1", True): True,  # 4 problems, mean 1.617, a fifth up to 1.228
    ("dgrad", "3x3", False): False,  # 80 problems, mean 1.137, a fifth up to 0.963
    ("dgrad", "3x3", True): True,  # 19 problems, mean 1.423, a fifth up to 1.111
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): True,  # 4 problems, mean 1.434, a fifth up to 1.098
    ("dgrad", "other", True): True,  # 16 problems, mean 3.068, a fifth up to 1.782
    ("fprop", "1x1", False): True,  # 35 problems, mean 1.242, a fifth up to 1.008
    ("fprop", "1x1", True): True,  # 4 problems, mean 1.540, a fifth up to 1.398
    ("fprop", "3x3", False): True,  # 80 problems, mean 1.240, a fifth up to 1.004
    ("fprop", "3x3", True): False,  # 19 problems, mean 1.170, a fifth up to 0.915
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 4 problems, mean 1.705, a fifth up to 1.579
    ("fprop", "other", True): True,  # 16 problems, mean 3.102, a fifth up to 1.729
    ("wgrad", "1x1", False): True,  # 34 problems, mean 1.121, a fifth up to 0.979
    ("wgrad", "1x1", True): True,  # 4 problems, mean 1.360, a fifth up to 1.127
    ("wgrad", "3x3", False): True,  # 80 problems, mean 1.214, a fifth up to 1.033
    ("wgrad", "3x3", True): True,  # 19 problems, mean 1.282, a fifth up to 1.034
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 4 problems, mean 1.369, a fifth up to 1.135
    ("wgrad", "other", True): True,  # 16 problems, mean 2.036, a fifth up to 1.449
}
