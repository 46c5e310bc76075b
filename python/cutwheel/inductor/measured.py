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
    ("bias", 0): False,  # 37 problems, mean 0.991, a fifth up to 0.984
    ("bias", 2048): True,  # 21 problems, mean 1.020, a fifth up to 0.997
    ("bias", 512): False,  # 49 problems, mean 1.020, a fifth up to 0.975
    ("bias", 64): True,  # 59 problems, mean 1.113, a fifth up to 1.024
    ("gated", 0): True,  # 34 problems, mean 1.092, a fifth up to 1.016
    ("gated", 2048): True,  # 15 problems, mean 1.158, a fifth up to 1.050
    ("gated", 512): True,  # 24 problems, mean 1.258, a fifth up to 1.049
    ("gated", 64): True,  # 15 problems, mean 1.543, a fifth up to 1.093
    ("residual", 0): True,  # 34 problems, mean 1.060, a fifth up to 1.001
    ("residual", 2048): True,  # 15 problems, mean 1.095, a fifth up to 1.030
    ("residual", 512): False,  # 24 problems, mean 1.047, a fifth up to 0.945
    ("residual", 64): True,  # 15 problems, mean 1.128, a fifth up to 0.973
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
    ("trained", 0): False,  # 28 problems, mean 1.009, a fifth up to 1.001
    ("trained", 2048): True,  # 26 problems, mean 1.037, a fifth up to 1.016
    ("trained", 512): True,  # 16 problems, mean 1.088, a fifth up to 1.047
}

# Kind, filter, and whether it is strided.
CONVOLUTIONS = {
    ("convolution", "1x1", False): True,  # 22 problems, mean 1.338, a fifth up to 1.103
    ("convolution", "3x3", False): True,  # 46 problems, mean 1.240, a fifth up to 0.974
    ("convolution", "3x3", True): True,  # 14 problems, mean 1.202, a fifth up to 1.066
    ("convolution", "other", False): True,  # 5 problems, mean 1.137, a fifth up to 1.034
    ("convolution", "other", True): True,  # 7 problems, mean 2.616, a fifth up to 1.585
    ("dgrad", "1x1", False): True,  # 22 problems, mean 1.145, a fifth up to 0.991
    ("dgrad", "3x3", False): True,  # 46 problems, mean 1.164, a fifth up to 1.009
    ("dgrad", "3x3", True): False,  # 14 problems, mean 1.228, a fifth up to 0.926
    ("dgrad", "other", False): False,  # 5 problems, mean 0.956, a fifth up to 0.904
    ("dgrad", "other", True): True,  # 7 problems, mean 2.712, a fifth up to 1.013
    ("fprop", "1x1", False): True,  # 22 problems, mean 1.091, a fifth up to 0.970
    ("fprop", "3x3", False): True,  # 46 problems, mean 1.201, a fifth up to 1.013
    ("fprop", "3x3", True): False,  # 14 problems, mean 1.136, a fifth up to 0.941
    ("fprop", "other", False): True,  # 5 problems, mean 1.064, a fifth up to 0.990
    ("fprop", "other", True): True,  # 7 problems, mean 2.593, a fifth up to 1.469
    ("wgrad", "1x1", False): True,  # 22 problems, mean 1.080, a fifth up to 0.971
    ("wgrad", "3x3", False): False,  # 46 problems, mean 1.098, a fifth up to 0.962
    ("wgrad", "3x3", True): True,  # 14 problems, mean 1.172, a fifth up to 1.018
    ("wgrad", "other", False): False,  # 5 problems, mean 1.147, a fifth up to 0.947
    ("wgrad", "other", True): True,  # 7 problems, mean 1.447, a fifth up to 1.367
}
