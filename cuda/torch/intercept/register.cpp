// How an op is taken, and why so:
//
// - Registering: a library of torch's that is made and deleted at run time. Deleting it makes torch's kernel the current
//   one again; the dispatcher keeps the overridden kernels in a list.
// - Kernels are boxed functions of the stable ABI. It hands over what these ops have: optional tensors, lists of numbers,
//   symbolic ones too, and dtypes. It has no conversion for a Scalar, up to torch 2.13 ("Not yet supported conversion"), so
//   the kernel of addmm is Python's (python/cutwheel/interception.py), which asks take_addmm.
// - A call that goes on is a call of torch's own kernel: torch_kernel.h.
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>

#include "torch/intercept/intercept.h"
#include "torch/intercept/operands.h"
#include "torch/intercept/ops.h"
#include "torch/intercept/torch_kernel.h"

namespace cutwheel {
namespace {

std::vector<Overload> const& overloads() {
  static std::vector<Overload> const all = [] {
    std::vector<Overload> found;
    for (auto const part : {gemm_overloads, scaled_overloads, grouped_overloads, conv_overloads}) {
      for (Overload const& overload : part()) found.push_back(overload);
    }
    return found;
  }();
  return all;
}

// Stands in for c10::WarningHandler, whose virtual functions these are. Once in a process torch warns that a kernel is
// overridden, past Python's filters; that is what was asked for.
class Silence {
 public:
  Silence() {
    auto const get = reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "_ZN3c1012WarningUtils19get_warning_handlerEv"));
    set_ = reinterpret_cast<void (*)(void*)>(
        dlsym(RTLD_DEFAULT, "_ZN3c1012WarningUtils19set_warning_handlerEPNS_14WarningHandlerE"));
    if (!get || !set_) return;
    before_ = get();
    set_(&handler_);
  }
  Silence(Silence const&) = delete;
  Silence& operator=(Silence const&) = delete;
  ~Silence() {
    if (before_) set_(before_);
  }

 private:
  struct Handler {
    virtual ~Handler() = default;
    virtual void process(void const*) {}
  };

  Handler handler_;
  void* before_ = nullptr;
  void (*set_)(void*) = nullptr;
};

// An overload of aten as it is taken; torch's again when it is destroyed.
class Registration {
 public:
  Registration(char const* key, Overload const& overload) {
    if (aoti_torch_library_init_impl("aten", key, __FILE__, __LINE__, &library_) != 0) fail_registration(overload);
    Silence const silence;
    if (torch_library_impl(library_, name_of(overload.op), overload.boxed, TORCH_ABI_VERSION) != 0) {
      aoti_torch_delete_library_object(library_);
      fail_registration(overload);
    }
  }
  Registration(Registration const&) = delete;
  Registration& operator=(Registration const&) = delete;
  ~Registration() { aoti_torch_delete_library_object(library_); }

 private:
  [[noreturn]] static void fail_registration(Overload const& overload) {
    fail(ErrorKind::runtime, "enable: torch refused a kernel for aten::", name_of(overload.op));
  }

  TorchLibraryHandle library_ = nullptr;
};

std::mutex g_registering;

// Never destroyed: when the process ends, torch's dispatcher may be gone already.
std::array<std::unique_ptr<Registration>, kTakenCount>& registrations() {
  static auto* const all = new std::array<std::unique_ptr<Registration>, kTakenCount>();
  return *all;
}

// Null where this torch has no symbol of that name.
void* kernel_of_torch(Overload const& overload, std::string_view key) {
  auto const find = [&](char const* space) {
    return dlsym(RTLD_DEFAULT, concat("_ZN2at", space, overload.symbol).c_str());
  };
  bool const is_cuda = key == "CUDA";
  if (void* const found = find(is_cuda ? "4cuda" : "3cpu")) return found;
  // One kernel for all devices, which chooses among theirs. _grouped_mm has another one for CUDA.
  bool const is_for_all = overload.op == Taken::convolution || overload.op == Taken::convolution_backward;
  return is_for_all || !is_cuda ? find("25compositeexplicitautograd") : nullptr;
}

bool names(std::string_view list, std::string_view name) {
  for (std::size_t begin = 0; begin <= list.size();) {
    std::size_t const end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

std::string intercept(StringHandle overloads_handle, std::int64_t dtypes, StringHandle key_handle) {
  TextArgument const list(overloads_handle), key(key_handle);
  if (key.view() != "CUDA" && key.view() != "CPU") {
    fail(ErrorKind::value, "enable: key is \"", key.view(), "\"; expected CUDA, or CPU in tests");
  }
  std::lock_guard<std::mutex> const lock(g_registering);
  static std::string taken_at;
  if (taken_at != key.view()) {
    for (auto& registration : registrations()) registration.reset();
    taken_at = key.view();
  }
  g_dtypes.store(static_cast<std::uint64_t>(dtypes));
  std::string missing;
  for (Overload const& overload : overloads()) {
    std::size_t const i = static_cast<std::size_t>(overload.op);
    auto& registration = registrations()[i];
    char const* const name = name_of(overload.op);
    if (!names(list.view(), name)) {
      registration.reset();
      continue;
    }
    if (registration) continue;
    void* const kernel = kernel_of_torch(overload, key.view());
    if (!kernel) {
      missing += concat(missing.empty() ? "\"" : ", \"", name, '"');
      continue;
    }
    g_torch_kernels[i].store(kernel, std::memory_order_release);
    registration = std::make_unique<Registration>(taken_at.c_str(), overload);
  }
  return concat('[', missing, ']');
}

std::string intercepted_json() { return account_json(); }

void clear_intercepted() { clear_account(); }

std::string interception_verdict(StringHandle kind, std::int64_t rows, std::vector<std::int64_t> extents,
                                 std::int64_t major) {
  TextArgument const text(kind);
  MeasuredExtents all{};
  if (extents.size() > all.size()) {
    fail(ErrorKind::value, "interception: extents has ", extents.size(), " numbers; expected at most ", all.size());
  }
  std::copy(extents.begin(), extents.end(), all.begin());
  return text_of(predict(text.view(), rows, all, static_cast<int>(major)));
}

}  // namespace cutwheel
