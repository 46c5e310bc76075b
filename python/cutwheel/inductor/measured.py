"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 56 problems, mean 1.054, a fifth up to 0.975
    ("activation", 2048): True,  # 34 problems, mean 1.082, a fifth up to 0.979
    ("activation", 512): True,  # 51 problems, mean 1.046, a fifth up to 0.973
    ("activation", 64): True,  # 62 problems, mean 1.152, a fifth up to 1.043
    ("activation, goes on", 0): False,  # 56 problems, mean 0.938, a fifth up to 0.882
    ("activation, goes on", 2048): False,  # 34 problems, mean 0.969, a fifth up to 0.900
    ("activation, goes on", 512): False,  # 51 problems, mean 0.978, a fifth up to 0.887
    ("activation, goes on", 64): True,  # 62 problems, mean 1.144, a fifth up to 1.027
    ("activation, shared", 0): False,  # 56 problems, mean 0.998, a fifth up to 0.954
    ("activation, shared", 2048): False,  # 34 problems, mean 1.027, a fifth up to 0.962
    ("activation, shared", 512): False,  # 51 problems, mean 1.013, a fifth up to 0.933
    ("activation, shared", 64): True,  # 62 problems, mean 1.148, a fifth up to 1.040
    ("bias", 0): False,  # 37 problems, mean 0.991, a fifth up to 0.984
    ("bias", 2048): True,  # 21 problems, mean 1.020, a fifth up to 0.997
    ("bias", 512): False,  # 49 problems, mean 1.020, a fifth up to 0.975
    ("bias", 64): True,  # 59 problems, mean 1.113, a fifth up to 1.024
    ("gated", 0): True,  # 56 problems, mean 1.142, a fifth up to 1.016
    ("gated", 2048): True,  # 34 problems, mean 1.234, a fifth up to 1.020
    ("gated", 512): True,  # 51 problems, mean 1.241, a fifth up to 1.064
    ("gated", 64): True,  # 62 problems, mean 1.470, a fifth up to 1.128
    ("gated, goes on", 0): True,  # 56 problems, mean 1.077, a fifth up to 0.988
    ("gated, goes on", 2048): True,  # 34 problems, mean 1.167, a fifth up to 1.006
    ("gated, goes on", 512): True,  # 51 problems, mean 1.199, a fifth up to 1.031
    ("gated, goes on", 64): True,  # 62 problems, mean 1.465, a fifth up to 1.127
    ("gated, shared", 0): True,  # 56 problems, mean 1.110, a fifth up to 1.003
    ("gated, shared", 2048): True,  # 34 problems, mean 1.201, a fifth up to 1.016
    ("gated, shared", 512): True,  # 51 problems, mean 1.220, a fifth up to 1.056
    ("gated, shared", 64): True,  # 62 problems, mean 1.467, a fifth up to 1.127
    ("residual", 0): True,  # 56 problems, mean 1.099, a fifth up to 1.006
    ("residual", 2048): True,  # 34 problems, mean 1.113, a fifth up to 1.015
    ("residual", 512): False,  # 51 problems, mean 1.048, a fifth up to 0.919
    ("residual", 64): True,  # 62 problems, mean 1.129, a fifth up to 1.042
    ("residual, goes on", 0): False,  # 56 problems, mean 0.988, a fifth up to 0.938
    ("residual, goes on", 2048): False,  # 34 problems, mean 1.008, a fifth up to 0.939
    ("residual, goes on", 512): False,  # 51 problems, mean 0.983, a fifth up to 0.901
    ("residual, goes on", 64): True,  # 62 problems, mean 1.122, a fifth up to 1.041
    ("residual, shared", 0): True,  # 56 problems, mean 1.045, a fifth up to 0.982
    ("residual, shared", 2048): True,  # 34 problems, mean 1.062, a fifth up to 0.992
    ("residual, shared", 512): False,  # 51 problems, mean 1.016, a fifth up to 0.912
    ("residual, shared", 64): True,  # 62 problems, mean 1.126, a fifth up to 1.041
    ("rowwise", 0): True,  # 68 problems, mean 1.063, a fifth up to 0.983
    ("rowwise", 2048): True,  # 40 problems, mean 1.225, a fifth up to 1.010
    ("rowwise", 512): True,  # 83 problems, mean 1.321, a fifth up to 1.041
    ("rowwise", 64): True,  # 128 problems, mean 1.944, a fifth up to 1.558
    ("rowwise, fast", 0): False,  # 68 problems, mean 1.017, a fifth up to 0.958
    ("rowwise, fast", 2048): True,  # 40 problems, mean 1.190, a fifth up to 1.001
    ("rowwise, fast", 512): True,  # 83 problems, mean 1.282, a fifth up to 1.010
    ("rowwise, fast", 64): True,  # 128 problems, mean 1.785, a fifth up to 1.304
    ("tensorwise", 0): False,  # 68 problems, mean 0.974, a fifth up to 0.937
    ("tensorwise", 2048): False,  # 40 problems, mean 1.031, a fifth up to 0.957
    ("tensorwise", 512): False,  # 83 problems, mean 1.026, a fifth up to 0.953
    ("tensorwise", 64): True,  # 128 problems, mean 1.159, a fifth up to 1.038
    ("tensorwise, fast", 0): False,  # 68 problems, mean 1.007, a fifth up to 0.949
    ("tensorwise, fast", 2048): True,  # 40 problems, mean 1.042, a fifth up to 0.978
    ("tensorwise, fast", 512): False,  # 83 problems, mean 1.018, a fifth up to 0.962
    ("tensorwise, fast", 64): True,  # 128 problems, mean 1.164, a fifth up to 1.040
}

# Kind, filter, and whether it is strided.
CONVOLUTIONS = {
    ("convolution", "1x1", False): True,  # 38 problems, mean 1.361, a fifth up to 1.149
    ("convolution", "1x1", True): True,  # 3 problems, mean 1.655, a fifth up to 1.551
    ("convolution", "3x3", False): True,  # 82 problems, mean 1.358, a fifth up to 1.095
    ("convolution", "3x3", True): True,  # 18 problems, mean 1.352, a fifth up to 1.135
    ("convolution", "other", False): True,  # 6 problems, mean 1.347, a fifth up to 1.182
    ("convolution", "other", True): True,  # 19 problems, mean 4.231, a fifth up to 3.129
    ("convolution, goes on", "1x1", False): False,  # 38 problems, mean 0.972, a fifth up to 0.910
    ("convolution, goes on", "1x1", True): False,  # 3 problems, mean 1.102, a fifth up to 0.927
    ("convolution, goes on", "3x3", False): True,  # 82 problems, mean 1.220, a fifth up to 1.006
    ("convolution, goes on", "3x3", True): True,  # 18 problems, mean 1.165, a fifth up to 0.983
    ("convolution, goes on", "other", False): True,  # 6 problems, mean 1.275, a fifth up to 1.118
    ("convolution, goes on", "other", True): True,  # 19 problems, mean 3.927, a fifth up to 2.855
    ("convolution, shared", "1x1", False): True,  # 38 problems, mean 1.171, a fifth up to 1.066
    ("convolution, shared", "1x1", True): True,  # 3 problems, mean 1.382, a fifth up to 1.239
    ("convolution, shared", "3x3", False): True,  # 82 problems, mean 1.291, a fifth up to 1.044
    ("convolution, shared", "3x3", True): True,  # 18 problems, mean 1.259, a fifth up to 1.071
    ("convolution, shared", "other", False): True,  # 6 problems, mean 1.311, a fifth up to 1.150
    ("convolution, shared", "other", True): True,  # 19 problems, mean 4.082, a fifth up to 2.992
    ("dgrad", "1x1", False): True,  # 38 problems, mean 1.112, a fifth up to 0.993
    ("dgrad", "1x1", True): True,  # 3 problems, mean 1.200, a fifth up to 1.001
    ("dgrad", "3x3", False): True,  # 82 problems, mean 1.140, a fifth up to 0.982
    ("dgrad", "3x3", True): True,  # 18 problems, mean 1.286, a fifth up to 1.099
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.027, a fifth up to 0.994
    ("dgrad", "other", False): True,  # 6 problems, mean 1.163, a fifth up to 1.061
    ("dgrad", "other", True): True,  # 19 problems, mean 4.241, a fifth up to 1.611
    ("fprop", "1x1", False): True,  # 38 problems, mean 1.120, a fifth up to 0.979
    ("fprop", "1x1", True): True,  # 3 problems, mean 1.165, a fifth up to 1.010
    ("fprop", "3x3", False): True,  # 82 problems, mean 1.250, a fifth up to 1.017
    ("fprop", "3x3", True): True,  # 18 problems, mean 1.228, a fifth up to 0.973
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.996
    ("fprop", "other", False): True,  # 6 problems, mean 1.310, a fifth up to 1.103
    ("fprop", "other", True): True,  # 19 problems, mean 4.321, a fifth up to 3.144
    ("wgrad", "1x1", False): False,  # 38 problems, mean 1.042, a fifth up to 0.935
    ("wgrad", "1x1", True): True,  # 3 problems, mean 1.158, a fifth up to 1.055
    ("wgrad", "3x3", False): True,  # 82 problems, mean 1.191, a fifth up to 1.044
    ("wgrad", "3x3", True): True,  # 18 problems, mean 1.343, a fifth up to 1.099
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 0.990, a fifth up to 0.895
    ("wgrad", "other", False): True,  # 6 problems, mean 1.481, a fifth up to 1.350
    ("wgrad", "other", True): True,  # 19 problems, mean 1.865, a fifth up to 1.397
}
