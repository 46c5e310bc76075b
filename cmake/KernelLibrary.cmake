# From sources to objects: each GPU architecture gets an OBJECT library.
configure_file(cmake/build_info.h.in ${CUTWHEEL_GENERATED_DIR}/build_info.h @ONLY)
# tools/progress.py reads this line.
message(STATUS "cutwheel: ${CUTWHEEL_COMPILE_JOBS} jobs, estimates in ${CUTWHEEL_ESTIMATES}")

# One architecture per translation unit. sm80 and sm89 carry PTX too, which newer GPUs compile in the driver;
# PTX of 90a runs nowhere else, so it would be dead weight.
function(cutwheel_add_kernels arch)
  cutwheel_shard_sources(sources ${CUTWHEEL_KERNEL_SOURCES_${arch}})
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
  if(CUTWHEEL_SHARD)
    set_property(GLOBAL APPEND PROPERTY CUTWHEEL_KERNEL_OBJECTS $<TARGET_OBJECTS:${target}>)
  elseif(CUTWHEEL_SHARDS) # nothing builds it: its commands are compared with those of the shards
    set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
  else()
    target_sources(_C PRIVATE $<TARGET_OBJECTS:${target}>)
  endif()
endfunction()
