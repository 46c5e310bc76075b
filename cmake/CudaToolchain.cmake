# The CUDA compiler: CUDACXX, the system's nvcc, or the pinned toolchain from PyPI (cuda_toolchain.py has the rule).
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/cuda_toolchain.py)

execute_process(
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/cuda_toolchain.py nvcc --place ${PROJECT_BINARY_DIR}/cuda
  OUTPUT_VARIABLE nvcc ERROR_VARIABLE nvcc_error RESULT_VARIABLE nvcc_failed OUTPUT_STRIP_TRAILING_WHITESPACE)
if(nvcc_failed)
  message(FATAL_ERROR "CUDA toolchain: ${nvcc_error}")
endif()
# CMake keeps the first compiler for the life of a build directory and would mix the objects of two.
if(CMAKE_CUDA_COMPILER AND NOT CMAKE_CUDA_COMPILER STREQUAL nvcc)
  message(FATAL_ERROR "CUDA toolchain: ${PROJECT_BINARY_DIR} was configured with ${CMAKE_CUDA_COMPILER}, "
                      "but now ${nvcc} would be used. Remove that directory, or set CUDACXX to the former.")
endif()
set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "CUDA compiler")

# Every library names its own architecture; this one is for CMake's compiler test.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real)
endif()
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

string(REGEX MATCH "^[0-9]+\\.[0-9]+" CUTWHEEL_CUDA_VERSION ${CMAKE_CUDA_COMPILER_VERSION})
set(cudart_header ${CUDAToolkit_INCLUDE_DIRS})
list(TRANSFORM cudart_header APPEND /cuda_runtime_api.h)
foreach(header IN LISTS cudart_header)
  if(EXISTS ${header})
    file(STRINGS ${header} cudart_version REGEX "^#define CUDART_VERSION ")
    string(REGEX MATCH "[0-9]+" CUTWHEEL_CUDART_VERSION "${cudart_version}")
    break()
  endif()
endforeach()
math(EXPR cudart_major_minor "${CUTWHEEL_CUDART_VERSION} / 10")
string(REPLACE "." "0" nvcc_major_minor ${CUTWHEEL_CUDA_VERSION})
if(NOT cudart_major_minor EQUAL nvcc_major_minor)
  message(
    FATAL_ERROR "CUDA toolchain: ${nvcc} is of CUDA ${CUTWHEEL_CUDA_VERSION}, but the runtime headers in "
                "${CUDAToolkit_INCLUDE_DIRS} have CUDART_VERSION ${CUTWHEEL_CUDART_VERSION}. Install both from one release."
  )
endif()
message(STATUS "cutwheel: nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${nvcc})")
