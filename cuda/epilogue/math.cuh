// The functions an epilogue expression may call, on float32 values.
//
// For 16-bit results the hardware's approximations of 2^x, 1/x and tanh are used, in forms that lose nothing where the
// function is small: their error stays below the rounding of the result everywhere, tails included, at two special-function
// instructions an element. For float32 results they are accurate to a few units of float32. NaN spreads through all of them
// as in torch.
#pragma once

#include <cutlass/cutlass.h>

#include "core/types.h"

namespace cutwheel::gemm::epilogue {

CUTLASS_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

CUTLASS_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

CUTLASS_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

CUTLASS_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Functions that both precisions share.
struct ExactFunctions {
  CUTLASS_DEVICE static float min(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
  }
  CUTLASS_DEVICE static float max(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
  }
  CUTLASS_DEVICE static float abs(float x) { return fabsf(x); }
  CUTLASS_DEVICE static float clamp(float x, float low, float high) { return min(max(x, low), high); }
  CUTLASS_DEVICE static float identity(float x) { return x; }
  CUTLASS_DEVICE static float relu(float x) { return max(x, 0.f); }
  CUTLASS_DEVICE static float relu_grad(float x) { return x <= 0.f ? 0.f : 1.f; }
  CUTLASS_DEVICE static float leaky_relu(float x, float slope) { return x > 0.f ? x : x * slope; }
  CUTLASS_DEVICE static float hardswish(float x) { return x * clamp(x + 3.f, 0.f, 6.f) * (1.f / 6.f); }
  CUTLASS_DEVICE static float hardswish_grad(float x) { return x < -3.f ? 0.f : x > 3.f ? 1.f : x * (1.f / 3.f) + 0.5f; }

 protected:
  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;
  static constexpr float kInverseSqrt2Pi = 0.3989422804014327f;
  static constexpr float kSqrt2OverPi = 0.7978845608028654f;
  static constexpr float kCubic = 0.044715f;  // of the tanh form of GELU (Hendrycks and Gimpel 2016)
};

struct FastFunctions : ExactFunctions {
  CUTLASS_DEVICE static float sigmoid(float x) { return reciprocal_approx(1.f + exp2_approx(-kLog2e * x)); }
  CUTLASS_DEVICE static float tanh(float x) { return tanh_approx(x); }
  CUTLASS_DEVICE static float silu(float x) { return x * sigmoid(x); }
  // relu(x) - |x| times the lower tail of the normal distribution. The tail's logarithm is smooth: a polynomial
  // within 2.5e-4 of it down to x = -5.5, where GELU is 1e-7 (minimax, found by linear programming), takes one
  // special-function instruction. Few instructions matter: the chip runs at its power limit, and each costs a large GEMM
  // 0.3 %. At -inf this yields 0, the limit, where torch's x * cdf(x) is NaN.
  CUTLASS_DEVICE static float gelu(float x) {
    float const a = fminf(fabsf(x), 1e4f);
    float const log2_tail =
        -1.00035908f +
        a * (-1.14626081f + a * (-0.469681029f + a * (-0.044599066f + a * (0.00486978892f + a * -0.000233252645f))));
    return max(x, 0.f) - a * exp2_approx(log2_tail);
  }
  // x (1 + tanh u) / 2 = x sigmoid(2u): without the cancellation of 1 + tanh u.
  CUTLASS_DEVICE static float gelu_tanh(float x) {
    return x * sigmoid(x * (2 * kSqrt2OverPi + 2 * kSqrt2OverPi * kCubic * (x * x)));
  }
  CUTLASS_DEVICE static float softplus(float x) {
    float const e = exp2_approx(kLog2e * x);
    // 1 + e rounds a small e away.
    float const y = e < 0x1p-6f ? e - e * e * (0.5f - e * (1.f / 3.f)) : kLn2 * log2_approx(1.f + e);
    return x > 20.f ? x : y;  // torch's threshold
  }

  CUTLASS_DEVICE static float sigmoid_grad(float x) { return sigmoid(x) * sigmoid(-x); }
  CUTLASS_DEVICE static float tanh_grad(float x) { return 4.f * sigmoid_grad(2.f * x); }
  CUTLASS_DEVICE static float silu_grad(float x) {
    float const s = sigmoid(x);
    return s * (1.f + x * (1.f - s));
  }
  CUTLASS_DEVICE static float gelu_grad(float x) {
    float density;
    float const cdf = normal_cdf(x, density);
    return cdf + x * density;
  }
  CUTLASS_DEVICE static float gelu_tanh_grad(float x) {
    float const s = sigmoid(x * (2 * kSqrt2OverPi + 2 * kSqrt2OverPi * kCubic * (x * x)));
    return s + s * (1.f - s) * (x * (2 * kSqrt2OverPi + 6 * kSqrt2OverPi * kCubic * (x * x)));
  }
  CUTLASS_DEVICE static float softplus_grad(float x) { return x > 20.f ? 1.f : sigmoid(x); }

 private:
  // The normal distribution function, from Abramowitz and Stegun 7.1.26: erfc(u) = t (a1 + ... + a5 t^4) exp(-u^2), with
  // t = 1 / (1 + p u), within 1.5e-7. Multiplied by exp(-u^2) the polynomial keeps the lower tail's relative accuracy.
  CUTLASS_DEVICE static float normal_cdf(float x, float& density) {
    constexpr float kP = 0.3275911f * 0.7071067811865476f;  // u = |x| / sqrt 2
    float const t = reciprocal_approx(1.f + kP * fabsf(x));
    float const e = exp2_approx(-0.5f * kLog2e * x * x);
    float const series = 0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f)));
    float const tail = 0.5f * t * series * e;
    density = kInverseSqrt2Pi * e;
    return x >= 0.f ? 1.f - tail : tail;
  }
};

struct AccurateFunctions : ExactFunctions {
  CUTLASS_DEVICE static float sigmoid(float x) { return reciprocal_approx(1.f + expf(-x)); }  // within two units
  CUTLASS_DEVICE static float tanh(float x) { return tanhf(x); }
  CUTLASS_DEVICE static float silu(float x) { return x * sigmoid(x); }
  CUTLASS_DEVICE static float gelu(float x) {
    float const a = fminf(fabsf(x), kFar);  // 0 at -inf, as above
    return max(x, 0.f) - a * normal_tail(a, expf(-0.5f * a * a));
  }
  CUTLASS_DEVICE static float gelu_tanh(float x) { return x * sigmoid(2 * kSqrt2OverPi * x * (1.f + kCubic * (x * x))); }
  CUTLASS_DEVICE static float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

  CUTLASS_DEVICE static float sigmoid_grad(float x) { return sigmoid(x) * sigmoid(-x); }
  CUTLASS_DEVICE static float tanh_grad(float x) { return 4.f * sigmoid_grad(2.f * x); }
  CUTLASS_DEVICE static float silu_grad(float x) { return sigmoid(x) * (1.f + x * sigmoid(-x)); }
  CUTLASS_DEVICE static float gelu_grad(float x) {
    float const near = clamp(x, -kFar, kFar), e = expf(-0.5f * near * near), tail = normal_tail(fabsf(near), e);
    return (near >= 0.f ? 1.f - tail : tail) + near * (kInverseSqrt2Pi * e);
  }
  CUTLASS_DEVICE static float gelu_tanh_grad(float x) {
    float const u = 2 * kSqrt2OverPi * x * (1.f + kCubic * (x * x));
    return sigmoid(u) + sigmoid_grad(u) * (2 * kSqrt2OverPi * x * (1.f + 3 * kCubic * (x * x)));
  }
  CUTLASS_DEVICE static float softplus_grad(float x) { return x > 20.f ? 1.f : sigmoid(x); }

 private:
  static constexpr float kFar = 40.f;  // no density is left there

  // The normal distribution's upper tail at a >= 0, where e is exp(-a^2 / 2): the form of Abramowitz and Stegun 7.1.26 with
  // eight degrees, whose relative error is 1.6e-7 (minimax, found by linear programming). normcdff() branches, and is
  // several times as many instructions.
  CUTLASS_DEVICE static float normal_tail(float a, float e) {
    float const t = reciprocal_approx(1.f + 0.28f * a);
    float const start =
        0.0730018318f + t * (-0.00693967799f + t * (0.093021147f + t * (-0.0939684361f + t * 0.0248167422f)));
    return t * (0.111703865f + t * (0.111699395f + t * (0.103092186f + t * (0.083572872f + t * start)))) * e;
  }
};

template <DType d>
struct FunctionsOf {
  using type = FastFunctions;
};
template <>
struct FunctionsOf<DType::f32> {
  using type = AccurateFunctions;
};
template <DType d>
using Functions = typename FunctionsOf<d>::type;

}  // namespace cutwheel::gemm::epilogue
