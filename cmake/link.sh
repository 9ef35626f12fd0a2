#!/bin/sh
# Turns the static library that cargo made into the two that are installed.
#
#   link.sh CARGO_ARCHIVE MAP VERSION OUTDIR
#
# OUTDIR/libmwctl.a holds one relocatable object in which all but the map's functions is local: so
# it links beside another Rust static library, whose copy of Rust's own symbols would clash.
# OUTDIR/libmwctl.so.VERSION and its two links are made from the same object.
#
# CC, AR, OBJCOPY and LDFLAGS are taken from the environment.
set -eu

if [ $# -ne 4 ]; then
	echo "usage: $0 CARGO_ARCHIVE MAP VERSION OUTDIR" >&2
	exit 2
fi
archive=$1
map=$2
version=$3
outdir=$4
cc=${CC:-cc}
major=${version%%.*}

mkdir -p "$outdir"
work=$(mktemp -d "$outdir/link.XXXXXX")
trap 'rm -rf "$work"' EXIT

sed -n 's/^[[:space:]]*\(mwctl_[a-z0-9_]*\);.*/\1/p' "$map" >"$work/functions"
if [ ! -s "$work/functions" ]; then
	echo "$0: $map names no functions" >&2
	exit 1
fi
sed 's/^/-Wl,-u,/' "$work/functions" >"$work/roots"

# Groups have to go: a COMDAT section of the other library's must not replace ours.
"$cc" -r -nostdlib -o "$work/whole.o" \
	-Wl,--force-group-allocation -Wl,--gc-sections "@$work/roots" "$archive"
# The bitcode that Rust's standard library brings along, joined like this, is none that ar's plugin for
# LLVM could read. It may be there where link-time optimisation was off.
"${OBJCOPY:-objcopy}" --keep-global-symbols="$work/functions" --remove-section=.llvmbc \
	--remove-section=.llvmcmd "$work/whole.o" "$work/mwctl.o"
(cd "$work" && "${AR:-ar}" rcsD libmwctl.a mwctl.o)

# LDFLAGS unquoted: it is several words.
# shellcheck disable=SC2086
"$cc" -shared -o "$work/libmwctl.so" ${LDFLAGS:-} \
	-Wl,-soname,"libmwctl.so.$major" -Wl,--version-script="$map" -Wl,--no-undefined-version \
	-Wl,-z,defs -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now -Wl,--gc-sections \
	"$work/mwctl.o" -Wl,--as-needed -libverbs -lgcc_s -lm

# A running program may have the old files open: replace them, don't write into them.
mv -f "$work/libmwctl.so" "$outdir/libmwctl.so.$version"
ln -sfn "libmwctl.so.$version" "$outdir/libmwctl.so.$major"
ln -sfn "libmwctl.so.$major" "$outdir/libmwctl.so"
mv -f "$work/libmwctl.a" "$outdir/libmwctl.a"
