# Our own C programs: they use what a user has, the public headers, libmwctl and plain -libverbs.

find_package(Threads REQUIRED)

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

# One program for each FOLDER/*.c and FOLDER/legacy/*.c, linked with all of FOLDER/common/*.c, in the
# build folder's folder of the same name. Sets mwctl_FOLDER to their names.
function(mwctl_programs_of folder)
  file(GLOB sources CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/${folder}/*.c" "${PROJECT_SOURCE_DIR}/${folder}/legacy/*.c")
  file(GLOB common CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/common/*.c")
  set(names "")
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME_WE)
    get_filename_component(place "${source}" DIRECTORY)
    file(RELATIVE_PATH place "${PROJECT_SOURCE_DIR}" "${place}")
    mwctl_program(${name} "${source}" ${common})
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/${folder}")
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/${place}")
    list(APPEND names ${name})
  endforeach()
  set(mwctl_${folder} "${names}" PARENT_SCOPE)
endfunction()
