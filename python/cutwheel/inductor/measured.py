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
    ("convolution", "1x1", False): True,  # 26 problems, mean 1.280, a fifth up to 1.090
    ("convolution", "3x3", False): True,  # 63 problems, mean 1.330, a fifth up to 1.096
    ("convolution", "3x3", True): True,  # 16 problems, mean 1.304, a fifth up to 1.162
    ("convolution", "other", False): True,  # 5 problems, mean 1.252, a fifth up to 0.993
    ("convolution", "other", True): True,  # 11 problems, mean 3.627, a fifth up to 2.761
    ("convolution, goes on", "1x1", False): False,  # 26 problems, mean 0.988, a fifth up to 0.915
    ("convolution, goes on", "3x3", False): True,  # 63 problems, mean 1.204, a fifth up to 1.002
    ("convolution, goes on", "3x3", True): True,  # 16 problems, mean 1.148, a fifth up to 1.030
    ("convolution, goes on", "other", False): False,  # 5 problems, mean 1.184, a fifth up to 0.950
    ("convolution, goes on", "other", True): True,  # 11 problems, mean 3.395, a fifth up to 2.484
    ("convolution, shared", "1x1", False): True,  # 26 problems, mean 1.137, a fifth up to 1.012
    ("convolution, shared", "3x3", False): True,  # 63 problems, mean 1.268, a fifth up to 1.053
    ("convolution, shared", "3x3", True): True,  # 16 problems, mean 1.226, a fifth up to 1.075
    ("convolution, shared", "other", False): True,  # 5 problems, mean 1.218, a fifth up to 0.971
    ("convolution, shared", "other", True): True,  # 11 problems, mean 3.512, a fifth up to 2.623
    ("dgrad", "1x1", False): True,  # 26 problems, mean 1.118, a fifth up to 1.025
    ("dgrad", "3x3", False): True,  # 63 problems, mean 1.176, a fifth up to 1.008
    ("dgrad", "3x3", True): False,  # 16 problems, mean 1.134, a fifth up to 0.894
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.047, a fifth up to 1.002
    ("dgrad", "other", False): False,  # 5 problems, mean 0.951, a fifth up to 0.835
    ("dgrad", "other", True): True,  # 11 problems, mean 3.964, a fifth up to 1.552
    ("fprop", "1x1", False): False,  # 26 problems, mean 1.093, a fifth up to 0.958
    ("fprop", "3x3", False): True,  # 63 problems, mean 1.239, a fifth up to 1.033
    ("fprop", "3x3", True): True,  # 16 problems, mean 1.220, a fifth up to 1.048
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.071, a fifth up to 0.991
    ("fprop", "other", False): True,  # 5 problems, mean 1.208, a fifth up to 1.010
    ("fprop", "other", True): True,  # 11 problems, mean 3.709, a fifth up to 2.699
    ("wgrad", "1x1", False): True,  # 26 problems, mean 1.058, a fifth up to 0.981
    ("wgrad", "3x3", False): True,  # 63 problems, mean 1.175, a fifth up to 1.020
    ("wgrad", "3x3", True): True,  # 16 problems, mean 1.317, a fifth up to 1.089
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.003, a fifth up to 0.907
    ("wgrad", "other", False): False,  # 5 problems, mean 1.191, a fifth up to 0.961
    ("wgrad", "other", True): True,  # 11 problems, mean 1.763, a fifth up to 1.407
}
