#!/usr/bin/env bash
# Configures a build folder and builds the targets (all, if none is named). Silent if all goes well.
#
#   build.sh BUILD_DIR [TARGET…]
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${1:?usage: build.sh BUILD_DIR [TARGET…]}
shift
targets=()
for target; do
	targets+=(--target "$target")
done

mkdir -p "$build"
log=$build/build.log
{
	cmake -S "$root" -B "$build" -D MWCTL_BUILD_SIM=ON -D MWCTL_BUILD_TESTS=ON -D MWCTL_BUILD_EXAMPLES=ON \
		-D MWCTL_BUILD_BENCH=ON && cmake --build "$build" --parallel "$(nproc)" "${targets[@]}"
} >"$log" 2>&1 || {
	tail -n 60 "$log" >&2
	echo "the build failed; all of its output is in $log" >&2
	exit 1
}
