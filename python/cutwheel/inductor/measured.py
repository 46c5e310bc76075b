"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 65 problems, mean 1.060, a fifth up to 0.990
    ("activation", 2048): True,  # 32 problems, mean 1.090, a fifth up to 1.018
    ("activation", 512): True,  # 42 problems, mean 1.066, a fifth up to 0.982
    ("activation", 64): True,  # 31 problems, mean 1.115, a fifth up to 1.006
    ("activation, goes on", 0): False,  # 65 problems, mean 0.971, a fifth up to 0.938
    ("activation, goes on", 2048): False,  # 32 problems, mean 0.992, a fifth up to 0.959
    ("activation, goes on", 512): False,  # 42 problems, mean 0.978, a fifth up to 0.930
    ("activation, goes on", 64): True,  # 31 problems, mean 1.110, a fifth up to 1.000
    ("activation, shared", 0): False,  # 65 problems, mean 1.017, a fifth up to 0.966
    ("activation, shared", 2048): True,  # 32 problems, mean 1.042, a fifth up to 0.992
    ("activation, shared", 512): False,  # 42 problems, mean 1.023, a fifth up to 0.961
    ("activation, shared", 64): True,  # 31 problems, mean 1.113, a fifth up to 1.004
    ("bias", 0): True,  # 78 problems, mean 1.032, a fifth up to 0.999
    ("bias", 2048): True,  # 49 problems, mean 1.053, a fifth up to 1.007
    ("bias", 512): True,  # 108 problems, mean 1.049, a fifth up to 1.002
    ("bias", 64): True,  # 131 problems, mean 1.120, a fifth up to 1.030
    ("gated", 0): True,  # 65 problems, mean 1.119, a fifth up to 1.028
    ("gated", 2048): True,  # 32 problems, mean 1.181, a fifth up to 1.033
    ("gated", 512): True,  # 42 problems, mean 1.237, a fifth up to 1.093
    ("gated", 64): True,  # 31 problems, mean 1.324, a fifth up to 1.065
    ("gated, goes on", 0): True,  # 65 problems, mean 1.070, a fifth up to 1.006
    ("gated, goes on", 2048): True,  # 32 problems, mean 1.127, a fifth up to 1.014
    ("gated, goes on", 512): True,  # 42 problems, mean 1.185, a fifth up to 1.070
    ("gated, goes on", 64): True,  # 31 problems, mean 1.321, a fifth up to 1.063
    ("gated, shared", 0): True,  # 65 problems, mean 1.095, a fifth up to 1.017
    ("gated, shared", 2048): True,  # 32 problems, mean 1.154, a fifth up to 1.023
    ("gated, shared", 512): True,  # 42 problems, mean 1.211, a fifth up to 1.083
    ("gated, shared", 64): True,  # 31 problems, mean 1.323, a fifth up to 1.063
    ("residual", 0): True,  # 65 problems, mean 1.086, a fifth up to 0.998
    ("residual", 2048): True,  # 32 problems, mean 1.100, a fifth up to 1.020
    ("residual", 512): True,  # 42 problems, mean 1.081, a fifth up to 1.015
    ("residual", 64): True,  # 31 problems, mean 1.097, a fifth up to 1.024
    ("residual, goes on", 0): False,  # 65 problems, mean 1.000, a fifth up to 0.957
    ("residual, goes on", 2048): False,  # 32 problems, mean 1.006, a fifth up to 0.985
    ("residual, goes on", 512): False,  # 42 problems, mean 0.996, a fifth up to 0.955
    ("residual, goes on", 64): True,  # 31 problems, mean 1.092, a fifth up to 1.016
    ("residual, shared", 0): True,  # 65 problems, mean 1.044, a fifth up to 0.981
    ("residual, shared", 2048): True,  # 32 problems, mean 1.054, a fifth up to 1.004
    ("residual, shared", 512): True,  # 42 problems, mean 1.039, a fifth up to 0.985
    ("residual, shared", 64): True,  # 31 problems, mean 1.095, a fifth up to 1.020
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
    ("convolution", "1x1", False): True,  # 58 problems, mean 1.302, a fifth up to 1.122
    ("convolution", "1x1", True): True,  # 7 problems, mean 1.695, a fifth up to 1.552
    ("convolution", "3x3", False): True,  # 120 problems, mean 1.355, a fifth up to 1.081
    ("convolution", "3x3", True): True,  # 25 problems, mean 1.244, a fifth up to 1.011
    ("convolution", "other", False): True,  # 5 problems, mean 1.825, a fifth up to 1.733
    ("convolution", "other", True): True,  # 26 problems, mean 3.218, a fifth up to 1.714
    ("convolution, goes on", "1x1", False): False,  # 58 problems, mean 0.979, a fifth up to 0.874
    ("convolution, goes on", "1x1", True): True,  # 7 problems, mean 1.349, a fifth up to 1.139
    ("convolution, goes on", "3x3", False): True,  # 120 problems, mean 1.209, a fifth up to 0.989
    ("convolution, goes on", "3x3", True): False,  # 25 problems, mean 1.095, a fifth up to 0.924
    ("convolution, goes on", "other", False): True,  # 5 problems, mean 1.684, a fifth up to 1.591
    ("convolution, goes on", "other", True): True,  # 26 problems, mean 2.962, a fifth up to 1.426
    ("convolution, shared", "1x1", False): True,  # 58 problems, mean 1.145, a fifth up to 1.055
    ("convolution, shared", "1x1", True): True,  # 7 problems, mean 1.523, a fifth up to 1.352
    ("convolution, shared", "3x3", False): True,  # 120 problems, mean 1.284, a fifth up to 1.038
    ("convolution, shared", "3x3", True): False,  # 25 problems, mean 1.170, a fifth up to 0.967
    ("convolution, shared", "other", False): True,  # 5 problems, mean 1.754, a fifth up to 1.662
    ("convolution, shared", "other", True): True,  # 26 problems, mean 3.092, a fifth up to 1.570
    ("dgrad", "1x1", False): True,  # 58 problems, mean 1.226, a fifth up to 1.062
    ("dgrad", "1x1", True): True,  # 7 problems, mean 1.471, a fifth up to 1.193
    ("dgrad", "3x3", False): True,  # 120 problems, mean 1.170, a fifth up to 0.987
    ("dgrad", "3x3", True): True,  # 25 problems, mean 1.387, a fifth up to 1.100
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): True,  # 5 problems, mean 1.465, a fifth up to 1.559
    ("dgrad", "other", True): True,  # 26 problems, mean 3.495, a fifth up to 2.061
    ("fprop", "1x1", False): True,  # 58 problems, mean 1.187, a fifth up to 1.008
    ("fprop", "1x1", True): True,  # 7 problems, mean 1.554, a fifth up to 1.408
    ("fprop", "3x3", False): True,  # 120 problems, mean 1.258, a fifth up to 1.011
    ("fprop", "3x3", True): False,  # 25 problems, mean 1.189, a fifth up to 0.915
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 5 problems, mean 1.678, a fifth up to 1.579
    ("fprop", "other", True): True,  # 26 problems, mean 3.358, a fifth up to 1.695
    ("wgrad", "1x1", False): True,  # 57 problems, mean 1.137, a fifth up to 1.006
    ("wgrad", "1x1", True): True,  # 7 problems, mean 1.370, a fifth up to 1.225
    ("wgrad", "3x3", False): True,  # 120 problems, mean 1.227, a fifth up to 1.025
    ("wgrad", "3x3", True): True,  # 25 problems, mean 1.295, a fifth up to 1.110
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 5 problems, mean 1.382, a fifth up to 1.337
    ("wgrad", "other", True): True,  # 26 problems, mean 2.151, a fifth up to 1.484
}
