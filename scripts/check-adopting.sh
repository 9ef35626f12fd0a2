#!/usr/bin/env bash
# Whether the differences that docs/adopting.md shows are those of the files.
#
#   check-adopting.sh           compares
#   check-adopting.sh --write   puts the files' own into the document
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
document=docs/adopting.md
[[ $# -eq 0 || $* == --write ]] || { echo "usage: $0 [--write]" >&2; exit 2; }

[[ -x scripts/check-legacy.sh ]] || { echo "no scripts/check-legacy.sh here"; exit 77; }

# The document with each block behind a marker `<!-- scripts/check-legacy.sh --diff NAME -->` made anew.
renewed() {
	local line
	while IFS= read -r line; do
		printf '%s\n' "$line"
		if [[ $line =~ ^'<!-- scripts/check-legacy.sh --diff '([a-z0-9]+)' -->'$ ]]; then
			echo '```diff'
			scripts/check-legacy.sh --diff "${BASH_REMATCH[1]}"
			echo '```'
			while IFS= read -r line && [[ $line != '```' ]]; do :; done
		fi
	done <"$document"
}

new=$(mktemp)
trap 'rm -f "$new"' EXIT
renewed >"$new"
shown=$(grep -c '^<!-- scripts/check-legacy.sh' "$document")
if [[ ${1:-} == --write ]]; then
	cat "$new" >"$document"
else
	diff -u "$document" "$new" || { echo "$0 --write renews $document" >&2; exit 1; }
	echo "$shown differences in $document are those of the files"
fi
