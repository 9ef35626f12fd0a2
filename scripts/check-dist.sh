#!/bin/sh
# The source tarball is the same twice, names nothing of this machine, and builds without a network
# in an empty folder with cargo, a C compiler and libibverbs alone; programs are linked with what it
# gives and run. 77: there is no repository to make it from, or the crates can't be had.
#
#   check-dist.sh
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

die() {
	echo "$0: $*" >&2
	exit 1
}

cd "$root"
git rev-parse --verify HEAD >"$work/said" 2>&1 || {
	echo "no git repository to make a tarball from: $(tail -n 1 "$work/said")"
	exit 77
}
# Of all targets: more than a build here needs.
cargo fetch --locked --quiet >"$work/said" 2>&1 || {
	echo "the crates can't be fetched: $(tail -n 1 "$work/said")"
	exit 77
}
# What is changed and not committed yet goes in too.
commit=$(git -c user.name=check -c user.email=check@localhost stash create)
commit=${commit:-HEAD}

# ---- the tarball ----

tarball=$(scripts/dist.sh "$work/first" "$commit")
(umask 077 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 scripts/dist.sh "$work/second" "$commit") >/dev/null
cmp "$tarball" "$work/second/${tarball##*/}" || die "the same commit gave two tarballs"
bytes=$(wc -c <"$tarball")
mkdir "$work/empty"
tar -xzf "$tarball" -C "$work/empty"
source=$work/empty/$(ls "$work/empty")
if grep -rlF -e "$work" -e "$root/" -e "${CARGO_HOME:-$HOME/.cargo}" "$source"; then
	die "these files hold a path of this machine"
fi

for file in build.sh vendor .cargo/config.toml LICENSE-MIT man/man7/mwctl.7; do
	[ -e "$source/$file" ] || die "$file is not in the tarball"
done

# ---- the build: these programs, an empty home for cargo, no network ----

mkdir "$work/tools" "$work/home" "$work/cargo"
rust=$(rustc --print sysroot)/bin
for tool in cargo rustc; do
	# Not rustup's stand-ins, which need its folder.
	[ -x "$rust/$tool" ] || rust=$(dirname "$(command -v $tool)")
	ln -s "$rust/$tool" "$work/tools/$tool"
done
for tool in sh sed cc as ld ar objcopy strip readelf \
	basename cat chmod cp dirname ln mkdir mktemp mv rm; do
	ln -s "$(command -v $tool)" "$work/tools/$tool" || die "$tool was not found"
done
isolated="unshare --net"
[ "$(id -u)" -eq 0 ] || isolated="unshare --map-root-user --net"
network="no network"
$isolated true 2>/dev/null || {
	isolated="env"
	network="cargo kept offline (no network namespace to be had)"
}
alone() {
	# Unquoted: it is several words.
	# shellcheck disable=SC2086
	$isolated env -i PATH="$work/tools" HOME="$work/home" CARGO_HOME="$work/cargo" \
		CARGO_NET_OFFLINE=true "$@"
}
for tool in cmake cbindgen clang make python3; do
	! alone sh -c "command -v $tool" || die "the build would find $tool"
done

cd "$source"
# The control: without the vendored crates there is nowhere to take them from.
mv vendor "$work/vendor"
if alone cargo metadata --locked --format-version 1 >/dev/null 2>"$work/said"; then
	die "cargo finds crates elsewhere: the build would show nothing"
fi
mv "$work/vendor" vendor
alone ./build.sh >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	die "the tarball does not build"
}
if grep -rlF -e "$work" -e "$root/" -e "${CARGO_HOME:-$HOME/.cargo}" out; then
	die "these installed files hold a path of this machine"
fi

# ---- what it gave ----

./scripts/check-symbols.sh out >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	die "the libraries are not as they should be"
}
consumer=$root/tests/consumer/consumer.c
private=$(sed -n 's/^Libs\.private: //p' out/lib/pkgconfig/mwctl.pc)
[ -n "$private" ] || die "mwctl.pc has no Libs.private"
alone cc -std=c11 -Wall -Wextra -Werror -o "$work/shared" "$consumer" -Iout/include -Lout/lib -lmwctl -libverbs
# Unquoted: it is several words.
# shellcheck disable=SC2086
alone cc -std=c11 -Wall -Wextra -Werror -o "$work/static" "$consumer" -Iout/include out/lib/libmwctl.a \
	-libverbs $private
for program in shared static; do
	alone LD_LIBRARY_PATH="$source/out/lib:$source/out/lib/mwctl-sim" "$work/$program" ||
		die "the $program program failed"
done
mv out "$work/elsewhere"
export PKG_CONFIG_PATH="$work/elsewhere/lib/pkgconfig"
[ "$(cd "$(pkg-config --variable=simdir mwctl-sim)" && pwd -P)" = "$work/elsewhere/lib/mwctl-sim" ] ||
	die "mwctl-sim.pc does not move with its folder"
pkg-config --cflags --libs mwctl >/dev/null || die "mwctl.pc is not right"
echo "${tarball##*/}, $bytes bytes, twice the same; built with $network; shared and static programs run"
