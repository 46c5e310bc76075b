// What CUTWHEEL_LOG=debug tells: the kernel of each problem, once.
#pragma once

#include <atomic>
#include <cstdint>

#include "dispatch/select.h"

namespace cutwheel {

// Gets a choice as JSON. It may be called on any thread, backward passes' among them, and must not throw.
using ChoiceListener = void (*)(char const* text);

extern std::atomic<ChoiceListener> g_choice_listener;

inline bool choices_are_told() { return g_choice_listener.load(std::memory_order_relaxed) != nullptr; }

// The listener's address; 0: none, as at the start. A new one is told every choice anew.
void set_choice_listener(std::int64_t address);

// Tells of a launched plan, or of a kernel that is no choice between several, unless it was told.
void tell_choice(char const* op, GemmRequest const& request, GemmPlan const& plan, DeviceInfo const& device);
void tell_kernel(char const* op, KernelDescriptor const& kernel, int m, int n, int k);

}  // namespace cutwheel
