// exp, log, log2 and pow of floats: those of doubles need glibc 2.29, and manylinux_2_28 ends before. Estimates have no
// seven digits.
#pragma once

#include <cmath>

namespace cutwheel {

inline double float_exp(double x) { return std::exp(static_cast<float>(x)); }
inline double float_log(double x) { return std::log(static_cast<float>(x)); }
inline double float_log2(double x) { return std::log2(static_cast<float>(x)); }
inline double float_pow(double x, double exponent) { return std::pow(static_cast<float>(x), static_cast<float>(exponent)); }

}  // namespace cutwheel
