# How cargo is called, and where the verbs types come from.

find_program(MWCTL_CARGO cargo HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" DOC "cargo")
if(NOT MWCTL_CARGO)
  message(FATAL_ERROR "cargo was not found: install Rust, or set MWCTL_CARGO")
endif()
find_program(MWCTL_RUSTC rustc HINTS "$ENV{CARGO_HOME}/bin" "$ENV{HOME}/.cargo/bin" DOC "rustc")

set(MWCTL_VERBS_SOURCE auto CACHE STRING
  "The verbs types: rdma-sys (the binding crate, needs libclang), declared (our own), or auto")
set_property(CACHE MWCTL_VERBS_SOURCE PROPERTY STRINGS auto rdma-sys declared)

set(mwctl_cargo_environment "${CMAKE_CURRENT_BINARY_DIR}/cargo-environment.sh")

# Sets mwctl_verbs_source to rdma-sys or declared, and writes the environment file.
function(mwctl_choose_verbs_source)
  set(environment "")
  set(chosen "${MWCTL_VERBS_SOURCE}")
  if(chosen STREQUAL "auto" OR chosen STREQUAL "rdma-sys")
    set(problem "")
    find_path(MWCTL_RDMACM_INCLUDE rdma/rdma_cma.h)
    if(MWCTL_RDMACM_INCLUDE)
      execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/libclang.sh"
        RESULT_VARIABLE status OUTPUT_VARIABLE environment ERROR_VARIABLE problem
        ERROR_STRIP_TRAILING_WHITESPACE)
    else()
      set(status 3)
      set(problem "rdma-sys needs rdma/rdma_cma.h (librdmacm-dev)")
    endif()
    if(status EQUAL 0)
      set(chosen rdma-sys)
    elseif(status EQUAL 3 AND chosen STREQUAL "auto")
      set(chosen declared)
      set(environment "")
      message(STATUS "${problem}")
    else()
      message(FATAL_ERROR "the verbs types can't come from rdma-sys: ${problem}")
    endif()
  elseif(NOT chosen STREQUAL "declared")
    message(FATAL_ERROR "MWCTL_VERBS_SOURCE is '${chosen}', not auto, rdma-sys or declared")
  endif()
  message(STATUS "verbs types: ${chosen}")
  file(WRITE "${mwctl_cargo_environment}" "${environment}")
  set(mwctl_verbs_source "${chosen}" PARENT_SCOPE)
endfunction()
mwctl_choose_verbs_source()

# A target TARGET that builds PACKAGE's static library; sets OUTPUT to its path. Each is built by
# itself, for one run for several crate types gives up link-time optimisation.
function(mwctl_cargo_staticlib target package output)
  string(REPLACE "-" "_" name "${package}")
  set(folder "${CMAKE_CURRENT_BINARY_DIR}/cargo")
  set(archive "${folder}/release/lib${name}.a")
  add_custom_target(${target} ALL
    COMMAND "${PROJECT_SOURCE_DIR}/cmake/cargo.sh" "${mwctl_cargo_environment}"
      "${MWCTL_CARGO}" rustc --quiet --locked --release --lib --package "${package}"
      --no-default-features --features "${mwctl_verbs_source}"
      --crate-type staticlib --target-dir "${folder}"
    BYPRODUCTS "${archive}"
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    COMMENT "cargo: ${package}"
    USES_TERMINAL VERBATIM)
  set(${output} "${archive}" PARENT_SCOPE)
endfunction()

# The libraries of the system that Rust's standard library wants in a static link.
function(mwctl_native_libs output)
  set(probe "${CMAKE_CURRENT_BINARY_DIR}/native-libs")
  file(WRITE "${probe}.rs" "")
  execute_process(
    COMMAND "${MWCTL_RUSTC}" --crate-type staticlib --print native-static-libs
      -o "${probe}.a" "${probe}.rs"
    RESULT_VARIABLE status ERROR_VARIABLE said)
  if(NOT status EQUAL 0 OR NOT said MATCHES "native-static-libs: ([^\n]*)")
    message(FATAL_ERROR "rustc does not tell its native libraries: ${said}")
  endif()
  string(STRIP "${CMAKE_MATCH_1}" libs)
  set(${output} "${libs}" PARENT_SCOPE)
endfunction()
