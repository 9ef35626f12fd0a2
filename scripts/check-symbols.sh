#!/bin/sh
# Checks what the built libraries show to the linker.
#
#   check-symbols.sh --map              src/capi/libmwctl.map names exactly the header's functions
#   check-symbols.sh --extend-map       adds to the map's newest node what only the header has
#   check-symbols.sh --cdylib LIBRARY   what `cargo build` makes exports exactly these
#   check-symbols.sh BUILD_DIR          the map; libmwctl.so's symbols, version, soname, what it needs
#                                       and its size; libmwctl.a's symbols and what it needs
set -eu
LC_ALL=C
export LC_ALL

usage() {
	echo "usage: $0 --map | --extend-map | --cdylib LIBRARY | BUILD_DIR" >&2
	exit 2
}
root=$(cd "$(dirname "$0")/.." && pwd)
map=$root/src/capi/libmwctl.map
most_bytes=1048576
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# wrong WHAT: counts it; all faults are shown in one run.
wrong() {
	echo "$0: $*" >&2
	failed=1
}

# same EXPECTED GOT WHAT: two sorted lists are equal.
same() {
	if ! diff -U 0 --label "header: $3" --label "found: $3" "$work/$1" "$work/$2" >&2; then
		wrong "$3 differ from the header's functions"
	fi
}

finish() {
	[ $failed -eq 0 ] || exit 1
	echo "$*"
	exit 0
}

# The functions that the two headers declare with external linkage.
printf '#include <mwctl.h>\n#include <mwctl_compat.h>\n' | "${CC:-cc}" -I"$root/include" -E -P -x c - | tr '\n' ' ' | tr ';{}' '\n' |
	grep -v 'static inline' | sed -n 's/.*[ *]\(mwctl_[a-z0-9_]*\) *(.*/\1/p' | sort -u >"$work/header"
count=$(wc -l <"$work/header")
if [ "$count" -lt 10 ]; then
	echo "$0: only $count functions were read from the headers" >&2
	exit 1
fi

check_map() {
	sed -n 's/^[[:space:]]*\(mwctl_[a-z0-9_]*\);.*/\1/p' "$map" | sort >"$work/map"
	same header map "src/capi/libmwctl.map's"
}

check_map_versions() {
	awk '/^MWCTL_/ { node = $1 } match($0, /mwctl_[a-z0-9_]+;/) {
		print substr($0, RSTART, RLENGTH - 1) "@@" node }' "$map" | sort >"$work/versioned"
	readelf -W --dyn-syms "$1" | awk '$7 != "UND" && $4 == "FUNC" && $7 != "ABS" { print $8 }' |
		sort >"$work/shared"
	same versioned shared "$1's symbols and versions"
	# Anything that is exported besides functions, but for the version nodes themselves.
	others=$(readelf -W --dyn-syms "$1" |
		awk 'NR > 3 && $7 != "UND" && $7 != "ABS" && $4 != "FUNC" && $8 != "" { print $8 }')
	[ -z "$others" ] || wrong "$1 exports besides: $others"
}

check_shared() {
	version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
	library=$1/libmwctl.so.$version
	check_map_versions "$library"

	readelf -dW "$library" >"$work/dynamic"
	soname=$(sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p' "$work/dynamic")
	[ "$soname" = "libmwctl.so.${version%%.*}" ] || wrong "the soname is '$soname'"
	sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p' "$work/dynamic" >"$work/needed"
	grep -q '^libibverbs\.so\.1$' "$work/needed" || wrong "$library does not need libibverbs.so.1"
	while read -r lib; do
		case $lib in
		libibverbs.so.1 | libgcc_s.so.* | libc.so.* | ld-linux*) ;;
		*) wrong "$library must not need $lib" ;;
		esac
	done <"$work/needed"
	grep -q 'FLAGS_1.*NODELETE' "$work/dynamic" || wrong "$library is not marked NODELETE"
	! grep -q -e RPATH -e RUNPATH "$work/dynamic" || wrong "$library has a run path of its own"
	for link in "libmwctl.so.${version%%.*}" libmwctl.so; do
		[ "$(readlink -f "$1/$link")" = "$(readlink -f "$library")" ] ||
			wrong "$link is no link to $library"
	done

	"${STRIP:-strip}" --strip-unneeded -o "$work/stripped" "$library"
	size=$(wc -c <"$work/stripped")
	[ "$size" -le $most_bytes ] || wrong "$library is $size bytes when stripped, over $most_bytes"
}

check_static() {
	library=$1/libmwctl.a
	[ "$(ar t "$library")" = mwctl.o ] || wrong "$library is not one object: $(ar t "$library")"
	nm --extern-only --defined-only --format=posix "$library" |
		awk 'NF > 1 { print $1 }' | sort >"$work/static"
	same header static "$library's global symbols"
	# What is missing must come from verbs or the system, not from Rust or rdma_cm.
	foreign=$(nm --undefined-only --format=posix "$library" | awk 'NF > 1 { print $1 }' |
		grep -E '^(_R|_ZN|rust_|__rust|rdma_|mwctl_)' || true)
	[ -z "$foreign" ] || wrong "$library wants: $foreign"
}

extend_map() {
	sed -n 's/^[[:space:]]*\(mwctl_[a-z0-9_]*\);.*/\1/p' "$map" | sort >"$work/map"
	comm -23 "$work/header" "$work/map" >"$work/new"
	newest=$(grep -n '^[[:space:]]*global:' "$map" | tail -n 1 | cut -d: -f1)
	sed 's/.*/\t\t&;/' "$work/new" >"$work/node"
	tail -n "+$((newest + 1))" "$map" | awk -v node="$work/node" \
		'!/^[[:space:]]*mwctl_/ { past = 1 } past { print; next } { print >>node }' >"$work/rest"
	{
		head -n "$newest" "$map"
		sort "$work/node"
		cat "$work/rest"
	} >"$work/extended"
	cat "$work/extended" >"$map"
}

case ${1:-} in
--map)
	[ $# -eq 1 ] || usage
	check_map
	if [ $failed -ne 0 ]; then
		echo "$0: --extend-map adds new functions, unless the newest node's release is out already" >&2
	fi
	finish "the map names the header's $count functions"
	;;
--extend-map)
	[ $# -eq 1 ] || usage
	extend_map
	check_map
	finish "the map names the header's $count functions"
	;;
--cdylib)
	[ $# -eq 2 ] || usage
	readelf -W --dyn-syms "$2" | awk 'NR > 3 && $7 != "UND" && $8 != "" { sub(/@.*/, "", $8); print $8 }' |
		sort >"$work/cdylib"
	same header cdylib "$2's symbols"
	finish "$2 exports the header's $count functions"
	;;
'' | -*) usage ;;
*)
	[ $# -eq 1 ] && [ -d "$1/lib" ] || usage
	check_map
	check_shared "$1/lib"
	check_static "$1/lib"
	finish "$count functions in libmwctl.so, versioned, and in libmwctl.a; $size bytes stripped; needs" \
		"$(paste -sd' ' "$work/needed")"
	;;
esac
