#include "torch/explain/choice_log.h"

#include <functional>
#include <mutex>
#include <string>
#include <unordered_set>

#include "core/error.h"
#include "torch/explain/introspection.h"

namespace cutwheel {

std::atomic<ChoiceListener> g_choice_listener{nullptr};

namespace {

std::mutex g_mutex;
std::unordered_set<std::size_t> g_told;  // hashes

bool is_new(std::string const& text) {
  std::lock_guard<std::mutex> lock(g_mutex);
  return g_told.insert(std::hash<std::string>{}(text)).second;
}

// The listener waits for Python's lock, whose holder may wait for ours: none is held here.
void tell(std::string const& text) {
  if (ChoiceListener const listener = g_choice_listener.load()) listener(text.c_str());
}

}  // namespace

void set_choice_listener(std::int64_t address) {
  std::lock_guard<std::mutex> lock(g_mutex);
  g_told.clear();
  g_choice_listener.store(reinterpret_cast<ChoiceListener>(static_cast<std::intptr_t>(address)));
}

void tell_choice(char const* op, GemmRequest const& request, GemmPlan const& plan, DeviceInfo const& device) {
  std::string const text = choice_json(op, request, plan);
  if (!is_new(text)) return;
  // Ranked again, since a remembered plan does not say whether a table or the cost model chose it.
  PlanSource source;
  rank_plans(request, device, nullptr, &source);
  tell(concat(text.substr(0, text.size() - 1), ", \"choice\": \"", text_of(source), "\"}"));
}

void tell_kernel(char const* op, KernelDescriptor const& kernel, int m, int n, int k) {
  std::string const text = concat("{\"op\": \"", op, "\", \"request\": {\"m\": ", m, ", \"n\": ", n, ", \"k\": ", k,
                                  "}, \"plan\": {\"row\": \"", kernel.name, "\"}}");
  if (is_new(text)) tell(text);
}

}  // namespace cutwheel
