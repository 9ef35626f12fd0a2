#!/bin/sh
# Every exported function has its man page, under its own name, and no page has a fault that man
# knows of. That the pages are what the header says is scripts/check-header.sh's matter.
#
#   check-man.sh [MAN_FOLDER]      man in the project, if none is named
set -eu
LC_ALL=C.UTF-8
export LC_ALL
unset MANOPT MANPAGER PAGER

root=$(cd "$(dirname "$0")/.." && pwd)
man=$(cd "${1:-$root/man}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() {
	echo "$0: $*" >&2
	exit 1
}

# faults_of FILE: what man has to say about it.
faults_of() {
	{ man --warnings -E UTF-8 -Tutf8 -Z -l "$1" >/dev/null || echo "man failed"; } 2>&1
}

# The control: a fault is told.
printf '.TH x 3\n.SH NAME\nx \\- y\n.NOSUCHMACRO\n\\fB\\[nosuchglyph]\n' >"$work/x.3"
[ "$(faults_of "$work/x.3" | grep -c NOSUCHMACRO)" -eq 1 ] || die "man tells no faults"

count=0
for page in "$man"/man3/*.3 "$man"/man7/*.7; do
	case $(head -n 1 "$page") in
	.so\ *)
		[ -f "$man/$(sed -n '1s/^\.so //p' "$page")" ] || die "$page leads nowhere"
		continue
		;;
	esac
	said=$(faults_of "$page")
	[ -z "$said" ] || die "$page: $said"
	lexgrog "$page" >/dev/null || die "$page: apropos and whatis don't understand its NAME"
	count=$((count + 1))
done

# What stands behind the macros of mwctl_compat.h has the page of the header.
sed -n 's/^[[:space:]]*\(mwctl_[a-z0-9_]*\);.*/\1/p' "$root/src/capi/libmwctl.map" |
	grep -v '^mwctl_compat_' >"$work/functions"
while read -r name; do
	man -M "$man" -w 3 "$name" >/dev/null 2>&1 || die "$name has no man page"
	# Not only a page: one that names it and shows how it is called.
	man -M "$man" -E UTF-8 3 "$name" >"$work/text" 2>/dev/null
	sed -n '/^NAME/,/^SYNOPSIS/p' "$work/text" | grep -qw "$name" || die "$name's page does not name it"
	sed -n '/^SYNOPSIS/,/^DESCRIPTION/p' "$work/text" | grep -q "[ *]$name(" || die "$name's page does not show it"
done <"$work/functions"
man -M "$man" -w 7 mwctl >/dev/null || die "mwctl(7) is missing"

# The lists at the head of mwctl.h stand in mwctl(7) whole, each under its heading.
# in_header HEADING: the names of the list behind it, as the header has them.
in_header() {
	HEADING=$1 awk '
		index($0, " * " ENVIRON["HEADING"]) == 1 { on = 1 }
		on && /^ \*   [^ ]/ { sub(/^ \*   /, ""); sub(/  +.*/, ""); print; some = 1 }
		on && some && /^ \*$/ { exit }' "$root/include/mwctl.h"
}
# in_page HEADING: the same, as the page has them.
in_page() {
	HEADING=$1 awk '
		/^\.S[HS] / { on = substr($0, 5) == ENVIRON["HEADING"] }
		on && tag { sub(/^\.BR? /, ""); sub(/ \(3\)$/, ""); gsub(/\\\[u2026\]/, "…"); print }
		{ tag = $0 == ".TP" }' "$man/man7/mwctl.7"
}
while IFS='|' read -r header page; do
	in_header "$header" >"$work/said"
	in_page "$page" >"$work/shown"
	[ "$(wc -l <"$work/said")" -ge 4 ] || die "mwctl.h has no list \"$header\""
	diff "$work/said" "$work/shown" || die "mwctl(7), $page: not the list of mwctl.h"
done <<'END'
The calls that most programs need|The calls that most programs need
In a program that hands out mr->rkey|In a program that hands out mr\->rkey
How a program may post and poll|How a program may post and poll
Rules for all calls|RULES FOR ALL CALLS
END
man -M "$man" -E UTF-8 7 mwctl_compat >"$work/compat" 2>/dev/null || die "mwctl_compat(7) is missing"
for name in on_message error context; do
	grep -q "mwctl_compat_$name(" "$work/compat" || die "mwctl_compat(7) does not show mwctl_compat_$name"
done
echo "$count pages without a warning; $(wc -l <"$work/functions") functions have theirs"
