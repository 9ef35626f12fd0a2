#!/bin/sh
# Runs cargo with the environment that rdma-sys's bindgen needs.
#
#   cargo.sh ENVIRONMENT_FILE CARGO [ARG…]
set -eu

# Shell exports, as scripts/libclang.sh prints them.
# shellcheck source=/dev/null
. "$1"
shift
# What make tells its own children is not meant for cargo's.
unset MAKEFLAGS MFLAGS MAKELEVEL
exec "$@"
