"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 65 problems, mean 1.061, a fifth up to 0.990
    ("activation", 2048): True,  # 32 problems, mean 1.089, a fifth up to 1.014
    ("activation", 512): True,  # 43 problems, mean 1.067, a fifth up to 0.986
    ("activation", 64): True,  # 29 problems, mean 1.121, a fifth up to 1.006
    ("activation, goes on", 0): False,  # 65 problems, mean 0.972, a fifth up to 0.940
    ("activation, goes on", 2048): False,  # 32 problems, mean 0.991, a fifth up to 0.962
    ("activation, goes on", 512): False,  # 43 problems, mean 0.980, a fifth up to 0.939
    ("activation, goes on", 64): True,  # 29 problems, mean 1.116, a fifth up to 1.000
    ("activation, shared", 0): False,  # 65 problems, mean 1.018, a fifth up to 0.966
    ("activation, shared", 2048): True,  # 32 problems, mean 1.041, a fifth up to 0.992
    ("activation, shared", 512): False,  # 43 problems, mean 1.024, a fifth up to 0.968
    ("activation, shared", 64): True,  # 29 problems, mean 1.118, a fifth up to 1.004
    ("bias", 0): True,  # 80 problems, mean 1.032, a fifth up to 0.997
    ("bias", 2048): True,  # 49 problems, mean 1.056, a fifth up to 0.998
    ("bias", 512): True,  # 107 problems, mean 1.042, a fifth up to 1.002
    ("bias", 64): True,  # 130 problems, mean 1.124, a fifth up to 1.015
    ("gated", 0): True,  # 65 problems, mean 1.122, a fifth up to 1.032
    ("gated", 2048): True,  # 32 problems, mean 1.180, a fifth up to 1.026
    ("gated", 512): True,  # 43 problems, mean 1.236, a fifth up to 1.085
    ("gated", 64): True,  # 29 problems, mean 1.326, a fifth up to 1.063
    ("gated, goes on", 0): True,  # 65 problems, mean 1.074, a fifth up to 1.007
    ("gated, goes on", 2048): True,  # 32 problems, mean 1.125, a fifth up to 1.008
    ("gated, goes on", 512): True,  # 43 problems, mean 1.185, a fifth up to 1.066
    ("gated, goes on", 64): True,  # 29 problems, mean 1.323, a fifth up to 1.061
    ("gated, shared", 0): True,  # 65 problems, mean 1.098, a fifth up to 1.021
    ("gated, shared", 2048): True,  # 32 problems, mean 1.153, a fifth up to 1.015
    ("gated, shared", 512): True,  # 43 problems, mean 1.211, a fifth up to 1.077
    ("gated, shared", 64): True,  # 29 problems, mean 1.324, a fifth up to 1.063
    ("residual", 0): True,  # 65 problems, mean 1.087, a fifth up to 1.004
    ("residual", 2048): True,  # 32 problems, mean 1.100, a fifth up to 1.020
    ("residual", 512): True,  # 43 problems, mean 1.081, a fifth up to 1.015
    ("residual", 64): True,  # 29 problems, mean 1.100, a fifth up to 1.014
    ("residual, goes on", 0): False,  # 65 problems, mean 1.000, a fifth up to 0.957
    ("residual, goes on", 2048): False,  # 32 problems, mean 1.006, a fifth up to 0.985
    ("residual, goes on", 512): False,  # 43 problems, mean 0.998, a fifth up to 0.955
    ("residual, goes on", 64): True,  # 29 problems, mean 1.095, a fifth up to 1.008
    ("residual, shared", 0): True,  # 65 problems, mean 1.044, a fifth up to 0.982
    ("residual, shared", 2048): True,  # 32 problems, mean 1.054, a fifth up to 1.004
    ("residual, shared", 512): True,  # 43 problems, mean 1.040, a fifth up to 0.985
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
    ("convolution", "1x1", False): True,  # 50 problems, mean 1.362, a fifth up to 1.152
    ("convolution", "1x1", True): True,  # 6 problems, mean 1.690, a fifth up to 1.576
    ("convolution", "3x3", False): True,  # 125 problems, mean 1.320, a fifth up to 1.069
    ("convolution", "3x3", True): True,  # 30 problems, mean 1.332, a fifth up to 1.137
    ("convolution", "other", False): True,  # 7 problems, mean 1.797, a fifth up to 1.667
    ("convolution", "other", True): True,  # 23 problems, mean 3.278, a fifth up to 1.714
    ("convolution, goes on", "1x1", False): False,  # 50 problems, mean 1.017, a fifth up to 0.881
    ("convolution, goes on", "1x1", True): True,  # 6 problems, mean 1.270, a fifth up to 1.088
    ("convolution, goes on", "3x3", False): True,  # 125 problems, mean 1.183, a fifth up to 0.983
    ("convolution, goes on", "3x3", True): False,  # 30 problems, mean 1.186, a fifth up to 0.968
    ("convolution, goes on", "other", False): True,  # 7 problems, mean 1.647, a fifth up to 1.562
    ("convolution, goes on", "other", True): True,  # 23 problems, mean 2.977, a fifth up to 1.426
    ("convolution, shared", "1x1", False): True,  # 50 problems, mean 1.194, a fifth up to 1.063
    ("convolution, shared", "1x1", True): True,  # 6 problems, mean 1.482, a fifth up to 1.320
    ("convolution, shared", "3x3", False): True,  # 125 problems, mean 1.253, a fifth up to 1.032
    ("convolution, shared", "3x3", True): True,  # 30 problems, mean 1.259, a fifth up to 1.061
    ("convolution, shared", "other", False): True,  # 7 problems, mean 1.722, a fifth up to 1.590
    ("convolution, shared", "other", True): True,  # 23 problems, mean 3.129, a fifth up to 1.570
    ("dgrad", "1x1", False): True,  # 50 problems, mean 1.177, a fifth up to 1.004
    ("dgrad", "1x1", True): True,  # 6 problems, mean 1.427, a fifth up to 1.225
    ("dgrad", "3x3", False): True,  # 125 problems, mean 1.141, a fifth up to 0.987
    ("dgrad", "3x3", True): True,  # 30 problems, mean 1.423, a fifth up to 1.111
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): True,  # 7 problems, mean 1.400, a fifth up to 1.334
    ("dgrad", "other", True): True,  # 23 problems, mean 2.866, a fifth up to 1.489
    ("fprop", "1x1", False): True,  # 50 problems, mean 1.266, a fifth up to 1.008
    ("fprop", "1x1", True): True,  # 6 problems, mean 1.418, a fifth up to 1.380
    ("fprop", "3x3", False): True,  # 125 problems, mean 1.239, a fifth up to 1.005
    ("fprop", "3x3", True): True,  # 30 problems, mean 1.286, a fifth up to 0.981
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 7 problems, mean 1.635, a fifth up to 1.548
    ("fprop", "other", True): True,  # 23 problems, mean 3.397, a fifth up to 1.695
    ("wgrad", "1x1", False): True,  # 49 problems, mean 1.120, a fifth up to 0.980
    ("wgrad", "1x1", True): True,  # 6 problems, mean 1.369, a fifth up to 1.127
    ("wgrad", "3x3", False): True,  # 125 problems, mean 1.210, a fifth up to 1.033
    ("wgrad", "3x3", True): True,  # 30 problems, mean 1.286, a fifth up to 1.138
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 7 problems, mean 1.427, a fifth up to 1.337
    ("wgrad", "other", True): True,  # 23 problems, mean 2.014, a fifth up to 1.449
}
