"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 34 problems, mean 1.042, a fifth up to 0.989
    ("activation", 2048): True,  # 15 problems, mean 1.095, a fifth up to 1.027
    ("activation", 512): True,  # 24 problems, mean 1.080, a fifth up to 1.004
    ("activation", 64): False,  # 15 problems, mean 1.127, a fifth up to 0.970
    ("activation, goes on", 0): False,  # 34 problems, mean 0.964, a fifth up to 0.914
    ("activation, goes on", 2048): True,  # 15 problems, mean 1.020, a fifth up to 1.004
    ("activation, goes on", 512): False,  # 24 problems, mean 1.025, a fifth up to 0.931
    ("activation, goes on", 64): False,  # 15 problems, mean 1.121, a fifth up to 0.968
    ("activation, shared", 0): False,  # 34 problems, mean 1.004, a fifth up to 0.963
    ("activation, shared", 2048): True,  # 15 problems, mean 1.058, a fifth up to 1.017
    ("activation, shared", 512): True,  # 24 problems, mean 1.053, a fifth up to 0.983
    ("activation, shared", 64): False,  # 15 problems, mean 1.124, a fifth up to 0.969
    ("bias", 0): False,  # 37 problems, mean 0.991, a fifth up to 0.984
    ("bias", 2048): True,  # 21 problems, mean 1.020, a fifth up to 0.997
    ("bias", 512): False,  # 49 problems, mean 1.020, a fifth up to 0.975
    ("bias", 64): True,  # 59 problems, mean 1.113, a fifth up to 1.024
    ("gated", 0): True,  # 34 problems, mean 1.092, a fifth up to 1.016
    ("gated", 2048): True,  # 15 problems, mean 1.158, a fifth up to 1.050
    ("gated", 512): True,  # 24 problems, mean 1.258, a fifth up to 1.049
    ("gated", 64): True,  # 15 problems, mean 1.543, a fifth up to 1.093
    ("gated, goes on", 0): True,  # 34 problems, mean 1.050, a fifth up to 1.002
    ("gated, goes on", 2048): True,  # 15 problems, mean 1.117, a fifth up to 1.039
    ("gated, goes on", 512): True,  # 24 problems, mean 1.226, a fifth up to 1.025
    ("gated, goes on", 64): True,  # 15 problems, mean 1.540, a fifth up to 1.092
    ("gated, shared", 0): True,  # 34 problems, mean 1.071, a fifth up to 1.011
    ("gated, shared", 2048): True,  # 15 problems, mean 1.138, a fifth up to 1.045
    ("gated, shared", 512): True,  # 24 problems, mean 1.242, a fifth up to 1.044
    ("gated, shared", 64): True,  # 15 problems, mean 1.541, a fifth up to 1.093
    ("residual", 0): True,  # 34 problems, mean 1.079, a fifth up to 1.007
    ("residual", 2048): True,  # 15 problems, mean 1.109, a fifth up to 1.030
    ("residual", 512): False,  # 24 problems, mean 1.066, a fifth up to 0.951
    ("residual", 64): True,  # 15 problems, mean 1.130, a fifth up to 0.974
    ("residual, goes on", 0): False,  # 34 problems, mean 1.002, a fifth up to 0.959
    ("residual, goes on", 2048): True,  # 15 problems, mean 1.034, a fifth up to 1.003
    ("residual, goes on", 512): False,  # 24 problems, mean 1.014, a fifth up to 0.939
    ("residual, goes on", 64): True,  # 15 problems, mean 1.125, a fifth up to 0.971
    ("residual, shared", 0): True,  # 34 problems, mean 1.041, a fifth up to 0.984
    ("residual, shared", 2048): True,  # 15 problems, mean 1.072, a fifth up to 1.012
    ("residual, shared", 512): False,  # 24 problems, mean 1.040, a fifth up to 0.945
    ("residual, shared", 64): True,  # 15 problems, mean 1.128, a fifth up to 0.973
    ("rowwise", 0): True,  # 40 problems, mean 1.049, a fifth up to 0.987
    ("rowwise", 2048): True,  # 22 problems, mean 1.099, a fifth up to 1.002
    ("rowwise", 512): True,  # 52 problems, mean 1.308, a fifth up to 1.041
    ("rowwise", 64): True,  # 66 problems, mean 1.965, a fifth up to 1.563
    ("rowwise, fast", 0): False,  # 40 problems, mean 1.000, a fifth up to 0.960
    ("rowwise, fast", 2048): True,  # 22 problems, mean 1.092, a fifth up to 0.996
    ("rowwise, fast", 512): True,  # 52 problems, mean 1.283, a fifth up to 1.010
    ("rowwise, fast", 64): True,  # 66 problems, mean 1.744, a fifth up to 1.290
    ("tensorwise", 0): False,  # 40 problems, mean 0.978, a fifth up to 0.943
    ("tensorwise", 2048): True,  # 22 problems, mean 1.021, a fifth up to 0.984
    ("tensorwise", 512): True,  # 52 problems, mean 1.041, a fifth up to 0.987
    ("tensorwise", 64): True,  # 66 problems, mean 1.122, a fifth up to 1.030
    ("tensorwise, fast", 0): False,  # 40 problems, mean 1.008, a fifth up to 0.961
    ("tensorwise, fast", 2048): True,  # 22 problems, mean 1.050, a fifth up to 0.998
    ("tensorwise, fast", 512): True,  # 52 problems, mean 1.027, a fifth up to 0.973
    ("tensorwise, fast", 64): True,  # 66 problems, mean 1.121, a fifth up to 1.029
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
