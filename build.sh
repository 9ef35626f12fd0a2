#!/bin/sh
# Builds libmwctl and the device in the process with no more than cargo, a C compiler and
# libibverbs with its header, and lays out what is installed. CMake builds the same, the package
# for CMake besides; see README.md.
#
#   build.sh [PREFIX]      PREFIX is an absolute path; out, beside this file, if none is named
#
# PREFIX may be moved or copied afterwards: cp -a out/. /usr/local/
# CARGO, RUSTC, CC, AR, OBJCOPY, STRIP and LDFLAGS are taken from the environment.
set -eu

root=$(cd "$(dirname "$0")" && pwd)
prefix=${1:-$root/out}
case $prefix in
/*) ;;
*)
	echo "usage: $0 [PREFIX], an absolute path" >&2
	exit 2
	;;
esac
cd "$root"
cargo=${CARGO:-cargo}
rustc=${RUSTC:-rustc}
strip=${STRIP:-strip}
target=$root/target
lib=$prefix/lib
version=$(sed -n 's/^version = "\([0-9.]*\)"$/\1/p' Cargo.toml | sed 1q)

say() {
	echo "build.sh: $*"
}

# archive PACKAGE: its static library, each built by itself for the sake of link-time optimisation.
archive() {
	say "cargo: $1 (a minute or more)"
	cmake/cargo.sh /dev/null "$cargo" rustc --quiet --locked --release --lib --package "$1" \
		--no-default-features --features declared --crate-type staticlib --target-dir "$target"
}

# pkg_config NAME: relative to the file's own place, so that PREFIX can be moved.
pkg_config() {
	sed -e "s|@pc_prefix@|\${pcfiledir}/../..|" -e "s|@pc_libdir@|\${prefix}/lib|" \
		-e "s|@pc_includedir@|\${prefix}/include|" -e "s|@PROJECT_VERSION@|$version|" \
		-e "s|@PROJECT_DESCRIPTION@|$description|" -e "s|@mwctl_native_libs@|$native_libs|" \
		"cmake/$1.pc.in" >"$lib/pkgconfig/$1.pc"
}

mkdir -p "$target" "$lib/pkgconfig" "$lib/mwctl-sim" "$prefix/include" "$prefix/share/doc/mwctl" \
	"$prefix/share/man/man3" "$prefix/share/man/man7"

archive mwctl
cmake/link.sh "$target/release/libmwctl.a" src/capi/libmwctl.map "$version" "$lib"
archive mwctl-sim
sim/abi/link.sh "$target/release/libmwctl_sim.a" "$lib/mwctl-sim"
"$strip" --strip-unneeded "$lib/libmwctl.so.$version" "$lib/mwctl-sim/libibverbs.so.1"
# --strip-unneeded would take a relocatable object's local symbols, and relocations need them.
"$strip" --strip-debug "$lib/libmwctl.a"

: >"$target/native-libs.rs"
native_libs=$("$rustc" --crate-type staticlib --print native-static-libs -o "$target/native-libs.a" \
	"$target/native-libs.rs" 2>&1 | sed -n 's/.*native-static-libs: //p')
[ -n "$native_libs" ] || {
	say "rustc does not tell its native libraries" >&2
	exit 1
}
description=$(sed -n 's/^  DESCRIPTION "\(.*\)")$/\1/p' CMakeLists.txt)
pkg_config mwctl
pkg_config mwctl-sim
for header in include/*.h include/*.hpp; do
	[ ! -f "$header" ] || cp "$header" "$prefix/include/"
done
cp man/man3/*.3 "$prefix/share/man/man3/"
cp man/man7/*.7 "$prefix/share/man/man7/"
cp -R LICENSE* README.md docs examples-c "$prefix/share/doc/mwctl/"
say "libmwctl $version is in $prefix"
