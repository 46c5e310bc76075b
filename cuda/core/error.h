// Errors leave this library as text with the name of a Python class in front; the Python layer raises that class.
#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace cutwheel {

enum class ErrorKind { type, value, shape, device, runtime, not_implemented, out_of_memory };

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string const& text) : std::runtime_error(prefix(kind) + text), kind_(kind) {}

  ErrorKind kind() const { return kind_; }

 private:
  static std::string prefix(ErrorKind kind) {
    switch (kind) {
      case ErrorKind::type: return "cutwheel.TypeError: ";
      case ErrorKind::value: return "cutwheel.ValueError: ";
      case ErrorKind::shape: return "cutwheel.ShapeError: ";
      case ErrorKind::device: return "cutwheel.DeviceError: ";
      case ErrorKind::not_implemented: return "cutwheel.NotImplementedError: ";
      case ErrorKind::out_of_memory: return "cutwheel.OutOfMemoryError: ";
      case ErrorKind::runtime: break;
    }
    return "cutwheel.RuntimeError: ";
  }

  ErrorKind kind_;
};

template <class... Parts>
std::string concat(Parts const&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // a program may have made another the global one: 1.234,5 is no JSON
  (out << ... << parts);
  return out.str();
}

// Out of line so that the good path carries no string building.
template <class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(ErrorKind kind, Parts const&... parts) {
  throw Error(kind, concat(parts...));
}

}  // namespace cutwheel
