"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 66 problems, mean 1.065, a fifth up to 0.992
    ("activation", 2048): True,  # 32 problems, mean 1.082, a fifth up to 1.015
    ("activation", 512): True,  # 42 problems, mean 1.072, a fifth up to 0.993
    ("activation", 64): True,  # 32 problems, mean 1.110, a fifth up to 1.006
    ("activation, goes on", 0): False,  # 66 problems, mean 0.975, a fifth up to 0.943
    ("activation, goes on", 2048): False,  # 32 problems, mean 0.984, a fifth up to 0.962
    ("activation, goes on", 512): False,  # 42 problems, mean 0.983, a fifth up to 0.954
    ("activation, goes on", 64): True,  # 32 problems, mean 1.104, a fifth up to 1.000
    ("activation, shared", 0): True,  # 66 problems, mean 1.021, a fifth up to 0.971
    ("activation, shared", 2048): True,  # 32 problems, mean 1.034, a fifth up to 0.984
    ("activation, shared", 512): True,  # 42 problems, mean 1.028, a fifth up to 0.981
    ("activation, shared", 64): True,  # 32 problems, mean 1.107, a fifth up to 1.004
    ("bias", 0): True,  # 84 problems, mean 1.032, a fifth up to 1.000
    ("bias", 2048): True,  # 39 problems, mean 1.051, a fifth up to 1.006
    ("bias", 512): True,  # 110 problems, mean 1.047, a fifth up to 1.002
    ("bias", 64): True,  # 133 problems, mean 1.151, a fifth up to 1.030
    ("gated", 0): True,  # 66 problems, mean 1.128, a fifth up to 1.035
    ("gated", 2048): True,  # 32 problems, mean 1.186, a fifth up to 1.051
    ("gated", 512): True,  # 42 problems, mean 1.248, a fifth up to 1.098
    ("gated", 64): True,  # 32 problems, mean 1.300, a fifth up to 1.063
    ("gated, goes on", 0): True,  # 66 problems, mean 1.080, a fifth up to 1.013
    ("gated, goes on", 2048): True,  # 32 problems, mean 1.131, a fifth up to 1.037
    ("gated, goes on", 512): True,  # 42 problems, mean 1.195, a fifth up to 1.070
    ("gated, goes on", 64): True,  # 32 problems, mean 1.296, a fifth up to 1.061
    ("gated, shared", 0): True,  # 66 problems, mean 1.104, a fifth up to 1.021
    ("gated, shared", 2048): True,  # 32 problems, mean 1.158, a fifth up to 1.045
    ("gated, shared", 512): True,  # 42 problems, mean 1.222, a fifth up to 1.091
    ("gated, shared", 64): True,  # 32 problems, mean 1.298, a fifth up to 1.063
    ("residual", 0): True,  # 66 problems, mean 1.092, a fifth up to 1.004
    ("residual", 2048): True,  # 32 problems, mean 1.102, a fifth up to 1.020
    ("residual", 512): True,  # 42 problems, mean 1.080, a fifth up to 1.004
    ("residual", 64): True,  # 32 problems, mean 1.088, a fifth up to 1.009
    ("residual, goes on", 0): False,  # 66 problems, mean 1.005, a fifth up to 0.965
    ("residual, goes on", 2048): False,  # 32 problems, mean 1.008, a fifth up to 0.986
    ("residual, goes on", 512): False,  # 42 problems, mean 0.996, a fifth up to 0.940
    ("residual, goes on", 64): True,  # 32 problems, mean 1.083, a fifth up to 1.005
    ("residual, shared", 0): True,  # 66 problems, mean 1.049, a fifth up to 0.984
    ("residual, shared", 2048): True,  # 32 problems, mean 1.056, a fifth up to 1.005
    ("residual, shared", 512): True,  # 42 problems, mean 1.038, a fifth up to 0.984
    ("residual, shared", 64): True,  # 32 problems, mean 1.086, a fifth up to 1.008
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
    ("convolution", "1x1", False): True,  # 54 problems, mean 1.351, a fifth up to 1.152
    ("convolution", "1x1", True): True,  # 6 problems, mean 1.707, a fifth up to 1.576
    ("convolution", "3x3", False): True,  # 120 problems, mean 1.357, a fifth up to 1.088
    ("convolution", "3x3", True): True,  # 30 problems, mean 1.293, a fifth up to 1.112
    ("convolution", "other", False): True,  # 5 problems, mean 1.729, a fifth up to 1.600
    ("convolution", "other", True): True,  # 26 problems, mean 3.032, a fifth up to 1.692
    ("convolution, goes on", "1x1", False): False,  # 54 problems, mean 0.980, a fifth up to 0.875
    ("convolution, goes on", "1x1", True): True,  # 6 problems, mean 1.284, a fifth up to 1.088
    ("convolution, goes on", "3x3", False): True,  # 120 problems, mean 1.219, a fifth up to 0.989
    ("convolution, goes on", "3x3", True): False,  # 30 problems, mean 1.154, a fifth up to 0.950
    ("convolution, goes on", "other", False): True,  # 5 problems, mean 1.615, a fifth up to 1.562
    ("convolution, goes on", "other", True): True,  # 26 problems, mean 2.762, a fifth up to 1.426
    ("convolution, shared", "1x1", False): True,  # 54 problems, mean 1.170, a fifth up to 1.055
    ("convolution, shared", "1x1", True): True,  # 6 problems, mean 1.497, a fifth up to 1.320
    ("convolution, shared", "3x3", False): True,  # 120 problems, mean 1.290, a fifth up to 1.047
    ("convolution, shared", "3x3", True): True,  # 30 problems, mean 1.224, a fifth up to 1.061
    ("convolution, shared", "other", False): True,  # 5 problems, mean 1.673, a fifth up to 1.581
    ("convolution, shared", "other", True): True,  # 26 problems, mean 2.898, a fifth up to 1.570
    ("dgrad", "1x1", False): True,  # 54 problems, mean 1.179, a fifth up to 1.009
    ("dgrad", "1x1", True): True,  # 6 problems, mean 1.421, a fifth up to 1.228
    ("dgrad", "3x3", False): True,  # 120 problems, mean 1.163, a fifth up to 0.986
    ("dgrad", "3x3", True): True,  # 30 problems, mean 1.439, a fifth up to 1.111
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): True,  # 5 problems, mean 1.335, a fifth up to 1.098
    ("dgrad", "other", True): True,  # 26 problems, mean 2.932, a fifth up to 1.568
    ("fprop", "1x1", False): True,  # 54 problems, mean 1.214, a fifth up to 1.008
    ("fprop", "1x1", True): True,  # 6 problems, mean 1.434, a fifth up to 1.398
    ("fprop", "3x3", False): True,  # 120 problems, mean 1.276, a fifth up to 1.004
    ("fprop", "3x3", True): True,  # 30 problems, mean 1.256, a fifth up to 0.981
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 5 problems, mean 1.630, a fifth up to 1.579
    ("fprop", "other", True): True,  # 26 problems, mean 3.166, a fifth up to 1.695
    ("wgrad", "1x1", False): False,  # 53 problems, mean 1.116, a fifth up to 0.958
    ("wgrad", "1x1", True): True,  # 6 problems, mean 1.358, a fifth up to 1.127
    ("wgrad", "3x3", False): True,  # 120 problems, mean 1.223, a fifth up to 1.042
    ("wgrad", "3x3", True): True,  # 30 problems, mean 1.250, a fifth up to 1.034
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 5 problems, mean 1.357, a fifth up to 1.309
    ("wgrad", "other", True): True,  # 26 problems, mean 1.920, a fifth up to 1.427
}
