# From the manifests to objects: kernelgen writes the sources, each GPU architecture gets an OBJECT library.
set(CUTWHEEL_GENERATED_DIR ${PROJECT_BINARY_DIR}/generated)

# Everything the sources follow from. kernelgen writes only what differs, so a configure is cheap.
file(GLOB_RECURSE kernelgen_inputs CONFIGURE_DEPENDS cmake/kernelgen/*.py cmake/kernelgen/*.in cuda/manifests/*.toml
     cuda/dispatch/tuning/*.json cuda/dispatch/tuning/*.toml cuda/epilogue/math.cuh python/cutwheel/tuning/table.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernelgen_inputs})

# Not into the cache: the environment of the next configure may have another list.
if(CUTWHEEL_ARCHS STREQUAL "")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/torch_archs.py)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/torch_archs.py OUTPUT_VARIABLE CUTWHEEL_ARCHS
    ERROR_VARIABLE note RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  if(failed)
    message(FATAL_ERROR "${note}")
  elseif(note)
    message(STATUS "cutwheel: ${note}")
  endif()
endif()

execute_process(
  COMMAND ${Python_EXECUTABLE} -B cmake/kernelgen/generate.py --source-dir ${PROJECT_SOURCE_DIR} --output-dir
          ${CUTWHEEL_GENERATED_DIR} --kernels "${CUTWHEEL_KERNELS}" --archs "${CUTWHEEL_ARCHS}"
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} ERROR_VARIABLE kernelgen_error RESULT_VARIABLE kernelgen_failed)
if(kernelgen_failed)
  message(FATAL_ERROR "kernelgen: ${kernelgen_error}")
endif()
include(${CUTWHEEL_GENERATED_DIR}/manifest.cmake)
configure_file(cmake/build_info.h.in ${CUTWHEEL_GENERATED_DIR}/build_info.h @ONLY)
message(STATUS "cutwheel: ${CUTWHEEL_KERNEL_COUNT} kernels for ${CUTWHEEL_ARCHS}")
# tools/progress.py reads this line.
message(STATUS "cutwheel: ${CUTWHEEL_COMPILE_JOBS} jobs, estimates in ${CUTWHEEL_GENERATED_DIR}/estimates.json")

# One architecture per translation unit. sm80 and sm89 carry PTX too, which newer GPUs compile in the driver;
# PTX of 90a runs nowhere else, so it would be dead weight.
function(cutwheel_add_kernels arch)
  set(sources ${CUTWHEEL_KERNEL_SOURCES_${arch}})
  if(NOT sources)
    return()
  endif()
  set(target cutwheel_sm${arch})
  add_library(${target} OBJECT ${sources})
  if(arch MATCHES "[a-z]$")
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES ${arch}-real)
  else()
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES ${arch})
  endif()
  set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
  target_link_libraries(${target} PRIVATE cutwheel_base cutwheel::cutlass)
  target_compile_options(${target} PRIVATE --expt-relaxed-constexpr ${CUTWHEEL_FATBIN_OPTIONS})
  foreach(source IN LISTS sources)
    # nvcc puts a random number into the names of internal symbols: a rebuild in the same directory gives the same bits
    # only with a seed. (It puts a hash of the absolute path in, too: another directory gives other names.)
    cmake_path(GET source FILENAME name)
    if(NOT CUTWHEEL_HAS_RANDOM_SEED EQUAL -1)
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS --frandom-seed=${name})
    endif()
  endforeach()
  target_sources(_C PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()
