# The SBOM in the wheel (PEP 770): what is in it, with the hash of every cubin, and which tools made it.
execute_process(COMMAND ${CUDAToolkit_BIN_DIR}/ptxas --version OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "V([0-9.]+)" text "${text}")
set(CUTWHEEL_PTXAS_VERSION ${CMAKE_MATCH_1})

# Written after linking. A build without scikit-build-core makes no wheel, so it needs no SBOM either.
function(cutwheel_add_sbom)
  if(NOT SKBUILD_METADATA_DIR)
    return()
  endif()
  set(sbom ${PROJECT_BINARY_DIR}/cutwheel.cdx.json)
  set(scripts ${PROJECT_SOURCE_DIR}/tools/wheel/sbom.py ${PROJECT_SOURCE_DIR}/tools/wheel/driver_floor.py
              ${PROJECT_SOURCE_DIR}/tools/wheel/wheelcheck/fatbin.py)
  get_target_property(cutlass_include cutwheel_cutlass INTERFACE_INCLUDE_DIRECTORIES)
  set(cuda_includes ${CUDAToolkit_INCLUDE_DIRS})
  list(TRANSFORM CUDAToolkit_INCLUDE_DIRS APPEND /cccl OUTPUT_VARIABLE with_cccl) # CUDA 13 has it in a folder of its own
  list(APPEND cuda_includes ${with_cccl})
  # On the command line, so that another time makes another file.
  set(epoch)
  if(DEFINED ENV{SOURCE_DATE_EPOCH})
    set(epoch --epoch $ENV{SOURCE_DATE_EPOCH})
  endif()
  add_custom_command(
    OUTPUT ${sbom}
    COMMAND
      ${Python_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tools/wheel/sbom.py --library $<TARGET_FILE:_C> --manifest
      ${CUTWHEEL_MANIFEST_JSON} --output ${sbom} --version ${CUTWHEEL_VERSION} --cutlass ${CUTWHEEL_CUTLASS_VERSION}
      --cutlass-include ${cutlass_include} --torch ${CUTWHEEL_TORCH_VERSION} --cuda ${CUTWHEEL_CUDA_VERSION} --cuda-includes
      ${cuda_includes} --cudart ${CUDA_cudart_static_LIBRARY} --cuda-bin ${CUDAToolkit_BIN_DIR} --nvcc
      ${CMAKE_CUDA_COMPILER_VERSION} --ptxas ${CUTWHEEL_PTXAS_VERSION} --cxx
      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}" ${epoch}
    DEPENDS _C ${CUTWHEEL_MANIFEST_JSON} ${scripts}
    VERBATIM)
  add_custom_target(sbom ALL DEPENDS ${sbom})
  install(FILES ${sbom} DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
endfunction()
