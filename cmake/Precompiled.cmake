# CUTWHEEL_PRECOMPILED: the library comes from a published wheel, and nothing is compiled. precompiled.py compares sources,
# kernels and hashes.
foreach(variable CUTWHEEL_SHARD CUTWHEEL_SHARDS)
  set(value "${${variable}}")
  if(NOT value)
    set(value "$ENV{${variable}}")
  endif()
  if(value)
    message(
      FATAL_ERROR
        "CUTWHEEL_PRECOMPILED=${CUTWHEEL_PRECOMPILED} takes a finished library, and ${variable}=${value} compiles or links a "
        "part of one. Unset ${variable} (in the environment and as -D${variable}=) to take the library of the wheel, or "
        "CUTWHEEL_PRECOMPILED to work with shards.")
  endif()
endforeach()

set(place "${CUTWHEEL_PRECOMPILED}")
set(sha256 "")
if(place MATCHES "^(.+)#sha256=(.*)$")
  set(place "${CMAKE_MATCH_1}")
  set(sha256 "${CMAKE_MATCH_2}")
  string(LENGTH "${sha256}" length)
  if(NOT sha256 MATCHES "^[0-9a-fA-F]+$" OR NOT length EQUAL 64)
    message(FATAL_ERROR "CUTWHEEL_PRECOMPILED=${CUTWHEEL_PRECOMPILED}: behind #sha256= expected are 64 hexadecimal digits.")
  endif()
endif()

set(folder ${PROJECT_BINARY_DIR}/precompiled)
if(place MATCHES "^https?://")
  if(NOT sha256)
    message(
      FATAL_ERROR
        "CUTWHEEL_PRECOMPILED=${place}: what is downloaded needs a hash. Append #sha256= and the SHA-256 of the wheel; links of "
        "a package index end with it, and `pip hash FILE` prints it.")
  endif()
  set(wheel ${folder}/${sha256}.whl)
  if(NOT EXISTS ${wheel})
    message(STATUS "cutwheel: downloading ${place}")
    file(DOWNLOAD ${place} ${wheel}.tmp STATUS status TLS_VERIFY ON INACTIVITY_TIMEOUT 60)
    list(POP_FRONT status code)
    string(REPLACE "\"" "" status "${status}")
    if(NOT code EQUAL 0)
      message(
        FATAL_ERROR "CUTWHEEL_PRECOMPILED=${place}: the download failed (${status}). Fetch the wheel by other means and "
                    "give its path.")
    endif()
    file(SHA256 ${wheel}.tmp found) # EXPECTED_HASH of the download would go on after a mismatch
    string(TOLOWER "${sha256}" expected)
    if(NOT found STREQUAL expected)
      file(REMOVE ${wheel}.tmp)
      message(
        FATAL_ERROR "CUTWHEEL_PRECOMPILED=${place}: its SHA-256 is ${found}, not that behind #sha256=. Compare both with "
                    "the index: one of them is wrong.")
    endif()
    file(RENAME ${wheel}.tmp ${wheel})
  endif()
else()
  string(REGEX REPLACE "^file://" "" place "${place}")
  cmake_path(ABSOLUTE_PATH place BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE wheel)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${wheel})
endif()

execute_process(
  COMMAND
    ${Python_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/precompiled.py take --wheel ${wheel} "--sha256=${sha256}" --source-dir
    ${PROJECT_SOURCE_DIR} --version ${CUTWHEEL_VERSION} --manifest ${CUTWHEEL_MANIFEST_JSON} --output-dir ${folder}
  ERROR_VARIABLE refused
  RESULT_VARIABLE failed
  OUTPUT_QUIET ERROR_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "CUTWHEEL_PRECOMPILED=${place}: ${refused}")
endif()
message(STATUS "cutwheel: nothing is compiled, _C.so is that of ${wheel}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CUTWHEEL_SHAPING_FILES})

install(PROGRAMS ${folder}/_C.so DESTINATION cutwheel)
install(FILES ${folder}/manifest.json DESTINATION cutwheel)
if(SKBUILD_METADATA_DIR)
  install(FILES ${folder}/cutwheel.cdx.json DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
  install(FILES ${folder}/sources.json DESTINATION ${SKBUILD_METADATA_DIR})
endif()
