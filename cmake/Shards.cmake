# Kernels compiled by several machines (shards.py). CUTWHEEL_SHARD=i/n compiles a part of the sources into a file in the folder
# CUTWHEEL_SHARDS and links nothing. CUTWHEEL_SHARDS alone links the objects of all shards there and compiles no kernel.
set(CUTWHEEL_SHARDS_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/shards.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CUTWHEEL_SHARDS_SCRIPT})
set(CUTWHEEL_ESTIMATES ${CUTWHEEL_GENERATED_DIR}/estimates.json) # seconds of what this build compiles
set(CUTWHEEL_SHARD "" CACHE STRING "i/n: build this part of the kernels into CUTWHEEL_SHARDS; empty: from the environment")
set(CUTWHEEL_SHARDS "" CACHE STRING "folder of shards; without CUTWHEEL_SHARD they are linked; empty: from the environment")
foreach(variable CUTWHEEL_SHARD CUTWHEEL_SHARDS)
  if(NOT ${variable}) # not into the cache, as CUTWHEEL_PRECOMPILED
    set(${variable} "$ENV{${variable}}")
  endif()
endforeach()

if(CUTWHEEL_SHARD)
  if(NOT CUTWHEEL_SHARDS)
    message(
      FATAL_ERROR "CUTWHEEL_SHARD=${CUTWHEEL_SHARD}: set CUTWHEEL_SHARDS to the folder that the shard shall be written to.")
  endif()
  execute_process(
    COMMAND ${Python_EXECUTABLE} -B ${CUTWHEEL_SHARDS_SCRIPT} plan "--shard=${CUTWHEEL_SHARD}" --estimates
            ${CUTWHEEL_ESTIMATES} --output ${PROJECT_BINARY_DIR}/shard_estimates.json
    OUTPUT_VARIABLE shard_sources
    ERROR_VARIABLE shard_error
    RESULT_VARIABLE shard_failed
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  if(shard_failed)
    message(FATAL_ERROR "${shard_error}")
  endif()
  list(LENGTH shard_sources count)
  message(STATUS "cutwheel: shard ${CUTWHEEL_SHARD}, ${count} sources; nothing is linked")
  set(CUTWHEEL_ESTIMATES ${PROJECT_BINARY_DIR}/shard_estimates.json)
elseif(CUTWHEEL_SHARDS)
  message(STATUS "cutwheel: no kernel is compiled, objects are those of the shards in ${CUTWHEEL_SHARDS}")
  set(CUTWHEEL_ESTIMATES ${PROJECT_BINARY_DIR}/shard_estimates.json)
  file(CONFIGURE OUTPUT ${CUTWHEEL_ESTIMATES} CONTENT "{}")
endif()
if(CUTWHEEL_SHARDS)
  cmake_path(ABSOLUTE_PATH CUTWHEEL_SHARDS BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE)
endif()

# Those of `sources` that this build compiles.
function(cutwheel_shard_sources out)
  set(found ${ARGN})
  if(CUTWHEEL_SHARD)
    set(found)
    foreach(source IN LISTS ARGN)
      cmake_path(GET source FILENAME name)
      if(name IN_LIST shard_sources)
        list(APPEND found ${source})
      endif()
    endforeach()
  endif()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

# The command line on which shards.py computes the fingerprint.
function(cutwheel_shard_arguments out)
  set(tools)
  foreach(tool nvcc cudafe++ ptxas fatbinary ../nvvm/bin/cicc)
    if(EXISTS ${CUDAToolkit_BIN_DIR}/${tool})
      list(APPEND tools ${CUDAToolkit_BIN_DIR}/${tool})
    endif()
  endforeach()
  foreach(tool cc1plus as)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-prog-name=${tool} OUTPUT_VARIABLE path
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    find_program(CUTWHEEL_TOOL_${tool} ${path} NO_CACHE)
    if(CUTWHEEL_TOOL_${tool})
      list(APPEND tools ${CUTWHEEL_TOOL_${tool}})
    endif()
  endforeach()
  get_target_property(headers cutwheel_cutlass INTERFACE_INCLUDE_DIRECTORIES)
  list(APPEND headers ${CUDAToolkit_INCLUDE_DIRS})
  set(${out} --folder ${CUTWHEEL_SHARDS} --source-dir ${PROJECT_SOURCE_DIR} --build-dir ${PROJECT_BINARY_DIR} --tools
             ${tools} --headers ${headers} PARENT_SCOPE)
endfunction()

# Instead of linking: the objects of all architectures, of which `cutwheel_add_kernels` keeps a list.
function(cutwheel_pack_shard)
  get_property(objects GLOBAL PROPERTY CUTWHEEL_KERNEL_OBJECTS)
  string(REPLACE "/" "-of-" name ${CUTWHEEL_SHARD})
  set(file ${CUTWHEEL_SHARDS}/cutwheel-shard-${name}.zip)
  cutwheel_shard_arguments(arguments)
  add_custom_command(
    OUTPUT ${file} COMMAND ${Python_EXECUTABLE} -B ${CUTWHEEL_SHARDS_SCRIPT} pack ${objects} --shard ${CUTWHEEL_SHARD}
                           ${arguments} DEPENDS ${objects} ${CUTWHEEL_SHAPING_FILES} COMMAND_EXPAND_LISTS VERBATIM)
  add_custom_target(shard ALL DEPENDS ${file})
endfunction()

# `out`: the objects of `sources`, which the build takes from the shards.
function(cutwheel_take_shards out)
  set(folder ${PROJECT_BINARY_DIR}/shards)
  set(objects)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source FILENAME name)
    list(APPEND objects ${folder}/${name}.o)
  endforeach()
  cutwheel_shard_arguments(arguments)
  file(GLOB files CONFIGURE_DEPENDS ${CUTWHEEL_SHARDS}/cutwheel-shard-*.zip)
  add_custom_command(
    OUTPUT ${objects} COMMAND ${Python_EXECUTABLE} -B ${CUTWHEEL_SHARDS_SCRIPT} take ${ARGN} --output-dir ${folder}
                              ${arguments} DEPENDS ${ARGN} ${files} ${CUTWHEEL_SHAPING_FILES} VERBATIM)
  # A target of its own does not wait for what else is linked: shards of something else are refused before that is compiled.
  add_custom_target(take_shards DEPENDS ${objects})
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
