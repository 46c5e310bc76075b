"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 83 problems, mean 1.077, a fifth up to 0.999
    ("activation", 2048): True,  # 40 problems, mean 1.069, a fifth up to 0.991
    ("activation", 512): True,  # 55 problems, mean 1.054, a fifth up to 0.982
    ("activation", 64): True,  # 67 problems, mean 1.133, a fifth up to 0.980
    ("activation, goes on", 0): False,  # 83 problems, mean 0.967, a fifth up to 0.934
    ("activation, goes on", 2048): False,  # 40 problems, mean 0.971, a fifth up to 0.936
    ("activation, goes on", 512): False,  # 55 problems, mean 0.979, a fifth up to 0.925
    ("activation, goes on", 64): True,  # 67 problems, mean 1.128, a fifth up to 0.979
    ("activation, shared", 0): False,  # 83 problems, mean 1.023, a fifth up to 0.969
    ("activation, shared", 2048): True,  # 40 problems, mean 1.021, a fifth up to 0.981
    ("activation, shared", 512): False,  # 55 problems, mean 1.017, a fifth up to 0.948
    ("activation, shared", 64): True,  # 67 problems, mean 1.130, a fifth up to 0.979
    ("bias", 0): True,  # 80 problems, mean 1.031, a fifth up to 0.998
    ("bias", 2048): True,  # 44 problems, mean 1.048, a fifth up to 1.007
    ("bias", 512): True,  # 103 problems, mean 1.027, a fifth up to 0.996
    ("bias", 64): True,  # 139 problems, mean 1.123, a fifth up to 1.011
    ("gated", 0): True,  # 83 problems, mean 1.156, a fifth up to 1.043
    ("gated", 2048): True,  # 40 problems, mean 1.204, a fifth up to 1.053
    ("gated", 512): True,  # 55 problems, mean 1.247, a fifth up to 1.073
    ("gated", 64): True,  # 67 problems, mean 1.442, a fifth up to 1.061
    ("gated, goes on", 0): True,  # 83 problems, mean 1.095, a fifth up to 1.018
    ("gated, goes on", 2048): True,  # 40 problems, mean 1.146, a fifth up to 1.041
    ("gated, goes on", 512): True,  # 55 problems, mean 1.201, a fifth up to 1.063
    ("gated, goes on", 64): True,  # 67 problems, mean 1.439, a fifth up to 1.057
    ("gated, shared", 0): True,  # 83 problems, mean 1.126, a fifth up to 1.032
    ("gated, shared", 2048): True,  # 40 problems, mean 1.175, a fifth up to 1.047
    ("gated, shared", 512): True,  # 55 problems, mean 1.224, a fifth up to 1.070
    ("gated, shared", 64): True,  # 67 problems, mean 1.441, a fifth up to 1.059
    ("residual", 0): True,  # 83 problems, mean 1.116, a fifth up to 1.011
    ("residual", 2048): True,  # 40 problems, mean 1.105, a fifth up to 1.027
    ("residual", 512): True,  # 55 problems, mean 1.060, a fifth up to 0.982
    ("residual", 64): True,  # 67 problems, mean 1.115, a fifth up to 0.995
    ("residual, goes on", 0): False,  # 83 problems, mean 1.010, a fifth up to 0.966
    ("residual, goes on", 2048): False,  # 40 problems, mean 1.009, a fifth up to 0.983
    ("residual, goes on", 512): False,  # 55 problems, mean 0.988, a fifth up to 0.915
    ("residual, goes on", 64): True,  # 67 problems, mean 1.110, a fifth up to 0.987
    ("residual, shared", 0): True,  # 83 problems, mean 1.064, a fifth up to 0.991
    ("residual, shared", 2048): True,  # 40 problems, mean 1.058, a fifth up to 1.006
    ("residual, shared", 512): False,  # 55 problems, mean 1.024, a fifth up to 0.962
    ("residual, shared", 64): True,  # 67 problems, mean 1.113, a fifth up to 0.993
    ("rowwise", 0): False,  # 96 problems, mean 1.003, a fifth up to 0.937
    ("rowwise", 2048): True,  # 51 problems, mean 1.140, a fifth up to 0.990
    ("rowwise", 512): True,  # 121 problems, mean 1.282, a fifth up to 1.034
    ("rowwise", 64): True,  # 163 problems, mean 1.779, a fifth up to 1.382
    ("rowwise, fast", 0): False,  # 96 problems, mean 1.002, a fifth up to 0.968
    ("rowwise, fast", 2048): True,  # 51 problems, mean 1.131, a fifth up to 1.002
    ("rowwise, fast", 512): True,  # 121 problems, mean 1.267, a fifth up to 1.021
    ("rowwise, fast", 64): True,  # 163 problems, mean 1.629, a fifth up to 1.208
    ("tensorwise", 0): False,  # 96 problems, mean 0.941, a fifth up to 0.898
    ("tensorwise", 2048): False,  # 51 problems, mean 0.993, a fifth up to 0.944
    ("tensorwise", 512): False,  # 121 problems, mean 1.038, a fifth up to 0.967
    ("tensorwise", 64): True,  # 163 problems, mean 1.134, a fifth up to 1.024
    ("tensorwise, fast", 0): False,  # 96 problems, mean 1.015, a fifth up to 0.973
    ("tensorwise, fast", 2048): True,  # 51 problems, mean 1.037, a fifth up to 1.003
    ("tensorwise, fast", 512): True,  # 121 problems, mean 1.041, a fifth up to 0.984
    ("tensorwise, fast", 64): True,  # 163 problems, mean 1.142, a fifth up to 1.027
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
