// Tables that were loaded at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/tuning/table.h"

namespace cutwheel {

struct UserTable {
  std::string name, gpu;
  std::vector<TunedEntry> entries;
  std::vector<TunedPlan> plans;
  TunedTable view;  // of the above
};
using UserTables = std::vector<std::shared_ptr<UserTable const>>;

// Those that are loaded now: whoever holds them may go on reading.
std::shared_ptr<UserTables const> user_tables();

}  // namespace cutwheel
