"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 65 problems, mean 1.062, a fifth up to 0.998
    ("activation", 2048): True,  # 32 problems, mean 1.093, a fifth up to 1.013
    ("activation", 512): True,  # 43 problems, mean 1.074, a fifth up to 1.013
    ("activation", 64): True,  # 31 problems, mean 1.127, a fifth up to 1.008
    ("activation, goes on", 0): False,  # 65 problems, mean 0.972, a fifth up to 0.940
    ("activation, goes on", 2048): False,  # 32 problems, mean 0.994, a fifth up to 0.967
    ("activation, goes on", 512): False,  # 43 problems, mean 0.987, a fifth up to 0.954
    ("activation, goes on", 64): True,  # 31 problems, mean 1.122, a fifth up to 1.005
    ("activation, shared", 0): False,  # 65 problems, mean 1.018, a fifth up to 0.971
    ("activation, shared", 2048): True,  # 32 problems, mean 1.045, a fifth up to 0.993
    ("activation, shared", 512): True,  # 43 problems, mean 1.031, a fifth up to 0.996
    ("activation, shared", 64): True,  # 31 problems, mean 1.124, a fifth up to 1.005
    ("bias", 0): True,  # 80 problems, mean 1.032, a fifth up to 0.997
    ("bias", 2048): True,  # 49 problems, mean 1.056, a fifth up to 0.998
    ("bias", 512): True,  # 107 problems, mean 1.042, a fifth up to 1.002
    ("bias", 64): True,  # 130 problems, mean 1.124, a fifth up to 1.015
    ("gated", 0): True,  # 65 problems, mean 1.125, a fifth up to 1.035
    ("gated", 2048): True,  # 32 problems, mean 1.182, a fifth up to 1.038
    ("gated", 512): True,  # 43 problems, mean 1.233, a fifth up to 1.081
    ("gated", 64): True,  # 31 problems, mean 1.329, a fifth up to 1.065
    ("gated, goes on", 0): True,  # 65 problems, mean 1.077, a fifth up to 1.011
    ("gated, goes on", 2048): True,  # 32 problems, mean 1.127, a fifth up to 1.020
    ("gated, goes on", 512): True,  # 43 problems, mean 1.182, a fifth up to 1.062
    ("gated, goes on", 64): True,  # 31 problems, mean 1.326, a fifth up to 1.063
    ("gated, shared", 0): True,  # 65 problems, mean 1.101, a fifth up to 1.021
    ("gated, shared", 2048): True,  # 32 problems, mean 1.155, a fifth up to 1.029
    ("gated, shared", 512): True,  # 43 problems, mean 1.208, a fifth up to 1.070
    ("gated, shared", 64): True,  # 31 problems, mean 1.327, a fifth up to 1.063
    ("residual", 0): True,  # 65 problems, mean 1.089, a fifth up to 1.011
    ("residual", 2048): True,  # 32 problems, mean 1.096, a fifth up to 1.012
    ("residual", 512): True,  # 43 problems, mean 1.078, a fifth up to 0.995
    ("residual", 64): True,  # 31 problems, mean 1.090, a fifth up to 1.014
    ("residual, goes on", 0): False,  # 65 problems, mean 1.002, a fifth up to 0.969
    ("residual, goes on", 2048): False,  # 32 problems, mean 1.002, a fifth up to 0.958
    ("residual, goes on", 512): False,  # 43 problems, mean 0.995, a fifth up to 0.946
    ("residual, goes on", 64): True,  # 31 problems, mean 1.085, a fifth up to 1.008
    ("residual, shared", 0): True,  # 65 problems, mean 1.047, a fifth up to 0.987
    ("residual, shared", 2048): True,  # 32 problems, mean 1.050, a fifth up to 0.999
    ("residual, shared", 512): True,  # 43 problems, mean 1.037, a fifth up to 0.981
    ("residual, shared", 64): True,  # 31 problems, mean 1.087, a fifth up to 1.010
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
    ("convolution", "1x1", False): True,  # 55 problems, mean 1.307, a fifth up to 1.138
    ("convolution", "1x1", True): True,  # 4 problems, mean 1.747, a fifth up to 1.552
    ("convolution", "3x3", False): True,  # 124 problems, mean 1.364, a fifth up to 1.113
    ("convolution", "3x3", True): True,  # 29 problems, mean 1.293, a fifth up to 1.112
    ("convolution", "other", False): True,  # 4 problems, mean 1.849, a fifth up to 1.600
    ("convolution", "other", True): True,  # 25 problems, mean 3.340, a fifth up to 1.714
    ("convolution, goes on", "1x1", False): False,  # 55 problems, mean 0.968, a fifth up to 0.875
    ("convolution, goes on", "1x1", True): True,  # 4 problems, mean 1.375, a fifth up to 1.088
    ("convolution, goes on", "3x3", False): True,  # 124 problems, mean 1.219, a fifth up to 0.998
    ("convolution, goes on", "3x3", True): False,  # 29 problems, mean 1.145, a fifth up to 0.933
    ("convolution, goes on", "other", False): True,  # 4 problems, mean 1.707, a fifth up to 1.562
    ("convolution, goes on", "other", True): True,  # 25 problems, mean 3.036, a fifth up to 1.426
    ("convolution, shared", "1x1", False): True,  # 55 problems, mean 1.142, a fifth up to 1.043
    ("convolution, shared", "1x1", True): True,  # 4 problems, mean 1.562, a fifth up to 1.320
    ("convolution, shared", "3x3", False): True,  # 124 problems, mean 1.294, a fifth up to 1.073
    ("convolution, shared", "3x3", True): True,  # 29 problems, mean 1.220, a fifth up to 0.999
    ("convolution, shared", "other", False): True,  # 4 problems, mean 1.778, a fifth up to 1.581
    ("convolution, shared", "other", True): True,  # 25 problems, mean 3.190, a fifth up to 1.570
    ("dgrad", "1x1", False): True,  # 55 problems, mean 1.197, a fifth up to 1.050
    ("dgrad", "1x1", True): True,  # 4 problems, mean 1.617, a fifth up to 1.228
    ("dgrad", "3x3", False): True,  # 124 problems, mean 1.165, a fifth up to 0.987
    ("dgrad", "3x3", True): True,  # 29 problems, mean 1.353, a fifth up to 1.053
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): True,  # 4 problems, mean 1.434, a fifth up to 1.098
    ("dgrad", "other", True): True,  # 25 problems, mean 3.028, a fifth up to 1.589
    ("fprop", "1x1", False): True,  # 55 problems, mean 1.227, a fifth up to 1.024
    ("fprop", "1x1", True): True,  # 4 problems, mean 1.540, a fifth up to 1.398
    ("fprop", "3x3", False): True,  # 124 problems, mean 1.266, a fifth up to 1.019
    ("fprop", "3x3", True): False,  # 29 problems, mean 1.238, a fifth up to 0.963
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 4 problems, mean 1.705, a fifth up to 1.579
    ("fprop", "other", True): True,  # 25 problems, mean 3.450, a fifth up to 1.695
    ("wgrad", "1x1", False): True,  # 54 problems, mean 1.132, a fifth up to 0.982
    ("wgrad", "1x1", True): True,  # 4 problems, mean 1.360, a fifth up to 1.127
    ("wgrad", "3x3", False): True,  # 124 problems, mean 1.227, a fifth up to 1.033
    ("wgrad", "3x3", True): True,  # 29 problems, mean 1.283, a fifth up to 1.104
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 4 problems, mean 1.369, a fifth up to 1.135
    ("wgrad", "other", True): True,  # 25 problems, mean 2.135, a fifth up to 1.484
}
