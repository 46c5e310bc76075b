# CUTLASS is headers: those of the nvidia-cutlass wheel in the build Python, or of the tree that CUTLASS_DIR names.
if(CUTLASS_DIR)
  set(root ${CUTLASS_DIR})
else()
  cutwheel_find_python_package(cutlass_library root)
  if(NOT root)
    message(
      FATAL_ERROR
        "CUTLASS: ${Python_EXECUTABLE} has no nvidia-cutlass. Install it with "
        "`${Python_EXECUTABLE} -m pip install --no-deps -r requirements/cutlass.txt`, "
        "or pass -DCUTLASS_DIR=<CUTLASS source tree>.")
  endif()
  string(APPEND root /source)
endif()

set(header ${root}/include/cutlass/version.h)
if(NOT EXISTS ${header})
  message(FATAL_ERROR "CUTLASS: ${header} does not exist. CUTLASS_DIR must be the root of a CUTLASS source tree "
                      "(the directory that contains include/cutlass).")
endif()
file(STRINGS ${header} lines REGEX "^#define CUTLASS_(MAJOR|MINOR|PATCH) ")
string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
list(JOIN numbers "." CUTWHEEL_CUTLASS_VERSION)
if(CUTWHEEL_CUTLASS_VERSION VERSION_LESS 4.2)
  message(FATAL_ERROR "CUTLASS: ${root} is version ${CUTWHEEL_CUTLASS_VERSION}; 4.2 or newer is needed.")
endif()
message(STATUS "cutwheel: CUTLASS ${CUTWHEEL_CUTLASS_VERSION} (${root})")
cutwheel_link_headers(cutlass ${root}/include cutlass_headers)

add_library(cutwheel_cutlass INTERFACE)
add_library(cutwheel::cutlass ALIAS cutwheel_cutlass)
target_include_directories(cutwheel_cutlass SYSTEM INTERFACE ${cutlass_headers})
# CUTLASS calls cuTensorMapEncodeTiled directly; our own hidden function of that name (cuda/core) is the target,
# so nothing links libcuda.
target_compile_definitions(cutwheel_cutlass INTERFACE CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL=1)
