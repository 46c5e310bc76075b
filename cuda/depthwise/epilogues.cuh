// The epilogues of a kernel that has all of them: of depthwise and of grouped convolutions.
#pragma once

#include "epilogue/apply.cuh"
#include "epilogues.h"  // generated: enum class Epilogue

namespace cutwheel::conv2d {

using namespace gemm;

// An epilogue by its enumerator.
template <Epilogue name_, template <DType> class Class_>
struct EpilogueCase {
  static constexpr Epilogue kName = name_;
  template <DType d>
  using Class = Class_<d>;
};

// One kernel has all of them, and is told which to apply: the outputs of a thread go through the code of one after the
// other, so it is there once. The first two are those that add up to the sums and the bias.
template <DType d, class... Cases>
struct EpilogueSwitch {
  static constexpr int kSums = 2, kCount = sizeof...(Cases);
  static_assert(kCount == 0 || kCount >= kSums);

  // Its position, or -1.
  static int position_of(Epilogue epilogue) {
    int position = -1, i = 0;
    ((Cases::kName == epilogue ? (position = i++) : i++), ...);
    return position;
  }

  template <class Operand>
  CUTLASS_DEVICE static float value_of(float const* scalars, float bias, float residual) {
    if constexpr (Operand::kKind == OperandKind::scalar) return scalars[Operand::kIndex];
    return Operand::kKind == OperandKind::row ? bias : residual;
  }

  template <class Class, int count, class... Operands>
  CUTLASS_DEVICE static void apply_one(epilogue::OperandList<Operands...>, float const* scalars, float const* sums,
                                       float const* bias, float const* residual, float* results) {
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < count; ++i) {
      Class::compute(sums[i], value_of<Operands>(scalars, bias[i], residual[i])..., results[i]);
    }
  }

  template <int count>
  CUTLASS_DEVICE static void apply(int position, float const* scalars, float const* sums, float const* bias,
                                   float const* residual, float* results) {
    if constexpr (kCount == 0) {
      for (int i = 0; i < count; ++i) results[i] = sums[i] + bias[i];
    } else {
      int i = 0;
      (void)((position == i++ &&
              (apply_one<typename Cases::template Class<d>, count>(typename Cases::template Class<d>::Operands{}, scalars,
                                                                   sums, bias, residual, results),
               true)) ||
             ...);
    }
  }
};

}  // namespace cutwheel::conv2d
