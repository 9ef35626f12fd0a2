# libmwctl and the device in the process, in the build folder as they will be when installed.

set(mwctl_lib_dir "${CMAKE_CURRENT_BINARY_DIR}/lib")
set(mwctl_shared "${mwctl_lib_dir}/libmwctl.so.${PROJECT_VERSION}")
set(mwctl_shared_links
  "${mwctl_lib_dir}/libmwctl.so.${PROJECT_VERSION_MAJOR}" "${mwctl_lib_dir}/libmwctl.so")
set(mwctl_static "${mwctl_lib_dir}/libmwctl.a")
set(mwctl_map "${PROJECT_SOURCE_DIR}/src/capi/libmwctl.map")
set(mwctl_tools
  "CC=${CMAKE_C_COMPILER}" "AR=${CMAKE_AR}" "OBJCOPY=${CMAKE_OBJCOPY}"
  "LDFLAGS=${CMAKE_SHARED_LINKER_FLAGS}")

mwctl_cargo_staticlib(mwctl_cargo mwctl mwctl_archive)
add_custom_command(
  OUTPUT "${mwctl_shared}" ${mwctl_shared_links} "${mwctl_static}"
  COMMAND "${CMAKE_COMMAND}" -E env ${mwctl_tools}
    "${PROJECT_SOURCE_DIR}/scripts/check-symbols.sh" --map
  COMMAND "${CMAKE_COMMAND}" -E env ${mwctl_tools}
    "${PROJECT_SOURCE_DIR}/cmake/link.sh"
    "${mwctl_archive}" "${mwctl_map}" "${PROJECT_VERSION}" "${mwctl_lib_dir}"
  DEPENDS mwctl_cargo "${mwctl_archive}" "${mwctl_map}"
    "${PROJECT_SOURCE_DIR}/include/mwctl.h"
    "${PROJECT_SOURCE_DIR}/include/mwctl_compat.h"
    "${PROJECT_SOURCE_DIR}/cmake/link.sh"
    "${PROJECT_SOURCE_DIR}/scripts/check-symbols.sh"
  COMMENT "Linking libmwctl"
  VERBATIM)
add_custom_target(mwctl_libraries ALL
  DEPENDS "${mwctl_shared}" ${mwctl_shared_links} "${mwctl_static}")

# The same names as the installed package's.
add_library(mwctl::mwctl SHARED IMPORTED GLOBAL)
set_target_properties(mwctl::mwctl PROPERTIES
  IMPORTED_LOCATION "${mwctl_shared}"
  IMPORTED_SONAME "libmwctl.so.${PROJECT_VERSION_MAJOR}"
  INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include")
add_dependencies(mwctl::mwctl mwctl_libraries)

separate_arguments(mwctl_native_libs_list UNIX_COMMAND "${mwctl_native_libs}")
add_library(mwctl::static STATIC IMPORTED GLOBAL)
set_target_properties(mwctl::static PROPERTIES
  IMPORTED_LOCATION "${mwctl_static}"
  INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include"
  INTERFACE_LINK_LIBRARIES "ibverbs;${mwctl_native_libs_list}")
add_dependencies(mwctl::static mwctl_libraries)

if(MWCTL_BUILD_SIM)
  # A program linked with plain -libverbs runs on it with LD_LIBRARY_PATH set to this folder.
  set(MWCTL_SIM_DIR "${mwctl_lib_dir}/mwctl-sim")
  if(NOT mwctl_top_level)
    set(MWCTL_SIM_DIR "${MWCTL_SIM_DIR}" PARENT_SCOPE)
  endif()
  set(mwctl_sim "${MWCTL_SIM_DIR}/libibverbs.so.1")
  mwctl_cargo_staticlib(mwctl_sim_cargo mwctl-sim mwctl_sim_archive)
  # Both wait for the same lock of cargo's: one after the other says so in the output too.
  add_dependencies(mwctl_sim_cargo mwctl_cargo)
  file(GLOB mwctl_sim_abi CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/sim/abi/*")
  add_custom_command(
    OUTPUT "${mwctl_sim}"
    COMMAND "${CMAKE_COMMAND}" -E env ${mwctl_tools}
      "${PROJECT_SOURCE_DIR}/sim/abi/link.sh" "${mwctl_sim_archive}" "${MWCTL_SIM_DIR}"
    DEPENDS mwctl_sim_cargo "${mwctl_sim_archive}" ${mwctl_sim_abi}
    COMMENT "Linking the device in the process"
    VERBATIM)
  add_custom_target(mwctl_sim_library ALL DEPENDS "${mwctl_sim}")

  add_library(mwctl::sim INTERFACE IMPORTED GLOBAL)
  set_target_properties(mwctl::sim PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/include")
  add_dependencies(mwctl::sim mwctl_sim_library)
endif()
