#!/bin/sh
# Runs cargo with the environment that rdma-sys's bindgen needs, and keeps the place of cargo's
# downloads on this machine out of what it builds.
#
#   cargo.sh ENVIRONMENT_FILE CARGO ARG…
set -eu

# Shell exports, as scripts/libclang.sh prints them.
# shellcheck source=/dev/null
. "$1"
cargo=$2
shift 2
# What make tells its own children is not meant for cargo's.
unset MAKEFLAGS MFLAGS MAKELEVEL
exec "$cargo" --config "build.rustflags = ['--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo']" "$@"
