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
    ("convolution", "1x1", False): True,  # 53 problems, mean 1.324, a fifth up to 1.132
    ("convolution", "1x1", True): True,  # 4 problems, mean 1.747, a fifth up to 1.552
    ("convolution", "3x3", False): True,  # 123 problems, mean 1.350, a fifth up to 1.081
    ("convolution", "3x3", True): True,  # 30 problems, mean 1.369, a fifth up to 1.137
    ("convolution", "other", False): True,  # 5 problems, mean 1.795, a fifth up to 1.600
    ("convolution", "other", True): True,  # 26 problems, mean 3.371, a fifth up to 1.846
    ("convolution, goes on", "1x1", False): False,  # 53 problems, mean 0.978, a fifth up to 0.875
    ("convolution, goes on", "1x1", True): True,  # 4 problems, mean 1.375, a fifth up to 1.088
    ("convolution, goes on", "3x3", False): True,  # 123 problems, mean 1.213, a fifth up to 0.991
    ("convolution, goes on", "3x3", True): False,  # 30 problems, mean 1.207, a fifth up to 0.950
    ("convolution, goes on", "other", False): True,  # 5 problems, mean 1.682, a fifth up to 1.584
    ("convolution, goes on", "other", True): True,  # 26 problems, mean 3.076, a fifth up to 1.617
    ("convolution, shared", "1x1", False): True,  # 53 problems, mean 1.156, a fifth up to 1.064
    ("convolution, shared", "1x1", True): True,  # 4 problems, mean 1.562, a fifth up to 1.320
    ("convolution, shared", "3x3", False): True,  # 123 problems, mean 1.283, a fifth up to 1.040
    ("convolution, shared", "3x3", True): True,  # 30 problems, mean 1.288, a fifth up to 1.053
    ("convolution, shared", "other", False): True,  # 5 problems, mean 1.739, a fifth up to 1.590
    ("convolution, shared", "other", True): True,  # 26 problems, mean 3.225, a fifth up to 1.734
    ("dgrad", "1x1", False): True,  # 53 problems, mean 1.154, a fifth up to 1.004
    ("dgrad", "1x1", True): True,  # 4 problems, mean 1.617, a fifth up to 1.228
    ("dgrad", "3x3", False): False,  # 123 problems, mean 1.144, a fifth up to 0.960
    ("dgrad", "3x3", True): True,  # 30 problems, mean 1.412, a fifth up to 1.101
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): True,  # 5 problems, mean 1.469, a fifth up to 1.559
    ("dgrad", "other", True): True,  # 26 problems, mean 3.229, a fifth up to 1.570
    ("fprop", "1x1", False): True,  # 53 problems, mean 1.193, a fifth up to 1.003
    ("fprop", "1x1", True): True,  # 4 problems, mean 1.540, a fifth up to 1.398
    ("fprop", "3x3", False): True,  # 123 problems, mean 1.268, a fifth up to 1.009
    ("fprop", "3x3", True): False,  # 30 problems, mean 1.309, a fifth up to 0.960
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 5 problems, mean 1.690, a fifth up to 1.634
    ("fprop", "other", True): True,  # 26 problems, mean 3.477, a fifth up to 1.793
    ("wgrad", "1x1", False): False,  # 52 problems, mean 1.094, a fifth up to 0.959
    ("wgrad", "1x1", True): True,  # 4 problems, mean 1.360, a fifth up to 1.127
    ("wgrad", "3x3", False): True,  # 123 problems, mean 1.246, a fifth up to 1.033
    ("wgrad", "3x3", True): True,  # 30 problems, mean 1.323, a fifth up to 1.138
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 5 problems, mean 1.271, a fifth up to 1.135
    ("wgrad", "other", True): True,  # 26 problems, mean 1.951, a fifth up to 1.449
}
