#include "dispatch/epilogue_names.h"

#include <array>

namespace cutwheel {
namespace {

constexpr std::size_t kCount = std::size(kEpilogues);

// With their lengths, which tell most names apart at once.
constexpr std::array<std::string_view, kCount> names() {
  std::array<std::string_view, kCount> result;
  for (std::size_t i = 0; i < kCount; ++i) result[i] = kEpilogues[i].name;
  return result;
}

constexpr std::array<std::string_view, kCount> kNames = names();

// The manifest does not say for which op an epilogue is, its kernels do; those of grouped_mm and, with 16-bit operands,
// conv2d have the epilogues of both. One without any in this wheel, as a build of few kernels has them, is for gemm: the
// error of a miss is better than that of a name.
std::array<bool, kCount> find_those_for_gemm() {
  std::array<bool, kCount> gemm{}, other{};
  for (int i = 0; i < kKernelCount; ++i) {
    KernelDescriptor const& kernel = kKernels[i];
    bool const scales = kernel.op == Op::scaled_mm || (kernel.op == Op::conv2d && element_bytes(kernel.a) == 1);
    if (is_gemm(kernel) && (kernel.op == Op::gemm || scales))
      (kernel.op == Op::gemm ? gemm : other)[static_cast<std::size_t>(kernel.epilogue)] = true;
  }
  std::array<bool, kCount> result{};
  for (std::size_t i = 0; i < kCount; ++i) result[i] = gemm[i] || !other[i] || kEpilogues[i].addend != Addend::other;
  return result;
}

}  // namespace

std::optional<Epilogue> find_epilogue(std::string_view name) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (kNames[i] == name) return static_cast<Epilogue>(i);
  }
  return std::nullopt;
}

bool is_for_gemm(Epilogue epilogue) {
  static std::array<bool, kCount> const gemm = find_those_for_gemm();
  return gemm[static_cast<std::size_t>(epilogue)];
}

std::string declared_epilogues(bool has_accum) {
  std::string text;
  for (EpilogueInfo const& info : kEpilogues) {
    if (info.has_accum != has_accum || !is_for_gemm(static_cast<Epilogue>(&info - kEpilogues))) continue;
    if (!text.empty()) text += ", ";
    text += info.name;
  }
  return text.empty() ? "none" : text;
}

}  // namespace cutwheel
