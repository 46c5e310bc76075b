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

}  // namespace

std::optional<Epilogue> find_epilogue(std::string_view name) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (kNames[i] == name) return static_cast<Epilogue>(i);
  }
  return std::nullopt;
}

std::string declared_epilogues(bool has_accum) {
  std::string text;
  for (EpilogueInfo const& info : kEpilogues) {
    if (info.has_accum != has_accum) continue;
    if (!text.empty()) text += ", ";
    text += info.name;
  }
  return text.empty() ? "none" : text;
}

}  // namespace cutwheel
