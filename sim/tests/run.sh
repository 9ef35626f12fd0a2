#!/bin/sh
# Builds the device's own C tests against a folder that holds its libibverbs.so.1, and runs them.
#
#   sim/tests/run.sh LIBDIR [NAME…]
#
# CC and CFLAGS are used as given. Exit status 1 if one failed to build or to pass.
set -u

libdir=${1:?usage: run.sh LIBDIR [NAME…]}
shift
here=$(cd "$(dirname "$0")" && pwd)
top=$here/../..
libdir=$(cd "$libdir" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

[ -e "$libdir/libibverbs.so.1" ] || { echo "no libibverbs.so.1 in $libdir" >&2; exit 1; }
if [ $# -eq 0 ]; then
	for source in "$here"/*.c; do
		set -- "$@" "$(basename "$source" .c)"
	done
fi

failed=0
for name in "$@"; do
	echo "== $name"
	# shellcheck disable=SC2086 # flags are words
	"${CC:-cc}" -std=gnu11 -g -Wall -Wextra -Werror ${CFLAGS:-} -I"$top/include" -I"$top/tests/common" \
		"$here/$name.c" "$top/tests/common/rc_pair.c" -o "$work/$name" \
		-L"$libdir" -l:libibverbs.so.1 -lpthread &&
		LD_LIBRARY_PATH=$libdir timeout "${MWCTL_TEST_TIME_LIMIT:-120}" "$work/$name"
	status=$?
	if [ $status -ne 0 ]; then
		failed=$((failed + 1))
		echo "FAILED $name (exit status $status)"
	fi
done
[ "$failed" -eq 0 ] && echo "all passed"
