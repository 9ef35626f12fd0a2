# Our own C programs: they use what a user has, the public headers, libmwctl and plain -libverbs.

find_package(Threads REQUIRED)
# Wanted by some programs; the library itself doesn't need it.
find_path(MWCTL_RDMACM_INCLUDE rdma/rdma_cma.h)
find_library(MWCTL_RDMACM_LIBRARY rdmacm)

# Applies to the targets below and to those of tests/. The empty value is what a
# `#define _GNU_SOURCE` in a file gives, so that the two agree.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
add_compile_definitions($<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE=>)

function(mwctl_program target source)
  add_executable(${target} "${source}" ${ARGN})
  target_link_libraries(${target} PRIVATE mwctl::mwctl ibverbs Threads::Threads)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Werror)
endfunction()

# One program for each FOLDER/*.c and FOLDER/legacy/*.c, linked with all of FOLDER/common/*.c and, where
# there is a folder of its name beside it, all that is in there; in the build folder's folder of the
# same name. Those named after FOLDER connect by librdmacm, in FOLDER/common/rdmacm. Sets mwctl_FOLDER
# to their names.
function(mwctl_programs_of folder)
  file(GLOB sources CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/${folder}/*.c" "${PROJECT_SOURCE_DIR}/${folder}/legacy/*.c")
  file(GLOB common CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/common/*.c")
  file(GLOB rdmacm CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/common/rdmacm/*.c")
  set(names "")
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    get_filename_component(place "${source}" DIRECTORY)
    file(RELATIVE_PATH place "${PROJECT_SOURCE_DIR}" "${place}")
    file(GLOB own CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/${name}/*.c")
    if(name IN_LIST ARGN)
      if(NOT MWCTL_RDMACM_INCLUDE OR NOT MWCTL_RDMACM_LIBRARY)
        message(STATUS "${folder}/${name} is left out: it needs librdmacm with its header")
        continue()
      endif()
      list(APPEND own ${rdmacm})
    endif()
    mwctl_program(${name} "${source}" ${own} ${common})
    if(name IN_LIST ARGN)
      target_include_directories(${name} PRIVATE "${MWCTL_RDMACM_INCLUDE}")
      target_link_libraries(${name} PRIVATE "${MWCTL_RDMACM_LIBRARY}")
    endif()
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/${folder}")
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${place}")
    list(APPEND names ${name})
  endforeach()
  set(mwctl_${folder} "${names}" PARENT_SCOPE)
endfunction()
