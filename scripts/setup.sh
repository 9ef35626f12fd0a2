#!/usr/bin/env bash
# Installs what this machine lacks. Quick when nothing is missing.
#
#   setup.sh build      for building and running programs: Debian packages
#   setup.sh [all]      for changing and testing the library too: more of them, and the header generator
#                       into the cache (.cache in the project, or $MWCTL_CACHE)
#
# What real verbs in a guest need is scripts/rxe.sh's own matter.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
[[ $# -le 1 && $what =~ ^(build|all)$ ]] || { echo "usage: $0 [build|all]" >&2; exit 2; }

cbindgen_version=0.29.2
cache=${MWCTL_CACHE:-$PWD/.cache}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# ---- Debian packages ----

missing=()
need_command() {
	command -v "$1" >/dev/null || missing+=("$2")
}
need_header() {
	compgen -G "/usr/include/$1" >/dev/null || compgen -G "/usr/include/*/$1" >/dev/null || missing+=("$2")
}
install_missing() {
	[[ ${#missing[@]} -gt 0 ]] || return 0
	command -v apt-get >/dev/null ||
		die "missing, by Debian's names: ${missing[*]}. This machine has no apt-get: install their like"
	local as_root=()
	if [[ $(id -u) -ne 0 ]]; then
		command -v sudo >/dev/null || die "missing: apt-get install ${missing[*]} (as root)"
		as_root=(sudo)
	fi
	say "installing ${missing[*]}"
	local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y
		--no-install-recommends "${missing[@]}")
	# The lists of packages may be old, or none.
	"${install[@]}" >&2 || { "${as_root[@]}" apt-get update -qq >&2 && "${install[@]}" >&2; } ||
		die "cannot install ${missing[*]}"
	missing=()
}

need_command gcc gcc
need_command ld binutils
need_command make make
need_command cmake cmake
need_header stdio.h libc6-dev
need_header infiniband/verbs.h libibverbs-dev
if [[ $what == all ]]; then
	need_command g++ g++
	need_command clang clang
	need_command pkg-config pkg-config
	need_command ibv_devinfo ibverbs-utils
	need_command shellcheck shellcheck
	need_command python3 python3
	need_command man man-db
	need_command git git
	need_header rdma/rdma_cma.h librdmacm-dev
fi
install_missing
# Without an installed libclang 14 or 15 (clang brings Debian 12's), scripts/libclang.sh fetches one
# with pip. The build does without, where it has to.
if [[ $what == all ]] && ! scripts/libclang.sh --list | grep -q '^1[45] ' &&
	! python3 -m pip --version >/dev/null 2>&1; then
	missing+=(python3-pip)
fi
install_missing

# ---- Rust ----

wanted=$(sed -n 's|^rust-version = "\(.*\)"$|\1|p' Cargo.toml | sort -V | tail -n 1)
rust_hint="install Rust $wanted or newer by rustup; Debian 12's own is too old"
command -v cargo >/dev/null && command -v rustc >/dev/null || die "cargo was not found: $rust_hint"
found=$(rustc --version | cut -d' ' -f2)
[[ $(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1) == "$wanted" ]] ||
	die "Rust $found is too old: $rust_hint"
[[ $what == all ]] || exit 0
for component in fmt clippy; do
	cargo "$component" --version >/dev/null 2>&1 ||
		die "cargo $component is missing: rustup component add rustfmt clippy"
done

PATH=$cache/bin:$PATH
if [[ $(cbindgen --version 2>/dev/null) != "cbindgen $cbindgen_version" ]]; then
	say "building cbindgen $cbindgen_version into $cache/bin"
	cargo install --quiet --locked --root "$cache" --version "=$cbindgen_version" cbindgen >&2
fi
