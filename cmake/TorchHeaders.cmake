# The LibTorch Stable ABI is a set of headers. Never find_package(Torch): it takes over the CUDA architectures,
# adds flags of its own and links libtorch_cuda and libcuda.
if(TORCH_INCLUDE)
  set(include_dir ${TORCH_INCLUDE})
else()
  cutwheel_find_python_package(torch root)
  if(NOT root)
    message(
      FATAL_ERROR
        "torch headers: ${Python_EXECUTABLE} has no torch. Install it with "
        "`${Python_EXECUTABLE} -m pip install -r requirements/torch.txt`, "
        "or pass -DTORCH_INCLUDE=<site-packages>/torch/include.")
  endif()
  set(include_dir ${root}/include)
endif()

set(header ${include_dir}/torch/headeronly/version.h)
if(NOT EXISTS ${header})
  message(FATAL_ERROR "torch headers: ${header} does not exist. TORCH_INCLUDE must be the include directory of "
                      "torch 2.13 or newer.")
endif()
file(STRINGS ${header} lines REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
list(JOIN numbers "." CUTWHEEL_TORCH_VERSION)
if(CUTWHEEL_TORCH_VERSION VERSION_LESS 2.13)
  message(
    FATAL_ERROR "torch headers: ${include_dir} is torch ${CUTWHEEL_TORCH_VERSION}; the headers of 2.13 or newer are needed "
                "(the built wheel still runs on torch 2.10).")
endif()
message(STATUS "cutwheel: torch headers ${CUTWHEEL_TORCH_VERSION} (${include_dir})")
cutwheel_link_headers(torch ${include_dir} torch_headers)

add_library(cutwheel_torch_headers INTERFACE)
add_library(cutwheel::torch_headers ALIAS cutwheel_torch_headers)
target_include_directories(cutwheel_torch_headers SYSTEM INTERFACE ${torch_headers})
# The oldest torch the library loads into: 2.10.
target_compile_definitions(cutwheel_torch_headers INTERFACE TORCH_TARGET_VERSION=0x020A000000000000ULL)
