"""Where kernels are expected to be faster than what Inductor would run.

Written by tools/tuning/gains.py from benchmarks/results. Ratios: Inductor's time to
ours; how its times were found is in tools/tuning/fused_gains.py.
"""

ROWS = (64, 512, 2048)
MAJOR = 9
"""compute capability of H100 and H200, which were measured"""

# Kind and number of rows, at most; 0: any number.
GEMMS = {
    ("activation", 0): True,  # 65 problems, mean 1.056, a fifth up to 0.988
    ("activation", 2048): True,  # 33 problems, mean 1.083, a fifth up to 1.001
    ("activation", 512): True,  # 42 problems, mean 1.062, a fifth up to 0.986
    ("activation", 64): True,  # 29 problems, mean 1.121, a fifth up to 1.006
    ("activation, goes on", 0): False,  # 65 problems, mean 0.968, a fifth up to 0.940
    ("activation, goes on", 2048): False,  # 33 problems, mean 0.987, a fifth up to 0.941
    ("activation, goes on", 512): False,  # 42 problems, mean 0.974, a fifth up to 0.919
    ("activation, goes on", 64): True,  # 29 problems, mean 1.116, a fifth up to 1.000
    ("activation, shared", 0): False,  # 65 problems, mean 1.013, a fifth up to 0.966
    ("activation, shared", 2048): True,  # 33 problems, mean 1.037, a fifth up to 0.977
    ("activation, shared", 512): False,  # 42 problems, mean 1.019, a fifth up to 0.956
    ("activation, shared", 64): True,  # 29 problems, mean 1.118, a fifth up to 1.004
    ("bias", 0): True,  # 75 problems, mean 1.023, a fifth up to 0.998
    ("bias", 2048): True,  # 44 problems, mean 1.056, a fifth up to 0.998
    ("bias", 512): True,  # 111 problems, mean 1.045, a fifth up to 1.002
    ("bias", 64): True,  # 136 problems, mean 1.128, a fifth up to 1.021
    ("gated", 0): True,  # 65 problems, mean 1.123, a fifth up to 1.035
    ("gated", 2048): True,  # 33 problems, mean 1.186, a fifth up to 1.032
    ("gated", 512): True,  # 42 problems, mean 1.243, a fifth up to 1.093
    ("gated", 64): True,  # 29 problems, mean 1.326, a fifth up to 1.063
    ("gated, goes on", 0): True,  # 65 problems, mean 1.075, a fifth up to 1.014
    ("gated, goes on", 2048): True,  # 33 problems, mean 1.132, a fifth up to 1.012
    ("gated, goes on", 512): True,  # 42 problems, mean 1.190, a fifth up to 1.070
    ("gated, goes on", 64): True,  # 29 problems, mean 1.323, a fifth up to 1.061
    ("gated, shared", 0): True,  # 65 problems, mean 1.099, a fifth up to 1.021
    ("gated, shared", 2048): True,  # 33 problems, mean 1.159, a fifth up to 1.021
    ("gated, shared", 512): True,  # 42 problems, mean 1.217, a fifth up to 1.084
    ("gated, shared", 64): True,  # 29 problems, mean 1.324, a fifth up to 1.063
    ("residual", 0): True,  # 65 problems, mean 1.092, a fifth up to 1.011
    ("residual", 2048): True,  # 33 problems, mean 1.096, a fifth up to 1.021
    ("residual", 512): True,  # 42 problems, mean 1.065, a fifth up to 0.985
    ("residual", 64): True,  # 29 problems, mean 1.100, a fifth up to 1.014
    ("residual, goes on", 0): False,  # 65 problems, mean 1.004, a fifth up to 0.970
    ("residual, goes on", 2048): False,  # 33 problems, mean 1.004, a fifth up to 0.989
    ("residual, goes on", 512): False,  # 42 problems, mean 0.982, a fifth up to 0.932
    ("residual, goes on", 64): True,  # 29 problems, mean 1.095, a fifth up to 1.008
    ("residual, shared", 0): True,  # 65 problems, mean 1.049, a fifth up to 0.987
    ("residual, shared", 2048): True,  # 33 problems, mean 1.051, a fifth up to 1.009
    ("residual, shared", 512): True,  # 42 problems, mean 1.024, a fifth up to 0.974
    ("residual, shared", 64): True,  # 29 problems, mean 1.097, a fifth up to 1.010
    ("rowwise", 0): False,  # 91 problems, mean 1.009, a fifth up to 0.940
    ("rowwise", 2048): True,  # 56 problems, mean 1.144, a fifth up to 0.993
    ("rowwise", 512): True,  # 118 problems, mean 1.274, a fifth up to 1.038
    ("rowwise", 64): True,  # 154 problems, mean 1.760, a fifth up to 1.399
    ("rowwise, fast", 0): False,  # 91 problems, mean 1.004, a fifth up to 0.963
    ("rowwise, fast", 2048): True,  # 56 problems, mean 1.128, a fifth up to 1.002
    ("rowwise, fast", 512): True,  # 118 problems, mean 1.251, a fifth up to 1.028
    ("rowwise, fast", 64): True,  # 154 problems, mean 1.589, a fifth up to 1.203
    ("tensorwise", 0): False,  # 91 problems, mean 0.948, a fifth up to 0.910
    ("tensorwise", 2048): False,  # 56 problems, mean 0.996, a fifth up to 0.944
    ("tensorwise", 512): True,  # 118 problems, mean 1.039, a fifth up to 0.971
    ("tensorwise", 64): True,  # 154 problems, mean 1.137, a fifth up to 1.025
    ("tensorwise, fast", 0): False,  # 91 problems, mean 1.018, a fifth up to 0.975
    ("tensorwise, fast", 2048): True,  # 56 problems, mean 1.031, a fifth up to 0.991
    ("tensorwise, fast", 512): True,  # 118 problems, mean 1.040, a fifth up to 0.986
    ("tensorwise, fast", 64): True,  # 154 problems, mean 1.144, a fifth up to 1.033
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
