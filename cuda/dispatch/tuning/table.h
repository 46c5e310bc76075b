// Measurements: for single requests the fastest plans, with their times. Tables are compiled in
// (cuda/dispatch/tuning/*.json, through kernelgen) or loaded at run time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dispatch/select.h"

namespace cutwheel {

struct TunedPlan {
  int kernel;  // of kKernels
  RasterOrder raster;
  int swizzle, splits;
  float us;
};

// The fastest plan of the request and all others that took up to kKeptWithin times as long. The request's device counts for
// nothing.
struct TunedEntry {
  GemmRequest request;
  int first, count;  // of the table's plans
};
constexpr double kKeptWithin = 1.15;

struct TunedGpu {
  char const* name;
  int major, minor, sm_count;
  double memory_gb_per_s;
};

struct TunedTable {
  char const* name;
  TunedGpu gpu;
  TunedEntry const* entries;
  int count;
  TunedPlan const* plans;
};

// Generated: tuned_tables.cpp.
extern TunedTable const kTunedTables[];
extern int const kTunedTableCount;

// How far a neighbour's extents may be, as the largest |log2| of the ratios of M, N and K.
constexpr double kNearLimit = 0.5;

// Orders `plans`, all of which can run the request, by what was measured; nothing if nothing was.
//
// An entry of the very request: its plans come first, with their raster orders, swizzles and times. The others were slower,
// or were not measured because far slower times were predicted.
//
// Else the entry with the nearest extents that is the same in everything else: each prediction is corrected by what the
// model got wrong there, which fades with the distance. The model still says what tiles and waves the extents make. A plan
// that is not in the entry was slower than those that are.
std::optional<PlanSource> apply_tuning(std::vector<GemmPlan>& plans, GemmRequest const& request, DeviceInfo const& device);

// A table of the user's, which has everything that its text says; it replaces one of the same GPU. Throws ValueError.
//
//   table NAME        gpu MAJOR MINOR SM_COUNT GB_PER_S NAME
//   entry OP A B D LAYOUTS ADDEND EPILOGUE|- FAST_ACCUM SCALES EXTENTS_ALIGNED M N K BATCH GROUPING GROUPS DIRECTION TAPS
//         STEP TENSOR_MAPS
//   plan ROW RASTER SWIZZLE SPLITS MICROSECONDS
//
// A line each, the plans of an entry behind it; names as name_of() gives them, true and false as 1 and 0.
void load_tuned_table(std::string_view text);
// The request of such an entry, without the word. Throws ValueError.
GemmRequest parse_request(std::string_view text);
void clear_tuned_tables();

struct TunedTableInfo {
  std::string name, gpu;
  int entries;
  bool is_built_in;
};
std::vector<TunedTableInfo> tuned_tables();

}  // namespace cutwheel
