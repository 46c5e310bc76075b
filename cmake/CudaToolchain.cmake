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

# What this nvcc can do, asked of itself. Without --compress-mode, which came with 12.8, fatbins are compressed by LZ4:
# two and a half times the size, and older drivers load them. Releases without --frandom-seed make names of internal symbols
# from the source alone.
execute_process(COMMAND ${nvcc} --help OUTPUT_VARIABLE nvcc_help COMMAND_ERROR_IS_FATAL ANY)
set(CUTWHEEL_FATBIN_OPTIONS -Xfatbin=-compress-all)
set(compression lz4)
if(nvcc_help MATCHES "--compress-mode")
  list(APPEND CUTWHEEL_FATBIN_OPTIONS --compress-mode=size)
  set(compression zstd)
endif()
string(FIND "${nvcc_help}" "--frandom-seed" CUTWHEEL_HAS_RANDOM_SEED)
# sm_100 came with 12.8.
execute_process(COMMAND ${nvcc} --list-gpu-code OUTPUT_VARIABLE codes COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "sm_[0-9]+[a-z]?" CUTWHEEL_NVCC_CODES "${codes}")
list(TRANSFORM CUTWHEEL_NVCC_CODES REPLACE "^sm_" "")
if(CUTWHEEL_COMPILER_CACHE MATCHES "sccache$") # 0.16 keeps one cubin of each PTX, and the build fails
  set(CUTWHEEL_NVCC_CODES "")
  message(STATUS "cutwheel: with sccache, no PTX is assembled for newer GPUs")
endif()

# The oldest driver that loads what this compiler makes; the library tells users.
set(driver_floor ${PROJECT_SOURCE_DIR}/tools/wheel/driver_floor.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${driver_floor})
execute_process(
  COMMAND ${Python_EXECUTABLE} -B ${driver_floor} --cuda ${CUTWHEEL_CUDA_VERSION} --compression ${compression}
  OUTPUT_VARIABLE floor ERROR_VARIABLE floor_error RESULT_VARIABLE floor_failed OUTPUT_STRIP_TRAILING_WHITESPACE)
if(floor_failed)
  message(FATAL_ERROR "CUDA toolchain: ${floor_error}")
endif()
list(GET floor 0 CUTWHEEL_DRIVER_CUDA)
list(GET floor 1 CUTWHEEL_DRIVER)
message(STATUS "cutwheel: nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${nvcc}); the kernels need ${CUTWHEEL_DRIVER}")
