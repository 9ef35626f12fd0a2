#!/usr/bin/env bash
# Runs the library's tests under the thread sanitizer and the address sanitizer.
set -uo pipefail

usage() {
	cat <<'END'
usage: scripts/sanitize.sh [thread|address|all] [SECONDS]

Builds libmwctl, the device in the process and their tests with the sanitizer in all three, and
runs them: tests/lib/threads for SECONDS (60), the device's own tests, of the library's those with
threads of their own or, under the address sanitizer (with leaks), all. With less than 60 SECONDS
the random walk is shorter in proportion and the two longest are left out. First of all come
controls, programs with a fault that must be reported. Exit status 0: all clean. Builds and logs
are in target/sanitize-thread and target/sanitize-address.
END
}

which=${1:-all} seconds=${2:-60}
case $which in
thread | address) kinds=("$which") ;;
all) kinds=(thread address) ;;
-h | --help) usage; exit 0 ;;
*) usage >&2; exit 2 ;;
esac
[[ $# -le 2 && $seconds =~ ^[1-9][0-9]*$ ]] || { usage >&2; exit 2; }

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
root=$PWD

walk_steps=$((seconds * 20000 / 60))
longest=(faults reuse)
# Of one program beside threads, in seconds.
time_limit=900

passed=0 failed=0 skipped=0

die() {
	echo "sanitize.sh: $*" >&2
	exit 1
}

# ---- what it needs beside scripts/setup.sh ----

scripts/setup.sh || exit
# Reports and suppressions go by names: without a symbolizer there are none.
if ! command -v llvm-symbolizer >/dev/null; then
	as_root=()
	[[ $(id -u) -eq 0 ]] || as_root=(sudo)
	install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y
		--no-install-recommends llvm)
	"${install[@]}" >&2 || { "${as_root[@]}" apt-get update -qq >&2 && "${install[@]}" >&2; } ||
		die "cannot install llvm, whose llvm-symbolizer is needed"
fi

# ---- building ----

target=$(rustc -vV | sed -n 's/^host: //p')
runtimes=$(rustc --print sysroot)/lib/rustlib/$target/lib

verbs_source=rdma-sys
if environment=$(scripts/libclang.sh); then
	eval "$environment"
else
	verbs_source=declared
fi
# The sanitizers are options of a nightly compiler; this takes them from the stable one.
export RUSTC_BOOTSTRAP=1
export CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only
unset CARGO_ENCODED_RUSTFLAGS

cargo_build() {
	local package=$1 crate_type=$2
	# With --target the flags are not for build scripts, which run in the compiler's process.
	cargo rustc --quiet --locked --lib --package "$package" --no-default-features \
		--features "$verbs_source" --crate-type "$crate_type" --target "$target" \
		--target-dir "$out/cargo"
}

# compile OBJECT FILE [FLAG…]
compile() {
	local language=(clang -std=c11 -D_GNU_SOURCE=)
	[[ $2 == *.cpp ]] && language=(clang++ -std=c++17)
	"${language[@]}" -g -O1 -fno-omit-frame-pointer -fsanitize="$kind" \
		-Wall -Wextra -Werror -Iinclude -Itests/common -Itests/lib "${@:3}" -c "$2" -o "$1"
}

# The runtime is the Rust compiler's own, the newer of the two, and lives in the program; the
# libraries find it there.
link_program() {
	local linker=clang
	[[ $1 == cpp-* ]] && linker=clang++
	$linker -o "$out/bin/$1" "$out/objects/$1.o" "$out/objects/common.a" \
		-L"$out/lib" -lmwctl -l:libibverbs.so.1 "${@:2}" \
		-Wl,--whole-archive "$runtime" -Wl,--no-whole-archive -Wl,--export-dynamic \
		-lpthread -ldl -lrt -lm -lresolv
}

build_libraries() {
	local built=$out/cargo/$target/debug
	# As the linker of a library: the sanitizer's functions are the program's.
	cat >"$out/cc" <<'END'
#!/bin/sh
case " $* " in
*" -shared "*) exec clang "$@" -Wl,-z,undefs ;;
*) exec clang "$@" ;;
esac
END
	chmod +x "$out/cc"
	# RUSTFLAGS unquoted: it is several words.
	# shellcheck disable=SC2086
	cargo_build mwctl cdylib && cargo_build mwctl-sim staticlib &&
		cp "$built/libmwctl.so" "$out/lib/" &&
		CC=$out/cc sim/abi/link.sh "$built/libmwctl_sim.a" "$out/lib" &&
		rustc $RUSTFLAGS -Copt-level=1 -Cdebuginfo=line-tables-only --edition 2021 \
			--target "$target" --crate-type cdylib -o "$out/lib/libcontrol.so" tests/sanitize/once.rs
}

# A file of tests/lib with a header of its name serves the others, those in a folder only the program
# of its name.
build_programs() {
	local source part name common=() parts
	for source in tests/common/*.c tests/lib/*.c; do
		[[ -f ${source%.c}.h ]] || continue
		common+=("$out/objects/$(basename "$source" .c).o")
		compile "${common[-1]}" "$source" || return
	done
	ar rcsD "$out/objects/common.a" "${common[@]}" &&
		compile "$out/objects/control.o" tests/sanitize/control.c &&
		link_program control -lcontrol || return
	for source in "${@/#/tests/lib/}" sim/tests/*.c tests/cpp/*.cpp; do
		name=$(name_of "$source")
		if [[ $name == compat ]]; then
			# With what makes its verbs objects.
			part=$out/objects/compat-part
			compile "$part-1.o" "$source" -include mwctl_compat.h &&
				compile "$part-2.o" tests/common/rc_pair.c -include mwctl_compat.h &&
				ld -r -o "$out/objects/$name.o" "$part-1.o" "$part-2.o" || return
		else
			parts=()
			for part in "$source" "${source%.*}"/*.c; do
				[[ -f $part ]] || continue
				parts+=("$out/objects/$name-part-${#parts[@]}.o")
				compile "${parts[-1]}" "$part" || return
			done
			ld -r -o "$out/objects/$name.o" "${parts[@]}" || return
		fi
		link_program "$name" || return
	done
}

# Of the programs that source files of tests/lib make.
names() {
	local source name
	while read -r source; do
		name=$(basename "$source" .c)
		[[ -f ${source%.c}.h ]] && continue
		[[ $seconds -lt 60 && " ${longest[*]} " == *" $name "* ]] && continue
		echo "$name"
	done
}

# Of the program that a source file makes; the folders have some in common.
name_of() {
	local name
	name=$(basename "${1%.*}")
	case $1 in
	sim/*) name=sim-$name ;;
	*.cpp) name=cpp-$name ;;
	esac
	echo "$name"
}

# ---- running ----

tell() {
	local word=$1 begun=$2
	shift 2
	printf '%-8s %4d s  %-8s %-22s %s\n' "$word" $((SECONDS - begun)) "$kind" "$@"
}

under_it() {
	local limit=$1
	shift
	LD_LIBRARY_PATH=$out/lib timeout "$limit" "$@" >"$log" 2>&1 </dev/null
}

# run LIMIT NAME [ARG…]: it must pass, and nothing be reported. One that ends with 77 does not
# belong here, and says so; that the device is missing is seen by the controls.
run() {
	local limit=$1 name=$2 begun=$SECONDS status=0 last
	shift 2
	log=$out/logs/$name.log
	under_it "$limit" "$out/bin/$name" "$@" || status=$?
	last=$(tail -n 1 "$log" | cut -c 1-120)
	case $status in
	0)
		passed=$((passed + 1))
		tell ok "$begun" "$name${*:+ $*}" "$last"
		;;
	77)
		skipped=$((skipped + 1))
		tell skipped "$begun" "$name${*:+ $*}" "$last"
		;;
	*)
		failed=$((failed + 1))
		tell FAILED "$begun" "$name${*:+ $*}" "exit status $status; all of it in ${log#"$root"/}"
		head -n 100 "$log"
		;;
	esac
}

# control FAULT REPORT SOURCE: the fault must be reported, as met in that source file.
# A mem… function that the runtime puts in place of libc's sees code that was not instrumented, too:
# that one does not count.
control() {
	local fault=$1 report=$2 source=$3 begun=$SECONDS status=0 stacks
	log=$out/logs/control-$fault.log
	TSAN_OPTIONS=${TSAN_OPTIONS:-}:halt_on_error=1 under_it 60 "$out/bin/control" "$fault" || status=$?
	stacks=$(sed -n "/$report/,/^SUMMARY/p" "$log" | grep '^ *#[0-9]')
	if [[ $status -eq $reported ]] && grep -qF "/$source:" <<<"$stacks" &&
		! grep -qE '#0 .*\bmem(cpy|move|set)\b' <<<"$stacks"; then
		passed=$((passed + 1))
		tell ok "$begun" "control $fault" "$report in $source"
		return
	fi
	failed=$((failed + 1))
	tell FAILED "$begun" "control $fault" "no '$report' in $source (exit status $status)"
	head -n 100 "$log"
}

sanitize() {
	kind=$1 out=$root/target/sanitize-$1
	mkdir -p "$out"/{lib,bin,objects,logs}
	rm -f "$out"/{bin,objects,logs}/*
	local source name programs=()
	# std comes without the sanitizer; that it differs from our crates in this is meant.
	export RUSTFLAGS="-Zsanitizer=$kind -Cunsafe-allow-abi-mismatch=sanitizer -Cforce-frame-pointers=yes"
	if [[ $kind == thread ]]; then
		runtime=$runtimes/librustc-stable_rt.tsan.a reported=66
		export TSAN_OPTIONS="exitcode=$reported:suppressions='$root/scripts/tsan.supp':print_suppressions=0"
		mapfile -t programs < <(grep -lE 'pthread_create|mwctl_service_start' tests/lib/*.c | names)
	else
		runtime=$runtimes/librustc-stable_rt.asan.a reported=99
		export ASAN_OPTIONS="exitcode=$reported:detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1"
		mapfile -t programs < <(printf '%s\n' tests/lib/*.c | names)
	fi
	[[ -f $runtime ]] || die "the Rust compiler has no $runtime"
	if ! build_libraries || ! build_programs "${programs[@]/%/.c}"; then
		die "the build for the $kind sanitizer failed"
	fi

	if [[ $kind == thread ]]; then
		control race-library 'ThreadSanitizer: data race' src/capi/question.rs
		control race-device 'ThreadSanitizer: data race' sim/src/scatter.rs
		control race-once 'ThreadSanitizer: data race' tests/sanitize/once.rs
	else
		control freed-library 'AddressSanitizer: heap-use-after-free' src/capi/question.rs
		control freed-device 'AddressSanitizer: heap-use-after-free' sim/src/scatter.rs
		control leak-library 'LeakSanitizer: detected memory leaks' src/capi/context.rs
	fi
	for source in sim/tests/*.c tests/cpp/*.cpp; do
		programs+=("$(name_of "$source")")
	done
	for name in "${programs[@]}"; do
		case $name in
		threads) run $((seconds + 120)) threads "$seconds" ;;
		walk) run $time_limit walk --steps $walk_steps ;;
		*) run $time_limit "$name" ;;
		esac
	done
}

for each in "${kinds[@]}"; do
	sanitize "$each"
done
echo "$passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
