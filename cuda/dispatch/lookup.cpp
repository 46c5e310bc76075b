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
      KernelDescriptor const& kernel = kKernels[i];
      if (wanted(kernel) && allowed.admits(kernel) && can_run_on(kernel, device, ptx) == Reason::none &&
          (!best || kernel.arch > best->arch)) {
        best = &kernel;
      }
    }
    if (best) return best;
  }
  return nullptr;
}

// A family's kernel of these types; `which` is its epilogue or recipe.
struct Key {
  Family family = Family::elementwise;
  int device = 0;
  DType in = DType::f32, out = DType::f32;
  int which = 0;
  bool operator==(Key const& o) const {
    return family == o.family && device == o.device && in == o.in && out == o.out && which == o.which;
  }
};

// Remembers what was found for a key, until the environment changes.
template <class Wanted>
KernelDescriptor const* find_remembered(Key const& key, DeviceInfo const& device, Wanted wanted) {
  struct Entry {
    unsigned generation = 0;
    Key key;
    KernelDescriptor const* kernel = nullptr;
  };
  thread_local std::array<Entry, 64> entries;
  unsigned const generation = environment_generation();
  std::size_t const hash = (static_cast<std::size_t>(key.which) * 8 + static_cast<std::size_t>(key.in)) * 3;
  Entry& entry = entries[(hash + static_cast<std::size_t>(key.out)) % entries.size()];
  if (entry.generation != generation || !(entry.key == key)) entry = {generation, key, find_row(device, wanted)};
  return entry.kernel;
}

}  // namespace

KernelDescriptor const* find_reduce_kernel(DeviceInfo const& device, DType d, std::optional<Arch> arch,
                                           std::optional<Epilogue> epilogue) {
  Family const family = epilogue ? Family::splitk_epilogue : Family::splitk_reduce;
  for (bool ptx : {false, true}) {
    for (int i = 0; i < kKernelCount; ++i) {
      KernelDescriptor const& kernel = kKernels[i];
      if (kernel.family == family && kernel.d == d && (!arch || kernel.arch == *arch) &&
          (!epilogue || kernel.epilogue == *epilogue) && can_run_on(kernel, device, ptx) == Reason::none) {
        return &kernel;
      }
    }
  }
  return nullptr;
}

KernelDescriptor const* choose_elementwise_kernel(DeviceInfo const& device, DType d, Epilogue epilogue) {
  Key const key{Family::elementwise, device.ordinal, d, d, static_cast<int>(epilogue)};
  return find_remembered(key, device, [&](KernelDescriptor const& kernel) {
    return kernel.family == Family::elementwise && kernel.d == d && kernel.epilogue == epilogue;
  });
}

KernelDescriptor const* choose_pad_kernel(DeviceInfo const& device) {
  return find_remembered({Family::pad_rows, device.ordinal, DType::s8, DType::s8, 0}, device,
                         [](KernelDescriptor const& kernel) { return kernel.family == Family::pad_rows; });
}

KernelDescriptor const* choose_gathered_kernel(DeviceInfo const& device, DType type, Epilogue epilogue) {
  Key const key{Family::sm90_gathered_grouped, device.ordinal, type, type, static_cast<int>(epilogue)};
  return find_remembered(key, device, [&](KernelDescriptor const& kernel) {
    return kernel.family == Family::sm90_gathered_grouped && kernel.a == type && kernel.epilogue == epilogue;
  });
}

KernelDescriptor const* choose_routing_kernel(DeviceInfo const& device, Family family, DType type) {
  return find_remembered({family, device.ordinal, type, type, 0}, device,
                         [&](KernelDescriptor const& kernel) { return kernel.family == family && kernel.d == type; });
}

KernelDescriptor const* choose_col2im_kernel(DeviceInfo const& device, DType columns, DType image) {
  return find_remembered({Family::col2im, device.ordinal, columns, image, 0}, device, [&](KernelDescriptor const& kernel) {
    return kernel.family == Family::col2im && kernel.a == columns && kernel.d == image;
  });
}

KernelDescriptor const* choose_conv_kernel(DeviceInfo const& device, Family family, DType type, Direction direction,
                                           Extent3 tile) {
  // Odd multipliers: extents of tiles are multiples of 8, and the hash has their lowest bits.
  int const which = static_cast<int>(direction) + 3 * (tile.m + 131 * (tile.n + 131 * tile.k));
  Key const key{family, device.ordinal, type, type, which};
  return find_remembered(key, device, [&](KernelDescriptor const& kernel) {
    return kernel.family == family && kernel.d == type && kernel.direction == direction && kernel.tile.m == tile.m &&
           kernel.tile.n == tile.n && kernel.tile.k == tile.k;
  });
}

KernelDescriptor const* choose_quantize_kernel(DeviceInfo const& device, DType in, DType out, QuantizeRecipe recipe) {
  Key const key{Family::quantize, device.ordinal, in, out, static_cast<int>(recipe)};
  return find_remembered(key, device, [&](KernelDescriptor const& kernel) {
    return kernel.family == Family::quantize && kernel.a == in && kernel.d == out && kernel.recipe == recipe;
  });
}

}  // namespace cutwheel
