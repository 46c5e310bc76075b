#include "dispatch/tuning/store.h"

#include <algorithm>
#include <cmath>
#include <locale>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "core/error.h"
#include "dispatch/environment.h"
#include "dispatch/epilogue_names.h"

namespace cutwheel {
namespace {

std::mutex g_mutex;
std::shared_ptr<UserTables const> g_tables;  // null: none were ever loaded

std::unordered_map<std::string_view, int> const& rows_by_name() {
  static std::unordered_map<std::string_view, int> const rows = [] {
    std::unordered_map<std::string_view, int> all;
    for (int i = 0; i < kKernelCount; ++i) all.emplace(kKernels[i].name, i);
    return all;
  }();
  return rows;
}

// The words of a line, and where it is, for errors.
class Line {
 public:
  // `number`: of a table, 0 for a request by itself.
  Line(int number, std::string const& text) : number_(number), words_(text) {
    words_.imbue(std::locale::classic());  // a program may have made another the global one, whose decimal point is a comma
    if (number > 0) words_ >> kind_;
  }

  std::string const& kind() const { return kind_; }

  std::string word(char const* what) {
    std::string value;
    if (!(words_ >> value)) refuse(what, "is missing");
    return value;
  }
  std::string rest() {
    std::string value;
    std::getline(words_ >> std::ws, value);
    return value;
  }
  template <class Number>
  Number number(char const* what, Number least) {
    Number value{};
    if (!(words_ >> value) || !(value >= least)) refuse(what, concat("is no number of at least ", least));
    return value;
  }
  int number(char const* what, int least, int most) {
    int const value = number<int>(what, least);
    if (value > most) refuse(what, concat("is ", value, ", and at most ", most, " is known"));
    return value;
  }
  bool flag(char const* what) { return number<int>(what, 0) != 0; }

  // The value whose name_of() stands there. Enumerators count from 0, and the number behind the last is called "?".
  template <class Enum>
  Enum one_of(char const* what) {
    constexpr int kMost = 64;  // more than any of them has
    std::string const name = word(what);
    for (int i = 0; i < kMost && name != "?"; ++i) {
      if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
    }
    refuse(what, concat("is \"", name, "\", which is not known"));
  }

  [[noreturn]] void refuse(char const* what, std::string const& why) const {
    if (number_ == 0) fail(ErrorKind::value, "explain: ", what, " ", why);
    fail(ErrorKind::value, "load_tuning: line ", number_, " (", kind_, "): ", what, " ", why);
  }

 private:
  int number_;
  std::istringstream words_;
  std::string kind_;
};

GemmRequest read_request(Line& line) {
  GemmRequest r;
  r.op = line.one_of<Op>("op");
  r.a = line.one_of<DType>("a");
  r.b = line.one_of<DType>("b");
  r.d = line.one_of<DType>("d");
  std::string const layouts = line.word("layouts");
  bool const known = layouts.size() == 2 && layouts.find_first_not_of("tn") == std::string::npos;
  if (!known) line.refuse("layouts", concat("are \"", layouts, "\""));
  r.layout_a = layouts[0] == 't' ? Layout::row : Layout::column;
  r.layout_b = layouts[1] == 't' ? Layout::row : Layout::column;
  r.addend = line.one_of<Addend>("addend");
  if (std::string const name = line.word("epilogue"); name != "-") {
    std::optional<Epilogue> const found = find_epilogue(name);
    if (!found) line.refuse("epilogue", concat("is \"", name, "\", which this wheel does not have"));
    r.epilogue = *found;
  }
  r.fast_accum = line.flag("fast_accum");
  r.scales = line.one_of<BlockScales>("scales");
  r.extents_aligned = line.flag("extents_aligned");
  r.m = line.number<int>("m", 1), r.n = line.number<int>("n", 1), r.k = line.number<int>("k", 1);
  r.batch = line.number<int>("batch", 1);
  r.grouping = line.one_of<Grouping>("grouping");
  r.groups = line.number<int>("groups", 0);
  r.direction = line.one_of<Direction>("direction");
  r.taps = line.number<int>("taps", 1), r.step = line.number<int>("step", 1);
  r.tensor_maps = line.flag("tensor_maps");
  r.padded_filter = line.one_of<FilterPadding>("padded_filter");
  std::string const unaligned = line.word("unaligned");
  if (unaligned != "-" && unaligned.find_first_not_of("dab") != std::string::npos) {
    line.refuse("unaligned", concat("is \"", unaligned, "\"; expected letters of a, b and d, or -"));
  }
  auto const is_aligned = [&](char operand) { return unaligned.find(operand) == std::string::npos; };
  r.a_aligned = is_aligned('a'), r.b_aligned = is_aligned('b'), r.d_aligned = is_aligned('d');
  return r;
}

TunedPlan read_plan(Line& line) {
  std::string const name = line.word("row");
  auto const kernel = rows_by_name().find(name);
  if (kernel == rows_by_name().end()) line.refuse("row", concat("is ", name, ", which this wheel does not have"));
  TunedPlan plan;
  plan.kernel = kernel->second;
  if (!is_gemm(kKernels[plan.kernel])) line.refuse("row", concat("is ", name, ", which computes no product"));
  plan.raster = line.one_of<RasterOrder>("raster");
  plan.swizzle = line.number("swizzle", 1, kMaxSwizzle), plan.splits = line.number("splits", 1, kMaxSplits);
  plan.us = line.number<float>("microseconds", 0.f);
  if (!(plan.us > 0) || !std::isfinite(plan.us)) line.refuse("microseconds", "are not positive");
  return plan;
}

void read_gpu(Line& line, UserTable& table) {
  TunedGpu& gpu = table.view.gpu;
  gpu.major = line.number<int>("major", 1), gpu.minor = line.number<int>("minor", 0);
  gpu.sm_count = line.number<int>("sm_count", 1);
  gpu.memory_gb_per_s = line.number<double>("bandwidth", 0);
  table.gpu = line.rest();
}

// Under one lock from reading to writing: of two threads that load a table, neither loses what the other has added.
template <class Change>
void change_tables(Change const& change) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    auto tables = g_tables ? std::make_shared<UserTables>(*g_tables) : std::make_shared<UserTables>();
    change(*tables);
    g_tables = std::move(tables);
  }
  forget_choices();
}

}  // namespace

std::shared_ptr<UserTables const> user_tables() {
  static auto const none = std::make_shared<UserTables const>();
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_tables ? g_tables : none;
}

void load_tuned_table(std::string_view text) {
  auto table = std::make_shared<UserTable>();
  table->view = {};
  std::istringstream lines{std::string(text)};
  std::string one;
  for (int number = 1; std::getline(lines, one); ++number) {
    Line line(number, one);
    if (line.kind() == "table") {
      table->name = line.rest();
    } else if (line.kind() == "gpu") {
      read_gpu(line, *table);
    } else if (line.kind() == "entry") {
      table->entries.push_back({read_request(line), static_cast<int>(table->plans.size()), 0});
    } else if (line.kind() == "plan" && !table->entries.empty()) {
      table->plans.push_back(read_plan(line));
      ++table->entries.back().count;
    } else {
      line.refuse("it", "is not known here");
    }
  }
  if (table->view.gpu.sm_count == 0) fail(ErrorKind::value, "load_tuning: no line says of which GPU the table is");
  table->view.name = table->name.c_str();
  table->view.gpu.name = table->gpu.c_str();
  table->view.entries = table->entries.data(), table->view.count = static_cast<int>(table->entries.size());
  table->view.plans = table->plans.data();
  change_tables([&](UserTables& tables) {
    tables.erase(std::remove_if(tables.begin(), tables.end(), [&](auto const& x) { return x->gpu == table->gpu; }),
                 tables.end());
    tables.push_back(std::move(table));
  });
}

GemmRequest parse_request(std::string_view text) {
  Line line(0, std::string(text));
  return read_request(line);
}

void clear_tuned_tables() {
  change_tables([](UserTables& tables) { tables.clear(); });
}

std::vector<TunedTableInfo> tuned_tables() {
  std::vector<TunedTableInfo> all;
  for (auto const& table : *user_tables()) all.push_back({table->name, table->gpu, table->view.count, false});
  for (int i = 0; i < kTunedTableCount; ++i) {
    all.push_back({kTunedTables[i].name, kTunedTables[i].gpu.name, kTunedTables[i].count, true});
  }
  return all;
}

}  // namespace cutwheel
