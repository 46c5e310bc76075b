# From the manifests to sources: kernelgen writes those of the selected kernels, and the tables.
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

# Without a compiler, the kernels are to be those of a wheel: all that is declared.
set(assembles "*")
if(DEFINED CUTWHEEL_NVCC_CODES)
  set(assembles "${CUTWHEEL_NVCC_CODES}")
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} -B cmake/kernelgen/generate.py --source-dir ${PROJECT_SOURCE_DIR} --output-dir
          ${CUTWHEEL_GENERATED_DIR} --kernels "${CUTWHEEL_KERNELS}" --archs "${CUTWHEEL_ARCHS}" --assembles "${assembles}"
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} ERROR_VARIABLE kernelgen_error RESULT_VARIABLE kernelgen_failed)
if(kernelgen_failed)
  message(FATAL_ERROR "kernelgen: ${kernelgen_error}")
endif()
include(${CUTWHEEL_GENERATED_DIR}/manifest.cmake)
message(STATUS "cutwheel: ${CUTWHEEL_KERNEL_COUNT} kernels for ${CUTWHEEL_ARCHS}")
