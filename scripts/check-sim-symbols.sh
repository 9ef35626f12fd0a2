#!/bin/sh
# Compares the symbols of the in-process device's libibverbs.so.1, with their versions and kinds,
# with those of the machine's real library, and its own additions with mwctl_sim.h.
#
#   check-sim-symbols.sh DIR/libibverbs.so.1 [REAL_LIBRARY]
set -eu
LC_ALL=C
export LC_ALL

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: $0 DIR/libibverbs.so.1 [REAL_LIBRARY]" >&2
	exit 2
fi
sim=$1
here=$(cd "$(dirname "$0")" && pwd)
header=$here/../include/mwctl_sim.h

# The library that the loader takes by itself, whatever LD_LIBRARY_PATH says.
find_real() {
	dir=$(pkg-config --variable=libdir libibverbs 2>/dev/null || true)
	for candidate in "$dir/libibverbs.so.1" \
		"$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n 's/.*libibverbs\.so\.1 .*=> //p' | head -n 1)"; do
		if [ -f "$candidate" ]; then
			echo "$candidate"
			return
		fi
	done
	echo "$0: this machine has no libibverbs.so.1 to compare with" >&2
	exit 1
}
real=${2:-$(find_real)}

if [ "$(readlink -f "$sim")" = "$(readlink -f "$real")" ]; then
	echo "$0: $sim is the real library" >&2
	exit 1
fi

# name@version or name@@version (the default one), and FUNC or OBJECT.
symbols() {
	readelf -W --dyn-syms "$1" | awk '$7 != "UND" && $8 ~ /@/ { print $8, $4 }' | sort
}

# The version nodes and what each follows on.
nodes() {
	readelf -W -V "$1" | awk '
		/\.gnu\.version_d/ { inside = 1; next }
		/\.gnu\.version_r/ { inside = 0 }
		inside && / Name: / { print "node", $NF }
		inside && / Parent / { print "parent", $NF }'
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
symbols "$real" >"$work/real"
symbols "$sim" >"$work/all"
grep -v '@@MWCTL_SIM_1\.0 ' "$work/all" >"$work/sim" || true
grep '@@MWCTL_SIM_1\.0 ' "$work/all" | sed 's/@.*//' >"$work/own" || true
nodes "$real" >"$work/real-nodes"
nodes "$sim" | grep -v ' MWCTL_SIM_1\.0$' >"$work/sim-nodes" || true
# What the header declares with external linkage.
"${CC:-cc}" -E -P -x c "$header" | grep -v 'static inline' |
	sed -n 's/.*[ *]\(mwctl_sim_[a-z_0-9]*\)(.*/\1/p' | sort -u >"$work/declared"

count=$(wc -l <"$work/real")
if [ "$count" -lt 150 ]; then
	echo "$0: only $count symbols read from $real" >&2
	exit 1
fi

failed=0
compare() {
	if ! diff -U 0 --label "$3" --label "$4" "$work/$1" "$work/$2"; then
		failed=1
	fi
}
compare real sim "$real" "$sim"
compare real-nodes sim-nodes "nodes of $real" "nodes of $sim"
compare declared own "mwctl_sim.h" "MWCTL_SIM_1.0 in $sim"

soname=$(readelf -dW "$sim" | sed -n 's/.*(SONAME).*\[\(.*\)\].*/\1/p')
if [ "$soname" != libibverbs.so.1 ]; then
	echo "$0: soname is '$soname', not libibverbs.so.1" >&2
	failed=1
fi

if [ $failed -ne 0 ]; then
	echo "$0: $sim differs from $real" >&2
	exit 1
fi
echo "$count symbols in $(grep -c '^node' "$work/real-nodes") nodes equal $real; $(wc -l <"$work/own") of mwctl_sim.h besides"
