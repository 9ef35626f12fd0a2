#!/bin/sh
# Prints the environment in which rdma-sys's bindgen works on this machine, as shell exports.
#
#   env=$(scripts/libclang.sh) && eval "$env"
#   scripts/libclang.sh --list        every libclang that bindgen would find: its version, its path
#
# That bindgen works with libclang 14 and 15 and takes the newest it finds, so nothing is printed
# when that is one of them. Otherwise LIBCLANG_PATH names a fitting one: an installed 14 or 15, or
# one from PyPI, fetched once into the cache (.cache in the project, or $MWCTL_CACHE). A LIBCLANG_PATH
# that is set already stays.
#
# Exit status 3: there is none and none could be fetched. Then build with
# --no-default-features --features declared, which needs no libclang.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
cache=${MWCTL_CACHE:-$root/.cache}/libclang
wheel_version=14.0.6
wheel_hashes='--hash=sha256:206d2789e4450a37d054e63b70451a6fc1873466397443fa13de2b3d4adb2796
	--hash=sha256:e2add1703129b2abe066fb1890afa880870a89fd6ab4ec5d2a7a8dc8d271677e'

say() {
	echo "libclang.sh: $*" >&2
}

# The part of an ELF header that tells for what kind of machine a file is; nothing of other files.
machine_of() {
	od -An -tx1 -N 20 "$1" 2>/dev/null | tr -d ' \n' | sed -n 's/^7f454c46\(..\).*\(....\)$/\1\2/p'
}
here=$(machine_of "/proc/$$/exe")

# The major version, from the name of the file behind all symbolic links; nothing if it has none.
major_of() {
	name=$(readlink -f "$1")
	name=${name##*/}
	case $name in
	libclang-[0-9]*) version=${name#libclang-} ;;
	libclang.so.[0-9]*) version=${name#libclang.so.} ;;
	*) version= ;;
	esac
	echo "${version%%[!0-9]*}"
}

# Where bindgen looks, as clang-sys does it.
folders() {
	if prefix=$("${LLVM_CONFIG_PATH:-llvm-config}" --prefix 2>/dev/null); then
		printf '%s\n' "$prefix/bin" "$prefix/lib" "$prefix/lib64"
	fi
	printf '%s\n' "${LD_LIBRARY_PATH:-}" "${LIBRARY_PATH:-}" | tr ':' '\n'
	printf '%s\n' /usr/local/llvm*/lib* /usr/local/lib*/*/* /usr/local/lib*/* /usr/local/lib* \
		/usr/lib*/*/* /usr/lib*/* /usr/lib*
}

# "MAJOR FILE" of every library there, the file being the one behind all symbolic links.
list() {
	folders | while IFS= read -r folder; do
		[ -n "$folder" ] || continue
		for file in "$folder"/libclang.so "$folder"/libclang-*.so \
			"$folder"/libclang.so.* "$folder"/libclang-*.so.*; do
			case $file in *-cpp.*) continue ;; esac
			[ -f "$file" ] || continue
			[ "$(machine_of "$file")" = "$here" ] || continue
			major=$(major_of "$file")
			echo "${major:-0} $(readlink -f "$file")"
		done
	done | sort -u | sort -k 1,1nr -s
}

# Whether clang's own headers (stddef.h and its like) lie where that library looks for them.
has_headers() {
	for header in "$(dirname "$2")"/clang/"$1"*/include/stddef.h \
		/usr/lib/llvm-"$1"/lib/clang/*/include/stddef.h \
		/usr/lib*/clang/"$1"*/include/stddef.h; do
		if [ -f "$header" ]; then
			return 0
		fi
	done
	return 1
}

quoted() {
	printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"
}

export_headers() {
	include=$("${CC:-cc}" -print-file-name=include)
	args="${BINDGEN_EXTRA_CLANG_ARGS:+$BINDGEN_EXTRA_CLANG_ARGS }-I$include"
	echo "export BINDGEN_EXTRA_CLANG_ARGS=$(quoted "$args")"
}

export_library() {
	echo "export LIBCLANG_PATH=$(quoted "$1")"
}

none() {
	say "no libclang 14 or 15 on this machine, and none could be fetched: $1"
	say "build with --no-default-features --features declared, which needs none"
	exit 3
}

unpack() {
	if command -v unzip >/dev/null; then
		unzip -q -o "$1" -d "$2"
	else
		python3 -m zipfile -e "$1" "$2"
	fi
}

# Puts PyPI's library at $cache/libclang.so. The hashes are those of its Linux wheels.
fetch() {
	if python3 -m pip --version >/dev/null 2>&1; then
		pip='python3 -m pip'
	elif command -v pip3 >/dev/null; then
		pip=pip3
	elif command -v pip >/dev/null; then
		pip=pip
	else
		none "there is no pip"
	fi
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	echo "libclang==$wheel_version $wheel_hashes" | tr -d '\n' >"$work/requirements.txt"
	say "fetching libclang $wheel_version from PyPI"
	# Unquoted: it may be three words.
	# shellcheck disable=SC2086
	if ! $pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--require-hashes --dest "$work" -r "$work/requirements.txt" >&2; then
		none "the download failed"
	fi
	unpack "$work"/libclang-*.whl "$work/wheel" >&2 || none "the wheel could not be unpacked"
	library=$(find "$work/wheel" -name libclang.so | head -n 1)
	[ -n "$library" ] || none "the wheel holds no libclang.so"
	mv -f "$library" "$cache/libclang.so"
}

if [ "${1:-}" = --list ]; then
	list
	exit 0
elif [ $# -ne 0 ]; then
	echo "usage: $0 [--list]" >&2
	exit 2
fi

if [ -n "${LIBCLANG_PATH:-}" ]; then
	say "LIBCLANG_PATH is set and stays: $LIBCLANG_PATH"
	exit 0
fi

libraries=$(list)
newest=$(echo "$libraries" | sed -n 1p)
fitting=$(echo "$libraries" | sed -n '/^1[45] /p' | sed -n '$p')

case $newest in
1[45]\ *)
	# bindgen finds it by itself.
	has_headers "${newest%% *}" "${newest#* }" || export_headers
	;;
*)
	if [ -n "$fitting" ]; then
		export_library "${fitting#* }"
		has_headers "${fitting%% *}" "${fitting#* }" || export_headers
	else
		[ -f "$cache/libclang.so" ] || fetch
		export_library "$cache/libclang.so"
		export_headers
	fi
	;;
esac
