// Kernels that are no choice between several: found by what they are.
#include <array>

#include "dispatch/can_implement.h"
#include "dispatch/environment.h"

namespace cutwheel {
namespace {

// Native code of the newest architecture, else PTX.
template <class Wanted>
KernelDescriptor const* find_row(DeviceInfo const& device, Wanted wanted) {
  Environment const allowed = environment();
  for (bool ptx : {false, true}) {
    KernelDescriptor const* best = nullptr;
    for (int i = 0; i < kKernelCount; ++i) {
      KernelDescriptor const& row = kKernels[i];
      if (wanted(row) && allowed.admits(row) && can_run_on(row, device, ptx) == Reason::none &&
          (!best || row.arch > best->arch)) {
        best = &row;
      }
    }
    if (best) return best;
  }
  return nullptr;
}

// Rows found for a key, remembered until the environment changes.
template <class Key, std::size_t size>
class FoundRows {
 public:
  template <class Wanted>
  KernelDescriptor const* of(Key const& key, std::size_t hash, DeviceInfo const& device, Wanted wanted) {
    unsigned const generation = environment_generation();
    Entry& entry = entries_[hash % size];
    if (entry.generation != generation || entry.device != device.ordinal || !(entry.key == key)) {
      entry = {generation, device.ordinal, key, find_row(device, wanted)};
    }
    return entry.row;
  }

 private:
  struct Entry {
    unsigned generation = 0;
    int device = 0;
    Key key;
    KernelDescriptor const* row = nullptr;
  };
  std::array<Entry, size> entries_;
};

struct ElementwiseKey {
  DType d = DType::f32;
  Epilogue epilogue{};
  bool operator==(ElementwiseKey const& o) const { return d == o.d && epilogue == o.epilogue; }
};

struct QuantizeKey {
  DType in = DType::f32, out = DType::s8;
  QuantizeRecipe recipe = QuantizeRecipe::none;
  bool operator==(QuantizeKey const& o) const { return in == o.in && out == o.out && recipe == o.recipe; }
};

}  // namespace

KernelDescriptor const* find_reduce_row(DeviceInfo const& device, DType d, std::optional<Arch> arch) {
  for (bool ptx : {false, true}) {
    for (int i = 0; i < kKernelCount; ++i) {
      KernelDescriptor const& row = kKernels[i];
      if (row.family == Family::splitk_reduce && row.d == d && (!arch || row.arch == *arch) &&
          can_run_on(row, device, ptx) == Reason::none) {
        return &row;
      }
    }
  }
  return nullptr;
}

KernelDescriptor const* choose_elementwise_row(DeviceInfo const& device, DType d, Epilogue epilogue) {
  thread_local FoundRows<ElementwiseKey, 64> found;
  std::size_t const hash = static_cast<std::size_t>(epilogue) * 4 + static_cast<std::size_t>(d);
  return found.of({d, epilogue}, hash, device, [&](KernelDescriptor const& row) {
    return row.family == Family::elementwise && row.d == d && row.epilogue == epilogue;
  });
}

KernelDescriptor const* choose_quantize_row(DeviceInfo const& device, DType in, DType out, QuantizeRecipe recipe) {
  thread_local FoundRows<QuantizeKey, 64> found;
  std::size_t const hash =
      (static_cast<std::size_t>(recipe) * 8 + static_cast<std::size_t>(in)) * 3 + static_cast<std::size_t>(out);
  return found.of({in, out, recipe}, hash, device, [&](KernelDescriptor const& row) {
    return row.family == Family::quantize && row.a == in && row.d == out && row.recipe == recipe;
  });
}

}  // namespace cutwheel
