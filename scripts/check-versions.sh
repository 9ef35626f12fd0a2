#!/bin/sh
# The version in Cargo.toml, in the header, in the libraries, in the soname and in what is installed
# for pkg-config and CMake is one and the same.
#
#   check-versions.sh BUILD_DIR
set -eu

if [ $# -ne 1 ] || [ ! -f "$1/CMakeCache.txt" ]; then
	echo "usage: $0 BUILD_DIR" >&2
	exit 2
fi
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset DESTDIR PKG_CONFIG_PATH LD_LIBRARY_PATH

cargo metadata --locked --offline --no-deps --format-version 1 --manifest-path "$root/Cargo.toml" >"$work/metadata"
# Of all crates of the workspace: there must be one version.
version=$(grep -o '"name":"mwctl[a-z-]*","version":"[^"]*"' "$work/metadata" |
	sed 's/.*"version":"\(.*\)"/\1/' | sort -u)
if ! echo "$version" | grep -qxE '[0-9]+\.[0-9]+\.[0-9]+'; then
	echo "$0: the workspace's crates have the versions '$version'" >&2
	exit 1
fi
major=${version%%.*}
failed=0

same() {
	if [ "$2" != "$3" ]; then
		echo "$0: $1: expected '$2', got '$3'" >&2
		failed=1
	fi
}

cmake --install "$build" --prefix "$work/stage" >/dev/null
pc_dir=$(dirname "$(find "$work/stage" -name mwctl.pc)")
libdir=$(dirname "$pc_dir")
export PKG_CONFIG_PATH="$pc_dir"

"${CC:-cc}" -std=c11 -Wall -Wextra -Werror -o "$work/versions" "$root/tests/consumer/versions.c" \
	-I"$work/stage/include" -L"$libdir" -lmwctl
LD_LIBRARY_PATH=$libdir:$libdir/mwctl-sim "$work/versions" >"$work/printed"
same "header, library, device" "header $version library $version sim $version" "$(paste -sd' ' "$work/printed")"

same "the file behind libmwctl.so" "libmwctl.so.$version" "$(basename "$(readlink -f "$libdir/libmwctl.so")")"
soname=$(readelf -dW "$libdir/libmwctl.so" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')
same "soname" "libmwctl.so.$major" "$soname"
# Nodes are of this major version; a newer one than this release would be a promise too early.
newest=$(readelf -W --dyn-syms "$libdir/libmwctl.so" | sed -n 's/.*@@\(MWCTL_[0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
minor=${version#*.}
minor=${minor%%.*}
latest=$(printf '%s\n' "${newest#MWCTL_}" "$major.$minor" | sort -V | tail -n 1)
same "newest symbol version's major" "MWCTL_$major" "${newest%%.*}"
same "newest symbol version at most" "$major.$minor" "$latest"

for package in mwctl mwctl-sim; do
	same "pkg-config $package" "$version" "$(pkg-config --modversion "$package")"
done

mkdir "$work/find"
cat >"$work/find/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.18)
project(find LANGUAGES C)
find_package(mwctl CONFIG REQUIRED)
message(STATUS "mwctl_VERSION=${mwctl_VERSION}")
END
cmake -S "$work/find" -B "$work/find/build" -DCMAKE_PREFIX_PATH="$work/stage" >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	exit 1
}
same "CMake package" "-- mwctl_VERSION=$version" "$(grep mwctl_VERSION= "$work/log")"

[ $failed -eq 0 ] || exit 1
echo "$version in Cargo.toml, header, library, device, soname ($soname), symbols ($newest), pkg-config, CMake"
