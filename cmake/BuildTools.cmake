# How sources are compiled on this machine, whatever they are: compiler cache, parallel jobs, paths.

# --- compiler cache: rebuilding a kernel that has not changed costs milliseconds instead of half a minute
find_program(CUTWHEEL_COMPILER_CACHE NAMES ccache sccache DOC "compiler launcher; set it to \"\" for none")
foreach(language CXX CUDA)
  if(CUTWHEEL_COMPILER_CACHE AND NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${CUTWHEEL_COMPILER_CACHE})
  endif()
endforeach()

# --- jobs: cicc took 4.74 GB for one CUTLASS source, so memory bounds the jobs, not only cores.
set(CUTWHEEL_JOB_MEMORY 5120) # MiB

# `memory` in MiB.
function(cutwheel_jobs_for cores memory out)
  math(EXPR jobs "${memory} / ${CUTWHEEL_JOB_MEMORY}")
  if(cores GREATER 0 AND cores LESS jobs)
    set(jobs ${cores})
  endif()
  if(jobs LESS 1)
    set(jobs 1)
  endif()
  set(${out} ${jobs} PARENT_SCOPE)
endfunction()

# ProcessorCount and the cgroup limit, not the host's totals: a container may own less than it sees.
function(cutwheel_compile_jobs out)
  include(ProcessorCount)
  ProcessorCount(cores)
  cmake_host_system_information(RESULT memory QUERY TOTAL_PHYSICAL_MEMORY) # MiB
  if(EXISTS /sys/fs/cgroup/memory.max)
    file(STRINGS /sys/fs/cgroup/memory.max limit LIMIT_COUNT 1)
    if(limit MATCHES "^[0-9]+$")
      math(EXPR limit "${limit} / 1048576")
      if(limit LESS memory)
        set(memory ${limit})
      endif()
    endif()
  endif()
  cutwheel_jobs_for(${cores} ${memory} jobs)
  set(${out} ${jobs} PARENT_SCOPE)
endfunction()

if(CUTWHEEL_JOBS)
  set(jobs ${CUTWHEEL_JOBS})
elseif(NOT "$ENV{MAX_JOBS}" STREQUAL "") # as other extensions of torch
  set(jobs $ENV{MAX_JOBS})
  if(NOT jobs MATCHES "^[1-9][0-9]*$")
    message(FATAL_ERROR "MAX_JOBS=${jobs}: expected a whole number of at least 1. Unset it to take the number of jobs from "
                        "cores and memory.")
  endif()
else()
  cutwheel_compile_jobs(jobs)
endif()
set_property(GLOBAL APPEND PROPERTY JOB_POOLS compile=${jobs})
set(CMAKE_JOB_POOL_COMPILE compile)
set(CUTWHEEL_COMPILE_JOBS ${jobs})
message(STATUS "cutwheel: ${jobs} compile jobs, compiler cache: ${CUTWHEEL_COMPILER_CACHE}")

# --- no path of this machine in what is shipped: __FILE__ begins with `name` instead
function(cutwheel_map_path target path name)
  set(option -ffile-prefix-map=${path}=${name})
  target_compile_options(${target} INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>
                                             $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${option}>)
endfunction()

# Headers under one path in the build directory, wherever they are: an isolated build has another environment each time,
# and a compiler cache compares paths, too.
function(cutwheel_link_headers name path out)
  set(link ${PROJECT_BINARY_DIR}/headers/${name})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/headers)
  file(CREATE_LINK ${path} ${link} SYMBOLIC)
  set(${out} ${link} PARENT_SCOPE)
endfunction()

# Where the build Python would import `package` from; empty if nowhere. It is not imported: torch takes seconds.
function(cutwheel_find_python_package package out)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; s = u.find_spec('${package}')\n\
print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')" OUTPUT_VARIABLE location
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${out} "${location}" PARENT_SCOPE)
endfunction()
