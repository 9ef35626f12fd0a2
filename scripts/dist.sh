#!/bin/sh
# Makes the source tarball of a commit, with the crates that it needs: it builds without a network,
# by build.sh or CMake. The same commit gives the same bytes, with the same cargo, tar and gzip.
#
#   dist.sh OUTDIR [COMMIT]      HEAD if none is named; prints the tarball's name
set -eu
LC_ALL=C
export LC_ALL
umask 022

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
	echo "usage: $0 OUTDIR [COMMIT]" >&2
	exit 2
fi
mkdir -p "$1"
outdir=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
commit=$(git rev-parse --verify "${2:-HEAD}^{commit}")
date=$(git log -1 --format=%ct "$commit")
version=$(git show "$commit:Cargo.toml" | sed -n 's/^version = "\([0-9.]*\)"$/\1/p' | head -n 1)
name=mwctl-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git archive --format=tar --prefix="$name/" "$commit" | tar -x -C "$work"
cd "$work/$name"
cargo vendor --quiet --locked --versioned-dirs vendor >/dev/null
mkdir .cargo
cat >.cargo/config.toml <<'CONFIG'
[source.crates-io]
replace-with = "vendored"

[source.vendored]
directory = "vendor"
CONFIG

# Cargo.lock names crates for Windows, by way of others, and cargo wants to see each of them: their
# manifests are enough. They would be nine tenths of the tarball.
for crate in vendor/win*; do
	hash=$(sed -n 's/.*"package":"\([0-9a-f]*\)".*/\1/p' "$crate/.cargo-checksum.json")
	find "$crate" -mindepth 1 ! -path "$crate/Cargo.toml" -delete
	mkdir "$crate/src"
	: >"$crate/src/lib.rs"
	printf '{"files":{},"package":"%s"}\n' "$hash" >"$crate/.cargo-checksum.json"
done

cd "$work"
tar --sort=name --format=gnu --mtime="@$date" --owner=0 --group=0 --numeric-owner \
	--mode='u+rwX,go=rX' -cf "$name.tar" "$name"
gzip -9 -n "$name.tar"
mv -f "$name.tar.gz" "$outdir/$name.tar.gz"
echo "$outdir/$name.tar.gz"
