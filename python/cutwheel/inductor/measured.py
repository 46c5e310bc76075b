"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 65 problems, mean 1.061, a fifth up to 0.999
    ("activation", 2048): True,  # 32 problems, mean 1.090, a fifth up to 1.018
    ("activation", 512): True,  # 42 problems, mean 1.065, a fifth up to 0.986
    ("activation", 64): True,  # 29 problems, mean 1.121, a fifth up to 1.006
    ("activation, goes on", 0): False,  # 65 problems, mean 0.971, a fifth up to 0.940
    ("activation, goes on", 2048): False,  # 32 problems, mean 0.992, a fifth up to 0.962
    ("activation, goes on", 512): False,  # 42 problems, mean 0.978, a fifth up to 0.942
    ("activation, goes on", 64): True,  # 29 problems, mean 1.116, a fifth up to 1.000
    ("activation, shared", 0): False,  # 65 problems, mean 1.017, a fifth up to 0.969
    ("activation, shared", 2048): True,  # 32 problems, mean 1.043, a fifth up to 0.993
    ("activation, shared", 512): False,  # 42 problems, mean 1.022, a fifth up to 0.969
    ("activation, shared", 64): True,  # 29 problems, mean 1.118, a fifth up to 1.004
    ("bias", 0): True,  # 78 problems, mean 1.032, a fifth up to 0.999
    ("bias", 2048): True,  # 49 problems, mean 1.053, a fifth up to 1.007
    ("bias", 512): True,  # 108 problems, mean 1.049, a fifth up to 1.002
    ("bias", 64): True,  # 131 problems, mean 1.120, a fifth up to 1.030
    ("gated", 0): True,  # 65 problems, mean 1.123, a fifth up to 1.038
    ("gated", 2048): True,  # 32 problems, mean 1.183, a fifth up to 1.033
    ("gated", 512): True,  # 42 problems, mean 1.238, a fifth up to 1.086
    ("gated", 64): True,  # 29 problems, mean 1.326, a fifth up to 1.063
    ("gated, goes on", 0): True,  # 65 problems, mean 1.075, a fifth up to 1.014
    ("gated, goes on", 2048): True,  # 32 problems, mean 1.128, a fifth up to 1.014
    ("gated, goes on", 512): True,  # 42 problems, mean 1.185, a fifth up to 1.067
    ("gated, goes on", 64): True,  # 29 problems, mean 1.323, a fifth up to 1.061
    ("gated, shared", 0): True,  # 65 problems, mean 1.099, a fifth up to 1.024
    ("gated, shared", 2048): True,  # 32 problems, mean 1.156, a fifth up to 1.023
    ("gated, shared", 512): True,  # 42 problems, mean 1.212, a fifth up to 1.077
    ("gated, shared", 64): True,  # 29 problems, mean 1.324, a fifth up to 1.063
    ("residual", 0): True,  # 65 problems, mean 1.089, a fifth up to 1.007
    ("residual", 2048): True,  # 32 problems, mean 1.100, a fifth up to 1.020
    ("residual", 512): True,  # 42 problems, mean 1.078, a fifth up to 0.992
    ("residual", 64): True,  # 29 problems, mean 1.100, a fifth up to 1.014
    ("residual, goes on", 0): False,  # 65 problems, mean 1.002, a fifth up to 0.961
    ("residual, goes on", 2048): False,  # 32 problems, mean 1.007, a fifth up to 0.985
    ("residual, goes on", 512): False,  # 42 problems, mean 0.994, a fifth up to 0.940
    ("residual, goes on", 64): True,  # 29 problems, mean 1.095, a fifth up to 1.008
    ("residual, shared", 0): True,  # 65 problems, mean 1.046, a fifth up to 0.984
    ("residual, shared", 2048): True,  # 32 problems, mean 1.055, a fifth up to 1.004
    ("residual, shared", 512): True,  # 42 problems, mean 1.037, a fifth up to 0.981
    ("residual, shared", 64): True,  # 29 problems, mean 1.097, a fifth up to 1.010
    ("rowwise", 0): False,  # 96 problems, mean 1.022, a fifth up to 0.965
    ("rowwise", 2048): True,  # 52 problems, mean 1.158, a fifth up to 1.007
    ("rowwise", 512): True,  # 123 problems, mean 1.297, a fifth up to 1.044
    ("rowwise", 64): True,  # 148 problems, mean 1.757, a fifth up to 1.380
    ("rowwise, fast", 0): False,  # 96 problems, mean 1.010, a fifth up to 0.971
    ("rowwise, fast", 2048): True,  # 52 problems, mean 1.146, a fifth up to 1.006
    ("rowwise, fast", 512): True,  # 123 problems, mean 1.292, a fifth up to 1.035
    ("rowwise, fast", 64): True,  # 148 problems, mean 1.594, a fifth up to 1.205
    ("tensorwise", 0): False,  # 96 problems, mean 0.956, a fifth up to 0.926
    ("tensorwise", 2048): False,  # 52 problems, mean 1.000, a fifth up to 0.954
    ("tensorwise", 512): False,  # 123 problems, mean 1.048, a fifth up to 0.970
    ("tensorwise", 64): True,  # 148 problems, mean 1.151, a fifth up to 1.047
    ("tensorwise, fast", 0): False,  # 96 problems, mean 1.018, a fifth up to 0.981
    ("tensorwise, fast", 2048): True,  # 52 problems, mean 1.045, a fifth up to 1.005
    ("tensorwise, fast", 512): True,  # 123 problems, mean 1.052, a fifth up to 0.989
    ("tensorwise, fast", 64): True,  # 148 problems, mean 1.153, a fifth up to 1.053
}

# Kind, filter, and whether it is strided.
CONVOLUTIONS = {
    ("convolution", "1x1", False): True,  # 54 problems, mean 1.344, a fifth up to 1.152
    ("convolution", "1x1", True): True,  # 5 problems, mean 1.707, a fifth up to 1.556
    ("convolution", "3x3", False): True,  # 118 problems, mean 1.333, a fifth up to 1.083
    ("convolution", "3x3", True): True,  # 30 problems, mean 1.402, a fifth up to 1.112
    ("convolution", "other", False): True,  # 8 problems, mean 1.491, a fifth up to 1.088
    ("convolution", "other", True): True,  # 26 problems, mean 2.891, a fifth up to 1.733
    ("convolution, goes on", "1x1", False): False,  # 54 problems, mean 1.018, a fifth up to 0.881
    ("convolution, goes on", "1x1", True): True,  # 5 problems, mean 1.299, a fifth up to 1.088
    ("convolution, goes on", "3x3", False): True,  # 118 problems, mean 1.200, a fifth up to 0.988
    ("convolution, goes on", "3x3", True): False,  # 30 problems, mean 1.236, a fifth up to 0.950
    ("convolution, goes on", "other", False): True,  # 8 problems, mean 1.412, a fifth up to 1.055
    ("convolution, goes on", "other", True): True,  # 26 problems, mean 2.653, a fifth up to 1.552
    ("convolution, shared", "1x1", False): True,  # 54 problems, mean 1.186, a fifth up to 1.067
    ("convolution, shared", "1x1", True): True,  # 5 problems, mean 1.505, a fifth up to 1.320
    ("convolution, shared", "3x3", False): True,  # 118 problems, mean 1.268, a fifth up to 1.040
    ("convolution, shared", "3x3", True): True,  # 30 problems, mean 1.319, a fifth up to 1.022
    ("convolution, shared", "other", False): True,  # 8 problems, mean 1.452, a fifth up to 1.071
    ("convolution, shared", "other", True): True,  # 26 problems, mean 2.773, a fifth up to 1.651
    ("dgrad", "1x1", False): True,  # 54 problems, mean 1.218, a fifth up to 1.004
    ("dgrad", "1x1", True): True,  # 5 problems, mean 1.527, a fifth up to 1.228
    ("dgrad", "3x3", False): False,  # 118 problems, mean 1.134, a fifth up to 0.970
    ("dgrad", "3x3", True): True,  # 30 problems, mean 1.427, a fifth up to 1.095
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): False,  # 8 problems, mean 1.157, a fifth up to 0.859
    ("dgrad", "other", True): True,  # 26 problems, mean 3.302, a fifth up to 1.764
    ("fprop", "1x1", False): True,  # 54 problems, mean 1.257, a fifth up to 1.008
    ("fprop", "1x1", True): True,  # 5 problems, mean 1.450, a fifth up to 1.398
    ("fprop", "3x3", False): True,  # 118 problems, mean 1.253, a fifth up to 1.010
    ("fprop", "3x3", True): True,  # 30 problems, mean 1.365, a fifth up to 0.981
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 8 problems, mean 1.438, a fifth up to 1.129
    ("fprop", "other", True): True,  # 26 problems, mean 3.057, a fifth up to 1.793
    ("wgrad", "1x1", False): True,  # 53 problems, mean 1.129, a fifth up to 0.979
    ("wgrad", "1x1", True): True,  # 5 problems, mean 1.319, a fifth up to 1.169
    ("wgrad", "3x3", False): True,  # 118 problems, mean 1.204, a fifth up to 1.032
    ("wgrad", "3x3", True): True,  # 30 problems, mean 1.349, a fifth up to 1.152
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 8 problems, mean 1.424, a fifth up to 1.178
    ("wgrad", "other", True): True,  # 26 problems, mean 1.934, a fifth up to 1.449
}
