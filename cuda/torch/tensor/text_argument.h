// Strings that torch hands to an op.
#pragma once

#include <torch/csrc/stable/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <string_view>

namespace cutwheel {

// Owns the string of one argument. torch's own conversion to std::string copies it to the heap and leaks the copy (as read
// in the headers of 2.13), so ops take the handle.
class TextArgument {
 public:
  explicit TextArgument(StringHandle handle) : handle_(handle) {}
  ~TextArgument() { torch_delete_string(handle_); }
  TextArgument(TextArgument const&) = delete;
  TextArgument& operator=(TextArgument const&) = delete;

  std::string_view view() const {
    std::size_t length = 0;
    char const* data = nullptr;
    bool const good = torch_string_length(handle_, &length) == 0 && torch_string_c_str(handle_, &data) == 0;
    return good ? std::string_view(data, length) : std::string_view();
  }

 private:
  StringHandle handle_;
};

}  // namespace cutwheel
