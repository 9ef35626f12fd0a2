#!/bin/sh
# Installs a build into a staging folder and builds programs against it as users do: by pkg-config,
# by find_package, as C and C++, shared and static. Each runs on the device in the process.
#
#   check-install.sh BUILD_DIR
set -eu

if [ $# -ne 1 ] || [ ! -f "$1/CMakeCache.txt" ]; then
	echo "usage: $0 BUILD_DIR" >&2
	exit 2
fi
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
consumer=$root/tests/consumer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LD_LIBRARY_PATH CMAKE_PREFIX_PATH PKG_CONFIG_PATH DESTDIR

die() {
	echo "$0: $*" >&2
	exit 1
}

files_of() {
	(cd "$1" && find . ! -type d | sort)
}

# ---- install, twice: --prefix and DESTDIR lay out the same ----

cmake --install "$build" --prefix "$work/first" >/dev/null
DESTDIR=$work/destdir cmake --install "$build" >/dev/null
prefix=$(sed -n 's/^CMAKE_INSTALL_PREFIX:PATH=//p' "$build/CMakeCache.txt")
files_of "$work/first" >"$work/files"
files_of "$work/destdir$prefix" | diff -u "$work/files" - || die "DESTDIR and --prefix differ"
for file in include/mwctl.h include/mwctl.hpp include/mwctl_compat.h include/mwctl_sim.h; do
	grep -qxF "./$file" "$work/files" || die "$file is not installed"
done

for page in man3/mwctl_revoke_batch.3 man3/mwctl_revoke_start.3 man7/mwctl.7; do
	grep -q "/man/$page\$" "$work/files" || die "$page is not installed"
done

for page in README.md docs/adopting.md examples-c/kv_server.c; do
	grep -q "/doc/mwctl/$page\$" "$work/files" || die "$page is not installed"
done

# The folder may be moved. Nothing installed knows where it was built or put first.
stage=$work/a\ new\ place
mv "$work/first" "$stage"
if grep -rlF -e "$work" -e "$build" -e "$root" -e "${CARGO_HOME:-$HOME/.cargo}" "$stage"; then
	die "these files hold a path of this machine"
fi
pc_dir=$(dirname "$(find "$stage" -name mwctl.pc)")
libdir=$(dirname "$pc_dir")
simdir=$libdir/mwctl-sim
for library in libmwctl.so libmwctl.a; do
	[ -f "$libdir/$library" ] || die "$library is not in $libdir"
done
for library in "$libdir/libmwctl.so" "$simdir/libibverbs.so.1"; do
	! readelf -SW "$library" | grep -q '\.debug_' || die "$library is not stripped"
done

export PKG_CONFIG_PATH="$pc_dir"

# pkg-config quotes the blank in the path: its words go through eval.
words() {
	pkg-config "$@" || die "pkg-config $* failed"
}
told=$(words --variable=simdir mwctl-sim)
eval "told=$told"
[ "$(cd "$told" && pwd -P)" = "$(cd "$simdir" && pwd -P)" ] || die "mwctl-sim.pc says simdir=$told"
words --print-requires-private mwctl | grep -qx libibverbs || die "mwctl.pc does not name libibverbs"
! words --static --libs mwctl | grep -q -e -lrdmacm || die "mwctl.pc wants rdmacm"

run() {
	printf '%-44s' "$1"
	LD_LIBRARY_PATH=$libdir:$simdir "$2" || die "$1 failed"
}

compile() {
	eval "${CC:-cc} -std=c11 -Wall -Wextra -Werror $*"
}

# ---- pkg-config ----

cflags=$(words --cflags mwctl mwctl-sim libibverbs)
libs=$(words --libs mwctl libibverbs)
compile "-o '$work/shared' '$consumer/consumer.c' $cflags $libs"
readelf -dW "$work/shared" | grep -q 'NEEDED.*\[libmwctl\.so\.1\]' || die "a program does not need libmwctl.so.1"
run "C, pkg-config" "$work/shared"

compile "-o '$work/strict' '$consumer/consumer.c' $cflags -Wl,--as-needed -Wl,-z,defs $libs"
run "C, --as-needed -z defs" "$work/strict"

eval "${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -o '$work/cpp' '$consumer/consumer.cpp' $cflags $libs"
run "C++, pkg-config" "$work/cpp"

# An example, from where it was installed, as examples-c/README.md says.
examples=$(dirname "$(find "$stage" -path '*examples-c/own_poll.c')")
compile "-o '$work/example' -D_GNU_SOURCE '-I$examples' '$examples/own_poll.c' '$examples'/common/*.c -pthread $cflags $libs"
LD_LIBRARY_PATH=$libdir:$simdir "$work/example" >"$work/log" || die "own_poll failed: $(cat "$work/log")"

# What a static link needs besides the archive, as mwctl.pc tells it; verbs stays shared.
private=$(sed -n 's/^Libs\.private: //p' "$pc_dir/mwctl.pc")
[ -n "$private" ] || die "mwctl.pc has no Libs.private"
archive="'$libdir/libmwctl.a'"
compile "-o '$work/static' '$consumer/consumer.c' $cflags $archive -libverbs $private"
! readelf -dW "$work/static" | grep -q 'NEEDED.*libmwctl' || die "the static program needs libmwctl.so"
run "C, static" "$work/static"

# ---- beside another Rust static library ----

"${RUSTC:-rustc}" --edition 2021 --crate-type staticlib -O -o "$work/libother.a" "$consumer/other.rs"
other="'$work/libother.a'"
compile "-DWITH_OTHER_RUST -o '$work/before' '$consumer/consumer.c' $cflags $archive $other -libverbs $private"
run "C, static, before another Rust library" "$work/before"
compile "-DWITH_OTHER_RUST -o '$work/after' '$consumer/consumer.c' $cflags $other $archive -libverbs $private"
run "C, static, after another Rust library" "$work/after"
# The control: cargo's own archive must clash, or this shows nothing.
if compile "-DWITH_OTHER_RUST -o '$work/control' '$consumer/consumer.c' $cflags \
	-Wl,--whole-archive $other '$build/cargo/release/libmwctl.a' -Wl,--no-whole-archive \
	-libverbs $private" 2>"$work/said"; then
	die "two whole Rust archives link without a clash: the test of libmwctl.a shows nothing"
fi
grep -q 'multiple definition' "$work/said" || die "the control failed otherwise: $(cat "$work/said")"
compile "-DWITH_OTHER_RUST -o '$work/whole' '$consumer/consumer.c' $cflags \
	-Wl,--whole-archive $other $archive -Wl,--no-whole-archive -libverbs $private"
run "C, static, both whole" "$work/whole"

# ---- find_package ----

cmake -S "$consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$stage" >"$work/log" 2>&1 &&
	cmake --build "$work/cmake" >>"$work/log" 2>&1 || {
	cat "$work/log" >&2
	die "the find_package project does not build"
}
for program in consumer_c consumer_cpp consumer_static; do
	run "find_package, ${program#consumer_}" "$work/cmake/$program"
done
# A version that was never made must not be found.
if cmake -S "$consumer" -B "$work/refused" -DCMAKE_PREFIX_PATH="$stage" \
	-DMWCTL_WANTED=2.0 >"$work/log" 2>&1; then
	die "find_package takes this version for 2.0"
fi
grep -q 'not accepted' "$work/log" || {
	cat "$work/log" >&2
	die "find_package of 2.0 failed otherwise"
}

echo "installed, moved, found and linked in every way"
