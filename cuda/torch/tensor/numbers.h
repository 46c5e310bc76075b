// Lists of numbers that torch hands to kernels.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/error.h"

namespace cutwheel {

// An int[] or bool[] as torch hands it over. Off the heap as far as torch's own kernels take it.
class Numbers {
 public:
  explicit Numbers(StableListHandle list) {
    bool good = torch_list_size(list, &size_) == 0;
    if (!good) size_ = 0;
    if (size_ > few_.size()) many_.resize(size_);
    std::int64_t* const values = size_ > few_.size() ? many_.data() : few_.data();
    for (std::size_t i = 0; good && i < size_; ++i) {
      StableIValue value = 0;
      good = torch_list_get_item(list, i, &value) == 0;
      values[i] = static_cast<std::int64_t>(value);
    }
    torch_delete_list(list);
    if (!good) fail(ErrorKind::runtime, "torch could not hand over a list of numbers");
  }

  std::int64_t const* data() const { return size_ > few_.size() ? many_.data() : few_.data(); }
  std::size_t size() const { return size_; }
  bool is_zero() const {
    return std::all_of(data(), data() + size_, [](std::int64_t value) { return value == 0; });
  }
  // One number for H and W, or two.
  bool is_pair(std::int64_t least) const { return (size_ == 1 || size_ == 2) && h() >= least && w() >= least; }
  std::int64_t h() const { return few_[0]; }
  std::int64_t w() const { return few_[size_ == 1 ? 0 : 1]; }
  bool flag(std::size_t i) const { return i < size_ && (few_[i] & 1) != 0; }

 private:
  std::size_t size_ = 0;
  std::array<std::int64_t, 4> few_{};
  std::vector<std::int64_t> many_;
};

}  // namespace cutwheel
