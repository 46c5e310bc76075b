#include "torch/intercept/account.h"

#include <algorithm>

#include "core/device.h"
#include "core/error.h"

namespace cutwheel {

char const* name_of(Taken op) {
  switch (op) {
    case Taken::mm: return "mm";
    case Taken::mm_out: return "mm.out";
    case Taken::bmm: return "bmm";
    case Taken::bmm_out: return "bmm.out";
    case Taken::addmm: return "addmm";
    case Taken::addmm_out: return "addmm.out";
    case Taken::scaled_mm: return "_scaled_mm";
    case Taken::scaled_mm_out: return "_scaled_mm.out";
    case Taken::grouped_mm: return "_grouped_mm";
    case Taken::scaled_grouped_mm: return "_scaled_grouped_mm";
    case Taken::convolution: return "convolution";
    case Taken::convolution_backward: return "convolution_backward";
  }
  return "?";
}

char const* text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::taken: return "taken";
    case Verdict::not_cuda: return "the tensors are not on one CUDA device";
    case Verdict::narrowed: return "dtypes= leaves this dtype out";
    case Verdict::dtype: return "dtypes that stay with torch";
    case Verdict::shape: return "shapes that torch refuses, broadcasts, or has a kernel for that cutwheel has not";
    case Verdict::empty: return "an empty operand";
    case Verdict::layout: return "operands that kernels cannot read as they lie, or that do not begin at 16 bytes";
    case Verdict::out: return "out= of another dtype, shape or strides, or over an operand";
    case Verdict::arguments: return "arguments that cutwheel has nothing for";
    case Verdict::unmeasured: return "no measurement of this kind and number of rows on this GPU";
    case Verdict::slower: return "torch was measured as fast, or faster";
    case Verdict::no_kernel: return "no kernel of this wheel runs natively";
    case Verdict::copies: return "an operand would have to be copied";
    case Verdict::failed: return "cutwheel could not launch its kernel, or had no memory";
  }
  return "?";
}

std::string kind_of(Problem const& p) {
  std::string const letters = {' ', p.a, p.b};
  switch (p.op) {
    case Taken::mm:
    case Taken::mm_out: return "mm" + letters;
    case Taken::bmm:
    case Taken::bmm_out: return "bmm" + letters;
    case Taken::addmm:
    case Taken::addmm_out: return "addmm" + letters;
    case Taken::grouped_mm: return "_grouped_mm" + letters;
    case Taken::scaled_mm:
    case Taken::scaled_mm_out:
    case Taken::scaled_grouped_mm: return scaled_kind(p);
    case Taken::convolution:
    case Taken::convolution_backward: return conv_kind(p);
  }
  return {};
}

namespace {

bool is_conv(Problem const& p) { return p.op == Taken::convolution || p.op == Taken::convolution_backward; }

// The number that the class of a problem is found by.
std::int64_t rows_of(Problem const& p) {
  if (is_conv(p)) return 0;
  bool const is_grouped = p.op == Taken::grouped_mm || p.op == Taken::scaled_grouped_mm;
  if (!is_grouped) return p.m;
  bool const is_along_k = p.op == Taken::grouped_mm && p.a == 'n';
  return std::max<std::int64_t>(1, (is_along_k ? p.k : p.m) / p.batch);
}

struct HashOfProblem {
  std::size_t operator()(Problem const& p) const {
    std::uint64_t hash = 0;
    auto const mix = [&hash](std::uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
      hash ^= hash >> 32;
    };
    mix(static_cast<std::uint64_t>(p.batch)), mix(static_cast<std::uint64_t>(p.m));
    mix(static_cast<std::uint64_t>(p.n)), mix(static_cast<std::uint64_t>(p.k));
    if (is_conv(p)) {
      for (std::int64_t const extent : p.conv) mix(static_cast<std::uint64_t>(extent));
    }
    mix(static_cast<std::uint64_t>(p.device) << 48 | static_cast<std::uint64_t>(p.variant) << 40 |
        static_cast<std::uint64_t>(p.op) << 32 | static_cast<std::uint64_t>(p.type) << 24 |
        static_cast<std::uint64_t>(p.a) << 16 | static_cast<std::uint64_t>(p.b) << 8 |
        static_cast<std::uint64_t>(p.first) << 1 | p.batch_invariant);
    return hash;
  }
};

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

  // Counts a call of a known problem; null if it is not known.
  Record* find(Problem const& p) {
    auto const found = problems.find(p);
    if (found == problems.end()) return nullptr;
    ++found->second.calls;
    return &found->second;
  }

  void add(Problem const& p, Verdict verdict) {
    if (problems.size() >= kMostProblems) {
      for (auto const& [problem, record] : problems) {
        earlier[static_cast<std::size_t>(problem.op)][static_cast<std::size_t>(record.verdict)] += record.calls;
      }
      problems.clear();
    }
    auto const [place, is_new] = problems.try_emplace(p, Record{verdict, 0});
    ++place->second.calls;
  }
};

Account& account() {
  static Account the_account;
  return the_account;
}

}  // namespace

bool find_verdict(Problem const& problem, Verdict& verdict) {
  Account& all = account();
  std::lock_guard<std::mutex> const lock(all.mutex);
  Account::Record const* const found = all.find(problem);
  if (found) verdict = found->verdict;
  return found;
}

void add_verdict(Problem const& problem, Verdict verdict) {
  Account& all = account();
  std::lock_guard<std::mutex> const lock(all.mutex);
  all.add(problem, verdict);
}

void count_failure(Problem const& problem) {
  Account& all = account();
  std::lock_guard<std::mutex> const lock(all.mutex);
  auto const counted = all.problems.find(problem);
  if (counted != all.problems.end()) --counted->second.calls;
  Problem const failed = problem.with(Verdict::failed);
  if (!all.find(failed)) all.add(failed, Verdict::failed);
}

Verdict predict(std::string_view kind, std::int64_t rows, MeasuredExtents const& extents, int major) {
  Measured const gain = measured_gain(kind, rows, extents, major);
  if (gain == Measured::nothing) return Verdict::unmeasured;
  return gain == Measured::faster ? Verdict::taken : Verdict::slower;
}

Verdict predict_on_device(Problem const& p) {
  MeasuredExtents const extents = is_conv(p) ? p.conv : MeasuredExtents{p.batch, p.m, p.n, p.k};
  return predict(kind_of(p), rows_of(p), extents, device_info(p.device).major);
}

std::string account_json() {
  Account& all = account();
  std::lock_guard<std::mutex> const lock(all.mutex);
  std::string problems, earlier;
  for (auto const& [p, record] : all.problems) {
    std::string shape;
    for (std::size_t i = 0; is_conv(p) && i < p.conv.size(); ++i) shape += concat(i ? ", " : "", p.conv[i]);
    // A problem whose tensors were not looked at is of no kind.
    problems += concat(problems.empty() ? "" : ", ", "{\"op\": \"", name_of(p.op), "\", \"dtype\": \"", dtype_text(p.type),
                       "\", \"batch\": ", p.batch, ", \"m\": ", p.m, ", \"n\": ", p.n, ", \"k\": ", p.k, ", \"layout\": \"",
                       p.a, p.b, "\", \"kind\": \"", p.first == Verdict::taken ? kind_of(p) : "", "\", \"convolution\": [",
                       shape, "], \"device\": ", p.device, ", \"calls\": ", record.calls,
                       ", \"taken\": ", record.verdict == Verdict::taken ? "true" : "false", ", \"reason\": \"",
                       text_of(record.verdict), "\"}");
  }
  for (std::size_t op = 0; op < all.earlier.size(); ++op) {
    for (std::size_t verdict = 0; verdict < all.earlier[op].size(); ++verdict) {
      if (all.earlier[op][verdict] == 0) continue;
      earlier += concat(earlier.empty() ? "" : ", ", "{\"op\": \"", name_of(static_cast<Taken>(op)),
                        "\", \"calls\": ", all.earlier[op][verdict], ", \"taken\": ", verdict == 0 ? "true" : "false",
                        ", \"reason\": \"", text_of(static_cast<Verdict>(verdict)), "\"}");
    }
  }
  return concat("{\"problems\": [", problems, "], \"earlier\": [", earlier, "]}");
}

void clear_account() {
  Account& all = account();
  std::lock_guard<std::mutex> const lock(all.mutex);
  all.problems.clear();
  all.earlier = {};
}

}  // namespace cutwheel
