// What the library tells about itself, as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch/tensor.h"

namespace cutwheel {

std::string kernels_json();
std::string build_info_json();
std::string device_info_json(std::int64_t device);
std::string driver_status_json();
std::string explain_json(std::int64_t op, std::vector<Tensor> operands, std::optional<ScalarType> out_dtype,
                         bool allow_tf32);
// The choice for a shape, without tensors: layouts 0 row, 1 column; dtypes as in DType; epilogue as in Epilogue.
std::string explain_shape_json(std::int64_t device, std::int64_t a, std::int64_t d, std::int64_t layout_a,
                               std::int64_t layout_b, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch,
                               std::int64_t epilogue);

}  // namespace cutwheel
