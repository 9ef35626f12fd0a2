#!/usr/bin/env bash
# Sets up and runs every check, from formatting to real verbs. Stops at the first that fails.
set -uo pipefail

usage() {
	cat <<'END'
usage: scripts/test.sh [--quick] [--verbose]
       scripts/test.sh --programs DIR

  --quick     leave out the sanitizers and what boots a guest with real verbs
  --verbose   show all output, not only a line for each step
  --programs  run each program of DIR on the device that is there; nothing else

The last line counts tests where a step has many, and the step itself where it is one. Logs
are in the build folder (build in the project, or $MWCTL_BUILD_DIR) under test-logs.
END
}

quick=no verbose=no
while [[ $# -gt 0 ]]; do
	case $1 in
	--quick) quick=yes ;;
	--verbose) verbose=yes ;;
	--programs)
		[[ $# -eq 2 ]] || { usage >&2; exit 2; }
		break
		;;
	-h | --help) usage; exit 0 ;;
	*) usage >&2; exit 2 ;;
	esac
	shift
done

# A program ends with 77 if it can't run on this device, and says why. What failed said is said again
# at the end: of a long output that is what is read.
run_programs() {
	local program status passed=0 failed=0 skipped=0 output failures
	output=$(mktemp) failures=$(mktemp) || return
	for program in "$1"/*; do
		[[ -f $program && -x $program ]] || continue
		echo "== ${program##*/}"
		"$program" 2>&1 | tee "$output"
		status=${PIPESTATUS[0]}
		case $status in
		0) passed=$((passed + 1)) ;;
		77) skipped=$((skipped + 1)) ;;
		*)
			failed=$((failed + 1))
			{
				echo "FAILED ${program##*/} (exit status $status)"
				tail -n 20 "$output"
			} >>"$failures"
			;;
		esac
	done
	cat "$failures"
	rm -f "$output" "$failures"
	echo "$passed passed, $failed failed, $skipped skipped"
	[[ $failed -eq 0 && $passed -gt 0 ]]
}

if [[ ${1:-} == --programs ]]; then
	run_programs "$2"
	exit
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
build=${MWCTL_BUILD_DIR:-$PWD/build}
logs=$build/test-logs
mkdir -p "$logs"
rm -f "$logs"/*.log
PATH=${MWCTL_CACHE:-$PWD/.cache}/bin:$PATH
export PATH
# No test shall end up on another device than is said here.
unset LD_LIBRARY_PATH MWCTL_TEST_DEVICE MWCTL_SIM_SEED MWCTL_SIM_PROFILE

passed=0 failed=0 skipped=0 number=0 begun=$SECONDS

finish() {
	[[ $failed -eq 0 ]] || echo "stopped at the first failure"
	echo "all in $((SECONDS - begun)) s"
	if [[ $skipped -gt 0 ]]; then
		echo "$passed passed, $failed failed, $skipped skipped"
	else
		echo "$passed passed, $failed failed"
	fi
	[[ $failed -eq 0 ]]
	exit
}

# step NAME COMMAND [ARG…]: runs it, prints a line, counts. A step that has tests of its own prints
# 'N passed, N failed[, N skipped]'; one that can't run here ends with 77.
step() {
	local name=$1 log status=0 from=$SECONDS counts word
	shift
	number=$((number + 1))
	log=$(printf '%s/%02d-%s.log' "$logs" $number "$(tr -cs 'A-Za-z0-9.\n' - <<<"$name")")
	if [[ $verbose == yes ]]; then
		echo "== $name"
		"$@" 2>&1 </dev/null | tee "$log" || status=$?
	else
		"$@" >"$log" 2>&1 </dev/null || status=$?
	fi
	counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log" | tail -n 1)
	case $status in
	0) word=ok ;;
	77) word=skipped ;;
	*) word=FAILED ;;
	esac
	printf '%-8s %4d s  %-34s %s\n' $word $((SECONDS - from)) "$name" \
		"${counts:-$(grep -v '^$' "$log" | tail -n 1 | sed 's/^ *//' | cut -c 1-110)}"
	if [[ -n $counts ]]; then
		local p f s
		read -r p _ f _ s _ <<<"${counts//,/}"
		passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + ${s:-0}))
		[[ $status -eq 0 || $f -gt 0 ]] || failed=$((failed + 1))
	else
		case $word in
		ok) passed=$((passed + 1)) ;;
		skipped) skipped=$((skipped + 1)) ;;
		*) failed=$((failed + 1)) ;;
		esac
	fi
	if [[ $word == FAILED ]]; then
		[[ $verbose == yes ]] || tail -n 200 "$log"
		echo "all of its output: $log"
		finish
	fi
}

# ---- the steps that are more than one command ----

cargo_test() {
	local log=$logs/cargo-test status=0
	cargo test --locked "$@" 2>&1 | tee "$log" || status=$?
	awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
		END { print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped" }' "$log"
	return $status
}

clippy() {
	cargo clippy --locked --workspace --all-targets -- -D warnings &&
		cargo clippy --locked --workspace --all-targets --no-default-features \
			--features mwctl/declared,mwctl-sim/declared,mwctl-verbs/declared -- -D warnings
}

shell_scripts() {
	local scripts
	mapfile -t scripts < <(find build.sh scripts cmake sim tests -name '*.sh')
	shellcheck --severity=warning .ci/run "${scripts[@]}" &&
		echo "${#scripts[@]} scripts without a warning"
}

# What `cargo build` makes by itself, beside what CMake makes: a library to be used as it is.
cdylib() {
	cmake/cargo.sh "$build/cargo-environment.sh" cargo build --locked --release --package mwctl \
		--target-dir "$build/cargo" &&
		scripts/check-symbols.sh --cdylib "$build/cargo/release/libmwctl.so"
}

ctest_all() {
	local log=$logs/ctest status=0
	ctest --test-dir "$build" --output-on-failure 2>&1 | tee "$log" || status=$?
	# Of each kind of result, its lines: "12/20 Test #12: NAME ...   Passed    0.02 sec".
	awk '/^ *[0-9]+\/[0-9]+ Test +#/ {
			if (/\*\*\*Skipped/) skipped++; else if (/ Passed +[0-9.]+ sec/) passed++; else failed++ }
		END { print passed + 0 " passed, " failed + 0 " failed, " skipped + 0 " skipped" }' "$log"
	return $status
}

on_rxe() {
	local kernel=$1 limit=$2
	shift 2
	scripts/rxe.sh --kernel "$kernel" --time-limit "$limit" --console "$logs/console-$number" -- "$@"
}

# Releases' kernels have no soft-RoCE in network namespaces; the one that Debian backports may be
# gone some day.
in_namespaces() {
	scripts/rxe/kernel.sh backports >/dev/null || { echo "skipped: no kernel from Debian's backports"; return 77; }
	on_rxe backports 300 scripts/rxe/examples.sh --namespaces "$build/examples-c"
}

# ---- all of them, the quick ones first ----

step "set-up" scripts/setup.sh
environment=$(scripts/libclang.sh 2>/dev/null) && eval "$environment"

step "formatting" cargo fmt --all --check
step "shell scripts" shell_scripts
step "headers" scripts/check-header.sh
step "man pages" scripts/check-man.sh
step "differences in docs/adopting.md" scripts/check-adopting.sh
step "symbol map" scripts/check-symbols.sh --map
step "clippy, both sources of verbs types" clippy
step "Rust tests" cargo_test --workspace
step "verbs types of our own" cargo_test --package mwctl-verbs --no-default-features --features declared
step "libclang in every situation" scripts/check-libclang.sh
step "build" cmake/build.sh "$build"
step "symbols" scripts/check-symbols.sh "$build"
step "symbols of cargo's own library" cdylib
step "symbols of the device in the process" scripts/check-sim-symbols.sh "$build/lib/mwctl-sim/libibverbs.so.1"
step "versions" scripts/check-versions.sh "$build"
step "tests on the device in the process" ctest_all
step "controls: broken libraries" scripts/check-controls.sh "$build"
step "install and consume" scripts/check-install.sh "$build"
step "older and newer releases" scripts/check-growth.sh "$build"
step "source tarball, built offline" scripts/check-dist.sh

if [[ $quick == no ]]; then
	step "address sanitizer" scripts/sanitize.sh address 20
	step "thread sanitizer" scripts/sanitize.sh thread 20
	step "guests' kernels" scripts/rxe.sh --prepare
	step "guest runner" scripts/rxe/check.sh
	step "conformance on rxe 6.1" on_rxe 6.1 300 tests/conformance/run.sh "$build/tests/conformance"
	step "library on rxe 6.1" on_rxe 6.1 600 scripts/test.sh --programs "$build/tests/lib"
	step "C++ header on rxe 6.1" on_rxe 6.1 300 scripts/test.sh --programs "$build/tests/cpp"
	step "examples and counts on rxe 6.1" on_rxe 6.1 300 bash -ec \
		'"$0/examples-c/rpc_server" --short; "$0/examples-c/epoll_server"; "$0/examples-c/own_poll"
		"$0/bench/rpc" --short; "$0/bench/accept" --short' "$build"
	step "random walk on rxe 6.1" on_rxe 6.1 900 "$build/tests/lib/walk" --steps 20000
	step "main job on rxe 6.1" on_rxe 6.1 300 "$build/examples-c/rogue_client" --short
	step "changed programs on rxe 6.1" on_rxe 6.1 120 scripts/check-legacy.sh "$build"
	step "changed programs on rxe 6.12" on_rxe 6.12 120 scripts/check-legacy.sh "$build"
	step "two processes on rxe 6.1" on_rxe 6.1 300 scripts/rxe/examples.sh --routed "$build/examples-c"
	step "own polling on rxe 6.12" on_rxe 6.12 120 "$build/examples-c/own_poll"
	step "conformance on rxe 6.12" on_rxe 6.12 300 tests/conformance/run.sh "$build/tests/conformance"
	step "library on rxe 6.12" on_rxe 6.12 900 scripts/test.sh --programs "$build/tests/lib"
	step "random walk on rxe 6.12" on_rxe 6.12 900 "$build/tests/lib/walk" --steps 20000
	step "two processes on rxe 6.12" on_rxe 6.12 300 scripts/rxe/examples.sh --routed "$build/examples-c"
	step "two namespaces, newer rxe" in_namespaces
fi
finish
