// Epilogues by the names that callers give.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "dispatch/kernel_descriptor.h"

namespace cutwheel {

std::optional<Epilogue> find_epilogue(std::string_view name);

// Whether cutwheel.gemm (or an elementwise call) takes it: some are for the kernels of another op.
bool is_for_gemm(Epilogue epilogue);

// Names for the error about an unknown epilogue: those of GEMMs, or those of elementwise kernels.
std::string declared_epilogues(bool has_accum);

}  // namespace cutwheel
