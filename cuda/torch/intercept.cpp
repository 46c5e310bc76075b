// How an op is taken, and why so:
//
// - Registering: a library of torch's that is made and deleted at run time. Deleting it makes torch's kernel the current
// one
//   again; the dispatcher keeps the overridden kernels in a list.
// - Torch's own kernel: at::cuda::mm and its like, by their mangled names. A name holds the signature, so a torch that
//   changes it has no such symbol, and the op stays with torch. References are pointers, and an at::Tensor is one owning
//   pointer: what a handle points to. The shims of AOTInductor (aoti_torch_cuda_mm_out) call the same functions, but turn
//   their exceptions into a code: a bad argument or a full memory would lose class and text. torch.library.get_kernel would
//   take Python.
// - Ops with arguments of the type Scalar (addmm, baddbmm) cannot be taken: up to torch 2.13 the stable ABI does not hand
// them
//   to a kernel ("Not yet supported conversion").
#include "torch/intercept.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>
#include <unordered_map>

#include "dispatch/batch_invariance.h"
#include "torch/gemm.h"
#include "torch/intercept_gains.h"
#include "torch/registry.h"

namespace cutwheel {
namespace {

// --- What can be taken

enum class Taken : int { mm, mm_out, bmm, bmm_out };
constexpr int kTakenCount = 4;

Tensor take(Taken op, Tensor const& a, Tensor const& b, Tensor const* out);

template <Taken op>
Tensor functional(Tensor const& a, Tensor const& b) {
  return take(op, a, b, nullptr);
}

template <Taken op>
Tensor with_out(Tensor const& a, Tensor const& b, Tensor const& out) {
  return take(op, a, b, &out);
}

struct Overload {
  char const* name;
  char const* symbol;  // behind the namespace
  Boxed boxed;
  OpNames const* names;
  bool has_out;
};

constexpr char kFunctional[] = "ERKNS_6TensorES3_";
constexpr char kWithOut[] = "ERNS_6TensorERKS1_S4_";

std::array<Overload, kTakenCount> const& overloads() {
  static std::array<Overload, kTakenCount> const all{{
      {"mm", "2mm", TORCH_BOX(&functional<Taken::mm>), &kMm, false},
      {"mm.out", "6mm_out", TORCH_BOX(&with_out<Taken::mm_out>), &kMm, true},
      {"bmm", "3bmm", TORCH_BOX(&functional<Taken::bmm>), &kBmm, false},
      {"bmm.out", "7bmm_out", TORCH_BOX(&with_out<Taken::bmm_out>), &kBmm, true},
  }};
  return all;
}

// at::cuda::mm(self, mat2) writes the result where its first argument points to; mm_out(out, self, mat2) returns out.
using Original = void* (*)(void* result, void const* self, void const* mat2);

// --- A problem, and where it goes

enum class Verdict : std::uint8_t {
  taken,
  not_cuda,
  narrowed,
  dtype,
  shape,
  empty,
  layout,
  out,
  unmeasured,
  slower,
  no_kernel,
  copies,
  failed,
};
constexpr std::size_t kVerdictCount = static_cast<std::size_t>(Verdict::failed) + 1;

char const* text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::taken: return "taken";
    case Verdict::not_cuda: return "the tensors are not on one CUDA device";
    case Verdict::narrowed: return "dtypes= leaves this dtype out";
    case Verdict::dtype: return "dtypes other than float16 and bfloat16 stay with torch";
    case Verdict::shape: return "shapes that torch refuses or broadcasts";
    case Verdict::empty: return "an empty operand";
    case Verdict::layout: return "rows that do not begin at multiples of 16 bytes, or overlap";
    case Verdict::out: return "out= of another dtype, shape or strides, or over an operand";
    case Verdict::unmeasured: return "no measurement of this layout and number of rows on this GPU";
    case Verdict::slower: return "torch was measured as fast, or faster";
    case Verdict::no_kernel: return "no kernel of this wheel runs natively";
    case Verdict::copies: return "an operand would have to be copied";
    case Verdict::failed: return "cutwheel could not launch its kernel, or had no memory";
  }
  return "?";
}

struct Problem {
  std::int64_t batch = 0, m = 0, n = 0, k = 0;
  std::int32_t device = -1;
  Taken op{};
  ScalarType type{};
  char a = '?', b = '?';  // t: contiguous along the last dimension, n: along the one before
  bool batch_invariant = false;
  // Known of the tensors before anything is looked up; taken: nothing speaks against it.
  Verdict first = Verdict::taken;

  bool operator==(Problem const& o) const {
    return batch == o.batch && m == o.m && n == o.n && k == o.k && device == o.device && op == o.op && type == o.type &&
           a == o.a && b == o.b && batch_invariant == o.batch_invariant && first == o.first;
  }
};

struct HashOfProblem {
  std::size_t operator()(Problem const& p) const {
    std::uint64_t hash = 0;
    auto const mix = [&hash](std::uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 32;
    };
    mix(static_cast<std::uint64_t>(p.batch)), mix(static_cast<std::uint64_t>(p.m));
    mix(static_cast<std::uint64_t>(p.n)), mix(static_cast<std::uint64_t>(p.k));
    mix(static_cast<std::uint64_t>(p.device) << 40 | static_cast<std::uint64_t>(p.op) << 32 |
        static_cast<std::uint64_t>(p.type) << 24 | static_cast<std::uint64_t>(p.a) << 16 |
        static_cast<std::uint64_t>(p.b) << 8 | static_cast<std::uint64_t>(p.first) << 1 | p.batch_invariant);
    return hash;
  }
};

// Elements of 16-bit operands in 16 bytes.
constexpr std::int64_t kVector = 8;

bool lies_on_vectors(Matrix const& x, std::int64_t leading, std::int64_t extent, std::int64_t rows) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && extent % kVector == 0 &&
         (rows == 1 || (leading >= extent && leading % kVector == 0)) && (x.batch == 1 || x.batch_stride % kVector == 0);
}

// The letter of a matrix that kernels read as it lies.
char letter_of_matrix(Matrix const& x) {
  if (x.col_stride == 1 && lies_on_vectors(x, x.row_stride, x.cols, x.rows)) return 't';
  if (x.row_stride == 1 && lies_on_vectors(x, x.col_stride, x.rows, x.cols)) return 'n';
  return '?';
}

bool is_contiguous_result(Tensor const& out, Problem const& p, Matrix const& a, Matrix const& b) {
  Matrix const d = matrix_of(out);
  constexpr int kBytes = 2;
  return out.dim() == (p.op == Taken::bmm_out ? 3 : 2) && type_of(out) == p.type && out.get_device_index() == p.device &&
         d.batch == p.batch && d.rows == p.m && d.cols == p.n && d.col_stride == 1 && d.row_stride == p.n &&
         (d.batch == 1 || d.batch_stride == p.m * p.n) && letter_of_matrix(d) == 't' && !overlaps(d, kBytes, a, kBytes) &&
         !overlaps(d, kBytes, b, kBytes);
}

bool is_cuda(Tensor const& x) {
  std::int32_t type = -1;
  return aoti_torch_get_device_type(x.get(), &type) == 0 && type == aoti_torch_device_type_cuda();
}

bool is_16_bit(ScalarType type) { return type == ScalarType::Half || type == ScalarType::BFloat16; }

Problem problem_of(Taken op, Tensor const& a, Tensor const& b, Tensor const* out, std::uint64_t dtypes) {
  Problem p;
  p.op = op;
  p.type = type_of(a);
  p.batch_invariant = batch_invariant();
  auto const with = [&p](Verdict verdict) {
    p.first = verdict;
    return p;
  };
  std::int64_t const dims = overloads()[static_cast<std::size_t>(op)].names->dims;
  if (a.dim() != dims || b.dim() != dims) return with(Verdict::shape);
  std::int64_t const rows = dims - 2, cols = dims - 1;
  p.batch = dims == 3 ? a.size(0) : 1;
  p.m = a.size(rows), p.n = b.size(cols), p.k = a.size(cols);
  if (b.size(rows) != p.k || (dims == 3 && b.size(0) != p.batch)) return with(Verdict::shape);
  if (!is_cuda(a) || !is_cuda(b) || a.get_device_index() != b.get_device_index() || (out && !is_cuda(*out))) {
    return with(Verdict::not_cuda);
  }
  p.device = static_cast<std::int32_t>(a.get_device_index());
  if (!is_16_bit(p.type) || type_of(b) != p.type) return with(Verdict::dtype);
  if ((dtypes >> static_cast<int>(p.type) & 1) == 0) return with(Verdict::narrowed);
  if (p.batch == 0 || p.m == 0 || p.n == 0 || p.k == 0) return with(Verdict::empty);
  Matrix const x = matrix_of(a), y = matrix_of(b);
  p.a = letter_of_matrix(x), p.b = letter_of_matrix(y);
  if (p.a == '?' || p.b == '?' || p.n % kVector != 0) return with(Verdict::layout);
  if (out && !is_contiguous_result(*out, p, x, y)) return with(Verdict::out);
  return p;
}

// By what was measured: intercept_gains.h.
Verdict predict(Problem const& p, int major) {
  Measured const gain = measured_gain(p.a, p.b, p.batch, p.m, p.n, p.k, major);
  if (gain == Measured::nothing) return Verdict::unmeasured;
  return gain == Measured::faster ? Verdict::taken : Verdict::slower;
}

GemmCall call_of(Taken op, Tensor const& a, Tensor const& b, Tensor const* out) {
  GemmCall call = make_call(*overloads()[static_cast<std::size_t>(op)].names, a, b, std::nullopt, false);
  call.out = out;
  return call;
}

// Plans the call without running it.
Verdict plan(Taken op, Tensor const& a, Tensor const& b, Tensor const* out) {
  try {
    GemmCall call = call_of(op, a, b, out);
    check(call);
    DeviceScope const scope(call.device);
    PreparedGemm prepared;
    if (start(prepared, call) != Work::gemm) return Verdict::empty;
    GemmPlan const found = plan_gemm(prepared, call);
    if (!prepared.keep.empty() || prepared.d.temporary) return Verdict::copies;
    return is_native(found, device_info(call.device)) ? Verdict::taken : Verdict::no_kernel;
  } catch (Error const& error) {
    bool const is_memory = std::string_view(error.what()).find("OutOfMemoryError: ") != std::string_view::npos;
    return is_memory ? Verdict::failed : Verdict::no_kernel;
  }
}

// --- The account

// Problems that are remembered one by one. Programs with more begin anew, and the calls before are summed by verdict.
constexpr std::size_t kMostProblems = 16384;

struct Account {
  struct Record {
    Verdict verdict;
    std::uint64_t calls;
  };
  std::mutex mutex;
  std::unordered_map<Problem, Record, HashOfProblem> problems;
  std::array<std::array<std::uint64_t, kVerdictCount>, kTakenCount> earlier{};  // [op][verdict]

  // Counts a call of a known problem.
  bool find(Problem const& p, Verdict& verdict) {
    std::lock_guard<std::mutex> const lock(mutex);
    auto const found = problems.find(p);
    if (found == problems.end()) return false;
    ++found->second.calls;
    verdict = found->second.verdict;
    return true;
  }

  void add(Problem const& p, Verdict verdict) {
    std::lock_guard<std::mutex> const lock(mutex);
    if (problems.size() >= kMostProblems) {
      for (auto const& [problem, record] : problems) {
        earlier[static_cast<std::size_t>(problem.op)][static_cast<std::size_t>(record.verdict)] += record.calls;
      }
      problems.clear();
    }
    auto const [place, is_new] = problems.try_emplace(p, Record{verdict, 0});
    ++place->second.calls;
  }

  // A call has failed, which may have been counted as taken. The next one with this problem is tried again.
  void fail(Problem p) {
    {
      std::lock_guard<std::mutex> const lock(mutex);
      auto const found = problems.find(p);
      if (found != problems.end()) --found->second.calls;
    }
    p.first = Verdict::failed;
    Verdict known;
    if (!find(p, known)) add(p, Verdict::failed);
  }

  void clear() {
    std::lock_guard<std::mutex> const lock(mutex);
    problems.clear();
    earlier = {};
  }
};

Account& account() {
  static Account the_account;
  return the_account;
}

// --- Calls

std::atomic<std::uint64_t> g_dtypes{0};
std::array<std::atomic<Original>, kTakenCount> g_originals{};

// A tensor's memory, for a function that constructs it there; freed if that throws. torch deletes it with its delete.
struct Memory {
  void* data = ::operator new(sizeof(void*));
  ~Memory() { ::operator delete(data, sizeof(void*)); }
  void* release() {
    void* const released = data;
    data = nullptr;
    return released;
  }
};

Tensor pass_on(Taken op, Tensor const& a, Tensor const& b, Tensor const* out) {
  Original const original = g_originals[static_cast<std::size_t>(op)].load(std::memory_order_acquire);
  if (out) {
    original(out->get(), a.get(), b.get());
    return *out;
  }
  Memory memory;
  original(memory.data, a.get(), b.get());
  return Tensor(static_cast<AtenTensorHandle>(memory.release()));
}

Tensor take(Taken op, Tensor const& a, Tensor const& b, Tensor const* out) {
  if (!a.defined() || !b.defined() || (out && !out->defined())) return pass_on(op, a, b, out);
  Problem const problem = problem_of(op, a, b, out, g_dtypes.load(std::memory_order_relaxed));
  Verdict verdict = problem.first;
  if (!account().find(problem, verdict)) {
    // What is faster depends on the number of rows, and in this mode the kernel must not.
    if (verdict == Verdict::taken && !problem.batch_invariant)
      verdict = predict(problem, device_info(problem.device).major);
    if (verdict == Verdict::taken) verdict = plan(op, a, b, out);
    if (verdict == Verdict::failed) {
      account().fail(problem);
    } else {
      account().add(problem, verdict);
    }
  }
  if (verdict != Verdict::taken) return pass_on(op, a, b, out);
  try {
    GemmCall call = call_of(op, a, b, out);
    PreparedGemm prepared;
    run_call(prepared, call);
    return out ? *out : *std::move(prepared.d.tensor);
  } catch (Error const&) {
    // torch has other kernels, and raises its own error where memory is short.
    account().fail(problem);
    return pass_on(op, a, b, out);
  }
}

// --- Registering

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
    if (torch_library_impl(library_, overload.name, overload.boxed, TORCH_ABI_VERSION) != 0) {
      aoti_torch_delete_library_object(library_);
      fail_registration(overload);
    }
  }
  Registration(Registration const&) = delete;
  Registration& operator=(Registration const&) = delete;
  ~Registration() { aoti_torch_delete_library_object(library_); }

 private:
  [[noreturn]] static void fail_registration(Overload const& overload) {
    fail(ErrorKind::runtime, "enable: torch refused a kernel for aten::", overload.name);
  }

  TorchLibraryHandle library_ = nullptr;
};

std::mutex g_registering;

// Never destroyed: when the process ends, torch's dispatcher may be gone already.
std::array<std::unique_ptr<Registration>, kTakenCount>& registrations() {
  static auto* const all = new std::array<std::unique_ptr<Registration>, kTakenCount>();
  return *all;
}

Original original_of(Overload const& overload, std::string_view key) {
  std::string const symbol =
      concat("_ZN2at", key == "CUDA" ? "4cuda" : "3cpu", overload.symbol, overload.has_out ? kWithOut : kFunctional);
  return reinterpret_cast<Original>(dlsym(RTLD_DEFAULT, symbol.c_str()));
}

bool names(std::string_view list, std::string_view name) {
  for (std::size_t begin = 0; begin <= list.size();) {
    std::size_t const end = std::min(list.find(',', begin), list.size());
    if (list.substr(begin, end - begin) == name) return true;
    begin = end + 1;
  }
  return false;
}

std::string letters(Problem const& p) { return {p.a, p.b}; }

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
  for (std::size_t i = 0; i < overloads().size(); ++i) {
    Overload const& overload = overloads()[i];
    auto& registration = registrations()[i];
    if (!names(list.view(), overload.name)) {
      registration.reset();
      continue;
    }
    if (registration) continue;
    Original const original = original_of(overload, key.view());
    if (!original) {
      missing += concat(missing.empty() ? "\"" : ", \"", overload.name, '"');
      continue;
    }
    g_originals[i].store(original, std::memory_order_release);
    registration = std::make_unique<Registration>(taken_at.c_str(), overload);
  }
  return concat('[', missing, ']');
}

std::string intercepted_json() {
  Account& all = account();
  std::lock_guard<std::mutex> const lock(all.mutex);
  std::string problems, earlier;
  for (auto const& [p, record] : all.problems) {
    problems += concat(problems.empty() ? "" : ", ", "{\"op\": \"", overloads()[static_cast<std::size_t>(p.op)].name,
                       "\", \"dtype\": \"", dtype_text(p.type), "\", \"batch\": ", p.batch, ", \"m\": ", p.m,
                       ", \"n\": ", p.n, ", \"k\": ", p.k, ", \"layout\": \"", letters(p), "\", \"device\": ", p.device,
                       ", \"calls\": ", record.calls, ", \"taken\": ", record.verdict == Verdict::taken ? "true" : "false",
                       ", \"reason\": \"", text_of(record.verdict), "\"}");
  }
  for (std::size_t op = 0; op < all.earlier.size(); ++op) {
    for (std::size_t verdict = 0; verdict < all.earlier[op].size(); ++verdict) {
      if (all.earlier[op][verdict] == 0) continue;
      earlier += concat(earlier.empty() ? "" : ", ", "{\"op\": \"", overloads()[op].name,
                        "\", \"calls\": ", all.earlier[op][verdict], ", \"taken\": ", verdict == 0 ? "true" : "false",
                        ", \"reason\": \"", text_of(static_cast<Verdict>(verdict)), "\"}");
    }
  }
  return concat("{\"problems\": [", problems, "], \"earlier\": [", earlier, "]}");
}

void clear_intercepted() { account().clear(); }

std::string interception_verdict(std::int64_t dtype, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k,
                                 StringHandle layout, std::int64_t major) {
  TextArgument const text(layout);
  if (text.view().size() != 2)
    fail(ErrorKind::value, "interception: layout is \"", text.view(), "\"; expected two letters");
  if (!is_16_bit(static_cast<ScalarType>(dtype))) return text_of(Verdict::dtype);
  Problem p;
  p.batch = batch, p.m = m, p.n = n, p.k = k;
  p.a = text.view()[0], p.b = text.view()[1];
  return text_of(predict(p, static_cast<int>(major)));
}

}  // namespace cutwheel
