#!/usr/bin/env bash
# Regenerates include/mwctl.h from src/capi, and the man pages from that. With --check: fails if the
# committed ones differ.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
cbindgen --quiet --config cbindgen.toml --crate mwctl --output "$out/mwctl.h"
if [ "${1:-}" = --check ]; then
	diff -u include/mwctl.h "$out/mwctl.h" || {
		echo "include/mwctl.h is out of date: run scripts/header.sh" >&2
		exit 1
	}
else
	cp "$out/mwctl.h" include/mwctl.h
fi
scripts/man.py "$@"
