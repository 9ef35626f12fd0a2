# What `cmake --install` lays out. Everything finds its way from its own place, so that the folder
# may be moved: --prefix and DESTDIR both work.
include(CMakePackageConfigHelpers)

set(mwctl_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/mwctl")
set(mwctl_pc_dir "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

file(GLOB mwctl_headers CONFIGURE_DEPENDS
  "${PROJECT_SOURCE_DIR}/include/*.h" "${PROJECT_SOURCE_DIR}/include/*.hpp")
install(FILES ${mwctl_headers} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${mwctl_shared}" ${mwctl_shared_links} "${mwctl_static}"
  DESTINATION "${CMAKE_INSTALL_LIBDIR}")
file(GLOB mwctl_licences "${PROJECT_SOURCE_DIR}/LICENSE*")
install(FILES ${mwctl_licences} "${PROJECT_SOURCE_DIR}/README.md" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
# The README points there.
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" "${PROJECT_SOURCE_DIR}/examples-c"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" PATTERN "CMakeLists.txt" EXCLUDE)
foreach(section 3 7)
  file(GLOB mwctl_man CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/man/man${section}/*.${section}")
  install(FILES ${mwctl_man} DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
endforeach()
set(mwctl_to_strip "libmwctl.so.${PROJECT_VERSION}" libmwctl.a)
if(MWCTL_BUILD_SIM)
  install(FILES "${mwctl_sim}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/mwctl-sim")
  list(APPEND mwctl_to_strip mwctl-sim/libibverbs.so.1)
endif()
if(MWCTL_INSTALL_STRIPPED)
  foreach(file IN LISTS mwctl_to_strip)
    # --strip-unneeded would take a relocatable object's local symbols, and relocations need them.
    if(file MATCHES "\\.a$")
      set(how --strip-debug)
    else()
      set(how --strip-unneeded)
    endif()
    install(CODE "
      set(prefix \"\${CMAKE_INSTALL_PREFIX}\")
      get_filename_component(dir \"${CMAKE_INSTALL_LIBDIR}\" ABSOLUTE BASE_DIR \"\${prefix}\")
      execute_process(COMMAND \"${CMAKE_STRIP}\" ${how} \"\$ENV{DESTDIR}\${dir}/${file}\"
        RESULT_VARIABLE status)
      if(NOT status EQUAL 0)
        message(FATAL_ERROR \"can't strip ${file}\")
      endif()")
  endforeach()
endif()

# ---- pkg-config ----

function(mwctl_pc name)
  # Relative to the file's own folder, unless the folders were given as absolute paths.
  if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
    set(pc_libdir "${CMAKE_INSTALL_FULL_LIBDIR}")
    set(pc_includedir "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
  else()
    file(RELATIVE_PATH up "/${mwctl_pc_dir}" "/")
    string(REGEX REPLACE "/$" "" up "${up}")
    set(pc_prefix "\${pcfiledir}/${up}")
    set(pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
  endif()
  configure_file("cmake/${name}.pc.in" "${name}.pc" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" DESTINATION "${mwctl_pc_dir}")
endfunction()

mwctl_pc(mwctl)
if(MWCTL_BUILD_SIM)
  mwctl_pc(mwctl-sim)
endif()

# ---- CMake package ----

set(mwctl_install_simdir "${CMAKE_INSTALL_LIBDIR}/mwctl-sim")
configure_package_config_file(cmake/mwctl-config.cmake.in mwctl-config.cmake
  INSTALL_DESTINATION "${mwctl_package_dir}"
  PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR mwctl_install_simdir
  NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/mwctl-config-version.cmake"
  VERSION "${PROJECT_VERSION}" COMPATIBILITY SameMajorVersion)
install(FILES
  "${CMAKE_CURRENT_BINARY_DIR}/mwctl-config.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/mwctl-config-version.cmake"
  DESTINATION "${mwctl_package_dir}")
