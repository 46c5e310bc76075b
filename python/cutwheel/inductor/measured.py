"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 80 problems, mean 1.073, a fifth up to 0.999
    ("activation", 2048): True,  # 40 problems, mean 1.069, a fifth up to 0.991
    ("activation", 512): True,  # 51 problems, mean 1.043, a fifth up to 0.982
    ("activation", 64): True,  # 61 problems, mean 1.148, a fifth up to 0.983
    ("activation, goes on", 0): False,  # 80 problems, mean 0.972, a fifth up to 0.941
    ("activation, goes on", 2048): False,  # 40 problems, mean 0.971, a fifth up to 0.936
    ("activation, goes on", 512): False,  # 51 problems, mean 0.966, a fifth up to 0.925
    ("activation, goes on", 64): True,  # 61 problems, mean 1.143, a fifth up to 0.983
    ("activation, shared", 0): True,  # 80 problems, mean 1.024, a fifth up to 0.971
    ("activation, shared", 2048): True,  # 40 problems, mean 1.021, a fifth up to 0.981
    ("activation, shared", 512): False,  # 51 problems, mean 1.006, a fifth up to 0.948
    ("activation, shared", 64): True,  # 61 problems, mean 1.146, a fifth up to 0.983
    ("bias", 0): True,  # 80 problems, mean 1.031, a fifth up to 0.998
    ("bias", 2048): True,  # 44 problems, mean 1.048, a fifth up to 1.007
    ("bias", 512): True,  # 103 problems, mean 1.027, a fifth up to 0.996
    ("bias", 64): True,  # 139 problems, mean 1.123, a fifth up to 1.011
    ("gated", 0): True,  # 80 problems, mean 1.147, a fifth up to 1.043
    ("gated", 2048): True,  # 40 problems, mean 1.204, a fifth up to 1.053
    ("gated", 512): True,  # 51 problems, mean 1.221, a fifth up to 1.073
    ("gated", 64): True,  # 61 problems, mean 1.438, a fifth up to 1.061
    ("gated, goes on", 0): True,  # 80 problems, mean 1.091, a fifth up to 1.018
    ("gated, goes on", 2048): True,  # 40 problems, mean 1.146, a fifth up to 1.041
    ("gated, goes on", 512): True,  # 51 problems, mean 1.175, a fifth up to 1.063
    ("gated, goes on", 64): True,  # 61 problems, mean 1.435, a fifth up to 1.057
    ("gated, shared", 0): True,  # 80 problems, mean 1.119, a fifth up to 1.032
    ("gated, shared", 2048): True,  # 40 problems, mean 1.175, a fifth up to 1.047
    ("gated, shared", 512): True,  # 51 problems, mean 1.198, a fifth up to 1.070
    ("gated, shared", 64): True,  # 61 problems, mean 1.436, a fifth up to 1.059
    ("residual", 0): True,  # 80 problems, mean 1.112, a fifth up to 1.011
    ("residual", 2048): True,  # 40 problems, mean 1.105, a fifth up to 1.027
    ("residual", 512): True,  # 51 problems, mean 1.048, a fifth up to 0.982
    ("residual", 64): True,  # 61 problems, mean 1.121, a fifth up to 1.000
    ("residual, goes on", 0): False,  # 80 problems, mean 1.012, a fifth up to 0.972
    ("residual, goes on", 2048): False,  # 40 problems, mean 1.009, a fifth up to 0.983
    ("residual, goes on", 512): False,  # 51 problems, mean 0.975, a fifth up to 0.915
    ("residual, goes on", 64): True,  # 61 problems, mean 1.116, a fifth up to 0.999
    ("residual, shared", 0): True,  # 80 problems, mean 1.063, a fifth up to 0.997
    ("residual, shared", 2048): True,  # 40 problems, mean 1.058, a fifth up to 1.006
    ("residual, shared", 512): False,  # 51 problems, mean 1.012, a fifth up to 0.962
    ("residual, shared", 64): True,  # 61 problems, mean 1.119, a fifth up to 0.999
    ("rowwise", 0): False,  # 93 problems, mean 0.996, a fifth up to 0.935
    ("rowwise", 2048): True,  # 51 problems, mean 1.140, a fifth up to 0.990
    ("rowwise", 512): True,  # 117 problems, mean 1.266, a fifth up to 1.025
    ("rowwise", 64): True,  # 157 problems, mean 1.758, a fifth up to 1.380
    ("rowwise, fast", 0): False,  # 93 problems, mean 0.999, a fifth up to 0.966
    ("rowwise, fast", 2048): True,  # 51 problems, mean 1.131, a fifth up to 1.002
    ("rowwise, fast", 512): True,  # 117 problems, mean 1.253, a fifth up to 1.016
    ("rowwise, fast", 64): True,  # 157 problems, mean 1.608, a fifth up to 1.208
    ("tensorwise", 0): False,  # 93 problems, mean 0.938, a fifth up to 0.896
    ("tensorwise", 2048): False,  # 51 problems, mean 0.993, a fifth up to 0.944
    ("tensorwise", 512): False,  # 117 problems, mean 1.031, a fifth up to 0.965
    ("tensorwise", 64): True,  # 157 problems, mean 1.135, a fifth up to 1.025
    ("tensorwise, fast", 0): False,  # 93 problems, mean 1.016, a fifth up to 0.981
    ("tensorwise, fast", 2048): True,  # 51 problems, mean 1.037, a fifth up to 1.003
    ("tensorwise, fast", 512): True,  # 117 problems, mean 1.036, a fifth up to 0.984
    ("tensorwise, fast", 64): True,  # 157 problems, mean 1.142, a fifth up to 1.029
}

# Kind, filter, and whether it is strided.
CONVOLUTIONS = {
    ("convolution", "1x1", False): True,  # 51 problems, mean 1.327, a fifth up to 1.141
    ("convolution", "1x1", True): True,  # 5 problems, mean 1.705, a fifth up to 1.552
    ("convolution", "3x3", False): True,  # 124 problems, mean 1.333, a fifth up to 1.068
    ("convolution", "3x3", True): True,  # 33 problems, mean 1.271, a fifth up to 1.137
    ("convolution", "other", False): True,  # 5 problems, mean 1.781, a fifth up to 1.600
    ("convolution", "other", True): True,  # 23 problems, mean 2.741, a fifth up to 1.749
    ("convolution, goes on", "1x1", False): False,  # 51 problems, mean 0.992, a fifth up to 0.875
    ("convolution, goes on", "1x1", True): True,  # 5 problems, mean 1.333, a fifth up to 1.176
    ("convolution, goes on", "3x3", False): True,  # 124 problems, mean 1.198, a fifth up to 0.983
    ("convolution, goes on", "3x3", True): False,  # 33 problems, mean 1.128, a fifth up to 0.950
    ("convolution, goes on", "other", False): True,  # 5 problems, mean 1.647, a fifth up to 1.562
    ("convolution, goes on", "other", True): True,  # 23 problems, mean 2.516, a fifth up to 1.552
    ("convolution, shared", "1x1", False): True,  # 51 problems, mean 1.164, a fifth up to 1.069
    ("convolution, shared", "1x1", True): True,  # 5 problems, mean 1.520, a fifth up to 1.362
    ("convolution, shared", "3x3", False): True,  # 124 problems, mean 1.267, a fifth up to 1.023
    ("convolution, shared", "3x3", True): True,  # 33 problems, mean 1.200, a fifth up to 1.061
    ("convolution, shared", "other", False): True,  # 5 problems, mean 1.714, a fifth up to 1.581
    ("convolution, shared", "other", True): True,  # 23 problems, mean 2.629, a fifth up to 1.651
    ("dgrad", "1x1", False): True,  # 51 problems, mean 1.189, a fifth up to 1.004
    ("dgrad", "1x1", True): True,  # 5 problems, mean 1.544, a fifth up to 1.284
    ("dgrad", "3x3", False): True,  # 124 problems, mean 1.157, a fifth up to 0.982
    ("dgrad", "3x3", True): True,  # 33 problems, mean 1.376, a fifth up to 1.076
    ("dgrad", "3x3x3", False): True,  # 10 problems, mean 1.044, a fifth up to 1.007
    ("dgrad", "other", False): True,  # 5 problems, mean 1.407, a fifth up to 1.304
    ("dgrad", "other", True): True,  # 23 problems, mean 3.213, a fifth up to 1.782
    ("fprop", "1x1", False): True,  # 51 problems, mean 1.234, a fifth up to 1.042
    ("fprop", "1x1", True): True,  # 5 problems, mean 1.540, a fifth up to 1.408
    ("fprop", "3x3", False): True,  # 124 problems, mean 1.243, a fifth up to 1.004
    ("fprop", "3x3", True): True,  # 33 problems, mean 1.210, a fifth up to 0.981
    ("fprop", "3x3x3", False): True,  # 10 problems, mean 1.076, a fifth up to 0.985
    ("fprop", "other", False): True,  # 5 problems, mean 1.651, a fifth up to 1.579
    ("fprop", "other", True): True,  # 23 problems, mean 2.860, a fifth up to 1.729
    ("wgrad", "1x1", False): True,  # 50 problems, mean 1.120, a fifth up to 0.982
    ("wgrad", "1x1", True): True,  # 5 problems, mean 1.440, a fifth up to 1.258
    ("wgrad", "3x3", False): True,  # 124 problems, mean 1.236, a fifth up to 1.009
    ("wgrad", "3x3", True): True,  # 33 problems, mean 1.299, a fifth up to 1.128
    ("wgrad", "3x3x3", False): False,  # 10 problems, mean 1.001, a fifth up to 0.922
    ("wgrad", "other", False): True,  # 5 problems, mean 1.378, a fifth up to 1.337
    ("wgrad", "other", True): True,  # 23 problems, mean 1.843, a fifth up to 1.427
}
