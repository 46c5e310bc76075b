# sources.json in the wheel: the SHA-256 of every source that shaped the library, with which CUTWHEEL_PRECOMPILED compares.
execute_process(
  COMMAND ${Python_EXECUTABLE} -B ${CMAKE_CURRENT_LIST_DIR}/precompiled.py files --source-dir ${PROJECT_SOURCE_DIR}
  OUTPUT_VARIABLE CUTWHEEL_SHAPING_FILES OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(TRANSFORM CUTWHEEL_SHAPING_FILES PREPEND ${PROJECT_SOURCE_DIR}/)

# Written after linking, as the SBOM.
function(cutwheel_add_sources_record)
  if(NOT SKBUILD_METADATA_DIR)
    return()
  endif()
  set(record ${PROJECT_BINARY_DIR}/sources.json)
  add_custom_command(
    OUTPUT ${record} COMMAND ${Python_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/cmake/precompiled.py record --source-dir
                             ${PROJECT_SOURCE_DIR} --version ${CUTWHEEL_VERSION} --output ${record}
    DEPENDS _C ${CUTWHEEL_SHAPING_FILES} ${PROJECT_SOURCE_DIR}/pyproject.toml VERBATIM)
  add_custom_target(sources_record ALL DEPENDS ${record})
  install(FILES ${record} DESTINATION ${SKBUILD_METADATA_DIR})
endfunction()
