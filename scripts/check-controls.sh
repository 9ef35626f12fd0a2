#!/usr/bin/env bash
# Shows that the tests can fail: runs some of them against a library that is broken on purpose.
#
#   check-controls.sh BUILD_DIR    after the build of the library, the device and the tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ $# -eq 1 && -d $1/tests/lib ]] || { echo "usage: $0 BUILD_DIR" >&2; exit 2; }
build=$(cd "$1" && pwd)
environment=$(scripts/libclang.sh 2>/dev/null) && eval "$environment" && source=rdma-sys || source=declared

target=$build/cargo-controls
cargo rustc --locked --quiet --package mwctl --no-default-features --features "$source,controls" \
	--target-dir "$target" --crate-type cdylib
mkdir -p "$target/lib"
cp "$target/debug/libmwctl.so" "$target/lib/libmwctl.so.1"

# run BREAK PROGRAM: its output; the status is the program's.
run() {
	MWCTL_BREAK=$1 LD_LIBRARY_PATH=$target/lib:$build/lib/mwctl-sim timeout 300 "$build/tests/lib/$2" 2>&1
}
passed=0 failed=0
result() {
	echo "$1  $2"
	if [[ $1 == ok ]]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}
works() {
	local output
	if output=$(run "$1" "$2"); then result ok "$2 passes ${3:-unbroken}"; else
		result FAILED "$2 must pass ${3:-unbroken}: $(tail -n 1 <<<"$output")"
	fi
}
# breaks WHAT PROGRAM TEXT: the program must fail, and say so with this text.
breaks() {
	local output status=0
	output=$(run "$1" "$2") || status=$?
	if [[ $status -eq 1 ]] && grep -q -- "$3" <<<"$output"; then
		result ok "$2 fails without: $1"
	else
		result FAILED "$2 must fail without: $1 (exit status $status): $(tail -n 1 <<<"$output")"
	fi
}

works "" endings
works "" table
works "" reuse
works "" channels
works "" loops
works "" missed
breaks ladder endings 'mwctl_revoke.*not proved'
breaks blocks table 'mwctl_block_take'
breaks distance table 'keys\|used\|distance'
breaks distance reuse 'repeated'
breaks keeping channels 'asleep'
breaks emptiness loops 'look_until_empty'
breaks patience missed 'heard.status'
works assertion poison "with an internal error"
echo "$passed passed, $failed failed"
[[ $failed -eq 0 ]]
