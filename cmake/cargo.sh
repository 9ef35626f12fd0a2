#!/bin/sh
# Runs cargo with the environment that rdma-sys's bindgen needs, and keeps the place of the crates
# on this machine, downloaded or vendored, out of what it builds. To be called in the project's folder.
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
crates=${CARGO_HOME:-$HOME/.cargo}
exec "$cargo" --config \
	"build.rustflags = ['--remap-path-prefix=$crates=cargo', '--remap-path-prefix=$PWD/vendor=vendor']" "$@"
