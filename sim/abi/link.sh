#!/bin/sh
# Links the in-process device's static library into OUTDIR/libibverbs.so.1, a libibverbs with the
# real one's symbols and versions.
#
#   link.sh LIBMWCTL_SIM.a OUTDIR
set -eu

if [ $# -ne 2 ]; then
	echo "usage: $0 LIBMWCTL_SIM.a OUTDIR" >&2
	exit 2
fi
archive=$1
outdir=$2
abi=$(cd "$(dirname "$0")" && pwd)
cc=${CC:-cc}

mkdir -p "$outdir"
work=$(mktemp -d "$outdir/link.XXXXXX")
trap 'rm -rf "$work"' EXIT

"$cc" -O2 -fPIC -Wall -Wextra -Werror -c "$abi/versions.c" -o "$work/versions.o"

# The whole archive goes in, for nothing refers to the public symbols; then what no public symbol
# needs goes out. A real libibverbs is never linked: -z defs would show what was missing.
"$cc" -shared -o "$work/libibverbs.so.1" \
	-Wl,-soname,libibverbs.so.1 -Wl,-z,defs -Wl,-z,nodelete -Wl,-z,relro -Wl,-z,now \
	-Wl,--version-script="$abi/libibverbs.map" -Wl,--gc-sections -Wl,--as-needed \
	"$work/versions.o" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
	-lgcc_s -lm

needed=$(readelf -dW "$work/libibverbs.so.1" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
for lib in $needed; do
	case $lib in
	libc.so.* | libgcc_s.so.* | ld-linux*) ;;
	*)
		echo "$0: the library must not need $lib" >&2
		exit 1
		;;
	esac
done

# A running program may have the old file open: replace it, don't write into it.
mv -f "$work/libibverbs.so.1" "$outdir/libibverbs.so.1"
