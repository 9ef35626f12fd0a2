#!/bin/sh
# Runs all conformance programs of a build folder in a row, on the device that is there.
#
#   tests/conformance/run.sh BUILD_DIR [NAME…]
#
# Each prints a line per rule; the last line counts programs. Exit status 1 if one failed, or
# if none could run.
set -u

dir=${1:?usage: run.sh BUILD_DIR [NAME…]}
shift
[ -d "$dir/tests/conformance" ] && dir=$dir/tests/conformance
if [ $# -eq 0 ]; then
	for program in "$dir"/conformance_*; do
		name=${program##*/conformance_}
		case $name in *.*) ;; *) [ -f "$program" ] && [ -x "$program" ] && set -- "$@" "$name" ;; esac
	done
fi
[ $# -gt 0 ] || { echo "no conformance programs in $dir" >&2; exit 1; }

passed=0 failed=0 skipped=0
for name in "$@"; do
	echo "== $name"
	"$dir/conformance_$name"
	status=$?
	case $status in
	0) passed=$((passed + 1)) ;;
	77) skipped=$((skipped + 1)) ;;
	*)
		failed=$((failed + 1))
		echo "FAILED $name (exit status $status)"
		;;
	esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
