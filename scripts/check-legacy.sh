#!/bin/sh
# What it takes to change a program over: the examples in examples-c/legacy before and after.
#
#   check-legacy.sh --diff ping|type1   the difference, as docs/adopting.md shows it
#   check-legacy.sh --size              at most 10 changed lines for ping, at most 1 for type1
#   check-legacy.sh BUILD_DIR           the same, then runs all four on the device that is there
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
legacy=$root/examples-c/legacy

usage() {
	echo "usage: $0 --diff ping|type1 | --size | BUILD_DIR" >&2
	exit 2
}

fail() {
	echo "$0: $*" >&2
	exit 1
}

difference() {
	diff -U 0 --label "$1_before.c" --label "$1_after.c" "$legacy/$1_before.c" "$legacy/$1_after.c" || [ $? -eq 1 ]
}

# Lines that were added or changed: of each place, as many as there are after or were before.
changed_lines() {
	difference "$1" | awk '
		function close_place() { changed += added > removed ? added : removed; added = removed = 0 }
		NR <= 2 { next }
		/^@@/ { close_place() }
		/^\+/ { added++ }
		/^-/ { removed++ }
		END { close_place(); print changed + 0 }'
}

check_size() {
	for one in "ping 10" "type1 1"; do
		name=${one% *} most=${one#* }
		changed=$(changed_lines "$name")
		[ "$changed" -ge 1 ] || fail "$name: the two are the same"
		[ "$changed" -le "$most" ] || fail "$name: $changed changed lines, over $most"
		echo "$name: $changed changed lines"
	done
}

# says PROGRAM TEXT…: runs it; its output must have each text.
says() {
	program=$1
	shift
	output=$("$programs/$program") || {
		status=$?
		printf '%s\n' "$output"
		[ $status -ne 77 ] || exit 77
		fail "$program ended with $status"
	}
	for text in "$@"; do
		case $output in
		*"$text"*) ;;
		*) fail "$program does not say '$text': $output" ;;
		esac
	done
	echo "$program: as it must be"
}

case ${1:-} in
--diff)
	case ${2:-} in
	ping | type1) difference "$2" ;;
	*) usage ;;
	esac
	;;
--size) check_size ;;
'' | -*) usage ;;
*)
	programs=$1/examples-c/legacy
	[ -d "$programs" ] || usage
	check_size
	says ping_before "1000 pings" "after the goodbye: success; the memory has changed"
	says ping_after "1000 pings" "after the goodbye: remote access error; the memory is as it was"
	says type1_before "1000 rounds" "by the other client: success; the memory has changed" \
		"after the unbind: remote access error"
	says type1_after "1000 rounds" "by the other client: remote access error; the memory is as it was" \
		"after the unbind: remote access error"
	;;
esac
